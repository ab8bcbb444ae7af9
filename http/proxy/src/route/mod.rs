//! Stop 7: from host and path to a route, in one core's snapshot. Pure, and without allocation.
//!
//! The virtual host is chosen first (`host`); a request that none of its rules match has no route, whatever
//! other virtual hosts would say. Inside a virtual host the first rule in list order wins; `path` finds the
//! few rules that can match the path, `matcher` checks the rest. [`RouteTable::explain`] walks the list in
//! the open and always agrees with [`RouteTable::find`].

mod config;
mod explain;
pub(crate) mod hash_key;
mod host;
mod key_tree;
mod matcher;
mod path;
pub mod pattern;
mod rewrite;
mod split;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use http_wire::head::RequestHead;

use self::host::{HostIndex, InsertError};
use self::matcher::Condition;
use self::path::{PathIndex, PathMatcher, Remaining};
use crate::snapshot::Route;

pub use self::config::{
    Case, HeaderRule, HeaderValueRule, Missing, PathRule, QueryRule, RouteError, RouteErrorKind, RouteRule,
    Sense, TextRule, VirtualHostConfig,
};
pub use self::explain::{Outcome, Step};

/// Place of a route in its table: small enough to keep while a request lives, where a borrow is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RouteIndex(u32);

/// The routes of one listener, indexed.
#[derive(Debug, Default)]
pub struct RouteTable {
    hosts: HostIndex,
    virtual_hosts: Vec<VirtualHost>,
    /// All virtual hosts' rules, one after the other.
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct VirtualHost {
    name: String,
    domains: Vec<String>,
    /// Place of its first rule in `RouteTable::rules`.
    rules_at: u32,
    rules_end: u32,
    paths: PathIndex,
}

#[derive(Debug)]
struct Rule {
    path: PathMatcher,
    conditions: Box<[Condition]>,
    route: Route,
}

/// What a request was matched by.
#[derive(Clone, Copy, Debug)]
pub struct RouteMatch<'t> {
    pub route: &'t Route,
    pub index: RouteIndex,
    /// Bytes of the path that a prefix rewrite replaces: the prefix, or all of it for an exact path or a pattern.
    pub matched_bytes: usize,
    pub virtual_host: &'t str,
}

impl RouteTable {
    /// # Errors
    /// The first domain, path, pattern or condition that cannot be served.
    pub fn build(virtual_hosts: Vec<VirtualHostConfig>) -> Result<Self, RouteError> {
        let mut table = Self::default();
        let mut names = HashSet::new();
        for config in virtual_hosts {
            let fail = |kind| RouteError { virtual_host: config.name.clone(), route: None, kind };
            if !names.insert(config.name.clone()) {
                return Err(fail(RouteErrorKind::DuplicateVirtualHost));
            }
            let index =
                u32::try_from(table.virtual_hosts.len()).ok().ok_or_else(|| fail(RouteErrorKind::TooMany))?;
            for domain in &config.domains {
                table
                    .hosts
                    .insert(domain, index)
                    .map_err(|error| fail(table.domain_error(&config, domain, &error)))?;
            }
            let first = table.rules.len();
            for rule in config.rules {
                let route = Some(rule.route.name.clone());
                let rule = Rule::compile(rule).map_err(|kind| RouteError {
                    virtual_host: config.name.clone(),
                    route,
                    kind,
                })?;
                table.rules.push(rule);
            }
            let built = table.rules.get(first..).unwrap_or(&[]);
            let paths = PathIndex::build(built.iter().map(|r| (&r.path, !r.conditions.is_empty())));
            let place = |at: usize| u32::try_from(at).ok();
            let (Some(paths), Some(rules_at), Some(rules_end)) =
                (paths, place(first), place(table.rules.len()))
            else {
                return Err(RouteError {
                    virtual_host: config.name,
                    route: None,
                    kind: RouteErrorKind::TooMany,
                });
            };
            let (name, domains) = (config.name, config.domains);
            table.virtual_hosts.push(VirtualHost { name, domains, rules_at, rules_end, paths });
        }
        table.hosts.finish();
        Ok(table)
    }

