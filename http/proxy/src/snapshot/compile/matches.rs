//! `RouteMatch`: paths, headers, query parameters.

use control_api::defaults::route::MATCHERS_MAX;
use control_api::envoy::matcher::{RegexMatcher, StringMatcher, regex_matcher, string_matcher::MatchPattern};
use control_api::envoy::route::header_matcher::HeaderMatchSpecifier;
use control_api::envoy::route::query_parameter_matcher::QueryParameterMatchSpecifier;
use control_api::envoy::route::route_match::PathSpecifier;
use control_api::envoy::route::{HeaderMatcher, QueryParameterMatcher, RouteMatch};

use super::fault::{Checked, Fault, Within, nothing_else};
use crate::route::{Case, HeaderRule, HeaderValueRule, Missing, PathRule, QueryRule, Sense, TextRule};

/// The conditions of a rule; patterns and names are checked by the route table.
#[derive(Debug)]
pub(super) struct Conditions {
    pub(super) path: PathRule,
    pub(super) headers: Vec<HeaderRule>,
    pub(super) query: Vec<QueryRule>,
}

pub(super) fn conditions(mut matcher: RouteMatch) -> Checked<Conditions> {
    let case = match matcher.case_sensitive.take() {
        Some(sensitive) if !sensitive.value => Case::Insensitive,
        Some(_) | None => Case::Sensitive,
    };
    let path = match matcher.path_specifier.take() {
        Some(PathSpecifier::Path(path)) => PathRule::Exact(path, case),
        Some(PathSpecifier::Prefix(path)) => PathRule::Prefix(path, case),
        Some(PathSpecifier::PathSeparatedPrefix(path)) => PathRule::Segments(path, case),
        // Envoy has the flag mean nothing for patterns; accepting it here would ignore it.
        Some(PathSpecifier::SafeRegex(_)) if case == Case::Insensitive => {
            return Err(Fault::new(
                "case_sensitive",
                "is not supported with safe_regex: write `(?i)` in the pattern",
            ));
        }
        Some(PathSpecifier::SafeRegex(regex)) => PathRule::Regex(regex_text(regex).within("safe_regex")?),
        Some(PathSpecifier::ConnectMatcher(_)) => return Err(Fault::unsupported("connect_matcher")),
        Some(PathSpecifier::PathMatchPolicy(_)) => return Err(Fault::unsupported("path_match_policy")),
        None => {
            return Err(Fault::new(
                "",
                "has no path condition: give prefix, path_separated_prefix, path or safe_regex",
            ));
        }
    };
    let headers = std::mem::take(&mut matcher.headers);
    let query = std::mem::take(&mut matcher.query_parameters);
    nothing_else(&matcher)?;
    for (field, count) in [("headers", headers.len()), ("query_parameters", query.len())] {
        if count > MATCHERS_MAX {
            return Err(Fault::new(
                field,
                format!("has {count} entries, at most {MATCHERS_MAX} are allowed"),
            ));
        }
    }
    let headers = headers.into_iter().enumerate().map(|(at, h)| header(h).within_item("headers", at));
    let query = query.into_iter().enumerate().map(|(at, q)| parameter(q).within_item("query_parameters", at));
    Ok(Conditions { path, headers: headers.collect::<Checked<_>>()?, query: query.collect::<Checked<_>>()? })
}

fn header(mut matcher: HeaderMatcher) -> Checked<HeaderRule> {
    let name = std::mem::take(&mut matcher.name);
    let sense = if std::mem::take(&mut matcher.invert_match) { Sense::IsNot } else { Sense::Is };
    let missing = if std::mem::take(&mut matcher.treat_missing_header_as_empty) {
        Missing::IsEmpty
    } else {
        Missing::Fails
    };
    let value = match matcher.header_match_specifier.take() {
        Some(HeaderMatchSpecifier::StringMatch(text)) => {
            HeaderValueRule::Text(text_rule(text).within("string_match")?)
        }
        Some(HeaderMatchSpecifier::PresentMatch(true)) | None => HeaderValueRule::Present,
        Some(HeaderMatchSpecifier::PresentMatch(false)) => HeaderValueRule::Absent,
        Some(HeaderMatchSpecifier::RangeMatch(range)) => {
            HeaderValueRule::Range { start: range.start, end: range.end }
        }
        Some(other) => {
            matcher.header_match_specifier = Some(other);
            return Err(Fault::new(
                "",
                "uses a deprecated match field, which is not supported: use string_match",
            ));
        }
    };
    nothing_else(&matcher)?;
    Ok(HeaderRule { name, value, sense, missing })
}

fn parameter(mut matcher: QueryParameterMatcher) -> Checked<QueryRule> {
    let name = std::mem::take(&mut matcher.name);
    let value = match matcher.query_parameter_match_specifier.take() {
        Some(QueryParameterMatchSpecifier::StringMatch(text)) => {
            Some(text_rule(text).within("string_match")?)
        }
        Some(QueryParameterMatchSpecifier::PresentMatch(true)) | None => None,
        Some(QueryParameterMatchSpecifier::PresentMatch(false)) => {
            return Err(Fault::new("present_match", "is not supported as false"));
        }
    };
    nothing_else(&matcher)?;
    Ok(QueryRule { name, value })
}

pub(super) fn text_rule(mut matcher: StringMatcher) -> Checked<TextRule> {
    let case = if std::mem::take(&mut matcher.ignore_case) { Case::Insensitive } else { Case::Sensitive };
    let rule = match matcher.match_pattern.take() {
        Some(MatchPattern::Exact(text)) => TextRule::Exact(text, case),
        Some(MatchPattern::Prefix(text)) => TextRule::Prefix(text, case),
        Some(MatchPattern::Suffix(text)) => TextRule::Suffix(text, case),
        Some(MatchPattern::Contains(text)) => TextRule::Contains(text, case),
        Some(MatchPattern::SafeRegex(_)) if case == Case::Insensitive => {
            return Err(Fault::new(
                "ignore_case",
                "is not supported with safe_regex: write `(?i)` in the pattern",
            ));
        }
        Some(MatchPattern::SafeRegex(regex)) => TextRule::Regex(regex_text(regex).within("safe_regex")?),
        Some(MatchPattern::Custom(_)) => return Err(Fault::unsupported("custom")),
        None => return Err(Fault::new("", "has no pattern")),
    };
    nothing_else(&matcher)?;
    Ok(rule)
}

/// The text of a pattern; every engine type that Envoy has is the same engine.
#[expect(
    deprecated,
    reason = "the engine type is deprecated in the types, and older control planes still send it"
)]
pub(super) fn regex_text(mut matcher: RegexMatcher) -> Checked<String> {
    if let Some(regex_matcher::EngineType::GoogleRe2(engine)) = matcher.engine_type.take() {
        nothing_else(&engine).within("google_re2")?;
    }
    let text = std::mem::take(&mut matcher.regex);
    nothing_else(&matcher)?;
    Ok(text)
}
