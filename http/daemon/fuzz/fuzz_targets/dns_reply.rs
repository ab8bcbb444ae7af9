//! Any bytes as a name, and as the reply of a DNS server: only a reply to the question counts, and its addresses are
//! usable ones of the right family, sorted and without doubles.
//! Input: a choice; then a name, a whole message, or what follows our question in one.

#![no_main]

#[path = "../../src/dns/message.rs"]
#[expect(dead_code, reason = "the daemon uses the rest")]
mod message;

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use message::{Answer, Family, QueryName, Reply, query, read};

const ID: u16 = 0x1234;
/// Bytes of the header (RFC 1035 §4.1.1).
const HEADER_BYTES: usize = 12;

fn server() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 53))
}

fn check_reply(bytes: &[u8], name: &QueryName, family: Family) {
    let reply = read(bytes, name, family, ID, server());
    if !matches!(reply, Reply::Foreign) {
        assert!(matches!(read(bytes, name, family, !ID, server()), Reply::Foreign), "the id counts");
        let other = match family {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        };
        assert!(matches!(read(bytes, name, other, ID, server()), Reply::Foreign), "the question counts");
    }
    match reply {
        Reply::Foreign | Reply::Truncated => {}
        Reply::Answer(Err(error)) => assert!(!error.to_string().is_empty()),
        Reply::Answer(Ok(Answer::Addresses { addresses, .. })) => {
            assert!(!addresses.is_empty() && addresses.is_sorted_by(|a, b| a < b));
            for address in addresses {
                assert_eq!(address.is_ipv4(), family == Family::V4);
                assert!(!address.is_unspecified() && !address.is_multicast());
                assert!(!matches!(address, IpAddr::V4(address) if address.is_broadcast()));
            }
        }
        Reply::Answer(Ok(Answer::NoAddress | Answer::NoName)) => {}
    }
}

/// A name that may be asked for makes a query that a reply to it echoes.
fn check_name(text: &str) {
    let Ok(name) = QueryName::parse(text) else {
        return;
    };
    assert!((1..=254).contains(&text.len()) && text.is_ascii());
    let mut echoed = query(&name, Family::V4, ID);
    echoed[2] |= 0x80;
    assert!(matches!(read(&echoed, &name, Family::V4, ID, server()), Reply::Answer(Ok(Answer::NoAddress))));
    echoed[HEADER_BYTES..].make_ascii_uppercase();
    if text.len() < 60 {
        let reply = read(&echoed, &name, Family::V4, ID, server());
        assert!(matches!(reply, Reply::Answer(Ok(Answer::NoAddress))), "names compare without case");
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&choice, bytes)) = data.split_first() else {
        return;
    };
    let family = if choice & 1 == 0 { Family::V4 } else { Family::V6 };
    let name = QueryName::parse("db.test").expect("a good name");
    match choice >> 1 {
        0 => check_name(&String::from_utf8_lossy(bytes)),
        1 => check_reply(bytes, &name, family),
        _ => {
            // Flags and counts are the fuzzer's, id and question are ours.
            let Some((header, records)) = bytes.split_first_chunk::<8>() else {
                return;
            };
            let mut reply = query(&name, family, ID);
            reply[2..4].copy_from_slice(&header[..2]);
            reply[2] |= 0x80;
            reply[6..HEADER_BYTES].copy_from_slice(&header[2..]);
            reply.extend_from_slice(records);
            check_reply(&reply, &name, family);
        }
    }
});
