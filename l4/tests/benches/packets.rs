//! Nanoseconds a packet on each path of the XDP program, by the kernel's test run, beside the frozen figures of Katran.
//!
//! Each path shows the counter that proves which path it was. Subtracted is what the test run and the wrapper cost
//! (`bench.bpf.c`): an empty program, and where the packet is encapsulated the taking-off again, for which half of a
//! put-on-and-take-off pair is taken.
//!
//!     cargo bench -p l4-tests              all rounds
//!     SHARD_BENCH_SMOKE=1 cargo bench …    a few packets, to see that it works

use std::io::Write as _;
use std::time::Duration;

use l4_abi::{Decision, Owner, Row, TABLE_ROWS, TCP, Vip};
use l4_load::{LoadOptions, Program};
use l4_tests::frame::{ACK, Packet, SYN};
use l4_tests::rig::{OWN4, OWN6, OWNER1, OWNER2, SECRET, VIP, VIP4, ip};

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
}

const PATHS: [Path; 7] = [
    Path {
        name: "new SYN, inserted",
        reference: Some((996.0, 0.8)),
        destination: VIP4,
        tcp_flags: SYN,
        mask: 0xff_ffff,
        warm_up: 1_200_000,
        previous: 1,
        counter: (VIP, Decision::ForwardNew),
    },
    Path {
        name: "established, hot flow",
        reference: Some((80.0, 0.55)),
        destination: VIP4,
        tcp_flags: ACK,
        mask: 0,
        warm_up: 1,
        previous: 1,
        counter: (VIP, Decision::ForwardFlow),
    },
    Path {
        name: "established, 64 k flows",
        reference: Some((239.0, 0.8)),
        destination: VIP4,
        tcp_flags: ACK,
        mask: 0xffff,
        warm_up: 65_536,
        previous: 1,
        counter: (VIP, Decision::ForwardFlow),
    },
    Path {
        name: "stateless, one flow",
        reference: Some((117.0, 0.45)),
        destination: VIP4,
        tcp_flags: ACK,
        mask: 0,
        warm_up: 0,
        previous: 2,
        counter: (VIP, Decision::ForwardStateless),
    },
    Path {
        name: "stateless, 64 k flows",
        reference: None,
        destination: VIP4,
        tcp_flags: ACK,
        mask: 0xffff,
        warm_up: 0,
        previous: 2,
        counter: (VIP, Decision::ForwardStateless),
    },
    Path {
        name: "not ours, passed",
        reference: Some((25.0, 0.8)),
        destination: "192.0.2.99:443",
        tcp_flags: ACK,
        mask: 0,
        warm_up: 0,
        previous: 1,
        counter: (0, Decision::NotOurs),
    },
    Path {
        name: "not ours, 64 k flows",
        reference: None,
        destination: "192.0.2.99:443",
        tcp_flags: ACK,
        mask: 0xffff,
        warm_up: 0,
        previous: 1,
        counter: (0, Decision::NotOurs),
    },
];

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
        "{:<26} {:>8} {:>8} {:>8} {:>8} {:>7} {:>7}  counter",
        "path", "ns min", "ns med.", "harness", "Katran", "factor", "allowed"
    ));
    let mut missed = 0;
    for path in &PATHS {
        missed += usize::from(!measure(path, &effort));
    }
    say(&format!("{missed} paths over their bound{}", if smoke { " (a smoke run: no figures)" } else { "" }));
}

/// Measures one path and says whether it stays below its bound.
fn measure(path: &Path, effort: &Effort) -> bool {
    let mut program = load("bench", path.mask);
    let syn = frame(path.destination, SYN);
    let packet = frame(path.destination, path.tcp_flags);
    let warm_up = path.warm_up.min(effort.warm_up_max);
    if warm_up > 0 {
        run(&program, &syn, warm_up);
    }
    publish(&mut program, path.previous);
    // One more than the counter below starts from: caches and branch predictors.
    run(&program, &packet, effort.packets / 4);
    let count = |program: &mut Program| {
        program.maps().vip_counts(path.counter.0).expect("counters are read").of(path.counter.1)
    };
    let encapsulates = path.counter.1 != Decision::NotOurs;
    let (pair, empty) = (load("pair", path.mask), load("empty", path.mask));
    let before = count(&mut program);
    let (mut times, mut harness) = (Vec::new(), Vec::new());
    for _ in 0..effort.rounds {
        times.push(run(&program, &packet, effort.packets));
        let nothing = run(&empty, &packet, effort.packets);
        let undone =
            if encapsulates { (run(&pair, &packet, effort.packets) - nothing).max(0.0) / 2.0 } else { 0.0 };
        harness.push(nothing + undone);
    }
    let counted = count(&mut program) - before;
    let expected = u64::from(effort.packets) * u64::try_from(effort.rounds).expect("few");
    assert_eq!(counted, expected, "{}: another path was taken", path.name);
    let (min, median) = (least(&times) - least(&harness), middle(&mut times) - middle(&mut harness));
    let (reference, factor, allowed) = match path.reference {
        Some((reference, allowed)) => {
            (format!("{reference}"), format!("{:.2}", min / reference), format!("{allowed}"))
        }
        None => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
    };
    say(&format!(
        "{:<26} {min:>8.1} {median:>8.1} {:>8.1} {reference:>8} {factor:>7} {allowed:>7}  {} = {counted}",
        path.name,
        least(&harness),
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

/// A program of the bench's object with VIP 1 and two owners.
fn load(name: &'static str, mask: u32) -> Program {
    let loaded = Program::load_object(&options(), &OBJECT.0, name, &[("bench_mask", mask)]);
    let mut program = loaded.unwrap_or_else(|error| unreachable!("{}", l4_tests::chain(&error)));
    let maps = program.maps();
    maps.set_vip(VIP4.parse::<std::net::SocketAddr>().expect("an address").into(), Vip { id: VIP, flags: 0 })
        .expect("a VIP is taken");
    for (id, address) in [(1, OWNER1), (2, OWNER2)] {
        maps.set_owner(id, &Owner::remote(ip(address))).expect("an owner is taken");
    }
    publish(&mut program, 1);
    program
}

fn publish(program: &mut Program, previous: u16) {
    let rows = vec![Row { current: 1, previous }; TABLE_ROWS];
    program.maps().swap_table(VIP, 1, &rows).expect("a table is taken");
}

fn frame(destination: &str, tcp_flags: u8) -> Vec<u8> {
    assert_eq!(TCP, l4_tests::frame::TCP);
    Packet::tcp("10.0.0.0:40000", destination, tcp_flags).payload(12).frame()
}

/// Nanoseconds a packet.
fn run(program: &Program, frame: &[u8], packets: u32) -> f64 {
    let ran = program.run(frame, packets).unwrap_or_else(|error| unreachable!("{}", l4_tests::chain(&error)));
    assert!(ran.action == 2 || ran.action == 3, "the wrapper failed: action {}", ran.action);
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
