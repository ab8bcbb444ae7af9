//! Nanoseconds a packet on each path of the XDP program, by the kernel's test run, beside the frozen figures of Katran.
//!
//! Each path shows the counter that proves which path it was. Subtracted is what the test run and the wrapper cost
//! (`bench.bpf.c`): an empty program, and where the packet is encapsulated the taking-off again, for which half of a
//! put-on-and-take-off pair is taken; where it is changed otherwise, the putting-back of its first bytes.
//!
//! The least of 40 rounds is what the program costs; the median is of the rounds' own differences, each by how much slower
//! its harness was than the fastest, so that it tells a slow path from a machine that is busy otherwise. Factors are of both.
//!
//!     cargo bench -p l4-tests              all rounds
//!     SHARD_BENCH_SMOKE=1 cargo bench …    a few packets, to see that it works

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use l4_abi::{Decision, Owner, RULES_MAX, Row, Rule, TABLE_ROWS, VIP_RULES, Vip};
use l4_load::{LoadOptions, Program};
use l4_tests::frame::{ACK, Mark, Packet, SYN, incoming, outer};
use l4_tests::rig::{LOCAL, OWN4, OWN6, OWNER1, OWNER2, SECRET, VIP, VIP4, hash, ip};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o")));

/// ELF is read in place.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

/// One line of the table.
struct Path {
    name: &'static str,
    /// What the frozen reference took, in nanoseconds, and the share of it that is allowed.
    reference: Option<(f64, f64)>,
    destination: &'static str,
    tcp_flags: u8,
    /// Flows that the rounds go through, less one; 0 = one flow.
    mask: u32,
    /// Packets that fill the flow table first, sent as SYN.
    warm_up: u32,
    /// The row's previous owner; the present one is 1.
    previous: u16,
    counter: (u32, Decision),
    input: Input,
    has_cookies: bool,
}

