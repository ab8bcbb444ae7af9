//! A refusal and the place it is about. A fault starts at the field that is wrong; each caller on the way out puts
//! its own field in front, so that the operator reads the whole path (`filter_chains[0].filters[0]…`).

use std::fmt::{self, Debug};

/// The result of reading a part of a resource.
pub(super) type Checked<T> = Result<T, Fault>;

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Dotted path from the message that was read; empty when the message itself is at fault.
    pub(super) field: String,
    /// A sentence part that follows the field's name: `is not supported`.
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(field: &str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into() }
    }

    /// A field or value that shard does not have.
    pub(super) fn unsupported(field: &str) -> Self {
        Self::new(field, "is not supported")
    }

    pub(super) fn missing(field: &str) -> Self {
        Self::new(field, "is required")
    }

    pub(super) fn within(mut self, outer: &str) -> Self {
        let joint = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{outer}{joint}{}", self.field);
        self
    }
}

/// Puts the place in front of a fault.
pub(super) trait Within {
    fn within(self, outer: &str) -> Self;
    /// For an entry of a list: `outer[index]`.
    fn within_item(self, outer: &str, index: usize) -> Self;
    /// For an entry of a map: `outer["key"]`.
    fn within_key(self, outer: &str, key: &str) -> Self;
}

impl<T> Within for Checked<T> {
    fn within(self, outer: &str) -> Self {
        self.map_err(|fault| fault.within(outer))
    }

    fn within_item(self, outer: &str, index: usize) -> Self {
        self.map_err(|fault| fault.within(&format!("{outer}[{index}]")))
    }

    fn within_key(self, outer: &str, key: &str) -> Self {
        self.map_err(|fault| fault.within(&format!("{outer}[{key:?}]")))
    }
}

/// Refuses whatever is left of a message after its supported fields were taken out: the one place that keeps
/// "refused by name, never ignored". A field that a later version of the types adds is refused without a change here.
pub(super) fn nothing_else<M: Default + PartialEq + Debug>(rest: &M) -> Checked<()> {
    let unset = M::default();
    if *rest == unset {
        return Ok(());
    }
    Err(Fault::unsupported(&first_difference(&format!("{rest:#?}"), &format!("{unset:#?}"))))
}

/// The name of the first top-level field in which two pretty-printed structs differ; empty when none can be told.
/// In this form every field starts a line at one level of indentation, and text values are escaped, so that a value
/// cannot look like a field.
fn first_difference(rest: &str, unset: &str) -> String {
    const INDENT: &str = "    ";
    let mut field = "";
    let mut unset = unset.lines();
    for line in rest.lines() {
        if let Some((name, _)) = line
            .strip_prefix(INDENT)
            .filter(|l| !l.starts_with([' ', '}', ']', ')']))
            .and_then(|l| l.split_once(':'))
        {
            field = name;
        }
        if unset.next() != Some(line) {
            break;
        }
    }
    field.strip_prefix("r#").unwrap_or(field).to_owned()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let space = if self.field.is_empty() { "" } else { " " };
        write!(f, "{}{space}{}", self.field, self.message)
    }
}

#[cfg(test)]
mod tests {
    use control_api::envoy::listener::{FilterChain, FilterChainMatch, Listener};
    use control_api::envoy::route::RouteMatch;

    use super::*;

    #[test]
    fn the_first_leftover_field_is_named() {
        let chain =
            FilterChain { filter_chain_match: Some(FilterChainMatch::default()), ..Default::default() };
        for (listener, name) in [
            (Listener { stat_prefix: "x: y\n    filters: [".into(), ..Default::default() }, "stat_prefix"),
            (
                Listener {
                    filter_chains: vec![chain.clone()],
                    transparent: Some(Default::default()),
                    ..Default::default()
                },
                "filter_chains",
            ),
            (Listener { enable_mptcp: true, ..Default::default() }, "enable_mptcp"),
            (Listener { drain_type: 1, ..Default::default() }, "drain_type"),
            (Listener { drain_type: 77, ..Default::default() }, "drain_type"),
            (
                Listener {
                    freebind: Some(Default::default()),
                    bypass_overload_manager: true,
                    ..Default::default()
                },
                "freebind",
            ),
        ] {
            assert_eq!(nothing_else(&listener), Err(Fault::unsupported(name)));
        }
        assert_eq!(nothing_else(&Listener::default()), Ok(()));
        assert_eq!(
            nothing_else(&RouteMatch { grpc: Some(Default::default()), ..Default::default() }),
            Err(Fault::unsupported("grpc"))
        );
        assert_eq!(nothing_else(&chain), Err(Fault::unsupported("filter_chain_match")));
    }

    #[test]
    fn the_way_out_builds_the_path() {
        let fault: Checked<()> = Err(Fault::unsupported("filter_chain_match"));
        let fault = fault.within_item("filter_chains", 0).within_key("map", "a b").expect_err("a fault");
        assert_eq!(fault.to_string(), "map[\"a b\"].filter_chains[0].filter_chain_match is not supported");
        let whole: Checked<()> = Err(Fault::new("", "is empty"));
        assert_eq!(whole.within("routes").expect_err("a fault").to_string(), "routes is empty");
    }
}
