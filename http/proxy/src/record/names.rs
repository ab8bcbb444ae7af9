//! The names behind [`StatId`]s, as label sets ready to be printed. Kept by the aggregator, which alone renders;
//! a name comes and goes with the config, and a series without a name is not shown.

use std::fmt::Write as _;

use super::stats::{StatTable, TABLE_SIZES_MAX};
use crate::snapshot::StatId;

/// Label sets by id, one list a table.
#[derive(Clone, Debug, Default)]
pub struct Names {
    listeners: Vec<Option<Box<str>>>,
    routes: Vec<Option<Box<str>>>,
    clusters: Vec<Option<Box<str>>>,
    endpoints: Vec<Option<Box<str>>>,
}

impl Names {
    /// Names a listener, as `listener="NAME"`.
    pub fn set_listener(&mut self, id: StatId, name: &str) {
        set(&mut self.listeners, TABLE_SIZES_MAX.listeners, id, label_set(&[("listener", name)]));
    }

    pub fn set_route(&mut self, id: StatId, name: &str) {
        set(&mut self.routes, TABLE_SIZES_MAX.routes, id, label_set(&[("route", name)]));
    }

    pub fn set_cluster(&mut self, id: StatId, name: &str) {
        set(&mut self.clusters, TABLE_SIZES_MAX.clusters, id, label_set(&[("cluster", name)]));
    }

    /// `endpoint` is an address, or a DNS name that stands for all of its addresses.
    pub fn set_endpoint(&mut self, id: StatId, cluster: &str, endpoint: &str) {
        set(
            &mut self.endpoints,
            TABLE_SIZES_MAX.endpoints,
            id,
            label_set(&[("cluster", cluster), ("endpoint", endpoint)]),
        );
    }

    /// The config no longer has it: its series disappear.
    pub fn remove(&mut self, table: StatTable, StatId(id): StatId) {
        let names = match table {
            StatTable::Listener => &mut self.listeners,
            StatTable::Route => &mut self.routes,
            StatTable::Cluster => &mut self.clusters,
            StatTable::Endpoint => &mut self.endpoints,
        };
        if let Some(name) = names.get_mut(id as usize) {
            *name = None;
        }
    }

    /// Ids with their label sets, in order.
    pub(crate) fn iter(&self, table: StatTable) -> impl Iterator<Item = (StatId, &str)> {
        let names = match table {
            StatTable::Listener => &self.listeners,
            StatTable::Route => &self.routes,
            StatTable::Cluster => &self.clusters,
            StatTable::Endpoint => &self.endpoints,
        };
        (0u32..).zip(names).filter_map(|(id, name)| Some((StatId(id), name.as_deref()?)))
    }
}

/// Label set of the row that ids without a row share.
pub(crate) const fn overflow_labels(table: StatTable) -> &'static str {
    match table {
        StatTable::Listener => "listener=\"_overflow\"",
        StatTable::Route => "route=\"_overflow\"",
        StatTable::Cluster => "cluster=\"_overflow\"",
        StatTable::Endpoint => "cluster=\"_overflow\",endpoint=\"_overflow\"",
    }
}

/// An id from `ids_max` on has no row of its own and needs no name.
fn set(names: &mut Vec<Option<Box<str>>>, ids_max: usize, StatId(id): StatId, labels: String) {
    let at = id as usize;
    if at >= ids_max {
        return;
    }
    if at >= names.len() {
        names.resize(at + 1, None);
    }
    names[at] = Some(labels.into_boxed_str());
}

/// `a="x",b="y"`, values escaped as the text format wants: backslash, quote and line feed.
fn label_set(labels: &[(&str, &str)]) -> String {
    let mut out = String::new();
    for (name, value) in labels {
        let comma = if out.is_empty() { "" } else { "," };
        write!(out, "{comma}{name}=\"").expect("a String takes every text");
        for character in value.chars() {
            match character {
                '\\' => out.push_str("\\\\"),
                '"' => out.push_str("\\\""),
                '\n' => out.push_str("\\n"),
                other => out.push(other),
            }
        }
        out.push('"');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_and_go() {
        let mut names = Names::default();
        names.set_route(StatId(5), "late");
        names.set_route(StatId(0), "first");
        names.set_route(StatId(5), "renamed");
        names.set_route(StatId(u32::MAX), "beyond the table");
        names.set_endpoint(StatId(0), "c", "10.0.0.1:80");
        let all = |names: &Names| {
            names.iter(StatTable::Route).map(|(id, l)| (id.0, l.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(all(&names), [(0, "route=\"first\"".to_owned()), (5, "route=\"renamed\"".to_owned())]);
        names.remove(StatTable::Route, StatId(0));
        names.remove(StatTable::Route, StatId(77));
        assert_eq!(all(&names), [(5, "route=\"renamed\"".to_owned())]);
        let endpoint = names.iter(StatTable::Endpoint).next();
        assert_eq!(endpoint, Some((StatId(0), "cluster=\"c\",endpoint=\"10.0.0.1:80\"")));
    }

    #[test]
    fn values_are_escaped() {
        for (value, escaped) in
            [("a\"b", "a\\\"b"), ("a\\b", "a\\\\b"), ("a\nb", "a\\nb"), ("é{}=,", "é{}=,"), ("", "")]
        {
            assert_eq!(label_set(&[("route", value)]), format!("route=\"{escaped}\""));
        }
    }
}