/// How a packet comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    /// From its client.
    Client,
    /// Encapsulated by a machine with this address; the rows are this host's.
    Tunnel(&'static str),
    /// The same, of a connection with timestamps.
    Stamped(&'static str),
    /// From a client against whom there is a rule.
    Ruled,
    /// From its client, its IP length one byte beyond the frame.
    Cut,
    /// The first fragment.
    Fragment,
    /// From its client, to a listener of this host, with a cookie of this fleet.
    Cookie,
}

/// What most paths have.
const PLAIN: Path = Path {
    name: "",
    reference: None,
    destination: VIP4,
    tcp_flags: ACK,
    mask: 0,
    warm_up: 0,
    previous: 1,
    counter: (VIP, Decision::ForwardFlow),
    input: Input::Client,
    has_cookies: false,
};

/// A trusted machine, and one that is not.
const BOX: &str = "10.9.1.1";
const STRANGER: &str = "10.10.1.1";

const PATHS: [Path; 19] = [
    Path {
        name: "new SYN, inserted",
        reference: Some((996.0, 0.8)),
        tcp_flags: SYN,
        mask: 0xff_ffff,
        warm_up: 1_200_000,
        counter: (VIP, Decision::ForwardNew),
        ..PLAIN
    },
    Path { name: "established, hot flow", reference: Some((80.0, 0.55)), warm_up: 1, ..PLAIN },
    Path {
        name: "established, 64 k flows",
        reference: Some((239.0, 0.8)),
        mask: 0xffff,
        warm_up: 65_536,
        ..PLAIN
    },
    Path {
        name: "stateless, one flow",
        reference: Some((117.0, 0.45)),
        previous: 2,
        counter: (VIP, Decision::ForwardStateless),
        ..PLAIN
    },
    Path {
        name: "stateless, 64 k flows",
        mask: 0xffff,
        previous: 2,
        counter: (VIP, Decision::ForwardStateless),
        ..PLAIN
    },
    Path {
        name: "not ours, passed",
        reference: Some((25.0, 0.8)),
        destination: OTHER,
        counter: (0, Decision::NotOurs),
        ..PLAIN
    },
    Path {
        name: "not ours, 64 k flows",
        destination: OTHER,
        mask: 0xffff,
        counter: (0, Decision::NotOurs),
        ..PLAIN
    },
    Path {
        name: "decapsulated",
        previous: LOCAL,
        counter: (VIP, Decision::Decapsulated),
        input: Input::Tunnel(BOX),
        ..PLAIN
    },
    Path {
        name: "decapsulated, cookies on",
        previous: LOCAL,
        counter: (VIP, Decision::Decapsulated),
        input: Input::Tunnel(BOX),
        has_cookies: true,
        ..PLAIN
    },
    Path {
        name: "same, with timestamps",
        previous: LOCAL,
        counter: (VIP, Decision::Decapsulated),
        input: Input::Stamped(BOX),
        has_cookies: true,
        ..PLAIN
    },
    Path {
        name: "second chance, sent on",
        counter: (VIP, Decision::Rescued),
        input: Input::Tunnel(BOX),
        ..PLAIN
    },
    Path {
        name: "SYN, cookie sent",
        tcp_flags: SYN,
        counter: (VIP, Decision::CookieSent),
        has_cookies: true,
        ..PLAIN
    },
    Path {
        name: "SYNs of 16 M clients, same",
        tcp_flags: SYN,
        mask: 0xff_ffff,
        counter: (VIP, Decision::CookieSent),
        has_cookies: true,
        ..PLAIN
    },
    Path {
        name: "cookie accepted",
        previous: LOCAL,
        counter: (VIP, Decision::CookieAccepted),
        input: Input::Cookie,
        has_cookies: true,
        ..PLAIN
    },
    Path { name: "dropped by a rule", counter: (VIP, Decision::DropRule), input: Input::Ruled, ..PLAIN },
    Path {
        name: "same, 16 k rules",
        mask: 0xff_ffff,
        counter: (VIP, Decision::DropRule),
        input: Input::Ruled,
        ..PLAIN
    },
    Path { name: "dropped, bad length", counter: (0, Decision::DropBad), input: Input::Cut, ..PLAIN },
    Path {
        name: "dropped, fragment",
        counter: (VIP, Decision::DropFragment),
        input: Input::Fragment,
        ..PLAIN
    },
    Path {
        name: "dropped, untrusted",
        counter: (0, Decision::DropUntrusted),
        input: Input::Tunnel(STRANGER),
        ..PLAIN
    },
];

/// An address that is no VIP's.
const OTHER: &str = "192.0.2.99:443";

/// Rounds, and packets in each.
struct Effort {
    rounds: usize,
    packets: u32,
    warm_up_max: u32,
}

fn main() {
    if !l4_tests::may_run("the bench of the XDP program") {
        return;
    }
    let smoke = std::env::var_os("SHARD_BENCH_SMOKE").is_some();
    let effort = if smoke {
        Effort { rounds: 1, packets: 1000, warm_up_max: 70_000 }
    } else {
        Effort { rounds: 40, packets: 100_000, warm_up_max: u32::MAX }
    };
    let mut cpu = rustix::thread::CpuSet::new();
    cpu.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &cpu).expect("a thread may stay where it is");
    let with_cookies = LoadOptions { syn_cookies_above: Some(0), ..options() };
    for (name, options) in [("", options()), (" with SYN cookies", with_cookies)] {
        let size = Program::load(&options).and_then(|mut program| program.size()).expect("the program loads");
        say(&format!(
            "shard-l4{name}: {} instructions, {} bytes of machine code, {} steps of the verifier (Katran: 2,970 \
             instructions)",
            size.instructions, size.machine_bytes, size.verified
        ));
    }
    say(&format!(
        "{:<26} {:>8} {:>8} {:>8} {:>8} {:>9} {:>7}  counter",
        "path", "ns min", "ns med.", "harness", "Katran", "factors", "allowed"
    ));
    let mut missed = 0;
    for path in &PATHS {
        missed += usize::from(!measure(path, &effort));
    }
    say(&format!("{missed} paths over their bound{}", if smoke { " (a smoke run: no figures)" } else { "" }));
}

