//! Lays a more specific mapping over a default. The outcome keeps the place of every value, so that a finding
//! points at where the author wrote it.

use super::{Kind, Object};
use crate::yaml::{Entry, Node, Value};

/// `over` with the keys of `base` that it does not set itself and that exclude none of its own. Mappings merge key by
/// key; lists and scalars are replaced.
pub(crate) fn merge(base: &Node, over: &Node, object: &Object) -> Node {
    let (Value::Map(below), Value::Map(above)) = (&base.value, &over.value) else {
        return over.clone();
    };
    let mut entries: Vec<Entry> = above.clone();
    for entry in below {
        if let Some(own) = entries.iter_mut().find(|e| e.key == entry.key) {
            own.value = match object.field(&entry.key).map(|f| &f.kind) {
                Some(Kind::Object(inner) | Kind::Either(_, Kind::Object(inner))) => {
                    merge(&entry.value, &own.value, inner)
                }
                Some(Kind::Map { .. }) => merge_map(&entry.value, &own.value),
                _ => continue,
            };
        } else if !is_excluded(&entry.key, over, object) {
            entries.push(entry.clone());
        }
    }
    Node { at: over.at, path: over.path.clone(), value: Value::Map(entries) }
}

fn merge_map(base: &Node, over: &Node) -> Node {
    let mut merged = over.clone();
    if let Value::Map(entries) = &mut merged.value {
        let added = base.entries().iter().filter(|e| over.get(&e.key).is_none());
        entries.extend(added.cloned());
    }
    merged
}

fn is_excluded(key: &str, over: &Node, object: &Object) -> bool {
    let rivals = |keys: &[&str]| keys.iter().any(|rival| *rival != key && over.get(rival).is_some());
    object.groups.iter().any(|group| group.keys().contains(&key) && rivals(group.keys()))
}
