//! Header operations of the three levels, most specific level first, removals before additions, as Envoy applies
//! them: so an outer level that overwrites has the last word.

use control_api::defaults::route::FIELD_OPS_MAX;
use control_api::envoy::core::HeaderValueOption;
use control_api::envoy::core::header_value_option::HeaderAppendAction;
use http_gateway::fields::{FieldAction, FieldOps, ValueTemplate};

use super::fault::{Checked, Fault, Within, nothing_else};

/// The operations of one level on one direction, checked.
#[derive(Clone, Debug, Default)]
pub(super) struct Level(Vec<(String, FieldAction)>);

/// Both directions of one level.
#[derive(Clone, Debug, Default)]
pub(super) struct LevelOps {
    pub(super) request: Level,
    pub(super) response: Level,
}

impl LevelOps {
    pub(super) fn read(
        request_add: Vec<HeaderValueOption>,
        request_remove: Vec<String>,
        response_add: Vec<HeaderValueOption>,
        response_remove: Vec<String>,
    ) -> Checked<Self> {
        let request = Level::read(
            request_add,
            request_remove,
            ["request_headers_to_add", "request_headers_to_remove"],
        )?;
        let response = Level::read(
            response_add,
            response_remove,
            ["response_headers_to_add", "response_headers_to_remove"],
        )?;
        if request.0.len() + response.0.len() > FIELD_OPS_MAX {
            return Err(Fault::new("", format!("has more than {FIELD_OPS_MAX} header operations")));
        }
        Ok(Self { request, response })
    }
}

impl Level {
    fn read(add: Vec<HeaderValueOption>, remove: Vec<String>, fields: [&str; 2]) -> Checked<Self> {
        let mut ops = Vec::with_capacity(add.len() + remove.len());
        // An operation is tried here, where its place is known; later pushes of the same cannot fail.
        let mut trial = FieldOps::default();
        for (at, name) in remove.into_iter().enumerate() {
            trial
                .push(&name, FieldAction::Remove)
                .map_err(|error| Fault::new("", format!("is refused: {error}")))
                .within_item(fields[1], at)?;
            ops.push((name, FieldAction::Remove));
        }
        for (at, option) in add.into_iter().enumerate() {
            let (name, action) = addition(option).within_item(fields[0], at)?;
            trial
                .push(&name, action.clone())
                .map_err(|error| Fault::new("header.key", format!("is refused: {error}")))
                .within_item(fields[0], at)?;
            ops.push((name, action));
        }
        Ok(Self(ops))
    }

    /// Takes the operation that sets `name` to one fixed value out of the level, and returns that value.
    pub(super) fn take_set(&mut self, name: &str, options: &[HeaderValueOption]) -> Option<String> {
        let value = options
            .iter()
            .rev()
            .filter_map(|option| option.header.as_ref())
            .find(|h| h.key.eq_ignore_ascii_case(name))?;
        // A value with variables is known only per exchange: it stays an operation.
        if value.value.contains('%') {
            return None;
        }
        self.0.retain(|(key, action)| !key.eq_ignore_ascii_case(name) || *action == FieldAction::Remove);
        Some(value.value.clone())
    }
}

/// The operations of all levels in the order in which they apply.
pub(super) fn merged<'a>(levels: impl IntoIterator<Item = &'a Level>) -> Checked<FieldOps> {
    let mut ops = FieldOps::default();
    for (name, action) in levels.into_iter().flat_map(|level| &level.0) {
        ops.push(name, action.clone()).map_err(|error| Fault::new("", format!("is refused: {error}")))?;
    }
    Ok(ops)
}

fn addition(mut option: HeaderValueOption) -> Checked<(String, FieldAction)> {
    let mut header = option.header.take().ok_or_else(|| Fault::missing("header"))?;
    let action = HeaderAppendAction::try_from(std::mem::take(&mut option.append_action)).ok();
    nothing_else(&option)?;
    let (name, text) = (std::mem::take(&mut header.key), std::mem::take(&mut header.value));
    nothing_else(&header).within("header")?;
    if text.is_empty() {
        return Err(Fault::new("header.value", "is empty: use the headers_to_remove list to remove a field"));
    }
    let value = ValueTemplate::parse(&text)
        .map_err(|error| Fault::new("header.value", format!("is refused: {error}")))?;
    let action = match action {
        Some(HeaderAppendAction::AppendIfExistsOrAdd) => FieldAction::Add(value),
        Some(HeaderAppendAction::OverwriteIfExistsOrAdd) => FieldAction::Set(value),
        Some(HeaderAppendAction::AddIfAbsent) => FieldAction::SetIfAbsent(value),
        Some(HeaderAppendAction::OverwriteIfExists) | None => {
            return Err(Fault::unsupported("append_action"));
        }
    };
    Ok((name, action))
}
