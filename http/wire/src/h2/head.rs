//! Header blocks to heads and heads to header blocks (RFC 9113 §8).
//!
//! From the wire everything that could be read in two ways on an h1 hop is refused: it makes the message malformed
//! (RFC 9113 §8.1.1), or, where a client deserves an answer, an error with one cause. To the wire nothing can fail:
//! a head holds only what may be sent.

mod write;

use super::hpack::{Class, Line, Pseudo};
use crate::authority;
use crate::fields::{FieldId, FieldSet, Fields, may_be_trailer};
use crate::head::{BodyLength, Method, RequestHead, ResponseHead, Scheme, Version};
use crate::number::decimal;
use crate::token::{BLOCK_BYTES, Block};

pub(super) use self::write::{RequestForm, put_request, put_response, put_trailers};

/// Bounds of a received head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Names, values and 32 bytes for each line (RFC 9113 §6.5.2, SETTINGS_MAX_HEADER_LIST_SIZE).
    pub list_bytes_max: usize,
    /// Lines without the pseudo-header fields.
    pub fields_max: usize,
    /// `:path` of a request; over it a request gets 414, as for its request line over HTTP/1.1.
    pub target_bytes_max: usize,
}

/// What is wrong with a received head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// RFC 9113 §8.1.1: the stream is reset.
    Malformed,
    TooLarge,
    TooManyFields,
    TargetTooLong,
    BadMethod,
    BadTarget,
    BadHost,
    HostMissing,
    HostConflict,
    BadFieldName,
    BadFieldValue,
    BadContentLength,
    /// Two of them could be read in two ways.
    ContentTypeRepeated,
    /// CONNECT without a protocol (RFC 9110 §9.3.6).
    ConnectUnsupported,
}

/// What a request head says beside its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestMeta {
    pub body: BodyLength,
    pub te_trailers: bool,
}

/// What a response head says beside its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseMeta {
    pub body: BodyLength,
    /// `content-length`, also of a response that has no body by rule (HEAD, 304).
    pub declared_length: Option<u64>,
}

/// What is common to all blocks.
#[derive(Debug)]
struct Common {
    limits: HeadLimits,
    list_bytes: usize,
    count: usize,
    /// A field has come: no pseudo-header field may follow (RFC 9113 §8.3).
    in_fields: bool,
    /// Pseudo-header fields that have come, by [`bit`].
    pseudos: u8,
    length: Option<u64>,
    error: Option<HeadError>,
}

const fn bit(pseudo: Pseudo) -> u8 {
    1 << (pseudo as u8)
}

impl Common {
    const fn new(limits: HeadLimits) -> Self {
        Self { limits, list_bytes: 0, count: 0, in_fields: false, pseudos: 0, length: None, error: None }
    }

    const fn has(&self, pseudo: Pseudo) -> bool {
        self.pseudos & bit(pseudo) != 0
    }

    /// Counts a line and finds out what it is; None: there is no more to do for it.
    fn admit(&mut self, line: &Line<'_>) -> Option<Class> {
        if self.error.is_some() {
            return None;
        }
        self.list_bytes += line.size();
        if self.list_bytes > self.limits.list_bytes_max {
            return self.fail(HeadError::TooLarge);
        }
        match line.class {
            Class::Pseudo(pseudo) => {
                if self.in_fields || self.has(pseudo) || pseudo == Pseudo::Unknown {
                    return self.fail(HeadError::Malformed);
                }
                self.pseudos |= bit(pseudo);
            }
            Class::Field(id) => {
                self.in_fields = true;
                self.count += 1;
                if self.count > self.limits.fields_max {
                    return self.fail(HeadError::TooManyFields);
                }
                if CONNECTION_SPECIFIC.has(id) {
                    return self.fail(HeadError::Malformed);
                }
                if has_outer_blank(line.value()) {
                    return self.fail(HeadError::BadFieldValue);
                }
            }
            Class::Imitation => return self.fail(HeadError::BadFieldName),
            Class::Malformed => return self.fail(HeadError::Malformed),
        }
        Some(line.class)
    }

