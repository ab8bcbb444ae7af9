//! Both ends against the examples of the RFC, against each other, and against bad blocks.

use super::decoder::integer;
use super::*;
use crate::fields::FieldId;

fn lines(decoder: &mut Decoder, block: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    decoder
        .decode(block, |line| found.push(format!("{}: {}", text(line.name()), text(line.value()))))
        .expect("a good block");
    found
}

#[test]
fn requests_of_the_rfc_with_a_growing_table() {
    // RFC 7541 Appendix C.4.
    let mut decoder = Decoder::new();
    let first = [
        0x82, 0x86, 0x84, 0x41, 0x8c, 0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
    ];
    assert_eq!(
        lines(&mut decoder, &first),
        [":method: GET", ":scheme: http", ":path: /", ":authority: www.example.com"]
    );
    assert_eq!(decoder.table_bytes(), 57);
    let second = [0x82, 0x86, 0x84, 0xbe, 0x58, 0x86, 0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf];
    assert_eq!(lines(&mut decoder, &second)[3..], [":authority: www.example.com", "cache-control: no-cache"]);
    assert_eq!((decoder.table_bytes(), decoder.changes()), (110, 2));
}

#[test]
fn the_table_evicts_and_shrinks() {
    let mut decoder = Decoder::new();
    let mut block = Vec::new();
    for n in 0..200 {
        block.push(0x40);
        put_string(format!("name-{n}").as_bytes(), &mut block);
        put_string(&[b'v'; 20], &mut block);
    }
    assert_eq!(lines(&mut decoder, &block).len(), 200);
    assert!(decoder.table_bytes() <= TABLE_BYTES_MAX);
    assert_eq!(lines(&mut decoder, &[0xbe]), ["name-199: vvvvvvvvvvvvvvvvvvvv"]);
    // An entry above the whole table empties it (RFC 7541 §4.4) and is a line all the same.
    let mut block = vec![0x40];
    put_string(b"large", &mut block);
    put_string(&[b'v'; TABLE_BYTES_MAX], &mut block);
    assert_eq!(lines(&mut decoder, &block).len(), 1);
    assert_eq!(decoder.table_bytes(), 0);
    assert_eq!(lines(&mut decoder, &[0x20, 0x40, 1, b'a', 1, b'b']), ["a: b"]);
    assert_eq!(decoder.table_bytes(), 0, "a table of no bytes keeps nothing");
    assert_eq!(decoder.decode(&[0xbe], |_| {}), Err(HpackError));
}

#[test]
fn integers_go_both_ways_and_bad_blocks_are_errors() {
    for value in [0, 9, 30, 31, 127, 128, 1337, 4096, 100_000] {
        for bits in [4, 5, 6, 7] {
            let mut out = Vec::new();
            put_integer(0, bits, value, &mut out);
            assert_eq!(integer(&out, bits), Ok((value, &[][..])));
        }
    }
    for block in [
        &[0x80][..],
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x40, 5, b'a'],
        &[0x40, 1, b'a', 0x82, 0xff, 0xff],
        &[0x7f, 0x00, 1, b'a'],
        // A table above what we have said, and a change of it behind a line.
        &[0x3f, 0xe2, 0x1f],
        &[0x82, 0x20],
        &[0xff],
    ] {
        assert_eq!(Decoder::new().decode(block, |_| {}), Err(HpackError), "{block:?}");
    }
}

