//! shard-l4's answers as aligned tables. A field that an answer lacks is shown as `-`: the daemon may be older.

use serde_json::Value;

/// An answer as it came.
pub(super) fn plain(value: &Value) -> String {
    format!("{value}\n")
}

/// What is in force.
pub(super) fn show(value: &Value) -> String {
    let mut text = pairs(
        value,
        &[
            "phase",
            "announced",
            "config",
            "list",
            "list_waiting",
            "drain_ends_in_s",
            "rescue_ends_in_s",
            "drop_rules",
        ],
    );
    text.push_str(&table(value, "interfaces", &["name", "mode"]));
    let proxy = ["name", "id", "address", "state", "weight", "rows", "rows_previous", "local"];
    text.push_str(&table(value, "proxies", &proxy));
    text.push_str(&table(value, "vips", &["name", "id", "addresses", "ports", "protocols"]));
    text
}

/// Packets by VIP and decision, by proxy and by rule.
pub(super) fn counters(value: &Value) -> String {
    let mut rows = vec![["vip".to_owned(), "decision".to_owned(), "packets".to_owned()].to_vec()];
    for vip in list(value, "vips") {
        let decisions = vip.get("decisions").and_then(Value::as_object);
        for (decision, packets) in decisions.into_iter().flatten() {
            rows.push(vec![cell(vip, "vip"), decision.clone(), shown(packets)]);
        }
    }
    let mut text = aligned(&rows);
    let vip = ["vip", "forwarded_bytes", "table", "rescued_since_table", "reset_since_table"];
    text.push_str(&table(value, "vips", &vip));
    text.push_str(&table(value, "proxies", &["proxy", "packets", "bytes"]));
    text.push_str(&table(value, "drop_rules", &["vip", "source", "packets_per_second", "dropped"]));
    text
}

/// Remembered flows.
pub(super) fn flows(value: &Value) -> String {
    table(value, "flows", &["hash", "proxy", "id", "idle_s"])
}

/// One answer, a line for each of its fields.
pub(super) fn lookup(value: &Value) -> String {
    let keys: Vec<&str> = value.as_object().into_iter().flatten().map(|(key, _)| key.as_str()).collect();
    pairs(value, &keys)
}

/// Sampled decisions, a line each and no heading: it is called for each part.
pub(super) fn trace(value: &Value) -> String {
    let keys = ["time_ns", "decision", "vip", "proxy", "protocol", "source", "destination", "bytes", "hash"];
    list(value, "events")
        .iter()
        .map(|event| {
            let cells: Vec<String> = keys.iter().map(|key| cell(event, key)).collect();
            format!("{}\n", cells.join(" "))
        })
        .collect()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn pairs(value: &Value, keys: &[&str]) -> String {
    let rows: Vec<Vec<String>> = keys.iter().map(|key| vec![(*key).to_owned(), cell(value, key)]).collect();
    aligned(&rows)
}

/// The objects of a list, below a blank line and a heading of their keys.
fn table(value: &Value, name: &str, keys: &[&str]) -> String {
    let mut rows = vec![keys.iter().map(|key| (*key).to_owned()).collect::<Vec<_>>()];
    rows.extend(list(value, name).iter().map(|item| keys.iter().map(|key| cell(item, key)).collect()));
    format!("\n{name}\n{}", aligned(&rows))
}

fn cell(value: &Value, key: &str) -> String {
    value.get(key).map_or_else(|| "-".to_owned(), shown)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| format!("{key}={}", shown(value))).collect::<Vec<_>>().join(",")
        }
    }
}

fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    rows.iter()
        .map(|row| {
            let line: String =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
            format!("{}\n", line.trim_end())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tables_are_aligned_and_lack_nothing() {
        let value = json!({ "flows": [
            { "hash": "00ff", "proxy": "ams-1", "id": 1, "idle_s": 3 },
            { "hash": "00fe", "proxy": null, "id": 4095 },
        ] });
        let expected = "\nflows\nhash  proxy  id    idle_s\n00ff  ams-1  1     3\n00fe  -      4095  -\n";
        assert_eq!(flows(&value), expected);
    }

    #[test]
    fn counters_have_a_line_for_each_decision() {
        let value = json!({
            "vips": [{ "vip": "web", "decisions": { "forward_flow": 7, "drop_rule": 1 }, "table": 2 }],
            "proxies": [], "drop_rules": [],
        });
        let text = counters(&value);
        assert!(text.contains("\nweb  drop_rule     1\nweb  forward_flow  7\n"), "{text}");
    }

    #[test]
    fn an_answer_is_shown_field_by_field() {
        let value = json!({ "vip": "web", "flow": { "proxy": "a", "idle_s": 1 }, "goes_to": null });
        assert_eq!(lookup(&value), "flow     idle_s=1,proxy=a\ngoes_to  -\nvip      web\n");
        let events = json!({ "events": [{ "time_ns": 5, "decision": "local" }] });
        assert_eq!(trace(&events), "5 local - - - - - - -\n");
    }
}