    /// The route for a request: `authority` is lower case (its port is ignored unless a domain names one),
    /// `path` normalised and without the query; method, fields and query are taken from `head`.
    pub fn find<'t>(&'t self, head: &RequestHead, authority: &[u8], path: &[u8]) -> Option<RouteMatch<'t>> {
        let host = self.virtual_hosts.get(self.hosts.find(authority)? as usize)?;
        let rules = self.rules_of(host);
        let (position, matched_bytes) = host.paths.first(path, |position, remaining| {
            rules.get(position as usize).is_some_and(|rule| {
                let path_holds = match remaining {
                    Remaining::Conditions => true,
                    Remaining::PatternAndConditions => rule.path.matched_bytes(path).is_some(),
                };
                path_holds && rule.conditions.iter().all(|c| c.holds(head))
            })
        })?;
        let route = &rules.get(position as usize)?.route;
        Some(RouteMatch {
            route,
            index: RouteIndex(host.rules_at + position),
            matched_bytes,
            virtual_host: &host.name,
        })
    }

    /// The route at a place that [`RouteTable::find`] of this table gave.
    pub fn route(&self, index: RouteIndex) -> Option<&Route> {
        self.rules.get(index.0 as usize).map(|rule| &rule.route)
    }

    /// Whether any virtual host serves this authority: tells "unknown host" from "no route".
    pub fn serves_host(&self, authority: &[u8]) -> bool {
        self.hosts.find(authority).is_some()
    }

    /// Number of routes.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// All routes, virtual host by virtual host, in list order.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.rules.iter().map(|rule| &rule.route)
    }

    fn rules_of(&self, host: &VirtualHost) -> &[Rule] {
        self.rules.get(host.rules_at as usize..host.rules_end as usize).unwrap_or(&[])
    }

    fn domain_error(&self, config: &VirtualHostConfig, domain: &str, error: &InsertError) -> RouteErrorKind {
        match error {
            InsertError::BadDomain => RouteErrorKind::BadDomain(domain.to_owned()),
            InsertError::Taken(by) => {
                // The virtual host that is being built is not in the list yet.
                let other = self.virtual_hosts.get(*by as usize).map_or(&config.name, |host| &host.name);
                RouteErrorKind::DuplicateDomain { domain: domain.to_owned(), other: other.clone() }
            }
        }
    }
}

impl Rule {
    fn compile(rule: RouteRule) -> Result<Self, RouteErrorKind> {
        check_path(&rule.path)?;
        let source = match &rule.path {
            PathRule::Regex(source) => source.clone(),
            _ => String::new(),
        };
        let path = PathMatcher::new(rule.path)
            .map_err(|reason| RouteErrorKind::BadPattern { pattern: source, reason })?;
        Ok(Self { path, conditions: Condition::compile(rule.headers, rule.query)?, route: rule.route })
    }
}

fn check_path(rule: &PathRule) -> Result<(), RouteErrorKind> {
    let (text, whole_segments) = match rule {
        PathRule::Regex(_) => return Ok(()),
        PathRule::Exact(text, _) | PathRule::Prefix(text, _) => (text, false),
        PathRule::Segments(text, _) => (text, true),
    };
    let reason = if text.contains(['?', '#']) {
        "holds `?` or `#`, which no path has"
    } else if whole_segments && text.ends_with('/') {
        "ends with `/`: write the segments without it"
    } else if !text.starts_with('/') && !is_asterisk(rule) {
        "does not start with `/`"
    } else {
        return Ok(());
    };
    Err(RouteErrorKind::BadPath { path: text.clone(), reason })
}

/// `OPTIONS *` (RFC 9112 §3.2.4) can be given a route of its own.
fn is_asterisk(rule: &PathRule) -> bool {
    matches!(rule, PathRule::Exact(text, _) if text == "*")
}
