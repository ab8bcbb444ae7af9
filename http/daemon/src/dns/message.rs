//! DNS messages, sans-IO: names that may be asked for, the query, and what a reply to it says.
//!
//! Invariants: a reply counts only when its id, its QR bit and its question are those of the query; a chain of
//! CNAMEs is followed inside one message, at most [`CNAMES_MAX`] long; addresses that nobody can connect to are
//! left out. Called by `client`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use domain::base::iana::{Class, Opcode, Rcode};
use domain::base::message::RecordSection;
use domain::base::wire::ParseError;
use domain::base::{Message, MessageBuilder, Name, ParsedName, Rtype, ToName as _, Ttl};
use domain::rdata::{A, Aaaa, Cname};

/// CNAMEs in one answer; public resolvers stop at 11 to 16.
const CNAMES_MAX: usize = 16;

/// Bytes of a name as text, without the last dot: 255 on the wire (RFC 1035 §2.3.4).
const NAME_BYTES_MAX: usize = 253;

/// Bytes between two dots (RFC 1035 §2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// The kind of address that a question asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    fn record_type(self) -> Rtype {
        match self {
            Self::V4 => Rtype::A,
            Self::V6 => Rtype::AAAA,
        }
    }
}

type OwnedName = Name<Vec<u8>>;

/// A name that fits into a query.
#[derive(Clone, Debug)]
pub(super) struct QueryName(OwnedName);

/// Why a name cannot be asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NameError {
    Empty,
    /// More than 253 bytes.
    TooLong(usize),
    /// No byte, or more than 63, between two dots.
    Label(usize),
    Character(char),
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the name is empty"),
            Self::TooLong(bytes) => {
                write!(f, "the name has {bytes} bytes, at most {NAME_BYTES_MAX} are possible")
            }
            Self::Label(bytes) => write!(f, "a label has {bytes} bytes, 1 to {LABEL_BYTES_MAX} are possible"),
            Self::Character(character) => write!(
                f,
                "{character:?} cannot be in a name: letters, digits, '-', '_' and '.' can (write IDNs as xn--...)"
            ),
        }
    }
}

impl std::error::Error for NameError {}

impl QueryName {
    /// Checks what RFC 1035 §2.3.4 bounds and takes the letters of host names, and `_`.
    pub(super) fn parse(text: &str) -> Result<Self, NameError> {
        let text = text.strip_suffix('.').unwrap_or(text);
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        if let Some(bad) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.'))
        {
            return Err(NameError::Character(bad));
        }
        if let Some(bad) = text.split('.').find(|label| !(1..=LABEL_BYTES_MAX).contains(&label.len())) {
            return Err(NameError::Label(bad.len()));
        }
        Name::from_chars(text.chars()).map(Self).or(Err(NameError::TooLong(text.len())))
    }
}

/// What a server says about one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Sorted, without doubles, never empty. `ttl` is the smallest of the chain, as sent.
    Addresses { addresses: Vec<IpAddr>, ttl: Duration },
    /// The name exists and has no (usable) address of this family.
    NoAddress,
    /// NXDOMAIN.
    NoName,
}

/// Why a look-up gave no address.
#[derive(Debug)]
pub(crate) enum LookupError {
    Name(NameError),
    /// The server says that the name does not exist.
    NoName,
    /// The name has neither an A nor an AAAA record that can be used.
    NoAddress,
    /// `ignored` replies came that did not belong to the query: a late one, or somebody guesses.
    Timeout {
        server: SocketAddr,
        ignored: u32,
    },
    /// SERVFAIL, REFUSED, …
    Code {
        server: SocketAddr,
        code: Rcode,
    },
    Malformed {
        server: SocketAddr,
        error: ParseError,
    },
    /// The reply over TCP was to another question, or truncated once more.
    Unusable {
        server: SocketAddr,
    },
    /// CNAMEs that go round, or too many.
    CnameChain {
        server: SocketAddr,
    },
    Network {
        server: SocketAddr,
        error: std::io::Error,
    },
    /// The resolver ends.
    Stopped,
}

