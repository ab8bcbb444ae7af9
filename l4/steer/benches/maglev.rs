//! Time to build a table and to publish a change, by number of proxies. The bound is 5 ms a table for 40 proxies.
//!
//! `cargo bench -p l4-steer --bench maglev`; with `SHARD_BENCH_SMOKE=1` one round, to see that it runs. Exit code 1:
//! the median of 40 equal proxies is over the bound (not checked in a smoke run, whose build is not optimised).
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use l4_steer::maglev::Table;
use l4_steer::owner::{Owner, OwnerId, OwnerList, OwnerState};
use l4_steer::rollout::{Conflict, Rollout, Windows};

const WINDOWS: Windows = Windows { drain: Duration::from_secs(1), rescue: Duration::from_secs(2) };
const BOUND: Duration = Duration::from_millis(5);

fn list(count: u16, is_weighted: bool, draining: Option<u16>) -> OwnerList {
    let owners = (1..=count).filter_map(|at| {
        let weight = if is_weighted { at % 13 + 1 } else { 1 };
        let state = if draining == Some(at) { OwnerState::Draining } else { OwnerState::Active };
        OwnerId::new(at).map(|id| Owner { id, name: format!("proxy-{at}"), weight, state })
    });
    OwnerList::new(owners.collect()).expect("names and ids differ")
}

fn median(rounds: usize, mut work: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..rounds)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Rows that move when a proxy of 40 is removed, over those that must: the worst of the first `count` proxies.
fn moved_most(count: u16) -> f64 {
    let whole = list(40, false, None);
    let table = |list: &OwnerList| Table::new(list).expect("active proxies");
    let before = table(&whole);
    let factor = |at: u16| {
        let after = table(&list(40, false, Some(at)));
        let moved = before.rows().iter().zip(after.rows()).filter(|(before, after)| before != after).count();
        let own = before.share(OwnerId::new(at).expect("an id"));
        ratio(moved, own)
    };
    (1..=count).map(factor).fold(0.0, f64::max)
}

fn ratio(part: usize, of: usize) -> f64 {
    let number = |count: usize| f64::from(u32::try_from(count).expect("rows are few"));
    number(part) / number(of)
}

fn main() -> ExitCode {
    let is_smoke = std::env::var_os("SHARD_BENCH_SMOKE").is_some();
    let rounds = if is_smoke { 1 } else { 101 };
    let mut is_slow = false;
    println!("{:>8} {:>8} {:>12} {:>16}", "proxies", "weights", "table us", "drain of one us");
    for (count, is_weighted) in [(4, false), (40, false), (40, true), (400, false), (4_000, false)] {
        let whole = list(count, is_weighted, None);
        let drained = list(count, is_weighted, Some(2));
        let table = median(rounds, || drop(black_box(Table::new(black_box(&whole)))));
        let start = Rollout::new(whole.clone(), WINDOWS).expect("active proxies");
        let change = median(rounds, || {
            let mut rollout = start.clone();
            black_box(rollout.propose(drained.clone(), Conflict::Wait, Duration::ZERO)).expect("settled");
        });
        let weights = if is_weighted { "1 to 13" } else { "equal" };
        println!("{count:>8} {weights:>8} {:>12} {:>16}", table.as_micros(), change.as_micros());
        is_slow |= count == 40 && !is_weighted && table > BOUND;
    }
    println!(
        "removing one of 40 moves at most {:.2} times its rows",
        moved_most(if is_smoke { 1 } else { 40 })
    );
    if is_slow && !is_smoke {
        println!("over the bound of {BOUND:?}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
