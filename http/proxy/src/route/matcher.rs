//! The conditions of a rule beside its path: method, headers, query parameters.
//!
//! Pure and without allocation, but for a header that a rule looks at and that the client repeated: its values
//! are joined by `,` first (RFC 9110 §5.3), so that a rule cannot be dodged by splitting a list.

use std::borrow::Cow;
use std::fmt;

use http_wire::fields::{FieldId, Fields};
use http_wire::head::RequestHead;
use http_wire::token::is_token;

use super::config::{Case, HeaderRule, HeaderValueRule, Missing, QueryRule, RouteErrorKind, Sense, TextRule};
use super::pattern::FullPattern;

/// One compiled condition. [`fmt::Display`] says what it asks for.
#[derive(Debug)]
pub(super) enum Condition {
    /// The most frequent condition: the token as sent is one of these.
    Method(Box<[Box<[u8]>]>),
    Header(HeaderMatcher),
    Query(QueryMatcher),
}

#[derive(Debug)]
pub(super) struct HeaderMatcher {
    name: Box<[u8]>,
    source: Source,
    value: ValueMatcher,
    sense: Sense,
    missing: Missing,
}

/// Where the value of a header rule comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Known(FieldId),
    Named,
    Method,
    Authority,
}

#[derive(Debug)]
enum ValueMatcher {
    Present,
    Absent,
    Text(TextMatcher),
    Range { start: i64, end: i64 },
}

#[derive(Debug)]
pub(super) struct QueryMatcher {
    name: Box<[u8]>,
    value: Option<TextMatcher>,
}

#[derive(Debug)]
enum TextMatcher {
    Plain { relation: Relation, text: Box<[u8]>, case: Case },
    Pattern(Box<FullPattern>),
}

#[derive(Clone, Copy, Debug)]
enum Relation {
    Is,
    BeginsWith,
    EndsWith,
    Contains,
}

impl Condition {
    /// The conditions of a rule, cheapest first.
    ///
    /// # Errors
    /// The first rule that cannot be compiled.
    pub(super) fn compile(
        headers: Vec<HeaderRule>,
        query: Vec<QueryRule>,
    ) -> Result<Box<[Self]>, RouteErrorKind> {
        let mut conditions = Vec::with_capacity(headers.len() + query.len());
        for rule in headers {
            conditions.push(header_condition(rule)?);
        }
        for rule in query {
            let name_ok = !rule.name.is_empty() && !rule.name.contains(['&', '=', '#']);
            if !name_ok {
                return Err(RouteErrorKind::BadQueryName(rule.name));
            }
            let value = rule.value.map(TextMatcher::new).transpose()?;
            conditions.push(Self::Query(QueryMatcher { name: rule.name.into_bytes().into(), value }));
        }
        conditions.sort_by_key(|c| match c {
            Self::Method(_) => 0,
            Self::Header(_) => 1,
            Self::Query(_) => 2,
        });
        Ok(conditions.into())
    }

    pub(super) fn holds(&self, head: &RequestHead) -> bool {
        match self {
            Self::Method(tokens) => tokens.iter().any(|token| head.method_token() == token.as_ref()),
            Self::Header(matcher) => matcher.holds(head),
            Self::Query(matcher) => matcher.holds(head.query().unwrap_or(b"")),
        }
    }
}

fn header_condition(rule: HeaderRule) -> Result<Condition, RouteErrorKind> {
    let name = rule.name.to_ascii_lowercase();
    let source = match name.as_str() {
        ":method" => Source::Method,
        ":authority" | "host" => Source::Authority,
        field if is_token(field.as_bytes()) => match FieldId::from_lower(field.as_bytes()) {
            FieldId::Other => Source::Named,
            known => Source::Known(known),
        },
        _ => return Err(RouteErrorKind::BadHeaderName(rule.name)),
    };
    if let (Source::Method, Sense::Is, Some(tokens)) = (source, rule.sense, alternatives(&rule.value)) {
        return Ok(Condition::Method(tokens));
    }
    let value = match rule.value {
        HeaderValueRule::Present => ValueMatcher::Present,
        HeaderValueRule::Absent => ValueMatcher::Absent,
        HeaderValueRule::Text(text) => ValueMatcher::Text(TextMatcher::new(text)?),
        HeaderValueRule::Range { start, end } if start < end => ValueMatcher::Range { start, end },
        HeaderValueRule::Range { .. } => return Err(RouteErrorKind::EmptyRange),
    };
    let name = name.into_bytes().into();
    Ok(Condition::Header(HeaderMatcher { name, source, value, sense: rule.sense, missing: rule.missing }))
}

/// The tokens of `GET` or `GET|POST`, as one text or as a pattern.
fn alternatives(rule: &HeaderValueRule) -> Option<Box<[Box<[u8]>]>> {
    let tokens: Vec<&str> = match rule {
        HeaderValueRule::Text(TextRule::Exact(token, Case::Sensitive)) => vec![token],
        HeaderValueRule::Text(TextRule::Regex(pattern)) => pattern.split('|').collect(),
        _ => return None,
    };
    // Letters and dashes mean themselves in a pattern too.
    let plain = |t: &&str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_alphabetic() || b == b'-');
    tokens.iter().all(plain).then(|| tokens.iter().map(|t| t.as_bytes().into()).collect())
}

