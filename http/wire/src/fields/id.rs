//! Names that the proxy itself looks at, as small integers and as sets of them.
//!
//! Invariants: a known name has one id and one lower-case spelling; there are fewer than 64 ids, so that a set
//! of them is one word. Used by `Fields`, the codecs and every policy.

/// Fields that the proxy itself looks at, so that a lookup is one integer comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FieldId {
    Other,
    Accept,
    Authorization,
    Connection,
    ContentLength,
    ContentType,
    Cookie,
    Date,
    Deprecation,
    Expect,
    Forwarded,
    GrpcAcceptEncoding,
    GrpcEncoding,
    GrpcMessage,
    GrpcStatus,
    GrpcTimeout,
    Host,
    Http2Settings,
    KeepAlive,
    Origin,
    ProxyAuthenticate,
    ProxyAuthorization,
    ProxyConnection,
    RetryAfter,
    SecWebsocketAccept,
    SecWebsocketKey,
    SecWebsocketVersion,
    Server,
    SetCookie,
    Te,
    Traceparent,
    Tracestate,
    Trailer,
    TransferEncoding,
    Upgrade,
    UserAgent,
    Vary,
    Via,
    XDeadlineMs,
    XForwardedClientCert,
    XForwardedFor,
    XForwardedHost,
    XForwardedPort,
    XForwardedPrefix,
    XForwardedProto,
    XMirrored,
    XRealIp,
    XRequestId,
    XShardAttempt,
}

/// The key of a name; of a longer one, of its first 16 bytes.
const fn key_of(name: &str) -> u128 {
    let mut bytes = [0; 16];
    let (mut at, mut rest) = (0, name.as_bytes());
    while let [byte, tail @ ..] = rest {
        if at < bytes.len() {
            bytes[at] = *byte;
        }
        at += 1;
        rest = tail;
    }
    u128::from_le_bytes(bytes)
}

/// Bits of a [`FieldSet`].
const IDS_MAX: usize = 64;

/// A name, a colon and a blank, in room of one size: copied without asking how long they are.
#[derive(Clone, Copy)]
pub(super) struct LineStart {
    pub(super) bytes: [u8; Self::ROOM],
    pub(super) len: usize,
}

impl LineStart {
    pub(super) const ROOM: usize = 32;

    const fn of(text: &[u8]) -> Self {
        let mut bytes = [0; Self::ROOM];
        let (start, _) = bytes.split_at_mut(text.len());
        start.copy_from_slice(text);
        Self { bytes, len: text.len() }
    }
}

macro_rules! known_names {
    ($($length:literal: [$($name:literal => $id:ident),+],)*) => {
        impl FieldId {
            /// The id of a lower-case field name; `Other` when the proxy has no interest in it.
            pub fn from_lower(name: &[u8]) -> Self {
                // By length first: then each comparison has a fixed width and becomes one or two words.
                match name.len() {
                    $($length => {
                        $(if name == $name.as_bytes() { return Self::$id; })+
                        Self::Other
                    })*
                    _ => Self::Other,
                }
            }

            /// The same from a [`crate::token::Block`] key: the bytes of the name as a number, the first byte
            /// lowest, for names of at most 16 bytes.
            #[inline]
            pub(crate) const fn from_key(len: usize, key: u128) -> Self {
                match len {
                    $($length if $length <= 16 => {
                        $(if key == key_of($name) { return Self::$id; })+
                        Self::Other
                    })*
                    _ => Self::Other,
                }
            }

            /// The lower-case name of a known field; empty for `Other`.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$id => $name,)+)* Self::Other => "" }
            }

            /// The beginning of its line; empty for `Other`.
            pub(super) fn line_start(self) -> &'static LineStart {
                &LINE_STARTS[self as usize]
            }
        }

        static LINE_STARTS: [LineStart; IDS_MAX] = {
            let mut starts = [LineStart { bytes: [0; LineStart::ROOM], len: 0 }; IDS_MAX];
            $($(starts[FieldId::$id as usize] = LineStart::of(concat!($name, ": ").as_bytes());)+)*
            starts
        };

        #[cfg(test)]
        const KNOWN: &[(usize, &str, FieldId)] = &[$($(($length, $name, FieldId::$id),)+)*];
    };
}

