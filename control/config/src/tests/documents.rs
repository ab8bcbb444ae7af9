//! The committed reference page and JSON Schemas are those that the table of keys makes.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::{reference_markdown, schema, schemas};

/// With this variable set, the test writes the files instead of comparing them.
const REGENERATE: &str = "REGENERATE_DOCS";

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn compare(path: &Path, generated: &str) {
    if std::env::var_os(REGENERATE).is_some() {
        std::fs::write(path, generated).expect("docs/ is writable");
        return;
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == generated,
        "{} is out of date; run `{REGENERATE}=1 cargo test -p control-config`",
        path.display()
    );
}

#[test]
fn the_reference_page_is_up_to_date() {
    compare(&docs().join("config.md"), &reference_markdown());
}

#[test]
fn the_json_schemas_are_up_to_date() {
    for (name, schema) in schemas() {
        let text = serde_json::to_string_pretty(&schema).expect("a JSON value");
        compare(&docs().join(format!("schema/{name}.json")), &format!("{text}\n"));
    }
}

/// Every `$ref` in a value.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(keys) => {
            found.extend(keys.get("$ref").and_then(Value::as_str));
            keys.values().for_each(|inner| references(inner, found));
        }
        Value::Array(items) => items.iter().for_each(|inner| references(inner, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn every_reference_of_a_schema_has_its_definition() {
    for (name, schema) in schemas() {
        let mut found = Vec::new();
        references(&schema, &mut found);
        assert!(!found.is_empty(), "{name}");
        for reference in found {
            let pointer = reference.strip_prefix('#').expect("a local reference");
            assert!(schema.pointer(pointer).is_some_and(Value::is_object), "{name}: {reference}");
        }
    }
}

#[test]
fn the_single_file_schema_contains_the_service() {
    let schema = schema();
    assert!(schema.pointer("/$defs/service/properties/routes").is_some());
    assert!(schema.pointer("/properties/listeners").is_some());
}

#[test]
fn defaults_in_the_reference_are_those_of_the_contract() {
    let page = reference_markdown();
    for row in [
        "| `connect_timeout` | duration, 10ms to 30s | `5s` |",
        "| `timeout` | duration, 1ms to 30s | `15s` |",
        "| `body_max` | size, 1B to 1TiB | `16MiB` |",
        "| `header_bytes_max` | size, 1KiB to 256KiB | `32KiB` |",
    ] {
        assert!(page.contains(row), "{row}");
    }
    let bound = control_api::defaults::listener::HEADER_KIB;
    assert_eq!((bound.min, bound.default, bound.max), (1, 32, 256), "as `header_bytes_max` in the table");
}