    #[cold]
    fn fail(&mut self, error: HeadError) -> Option<Class> {
        self.error.get_or_insert(error);
        None
    }

    fn check<E>(&mut self, result: Result<(), E>, error: HeadError) {
        if result.is_err() {
            self.fail(error);
        }
    }

    /// Content-Length is digits, and repeated ones agree (RFC 9110 §8.6).
    fn set_length(&mut self, value: &[u8]) {
        match decimal(value) {
            Some(bytes) if self.length.is_none_or(|known| known == bytes) => self.length = Some(bytes),
            _ => {
                self.fail(HeadError::BadContentLength);
            }
        }
    }
}

/// RFC 9113 §8.2.2: they speak of an h1 connection. `te` is looked at apart.
const CONNECTION_SPECIFIC: FieldSet = FieldSet::of(&[
    FieldId::Connection,
    FieldId::KeepAlive,
    FieldId::ProxyConnection,
    FieldId::TransferEncoding,
    FieldId::Upgrade,
]);

/// RFC 9113 §8.2.1: a value that begins or ends with a blank makes a message malformed.
fn has_outer_blank(value: &[u8]) -> bool {
    let is_blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    is_blank(value.first()) || is_blank(value.last())
}

/// Values that are put together from several lines, or looked at when all lines are there.
#[derive(Debug, Default)]
pub(super) struct Held {
    host: Vec<u8>,
    cookie: Vec<u8>,
}

/// Fills a request head with the lines of a block.
pub(super) struct RequestReader<'a> {
    common: Common,
    head: &'a mut RequestHead,
    held: &'a mut Held,
    has_host: bool,
    te_trailers: bool,
    /// The authority is one that was checked before.
    is_checked: bool,
    has_asterisk: bool,
}

impl<'a> RequestReader<'a> {
    pub(super) fn new(
        head: &'a mut RequestHead,
        held: &'a mut Held,
        scheme: Scheme,
        limits: HeadLimits,
    ) -> Self {
        head.clear();
        head.version = Version::Http2;
        head.scheme = scheme;
        held.host.clear();
        held.cookie.clear();
        Self {
            common: Common::new(limits),
            head,
            held,
            has_host: false,
            te_trailers: false,
            is_checked: false,
            has_asterisk: false,
        }
    }

    pub(super) fn line(&mut self, line: &Line<'_>) {
        match self.common.admit(line) {
            Some(Class::Pseudo(pseudo)) => self.pseudo(pseudo, line.value()),
            Some(Class::Field(id)) => self.field(id, line),
            Some(Class::Imitation | Class::Malformed) | None => {}
        }
    }

    fn pseudo(&mut self, pseudo: Pseudo, value: &[u8]) {
        let Self { common, head, .. } = self;
        match pseudo {
            Pseudo::Method => common.check(head.set_method(value), HeadError::BadMethod),
            Pseudo::Authority if head.is_checked_host(value) => {
                self.is_checked = true;
                common.check(head.set_checked_authority(value), HeadError::TooLarge);
            }
            Pseudo::Authority => common.check(head.set_authority(value), HeadError::TooLarge),
            Pseudo::Path => self.target(value),
            Pseudo::Protocol => common.check(head.set_protocol(value), HeadError::Malformed),
            // Our scheme is the one by which the client reached us; its word is only to be a scheme.
            Pseudo::Scheme => common.check(check_scheme(value), HeadError::Malformed),
            Pseudo::Status | Pseudo::Unknown => {
                common.fail(HeadError::Malformed);
            }
        }
    }

    fn target(&mut self, value: &[u8]) {
        if value.is_empty() {
            self.common.fail(HeadError::Malformed);
            return;
        }
        let is_visible = (0..value.len()).step_by(BLOCK_BYTES).all(|at| visible_block(value, at));
        self.has_asterisk = value == b"*";
        if !is_visible || !(value.starts_with(b"/") || self.has_asterisk) {
            self.common.fail(HeadError::BadTarget);
            return;
        }
        if value.len() > self.common.limits.target_bytes_max {
            self.common.fail(HeadError::TargetTooLong);
            return;
        }
        let query_at = memchr::memchr(b'?', value);
        self.common.check(self.head.set_target(value, query_at), HeadError::TooLarge);
    }

