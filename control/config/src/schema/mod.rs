//! The authoring format as data: one table of keys (`table`) that checks a config (`check`), merges defaults
//! (`merge`), and writes the JSON Schema (`json`) and the reference page (`markdown`).
//!
//! Invariants: a key is described once, here; ranges and defaults come from `control_api::defaults`.

use std::time::Duration;

use control_api::defaults::{Bound, Range};

use crate::finding::Problem;

pub(crate) mod check;
pub(crate) mod json;
pub(crate) mod markdown;
pub(crate) mod merge;
pub(crate) mod table;

/// A mapping with known keys.
pub(crate) struct Object {
    /// Name of the definition in the JSON Schema and heading in the reference.
    pub(crate) name: &'static str,
    pub(crate) doc: &'static str,
    /// In parts, so that objects can share keys.
    pub(crate) fields: &'static [&'static [Field]],
    pub(crate) groups: &'static [Group],
}

impl Object {
    pub(crate) fn all_fields(&self) -> impl Iterator<Item = &'static Field> + Clone {
        self.fields.iter().copied().flatten()
    }

    pub(crate) fn field(&self, key: &str) -> Option<&'static Field> {
        self.all_fields().find(|f| f.key == key)
    }
}

/// Keys of an object that exclude each other.
pub(crate) enum Group {
    /// One of them must be there, and no second one.
    ExactlyOne(&'static [&'static str]),
    AtMostOne(&'static [&'static str]),
}

impl Group {
    pub(crate) fn keys(&self) -> &'static [&'static str] {
        match self {
            Self::ExactlyOne(keys) | Self::AtMostOne(keys) => keys,
        }
    }
}

/// Whether a key must be there, or what holds without it.
pub(crate) enum Presence {
    Required,
    /// The default is that of the kind (a bound's default, the first choice).
    Optional,
    /// What holds without the key, in words.
    OptionalOr(&'static str),
}

/// One key of an object.
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) kind: Kind,
    pub(crate) presence: Presence,
    pub(crate) doc: &'static str,
}

/// What may stand under a key.
pub(crate) enum Kind {
    Bool,
    Int(Limits<u64>),
    Number(Limits<f64>),
    Duration(Limits<Duration>),
    Size(Limits<u64>),
    Choice(&'static [(&'static str, &'static str)]),
    Text(&'static Rule),
    List {
        of: &'static Kind,
        max: usize,
    },
    Map {
        key: &'static Rule,
        of: &'static Kind,
    },
    Object(&'static Object),
    /// A scalar of the first kind, or else the second.
    Either(&'static Kind, &'static Kind),
}

/// A range, ends included, and the default if there is one.
#[derive(Clone, Copy)]
pub(crate) struct Limits<T> {
    pub(crate) min: T,
    pub(crate) default: Option<T>,
    pub(crate) max: T,
}

impl<T: Copy + PartialOrd> Limits<T> {
    pub(crate) fn holds(&self, value: T) -> bool {
        value >= self.min && value <= self.max
    }
}

/// A rule for texts.
pub(crate) struct Rule {
    /// What the text is, as the reference calls it.
    pub(crate) what: &'static str,
    pub(crate) example: &'static str,
    pub(crate) check: fn(&str) -> Result<(), Problem>,
}

const fn ints(bound: Bound<u32>) -> Kind {
    Kind::Int(Limits { min: widen(bound.min), default: Some(widen(bound.default)), max: widen(bound.max) })
}

const fn ints_or_none(range: Range<u32>) -> Kind {
    Kind::Int(Limits { min: widen(range.min), default: None, max: widen(range.max) })
}

const fn sizes(bound: Bound<u32>) -> Kind {
    Kind::Size(Limits { min: widen(bound.min), default: Some(widen(bound.default)), max: widen(bound.max) })
}

const fn numbers(bound: Bound<f64>) -> Kind {
    Kind::Number(Limits { min: bound.min, default: Some(bound.default), max: bound.max })
}

const fn durations(bound: Bound<Duration>) -> Kind {
    Kind::Duration(Limits { min: bound.min, default: Some(bound.default), max: bound.max })
}

const fn durations_or_none(range: Range<Duration>) -> Kind {
    Kind::Duration(Limits { min: range.min, default: None, max: range.max })
}

/// `u64::from` in a constant.
const fn widen(value: u32) -> u64 {
    value as u64
}
