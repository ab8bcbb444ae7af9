//! A first look at the ClientHello, before rustls gets it.
//!
//! rustls takes its configuration before it reads the name the client asks for, and its unbuffered API (which
//! saves 4 KiB an idle connection) never tells the name. So the session reads just that much here: the server name
//! picks the client-auth policy, and the key shares tell whether offering the hybrid group would cost a round trip.
//! Nothing is decided about validity: whatever cannot be read goes to rustls, which answers with the right alert.
//! Called by the session, and by listeners that pass TLS on, with hostile bytes, once per connection.

use rustls::pki_types::ServerName;

/// What the first bytes of a connection say to somebody who passes TLS on without ending it.
#[derive(Debug, PartialEq, Eq)]
pub enum FirstBytes {
    /// Not before this many bytes in total is there more to see.
    Incomplete { bytes_needed: usize },
    /// A ClientHello; the name is lower case without a trailing dot, None for an IP literal or what is no DNS name.
    Hello { server_name: Option<Box<str>> },
    /// No ClientHello, or a broken one.
    NotTls,
}

/// Looks at all bytes that a client has sent so far (RFC 8446 §4.1.2, RFC 6066 §3). Decides nothing about validity
/// beyond what it takes to find the name.
pub fn first_look(bytes: &[u8]) -> FirstBytes {
    match peek(bytes) {
        Peeked::Incomplete { bytes_needed } => FirstBytes::Incomplete { bytes_needed },
        Peeked::Hello(hello) => FirstBytes::Hello { server_name: hello.server_name },
        Peeked::Unreadable => FirstBytes::NotTls,
    }
}

/// What the first bytes of a connection are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Peeked {
    /// Not before this many bytes in total is there more to see.
    Incomplete {
        bytes_needed: usize,
    },
    Hello(Hello),
    /// No ClientHello, or a broken one: rustls shall say what is wrong.
    Unreadable,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Lower case, no trailing dot; None for an IP literal or what is no DNS name.
    pub(crate) server_name: Option<Box<str>>,
    /// The client knows X25519MLKEM768 but has sent a share for another group only.
    pub(crate) hybrid_costs_retry: bool,
}

const CONTENT_HANDSHAKE: u8 = 22;
const RECORD_HEADER_BYTES: usize = 5;
/// RFC 8446 §5.1: 2^14 bytes of plaintext.
const RECORD_BYTES_MAX: usize = 16_384;
const HANDSHAKE_CLIENT_HELLO: u8 = 1;
const HANDSHAKE_HEADER_BYTES: usize = 4;
const EXTENSION_SERVER_NAME: u16 = 0;
const EXTENSION_SUPPORTED_GROUPS: u16 = 10;
const EXTENSION_KEY_SHARE: u16 = 51;
/// X25519MLKEM768 (IANA TLS Supported Groups).
const GROUP_HYBRID: u16 = 0x11ec;
/// secp256r1, secp384r1, x25519.
const GROUPS_CLASSIC: [u16; 3] = [0x0017, 0x0018, 0x001d];

/// Looks at all bytes that a client has sent so far.
pub(crate) fn peek(bytes: &[u8]) -> Peeked {
    // A ClientHello may be cut over several records (RFC 8446 §5.1); one record is the rule and is not copied.
    let mut joined = Vec::new();
    let mut at = 0;
    loop {
        let record = match next_record(bytes, at) {
            Ok(record) => record,
            Err(end) => return end,
        };
        at += RECORD_HEADER_BYTES + record.len();
        let message = if joined.is_empty() {
            record
        } else {
            joined.extend_from_slice(record);
            joined.as_slice()
        };
        match whole_message(message) {
            Ok(Some(body)) => return read_hello(body).map_or(Peeked::Unreadable, Peeked::Hello),
            Ok(None) => {}
            Err(NotHello) => return Peeked::Unreadable,
        }
        if joined.is_empty() {
            joined.extend_from_slice(record);
        }
    }
}