/// A program of the bench's object, ready for one path.
struct Bench<'a> {
    path: &'a Path,
    vip: SocketAddr,
    constants: [(&'static str, u32); 3],
}

impl Bench<'_> {
    /// Bytes that have to be put back after each round.
    const fn copied(path: &Path) -> u32 {
        match (path.input, path.counter.1) {
            // The answer to a SYN is as long as one with 12 bytes of payload.
            (_, Decision::CookieSent) => 66,
            (Input::Cookie, _) => 14,
            (Input::Tunnel(_) | Input::Stamped(_), Decision::Decapsulated | Decision::Rescued) => 34,
            _ => 0,
        }
    }

    fn load(&self, name: &'static str) -> Program {
        let options = LoadOptions {
            syn_cookies_above: self.path.has_cookies.then_some(if self.path.tcp_flags == SYN {
                0
            } else {
                1
            }),
            ..options()
        };
        let loaded = Program::load_object(&options, &OBJECT.0, name, &self.constants);
        let mut program = loaded.unwrap_or_else(|error| unreachable!("{}", l4_tests::chain(&error)));
        let flags = if self.path.input == Input::Ruled { VIP_RULES } else { 0 };
        let maps = program.maps();
        maps.set_vip(self.vip.into(), Vip { id: VIP, flags }).expect("a VIP is taken");
        for (id, address) in [(1, OWNER1), (2, OWNER2)] {
            maps.set_owner(id, &Owner::remote(ip(address))).expect("an owner is taken");
        }
        maps.set_owner(LOCAL, &Owner::local(OWN4.into())).expect("an owner is taken");
        maps.set_trusted(ip("10.9.0.0"), 16).expect("trusted");
        maps.set_rule(VIP, ip("10.0.0.0"), 8, Rule::default()).expect("a rule is taken");
        if self.path.mask > 0 && self.path.input == Input::Ruled {
            // With the one above as many as there may be, spread over the clients.
            for index in 1..RULES_MAX {
                let [_, _, high, low] = index.to_be_bytes();
                maps.set_rule(VIP, [10, low, high, low].into(), 32, Rule::default())
                    .expect("a rule is taken");
            }
        }
        self.publish(&mut program, 1);
        program
    }

    fn publish(&self, program: &mut Program, previous: u16) {
        let is_here = matches!(self.path.input, Input::Tunnel(_) | Input::Stamped(_) | Input::Cookie);
        let rows = vec![Row { current: if is_here { LOCAL } else { 1 }, previous }; TABLE_ROWS];
        program.maps().swap_table(VIP, 1, &rows).expect("a table is taken");
    }

    fn frame(&self, tcp_flags: u8) -> Vec<u8> {
        let destination =
            if self.path.destination == VIP4 { self.vip } else { address(self.path.destination) };
        let packet = Packet { destination, ..Packet::tcp(CLIENT, VIP4, tcp_flags) }.payload(12);
        match self.path.input {
            Input::Client | Input::Ruled => packet.frame(),
            Input::Fragment => Packet { fragment: 0x2000, ..packet }.frame(),
            Input::Cut => {
                let mut frame = packet.frame();
                frame[17] += 1;
                frame
            }
            Input::Tunnel(from) => {
                incoming(&outer(ip(from), OWN4.into(), 0, Mark::Plain { label: 0 }, &packet.ip()), false)
            }
            Input::Stamped(from) => {
                let mut ip4 = packet.ip();
                // The twelve bytes that follow are options, then.
                ip4[32] = 8 << 4;
                incoming(&outer(ip(from), OWN4.into(), 0, Mark::Plain { label: 0 }, &ip4), false)
            }
            Input::Cookie => self.with_cookie(packet.frame()),
        }
    }

    /// The packet that brings back what a box of the fleet answers to its SYN. The frame's numbers are 1 and 2.
    fn with_cookie(&self, mut frame: Vec<u8>) -> Vec<u8> {
        let sender = Path { has_cookies: true, tcp_flags: SYN, input: Input::Client, ..*self.path };
        let answering = Bench { path: &sender, ..*self };
        let mut answerer = answering.load("shard_l4");
        answering.publish(&mut answerer, 1);
        let answer = answerer
            .run(&answering.frame(SYN), 1)
            .unwrap_or_else(|error| unreachable!("{}", l4_tests::chain(&error)));
        assert_eq!(answer.action, 3, "a SYN is answered");
        let number = u32::from_be_bytes(answer.frame[38..42].try_into().expect("four bytes"));
        frame[38..42].copy_from_slice(&2_u32.to_be_bytes());
        frame[42..46].copy_from_slice(&number.wrapping_add(1).to_be_bytes());
        frame
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address with a port")
}

/// Measures one path and says whether it stays below its bound.
fn measure(path: &Path, effort: &Effort) -> bool {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let vip = match path.input {
        Input::Cookie => listener.local_addr().expect("bound"),
        _ => address(VIP4),
    };
    let packet = Packet { destination: vip, ..Packet::tcp(CLIENT, VIP4, ACK) };
    let slot = u32::try_from(hash(&packet) % 64).expect("small");
    let copied = Bench::copied(path);
    let constants = [("bench_mask", path.mask), ("bench_copied", copied), ("bench_slot", slot)];
    let bench = Bench { path, vip, constants };
    let mut program = bench.load("bench");
    let packet = bench.frame(path.tcp_flags);
    let warm_up = path.warm_up.min(effort.warm_up_max);
    if warm_up > 0 {
        run(&program, &bench.frame(SYN), warm_up);
    }
    bench.publish(&mut program, path.previous);
    // One more than the counter below starts from: caches and branch predictors.
    run(&program, &packet, effort.packets / 4);
    let count = |program: &mut Program| {
        program.maps().vip_counts(path.counter.0).expect("counters are read").of(path.counter.1)
    };
    let around = match (copied, path.counter.1) {
        (1.., _) => Some(("copied", 1.0)),
        (
            0,
            Decision::NotOurs
            | Decision::DropRule
            | Decision::DropBad
            | Decision::DropFragment
            | Decision::DropUntrusted,
        ) => None,
        (0, _) => Some(("pair", 2.0)),
    };
    let around = around.map(|(name, share)| (bench.load(name), share));
    let empty = bench.load("empty");
    let before = count(&mut program);
    let (mut times, mut harness) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        times.push(run(&program, &packet, effort.packets));
        let nothing = run(&empty, &packet, effort.packets);
        let undone = around.as_ref().map_or(0.0, |(program, share)| {
            (run(program, &packet, effort.packets) - nothing).max(0.0) / share
        });
        harness.push(nothing + undone);
    }
    let counted = count(&mut program) - before;
    let expected = u64::from(effort.packets) * u64::try_from(effort.rounds).expect("few");
    assert_eq!(counted, expected, "{}: another path was taken", path.name);
    // A host that is busy otherwise slows the harness of the same round, too.
    let least_harness = least(&harness);
    let rounds = times.iter().zip(&harness);
    let mut net: Vec<f64> =
        rounds.map(|(time, harness)| (time - harness) * least_harness / harness).collect();
    let (min, median) = (least(&times) - least_harness, middle(&mut net));
    let (reference, factor, allowed) = match path.reference {
        Some((reference, allowed)) => (
            format!("{reference}"),
            format!("{:.2} {:.2}", min / reference, median / reference),
            format!("{allowed}"),
        ),
        None => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
    };
    say(&format!(
        "{:<26} {min:>8.1} {median:>8.1} {:>8.1} {reference:>8} {factor:>9} {allowed:>7}  {} = {counted}",
        path.name,
        least_harness,
        path.counter.1.name(),
    ));
    path.reference.is_none_or(|(reference, allowed)| min <= reference * allowed)
}

fn options() -> LoadOptions {
    LoadOptions {
        hash_secret: SECRET,
        own4: Some(OWN4),
        own6: Some(OWN6),
        inserts_per_cpu_per_s: u32::MAX,
        ..LoadOptions::default()
    }
}

/// The client of paths with one flow; others have its network's last three bytes vary.
const CLIENT: &str = "10.0.0.0:40000";

/// Nanoseconds a packet.
fn run(program: &Program, frame: &[u8], packets: u32) -> f64 {
    let ran = program.run(frame, packets).unwrap_or_else(|error| unreachable!("{}", l4_tests::chain(&error)));
    assert!((1..=3).contains(&ran.action), "the wrapper failed: action {}", ran.action);
    ran.duration.as_secs_f64() / Duration::from_nanos(1).as_secs_f64()
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

fn middle(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn say(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("standard output is open");
}
