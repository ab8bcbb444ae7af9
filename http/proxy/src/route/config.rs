//! What a route table is built from: plain data in the words of the resource form, nothing compiled yet.
//!
//! `snapshot::compile` and the tests write these; [`super::RouteTable::build`] reads them. List order counts:
//! inside a virtual host the first rule that matches wins.

use std::fmt;

use crate::snapshot::Route;

/// A set of host names and the rules for requests to them.
#[derive(Debug)]
pub struct VirtualHostConfig {
    /// Unique in the table.
    pub name: String,
    /// `a.example`, `a.example:8443`, `*.example`, `*-x.example`, `a.*` or `*`; any case.
    pub domains: Vec<String>,
    /// In order of precedence.
    pub rules: Vec<RouteRule>,
}

/// One rule: all of its parts must hold.
#[derive(Debug)]
pub struct RouteRule {
    pub path: PathRule,
    pub headers: Vec<HeaderRule>,
    pub query: Vec<QueryRule>,
    pub route: Route,
}

/// Whether ASCII letters of either case are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Case {
    #[default]
    Sensitive,
    Insensitive,
}

/// A condition on the normalised path, without the query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathRule {
    /// The whole path.
    Exact(String, Case),
    /// The first bytes of the path: `/api` matches `/apiary` too.
    Prefix(String, Case),
    /// Whole segments: `/api` matches `/api` and `/api/x`, not `/apiary`. Starts with `/`, does not end with it.
    Segments(String, Case),
    /// A linear-time pattern over the whole path. Classes are ASCII.
    Regex(String),
}

/// A condition on a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextRule {
    Exact(String, Case),
    Prefix(String, Case),
    Suffix(String, Case),
    Contains(String, Case),
    /// Over the whole value.
    Regex(String),
}

/// What a header's value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValueRule {
    Present,
    Absent,
    Text(TextRule),
    /// A decimal integer, `start <= value < end`.
    Range {
        start: i64,
        end: i64,
    },
}

/// Whether a condition is taken as it is or turned round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sense {
    #[default]
    Is,
    IsNot,
}

/// What a condition on the value of a header says when the header is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// The rule does not match, whatever the sense.
    #[default]
    Fails,
    /// The value is taken to be empty.
    IsEmpty,
}

/// A condition on a header field; several fields of the name count as one, joined by `,`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderRule {
    /// Any case; `:method` and `:authority` (also `host`) stand for the parts of the request line.
    pub name: String,
    pub value: HeaderValueRule,
    pub sense: Sense,
    pub missing: Missing,
}

/// A condition on the first query parameter of that name. Bytes are compared as sent, without percent-decoding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryRule {
    pub name: String,
    /// None: it is enough that the parameter is there.
    pub value: Option<TextRule>,
}

/// Why a table cannot be built.
#[derive(Debug)]
pub struct RouteError {
    pub virtual_host: String,
    /// The rule's name; None when the fault lies in the virtual host itself.
    pub route: Option<String>,
    pub kind: RouteErrorKind,
}

#[derive(Debug)]
pub enum RouteErrorKind {
    /// Empty, longer than 255 bytes, with a `*` in the middle or a byte that no host has.
    BadDomain(String),
    /// Two virtual hosts claim it.
    DuplicateDomain {
        domain: String,
        other: String,
    },
    DuplicateVirtualHost,
    BadPath {
        path: String,
        reason: &'static str,
    },
    BadPattern {
        pattern: String,
        reason: String,
    },
    BadHeaderName(String),
    BadQueryName(String),
    /// `start` is not below `end`.
    EmptyRange,
    /// More rules than an index can number.
    TooMany,
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "virtual host `{}`", self.virtual_host)?;
        if let Some(route) = &self.route {
            write!(f, ", route `{route}`")?;
        }
        write!(f, ": {}", self.kind)
    }
}

impl fmt::Display for RouteErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadDomain(domain) => write!(
                f,
                "`{domain}` is no domain: write a host, `*.host`, `host.*` or `*`, at most 255 bytes"
            ),
            Self::DuplicateDomain { domain, other } => {
                write!(f, "domain `{domain}` is already served by virtual host `{other}`")
            }
            Self::DuplicateVirtualHost => f.write_str("the name is used twice"),
            Self::BadPath { path, reason } => write!(f, "path `{path}` {reason}"),
            Self::BadPattern { pattern, reason } => write!(f, "pattern `{pattern}` {reason}"),
            Self::BadHeaderName(name) => write!(
                f,
                "`{name}` is no header that a rule can look at: write a field name, `:method` or `:authority`"
            ),
            Self::BadQueryName(name) => write!(f, "`{name}` is no query parameter name"),
            Self::EmptyRange => f.write_str("the range is empty: `start` must be below `end`"),
            Self::TooMany => f.write_str("more rules than one table can hold"),
        }
    }
}

impl std::error::Error for RouteError {}
