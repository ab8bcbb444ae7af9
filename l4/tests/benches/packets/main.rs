//! Nanoseconds a packet on each path of the XDP program, by the kernel's test run, beside the frozen figures of Katran.
//!
//! Each path shows the counter that proves which path it was. Subtracted is what the test run and the wrapper cost
//! (`bench.bpf.c`): an empty program, and where the packet is encapsulated the taking-off again, for which half of a
//! put-on-and-take-off pair is taken; where it is changed otherwise, the putting-back of its first bytes.
//!
//! The least of 40 rounds is what the program costs; the median is of the rounds' own differences, each by how much slower
//! its harness was than the fastest, so that it tells a slow path from a machine that is busy otherwise.
//!
//! Nanoseconds of a shared machine are worth little from one day to the next. Hence the yardstick (`yardstick.rs`), run in
//! the same rounds: what Katran takes is known in yardsticks, so that the factor that is judged is
//!
//!     ours / yardstick (the median of the rounds)  :  Katran / yardstick (the same, of the day it was measured)
//!
//! The unscaled factor, of the least and of the frozen nanoseconds, stands beside it.
//!
//!     cargo bench -p l4-tests              all rounds
//!     cargo bench -p l4-tests -- hot       the paths with this in their names
//!     SHARD_BENCH_SMOKE=1 cargo bench …    a few packets, to see that it works
//!     SHARD_BENCH_BESIDE=folder …          with other programs that are pinned there, in the same rounds

mod paths;
mod yardstick;

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use l4_abi::{Decision, Owner, RULES_MAX, Row, Rule, TABLE_ROWS, VIP_RULES, Vip};
use l4_load::{LoadOptions, Program};
use l4_tests::frame::{ACK, Mark, Packet, SYN, incoming, outer};
use l4_tests::rig::{LOCAL, OWN4, OWN6, OWNER1, OWNER2, SECRET, VIP, VIP4, hash, ip};
use rustix::time::{ClockId, clock_gettime};

use paths::{Input, PATHS, Path, Reference};
use yardstick::{Beside, Yardstick};

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/bench.bpf.o")));

