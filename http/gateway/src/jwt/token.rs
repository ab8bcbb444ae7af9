//! A token as it is written: JWS compact serialisation (RFC 7515 §3.1, §7.1) and its protected header.
//!
//! Nothing here believes the token: the header says under which name the key is to be looked up, and that is all. Keys
//! and addresses of keys that a token brings along (`jwk`, `jku`, `x5c`, `x5u`) are not looked at (RFC 8725 §3.10).

use tls::SignatureScheme;

use super::TokenFault;
use super::base64url;
use super::json::Object;
use super::key::scheme;

/// Bytes of a token.
pub const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// A token whose parts are well formed.
pub(super) struct Compact<'a> {
    /// What was signed: header and payload as they were sent (RFC 7515 §5.2, step 8).
    pub(super) signed: &'a [u8],
    pub(super) header: Header,
    pub(super) payload: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

pub(super) struct Header {
    /// None: one that no key takes.
    pub(super) scheme: Option<SignatureScheme>,
    pub(super) key_id: Option<String>,
    kind: Option<String>,
}

/// Takes a token apart (RFC 7515 §5.2, steps 1 to 7).
pub(super) fn parse(token: &[u8]) -> Result<Compact<'_>, TokenFault> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(TokenFault::Malformed);
    }
    let mut parts = token.split(|byte| *byte == b'.');
    let (Some(header), Some(payload), Some(signature), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(TokenFault::Malformed);
    };
    let signed = token.get(..header.len() + 1 + payload.len()).ok_or(TokenFault::Malformed)?;
    let part =
        |text: &[u8]| base64url::decode(text).filter(|bytes| !bytes.is_empty()).ok_or(TokenFault::Malformed);
    let header = Header::read(&part(header)?).ok_or(TokenFault::Malformed)?;
    Ok(Compact { signed, header, payload: part(payload)?, signature: part(signature)? })
}

impl Header {
    fn read(text: &[u8]) -> Option<Self> {
        let header = Object::parse(text)?;
        // RFC 7515 §4.1.11: an extension that must be understood is not; RFC 7797 §3: `b64` would change what was signed.
        if header.get("crit").is_some() || header.get("b64").is_some() {
            return None;
        }
        Some(Self {
            // RFC 7515 §4.1.1: it must be there, and its case counts.
            scheme: scheme(header.text("alg")??),
            key_id: header.text("kid")?.map(str::to_owned),
            kind: header.text("typ")?.map(str::to_owned),
        })
    }

    /// Whether `typ` is a media type, whose `application/` may be left out (RFC 7515 §4.1.9, RFC 9068 §4).
    pub(super) fn is_of_type(&self, wanted: &str) -> bool {
        let short = |name: &str| {
            let name = name.to_ascii_lowercase();
            name.strip_prefix("application/").map_or(name.clone(), str::to_owned)
        };
        self.kind.as_deref().is_some_and(|kind| short(kind) == short(wanted))
    }
}