impl HeaderMatcher {
    fn holds(&self, head: &RequestHead) -> bool {
        let value = match self.source {
            Source::Method => Some(Cow::Borrowed(head.method_token())),
            Source::Authority => Some(Cow::Borrowed(head.authority())),
            Source::Known(id) => joined(&head.fields, |f| f.id == id),
            Source::Named => joined(&head.fields, |f| f.id == FieldId::Other && f.name == self.name.as_ref()),
        };
        let value = match (value, self.missing) {
            (None, Missing::IsEmpty) => Some(Cow::Borrowed(&[][..])),
            (value, _) => value,
        };
        let holds = match (&self.value, &value) {
            (ValueMatcher::Present, value) => value.is_some(),
            (ValueMatcher::Absent, value) => value.is_none(),
            // A condition on the value of nothing holds in neither sense.
            (_, None) => return false,
            (ValueMatcher::Text(text), Some(value)) => text.holds(value),
            (ValueMatcher::Range { start, end }, Some(value)) => {
                integer(value).is_some_and(|number| *start <= number && number < *end)
            }
        };
        holds == (self.sense == Sense::Is)
    }
}

fn joined(fields: &Fields, wanted: impl Fn(&http_wire::fields::Field<'_>) -> bool) -> Option<Cow<'_, [u8]>> {
    let mut values = fields.iter().filter(|f| wanted(f)).map(|f| f.value);
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(Cow::Borrowed(first)) };
    let mut all = first.to_vec();
    for value in std::iter::once(second).chain(values) {
        all.push(b',');
        all.extend_from_slice(value);
    }
    Some(Cow::Owned(all))
}

fn integer(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

impl QueryMatcher {
    fn holds(&self, query: &[u8]) -> bool {
        let found = query.split(|&b| b == b'&').find_map(|pair| {
            let rest = pair.strip_prefix(self.name.as_ref())?;
            match rest.split_first() {
                None => Some(rest),
                Some((b'=', value)) => Some(value),
                Some(_) => None,
            }
        });
        match (found, &self.value) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(value), Some(text)) => text.holds(value),
        }
    }
}

impl TextMatcher {
    fn new(rule: TextRule) -> Result<Self, RouteErrorKind> {
        let (relation, text, case) = match rule {
            TextRule::Exact(text, case) => (Relation::Is, text, case),
            TextRule::Prefix(text, case) => (Relation::BeginsWith, text, case),
            TextRule::Suffix(text, case) => (Relation::EndsWith, text, case),
            TextRule::Contains(text, case) => (Relation::Contains, text, case),
            TextRule::Regex(source) => {
                return match FullPattern::new(&source) {
                    Ok(pattern) => Ok(Self::Pattern(Box::new(pattern))),
                    Err(reason) => Err(RouteErrorKind::BadPattern { pattern: source, reason }),
                };
            }
        };
        Ok(Self::Plain { relation, text: text.into_bytes().into(), case })
    }

    fn holds(&self, value: &[u8]) -> bool {
        let (relation, text, case) = match self {
            Self::Pattern(pattern) => return pattern.is_match(value),
            Self::Plain { relation, text, case } => (*relation, text.as_ref(), *case),
        };
        let same = |part: &[u8]| match case {
            Case::Sensitive => part == text,
            Case::Insensitive => part.eq_ignore_ascii_case(text),
        };
        match relation {
            Relation::Is => same(value),
            Relation::BeginsWith => value.get(..text.len()).is_some_and(same),
            Relation::EndsWith => {
                value.len().checked_sub(text.len()).and_then(|at| value.get(at..)).is_some_and(same)
            }
            Relation::Contains => text.is_empty() || value.windows(text.len()).any(same),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Method(tokens) => {
                let tokens: Vec<_> = tokens.iter().map(|t| String::from_utf8_lossy(t)).collect();
                write!(f, "method = {}", tokens.join("|"))
            }
            Self::Header(matcher) => matcher.fmt(f),
            Self::Query(matcher) => {
                write!(f, "query `{}`", String::from_utf8_lossy(&matcher.name))?;
                match &matcher.value {
                    None => f.write_str(" present"),
                    Some(text) => write!(f, " {text}"),
                }
            }
        }
    }
}

impl fmt::Display for HeaderMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.sense == Sense::IsNot { "not: " } else { "" };
        write!(f, "{not}header `{}`", String::from_utf8_lossy(&self.name))?;
        match &self.value {
            ValueMatcher::Present => f.write_str(" present"),
            ValueMatcher::Absent => f.write_str(" absent"),
            ValueMatcher::Text(text) => write!(f, " {text}"),
            ValueMatcher::Range { start, end } => write!(f, " from {start} up to, without, {end}"),
        }
    }
}

impl fmt::Display for TextMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (relation, text, case) = match self {
            Self::Pattern(pattern) => return write!(f, "matches `{}`", pattern.source()),
            Self::Plain { relation, text, case } => (*relation, text, *case),
        };
        let relation = match relation {
            Relation::Is => "=",
            Relation::BeginsWith => "begins with",
            Relation::EndsWith => "ends with",
            Relation::Contains => "contains",
        };
        let note = if case == Case::Insensitive { " (any case)" } else { "" };
        write!(f, "{relation} `{}`{note}", String::from_utf8_lossy(text))
    }
}