/// The payload of the record at `at`, or why there is none.
fn next_record(bytes: &[u8], at: usize) -> Result<&[u8], Peeked> {
    let rest = bytes.get(at..).unwrap_or(&[]);
    if rest.first().is_some_and(|&t| t != CONTENT_HANDSHAKE) || rest.get(1).is_some_and(|&major| major != 3) {
        return Err(Peeked::Unreadable);
    }
    let Some((header, payload)) = rest.split_first_chunk::<RECORD_HEADER_BYTES>() else {
        return Err(Peeked::Incomplete { bytes_needed: at + RECORD_HEADER_BYTES });
    };
    let [_, _, _, high, low] = *header;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if length == 0 || length > RECORD_BYTES_MAX {
        return Err(Peeked::Unreadable);
    }
    payload.get(..length).ok_or(Peeked::Incomplete { bytes_needed: at + RECORD_HEADER_BYTES + length })
}

struct NotHello;

/// The body of the ClientHello, once all of it is there.
fn whole_message(message: &[u8]) -> Result<Option<&[u8]>, NotHello> {
    if message.first().is_some_and(|&t| t != HANDSHAKE_CLIENT_HELLO) {
        return Err(NotHello);
    }
    let Some((header, body)) = message.split_first_chunk::<HANDSHAKE_HEADER_BYTES>() else { return Ok(None) };
    let [_, high, middle, low] = *header;
    let length = u32::from_be_bytes([0, high, middle, low]);
    Ok(usize::try_from(length).ok().and_then(|length| body.get(..length)))
}

/// RFC 8446 §4.1.2.
fn read_hello(body: &[u8]) -> Option<Hello> {
    let mut reader = Reader(body);
    reader.take(2 + 32)?;
    reader.vector_u8()?;
    reader.vector_u16()?;
    reader.vector_u8()?;
    let mut hello = Hello::default();
    if reader.0.is_empty() {
        return Some(hello);
    }
    let (mut knows_hybrid, mut shares) = (false, Shares::default());
    let mut extensions = Reader(reader.vector_u16()?);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let payload = Reader(extensions.vector_u16()?);
        match kind {
            EXTENSION_SERVER_NAME => hello.server_name = read_server_name(payload)?,
            EXTENSION_SUPPORTED_GROUPS => knows_hybrid = lists_hybrid(payload)?,
            EXTENSION_KEY_SHARE => shares = read_shares(payload)?,
            _ => {}
        }
    }
    hello.hybrid_costs_retry = knows_hybrid && !shares.hybrid && shares.classic;
    Some(hello)
}

/// RFC 6066 §3. The outer None means broken, the inner one: no name that counts.
#[expect(
    clippy::option_option,
    reason = "broken and absent are two answers, and both are local to this file"
)]
fn read_server_name(mut payload: Reader<'_>) -> Option<Option<Box<str>>> {
    let mut list = Reader(payload.vector_u16()?);
    let [kind] = *list.take(1)? else { return None };
    if kind != 0 {
        return Some(None);
    }
    let name = list.vector_u16()?;
    // The same check that rustls makes, so that both see the same name.
    let Ok(ServerName::DnsName(name)) = ServerName::try_from(name) else { return Some(None) };
    let name = name.as_ref();
    Some(Some(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase().into()))
}

fn lists_hybrid(mut payload: Reader<'_>) -> Option<bool> {
    let groups = payload.vector_u16()?;
    Some(groups.chunks_exact(2).any(|g| g == GROUP_HYBRID.to_be_bytes()))
}

#[derive(Default)]
struct Shares {
    hybrid: bool,
    classic: bool,
}

fn read_shares(mut payload: Reader<'_>) -> Option<Shares> {
    let mut list = Reader(payload.vector_u16()?);
    let mut shares = Shares::default();
    while !list.0.is_empty() {
        let group = list.u16()?;
        list.vector_u16()?;
        shares.hybrid |= group == GROUP_HYBRID;
        shares.classic |= GROUPS_CLASSIC.contains(&group);
    }
    Some(shares)
}

