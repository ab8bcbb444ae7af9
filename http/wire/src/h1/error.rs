//! Why the codec refuses a message: one variant per cause, each with one stable code.
//!
//! The code is the word of the log line, the metric label and the problem document. A refused request closes
//! its connection: after an illegal head nobody knows where the next message begins.

use std::error::Error;
use std::fmt;

macro_rules! causes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $code:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl $name {
            /// Every cause, for tables of counters and for documentation.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable reason code.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.code())
            }
        }

        impl Error for $name {}
    };
}

causes! {
    /// Why a request head was refused.
    RequestError {
        /// The method is no token, or holds lower-case letters: methods are case-sensitive (RFC 9110 §9.1),
        /// and a backend that folds case would run `get` past a rule about `GET`.
        BadMethod = "bad_method",
        /// CONNECT: a gateway opens no tunnels (RFC 9110 §9.3.6).
        ConnectUnsupported = "connect_unsupported",
        /// A control byte before the first line end: mostly another protocol, such as TLS, on this port.
        BadRequestLine = "bad_request_line",
        /// No origin-form, absolute-form or asterisk-form that suits the method (RFC 9112 §3.2).
        BadTarget = "bad_target",
        /// The protocol name is not HTTP or the version is not DIGIT.DIGIT (RFC 9112 §2.3).
        BadVersion = "bad_version",
        /// A major version other than 1.
        VersionUnsupported = "version_unsupported",
        /// The request line is over its limit.
        RequestLineTooLong = "request_line_too_long",
        /// The whole head is over its limit.
        HeadTooLarge = "head_too_large",
        /// More field lines than the limit.
        TooManyFields = "too_many_fields",
        /// LF without CR before it (RFC 9112 §2.2 lets us refuse).
        BareLf = "bare_lf",
        /// CR without LF after it (RFC 9112 §2.2).
        BareCr = "bare_cr",
        /// A line that begins with a blank (RFC 9112 §5.2).
        ObsFold = "obs_fold",
        /// An empty name, a byte that no token has, or a blank before the colon (RFC 9112 §5.1).
        BadFieldName = "bad_field_name",
        /// A CTL byte in a value (RFC 9110 §5.5).
        BadFieldValue = "bad_field_value",
        /// Content-Length is not 1*DIGIT or does not fit (RFC 9110 §8.6).
        BadContentLength = "bad_content_length",
        /// More than one Content-Length (RFC 9112 §6.3 item 5).
        ContentLengthRepeated = "content_length_repeated",
        /// Content-Length and Transfer-Encoding together (RFC 9112 §6.3 item 3).
        LengthConflict = "length_conflict",
        /// Transfer-Encoding does not end in exactly one `chunked` (RFC 9112 §6.3 item 4).
        BadTransferEncoding = "bad_transfer_encoding",
        /// A coding before `chunked` (RFC 9112 §6.1).
        TransferCodingUnsupported = "transfer_coding_unsupported",
        /// Transfer-Encoding in an HTTP/1.0 message (RFC 9112 §6.1).
        TransferEncodingInHttp10 = "transfer_encoding_in_http10",
        /// HTTP/1.1 without Host (RFC 9112 §3.2).
        HostMissing = "host_missing",
        /// More than one Host (RFC 9112 §3.2).
        HostRepeated = "host_repeated",
        /// Host or the target's authority is no `host [":" port]` (RFC 9110 §7.2, §4.2.4).
        BadHost = "bad_host",
        /// Host differs from the authority of an absolute-form target.
        HostConflict = "host_conflict",
        /// More connection options than anybody needs.
        TooManyConnectionOptions = "too_many_connection_options",
        /// More than one Content-Type, so that two readers may see two types.
        ContentTypeRepeated = "content_type_repeated",
    }
}

impl RequestError {
    /// The status to answer with.
    pub const fn status(self) -> u16 {
        match self {
            Self::RequestLineTooLong => 414,
            Self::HeadTooLarge | Self::TooManyFields => 431,
            Self::ConnectUnsupported | Self::TransferCodingUnsupported => 501,
            Self::VersionUnsupported => 505,
            Self::BadMethod
            | Self::BadRequestLine
            | Self::BadTarget
            | Self::BadVersion
            | Self::BareLf
            | Self::BareCr
            | Self::ObsFold
            | Self::BadFieldName
            | Self::BadFieldValue
            | Self::BadContentLength
            | Self::ContentLengthRepeated
            | Self::LengthConflict
            | Self::BadTransferEncoding
            | Self::TransferEncodingInHttp10
            | Self::HostMissing
            | Self::HostRepeated
            | Self::BadHost
            | Self::HostConflict
            | Self::TooManyConnectionOptions
            | Self::ContentTypeRepeated => 400,
        }
    }
}