    fn field(&mut self, id: FieldId, line: &Line<'_>) {
        match id {
            FieldId::ContentLength => self.common.set_length(line.value()),
            FieldId::Host => {
                if self.has_host && self.held.host != line.value() {
                    self.common.fail(HeadError::HostConflict);
                }
                if !std::mem::replace(&mut self.has_host, true) {
                    self.held.host.extend_from_slice(line.value());
                }
            }
            FieldId::Te if line.value().eq_ignore_ascii_case(b"trailers") => self.te_trailers = true,
            FieldId::Te => {
                self.common.fail(HeadError::Malformed);
            }
            FieldId::ContentType if self.head.fields.contains(id) => {
                self.common.fail(HeadError::ContentTypeRepeated);
            }
            // Several cookie fields become one again before they leave h2 (RFC 9113 §8.2.3).
            FieldId::Cookie => {
                if !self.held.cookie.is_empty() {
                    self.held.cookie.extend_from_slice(b"; ");
                }
                self.held.cookie.extend_from_slice(line.value());
            }
            id => {
                let pushed = self.head.fields.push_line(id, line.name_len(), line.text());
                self.common.check(pushed, HeadError::TooLarge);
            }
        }
    }

    /// The block has come to its end, and with it the message if `is_end`.
    pub(super) fn finish(mut self, is_end: bool, extended_connect: bool) -> Result<RequestMeta, HeadError> {
        if !self.held.cookie.is_empty() {
            let pushed = self.head.fields.push(FieldId::Cookie, &self.held.cookie);
            self.common.check(pushed, HeadError::TooLarge);
        }
        if let Some(error) = self.common.error {
            return Err(error);
        }
        let common = &self.common;
        let has_protocol = common.has(Pseudo::Protocol);
        let is_connect = self.head.method == Method::Connect;
        if is_connect && !has_protocol {
            return Err(HeadError::ConnectUnsupported);
        }
        let has_all =
            [Pseudo::Method, Pseudo::Scheme, Pseudo::Path].into_iter().all(|pseudo| common.has(pseudo));
        if !has_all || (has_protocol && !(is_connect && extended_connect)) {
            return Err(HeadError::Malformed);
        }
        if self.has_asterisk && self.head.method != Method::Options {
            return Err(HeadError::BadTarget);
        }
        let length = common.length;
        let te_trailers = self.te_trailers;
        self.settle_authority()?;
        let body = match (is_end, length) {
            (true, None | Some(0)) => BodyLength::Empty,
            (true, Some(_)) => return Err(HeadError::BadContentLength),
            (false, Some(bytes)) => BodyLength::Exact(bytes),
            (false, None) => BodyLength::Streamed,
        };
        Ok(RequestMeta { body, te_trailers })
    }

    /// One value for routing, logs and the upstream: `:authority`, and a `host` must agree (RFC 9113 §8.3.1).
    fn settle_authority(self) -> Result<(), HeadError> {
        let (head, host) = (self.head, &self.held.host);
        if self.has_host {
            if head.authority().is_empty() {
                head.set_authority(host).map_err(|_too_long| HeadError::TooLarge)?;
            } else if head.authority() != host.as_slice()
                && !authority::equal_ignoring_default_port(head.authority(), host, head.scheme)
            {
                return Err(HeadError::HostConflict);
            }
        }
        if head.authority().is_empty() {
            return Err(HeadError::HostMissing);
        }
        if !self.is_checked {
            authority::parse(head.authority()).map_err(|_malformed| HeadError::BadHost)?;
            head.remember_authority();
        }
        Ok(())
    }
}

/// RFC 3986 §3.1.
fn check_scheme(value: &[u8]) -> Result<(), HeadError> {
    let is_scheme = value.first().is_some_and(u8::is_ascii_alphabetic)
        && value.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'));
    if is_scheme { Ok(()) } else { Err(HeadError::Malformed) }
}

