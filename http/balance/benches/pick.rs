//! Cost of the decisions of one request, by policy and number of endpoints. The bound is 60 ns for a P2C pick at 2,000
//! endpoints with weights, slow start and ejection.
//!
//! `cargo bench -p http-balance --bench pick`; with `SHARD_BENCH_SMOKE=1` only a few rounds, to see that it runs.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use http_balance::admission::{AdmissionRules, Applicant, Finished};
use http_balance::breaker::BreakerRules;
use http_balance::ewma::EwmaRules;
use http_balance::gradient::GradientRules;
use http_balance::maglev;
use http_balance::plan::{LoadBound, Policy};
use http_balance::ring::VIRTUAL_NODES_DEFAULT;
use http_balance::shed::{Class, LoadSign, ShedRules};
use http_balance::tables::Tables;
use http_balance::{
    Admission, ClusterPlan, ClusterRules, ClusterState, EndpointId, EndpointSpec, Outcome, Pick, Rng, Slot,
};

const NOW: Duration = Duration::from_secs(100);
const MS: Duration = Duration::from_millis(1);

fn rounds(full: u32) -> u32 {
    if std::env::var_os("SHARD_BENCH_SMOKE").is_some() { 100 } else { full }
}

/// Of the quietest of twenty parts, so that a busy machine shows in the spread and not in the figure.
fn ns_each(rounds: u32, mut work: impl FnMut()) -> f64 {
    let part = rounds.div_ceil(20);
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        (0..part).for_each(|_| work());
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(part));
    }
    best
}

fn plan(policy: Policy, endpoints: u32) -> ClusterPlan {
    let spec = |n: u32| EndpointSpec::new(EndpointId::of(&n.to_le_bytes()), n % 13 + 1);
    let rules = ClusterRules { policy, ..ClusterRules::default() };
    ClusterPlan::build(rules, (0..endpoints).map(spec).collect(), Vec::new()).expect("a sound plan")
}

/// A tenth of the endpoints just joined, a tenth is ejected, requests are in flight.
fn state(plan: &ClusterPlan, policy: Policy) -> ClusterState {
    let (mut state, mut events) = (ClusterState::new(7), Vec::new());
    let kept = (plan.endpoints().len() * 9 / 10).max(1);
    let first = plan.endpoints()[..kept].to_vec();
    let first = ClusterPlan::build(ClusterRules { policy, ..ClusterRules::default() }, first, Vec::new());
    state.adopt(&first.expect("a sound plan"), NOW - 10 * MS, &mut events);
    state.adopt(plan, NOW, &mut events);
    let slots = u32::try_from(plan.endpoints().len()).expect("few");
    for slot in (0..slots).map(Slot) {
        (0..slot.0 % 7).for_each(|_| state.started(slot));
        if slot.0 % 10 == 3 {
            for _ in 0..5 {
                state.started(slot);
                state.finished(plan, slot, (Outcome::ConnectFailed, MS), (NOW, 1), &mut events);
            }
        }
    }
    state
}

fn picks() {
    let bound = Some(LoadBound::default());
    let policies = [
        ("least request", Policy::LeastRequest),
        ("round robin", Policy::RoundRobin),
        ("random", Policy::Random),
        ("peak EWMA", Policy::PeakEwma(EwmaRules::default())),
        ("ring hash", Policy::RingHash { virtual_nodes: 256, bound: None }),
        ("ring, bounded", Policy::RingHash { virtual_nodes: 256, bound }),
        ("Maglev", Policy::Maglev { rows: 65_537, bound: None }),
        ("Maglev, bounded", Policy::Maglev { rows: 65_537, bound }),
        ("least conns", Policy::LeastConnections),
    ];
    println!("{:<16} {:>9} {:>8} {:>18}", "policy", "endpoints", "ns/pick", "ns/start+finish");
    for (name, policy) in policies {
        for endpoints in [3u32, 20, 200, 2_000] {
            let plan = plan(policy, endpoints);
            let (mut state, mut events, mut rng) = (state(&plan, policy), Vec::new(), Rng::new(7));
            let rounds = rounds(if policy == Policy::LeastConnections { 200_000 } else { 5_000_000 });
            let pick = ns_each(rounds, || {
                let by = Pick { now: NOW, random: rng.draw(), key: Some(rng.draw()), exclude: None };
                black_box(state.pick(&plan, black_box(by), &mut events)).expect("an endpoint is available");
            });
            let last = u64::from(endpoints);
            let held = ns_each(rounds, || {
                let slot = Slot(u32::try_from(rng.below(last)).expect("few"));
                state.started(slot);
                state.finished(&plan, slot, (Outcome::Success, MS), (NOW, 1), &mut events);
            });
            println!("{name:<16} {endpoints:>9} {pick:>8.1} {held:>18.1}");
        }
    }
}

