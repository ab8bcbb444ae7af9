//! From a path to the rules of one virtual host that may match it.
//!
//! Every rule hangs at a key that each of its paths begins with: an exact path, a prefix, or the literal prefix of
//! a regular expression. The keys form a [`KeyTree`]; paths without regard to case have a tree of their own.

use super::config::{Case, PathRule};
use super::key_tree::{Candidate, KeyTree, Shape};
use super::pattern::FullPattern;

/// The rules of a virtual host by path. Positions are the rules' places in list order.
#[derive(Debug, Default)]
pub(super) struct PathIndex {
    sensitive: KeyTree,
    insensitive: KeyTree,
}

/// A path condition, compiled.
#[derive(Debug)]
pub(super) enum PathMatcher {
    Text { rule: PathRule },
    Pattern(Box<FullPattern>),
}

impl PathMatcher {
    /// # Errors
    /// What is wrong with the pattern.
    pub(super) fn new(rule: PathRule) -> Result<Self, String> {
        match rule {
            PathRule::Regex(source) => Ok(Self::Pattern(Box::new(FullPattern::new(&source)?))),
            rule => Ok(Self::Text { rule }),
        }
    }

    /// How many bytes of `path` the rule matched; None when it does not match. A pattern matches all of it.
    /// This is the meaning of a path rule; [`PathIndex`] is the fast way to the same answer.
    pub(super) fn matched_bytes(&self, path: &[u8]) -> Option<usize> {
        let starts = |text: &str, case: Case| {
            let head = path.get(..text.len())?;
            let same = match case {
                Case::Sensitive => head == text.as_bytes(),
                Case::Insensitive => head.eq_ignore_ascii_case(text.as_bytes()),
            };
            same.then_some(text.len())
        };
        match self {
            Self::Text { rule: PathRule::Exact(text, case) } => {
                starts(text, *case).filter(|&n| n == path.len())
            }
            Self::Text { rule: PathRule::Prefix(text, case) } => starts(text, *case),
            Self::Text { rule: PathRule::Segments(text, case) } => {
                starts(text, *case).filter(|&n| ends_segment(path, n))
            }
            Self::Text { rule: PathRule::Regex(_) } => None,
            Self::Pattern(pattern) => pattern.is_match(path).then_some(path.len()),
        }
    }

    fn key(&self) -> (&[u8], Case, Shape) {
        match self {
            Self::Text { rule: PathRule::Exact(text, case) } => (text.as_bytes(), *case, Shape::Exact),
            Self::Text { rule: PathRule::Prefix(text, case) } => (text.as_bytes(), *case, Shape::Prefix),
            Self::Text { rule: PathRule::Segments(text, case) } => (text.as_bytes(), *case, Shape::Segments),
            Self::Text { rule: PathRule::Regex(text) } => (text.as_bytes(), Case::Sensitive, Shape::Pattern),
            Self::Pattern(pattern) => (pattern.literal_prefix(), Case::Sensitive, Shape::Pattern),
        }
    }
}

impl std::fmt::Display for PathMatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, text, case) = match self {
            Self::Text { rule: PathRule::Exact(text, case) } => ("path =", text.as_str(), *case),
            Self::Text { rule: PathRule::Prefix(text, case) } => ("path prefix", text.as_str(), *case),
            Self::Text { rule: PathRule::Segments(text, case) } => ("path segments", text.as_str(), *case),
            Self::Text { rule: PathRule::Regex(text) } => ("path regex", text.as_str(), Case::Sensitive),
            Self::Pattern(pattern) => ("path regex", pattern.source(), Case::Sensitive),
        };
        let note = if case == Case::Insensitive { " (any case)" } else { "" };
        write!(f, "{kind} `{text}`{note}")
    }
}

/// Whether the first `n` bytes of `path` are whole segments.
fn ends_segment(path: &[u8], n: usize) -> bool {
    matches!(path.get(n), None | Some(b'/'))
}

/// What is left to check for a candidate that [`PathIndex::first`] offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remaining {
    Conditions,
    PatternAndConditions,
}

impl PathIndex {
    /// `rules` in list order, with whether each has conditions beside its path. None: too many to number.
    pub(super) fn build<'a>(rules: impl Iterator<Item = (&'a PathMatcher, bool)>) -> Option<Self> {
        let mut sensitive = Vec::new();
        let mut insensitive = Vec::new();
        for (position, (path, has_conditions)) in rules.enumerate() {
            let (key, case, shape) = path.key();
            let candidate = Candidate {
                position: u32::try_from(position).ok()?,
                shape,
                unconditional: !has_conditions && shape != Shape::Pattern,
            };
            match case {
                Case::Sensitive => sensitive.push((key.to_vec(), candidate)),
                Case::Insensitive => insensitive.push((key.to_ascii_lowercase(), candidate)),
            }
        }
        Some(Self { sensitive: KeyTree::build(sensitive)?, insensitive: KeyTree::build(insensitive)? })
    }

    /// The first rule in list order that `path` satisfies and for which `holds` says that the rest does too,
    /// with the number of path bytes that it matched by.
    pub(super) fn first(
        &self,
        path: &[u8],
        mut holds: impl FnMut(u32, Remaining) -> bool,
    ) -> Option<(u32, usize)> {
        let mut best = None;
        let mut accepts = |candidate: Candidate, covered: usize| {
            let covers = match candidate.shape {
                Shape::Exact => covered == path.len(),
                Shape::Segments => ends_segment(path, covered),
                Shape::Prefix => true,
                Shape::Pattern => return holds(candidate.position, Remaining::PatternAndConditions),
            };
            covers && (candidate.unconditional || holds(candidate.position, Remaining::Conditions))
        };
        self.sensitive.search(path, Case::Sensitive, &mut best, &mut accepts);
        self.insensitive.search(path, Case::Insensitive, &mut best, &mut accepts);
        best.map(|(candidate, covered)| match candidate.shape {
            Shape::Pattern => (candidate.position, path.len()),
            Shape::Exact | Shape::Prefix | Shape::Segments => (candidate.position, covered),
        })
    }
}