/// Whether the block at `at` holds only what a target may (RFC 9112 §3.2: no blank, no CTL, no fragment).
fn visible_block(value: &[u8], at: usize) -> bool {
    match value.get(at..).and_then(|rest| rest.first_chunk()) {
        Some(bytes) => Block::new(*bytes).not_in_target() == 0,
        None => {
            let rest = value.get(at..).unwrap_or(&[]);
            rest.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#')
        }
    }
}

/// Fills a response head with the lines of a block.
pub(super) struct ResponseReader<'a> {
    common: Common,
    head: &'a mut ResponseHead,
}

impl<'a> ResponseReader<'a> {
    pub(super) fn new(head: &'a mut ResponseHead, limits: HeadLimits) -> Self {
        head.clear();
        head.version = Version::Http2;
        Self { common: Common::new(limits), head }
    }

    pub(super) fn line(&mut self, line: &Line<'_>) {
        match self.common.admit(line) {
            Some(Class::Pseudo(Pseudo::Status)) => self.status(line.value()),
            Some(Class::Pseudo(_)) => {
                self.common.fail(HeadError::Malformed);
            }
            Some(Class::Field(FieldId::ContentLength)) => self.common.set_length(line.value()),
            Some(Class::Field(id)) => {
                let pushed = self.head.fields.push_line(id, line.name_len(), line.text());
                self.common.check(pushed, HeadError::TooLarge);
            }
            Some(Class::Imitation | Class::Malformed) | None => {}
        }
    }

    /// Three digits; 101 is not of this version (RFC 9113 §8.6).
    fn status(&mut self, value: &[u8]) {
        let status = decimal(value).filter(|status| value.len() == 3 && *status >= 100 && *status != 101);
        match status.and_then(|status| u16::try_from(status).ok()) {
            Some(status) => self.head.status = status,
            None => {
                self.common.fail(HeadError::Malformed);
            }
        }
    }

    /// The block has come to its end, and with it the message if `is_end`; it answers a request of `method`.
    pub(super) fn finish(self, is_end: bool, method: Method) -> Result<ResponseMeta, HeadError> {
        let Self { common, head } = self;
        if let Some(error) = common.error {
            return Err(error);
        }
        // RFC 9113 §8.1: an interim response does not end the stream.
        if !common.has(Pseudo::Status) || (is_end && head.is_interim()) {
            return Err(HeadError::Malformed);
        }
        let length = common.length;
        let is_bodiless = method == Method::Head || matches!(head.status, 100..=199 | 204 | 304);
        let body = match (is_bodiless, is_end, length) {
            (true, _, _) | (false, true, None | Some(0)) => BodyLength::Empty,
            (false, true, Some(_)) => return Err(HeadError::Malformed),
            (false, false, Some(bytes)) => BodyLength::Exact(bytes),
            (false, false, None) => BodyLength::Streamed,
        };
        Ok(ResponseMeta { body, declared_length: length })
    }
}

/// Collects the trailer fields of a block. What a trailer section must not carry is discarded (RFC 9110 §6.5.1).
pub(super) struct TrailerReader {
    common: Common,
    fields: Fields,
}

impl TrailerReader {
    pub(super) fn new(limits: HeadLimits) -> Self {
        Self { common: Common::new(limits), fields: Fields::new() }
    }

    pub(super) fn line(&mut self, line: &Line<'_>) {
        match self.common.admit(line) {
            Some(Class::Field(id)) if may_be_trailer(id, line.name()) => {
                let pushed = self.fields.push_line(id, line.name_len(), line.text());
                self.common.check(pushed, HeadError::TooLarge);
            }
            Some(Class::Pseudo(_)) => {
                self.common.fail(HeadError::Malformed);
            }
            Some(_) | None => {}
        }
    }

    pub(super) fn finish(self) -> Result<Fields, HeadError> {
        match self.common.error {
            // They are optional by nature: a name that a backend could misread goes without the message.
            None | Some(HeadError::BadFieldName | HeadError::BadFieldValue) => Ok(self.fields),
            Some(error) => Err(error),
        }
    }
}
