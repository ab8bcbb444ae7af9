//! Checks a tree against the table of keys: shape, unknown keys, types, ranges, rules.

use std::collections::HashSet;
use std::fmt::Display;

use super::{Field, Group, Kind, Limits, Object, Presence, Rule};
use crate::finding::{Findings, Problem};
use crate::suggest::nearest;
use crate::units::{parse_duration, parse_size, show_duration, show_size};
use crate::yaml::{Node, Value};

/// Reports everything in `node` that the kind does not allow.
pub(crate) fn check(node: &Node, kind: &Kind, findings: &mut Findings) {
    if let (Value::Null, false) = (&node.value, matches!(kind, Kind::Either(..))) {
        findings.error(
            node,
            Problem::new("the key has no value", format!("give {}, or delete the key", kind_name(kind))),
        );
        return;
    }
    match kind {
        Kind::Bool
        | Kind::Int(_)
        | Kind::Number(_)
        | Kind::Duration(_)
        | Kind::Size(_)
        | Kind::Choice(_)
        | Kind::Text(_) => {
            if let Err(problem) = check_scalar(node, kind) {
                findings.error(node, problem);
            }
        }
        Kind::List { of, max } => check_list(node, of, *max, findings),
        Kind::Map { key, of } => check_map(node, key, of, findings),
        Kind::Object(object) => check_object(node, object, findings),
        Kind::Either(scalar, other) => {
            let is_collection = matches!(node.value, Value::List(_) | Value::Map(_));
            check(node, if is_collection { other } else { scalar }, findings);
        }
    }
}

fn check_scalar(node: &Node, kind: &Kind) -> Result<(), Problem> {
    let wrong = |fix: String| Problem::new(format!("expected {}", kind_name(kind)), fix);
    match kind {
        Kind::Bool => match node.plain() {
            Some("true" | "false") => Ok(()),
            _ => Err(wrong("write `true` or `false`".to_owned())),
        },
        Kind::Int(limits) => {
            let fix = format!("write a whole number from {} to {}", limits.min, limits.max);
            let value = node.plain().and_then(parse_int).ok_or_else(|| wrong(fix))?;
            check_range(value, limits, u64::to_string)
        }
        Kind::Number(limits) => {
            let fix = format!("write a number from {} to {}", limits.min, limits.max);
            let value = node.plain().and_then(parse_number).ok_or_else(|| wrong(fix))?;
            check_range(value, limits, f64::to_string)
        }
        Kind::Duration(limits) => {
            let text = node.text().ok_or_else(|| wrong("write for example `30s`".to_owned()))?;
            check_range(parse_duration(text)?, limits, |d| show_duration(*d))
        }
        Kind::Size(limits) => {
            let text = node.text().ok_or_else(|| wrong("write for example `64KiB`".to_owned()))?;
            check_range(parse_size(text)?, limits, |b| show_size(*b))
        }
        Kind::Choice(choices) => check_choice(node, choices),
        Kind::Text(rule) => {
            let text = node.text().ok_or_else(|| wrong(format!("write for example `{}`", rule.example)))?;
            (rule.check)(text)
        }
        Kind::List { .. } | Kind::Map { .. } | Kind::Object(_) | Kind::Either(..) => Ok(()),
    }
}

pub(crate) fn parse_int(text: &str) -> Option<u64> {
    let is_plain = text == "0" || !text.starts_with(['0', '+', '-']);
    text.parse().ok().filter(|_| is_plain)
}

pub(crate) fn parse_number(text: &str) -> Option<f64> {
    let is_plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.parse().ok().filter(|_| is_plain)
}

fn check_range<T: Copy + PartialOrd>(
    value: T,
    limits: &Limits<T>,
    show: impl Fn(&T) -> String,
) -> Result<(), Problem> {
    if limits.holds(value) {
        return Ok(());
    }
    let side = if value < limits.min { "below the least" } else { "above the most" };
    let end = if value < limits.min { limits.min } else { limits.max };
    Err(Problem::new(
        format!("{side} allowed value, {}", show(&end)),
        format!("write a value from {} to {}", show(&limits.min), show(&limits.max)),
    ))
}

fn check_choice(node: &Node, choices: &'static [(&'static str, &'static str)]) -> Result<(), Problem> {
    let words = || choices.iter().map(|(word, _)| *word);
    let text = node.text().unwrap_or("");
    if words().any(|word| word == text) {
        return Ok(());
    }
    let fix = match nearest(text, words()) {
        Some(word) => format!("did you mean `{word}`?"),
        None => format!("write {}", any_of(words())),
    };
    Err(Problem::new(format!("expected {}", any_of(words())), fix))
}

