//! Host and port: what parses is free of ambiguity and equal to itself in every spelling.
//! Input: one authority, or two with LF between them.

#![no_main]

use http_wire::authority::{Host, equal_ignoring_default_port, host_without_port, parse};
use http_wire::head::Scheme;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |&b| b == b'\n');
    let (first, second) = (parts.next().unwrap_or(&[]), parts.next().unwrap_or(&[]));
    let matching = host_without_port(first);
    assert!(first.starts_with(matching));
    for scheme in [Scheme::Http, Scheme::Https] {
        let is_equal = equal_ignoring_default_port(first, second, scheme);
        assert_eq!(is_equal, equal_ignoring_default_port(second, first, scheme));
        assert!(!is_equal || parse(first).is_ok() && parse(second).is_ok());
    }
    let Ok(authority) = parse(first) else {
        return;
    };
    assert!(first.iter().all(|b| b.is_ascii_graphic() && !b"@/\\?#,%\"<>{}|^`".contains(b)));
    let host = match authority.host {
        Host::Name(name) => {
            assert!(first.starts_with(name) && !name.contains(&b':'));
            String::from_utf8(name.to_vec()).expect("ASCII")
        }
        Host::V4(ip) => ip.to_string(),
        Host::V6(ip) => format!("[{ip}]"),
    };
    let port = authority.port.map_or(String::new(), |port| format!(":{port}"));
    let spoken = format!("{host}{port}");
    assert!(equal_ignoring_default_port(first, spoken.as_bytes(), Scheme::Http));
    assert!(equal_ignoring_default_port(first, &first.to_ascii_uppercase(), Scheme::Https));
    assert_eq!(parse(matching).map(|a| a.port), Ok(None));
    assert!(equal_ignoring_default_port(matching, host.as_bytes(), Scheme::Http));
});
