//! A generator of hostile HTTP/1.1 requests: every piece of a good request is bent in every way of a table, one or
//! two bends at a time. Whatever the proxy does with them, the origin must only ever see requests that a strict
//! reader takes one way. A failing seed is printed and replays with `SHARD_SEED=N`.

use std::time::Duration;

use tests::{Config, Proxy, origin};

/// Requests of one run: enough to meet each pair of bends a few times, and done in seconds.
const REQUESTS: usize = 1_500;

/// SplitMix64: small, seedable, good enough to choose table rows.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        let bound = u64::try_from(bound).expect("a table's length");
        usize::try_from(self.next() % bound).expect("below a table's length")
    }

    fn pick<'a>(&mut self, table: &[&'a str]) -> &'a str {
        table[self.below(table.len())]
    }
}

const LINE_ENDS: &[&str] =
    &["\r\n", "\r\n", "\r\n", "\n", "\r", "\r\r\n", "\n\r\n", "\r\n ", " \r\n", "\0\r\n"];
const METHODS: &[&str] = &["POST", "GET", "PUT", "post", "P\u{f6}ST", "PO ST", "", "POST,GET", "(x)", "HEAD"];
const TARGETS: &[&str] =
    &["/", "/a?b=c", "http://a.example/", "*", "a", "/\u{1}", "/%00", "//x", "/a b", "?", "/a#f", "/%zz"];
const VERSIONS: &[&str] = &[
    "HTTP/1.1",
    "HTTP/1.1",
    "HTTP/1.0",
    "HTTP/1.2",
    "HTTP/2.0",
    "HTTP/11",
    "http/1.1",
    "HTTP/1.1 ",
    "",
    "HTTP/ 1.1",
    "HTTP/1.01",
];
const HOSTS: &[&str] = &[
    "Host: a.example",
    "Host: a.example",
    "Host:",
    "Host: a b",
    "Host : a.example",
    "host: A.EXAMPLE:80",
    "Host: a@b",
    "Host: a.example\r\nHost: b.example",
    "X: y",
    "Host: [::1",
    "Host: a,b",
];
const LENGTH_NAMES: &[&str] = &[
    "Content-Length",
    "content-length",
    "Content-Length ",
    " Content-Length",
    "Content_Length",
    "Content-Length\0",
    "Content-\rLength",
    "X\nContent-Length",
];
const LENGTHS: &[&str] = &[
    "5",
    "5",
    "05",
    "+5",
    "-5",
    "5,5",
    "5, 6",
    "0x5",
    "",
    "5 5",
    "4294967301",
    "18446744073709551621",
    "5\u{b}",
    "\"5\"",
    "5e0",
];
const CODING_NAMES: &[&str] = &[
    "Transfer-Encoding",
    "transfer-encoding",
    "Transfer-Encoding ",
    "Transfer_Encoding",
    "\tTransfer-Encoding",
    "Transfer-Encoding\u{b}",
    "X: y\r\n Transfer-Encoding",
    "Transfer\u{2d}Encoding:x\r\nTransfer-Encoding",
];
const CODINGS: &[&str] = &[
    "chunked",
    "CHUNKED",
    "identity",
    "chunked, identity",
    "identity, chunked",
    "gzip, chunked",
    "chunked\u{0}",
    "\u{b}chunked",
    "chunked;x",
    "xchunked",
    "",
    "chunked,",
    "\"chunked\"",
    "chunked\r\n , chunked",
];
const SIZES: &[&str] =
    &["5", "05", "5;a=b", "5 ", " 5", "0x5", "+5", "-0", "5\0", "g", "", "5;\n", "ffffffffffffffff5", "5,5"];
const OTHERS: &[&str] = &[
    "Connection: close",
    "Connection: content-length",
    "Expect: 100-continue",
    "Expect: nonsense",
    "Upgrade: x\r\nConnection: upgrade",
    "TE: trailers",
    "X: \u{e9}",
    "X: a\rb",
    ": y",
    "no colon",
    "Trailer: Content-Length",
];