#[test]
fn names_and_values_are_judged_once_and_alike() {
    let class = |name: &[u8], value: &[u8]| {
        let mut block = vec![0x40];
        put_string(name, &mut block);
        put_string(value, &mut block);
        // The second time from the table, the third with the name from the table.
        block.push(0xbe);
        block.push(0x7e);
        put_string(value, &mut block);
        let mut classes = Vec::new();
        Decoder::new().decode(&block, |line| classes.push(line.class)).expect("it can be decoded");
        assert_eq!(classes, [classes[0]; 3], "{name:?}");
        classes[0]
    };
    for (name, want) in [
        ("accept", Class::Field(FieldId::Accept)),
        ("x-any", Class::Field(FieldId::Other)),
        (":path", Class::Pseudo(Pseudo::Path)),
        (":protocol", Class::Pseudo(Pseudo::Protocol)),
        (":paths", Class::Pseudo(Pseudo::Unknown)),
        (":", Class::Pseudo(Pseudo::Unknown)),
        ("Accept", Class::Malformed),
        ("x-Any", Class::Malformed),
        ("", Class::Malformed),
        ("a b", Class::Malformed),
        ("a\u{e9}", Class::Malformed),
        ("content_length", Class::Imitation),
        ("x_forwarded-for", Class::Imitation),
        ("my_cookie", Class::Field(FieldId::Other)),
    ] {
        assert_eq!(class(name.as_bytes(), b"v"), want, "{name}");
        assert_eq!(class(name.as_bytes(), b"a\r\nb"), Class::Malformed, "{name}");
        assert_eq!(class(name.as_bytes(), b"\0"), Class::Malformed, "{name}");
    }
    // A bad value does not spoil the name for good ones.
    let block = [&[0x40, 1, b'a', 1, b'\n'][..], &[0x7e, 1, b'b']].concat();
    let mut classes = Vec::new();
    Decoder::new().decode(&block, |line| classes.push(line.class)).expect("it can be decoded");
    assert_eq!(classes, [Class::Malformed, Class::Field(FieldId::Other)]);
}

/// A small generator (splitmix64), so that a seed replays.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

#[test]
fn what_is_encoded_is_decoded_whatever_the_table_does() {
    for seed in 0..50 {
        let mut random = Random(seed);
        let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
        for _ in 0..200 {
            if random.below(20) == 0 {
                for _ in 0..=random.below(2) {
                    encoder.set_table_bytes(usize::try_from(random.below(6000)).expect("small"));
                }
            }
            let (mut block, mut want) = (Vec::new(), Vec::new());
            encoder.begin(&mut block);
            for _ in 0..random.below(12) {
                let name = ["date", "x-a", "x-b", "etag", "traceparent", "cookie"]
                    [usize::try_from(random.below(6)).expect("small")];
                let value = match random.below(5) {
                    0 => "v".repeat(usize::try_from(random.below(2000)).expect("small")),
                    n => format!("{n}-{}", random.below(4)),
                };
                let indexing = [Indexing::Index, Indexing::NameOnly, Indexing::Never]
                    [usize::try_from(random.below(3)).expect("small")];
                let id = FieldId::from_lower(name.as_bytes());
                encoder.put(id, name.as_bytes(), value.as_bytes(), indexing, &mut block);
                want.push(format!("{name}: {value}"));
            }
            assert_eq!(lines(&mut decoder, &block), want, "seed {seed}");
            assert_eq!(encoder.table_bytes(), decoder.table_bytes(), "seed {seed}");
            assert!(encoder.table_bytes() <= TABLE_BYTES_MAX);
        }
    }
}

#[test]
fn what_comes_again_is_a_byte() {
    let mut encoder = Encoder::new();
    let mut encode = |value: &str, indexing| {
        let mut block = Vec::new();
        encoder.put(FieldId::Server, b"server", value.as_bytes(), indexing, &mut block);
        encoder.put(FieldId::XRequestId, b"x-request-id", b"0123", Indexing::NameOnly, &mut block);
        block
    };
    // The name of the second is kept the first time; its value is sent each time.
    assert_eq!(encode("a", Indexing::Index), b"\x76\x01a\x40\x0cx-request-id\x040123");
    assert_eq!(encode("a", Indexing::Index), b"\xbf\x0f\x2f\x040123");
    assert_eq!(encode("b", Indexing::NameOnly), b"\x0f\x27\x01b\x0f\x2f\x040123");
    assert_eq!(encode("a", Indexing::Never), b"\x1f\x27\x01a\x0f\x2f\x040123");
}
