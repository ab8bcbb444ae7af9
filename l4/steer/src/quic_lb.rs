//! Connection ids that name the proxy which made them (draft-ietf-quic-load-balancers-21): the plaintext form and the
//! single-pass encrypted form. The XDP program decodes the same forms; a proxy encodes them.
//!
//! Invariants: what [`Codec::encode`] makes, [`Codec::decode`] reads back; bytes from the network are never indexed
//! past their end. The four-pass form is not supported, because it costs the XDP program four times as much.

use std::fmt;

use aes::Aes128;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

use crate::owner::OwnerId;

/// Codepoints of a configuration; the last one, 7, marks ids that nobody can route (§3.1).
pub const CODEPOINT_MAX: u8 = 6;
/// Bytes of a server id (§3.2).
pub const SERVER_ID_BYTES_MAX: u8 = 15;
/// Bytes of a nonce (§3.2): below that, ids of one server repeat.
pub const NONCE_BYTES_MIN: u8 = 4;
/// Bytes of server id and nonce together, so that the id with its first byte has at most 20 (RFC 9000 §17.2).
pub const BODY_BYTES_MAX: u8 = 19;
/// Bytes of server id and nonce together in the encrypted form: one AES block (§5.4.1).
pub const ENCRYPTED_BODY_BYTES: u8 = 16;

/// The key of the encrypted form.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u8; 16]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// How connection ids of one configuration are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Config rotation bits, 0 to [`CODEPOINT_MAX`].
    pub codepoint: u8,
    pub server_id_bytes: u8,
    pub nonce_bytes: u8,
    /// With a key the encrypted form, else plaintext.
    pub key: Option<Key>,
}

/// Why a layout is none; the text says what to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutError {
    Codepoint,
    ServerIdBytes,
    NonceBytes,
    BodyBytes,
    EncryptedBodyBytes,
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Codepoint => write!(f, "the codepoint is 0 to {CODEPOINT_MAX}"),
            Self::ServerIdBytes => write!(f, "a server id has 1 to {SERVER_ID_BYTES_MAX} bytes"),
            Self::NonceBytes => write!(f, "a nonce has at least {NONCE_BYTES_MIN} bytes"),
            Self::BodyBytes => write!(f, "server id and nonce have at most {BODY_BYTES_MAX} bytes together"),
            Self::EncryptedBodyBytes => write!(
                f,
                "with a key, server id and nonce have {ENCRYPTED_BODY_BYTES} bytes together (single-pass encryption)"
            ),
        }
    }
}

impl std::error::Error for LayoutError {}

impl Layout {
    /// Whether the draft and the XDP program allow this layout.
    ///
    /// # Errors
    /// The first rule that it breaks.
    pub fn check(&self) -> Result<(), LayoutError> {
        let body = self.server_id_bytes.saturating_add(self.nonce_bytes);
        if self.codepoint > CODEPOINT_MAX {
            Err(LayoutError::Codepoint)
        } else if !(1..=SERVER_ID_BYTES_MAX).contains(&self.server_id_bytes) {
            Err(LayoutError::ServerIdBytes)
        } else if self.nonce_bytes < NONCE_BYTES_MIN {
            Err(LayoutError::NonceBytes)
        } else if body > BODY_BYTES_MAX {
            Err(LayoutError::BodyBytes)
        } else if self.key.is_some() && body != ENCRYPTED_BODY_BYTES {
            Err(LayoutError::EncryptedBodyBytes)
        } else {
            Ok(())
        }
    }

    /// The server id of a proxy: its id as a big-endian number of `server_id_bytes` bytes; `None` when it does not
    /// fit.
    #[must_use]
    pub fn server_id(&self, owner: OwnerId) -> Option<ServerId> {
        let [high, low] = owner.get().to_be_bytes();
        let bytes = usize::from(self.server_id_bytes);
        if bytes < 2 && high != 0 {
            return None;
        }
        let mut id = Bytes { all: [0; 20], used: bytes };
        *id.all.get_mut(bytes.checked_sub(1)?)? = low;
        if bytes >= 2 {
            *id.all.get_mut(bytes - 2)? = high;
        }
        Some(ServerId(id))
    }
}

