//! C47: PROXY protocol v1 and v2 in front of a listener.

use std::time::{Duration, Instant};

use tests::{Config, Origin, Proxy, RawClient, origin};

const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn behind(trusted: &str) -> (Origin, Proxy) {
    let origin = origin::echo();
    let trusted = trusted.to_owned();
    let proxy = Proxy::start(Config::to(origin.address()).listener(|listener| {
        listener.proxy_protocol = Some(vec![trusted]);
        listener.proxy_header_timeout = Some(Duration::from_millis(500));
    }));
    (origin, proxy)
}

/// A v2 header: command byte, family byte, address block and TLVs.
fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("a short header");
    [V2, &[command, family], &length.to_be_bytes(), rest].concat()
}

fn addresses() -> Vec<u8> {
    [&[7, 7, 7, 7][..], &[127, 0, 0, 1], &1234_u16.to_be_bytes(), &80_u16.to_be_bytes()].concat()
}

#[track_caller]
fn client_seen(origin: &Origin) -> String {
    origin.requests().pop().expect("a request").field("x-forwarded-for").unwrap_or_default().to_owned()
}

#[test]
fn c47_valid_headers() {
    let (origin, proxy) = behind("127.0.0.0/8");
    let long = format!("PROXY TCP6 {0} {0} 65535 65535\r\n", "ffff:f:f:f:f:f:f:ffff");
    let tlvs = [addresses(), [0x04, 0x13, 0x88].to_vec(), vec![b'x'; 5_000]].concat();
    let v6 = [[0x20; 16], [0x30; 16]].concat().into_iter().chain([4, 210, 0, 80]).collect::<Vec<u8>>();
    let cases: [(&str, Vec<u8>, &str); 10] = [
        ("v1 TCP4", b"PROXY TCP4 7.7.7.7 127.0.0.1 1234 80\r\n".to_vec(), "7.7.7.7"),
        ("v1 TCP6", b"PROXY TCP6 2001:db8::1 ::1 1234 80\r\n".to_vec(), "2001:db8::1"),
        ("v1 UNKNOWN short", b"PROXY UNKNOWN\r\n".to_vec(), "127.0.0.1"),
        ("v1 UNKNOWN with addresses", b"PROXY UNKNOWN 7.7.7.7 8.8.8.8 1 2\r\n".to_vec(), "127.0.0.1"),
        ("v1 long", long.into_bytes(), "ffff:f:f:f:f:f:f:ffff"),
        ("v2 TCP4", v2(0x21, 0x11, &addresses()), "7.7.7.7"),
        ("v2 TCP6", v2(0x21, 0x21, &v6), "2020:2020:2020:2020:2020:2020:2020:2020"),
        ("v2 LOCAL", v2(0x20, 0x00, b""), "127.0.0.1"),
        ("v2 LOCAL with addresses", v2(0x20, 0x11, &addresses()), "127.0.0.1"),
        ("v2 with 5 kB of TLVs", v2(0x21, 0x11, &tlvs), "7.7.7.7"),
    ];
    for (what, header, client) in cases {
        let mut whole = proxy.connect();
        whole.send([header.as_slice(), GET.as_bytes()].concat());
        assert_eq!(whole.response("GET").status, 200, "{what}");
        assert_eq!(client_seen(&origin), client, "{what}");
        if header.len() < 200 {
            let mut pieces = proxy.connect();
            let bytes: Vec<&[u8]> = header.chunks(1).collect();
            pieces.send_paced(&bytes, Duration::from_micros(500)).send(GET);
            assert_eq!(pieces.response("GET").status, 200, "{what}, one byte at a time");
            assert_eq!(client_seen(&origin), client, "{what}, one byte at a time");
        }
    }
}

#[test]
fn c47_malformed_or_missing_headers_end_the_connection() {
    let (origin, proxy) = behind("127.0.0.0/8");
    let twice = [v2(0x21, 0x11, &addresses()), v2(0x21, 0x11, &addresses())].concat();
    let v1 = |line: &str| format!("{line}\r\n").into_bytes();
    let cases: [(&str, Vec<u8>); 15] = [
        ("no header", Vec::new()),
        ("port 65536", v1("PROXY TCP4 7.7.7.7 127.0.0.1 65536 80")),
        ("port with a leading zero", v1("PROXY TCP4 7.7.7.7 127.0.0.1 01234 80")),
        ("address with leading zeros", v1("PROXY TCP4 007.7.7.7 127.0.0.1 1234 80")),
        ("an address short", v1("PROXY TCP4 7.7.7.7 1234 80")),
        ("v6 address for TCP4", v1("PROXY TCP4 ::1 ::1 1234 80")),
        ("two blanks", v1("PROXY  TCP4 7.7.7.7 127.0.0.1 1234 80")),
        ("lower case", v1("proxy TCP4 7.7.7.7 127.0.0.1 1234 80")),
        ("bare LF", b"PROXY TCP4 7.7.7.7 127.0.0.1 1234 80\n".to_vec()),
        ("over 107 bytes", v1(&format!("PROXY UNKNOWN {}", "x".repeat(120)))),
        ("v2 wrong version", v2(0x31, 0x11, &addresses())),
        ("v2 unknown command", v2(0x2f, 0x11, &addresses())),
        ("v2 shorter than its addresses", v2(0x21, 0x11, &addresses()[..8])),
        ("second header", twice),
        ("v1 then v1", b"PROXY UNKNOWN\r\nPROXY UNKNOWN\r\n".to_vec()),
    ];
    for (what, header) in cases {
        let mut client = proxy.connect();
        drop(client.try_send([header.as_slice(), GET.as_bytes()].concat()));
        let status = client.try_response("GET").map(|response| response.status);
        // A second header is read as HTTP, and refused as such.
        assert!(matches!(status, Err(_) | Ok(400)), "{what}: {status:?}");
        client.expect_close();
        crate::untouched(&origin, what);
    }
}

#[test]
fn c47_a_stranger_is_closed_even_with_a_good_header() {
    let (origin, proxy) = behind("10.0.0.0/8");
    let mut client = proxy.connect();
    drop(client.try_send(format!("PROXY TCP4 7.7.7.7 127.0.0.1 1234 80\r\n{GET}")));
    client.expect_close();
    crate::untouched(&origin, "an untrusted peer");
}

#[test]
fn c47_the_header_has_a_time_limit() {
    let (_origin, proxy) = behind("127.0.0.0/8");
    for bytes in ["", "PROXY TCP4 7.7"] {
        let mut client: RawClient = proxy.connect();
        let start = Instant::now();
        client.send(bytes).expect_close();
        let took = start.elapsed();
        assert!(took > Duration::from_millis(400) && took < Duration::from_secs(3), "{bytes:?}: {took:?}");
    }
}

#[test]
fn c47_the_client_of_the_header_is_the_one_of_the_rules() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()).listener(|listener| {
        listener.proxy_protocol = Some(vec!["127.0.0.0/8".to_owned()]);
        listener.deny = vec!["7.7.7.7".to_owned()];
    }));
    for (address, status) in [("7.7.7.7", 403), ("8.8.8.8", 200)] {
        let mut client = proxy.connect();
        client.send(format!("PROXY TCP4 {address} 127.0.0.1 1234 80\r\n{GET}"));
        match client.try_response("GET") {
            Ok(response) => assert_eq!(response.status, status, "{address}"),
            // A denied client may also be closed without a word.
            Err(error) => assert_eq!(status, 403, "{address}: {error}"),
        }
    }
}
