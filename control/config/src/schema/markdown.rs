//! The table of keys as the reference page, docs/config.md.

use control_api::defaults::ACCESS_LOG_FIELDS;

use super::check::kind_name;
use super::table::{L4, PLATFORM, SERVICE, SINGLE};
use super::{Field, Group, Kind, Limits, Object, Presence};
use crate::units::{show_duration, show_size};

const INTRODUCTION: &str = "\
# Config reference

<!-- Generated from the table of keys (control/config/src/schema/table) by `REGENERATE_DOCS=1 cargo test -p control-config`. -->

A config is a directory. Either it holds `platform/*.yaml` (the platform team: listeners, ownership, defaults) and
`services/<name>/service.yaml` (one directory a service, owned by its team), or one `shard.yaml` with everything.
Files named in it (certificates, pages) lie inside the directory and are named relative to it. Complete examples are
under docs/examples; what the config becomes is in docs/resources.md.

Durations are whole numbers with `ms`, `s`, `m`, `h` or `d`; sizes with `B`, `KiB`, `MiB` or `GiB`. Unknown keys are
errors. YAML aliases, tags and several documents in a file are not supported.
";

/// The whole page.
pub(crate) fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let mut waiting: Vec<&'static Object> = vec![&PLATFORM, &SERVICE, &SINGLE, &L4];
    let mut at = 0;
    // Breadth first, so that a section comes soon after the one that names it.
    while let Some(object) = waiting.get(at).copied() {
        section(object, &mut page);
        for field in object.all_fields() {
            named_objects(&field.kind, &mut waiting);
        }
        at += 1;
    }
    let fields: Vec<String> = ACCESS_LOG_FIELDS.iter().map(|field| format!("`{field}`")).collect();
    let section = format!(
        "\n## Fields of the access log\n\nThe keys of JSON lines (those without a value are left out), and `%field%` in a \
         template (`-` without a value): {}. Those that end in `_us` are the stages of a request in microseconds.\n",
        fields.join(", ")
    );
    page.push_str(&section);
    page
}

fn named_objects(kind: &'static Kind, waiting: &mut Vec<&'static Object>) {
    match kind {
        Kind::Object(object) => {
            if !waiting.iter().any(|known| known.name == object.name) {
                waiting.push(object);
            }
        }
        Kind::List { of, .. } | Kind::Map { of, .. } => named_objects(of, waiting),
        Kind::Either(scalar, other) => {
            named_objects(scalar, waiting);
            named_objects(other, waiting);
        }
        Kind::Bool
        | Kind::Int(_)
        | Kind::Number(_)
        | Kind::Duration(_)
        | Kind::Size(_)
        | Kind::Choice(_)
        | Kind::Text(_) => {}
    }
}

fn section(object: &'static Object, page: &mut String) {
    let mut lines = format!(
        "\n## {}\n\n{}\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
        object.name, object.doc
    );
    for field in object.all_fields() {
        let row = format!(
            "| `{}` | {} | {} | {} |\n",
            field.key,
            escape(&value(&field.kind)),
            escape(&default(field)),
            escape(&meaning(field))
        );
        lines.push_str(&row);
    }
    for group in object.groups {
        let keys: Vec<String> = group.keys().iter().map(|key| format!("`{key}`")).collect();
        let rule = match group {
            Group::ExactlyOne(_) => "Exactly one of",
            Group::AtMostOne(_) => "At most one of",
        };
        let sentence = format!("\n{rule} {}.\n", keys.join(", "));
        lines.push_str(&sentence);
    }
    page.push_str(&lines);
}

fn value(kind: &'static Kind) -> String {
    match kind {
        Kind::Int(limits) => format!("number, {} to {}", limits.min, limits.max),
        Kind::Number(limits) => format!("number, {} to {}", limits.min, limits.max),
        Kind::Duration(limits) => {
            format!("duration, {} to {}", show_duration(limits.min), show_duration(limits.max))
        }
        Kind::Size(limits) => format!("size, {} to {}", show_size(limits.min), show_size(limits.max)),
        Kind::Bool | Kind::Choice(_) => kind_name(kind),
        Kind::Text(rule) => format!("{}, such as `{}`", rule.what, rule.example),
        Kind::List { of, .. } => format!("list of: {}", value(of)),
        Kind::Map { key, of } => format!("mapping from {} to: {}", key.what, value(of)),
        Kind::Object(object) => format!("[{0}](#{0})", object.name),
        Kind::Either(scalar, other) => format!("{}; or {}", value(scalar), value(other)),
    }
}

fn default(field: &Field) -> String {
    match (&field.presence, &field.kind) {
        (Presence::Required, _) => "required".to_owned(),
        (Presence::OptionalOr(words), _) => (*words).to_owned(),
        (Presence::Optional, kind) => kind_default(kind),
    }
}

fn kind_default(kind: &Kind) -> String {
    fn shown<T: Copy>(limits: &Limits<T>, show: impl Fn(&T) -> String) -> String {
        limits.default.as_ref().map_or_else(|| "none".to_owned(), |d| format!("`{}`", show(d)))
    }
    match kind {
        Kind::Int(limits) => shown(limits, u64::to_string),
        Kind::Number(limits) => shown(limits, f64::to_string),
        Kind::Duration(limits) => shown(limits, |d| show_duration(*d)),
        Kind::Size(limits) => shown(limits, |b| show_size(*b)),
        Kind::Choice(choices) => choices.first().map_or_else(String::new, |(word, _)| format!("`{word}`")),
        Kind::Object(_) => "as below".to_owned(),
        Kind::Bool | Kind::Text(_) | Kind::List { .. } | Kind::Map { .. } | Kind::Either(..) => {
            "none".to_owned()
        }
    }
}

fn meaning(field: &Field) -> String {
    let mut text = field.doc.to_owned();
    if let Kind::Choice(choices) = field.kind {
        for (word, doc) in choices.iter().filter(|(_, doc)| !doc.is_empty()) {
            let sentence = format!(" `{word}`: {doc}.");
            text.push_str(&sentence);
        }
    }
    text
}

/// A bar would end the table cell.
fn escape(cell: &str) -> String {
    cell.replace('|', "\\|")
}
