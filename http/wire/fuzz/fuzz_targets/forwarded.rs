//! Forwarded addresses: bounded, nothing behind a bad hop, and lines are one list.
//! Input: lines, separated by LF.

#![no_main]

use std::net::IpAddr;

use http_wire::forwarded::{HOPS_MAX, Hop, forwarded, x_forwarded_for};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let lines: Vec<&[u8]> = data.split(|&b| b == b'\n').collect();
    let by_xff: Vec<Hop> = x_forwarded_for(lines.iter().copied()).collect();
    let by_forwarded: Vec<Hop> = forwarded(lines.iter().copied()).collect();
    check(&by_xff);
    check(&by_forwarded);

    let filled: Vec<&[u8]> = lines.iter().copied().filter(|line| !line.trim_ascii().is_empty()).collect();
    let joined = filled.join(&b", "[..]);
    assert_eq!(x_forwarded_for([&joined[..]]).collect::<Vec<_>>(), by_xff);
    // An open quote spoils the line it is in, so joining is the same only where quotes play no part.
    if !data.contains(&b'"') {
        assert_eq!(forwarded([&joined[..]]).collect::<Vec<_>>(), by_forwarded);
    }

    // What is found can be said again.
    let spoken = by_xff.iter().rev().map(|hop| match hop {
        Hop::Addr(IpAddr::V4(ip)) => format!("for={ip}"),
        Hop::Addr(IpAddr::V6(ip)) => format!("proto=http;for=\"[{ip}]:80\";by=_a"),
        Hop::Bad => "for=unknown".to_owned(),
    });
    let spoken = spoken.collect::<Vec<_>>().join(" ,");
    assert_eq!(forwarded([spoken.as_bytes()]).collect::<Vec<_>>(), by_xff);
});

fn check(hops: &[Hop]) {
    assert!(hops.len() <= HOPS_MAX + 1);
    for (index, hop) in hops.iter().enumerate() {
        match hop {
            Hop::Addr(ip) => assert_eq!(*ip, ip.to_canonical()),
            Hop::Bad => assert_eq!(index + 1, hops.len(), "a hop behind a bad one"),
        }
    }
}