known_names! {
    2: ["te" => Te],
    3: ["via" => Via],
    4: ["date" => Date, "host" => Host, "vary" => Vary],
    6: ["accept" => Accept, "cookie" => Cookie, "expect" => Expect, "origin" => Origin, "server" => Server],
    7: ["trailer" => Trailer, "upgrade" => Upgrade],
    9: ["forwarded" => Forwarded, "x-real-ip" => XRealIp],
    10: ["connection" => Connection, "keep-alive" => KeepAlive, "set-cookie" => SetCookie, "tracestate" => Tracestate, "user-agent" => UserAgent, "x-mirrored" => XMirrored],
    11: ["deprecation" => Deprecation, "grpc-status" => GrpcStatus, "retry-after" => RetryAfter, "traceparent" => Traceparent],
    12: ["content-type" => ContentType, "grpc-message" => GrpcMessage, "grpc-timeout" => GrpcTimeout, "x-request-id" => XRequestId],
    13: ["authorization" => Authorization, "grpc-encoding" => GrpcEncoding, "x-deadline-ms" => XDeadlineMs],
    14: ["content-length" => ContentLength, "http2-settings" => Http2Settings],
    15: ["x-forwarded-for" => XForwardedFor, "x-shard-attempt" => XShardAttempt],
    16: ["proxy-connection" => ProxyConnection, "x-forwarded-host" => XForwardedHost, "x-forwarded-port" => XForwardedPort],
    17: ["sec-websocket-key" => SecWebsocketKey, "transfer-encoding" => TransferEncoding, "x-forwarded-proto" => XForwardedProto],
    18: ["proxy-authenticate" => ProxyAuthenticate, "x-forwarded-prefix" => XForwardedPrefix],
    19: ["proxy-authorization" => ProxyAuthorization],
    20: ["grpc-accept-encoding" => GrpcAcceptEncoding, "sec-websocket-accept" => SecWebsocketAccept],
    21: ["sec-websocket-version" => SecWebsocketVersion],
    23: ["x-forwarded-client-cert" => XForwardedClientCert],
}

/// A set of field ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(u64);

impl FieldSet {
    /// No field.
    pub const EMPTY: Self = Self(0);

    /// Fields that speak about one connection and never pass a proxy, whoever wrote them (RFC 9110 §7.6.1,
    /// §11.7.1, §11.7.2 for the proxy credentials; RFC 7540 §3.2.1 for HTTP2-Settings). `Transfer-Encoding`
    /// and `TE` are among them; `Trailer` is end to end (RFC 9110 §6.6.2).
    pub const HOP_BY_HOP: Self = Self::of(&[
        FieldId::Connection,
        FieldId::Http2Settings,
        FieldId::KeepAlive,
        FieldId::ProxyAuthenticate,
        FieldId::ProxyAuthorization,
        FieldId::ProxyConnection,
        FieldId::Te,
        FieldId::TransferEncoding,
        FieldId::Upgrade,
    ]);

    /// What a codec represents outside of `Fields` and writes itself: hop-by-hop fields, the length and the
    /// host. A writer leaves these out even when a policy put them into the list.
    pub const WRITTEN_BY_CODEC: Self =
        Self::HOP_BY_HOP.with(Self::of(&[FieldId::ContentLength, FieldId::Host]));

    /// Fields that a trailer section must not carry, because they frame, route, authenticate or describe the
    /// content before it is read, or are made by this proxy (RFC 9110 §6.5.1).
    pub const NOT_IN_TRAILERS: Self = Self::WRITTEN_BY_CODEC.with(Self::of(&[
        FieldId::Authorization,
        FieldId::ContentType,
        FieldId::Cookie,
        FieldId::Expect,
        FieldId::Forwarded,
        FieldId::GrpcTimeout,
        FieldId::Origin,
        FieldId::SetCookie,
        FieldId::Trailer,
        FieldId::XDeadlineMs,
        FieldId::XForwardedClientCert,
        FieldId::XForwardedFor,
        FieldId::XForwardedHost,
        FieldId::XForwardedPort,
        FieldId::XForwardedPrefix,
        FieldId::XForwardedProto,
        FieldId::XMirrored,
        FieldId::XRealIp,
        FieldId::XRequestId,
        FieldId::XShardAttempt,
    ]));

    /// The set of these ids.
    pub const fn of(ids: &[FieldId]) -> Self {
        let mut bits = 0;
        let mut rest = ids;
        while let [id, tail @ ..] = rest {
            bits |= Self::bit(*id);
            rest = tail;
        }
        Self(bits)
    }