/// A request with up to three bends; everything else is well-formed.
fn hostile(random: &mut Random) -> Vec<u8> {
    let parts = 12;
    let bent: Vec<usize> = (0..=random.below(3)).map(|_| random.below(parts)).collect();
    let mut choose = |part: usize, table: &[&str]| {
        let row = if bent.contains(&part) { random.below(table.len()) } else { 0 };
        table[row].to_owned()
    };
    let [method, target, version, host] =
        [(0, METHODS), (1, TARGETS), (2, VERSIONS), (3, HOSTS)].map(|(part, table)| choose(part, table));
    let length = format!("{}: {}", choose(4, LENGTH_NAMES), choose(5, LENGTHS));
    let coding = format!("{}: {}", choose(6, CODING_NAMES), choose(7, CODINGS));
    let (size, end, other) = (choose(8, SIZES), choose(9, LINE_ENDS), choose(10, OTHERS));
    let ends = [random.below(6), random.below(6)];
    let mut lines = vec![format!("{method} {target} {version}"), host];
    match random.below(4) {
        0 => lines.push(length),
        1 => lines.push(coding),
        2 => lines.extend([length, coding]),
        _ => lines.extend([coding, length]),
    }
    if bent.contains(&10) {
        lines.insert(1 + random.below(lines.len()), other);
    }
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        text += line;
        text += if ends.contains(&index) { &end } else { "\r\n" };
    }
    text += if ends[0] == 5 { &end } else { "\r\n" };
    text += &match random.below(3) {
        0 => "hello".to_owned(),
        1 => format!("{size}{}hello\r\n0\r\n\r\n", if ends[1] == 4 { &end } else { "\r\n" }),
        _ => format!(
            "{size}\r\nhello\r\n0{end}{}\r\n",
            random.pick(&["", "X: y\r\n", "Content-Length: 9\r\n", " x\r\n"])
        ),
    };
    text += "GET /smuggled HTTP/1.1\r\nHost: a.example\r\n\r\n";
    // Characters up to U+00FF stand for the byte of that value.
    text.chars().map(|character| u8::try_from(u32::from(character)).unwrap_or(b'?')).collect()
}

#[test]
fn whatever_reaches_the_origin_has_one_meaning() {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()).listener(|listener| {
        listener.header_timeout = Some(Duration::from_millis(300));
        listener.body_idle_timeout = Some(Duration::from_secs(1));
    }));
    let fixed = std::env::var("SHARD_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds: Vec<u64> =
        fixed.map_or_else(|| (0..u64::try_from(REQUESTS).expect("small")).collect(), |seed| vec![seed]);
    let mut served = 0;
    for seed in seeds {
        let bytes = hostile(&mut Random(seed));
        let mut client = proxy.connect();
        client.patience(Duration::from_secs(3));
        drop(client.try_send(&bytes));
        // Half-closing tells the proxy that nothing more comes, so that a request left open ends at once.
        let response = client.try_response("GET");
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        if let Ok(response) = &response {
            served += usize::from(response.status == 200);
            let known = matches!(
                response.status,
                100..=199 | 200 | 400 | 405 | 408 | 411 | 413 | 414 | 417 | 431 | 501 | 502 | 505
            );
            assert!(known, "seed {seed}: {shown:?} got {response:?}");
        }
        let faults = origin.faults();
        assert!(faults.is_empty(), "seed {seed}: {shown:?} reached the origin as {faults:?}");
    }
    let smuggled_inside = origin.requests().iter().any(|request| {
        // With the right framing the tail is a request of its own; it must never come with another one's body.
        request.target == "/smuggled" && !request.body.is_empty()
    });
    assert!(!smuggled_inside, "a smuggled request carried another's body");
    assert!(
        fixed.is_some() || served > 20,
        "the generator must also make good requests, only {served} were served"
    );
}

#[test]
fn the_generator_bends_and_repeats() {
    let all: std::collections::BTreeSet<Vec<u8>> = (0..200).map(|seed| hostile(&mut Random(seed))).collect();
    assert!(all.len() > 150, "different seeds make different requests");
    assert_eq!(hostile(&mut Random(7)), hostile(&mut Random(7)), "a seed replays");
}
