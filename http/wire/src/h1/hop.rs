//! Hop-by-hop fields: what they say is kept, the fields themselves go no further.
//!
//! One collector for requests and responses; the two sides judge what it found by their own rules. Every value
//! it keeps is borrowed from the head's buffer.

use super::Persistence;
use crate::fields::{FieldId, FieldSet, Fields, Keep};
use crate::head::Version;
use crate::number::decimal;
use crate::token::{is_token, list_elements, trim_ows};

/// Connection options in one head; each may cost a pass over the fields.
pub const CONNECTION_OPTIONS_MAX: usize = 32;

/// Fields that a sender cannot make disappear by naming them in `Connection`: meant for every recipient
/// (RFC 9110 §7.6.1) and read by policies or by the framing.
const NOT_NOMINABLE: FieldSet = FieldSet::WRITTEN_BY_CODEC.with(FieldSet::of(&[
    FieldId::Authorization,
    FieldId::ContentType,
    FieldId::Cookie,
    FieldId::Date,
    FieldId::Expect,
    FieldId::SetCookie,
    FieldId::Trailer,
]));

/// What the Content-Length lines of a head say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ContentLength {
    #[default]
    Absent,
    Once(u64),
    /// The same value more than once, in one line or in several.
    Repeated(u64),
    /// Not 1*DIGIT, over `i64::MAX`, or different values.
    Bad,
}

/// What the Transfer-Encoding lines of a head say together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TransferCoding {
    #[default]
    Absent,
    /// Exactly one coding: `chunked`.
    Chunked,
    /// Other codings, no `chunked` so far.
    Other,
    /// Other codings, then `chunked` at the end.
    OtherThenChunked,
    /// Empty, `chunked` not last or twice, `identity`, parameters, no token.
    Bad,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct HopFields<'a> {
    pub(super) content_length: ContentLength,
    pub(super) coding: TransferCoding,
    pub(super) options_count: usize,
    pub(super) te_trailers: bool,
    close: bool,
    keep_alive: bool,
    upgrade: bool,
    /// An option that is the name of a field of its own.
    nominates: bool,
    upgrade_protocol: Option<&'a [u8]>,
}

impl<'a> HopFields<'a> {
    /// Takes one field line.
    pub(super) fn take(&mut self, id: FieldId, value: &'a [u8]) -> Keep {
        match id {
            FieldId::ContentLength => self.add_content_length(value),
            FieldId::TransferEncoding => self.add_codings(value),
            FieldId::Connection => self.add_options(value),
            FieldId::Upgrade => self.add_upgrade(value),
            FieldId::Te => {
                self.te_trailers |= list_elements(value).any(|e| e.eq_ignore_ascii_case(b"trailers"))
            }
            other if FieldSet::WRITTEN_BY_CODEC.has(other) => {}
            _ => return Keep::Field,
        }
        Keep::Out
    }

    fn add_content_length(&mut self, value: &[u8]) {
        for element in value.split(|&b| b == b',') {
            self.content_length = match (self.content_length, decimal(trim_ows(element))) {
                (ContentLength::Absent, Some(number)) => ContentLength::Once(number),
                (ContentLength::Once(first) | ContentLength::Repeated(first), Some(number))
                    if first == number =>
                {
                    ContentLength::Repeated(first)
                }
                _ => ContentLength::Bad,
            };
        }
    }

    /// Several lines read like one list (RFC 9110 §5.3); a request or response may be judged only when all
    /// have been seen.
    fn add_codings(&mut self, value: &[u8]) {
        for element in value.split(|&b| b == b',') {
            let name = trim_ows(element);
            let is_chunked = name.eq_ignore_ascii_case(b"chunked");
            let is_other = is_token(name) && !is_chunked && !name.eq_ignore_ascii_case(b"identity");
            self.coding = match self.coding {
                TransferCoding::Absent if is_chunked => TransferCoding::Chunked,
                TransferCoding::Absent | TransferCoding::Other if is_other => TransferCoding::Other,
                TransferCoding::Other if is_chunked => TransferCoding::OtherThenChunked,
                _ => TransferCoding::Bad,
            };
        }
    }

