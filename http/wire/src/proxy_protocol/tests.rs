//! Both versions by family, at every cut (C47).

use super::*;

fn header(source: &str, destination: &str) -> Header {
    Header::Proxied {
        source: source.parse().expect(source),
        destination: destination.parse().expect(destination),
    }
}

fn v2(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
    let length = u16::try_from(block.len()).expect("test blocks are short").to_be_bytes();
    [V2_SIGNATURE, &[command, family][..], &length, block].concat()
}

fn tlv(kind: u8, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).expect("test values are short").to_be_bytes();
    [&[kind][..], &length, value].concat()
}

const V4_BLOCK: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 0x01, 0x00, 0x1f, 0x90];

/// A header is taken whole, with client bytes behind it, and asks for more at every shorter length.
fn accepts(bytes: &[u8], expected: Header) {
    for cut in 0..bytes.len() {
        assert_eq!(parse(&bytes[..cut]), Ok(None), "{cut} of {bytes:?}");
    }
    for behind in [&b""[..], b"GET / HTTP/1.1\r\n", b"PROXY UNKNOWN\r\n", b"\r\n"] {
        let stream = [bytes, behind].concat();
        assert_eq!(parse(&stream), Ok(Some((bytes.len(), expected))), "{bytes:?}");
    }
}

#[test]
fn v1_lines() {
    let cases = [
        ("TCP4 1.2.3.4 5.6.7.8 1 65535", header("1.2.3.4:1", "5.6.7.8:65535")),
        (
            "TCP4 255.255.255.255 255.255.255.255 65535 65535",
            header("255.255.255.255:65535", "255.255.255.255:65535"),
        ),
        ("TCP4 1.2.3.4 5.6.7.8 0 0", header("1.2.3.4:0", "5.6.7.8:0")),
        ("TCP6 2001:db8::1 ::1 10 20", header("[2001:db8::1]:10", "[::1]:20")),
        ("TCP6 ::ffff:1.2.3.4 ::ffff:5.6.7.8 10 20", header("1.2.3.4:10", "5.6.7.8:20")),
        ("UNKNOWN", Header::Local),
        ("UNKNOWN anything at all", Header::Local),
        ("UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535", Header::Local),
    ];
    for (line, expected) in cases {
        accepts(format!("PROXY {line}\r\n").as_bytes(), expected);
    }
    let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_BYTES_MAX - 16));
    assert_eq!(longest.len(), V1_BYTES_MAX);
    accepts(longest.as_bytes(), Header::Local);
}

#[test]
fn malformed_v1_lines() {
    use ProxyError::{BadAddress, BadLine, Missing, TooLong};
    let cases = [
        ("PROXY TCP4 1.2.3.4 5.6.7.8 1 65536\r\n", BadAddress),
        ("PROXY TCP4 1.2.3.4 5.6.7.8 01 80\r\n", BadAddress),
        ("PROXY TCP4 1.2.3.4 5.6.7.8 +1 80\r\n", BadAddress),
        ("PROXY TCP4 1.2.3.4 5.6.7.8 -1 80\r\n", BadAddress),
        ("PROXY TCP4 1.2.3.4 5.6.7.8  80\r\n", BadAddress),
        ("PROXY TCP4 01.2.3.4 5.6.7.8 1 2\r\n", BadAddress),
        ("PROXY TCP4 1.2.3 5.6.7.8 1 2\r\n", BadAddress),
        ("PROXY TCP4 ::1 ::1 1 2\r\n", BadAddress),
        ("PROXY TCP6 1.2.3.4 5.6.7.8 1 2\r\n", BadAddress),
        ("PROXY TCP6 ::1%lo ::1 1 2\r\n", BadAddress),
        ("PROXY TCP6 [::1] ::1 1 2\r\n", BadAddress),
        ("PROXY TCP4 1.2.3.4 5.6.7.8 1\r\n", BadLine),
        ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 3\r\n", BadLine),
        ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n", BadLine),
        ("PROXY  TCP4 1.2.3.4 5.6.7.8 1 2\r\n", BadLine),
        ("PROXY tcp4 1.2.3.4 5.6.7.8 1 2\r\n", BadLine),
        ("PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n", BadLine),
        ("PROXY UNKNOWNX\r\n", BadLine),
        ("PROXY \r\n", BadLine),
        ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n", BadLine),
        ("PROXY TCP4 1.2.3.4 5.6.7.8 1 2\rX", BadLine),
        ("PROXY UNKNOWN \r x\r\n", BadLine),
        ("proxy UNKNOWN\r\n", Missing),
        ("PROXY\tUNKNOWN\r\n", Missing),
        ("GET / HTTP/1.1\r\n", Missing),
        ("PRI * HTTP/2.0\r\n", Missing),
        ("\x16\x03\x01", Missing),
        ("\r\n\r\n\r\n", Missing),
    ];
    for (bytes, error) in cases {
        assert_eq!(parse(bytes.as_bytes()), Err(error), "{bytes:?}");
    }
    let endless = format!("PROXY UNKNOWN {}", "x".repeat(V1_BYTES_MAX));
    assert_eq!(parse(&endless.as_bytes()[..V1_BYTES_MAX - 1]), Ok(None));
    assert_eq!(parse(&endless.as_bytes()[..V1_BYTES_MAX]), Err(TooLong));
    assert_eq!(parse(format!("{endless}\r\n").as_bytes()), Err(TooLong));
}