/// ELF is read in place.
#[repr(C, align(8))]
struct Aligned<T: ?Sized>(T);

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
        "{:<26} {:>7} {:>7} {:>7} {:>7} {:>8} {:>7} {:>9} {:>8} {:>7} {:>8}  counter",
        "path",
        "ns min",
        "ns med.",
        "harness",
        "Katran",
        "unscaled",
        "again",
        "yardstick",
        "Katr.now",
        "factor",
        "allowed"
    ));
    let mut missed = 0;
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = |path: &&Path| wanted.is_empty() || wanted.iter().any(|part| path.name.contains(part));
    for path in PATHS.iter().filter(is_wanted) {
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

    /// The program that does what has to be subtracted, and how often it does it.
    fn around(&self) -> Option<(&'static str, f64)> {
        match (Self::copied(self.path), self.path.counter.1) {
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

/// The rounds of one path, in nanoseconds a packet; one number in each for each round.
#[derive(Default)]
struct Rounds {
    ours: Vec<f64>,
    harness: Vec<f64>,
    yardstick: Vec<f64>,
    beside: Vec<f64>,
}

impl Rounds {
    /// How much longer `these` took than those, both without the harness: the median of the rounds' own ratios.
    fn ratio(&self, these: &[f64], those: &[f64]) -> f64 {
        let net = these.iter().zip(those).zip(&self.harness);
        let mut ratios: Vec<f64> =
            net.map(|((this, that), harness)| (this - harness) / (that - harness)).collect();
        middle(&mut ratios)
    }

    /// The least of what they took, and the median of the rounds' own differences: a host that is busy otherwise
    /// slows the harness of the same round, too.
    fn net(&self, times: &[f64]) -> (f64, f64) {
        let least_harness = least(&self.harness);
        let rounds = times.iter().zip(&self.harness);
        let mut net: Vec<f64> =
            rounds.map(|(time, harness)| (time - harness) * least_harness / harness).collect();
        (least(times) - least_harness, middle(&mut net))
    }
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
    let beside = Beside::of(path.name);
    let has_yardstick = beside.is_some() || path.reference.is_some();
    let yardstick = has_yardstick.then(|| Yardstick::load(path.mask, path.is_remembered()));
    let (packet, syn) = (bench.frame(path.tcp_flags), bench.frame(SYN));
    let warm_up = path.warm_up.min(effort.warm_up_max);
    if warm_up > 0 {
        let slice = Slice { unmeasured: 0, packets: warm_up };
        slice.run(&program, &syn);
        if let Some(it) = &yardstick {
            slice.timed(&|packets| it.run(&syn, packets));
        }
    }
    bench.publish(&mut program, path.previous);
    // One more than the counter below starts from: caches and branch predictors.
    Slice { unmeasured: 0, packets: effort.packets / 4 }.run(&program, &packet);
    let around = bench.around().map(|(name, share)| (bench.load(name), share));
    let empty = bench.load("empty");
    let count = |program: &mut Program| {
        program.maps().vip_counts(path.counter.0).expect("counters are read").of(path.counter.1)
    };
    let before = count(&mut program);
    let mut rounds = Rounds::default();
    let slice = Slice { unmeasured: path.cached_flows(), packets: effort.packets };
    for _ in 0..effort.rounds {
        rounds.ours.push(slice.run(&program, &packet));
        let nothing = slice.run(&empty, &packet);
        let undone =
            around.as_ref().map_or(0.0, |(it, share)| (slice.run(it, &packet) - nothing).max(0.0) / share);
        rounds.harness.push(nothing + undone);
        rounds.yardstick.extend(yardstick.iter().map(|it| slice.timed(&|packets| it.run(&packet, packets))));
        rounds.beside.extend(beside.iter().map(|it| slice.timed(&|packets| it.run(&packet, packets))));
    }
    let counted = count(&mut program) - before;
    let expected = u64::from(slice.packets + slice.unmeasured) * u64::try_from(effort.rounds).expect("few");
    assert_eq!(counted, expected, "{}: another path was taken", path.name);
    report(path, &rounds, counted)
}

/// Prints a path's line and says whether it stays below its bound.
fn report(path: &Path, rounds: &Rounds, counted: u64) -> bool {
    let (min, median) = rounds.net(&rounds.ours);
    let mut line = format!("{:<26} {min:>7.1} {median:>7.1} {:>7.1}", path.name, least(&rounds.harness));
    let in_yardsticks = |times: &[f64]| rounds.ratio(times, &rounds.yardstick);
    let mut holds = true;
    if let Some(reference) = path.reference {
        let factor = in_yardsticks(&rounds.ours) / reference.in_yardsticks;
        holds = factor <= reference.allowed;
        let Reference { frozen, again, in_yardsticks, allowed } = reference;
        let yardstick = least(&rounds.yardstick) - least(&rounds.harness);
        line.push_str(&format!(
            " {frozen:>7} {:>8.2} {again:>7} {yardstick:>9.1} {:>8.1} {factor:>7.2} {allowed:>8}",
            min / frozen,
            yardstick * in_yardsticks,
        ));
    } else {
        line.push_str(&format!(" {0:>7} {0:>8} {0:>7} {0:>9} {0:>8} {0:>7} {0:>8}", "-"));
    }
    say(&format!("{line}  {} = {counted}", path.counter.1.name()));
    if !rounds.beside.is_empty() {
        let (min, median) = rounds.net(&rounds.beside);
        say(&format!(
            "  beside it, {min:.1} {median:.1} ns and {:.3} yardsticks; of that ours took {:.3}",
            in_yardsticks(&rounds.beside),
            rounds.ratio(&rounds.ours, &rounds.beside),
        ));
    }
    holds
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

/// What one program does before the next one's turn.
struct Slice {
    /// Packets first that bring the flows back into the caches, which the other programs' flows took.
    unmeasured: u32,
    packets: u32,
}

impl Slice {
    /// Nanoseconds a packet.
    fn run(&self, program: &Program, frame: &[u8]) -> f64 {
        self.timed(&|packets| {
            let ran = program.run(frame, packets);
            ran.unwrap_or_else(|error| unreachable!("{}", l4_tests::chain(&error))).action
        })
    }

    /// Nanoseconds a packet, by this thread's clock: the kernel's own figure has no fractions.
    fn timed(&self, run: &dyn Fn(u32) -> u32) -> f64 {
        let clock = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).expect("time goes forward");
        if self.unmeasured > 0 {
            run(self.unmeasured);
        }
        let before = clock();
        let action = run(self.packets);
        let took = clock() - before;
        assert!((1..=3).contains(&action), "the wrapper failed: action {action}");
        took.as_secs_f64() * 1e9 / f64::from(self.packets)
    }
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