    fn add_options(&mut self, value: &[u8]) {
        // What nearly every client and server sends.
        if value.eq_ignore_ascii_case(b"keep-alive") {
            self.options_count += 1;
            self.keep_alive = true;
            return;
        }
        for option in list_elements(value) {
            self.options_count += 1;
            match option.len() {
                5 if option.eq_ignore_ascii_case(b"close") => self.close = true,
                7 if option.eq_ignore_ascii_case(b"upgrade") => self.upgrade = true,
                10 if option.eq_ignore_ascii_case(b"keep-alive") => self.keep_alive = true,
                _ => self.nominates = true,
            }
        }
    }

    /// The first protocol that is a bare name. A name with a version (`TLS/1.0`, `HTTP/2.0`) and `h2c`
    /// (deprecated by RFC 9113 §3.1, a way past the proxy) are nothing that this proxy switches to.
    fn add_upgrade(&mut self, value: &'a [u8]) {
        let mut offered = list_elements(value).filter(|p| is_token(p) && !p.eq_ignore_ascii_case(b"h2c"));
        self.upgrade_protocol = self.upgrade_protocol.or_else(|| offered.next());
    }

    /// The protocol to switch to: Upgrade has to be nominated, and HTTP/1.0 knows no upgrade (RFC 9110 §7.8).
    pub(super) fn upgrade_protocol(&self, version: Version) -> Option<&'a [u8]> {
        self.upgrade_protocol.filter(|_| self.upgrade && version == Version::Http11)
    }

    /// RFC 9112 §9.3: `close` wins, then the version's default.
    pub(super) const fn persistence(&self, version: Version) -> Persistence {
        match version {
            _ if self.close => Persistence::Close,
            Version::Http10 if !self.keep_alive => Persistence::Close,
            _ => Persistence::KeepAlive,
        }
    }

    /// Removes the fields that `Connection` names, in any case (RFC 9110 §7.6.1). `block` is the field block
    /// that was read, and is read again, because hardly any head nominates anything.
    pub(super) fn remove_nominated(&self, block: &[u8], fields: &mut Fields) {
        if !self.nominates {
            return;
        }
        for line in block.split(|&b| b == b'\n') {
            let Some(colon) = line.iter().position(|&b| b == b':') else {
                continue;
            };
            let (name, value) = line.split_at(colon);
            if !name.eq_ignore_ascii_case(FieldId::Connection.name().as_bytes()) {
                continue;
            }
            for option in list_elements(value.trim_ascii_end().get(1..).unwrap_or(&[])) {
                fields.retain(|f| NOT_NOMINABLE.has(f.id) || !f.name.eq_ignore_ascii_case(option));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect<'a>(lines: &[(FieldId, &'a str)]) -> HopFields<'a> {
        let mut hop = HopFields::default();
        for (id, value) in lines {
            assert!(hop.take(*id, value.as_bytes()) == Keep::Out);
        }
        hop
    }

    #[test]
    fn content_lengths_by_family() {
        use ContentLength::{Absent, Bad, Once, Repeated};
        let families: [(&[&str], ContentLength); 22] = [
            (&[], Absent),
            (&["0"], Once(0)),
            (&["5"], Once(5)),
            (&["00005"], Once(5)),
            (&["9223372036854775807"], Once(9_223_372_036_854_775_807)),
            (&["9223372036854775808"], Bad),
            (&["18446744073709551621"], Bad),
            (&[""], Bad),
            (&["", "5"], Bad),
            (&["5", ""], Bad),
            (&["5,"], Bad),
            (&["+5"], Bad),
            (&["-0"], Bad),
            (&["5 5"], Bad),
            (&["0x5"], Bad),
            (&["5_0"], Bad),
            (&["5\u{660}"], Bad),
            (&["5, 5"], Repeated(5)),
            (&["5", "5", "05"], Repeated(5)),
            (&["5,6"], Bad),
            (&["5", "6"], Bad),
            (&["5", "6", "5"], Bad),
        ];
        for (values, want) in families {
            let lines: Vec<_> = values.iter().map(|v| (FieldId::ContentLength, *v)).collect();
            assert_eq!(collect(&lines).content_length, want, "{values:?}");
        }
    }

    #[test]
    fn transfer_codings_by_family() {
        use TransferCoding::{Absent, Bad, Chunked, Other, OtherThenChunked};
        let families: [(&[&str], TransferCoding); 24] = [
            (&[], Absent),
            (&["chunked"], Chunked),
            (&["CHUNKED"], Chunked),
            (&["\tchunked "], Chunked),
            (&["gzip"], Other),
            (&["gzip", "deflate"], Other),
            (&["xchunked"], Other),
            (&["chunkedchunked"], Other),
            (&["gzip, chunked"], OtherThenChunked),
            (&["gzip", "chunked"], OtherThenChunked),
            (&["identity"], Bad),
            (&["identity, chunked"], Bad),
            (&["chunked", "gzip"], Bad),
            (&["chunked, gzip"], Bad),
            (&["chunked, chunked"], Bad),
            (&["chunked", "chunked"], Bad),
            (&["gzip, chunked, gzip"], Bad),
            (&["chunked;"], Bad),
            (&["chunked;q=1"], Bad),
            (&["\"chunked\""], Bad),
            (&[""], Bad),
            (&["chunked,"], Bad),
            (&[",chunked"], Bad),
            (&["chun ked"], Bad),
        ];
        for (values, want) in families {
            let lines: Vec<_> = values.iter().map(|v| (FieldId::TransferEncoding, *v)).collect();
            assert_eq!(collect(&lines).coding, want, "{values:?}");
        }
    }

    #[test]
    fn connection_options_decide_over_persistence() {
        use Persistence::{Close, KeepAlive};
        let families: [(&[&str], Persistence, Persistence); 8] = [
            (&[], KeepAlive, Close),
            (&["close"], Close, Close),
            (&["CLOSE"], Close, Close),
            (&["keep-alive"], KeepAlive, KeepAlive),
            (&["Keep-Alive, x"], KeepAlive, KeepAlive),
            (&["keep-alive, close"], Close, Close),
            (&["keep-alive", "x", "Close"], Close, Close),
            (&["closed", "xkeep-alive"], KeepAlive, Close),
        ];
        for (values, in_11, in_10) in families {
            let lines: Vec<_> = values.iter().map(|v| (FieldId::Connection, *v)).collect();
            let hop = collect(&lines);
            assert_eq!(hop.persistence(Version::Http11), in_11, "{values:?}");
            assert_eq!(hop.persistence(Version::Http10), in_10, "{values:?}");
        }
    }

    #[test]
    fn an_upgrade_needs_its_option_a_bare_name_and_http_1_1() {
        type Lines = &'static [(FieldId, &'static str)];
        let families: [(Lines, Option<&str>); 7] = [
            (&[(FieldId::Upgrade, "websocket")], None),
            (&[(FieldId::Connection, "upgrade")], None),
            (
                &[(FieldId::Upgrade, "websocket"), (FieldId::Connection, "Keep-Alive, UPGRADE")],
                Some("websocket"),
            ),
            (&[(FieldId::Upgrade, "TLS/1.0, h2c, foo, bar"), (FieldId::Connection, "upgrade")], Some("foo")),
            (&[(FieldId::Upgrade, "H2C"), (FieldId::Connection, "upgrade, http2-settings")], None),
            (
                &[(FieldId::Upgrade, "a"), (FieldId::Upgrade, "b"), (FieldId::Connection, "upgrade")],
                Some("a"),
            ),
            (&[(FieldId::Upgrade, ""), (FieldId::Connection, "upgrade")], None),
        ];
        for (lines, want) in families {
            let hop = collect(lines);
            assert_eq!(hop.upgrade_protocol(Version::Http11), want.map(str::as_bytes), "{lines:?}");
            assert_eq!(hop.upgrade_protocol(Version::Http10), None, "{lines:?}");
        }
    }
}