impl fmt::Display for LookupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(error) => write!(f, "{error}"),
            Self::NoName => f.write_str("the name does not exist (NXDOMAIN)"),
            Self::NoAddress => f.write_str("the name has no address that can be used"),
            Self::Timeout { server, ignored: 0 } => write!(f, "no reply from {server}"),
            Self::Timeout { server, ignored } => {
                write!(f, "no reply from {server}, but {ignored} that did not belong to the query")
            }
            Self::Code { server, code } => write!(f, "{server} says {code}"),
            Self::Malformed { server, error } => write!(f, "the reply of {server} is malformed: {error}"),
            Self::Unusable { server } => {
                write!(f, "the reply of {server} over TCP is truncated or a stray one")
            }
            Self::CnameChain { server } => {
                write!(f, "{server} answers with more than {CNAMES_MAX} CNAMEs, or a loop")
            }
            Self::Network { server, error } => write!(f, "{server}: {error}"),
            Self::Stopped => f.write_str("the resolver was stopped"),
        }
    }
}

impl std::error::Error for LookupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Name(error) => Some(error),
            Self::Malformed { error, .. } => Some(error),
            Self::Network { error, .. } => Some(error),
            Self::NoName
            | Self::NoAddress
            | Self::Timeout { .. }
            | Self::Code { .. }
            | Self::Unusable { .. }
            | Self::CnameChain { .. }
            | Self::Stopped => None,
        }
    }
}

/// What a datagram is to a question.
#[derive(Debug)]
pub(super) enum Reply {
    /// Not the reply: to be ignored.
    Foreign,
    /// To be asked again over TCP (RFC 7766 §5).
    Truncated,
    Answer(Result<Answer, LookupError>),
}

/// The query, recursion desired. No EDNS: 512 bytes hold some 28 addresses, and TCP the rest.
pub(super) fn query(name: &QueryName, family: Family, id: u16) -> Vec<u8> {
    let mut message = MessageBuilder::new_vec();
    message.header_mut().set_id(id);
    message.header_mut().set_rd(true);
    let mut message = message.question();
    message.push((&name.0, family.record_type())).expect("one question fits into an empty message");
    message.finish()
}

/// Reads what `server` sent after a [`query`].
pub(super) fn read(bytes: &[u8], name: &QueryName, family: Family, id: u16, server: SocketAddr) -> Reply {
    let Ok(message) = Message::from_octets(bytes) else { return Reply::Foreign };
    let header = message.header();
    if header.id() != id || !header.qr() || header.opcode() != Opcode::QUERY {
        return Reply::Foreign;
    }
    // RFC 5452 §9.1: the question has to be ours; names compare without case (RFC 4343).
    let ours = message.sole_question().is_ok_and(|question| {
        question.qtype() == family.record_type()
            && question.qclass() == Class::IN
            && *question.qname() == name.0
    });
    if !ours {
        return Reply::Foreign;
    }
    if header.tc() {
        return Reply::Truncated;
    }
    Reply::Answer(match header.rcode() {
        // RFC 2308 §2.1: the code is about the last name of the chain.
        Rcode::NXDOMAIN => Ok(Answer::NoName),
        Rcode::NOERROR => answer(&message, name, family, server),
        code => Err(LookupError::Code { server, code }),
    })
}