#[test]
fn v2_headers() {
    let v6_block = {
        let source: Ipv6Addr = "2001:db8::1".parse().expect("an address");
        [&source.octets()[..], &Ipv6Addr::LOCALHOST.octets(), &[0, 10, 0, 20]].concat()
    };
    let five_kilobytes = tlv(0x20, &[7; 5000]);
    let v4_addresses = header("1.2.3.4:256", "5.6.7.8:8080");
    let cases = [
        (v2(0x21, 0x11, &V4_BLOCK), v4_addresses),
        (v2(0x21, 0x12, &V4_BLOCK), v4_addresses),
        (v2(0x21, 0x21, &v6_block), header("[2001:db8::1]:10", "[::1]:20")),
        (v2(0x21, 0x11, &[&V4_BLOCK[..], &tlv(0xee, b""), &tlv(0x04, &[0; 9])].concat()), v4_addresses),
        (v2(0x21, 0x11, &[&V4_BLOCK[..], &five_kilobytes].concat()), v4_addresses),
        (v2(0x20, 0x00, &[]), Header::Local),
        (v2(0x20, 0x11, &V4_BLOCK), Header::Local),
        (v2(0x20, 0x11, &[1, 2, 3]), Header::Local),
        (v2(0x21, 0x00, &[]), Header::Local),
        (v2(0x21, 0x00, &tlv(0x01, b"h2")), Header::Local),
        (v2(0x21, 0x10, &V4_BLOCK), Header::Local),
        (v2(0x21, 0x31, &[b'/'; 216]), Header::Local),
    ];
    for (bytes, expected) in &cases {
        accepts(bytes, *expected);
    }
}

#[test]
fn malformed_v2_headers() {
    use ProxyError::{BadKind, BadTlv, Missing, TooLong, TooShort};
    let cases = [
        (v2(0x11, 0x11, &V4_BLOCK), BadKind),
        (v2(0x31, 0x11, &V4_BLOCK), BadKind),
        (v2(0x22, 0x11, &V4_BLOCK), BadKind),
        (v2(0x21, 0x41, &V4_BLOCK), BadKind),
        (v2(0x21, 0x13, &V4_BLOCK), BadKind),
        (v2(0x21, 0x11, &V4_BLOCK[..11]), TooShort),
        (v2(0x21, 0x21, &V4_BLOCK), TooShort),
        (v2(0x21, 0x31, &[0; 215]), TooShort),
        (v2(0x21, 0x11, &[&V4_BLOCK[..], &[1, 0]].concat()), BadTlv),
        (v2(0x21, 0x11, &[&V4_BLOCK[..], &[1, 0, 2, 9]].concat()), BadTlv),
        (v2(0x21, 0x11, &[&V4_BLOCK[..], &tlv(TLV_CRC32C, &[0; 3])].concat()), BadTlv),
        (v2(0x21, 0x11, &vec![0; V2_BYTES_MAX - 15]), TooLong),
        (v2(0x20, 0x00, &vec![0; V2_BYTES_MAX - 15]), TooLong),
        (b"\r\n\r\n\0\r\nQUIT\r".to_vec(), Missing),
    ];
    for (bytes, error) in &cases {
        assert_eq!(parse(bytes), Err(*error), "{:?}", bytes.get(..40));
    }
    // Refused as soon as the fixed part shows it, without waiting for the rest.
    assert_eq!(parse(&v2(0x21, 0x21, &V4_BLOCK)[..16]), Err(TooShort));
    assert!(parse(&v2(0x20, 0x00, &vec![0; V2_BYTES_MAX - 16])).is_ok_and(|header| header.is_some()));
}

#[test]
fn a_checksum_has_to_match() {
    // The check value of the CRC catalogue.
    assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xe306_9283);
    let blank = [&V4_BLOCK[..], &tlv(0x01, b"h2"), &tlv(TLV_CRC32C, &[0; 4]), &tlv(0x20, &[1, 2])].concat();
    let mut bytes = v2(0x21, 0x11, &blank);
    let hole = 16 + 12 + 5 + 3;
    let crc = !crc32c(u32::MAX, &bytes);
    bytes[hole..hole + 4].copy_from_slice(&crc.to_be_bytes());
    accepts(&bytes, header("1.2.3.4:256", "5.6.7.8:8080"));
    for at in 16..bytes.len() {
        let mut bent = bytes.clone();
        bent[at] ^= 0x40;
        // Without its type the checksum is an unknown TLV.
        assert_eq!(parse(&bent).is_ok(), at == hole - 3, "byte {at}");
    }
    let twice = v2(0x21, 0x11, &[&blank[..], &tlv(TLV_CRC32C, &[0; 4])].concat());
    assert_eq!(parse(&twice), Err(ProxyError::BadChecksum));
}

#[test]
fn what_is_written_is_read_again() {
    let headers = [
        Header::Local,
        header("1.2.3.4:0", "5.6.7.8:65535"),
        header("[2001:db8::1]:443", "[fe80::1]:1"),
        header("1.2.3.4:5", "[2001:db8::1]:6"),
        header(
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535",
            "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe]:65535",
        ),
    ];
    for expected in headers {
        for write in [write_v1, write_v2] {
            let mut bytes = Vec::new();
            write(&expected, &mut bytes);
            accepts(&bytes, expected);
        }
    }
}