    /// The union.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether `id` is in the set.
    pub const fn has(self, id: FieldId) -> bool {
        self.0 & Self::bit(id) != 0
    }

    /// Whether any id is in both sets.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(super) const fn add(&mut self, id: FieldId) {
        self.0 |= Self::bit(id);
    }

    pub(super) const fn take_out(&mut self, id: FieldId) {
        self.0 &= !Self::bit(id);
    }

    const fn bit(id: FieldId) -> u64 {
        // A shift by 64 or more would not compile in the constants above.
        1 << (id as u8)
    }
}

/// Whether a trailer field may be handed on: not one of [`FieldSet::NOT_IN_TRAILERS`] and not a name that the
/// proxy vouches for or that describes the content (RFC 9110 §6.5.1). `name` is lower case.
pub fn may_be_trailer(id: FieldId, name: &[u8]) -> bool {
    if id != FieldId::Other {
        return !FieldSet::NOT_IN_TRAILERS.has(id);
    }
    let is_reserved =
        [b"x-auth-".as_slice(), b"x-forwarded-", b"x-shard-"].iter().any(|prefix| name.starts_with(prefix));
    !is_reserved
        && !matches!(
            name,
            b"cache-control"
                | b"content-encoding"
                | b"content-location"
                | b"content-range"
                | b"max-forwards"
                | b"range"
        )
}

/// Whether a lower-case name differs from a reserved one only by `_` for `-`. CGI, WSGI and their like turn `-` into `_`,
/// so that `content_length` reads like the real one there.
pub(crate) fn is_imitation(name: &[u8]) -> bool {
    if !name.contains(&b'_') {
        return false;
    }
    let dashed: Vec<u8> = name.iter().map(|&b| if b == b'_' { b'-' } else { b }).collect();
    !may_be_trailer(FieldId::from_lower(&dashed), &dashed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_finds_its_id_and_back() {
        assert!(KNOWN.len() < 64);
        for &(length, name, id) in KNOWN {
            assert_eq!(name.len(), length, "{name} stands in the wrong row");
            assert_eq!(FieldId::from_lower(name.as_bytes()), id);
            assert_eq!(id.name(), name);
            assert_eq!(
                FieldId::from_key(length, key_of(name)),
                if length <= 16 { id } else { FieldId::Other }
            );
            assert_eq!(FieldId::from_key(length, key_of(name) ^ 1), FieldId::Other, "{name}");
            // One byte off, one byte more, one less: not this name.
            let mut changed = name.as_bytes().to_vec();
            changed[length - 1] ^= 1;
            assert_ne!(FieldId::from_lower(&changed), id, "{name}");
            assert_ne!(FieldId::from_lower(format!("{name}x").as_bytes()), id, "{name}");
            assert_ne!(FieldId::from_lower(&name.as_bytes()[1..]), id, "{name}");
        }
        assert_eq!(FieldId::from_lower(b""), FieldId::Other);
    }

    #[test]
    fn sets_hold_what_was_put_in() {
        for &(_, _, id) in KNOWN {
            let only = FieldSet::of(&[id]);
            for &(_, _, other) in KNOWN {
                assert_eq!(only.has(other), other == id);
            }
            let mut set = FieldSet::WRITTEN_BY_CODEC;
            set.add(id);
            assert!(set.has(id));
            set.take_out(id);
            assert!(!set.has(id));
        }
        assert!(FieldSet::WRITTEN_BY_CODEC.has(FieldId::Connection) && !FieldSet::EMPTY.has(FieldId::Other));
    }

    #[test]
    fn trailers_may_not_frame_route_or_vouch() {
        let may = |name: &str| may_be_trailer(FieldId::from_lower(name.as_bytes()), name.as_bytes());
        for name in ["grpc-status", "grpc-message", "x-checksum", "server-timing", "etag", "vary", "date"] {
            assert!(may(name), "{name}");
        }
        for name in [
            "content-length",
            "transfer-encoding",
            "host",
            "trailer",
            "te",
            "connection",
            "authorization",
            "set-cookie",
            "cookie",
            "content-type",
            "content-range",
            "x-forwarded-for",
            "x-auth-subject",
            "x-request-id",
            "x-shard-attempt",
        ] {
            assert!(!may(name), "{name}");
        }
    }
}
