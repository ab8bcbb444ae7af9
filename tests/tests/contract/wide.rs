//! Configs that use every key there is: what `control-config` accepts, `http-proxy` compiles. The JSON Schema says
//! which keys those are, so that a new key without a place in `wide/*.json` fails here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tests::dir::TempDir;
use tests::tls::Authority;
use tests::token::Issuer;

use crate::compiled;

fn wide_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/contract/wide")
}

/// The wide configs by file name.
fn wide() -> Vec<(String, String)> {
    let entries = std::fs::read_dir(wide_dir()).expect("the folder of wide configs");
    let paths = entries.map(|entry| entry.expect("a readable entry").path());
    paths
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("UTF-8"))
        })
        .collect()
}

/// A config directory with `text` and every file that a wide config names.
fn directory(text: &str) -> TempDir {
    let authority = Authority::default();
    let dir = TempDir::new("wide");
    dir.write("shard.yaml", text);
    dir.write("pages/busy.html", "<p>Busy.</p>");
    dir.write("tls/ca.pem", authority.pem());
    dir.write("keys/main.jwks.json", Issuer::new("a").key_set(&[]));
    for (name, byte) in [("new", 1), ("old", 2)] {
        dir.write(&format!("keys/{name}.key"), vec![byte; 32]);
    }
    for (name, host) in [("one", "one.example"), ("two", "*.two.example")] {
        let leaf = authority.leaf(&[host]);
        dir.write(&format!("tls/{name}.pem"), &leaf.certificate_pem);
        dir.write(&format!("tls/{name}.key"), &leaf.key_pem);
    }
    for number in 0..3_u8 {
        dir.write(&format!("tls/tickets-{number}.key"), vec![number + 1; 80]);
    }
    dir
}

#[test]
fn every_wide_config_compiles() {
    for (name, text) in wide() {
        let snapshot = compiled(directory(&text).path());
        assert!(!snapshot.listeners.is_empty(), "{name}");
    }
}

/// Collects `object.key`, and `key=choice` of closed lists, for all that `value` uses of `schema`.
fn used(schema: &Value, definitions: &Value, owner: &str, value: &Value, into: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        return used(&definitions[name], definitions, name, value, into);
    }
    for either in schema["anyOf"].as_array().into_iter().flatten() {
        used(either, definitions, owner, value, into);
    }
    for item in value.as_array().into_iter().flatten() {
        used(&schema["items"], definitions, owner, item, into);
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let property = &schema["properties"][key];
        if property.is_object() {
            into.insert(format!("{owner}.{key}"));
            if property["enum"].is_array() {
                into.insert(choice(key, inner));
            }
            used(property, definitions, owner, inner, into);
        } else if schema["additionalProperties"].is_object() {
            used(&schema["additionalProperties"], definitions, owner, inner, into);
        }
    }
}

/// Numbers may stand for texts in YAML.
fn choice(key: &str, value: &Value) -> String {
    format!("{key}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// All that [`used`] could collect.
fn known(schema: &Value, owner: &str, into: &mut BTreeSet<String>) {
    for (key, property) in schema["properties"].as_object().into_iter().flatten() {
        into.insert(format!("{owner}.{key}"));
        into.extend(property["enum"].as_array().into_iter().flatten().map(|value| choice(key, value)));
    }
}

/// What the schema knows and none of `configs` uses.
fn left_out(configs: &[(String, String)]) -> Vec<String> {
    let schema = control_config::schema();
    let mut wanted = BTreeSet::new();
    known(&schema, "shard", &mut wanted);
    for (name, definition) in schema["$defs"].as_object().expect("definitions") {
        known(definition, name, &mut wanted);
    }
    let mut found = BTreeSet::new();
    for (name, text) in configs {
        let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        used(&schema, &schema["$defs"], "shard", &value, &mut found);
    }
    wanted.difference(&found).filter(|key| !is_unserved(key)).cloned().collect()
}

/// Keys of checks, not all of which the proxy serves so far; `balance.rs` shows which are refused.
fn is_unserved(key: &str) -> bool {
    matches!(key, "health_check.grpc" | "cluster_defaults.health_check")
}

#[test]
fn no_key_and_no_choice_is_left_out() {
    assert_eq!(left_out(&wide()), Vec::<String>::new());
}

#[test]
fn a_key_that_is_left_out_is_found() {
    let mut configs = wide();
    configs.retain(|(name, _)| name != "streaming.json");
    assert_eq!(left_out(&configs), ["route_defaults.streaming"]);
    assert!(left_out(&[]).len() > 150, "the schema is read as it is written");
}