/// Up to 20 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Bytes {
    all: [u8; 20],
    used: usize,
}

impl Bytes {
    fn new(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; 20];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { all, used: bytes.len() })
    }

    fn as_slice(&self) -> &[u8] {
        self.all.get(..self.used).unwrap_or(&[])
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Names a proxy in connection ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ServerId(Bytes);

impl ServerId {
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }

    /// The proxy that [`Layout::server_id`] made it from; `None` for an id that it cannot have made.
    #[must_use]
    pub fn owner(&self) -> Option<OwnerId> {
        let bytes = self.as_slice();
        let (zeros, number) = bytes.split_at_checked(bytes.len().saturating_sub(2))?;
        if zeros.iter().any(|byte| *byte != 0) {
            return None;
        }
        OwnerId::new(number.iter().fold(0, |id, byte| id << 8 | u16::from(*byte)))
    }
}

/// A whole connection id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId(Bytes);

impl ConnectionId {
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Makes and reads connection ids of one layout.
#[derive(Clone)]
pub struct Codec {
    layout: Layout,
    cipher: Option<Aes128>,
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Codec").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Codec {
    /// A codec for a layout.
    ///
    /// # Errors
    /// As [`Layout::check`].
    pub fn new(layout: Layout) -> Result<Self, LayoutError> {
        layout.check()?;
        let cipher = layout.key.map(|key| Aes128::new(&Array::from(key.0)));
        Ok(Self { layout, cipher })
    }

    /// The connection id of a server id and a nonce, which the caller never uses twice; `None` when their lengths are
    /// not the layout's. The length is encoded in the first byte (§3.3).
    #[must_use]
    pub fn encode(&self, server_id: &ServerId, nonce: &[u8]) -> Option<ConnectionId> {
        let Layout { codepoint, server_id_bytes, nonce_bytes, .. } = self.layout;
        if server_id.as_slice().len() != usize::from(server_id_bytes)
            || nonce.len() != usize::from(nonce_bytes)
        {
            return None;
        }
        let mut body = [server_id.as_slice(), nonce].concat();
        if let Some(cipher) = &self.cipher {
            let mut block = Array::from(<[u8; 16]>::try_from(body.as_slice()).ok()?);
            cipher.encrypt_block(&mut block);
            body = block.to_vec();
        }
        let first = (codepoint << 5) | (server_id_bytes + nonce_bytes);
        Bytes::new(&[&[first], body.as_slice()].concat()).map(ConnectionId)
    }