fn changes() {
    println!("\n{:<34} {:>9} {:>10}", "change", "endpoints", "µs");
    for endpoints in [200u32, 2_000] {
        let plan = plan(Policy::LeastRequest, endpoints);
        let mut state = state(&plan, Policy::LeastRequest);
        let mut events = Vec::new();
        let refresh = ns_each(rounds(2_000), || {
            state.refresh(&plan, NOW, &mut events);
            events.clear();
        });
        let adopt = ns_each(rounds(2_000), || {
            state.adopt(&plan, NOW, &mut events);
            events.clear();
        });
        println!("{:<34} {endpoints:>9} {:>10.1}", "ejection, health, slow-start step", refresh / 1000.0);
        println!("{:<34} {endpoints:>9} {:>10.1}", "new plan", adopt / 1000.0);
    }
}

fn admissions() {
    let all = AdmissionRules {
        in_flight_max: Some(1000),
        gradient: Some(GradientRules::default()),
        breaker: Some(BreakerRules::default()),
        shed: Some(ShedRules::default()),
    };
    println!("\n{:<34} {:>10}", "admission", "ns/request");
    for (name, rules) in [
        ("no rule", AdmissionRules::default()),
        ("in-flight cap", AdmissionRules { in_flight_max: Some(1000), ..AdmissionRules::default() }),
        ("circuit breaker", AdmissionRules { breaker: all.breaker, ..AdmissionRules::default() }),
        ("all rules", all),
    ] {
        let mut admission = Admission::default();
        admission.adopt(&rules);
        let (mut rng, mut now) = (Rng::new(3), NOW);
        let ns = ns_each(rounds(5_000_000), || {
            now += Duration::from_micros(10);
            let who = Applicant { class: Class::Standard, core_strain: 300, random: rng.draw() };
            if let Ok(ticket) = admission.admit(&rules, who, now) {
                let end = Finished { outcome: Outcome::Success, latency: MS, sign: LoadSign::None };
                black_box(admission.finished(&rules, ticket, end, now));
            }
        });
        println!("{name:<34} {ns:>10.1}");
    }
}

fn main() {
    picks();
    changes();
    admissions();
    tables();
}

/// What the hash tables of one cluster cost a process: 2,000 endpoints, eight cores, made for each core and made once.
fn tables() {
    const CORES: usize = 8;
    let shared = |rules: ClusterRules, tables: &mut Tables| {
        let spec = |n: u32| EndpointSpec::new(EndpointId::of(&n.to_le_bytes()), 1);
        let endpoints = (0..2_000).map(spec).collect();
        ClusterPlan::build_shared(rules, endpoints, Vec::new(), tables).expect("a sound plan")
    };
    let kinds = [
        ("ring", Policy::RingHash { virtual_nodes: VIRTUAL_NODES_DEFAULT, bound: None }),
        ("maglev", Policy::Maglev { rows: maglev::ROWS_DEFAULT, bound: None }),
    ];
    // To the end, or the next ones would be in their memory.
    let mut kept = Vec::new();
    for (name, policy) in kinds {
        let rules = ClusterRules { policy, ..ClusterRules::default() };
        for (how, is_shared) in [("made once", true), ("for each core", false)] {
            let mut all = Tables::default();
            let (start, before) = (Instant::now(), resident_kib());
            let plans: Vec<_> = (0..CORES)
                .map(|_| {
                    let own = &mut Tables::default();
                    shared(rules.clone(), if is_shared { &mut all } else { own })
                })
                .collect();
            let took = start.elapsed().as_secs_f64() * 1e3;
            let kib = resident_kib().saturating_sub(before);
            println!("{name:<8} tables of {} plans, {how}: {took:.1} ms, {kib} KiB", plans.len());
            kept.push((all, plans));
        }
    }
}

/// Memory of this process, by pages of 4 KiB.
fn resident_kib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4)
}