fn answer(
    message: &Message<&[u8]>,
    name: &QueryName,
    family: Family,
    server: SocketAddr,
) -> Result<Answer, LookupError> {
    let malformed = |error| LookupError::Malformed { server, error };
    let records = message.answer().map_err(malformed)?;
    let (owner, mut ttl) =
        end_of_chain(records, &name.0).map_err(malformed)?.ok_or(LookupError::CnameChain { server })?;
    let mut addresses = Vec::new();
    match family {
        Family::V4 => {
            for record in records.limit_to_in::<A>() {
                let record = record.map_err(malformed)?;
                if *record.owner() == owner {
                    addresses.push(IpAddr::V4(record.data().addr()));
                    ttl = ttl.min(duration(record.ttl()));
                }
            }
        }
        Family::V6 => {
            for record in records.limit_to_in::<Aaaa>() {
                let record = record.map_err(malformed)?;
                if *record.owner() == owner {
                    addresses.push(IpAddr::V6(record.data().addr()));
                    ttl = ttl.min(duration(record.ttl()));
                }
            }
        }
    }
    addresses.retain(usable);
    // Servers rotate their answers; in order, the same set looks the same.
    addresses.sort_unstable();
    addresses.dedup();
    Ok(if addresses.is_empty() { Answer::NoAddress } else { Answer::Addresses { addresses, ttl } })
}

/// The last name of the CNAMEs that begin with `name` and the smallest TTL on the way; None when there is no end.
fn end_of_chain(
    records: RecordSection<'_, &[u8]>,
    name: &OwnedName,
) -> Result<Option<(OwnedName, Duration)>, ParseError> {
    let mut owner = name.clone();
    let mut ttl = Duration::MAX;
    for _ in 0..=CNAMES_MAX {
        let mut next = None;
        for record in records.limit_to_in::<Cname<ParsedName<_>>>() {
            let record = record?;
            if *record.owner() == owner {
                ttl = ttl.min(duration(record.ttl()));
                next = Some(record.data().cname().to_name::<Vec<u8>>());
                break;
            }
        }
        let Some(next) = next else { return Ok(Some((owner, ttl))) };
        owner = next;
    }
    Ok(None)
}

/// RFC 2181 §8: a TTL with the highest bit set is none.
fn duration(ttl: Ttl) -> Duration {
    match ttl.as_secs() {
        seconds if seconds > i32::MAX.unsigned_abs() => Duration::ZERO,
        seconds => Duration::from_secs(u64::from(seconds)),
    }
}

