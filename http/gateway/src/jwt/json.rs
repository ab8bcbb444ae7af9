//! JSON objects of tokens and key sets. A member that stands twice is refused, because two readers may take different
//! ones (RFC 7515 §4, RFC 7519 §4, RFC 7517 §4); nesting is bounded by the parser, members here.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;

/// Members of one object; a token with more is made to cost time.
const MEMBERS_MAX: usize = 128;

/// The members of an object by name.
pub(super) struct Object(BTreeMap<String, Value>);

impl Object {
    /// None unless `text` is one object and nothing else.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice(text).ok()
    }

    pub(super) fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A member that is absent or a text; None when it is something else.
    pub(super) fn text(&self, name: &str) -> Option<Option<&str>> {
        match self.get(name) {
            None => Some(None),
            Some(value) => value.as_str().map(Some),
        }
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Members)
    }
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Object;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
        let mut members = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, Value>()? {
            if members.len() == MEMBERS_MAX {
                return Err(A::Error::custom("too many members"));
            }
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("a member stands twice"));
            }
        }
        Ok(Object(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_object_with_different_members_is_taken() {
        assert!(Object::parse(br#" {"a":1,"b":{"a":2}} "#).is_some());
        let nested = |depth: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
        assert!(Object::parse(nested(100).as_bytes()).is_some());
        let many = |count: usize| {
            let members: Vec<String> = (0..count).map(|n| format!("\"{n}\":0")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert!(Object::parse(many(MEMBERS_MAX).as_bytes()).is_some());
        for bad in [
            String::new(),
            "[]".into(),
            "1".into(),
            "null".into(),
            "{".into(),
            "{}{}".into(),
            "{} x".into(),
            r#"{"a":1,"a":1}"#.into(),
            r#"{"a":1,"\u0061":2}"#.into(),
            r#"{"a":NaN}"#.into(),
            r#"{"a":1e999}"#.into(),
            r#"{"a":01}"#.into(),
            r#"{"a":"\ud800"}"#.into(),
            r#"{"a":1,}"#.into(),
            nested(4_000),
            many(MEMBERS_MAX + 1),
        ] {
            assert!(Object::parse(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(Object::parse(b"{\"a\":\"\xff\"}").is_none(), "no UTF-8");
    }
}