causes! {
    /// Why a response head was refused. The client gets 502 and the upstream connection is closed.
    ResponseError {
        /// The status line is not `HTTP/1.x SP 3DIGIT` or the status is below 100 (RFC 9112 §4).
        BadStatusLine = "upstream_bad_status_line",
        /// The head or its status line is over the limit.
        HeadTooLarge = "upstream_head_too_large",
        /// More field lines than the limit.
        TooManyFields = "upstream_too_many_fields",
        /// LF without CR before it.
        BareLf = "upstream_bare_lf",
        /// CR without LF after it.
        BareCr = "upstream_bare_cr",
        /// A folded line (RFC 9112 §5.2 allows 502).
        ObsFold = "upstream_obs_fold",
        /// As for requests (RFC 9112 §5.1).
        BadFieldName = "upstream_bad_field_name",
        /// A CTL byte in a value (RFC 9110 §5.5).
        BadFieldValue = "upstream_bad_field_value",
        /// Content-Length is not 1*DIGIT, does not fit, or differs from another one (RFC 9112 §6.3 item 5).
        BadContentLength = "upstream_bad_content_length",
        /// Anything but a single `chunked`: other codings cannot be passed on (RFC 9112 §6.1, §7).
        BadTransferEncoding = "upstream_bad_transfer_encoding",
        /// Transfer-Encoding in an HTTP/1.0 message (RFC 9112 §6.1).
        TransferEncodingInHttp10 = "upstream_transfer_encoding_in_http10",
        /// 101 without `Connection: upgrade` and one protocol (RFC 9110 §15.2.2).
        BadUpgrade = "upstream_bad_upgrade",
        /// More connection options than anybody needs.
        TooManyConnectionOptions = "upstream_too_many_connection_options",
    }
}

causes! {
    /// Why a body was refused, in either direction.
    BodyError {
        /// No hexadecimal size, or one that does not fit (RFC 9112 §7.1).
        BadChunkSize = "bad_chunk_size",
        /// The size line goes on in a way that no extension does (RFC 9112 §7.1.1).
        BadChunkExtension = "bad_chunk_extension",
        /// One size line is longer than [`super::CHUNK_LINE_BYTES_MAX`].
        ChunkLineTooLong = "chunk_line_too_long",
        /// Chunk data is not followed by CRLF.
        BadChunkEnd = "bad_chunk_end",
        /// LF without CR before it in the framing.
        BareLf = "bad_chunk_bare_lf",
        /// CR without LF after it in the framing.
        BareCr = "bad_chunk_bare_cr",
        /// Far more framing than data (CVE-2023-39326).
        ChunkOverhead = "chunk_overhead",
        /// A trailer line is no field line (RFC 9112 §7.1.2).
        BadTrailer = "bad_trailer",
        /// The trailer section is over the limits for heads.
        TrailersTooLarge = "trailers_too_large",
    }
}

impl BodyError {
    /// The status to answer a request with; for a response it is always 502.
    pub const fn status(self) -> u16 {
        match self {
            Self::TrailersTooLarge => 431,
            Self::BadChunkSize
            | Self::BadChunkExtension
            | Self::ChunkLineTooLong
            | Self::BadChunkEnd
            | Self::BareLf
            | Self::BareCr
            | Self::ChunkOverhead
            | Self::BadTrailer => 400,
        }
    }
}

causes! {
    /// Why a head may not be written: a part of it would change the meaning of the message on the wire. These
    /// are the last guard behind parsers and policies (h2 or config values with CTL bytes).
    WriteError {
        /// The method is CONNECT or no token.
        BadMethod = "write_bad_method",
        /// The path neither begins with `/` nor is `*`, or path or query hold a byte that no target has.
        BadTarget = "write_bad_target",
        /// The authority holds a byte that no authority has.
        BadAuthority = "write_bad_authority",
        /// The status is not 100 to 999.
        BadStatus = "write_bad_status",
        /// A request body cannot last until close (RFC 9112 §6.3).
        BodyUntilClose = "write_body_until_close",
        /// 101 without a protocol to switch to.
        BadUpgrade = "write_bad_upgrade",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_words_and_statuses_are_errors() {
        let mut codes: Vec<&str> = RequestError::ALL.iter().map(|e| e.code()).collect();
        codes.extend(ResponseError::ALL.iter().map(|e| e.code()));
        codes.extend(BodyError::ALL.iter().map(|e| e.code()));
        codes.extend(WriteError::ALL.iter().map(|e| e.code()));
        for code in &codes {
            assert!(
                code.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{code}"
            );
        }
        let count = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), count, "two causes share a code");
        let statuses =
            RequestError::ALL.iter().map(|e| e.status()).chain(BodyError::ALL.iter().map(|e| e.status()));
        for status in statuses {
            assert!((400..=505).contains(&status));
        }
    }
}
