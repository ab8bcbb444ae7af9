//! What a route matches: path, methods, headers, query.

use std::cmp::Reverse;

use control_api::defaults::route::MATCHERS_MAX;
use control_api::envoy::matcher::{StringMatcher, string_matcher};
use control_api::envoy::route::{
    HeaderMatcher, QueryParameterMatcher, RouteMatch, header_matcher, query_parameter_matcher, route_match,
};

use super::Emitter;
use super::policy::regex_matcher;
use crate::yaml::{Entry, Node};

/// The path condition of a route: routes with equal ones compete.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum PathKey {
    Exact(String),
    Regex(String),
    Prefix(String),
}

impl PathKey {
    /// Sorts as docs/resources.md orders routes: exact, regex in list order, the longest prefix.
    pub(super) fn rank(&self) -> (u8, Reverse<usize>) {
        match self {
            Self::Exact(_) => (0, Reverse(0)),
            Self::Regex(_) => (1, Reverse(0)),
            Self::Prefix(prefix) => (2, Reverse(prefix.len())),
        }
    }

    fn specifier(&self) -> route_match::PathSpecifier {
        match self {
            Self::Exact(path) => route_match::PathSpecifier::Path(path.clone()),
            Self::Regex(regex) => route_match::PathSpecifier::SafeRegex(regex_matcher(regex)),
            // Envoy refuses a separated prefix that ends in `/`; there a byte prefix is the same.
            Self::Prefix(prefix) if prefix.ends_with('/') => {
                route_match::PathSpecifier::Prefix(prefix.clone())
            }
            Self::Prefix(prefix) => route_match::PathSpecifier::PathSeparatedPrefix(prefix.clone()),
        }
    }
}

/// The path condition of a `match`, `/` when it says nothing.
pub(super) fn path_key(condition: Option<&Node>) -> PathKey {
    let word = |key| condition.and_then(|c| c.word(key)).map(str::to_owned);
    if let Some(path) = word("path") {
        PathKey::Exact(path)
    } else if let Some(regex) = word("regex") {
        PathKey::Regex(regex)
    } else {
        PathKey::Prefix(word("prefix").unwrap_or_else(|| "/".to_owned()))
    }
}

impl Emitter<'_> {
    pub(super) fn route_match(&mut self, key: &PathKey, condition: Option<&Node>) -> RouteMatch {
        let mut matched = RouteMatch { path_specifier: Some(key.specifier()), ..Default::default() };
        let Some(condition) = condition else {
            return matched;
        };
        matched.headers.extend(methods(condition));
        for entry in condition.get("headers").map_or(&[][..], Node::entries) {
            matched.headers.extend(self.header(entry));
        }
        for entry in condition.get("query").map_or(&[][..], Node::entries) {
            matched.query_parameters.extend(self.query_parameter(entry));
        }
        if matched.headers.len().max(matched.query_parameters.len()) > MATCHERS_MAX {
            self.error(
                condition,
                format!("more than {MATCHERS_MAX} conditions of a kind"),
                "split the route",
            );
        }
        matched
    }

    fn header(&mut self, entry: &Entry) -> Option<HeaderMatcher> {
        let node = &entry.value;
        let specifier = match node.flag("present") {
            Some(present) => header_matcher::HeaderMatchSpecifier::PresentMatch(present),
            None => header_matcher::HeaderMatchSpecifier::StringMatch(self.string_matcher(node)?),
        };
        Some(HeaderMatcher {
            name: entry.key.clone(),
            invert_match: node.is_on("not"),
            header_match_specifier: Some(specifier),
            ..Default::default()
        })
    }

    fn query_parameter(&mut self, entry: &Entry) -> Option<QueryParameterMatcher> {
        let node = &entry.value;
        if let Some(not) = node.get("not") {
            self.error(
                not,
                "query conditions cannot be turned round",
                "delete the key, and put a route for the other case first",
            );
        }
        let specifier = match node.flag("present") {
            Some(present) => query_parameter_matcher::QueryParameterMatchSpecifier::PresentMatch(present),
            None => {
                query_parameter_matcher::QueryParameterMatchSpecifier::StringMatch(self.string_matcher(node)?)
            }
        };
        Some(QueryParameterMatcher {
            name: entry.key.clone(),
            query_parameter_match_specifier: Some(specifier),
        })
    }

    fn string_matcher(&mut self, node: &Node) -> Option<StringMatcher> {
        use string_matcher::MatchPattern;
        let pattern = if let Some(exact) = node.text().or_else(|| node.word("exact")) {
            MatchPattern::Exact(exact.to_owned())
        } else if let Some(prefix) = node.word("prefix") {
            MatchPattern::Prefix(prefix.to_owned())
        } else if let Some(suffix) = node.word("suffix") {
            MatchPattern::Suffix(suffix.to_owned())
        } else if let Some(part) = node.word("contains") {
            MatchPattern::Contains(part.to_owned())
        } else {
            MatchPattern::SafeRegex(regex_matcher(node.word("regex")?))
        };
        let ignore_case = node.is_on("ignore_case");
        if ignore_case
            && matches!(pattern, MatchPattern::SafeRegex(_))
            && let Some(flag) = node.get("ignore_case")
        {
            self.error(
                flag,
                "a pattern decides about case itself",
                "delete the key and start the pattern with `(?i)`",
            );
        }
        Some(StringMatcher { ignore_case, match_pattern: Some(pattern) })
    }
}

/// The methods of a `match` as one matcher of `:method`.
fn methods(condition: &Node) -> Option<HeaderMatcher> {
    let methods: Vec<&str> = condition.words("methods").collect();
    let pattern = match methods.as_slice() {
        [] => return None,
        [one] => string_matcher::MatchPattern::Exact((*one).to_owned()),
        many => {
            let quoted: Vec<String> = many.iter().map(|m| regex::escape(m)).collect();
            string_matcher::MatchPattern::SafeRegex(regex_matcher(&quoted.join("|")))
        }
    };
    Some(HeaderMatcher {
        name: ":method".to_owned(),
        header_match_specifier: Some(header_matcher::HeaderMatchSpecifier::StringMatch(StringMatcher {
            match_pattern: Some(pattern),
            ..Default::default()
        })),
        ..Default::default()
    })
}
