//! Why a request goes where it goes, rule by rule, for `shardctl explain`.
//!
//! This is the plain reading of a route table: the list in order, each condition by itself. It shares the
//! compiled conditions with the fast look-up, not its index.

use std::fmt;

use http_wire::head::RequestHead;

use super::{RouteTable, Rule};

/// One thing that was looked at, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// `host api.example` or `route orders: path prefix `/orders`, method = GET`.
    pub subject: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The virtual host that serves the authority.
    HostServed { virtual_host: String, domains: Vec<String> },
    /// No virtual host does: nothing else is looked at.
    HostUnknown,
    /// The rule's path does not match.
    PathDiffers,
    /// The path matches; this condition does not hold.
    ConditionFails(String),
    /// The rule wins; the ones behind it are not looked at.
    Matched,
    /// No rule of the virtual host matches.
    NoRoute,
}

impl RouteTable {
    /// The steps of [`RouteTable::find`] for the same arguments, in the order of the config.
    pub fn explain(&self, head: &RequestHead, authority: &[u8], path: &[u8]) -> Vec<Step> {
        let shown = String::from_utf8_lossy(authority);
        let step = |subject: String, outcome| Step { subject, outcome };
        let found = self.hosts.find(authority).and_then(|at| self.virtual_hosts.get(at as usize));
        let Some(host) = found else { return vec![step(format!("host {shown}"), Outcome::HostUnknown)] };
        let served = Outcome::HostServed { virtual_host: host.name.clone(), domains: host.domains.clone() };
        let mut steps = vec![step(format!("host {shown}"), served)];
        for rule in self.rules_of(host) {
            let outcome = rule.outcome(head, path);
            let matched = outcome == Outcome::Matched;
            steps.push(step(rule.to_string(), outcome));
            if matched {
                return steps;
            }
        }
        steps.push(step(format!("virtual host {}", host.name), Outcome::NoRoute));
        steps
    }
}

impl Rule {
    fn outcome(&self, head: &RequestHead, path: &[u8]) -> Outcome {
        if self.path.matched_bytes(path).is_none() {
            return Outcome::PathDiffers;
        }
        match self.conditions.iter().find(|c| !c.holds(head)) {
            Some(condition) => Outcome::ConditionFails(condition.to_string()),
            None => Outcome::Matched,
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route {}: {}", self.route.name, self.path)?;
        self.conditions.iter().try_for_each(|condition| write!(f, ", {condition}"))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.subject)?;
        match &self.outcome {
            Outcome::HostServed { virtual_host, domains } => {
                write!(f, "served by virtual host {virtual_host} (domains {})", domains.join(", "))
            }
            Outcome::HostUnknown => f.write_str("no virtual host serves it"),
            Outcome::PathDiffers => f.write_str("the path differs"),
            Outcome::ConditionFails(condition) => write!(f, "does not hold: {condition}"),
            Outcome::Matched => f.write_str("matched"),
            Outcome::NoRoute => f.write_str("no route matches"),
        }
    }
}