/// "`a`, `b` or `c`".
fn any_of(words: impl Iterator<Item = impl Display>) -> String {
    let quoted: Vec<String> = words.map(|w| format!("`{w}`")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn check_list(node: &Node, of: &Kind, max: usize, findings: &mut Findings) {
    let Value::List(items) = &node.value else {
        let fix = match node.text() {
            Some(text) => format!("write `[{text}]`"),
            None => "write a list, each item on a line of its own after `- `".to_owned(),
        };
        findings.error(node, Problem::new("expected a list", fix));
        return;
    };
    if items.is_empty() || items.len() > max {
        findings.error(
            node,
            Problem::new(
                format!("a list of 1 to {max} items is expected here, not {}", items.len()),
                if items.is_empty() { "add an item, or delete the key" } else { "shorten the list" },
            ),
        );
    }
    for item in items {
        check(item, of, findings);
    }
    let mut seen: HashSet<&str> = HashSet::new();
    for item in items {
        if item.text().is_some_and(|text| !seen.insert(text)) {
            findings.error(item, Problem::new("the list names this twice", "delete one of the two"));
        }
    }
}

fn check_map(node: &Node, key: &Rule, of: &Kind, findings: &mut Findings) {
    let Value::Map(entries) = &node.value else {
        let fix = format!("write keys with values, such as `{}: …`", key.example);
        findings.error(node, Problem::new(format!("expected a mapping by {}", key.what), fix));
        return;
    };
    for entry in entries {
        if let Err(problem) = (key.check)(&entry.key) {
            findings.error_at(entry.key_at, &entry.value.path, &entry.key, problem);
        }
        check(&entry.value, of, findings);
    }
}

/// Checks a mapping with known keys.
pub(crate) fn check_object(node: &Node, object: &Object, findings: &mut Findings) {
    let Value::Map(entries) = &node.value else {
        let keys = any_of(object.all_fields().take(4).map(|f| f.key));
        findings.error(
            node,
            Problem::new("expected a mapping", format!("write keys with values, such as {keys}")),
        );
        return;
    };
    for entry in entries {
        match object.field(&entry.key) {
            Some(field) => check(&entry.value, &field.kind, findings),
            None => {
                let fix = unknown_key_fix(&entry.key, object);
                let problem = Problem::new(format!("unknown key `{}`", entry.key), fix);
                findings.error_at(entry.key_at, &entry.value.path, &entry.value.shown(), problem);
            }
        }
    }
    check_presence(node, object, findings);
}

fn unknown_key_fix(key: &str, object: &Object) -> String {
    match nearest(key, object.all_fields().map(|f| f.key)) {
        Some(known) => format!("did you mean `{known}`?"),
        None => {
            let known: Vec<&str> = object.all_fields().map(|f| f.key).collect();
            format!("delete it; the keys here are {}", known.join(", "))
        }
    }
}

fn check_presence(node: &Node, object: &Object, findings: &mut Findings) {
    let is_missing =
        |field: &&Field| matches!(field.presence, Presence::Required) && node.get(field.key).is_none();
    for field in object.all_fields().filter(is_missing) {
        findings.error(
            node,
            Problem::new(
                format!("the key `{}` is missing", field.key),
                format!("add `{}`: {}", field.key, kind_name(&field.kind)),
            ),
        );
    }
    for group in object.groups {
        let present: Vec<&&str> = group.keys().iter().filter(|key| node.get(key).is_some()).collect();
        if let [first, second, ..] = present.as_slice() {
            let extra = node.get(second).unwrap_or(node);
            findings.error(
                extra,
                Problem::new(format!("`{first}` and `{second}` exclude each other"), "keep one of the two"),
            );
        }
        if let (Group::ExactlyOne(keys), []) = (group, present.as_slice()) {
            let keys = any_of(keys.iter());
            findings.error(node, Problem::new(format!("one of {keys} is missing"), format!("add {keys}")));
        }
    }
}

/// What a kind is, in words.
pub(crate) fn kind_name(kind: &Kind) -> String {
    match kind {
        Kind::Bool => "`true` or `false`".to_owned(),
        Kind::Int(_) => "a whole number".to_owned(),
        Kind::Number(_) => "a number".to_owned(),
        Kind::Duration(_) => "a duration such as `30s`".to_owned(),
        Kind::Size(_) => "a size such as `64KiB`".to_owned(),
        Kind::Choice(choices) => any_of(choices.iter().map(|(word, _)| word)),
        Kind::Text(rule) => format!("text such as `{}` ({})", rule.example, rule.what),
        Kind::List { of, .. } => format!("a list of {}", kind_name(of)),
        Kind::Map { key, of } => format!("a mapping from {} to {}", key.what, kind_name(of)),
        Kind::Object(object) => format!("a mapping ({})", object.name),
        Kind::Either(scalar, other) => format!("{} or {}", kind_name(scalar), kind_name(other)),
    }
}
