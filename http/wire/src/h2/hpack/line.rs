//! A field line of a header block, and what its name means.

use crate::fields::{FieldId, is_imitation};
use crate::token::{is_field_value, is_token};

/// Pseudo-header fields (RFC 9113 §8.3, RFC 8441 §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pseudo {
    Authority,
    Method,
    Path,
    Protocol,
    Scheme,
    Status,
    /// A name that begins with a colon and is none of these.
    Unknown,
}

/// What a line is, by its name and by the bytes of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    Pseudo(Pseudo),
    Field(FieldId),
    /// A field name that differs from a reserved one only by `_` for `-`: CGI and its like read them alike.
    Imitation,
    /// No lower-case token for a name, or CTL bytes in a value (RFC 9113 §8.2.1).
    Malformed,
}

/// One decoded line: `name: value CRLF`.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    pub(super) text: &'a [u8],
    pub(super) name_len: usize,
    pub class: Class,
}

/// Bytes of a line that are neither name nor value: colon, blank and CRLF.
pub(super) const EXTRA_BYTES: usize = 4;

impl<'a> Line<'a> {
    /// `name: value CRLF`.
    pub const fn text(&self) -> &'a [u8] {
        self.text
    }

    pub const fn name_len(&self) -> usize {
        self.name_len
    }

    pub fn name(&self) -> &'a [u8] {
        self.text.get(..self.name_len).unwrap_or(&[])
    }

    pub fn value(&self) -> &'a [u8] {
        self.text.get(self.name_len + 2..self.text.len() - 2).unwrap_or(&[])
    }

    /// What it counts in a header list (RFC 9113 §6.5.2) and in a table (RFC 7541 §4.1), in bytes.
    pub const fn size(&self) -> usize {
        self.text.len() - EXTRA_BYTES + super::ENTRY_OVERHEAD_BYTES
    }
}

/// What a name means.
pub(super) fn class_of_name(name: &[u8]) -> Class {
    if let [b':', rest @ ..] = name {
        return Class::Pseudo(match rest {
            b"authority" => Pseudo::Authority,
            b"method" => Pseudo::Method,
            b"path" => Pseudo::Path,
            b"protocol" => Pseudo::Protocol,
            b"scheme" => Pseudo::Scheme,
            b"status" => Pseudo::Status,
            _ => Pseudo::Unknown,
        });
    }
    match FieldId::from_lower(name) {
        FieldId::Other if !is_token(name) || name.iter().any(u8::is_ascii_uppercase) => Class::Malformed,
        FieldId::Other if is_imitation(name) => Class::Imitation,
        id => Class::Field(id),
    }
}

/// What a line is, when its name is `of_name` and its value `value`.
pub(super) fn class_of_line(of_name: Class, value: &[u8]) -> Class {
    if is_field_value(value) { of_name } else { Class::Malformed }
}
