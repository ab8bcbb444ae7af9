//! The static table (RFC 7541 appendix A), as lines.

use super::line::{Class, Line, Pseudo};
use crate::fields::FieldId;

macro_rules! lines {
    ($($name:literal $value:literal $class:expr,)+) => {
        /// From index 1.
        static LINES: [Line<'static>; 61] = [$(Line {
            text: concat!($name, ": ", $value, "\r\n").as_bytes(),
            name_len: $name.len(),
            class: $class,
        },)+];
    };
}

const fn pseudo(pseudo: Pseudo) -> Class {
    Class::Pseudo(pseudo)
}

const fn field(id: FieldId) -> Class {
    Class::Field(id)
}

const OTHER: Class = Class::Field(FieldId::Other);

lines! {
    ":authority" "" pseudo(Pseudo::Authority),
    ":method" "GET" pseudo(Pseudo::Method),
    ":method" "POST" pseudo(Pseudo::Method),
    ":path" "/" pseudo(Pseudo::Path),
    ":path" "/index.html" pseudo(Pseudo::Path),
    ":scheme" "http" pseudo(Pseudo::Scheme),
    ":scheme" "https" pseudo(Pseudo::Scheme),
    ":status" "200" pseudo(Pseudo::Status),
    ":status" "204" pseudo(Pseudo::Status),
    ":status" "206" pseudo(Pseudo::Status),
    ":status" "304" pseudo(Pseudo::Status),
    ":status" "400" pseudo(Pseudo::Status),
    ":status" "404" pseudo(Pseudo::Status),
    ":status" "500" pseudo(Pseudo::Status),
    "accept-charset" "" OTHER,
    "accept-encoding" "gzip, deflate" OTHER,
    "accept-language" "" OTHER,
    "accept-ranges" "" OTHER,
    "accept" "" field(FieldId::Accept),
    "access-control-allow-origin" "" OTHER,
    "age" "" OTHER,
    "allow" "" OTHER,
    "authorization" "" field(FieldId::Authorization),
    "cache-control" "" OTHER,
    "content-disposition" "" OTHER,
    "content-encoding" "" OTHER,
    "content-language" "" OTHER,
    "content-length" "" field(FieldId::ContentLength),
    "content-location" "" OTHER,
    "content-range" "" OTHER,
    "content-type" "" field(FieldId::ContentType),
    "cookie" "" field(FieldId::Cookie),
    "date" "" field(FieldId::Date),
    "etag" "" OTHER,
    "expect" "" field(FieldId::Expect),
    "expires" "" OTHER,
    "from" "" OTHER,
    "host" "" field(FieldId::Host),
    "if-match" "" OTHER,
    "if-modified-since" "" OTHER,
    "if-none-match" "" OTHER,
    "if-range" "" OTHER,
    "if-unmodified-since" "" OTHER,
    "last-modified" "" OTHER,
    "link" "" OTHER,
    "location" "" OTHER,
    "max-forwards" "" OTHER,
    "proxy-authenticate" "" field(FieldId::ProxyAuthenticate),
    "proxy-authorization" "" field(FieldId::ProxyAuthorization),
    "range" "" OTHER,
    "referer" "" OTHER,
    "refresh" "" OTHER,
    "retry-after" "" field(FieldId::RetryAfter),
    "server" "" field(FieldId::Server),
    "set-cookie" "" field(FieldId::SetCookie),
    "strict-transport-security" "" OTHER,
    "transfer-encoding" "" field(FieldId::TransferEncoding),
    "user-agent" "" field(FieldId::UserAgent),
    "vary" "" field(FieldId::Vary),
    "via" "" field(FieldId::Via),
    "www-authenticate" "" OTHER,
}

/// Entries of the static table; dynamic ones follow.
pub const STATIC_LEN: usize = LINES.len();

/// The line at an index of the static table.
pub(super) fn line(index: usize) -> Option<Line<'static>> {
    LINES.get(index.checked_sub(1)?).copied()
}

/// The index of exactly this line.
pub fn static_index(name: &[u8], value: &[u8]) -> Option<usize> {
    let at = LINES.iter().position(|line| line.name() == name && line.value() == value)?;
    Some(at + 1)
}

/// The first index with this name.
pub fn static_index_of_name(name: &[u8]) -> Option<usize> {
    Some(LINES.iter().position(|line| line.name() == name)? + 1)
}

/// The same for a field that is sent often, by the id that its name has.
pub(super) fn index_of_name(id: FieldId, name: &[u8]) -> Option<usize> {
    let index = match id {
        FieldId::Accept => 19,
        FieldId::Authorization => 23,
        FieldId::ContentLength => 28,
        FieldId::ContentType => 31,
        FieldId::Cookie => 32,
        FieldId::Date => 33,
        FieldId::Expect => 35,
        FieldId::RetryAfter => 53,
        FieldId::Server => 54,
        FieldId::SetCookie => 55,
        FieldId::UserAgent => 58,
        FieldId::Vary => 59,
        FieldId::Via => 60,
        FieldId::Other => return index_of_other(name),
        _ => return None,
    };
    Some(index)
}

fn index_of_other(name: &[u8]) -> Option<usize> {
    let index = match name {
        b"accept-charset" => 15,
        b"accept-encoding" => 16,
        b"accept-language" => 17,
        b"accept-ranges" => 18,
        b"access-control-allow-origin" => 20,
        b"age" => 21,
        b"allow" => 22,
        b"cache-control" => 24,
        b"content-disposition" => 25,
        b"content-encoding" => 26,
        b"content-language" => 27,
        b"content-location" => 29,
        b"content-range" => 30,
        b"etag" => 34,
        b"expires" => 36,
        b"from" => 37,
        b"if-match" => 39,
        b"if-modified-since" => 40,
        b"if-none-match" => 41,
        b"if-range" => 42,
        b"if-unmodified-since" => 43,
        b"last-modified" => 44,
        b"link" => 45,
        b"location" => 46,
        b"max-forwards" => 47,
        b"range" => 50,
        b"referer" => 51,
        b"refresh" => 52,
        b"strict-transport-security" => 56,
        b"www-authenticate" => 61,
        _ => return None,
    };
    Some(index)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h2::hpack::line::class_of_name;

    #[test]
    fn classes_and_indices_agree_with_the_names() {
        for (at, line) in LINES.iter().enumerate() {
            assert_eq!(line.class, class_of_name(line.name()), "{at}");
            assert_eq!(line.text, [line.name(), b": ", line.value(), b"\r\n"].concat());
            assert_eq!(static_index(line.name(), line.value()), Some(at + 1));
            let Class::Field(id) = line.class else { continue };
            let is_never_sent = crate::fields::FieldSet::WRITTEN_BY_CODEC.has(id);
            if !is_never_sent || id == FieldId::ContentLength {
                assert_eq!(index_of_name(id, line.name()), Some(at + 1), "{:?}", line.name());
            }
        }
    }
}
