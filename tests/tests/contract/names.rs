//! Lists that two crates keep, because neither may import the other.

use control_api::defaults::ACCESS_LOG_FIELDS;
use http_proxy::record::LogField;

/// The key of a field in a line: stages carry their unit.
fn key(field: LogField) -> String {
    match field {
        LogField::Stage(stage) => format!("{}_us", stage.label()),
        other => other.name().to_owned(),
    }
}

#[test]
fn the_fields_of_the_access_log_are_the_ones_that_configs_may_name() {
    let written: Vec<String> = LogField::all().map(key).collect();
    assert_eq!(written, ACCESS_LOG_FIELDS);
}

#[test]
fn every_field_that_configs_may_name_is_found() {
    for name in ACCESS_LOG_FIELDS {
        let field = LogField::from_name(name).unwrap_or_else(|| panic!("{name}: no such field"));
        assert_eq!(key(field), name);
    }
    assert_eq!(LogField::from_name("nonsense"), None);
}
