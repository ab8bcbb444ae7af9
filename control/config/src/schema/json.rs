//! The table of keys as a JSON Schema (draft 2020-12), for editors.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::{Group, Kind, Limits, Object, Presence};
use crate::units::{show_duration, show_size};

/// The schema of one document: the object itself, and under `$defs` all that it names.
pub(crate) fn document(root: &'static Object) -> Value {
    let mut definitions: BTreeMap<&'static str, Value> = BTreeMap::new();
    let mut schema = object(root, &mut definitions);
    if let Value::Object(keys) = &mut schema {
        keys.insert("$schema".into(), json!("https://json-schema.org/draft/2020-12/schema"));
        keys.insert("title".into(), json!(root.name));
        keys.insert("$defs".into(), json!(definitions));
    }
    schema
}

fn object(object: &'static Object, definitions: &mut BTreeMap<&'static str, Value>) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in object.all_fields() {
        let mut schema = kind(&field.kind, definitions);
        if let Value::Object(keys) = &mut schema {
            keys.insert("description".into(), json!(field.doc));
        }
        if matches!(field.presence, Presence::Required) {
            required.push(field.key);
        }
        properties.insert(field.key.into(), schema);
    }
    let mut schema = json!({
        "type": "object",
        "description": object.doc,
        "properties": properties,
        "additionalProperties": false,
    });
    if let Value::Object(keys) = &mut schema {
        if !required.is_empty() {
            keys.insert("required".into(), json!(required));
        }
        if !object.groups.is_empty() {
            let groups: Vec<Value> = object.groups.iter().map(group).collect();
            keys.insert("allOf".into(), json!(groups));
        }
    }
    schema
}

fn group(group: &Group) -> Value {
    let mut cases: Vec<Value> = group.keys().iter().map(|key| json!({ "required": [key] })).collect();
    if matches!(group, Group::AtMostOne(_)) {
        cases.push(json!({ "not": { "anyOf": cases.clone() } }));
    }
    json!({ "oneOf": cases })
}

fn kind(of: &'static Kind, definitions: &mut BTreeMap<&'static str, Value>) -> Value {
    match of {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Int(limits) => with_default(
            json!({ "type": "integer", "minimum": limits.min, "maximum": limits.max }),
            limits.default.map(|d| json!(d)),
        ),
        Kind::Number(limits) => with_default(
            json!({ "type": "number", "minimum": limits.min, "maximum": limits.max }),
            limits.default.map(|d| json!(d)),
        ),
        Kind::Duration(limits) => unit("^[0-9]+(ms|s|m|h|d)$", limits, |d| show_duration(*d)),
        Kind::Size(limits) => unit("^[0-9]+(B|KiB|MiB|GiB|TiB)$", limits, |b| show_size(*b)),
        Kind::Choice(choices) => {
            let mut words: Vec<Value> = choices.iter().map(|(word, _)| json!(word)).collect();
            // A status such as 301 reads as a number to an editor.
            let numbers: Vec<Value> =
                choices.iter().filter_map(|(word, _)| Some(json!(word.parse::<u32>().ok()?))).collect();
            words.extend(numbers);
            json!({ "enum": words })
        }
        Kind::Text(rule) => {
            json!({ "type": ["string", "number", "boolean"], "examples": [rule.example] })
        }
        Kind::List { of, max } => json!({
            "type": "array",
            "items": kind(of, definitions),
            "minItems": 1,
            "maxItems": max,
        }),
        Kind::Map { of, .. } => {
            json!({ "type": "object", "additionalProperties": kind(of, definitions) })
        }
        Kind::Object(inner) => {
            if !definitions.contains_key(inner.name) {
                definitions.insert(inner.name, Value::Null);
                let schema = object(inner, definitions);
                definitions.insert(inner.name, schema);
            }
            json!({ "$ref": format!("#/$defs/{}", inner.name) })
        }
        Kind::Either(scalar, other) => {
            json!({ "anyOf": [kind(scalar, definitions), kind(other, definitions)] })
        }
    }
}

fn unit<T: Copy>(pattern: &str, limits: &Limits<T>, show: impl Fn(&T) -> String) -> Value {
    let schema = json!({ "type": "string", "pattern": pattern });
    with_default(schema, limits.default.as_ref().map(|d| json!(show(d))))
}

fn with_default(mut schema: Value, default: Option<Value>) -> Value {
    if let (Value::Object(keys), Some(default)) = (&mut schema, default) {
        keys.insert("default".into(), default);
    }
    schema
}
