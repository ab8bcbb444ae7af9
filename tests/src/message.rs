//! HTTP messages as tests see them, whatever version carried them: fields in order, body, trailers. Also a strict
//! HTTP/1.1 reader that knows nothing of the product's own parser, so that one cannot hide the other's fault.

/// Field lines in wire order, names as received.
pub type FieldLines = Vec<(String, String)>;

/// A response, complete or cut short.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub version: String,
    pub fields: FieldLines,
    pub body: Vec<u8>,
    pub trailers: FieldLines,
    /// Interim (1xx) responses that came before, in order.
    pub interim: Vec<Response>,
    /// The end was framed (length, last chunk, `END_STREAM`), not a mere end of the connection.
    pub complete: bool,
}

impl Response {
    /// First value of a field, name in any case.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        first(&self.fields, name)
    }

    /// First value of a trailer field, name in any case.
    #[must_use]
    pub fn trailer(&self, name: &str) -> Option<&str> {
        first(&self.trailers, name)
    }

    /// The body as text, invalid bytes replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is not.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("status {} and not JSON ({error}): {:?}", self.status, self.text()),
        }
    }

    /// The reason code of an error that the proxy made (`code` of the problem document).
    #[must_use]
    pub fn code(&self) -> Option<String> {
        let value: serde_json::Value = serde_json::from_slice(&self.body).ok()?;
        Some(value.get("code")?.as_str()?.to_owned())
    }
}

/// First value of the field `name`, in any case.
#[must_use]
pub fn first<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// All values of the field `name`, in any case, in order.
#[must_use]
pub fn all<'a>(fields: &'a [(String, String)], name: &str) -> Vec<&'a str> {
    fields.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).collect()
}

/// FNV-1a, 64 bits: enough to tell whether two bodies are the same, not a secret.
#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    let value = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{value:016x}")
}

/// A start line and its fields, as a strict reader sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawHead {
    pub start: String,
    pub fields: FieldLines,
}

/// Splits the bytes of one head (with its empty line) into start line and fields.
///
/// # Errors
/// Says what no sender may send: bare CR or LF, NUL, folds, names that are no tokens (RFC 9112 §2.2, §5.1, §5.2).
pub fn parse_head(bytes: &[u8]) -> Result<RawHead, String> {
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    let block =
        text.strip_suffix("\r\n\r\n").ok_or_else(|| format!("head without an empty line: {text:?}"))?;
    let mut lines = block.split("\r\n");
    let start = lines.next().unwrap_or_default().to_owned();
    let mut head = RawHead { start, fields: Vec::new() };
    for line in std::iter::once(head.start.clone()).chain(block.split("\r\n").skip(1).map(str::to_owned)) {
        if line.contains(['\r', '\n', '\0']) {
            return Err(format!("bare CR, LF or NUL in {line:?}"));
        }
    }
    for line in lines {
        let (name, value) = line.split_once(':').ok_or_else(|| format!("no colon in {line:?}"))?;
        if name.is_empty() || !name.bytes().all(is_token_byte) {
            return Err(format!("{name:?} is no field name"));
        }
        head.fields.push((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()));
    }
    Ok(head)
}

/// RFC 9110 §5.6.2, tchar.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// How the body of a message ends (RFC 9112 §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    Length(usize),
    Chunked,
    Close,
}

/// The body rule of a request head.
///
/// # Errors
/// Says what makes the length of the message a matter of opinion.
pub fn request_body_end(fields: &[(String, String)]) -> Result<BodyEnd, String> {
    Ok(match announced_length(fields)? {
        Some(end) => end,
        None => BodyEnd::Length(0),
    })
}

/// The body rule of a response head to a request with `method`.
///
/// # Errors
/// As [`request_body_end`].
pub fn response_body_end(method: &str, status: u16, fields: &[(String, String)]) -> Result<BodyEnd, String> {
    if method == "HEAD" || matches!(status, 100..=199 | 204 | 304) {
        return Ok(BodyEnd::Length(0));
    }
    Ok(announced_length(fields)?.unwrap_or(BodyEnd::Close))
}

fn announced_length(fields: &[(String, String)]) -> Result<Option<BodyEnd>, String> {
    let lengths = all(fields, "content-length");
    let codings = all(fields, "transfer-encoding");
    match (lengths.as_slice(), codings.as_slice()) {
        ([], []) => Ok(None),
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => Ok(Some(BodyEnd::Chunked)),
        ([length], []) if !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit()) => length
            .parse()
            .map(|length| Some(BodyEnd::Length(length)))
            .map_err(|error| format!("{length:?}: {error}")),
        _ => Err(format!("ambiguous length: content-length {lengths:?}, transfer-encoding {codings:?}")),
    }
}

/// Position just behind the first occurrence of `needle`.
#[must_use]
pub fn end_of(needle: &[u8], bytes: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle).map(|start| start + needle.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strict_reader_refuses_what_no_sender_may_send() {
        for bad in [
            "GET / HTTP/1.1\r\nA: 1\nB: 2\r\n\r\n",
            "GET / HTTP/1.1\r\n A: 1\r\n\r\n",
            "GET / HTTP/1.1\r\n: 1\r\n\r\n",
        ] {
            assert!(parse_head(bad.as_bytes()).is_err(), "{bad:?}");
        }
        let head = parse_head(b"GET / HTTP/1.1\r\nHost:  a \r\n\r\n").expect("legal");
        assert_eq!(head.fields, vec![("Host".to_owned(), "a".to_owned())]);
    }

    #[test]
    fn two_lengths_are_ambiguous() {
        let field = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert!(
            request_body_end(&[field("Content-Length", "1"), field("Transfer-Encoding", "chunked")]).is_err()
        );
        assert!(request_body_end(&[field("Content-Length", "1"), field("content-length", "1")]).is_err());
        assert_eq!(request_body_end(&[]), Ok(BodyEnd::Length(0)));
    }
}
