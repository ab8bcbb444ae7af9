//! User-space instructions of one request, counted by callgrind, against the ratchet in `instructions.txt` beside this
//! file: the same binary and the same input make the same number, whatever else the machine does. Over the figure by
//! more than 2 % is a failure; the change that wants more sets the figure and says why in its commit. Under it by more
//! than 8 % is a failure, too: the figure is lowered then, so that it holds what was won. Machines differ: the
//! same sources gave 26,301 / 34,388 / 41,560 on one and 26,465 to 26,780 / 33,271 to 34,005 / 41,009 to 41,339 on another. The memory functions
//! of libc are chosen by the processor, and how many reads a message takes goes by time.
//!
//! What goes by time (reports, timers) is counted apart and taken off. The rest of a busy machine's influence can only add:
//! the least of a few counts is judged.
//!
//! One connection, one request after the other: the most that a request can cost, since nothing is shared by a batch.

use std::time::Instant;

use tests::h2raw::{Frame, H2Conn, flag, kind, request_fields};
use tests::tool::require_tool;
use tests::wait::pause;
use tests::{Config, Origin, Proxy, RawClient};

const RATCHET: &str = include_str!("instructions.txt");
const ABOVE_PERCENT_MAX: u64 = 2;
const BELOW_PERCENT_MAX: u64 = 8;
/// Until buffers, tables and caches have their sizes.
const WARM_UP: u32 = 200;
const COUNTED: u32 = 2000;
const COUNTS_MAX: usize = 3;
const BODY: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// An HTTP/2 origin that answers each stream in one write.
fn origin_h2() -> Origin {
    Origin::scripted(|connection| {
        let stream = connection.stream().try_clone().expect("a descriptor is free");
        let Some(mut h2) = H2Conn::server(stream, &[]) else { return };
        let is_request = |frame: &Frame| frame.kind == kind::HEADERS && frame.has(flag::END_STREAM);
        while let Some(frame) = h2.wait(is_request) {
            let mut answer = Frame::headers(frame.stream, false, &[(":status", "200")]).encode();
            answer.extend_from_slice(&Frame::data(frame.stream, true, BODY).encode());
            if h2.write_bytes(&answer).is_err() {
                return;
            }
        }
    })
}

fn origin_h1() -> Origin {
    Origin::replying(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{BODY}", BODY.len()))
}

/// Asks one request after the other.
enum Client {
    H1(RawClient),
    H2(H2Conn<tests::client::Stream>, u32),
}

impl Client {
    fn ask(&mut self, count: u32) {
        for _ in 0..count {
            let response = match self {
                Self::H1(client) => client.send("GET /1 HTTP/1.1\r\nHost: a.example\r\n\r\n").response("GET"),
                Self::H2(client, stream) => {
                    *stream += 2;
                    client.send(&Frame::headers(*stream, true, &request_fields("GET", "a.example", "/1")));
                    client.response(*stream).expect("the stream is answered")
                }
            };
            assert_eq!((response.status, response.text().as_str()), (200, BODY));
        }
    }
}

/// Instructions of one request, without those that the process needs in the same time anyhow: on a busy machine the
/// requests take longer, and its reports and timers would count for them.
fn count(config: Config, connect: impl Fn(&Proxy) -> Client) -> u64 {
    let _alone = crate::alone();
    let valgrind = require_tool("valgrind");
    let arguments = ["--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=callgrind.out"];
    // The ring's driver makes calls of other kinds, not other work of ours; valgrind knows epoll on any kernel.
    let mut proxy = Proxy::start_under(&valgrind, &arguments, config, &["--driver", "epoll"]);
    let mut client = connect(&proxy);
    client.ask(WARM_UP);
    let pid = proxy.process().pid().to_string();
    let control = |words: &[&str]| {
        let (is_good, out, error) = tests::tool::run("callgrind_control", &[words, &[pid.as_str()]].concat());
        assert!(is_good, "callgrind_control: {out}{error}");
    };
    control(&["--instr", "on"]);
    let began = Instant::now();
    client.ask(COUNTED);
    let took = began.elapsed();
    control(&["--instr", "off"]);
    control(&["--dump"]);
    control(&["--instr", "on"]);
    pause(took);
    control(&["--instr", "off"]);
    proxy.process().signal(rustix::process::Signal::TERM);
    proxy.process().wait(tests::PATIENCE);
    let total = |name: &str| {
        let profile = std::fs::read_to_string(proxy.dir().path().join(name)).expect("callgrind wrote it");
        let total =
            profile.lines().find_map(|line| line.strip_prefix("totals: ")?.trim().parse::<u64>().ok());
        total.expect("a profile has a total")
    };
    let (all, idle) = (total("callgrind.out.1"), total("callgrind.out"));
    tests::note(&format!("{all} instructions in {took:?}, {idle} in the same time without a request"));
    all.saturating_sub(idle) / u64::from(COUNTED)
}

#[track_caller]
fn judge(name: &str, count: impl Fn() -> u64) {
    let wanted = RATCHET.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    let wanted = wanted.expect("the ratchet has a line for it");
    let (low, high) = (wanted * (100 - BELOW_PERCENT_MAX), wanted * (100 + ABOVE_PERCENT_MAX));
    let mut least = u64::MAX;
    for _ in 0..COUNTS_MAX {
        least = least.min(count());
        tests::note(&format!("{name}: {least} instructions a request, {wanted} in the ratchet"));
        if least * 100 <= high {
            break;
        }
    }
    let holds = (low..=high).contains(&(least * 100));
    assert!(holds, "{name}: {least} instructions a request, {wanted} in tests/tests/load/instructions.txt");
}

fn h1(proxy: &Proxy) -> Client {
    Client::H1(proxy.connect())
}

fn h2(proxy: &Proxy) -> Client {
    Client::H2(H2Conn::client(proxy.connect().into_stream(), &[]), 1)
}

#[test]
fn h1_to_h1() {
    let origin = origin_h1();
    judge("h1-h1", || count(Config::to(origin.address()), h1));
}

#[test]
fn h2_to_h1() {
    let origin = origin_h1();
    judge("h2-h1", || count(Config::to(origin.address()), h2));
}

#[test]
fn h2_to_h2() {
    let origin = origin_h2();
    judge("h2-h2", || count(Config::to_h2(origin.address()), h2));
}