/// Takes from the front; None when there is not enough.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        let (number, rest) = self.0.split_first_chunk::<2>()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*number))
    }

    fn vector_u8(&mut self) -> Option<&'a [u8]> {
        let (&len, rest) = self.0.split_first()?;
        self.0 = rest;
        self.take(usize::from(len))
    }

    fn vector_u16(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(usize::from(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extension(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut out = kind.to_be_bytes().to_vec();
        out.extend(sized(payload));
        out
    }

    fn sized(bytes: &[u8]) -> Vec<u8> {
        let mut out = u16::try_from(bytes.len()).expect("short").to_be_bytes().to_vec();
        out.extend_from_slice(bytes);
        out
    }

    fn name_extension(name: &[u8]) -> Vec<u8> {
        let mut entry = vec![0];
        entry.extend(sized(name));
        extension(EXTENSION_SERVER_NAME, &sized(&entry))
    }

    fn message(extensions: &[u8]) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.push(0);
        body.extend(sized(&[0x13, 0x01]));
        body.extend([1, 0]);
        body.extend(sized(extensions));
        let length = u32::try_from(body.len()).expect("short").to_be_bytes();
        let mut out = vec![HANDSHAKE_CLIENT_HELLO];
        out.extend_from_slice(&length[1..]);
        out.extend(body);
        out
    }

    fn records(message: &[u8], size: usize) -> Vec<u8> {
        message.chunks(size).flat_map(|c| [&[22, 3, 1][..], &sized(c)].concat()).collect()
    }

    #[test]
    fn names_are_read_whatever_the_record_size() {
        let name = |n: &[u8]| name_extension(n);
        for (extensions, expected) in [
            (name(b"a.com"), Some("a.com")),
            (name(b"A.CoM."), Some("a.com")),
            (name(b"192.0.2.1"), None),
            (name(b"*.a.com"), None),
            (name("ä.com".as_bytes()), None),
            (name(&[b'a'; 255]), None),
            (name(b""), None),
            (Vec::new(), None),
            ([extension(0x0a0a, &[]), name(b"x.y")].concat(), Some("x.y")),
        ] {
            let whole = message(&extensions);
            for size in [1, 3, 4, 5, 50, 16_384] {
                let bytes = records(&whole, size);
                let Peeked::Hello(hello) = peek(&bytes) else { panic!("unread: {extensions:?} in {size}") };
                assert_eq!(hello.server_name.as_deref(), expected);
            }
        }
    }

    #[test]
    fn every_prefix_asks_for_more_and_never_more_than_there_is() {
        let whole = message(&name_extension(b"a.com"));
        for size in [1, 7, 16_384] {
            let bytes = records(&whole, size);
            for at in 0..bytes.len() {
                let Peeked::Incomplete { bytes_needed } = peek(&bytes[..at]) else { panic!("done at {at}") };
                assert!(bytes_needed > at && bytes_needed <= bytes.len(), "{at}: {bytes_needed}");
            }
        }
    }

    #[test]
    fn broken_hellos_are_left_to_rustls() {
        let good = records(&message(&name_extension(b"a.com")), 16_384);
        for (at, value) in [(0, 23), (1, 2), (5, 2), (43, 255)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(peek(&bad), Peeked::Unreadable, "byte {at}");
        }
        assert_eq!(peek(b"GET / HTTP/1.1\r\n"), Peeked::Unreadable);
        assert_eq!(peek(&[22, 3, 1, 0xff, 0xff]), Peeked::Unreadable);
        assert_eq!(peek(&[22, 3, 1, 0, 0]), Peeked::Unreadable);
        // Any byte changed: never a panic, whatever the verdict.
        for at in 0..good.len() {
            for flip in [1, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                peek(&bad);
            }
        }
    }

    #[test]
    fn the_hybrid_group_is_left_out_when_it_costs_a_round_trip() {
        let groups = |list: &[u16]| {
            let bytes: Vec<u8> = list.iter().flat_map(|g| g.to_be_bytes()).collect();
            extension(EXTENSION_SUPPORTED_GROUPS, &sized(&bytes))
        };
        let shares = |list: &[u16]| {
            let bytes: Vec<u8> =
                list.iter().flat_map(|g| [&g.to_be_bytes()[..], &sized(&[5; 9])].concat()).collect();
            extension(EXTENSION_KEY_SHARE, &sized(&bytes))
        };
        for (known, sent, costs_retry) in [
            (&[0x11ec, 0x1d][..], &[0x11ec, 0x1d][..], false),
            (&[0x11ec, 0x1d], &[0x1d], true),
            (&[0x11ec, 0x17], &[0x17], true),
            (&[0x1d, 0x17], &[0x1d], false),
            (&[0x11ec], &[], false),
            (&[0x11ec, 0x0100], &[0x0100], false),
        ] {
            let bytes = records(&message(&[groups(known), shares(sent)].concat()), 16_384);
            let Peeked::Hello(hello) = peek(&bytes) else { panic!("unread") };
            assert_eq!(hello.hybrid_costs_retry, costs_retry, "{known:x?} {sent:x?}");
        }
    }
}