    /// The server id in a connection id, or in the bytes that a short header begins its packet with: what follows the
    /// id is ignored. `None` for one of another configuration, or too short.
    #[must_use]
    pub fn decode(&self, connection_id: &[u8]) -> Option<ServerId> {
        let (first, rest) = connection_id.split_first()?;
        if first >> 5 != self.layout.codepoint {
            return None;
        }
        let body = rest.get(..usize::from(self.layout.server_id_bytes + self.layout.nonce_bytes))?;
        let server_id_bytes = usize::from(self.layout.server_id_bytes);
        let Some(cipher) = &self.cipher else {
            return Bytes::new(body.get(..server_id_bytes)?).map(ServerId);
        };
        let mut block = Array::from(<[u8; 16]>::try_from(body).ok()?);
        cipher.decrypt_block(&mut block);
        Bytes::new(block.get(..server_id_bytes)?).map(ServerId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
        (0..text.len()).step_by(2).map(byte).collect()
    }

    fn codec(codepoint: u8, server_id_bytes: u8, nonce_bytes: u8, key: Option<&str>) -> Codec {
        let key = key.map(|key| Key(hex(key).try_into().expect("16 bytes")));
        Codec::new(Layout { codepoint, server_id_bytes, nonce_bytes, key }).expect("a good layout")
    }

    /// Appendix B of draft 21; the four-pass vectors are left out. The second plaintext vector is printed with
    /// one zero in a wrong place; here it stands where the lengths put it.
    #[test]
    fn vectors_of_the_draft() {
        const KEY: &str = "8f95f09245765f80256934e50c66207f";
        for (codepoint, server_id, nonce, key, connection_id) in [
            (0, "c4605e", "4504cc4f", None, "07c4605e4504cc4f"),
            (1, "350d28b420", "03487d970b", None, "2a350d28b42003487d970b"),
            (2, "ed793a51d49b8f5f", "ee080dbf48c0d1e5", Some(KEY), "504dd2d05a7b0de9b2b9907afb5ecf8cc3"),
        ] {
            let (server_id, nonce) = (hex(server_id), hex(nonce));
            let length = |bytes: &[u8]| u8::try_from(bytes.len()).expect("short");
            let codec = codec(codepoint, length(&server_id), length(&nonce), key);
            let named = ServerId(Bytes::new(&server_id).expect("short"));
            let made = codec.encode(&named, &nonce).expect("the lengths fit");
            assert_eq!(made.as_slice(), hex(connection_id), "{connection_id}");
            assert_eq!(codec.decode(made.as_slice()), Some(named), "{connection_id}");
            let in_packet = [made.as_slice(), &[0xff; 40]].concat();
            assert_eq!(codec.decode(&in_packet), Some(named), "{connection_id}");
        }
    }

    #[test]
    fn every_proxy_is_found_in_its_ids() {
        for codec in [codec(0, 2, 6, None), codec(3, 8, 8, Some("00112233445566778899aabbccddeeff"))] {
            for number in [1, 255, 256, OwnerId::MAX] {
                let owner = OwnerId::new(number).expect("an id");
                let server_id = codec.layout.server_id(owner).expect("it fits");
                let nonce = vec![0x5a; usize::from(codec.layout.nonce_bytes)];
                let id = codec.encode(&server_id, &nonce).expect("the lengths fit");
                assert_eq!(codec.decode(id.as_slice()).and_then(|id| id.owner()), Some(owner));
            }
        }
        let short = Layout { codepoint: 0, server_id_bytes: 1, nonce_bytes: 7, key: None };
        assert_eq!(short.server_id(OwnerId::new(256).expect("an id")), None);
        assert_eq!(
            short.server_id(OwnerId::new(9).expect("an id")).map(|id| id.as_slice().to_vec()),
            Some(vec![9])
        );
    }

    #[test]
    fn strangers_and_short_ids_name_nobody() {
        let plain = codec(0, 3, 4, None);
        for bytes in ["", "07", "07c4605e4504cc", "27c4605e4504cc4f", "e7c4605e4504cc4f"] {
            assert_eq!(plain.decode(&hex(bytes)), None, "{bytes}");
        }
        let server_id = plain.decode(&hex("07c4605e4504cc4f")).expect("well formed");
        assert_eq!(server_id.owner(), None, "no proxy has such an id");
        assert_eq!(plain.encode(&server_id, &[0; 5]), None);
        assert_eq!(codec(0, 4, 4, None).encode(&server_id, &[0; 4]), None);
    }

    #[test]
    fn layouts_outside_the_draft_are_refused() {
        let key = Some(Key([1; 16]));
        for (codepoint, server_id_bytes, nonce_bytes, key, error) in [
            (7, 3, 4, None, LayoutError::Codepoint),
            (0, 0, 4, None, LayoutError::ServerIdBytes),
            (0, 16, 4, None, LayoutError::ServerIdBytes),
            (0, 3, 3, None, LayoutError::NonceBytes),
            (0, 15, 5, None, LayoutError::BodyBytes),
            (0, 3, 4, key, LayoutError::EncryptedBodyBytes),
        ] {
            let layout = Layout { codepoint, server_id_bytes, nonce_bytes, key };
            assert_eq!(Codec::new(layout).err(), Some(error));
            assert!(!error.to_string().is_empty());
        }
        assert_eq!(format!("{:?}", Key([1; 16])), "Key(..)", "keys are not printed");
    }
}