/// A backend is one host: `0.0.0.0` would even be this one.
fn usable(address: &IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || broadcast)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    const ID: u16 = 0x1234;

    fn server() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 53))
    }

    fn name(text: &str) -> QueryName {
        QueryName::parse(text).expect("a good name")
    }

    fn dns(text: &str) -> Name<Vec<u8>> {
        name(text).0
    }

    /// A reply to the A question for `db.test`, changed by `header`, with CNAMEs and addresses.
    fn reply(
        question: (&str, Rtype),
        header: impl FnOnce(&mut domain::base::Header),
        cnames: &[(&str, &str, u32)],
        addresses: &[(&str, [u8; 4], u32)],
    ) -> Vec<u8> {
        let mut message = MessageBuilder::new_vec();
        message.header_mut().set_id(ID);
        message.header_mut().set_qr(true);
        header(message.header_mut());
        let mut message = message.question();
        message.push((dns(question.0), question.1)).unwrap();
        let mut message = message.answer();
        for (owner, target, ttl) in cnames {
            message.push((dns(owner), Ttl::from_secs(*ttl), Cname::new(dns(target)))).unwrap();
        }
        for (owner, address, ttl) in addresses {
            message.push((dns(owner), Ttl::from_secs(*ttl), A::new(Ipv4Addr::from(*address)))).unwrap();
        }
        message.finish()
    }

    fn read_v4(bytes: &[u8]) -> Reply {
        read(bytes, &name("db.test"), Family::V4, ID, server())
    }

    #[test]
    fn names_have_the_bounds_of_rfc_1035() {
        for good in
            ["a", "db.test", "db.test.", "_grpc._tcp.DB-1.test", &"a".repeat(63), &["abc"; 63].join(".")]
        {
            assert!(QueryName::parse(good).is_ok(), "{good}");
        }
        for (bad, error) in [
            ("", NameError::Empty),
            (".", NameError::Empty),
            ("a..b", NameError::Label(0)),
            (".a", NameError::Label(0)),
            (&format!("{}.test", "a".repeat(70)), NameError::Label(70)),
            (&["abc"; 64].join("."), NameError::TooLong(255)),
            ("a b", NameError::Character(' ')),
            ("a\\.b", NameError::Character('\\')),
            ("bücher.test", NameError::Character('ü')),
            ("a\0b", NameError::Character('\0')),
        ] {
            assert_eq!(QueryName::parse(bad).err(), Some(error), "{bad:?}");
        }
    }

    #[test]
    fn a_reply_to_anything_else_is_ignored() {
        let a = [("db.test", [10, 0, 0, 1], 60)];
        let q = ("db.test", Rtype::A);
        assert!(matches!(read_v4(&reply(q, |_| (), &[], &a)), Reply::Answer(Ok(Answer::Addresses { .. }))));
        for (what, bytes) in [
            ("wrong id", reply(q, |h| h.set_id(ID ^ 1), &[], &a)),
            ("a query", reply(q, |h| h.set_qr(false), &[], &a)),
            ("another opcode", reply(q, |h| h.set_opcode(Opcode::STATUS), &[], &a)),
            ("another name", reply(("db2.test", Rtype::A), |_| (), &[], &a)),
            ("another type", reply(("db.test", Rtype::AAAA), |_| (), &[], &a)),
            ("cut", reply(q, |_| (), &[], &a)[..11].to_vec()),
            ("question cut", reply(q, |_| (), &[], &a)[..20].to_vec()),
        ] {
            assert!(matches!(read_v4(&bytes), Reply::Foreign), "{what}");
        }
        let mut class = reply(q, |_| (), &[], &a);
        class[24] = 3;
        assert!(matches!(read_v4(&class), Reply::Foreign), "class CH");
        let mut none = reply(q, |_| (), &[], &a);
        none[5] = 0;
        assert!(matches!(read_v4(&none), Reply::Foreign), "no question");
    }

    #[test]
    fn letters_compare_without_case() {
        let bytes = reply(("dB.TeSt", Rtype::A), |_| (), &[], &[("DB.tesT", [10, 0, 0, 1], 60)]);
        assert!(matches!(read_v4(&bytes), Reply::Answer(Ok(Answer::Addresses { .. }))));
    }

    #[test]
    fn chains_end_at_addresses_or_are_errors() {
        let q = ("db.test", Rtype::A);
        let address = |owner| [(owner, [10, 0, 0, 1], 60)];
        let found = |ttl| Answer::Addresses {
            addresses: vec![IpAddr::from([10, 0, 0, 1])],
            ttl: Duration::from_secs(ttl),
        };
        // Order does not matter, the smallest TTL counts.
        let chain = [("b.test", "c.test", 90), ("db.test", "b.test", 7)];
        let Reply::Answer(Ok(answer)) = read_v4(&reply(q, |_| (), &chain, &address("C.test"))) else {
            panic!()
        };
        assert_eq!(answer, found(7));
        // Addresses of names that are not on the way are nobody's.
        let Reply::Answer(Ok(answer)) = read_v4(&reply(q, |_| (), &chain, &address("db.test"))) else {
            panic!()
        };
        assert_eq!(answer, Answer::NoAddress);
        for (what, cnames) in [
            ("itself", vec![("db.test".to_owned(), "db.test".to_owned())]),
            (
                "two",
                vec![
                    ("db.test".to_owned(), "b.test".to_owned()),
                    ("b.test".to_owned(), "db.test".to_owned()),
                ],
            ),
            (
                "too long",
                std::iter::once(("db.test".to_owned(), "n0.test".to_owned()))
                    .chain((0..16).map(|i| (format!("n{i}.test"), format!("n{}.test", i + 1))))
                    .collect(),
            ),
        ] {
            let cnames: Vec<_> = cnames.iter().map(|(from, to)| (from.as_str(), to.as_str(), 60)).collect();
            let reply = read_v4(&reply(q, |_| (), &cnames, &address("n16.test")));
            assert!(matches!(reply, Reply::Answer(Err(LookupError::CnameChain { .. }))), "{what}: {reply:?}");
        }
    }

    #[test]
    fn codes_and_truncation_are_told_apart() {
        let q = ("db.test", Rtype::A);
        assert!(matches!(read_v4(&reply(q, |h| h.set_tc(true), &[], &[])), Reply::Truncated));
        assert!(matches!(read_v4(&reply(q, |_| (), &[], &[])), Reply::Answer(Ok(Answer::NoAddress))));
        let said = |code| read_v4(&reply(q, |h| h.set_rcode(code), &[], &[]));
        assert!(matches!(said(Rcode::NXDOMAIN), Reply::Answer(Ok(Answer::NoName))));
        for code in [Rcode::SERVFAIL, Rcode::REFUSED, Rcode::FORMERR, Rcode::NOTIMP] {
            assert!(matches!(said(code), Reply::Answer(Err(LookupError::Code { code: c, .. })) if c == code));
        }
    }

    #[test]
    fn addresses_are_a_set_without_those_that_are_no_host() {
        let owner = "db.test";
        let list = [[10, 0, 0, 2], [0, 0, 0, 0], [10, 0, 0, 1], [224, 0, 0, 1], [255; 4], [10, 0, 0, 2]];
        let list: Vec<_> = list.iter().map(|address| (owner, *address, 60)).collect();
        let Reply::Answer(Ok(answer)) = read_v4(&reply((owner, Rtype::A), |_| (), &[], &list)) else {
            panic!()
        };
        let addresses = vec![IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2])];
        assert_eq!(answer, Answer::Addresses { addresses, ttl: Duration::from_secs(60) });
        // RFC 2181 §8.
        let huge = reply((owner, Rtype::A), |_| (), &[], &[(owner, [10, 0, 0, 1], 0x8000_0001)]);
        assert!(matches!(read_v4(&huge), Reply::Answer(Ok(Answer::Addresses { ttl: Duration::ZERO, .. }))));
    }

    #[test]
    fn a_v6_question_takes_v6_addresses() {
        let mut message = MessageBuilder::new_vec();
        message.header_mut().set_id(ID);
        message.header_mut().set_qr(true);
        let mut message = message.question();
        message.push((dns("db.test"), Rtype::AAAA)).unwrap();
        let mut message = message.answer();
        message.push((dns("db.test"), 60, A::new(Ipv4Addr::LOCALHOST))).unwrap();
        message.push((dns("db.test"), 60, Aaaa::new(Ipv6Addr::LOCALHOST))).unwrap();
        let reply = read(&message.finish(), &name("db.test"), Family::V6, ID, server());
        let Reply::Answer(Ok(Answer::Addresses { addresses, .. })) = reply else { panic!("{reply:?}") };
        assert_eq!(addresses, [IpAddr::V6(Ipv6Addr::LOCALHOST)]);
    }

    #[test]
    fn the_query_is_one_question_with_recursion() {
        let bytes = query(&name("db.test"), Family::V6, ID);
        assert_eq!(
            bytes,
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x02db\x04test\x00\x00\x1c\x00\x01"
        );
    }

    /// Every byte of a reply replaced and every length of it: no panic, and never an address that was not there.
    #[test]
    fn damaged_replies_do_no_harm() {
        let chain = [("db.test", "b.test", 7), ("b.test", "c.test", 90)];
        let good = reply(("db.test", Rtype::A), |_| (), &chain, &[("c.test", [10, 0, 0, 1], 60)]);
        for at in 0..good.len() {
            let mut bytes = good.clone();
            for value in 0..=255 {
                bytes[at] = value;
                if let Reply::Answer(Ok(Answer::Addresses { addresses, .. })) = read_v4(&bytes) {
                    assert_eq!(addresses.len(), 1, "byte {at} = {value}");
                }
            }
            assert!(
                !matches!(read_v4(&good[..at]), Reply::Answer(Ok(Answer::Addresses { .. }))),
                "cut at {at}"
            );
        }
    }
}
