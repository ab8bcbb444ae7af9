//! One bad endpoint, and a whole bad service.

use std::rc::Rc;

use http_balance::admission::AdmissionRules;
use http_balance::breaker::{BreakerRules, BreakerState};
use http_balance::ewma::EwmaRules;
use http_balance::plan::Policy;
use http_balance::subset::{SubsetRules, subset};
use http_balance::{ClusterPlan, ClusterRules, EndpointId, EndpointSpec};

use crate::backend::{Backend, Behaviour};
use crate::fleet::{Fleet, id, plan};

const BLACK_HOLE: usize = 1234;

/// Attempts at the black hole from one second after its onset, for a second, and a hundredth of a fair share.
fn black_hole(fleet: &mut Fleet) -> (u64, u64) {
    fleet.run(300);
    fleet.backends[BLACK_HOLE].behaviour = Behaviour::FailsFast;
    fleet.run(1000);
    fleet.take_report();
    let before = fleet.backends[BLACK_HOLE].attempts;
    fleet.run(1000);
    let fair = fleet.take_report().attempts / u64::try_from(fleet.backends.len()).expect("a small number");
    (fleet.backends[BLACK_HOLE].attempts - before, fair / 100)
}

#[test]
fn a_black_hole_among_two_thousand_is_left_within_a_second() {
    const SEED: u64 = 3;
    let backends = (0..2000).map(|_| Backend::new(1e3, 20.0)).collect();
    let mut fleet = Fleet::new(SEED, 40, backends, &plan(&ClusterRules::default(), &[1; 2000]), 30.0);
    let (got, hundredth) = black_hole(&mut fleet);
    println!("black hole: {got} attempts, a hundredth of a fair share is {hundredth}");
    assert!(got < hundredth, "seed {SEED}: {got} attempts, {hundredth} allowed");
}

#[test]
fn with_subsets_a_tenth_of_the_traffic_is_enough_to_see_it() {
    const SEED: u64 = 4;
    let ids: Vec<EndpointId> = (0..2000).map(id).collect();
    let backends = (0..2000).map(|_| Backend::new(1e3, 20.0)).collect();
    let rules = ClusterRules::default();
    let mut fleet = Fleet::new(SEED, 160, backends, &plan(&rules, &[1; 2000]), 3.0);
    for (at, member) in (0..160).enumerate() {
        let chosen = subset(SubsetRules { member, size_min: 100 }, &ids);
        let specs = chosen.into_iter().map(|backend| EndpointSpec::new(ids[backend], 1)).collect();
        fleet.adopt(at, &Rc::new(ClusterPlan::build(rules.clone(), specs, Vec::new()).unwrap()));
    }
    let (got, hundredth) = black_hole(&mut fleet);
    assert!(got < hundredth.max(1), "seed {SEED}: {got} attempts, {hundredth} allowed");
}

fn service(seed: u64, breaker: Option<BreakerRules>) -> Fleet {
    let rules = ClusterRules {
        admission: AdmissionRules { breaker, ..AdmissionRules::default() },
        ..ClusterRules::default()
    };
    let backends = (0..200).map(|_| Backend::new(100.0, 20.0)).collect();
    Fleet::new(seed, 20, backends, &plan(&rules, &[1; 200]), 2.0)
}

fn set_all(fleet: &mut Fleet, behaviour: Behaviour) {
    fleet.backends.iter_mut().for_each(|backend| backend.behaviour = behaviour);
}

#[test]
fn a_service_that_fails_as_a_whole_gets_at_most_a_tenth_more() {
    for (seed, behaviour) in [(5, Behaviour::Refuses), (6, Behaviour::Down), (7, Behaviour::FailsFast)] {
        let mut fleet = service(seed, None);
        fleet.run(2000);
        set_all(&mut fleet, behaviour);
        fleet.take_report();
        let (mut attempts, mut requests, mut worst_permille) = (0, 0, 0);
        for second in 0..8 {
            fleet.run(1000);
            let report = fleet.take_report();
            assert!(report.failed > 0, "it does fail");
            (attempts, requests) = (attempts + report.attempts, requests + report.requests);
            worst_permille = worst_permille.max(report.attempts * 1000 / report.requests);
            assert!(
                report.attempts * 10 <= report.requests * 11,
                "seed {seed}, {behaviour:?}, second {second}: {} attempts for {} requests",
                report.attempts,
                report.requests
            );
        }
        println!(
            "{behaviour:?}: {attempts} attempts for {requests} requests, the worst second {worst_permille} ‰"
        );
        assert!(attempts * 10 <= requests * 11, "seed {seed}, {behaviour:?}: {attempts} of {requests}");
    }
}

#[test]
fn the_breaker_takes_the_load_off_and_comes_back() {
    const SEED: u64 = 8;
    let mut fleet = service(SEED, Some(BreakerRules::default()));
    fleet.run(15_000);
    assert_eq!(fleet.take_report().failed, 0);
    set_all(&mut fleet, Behaviour::FailsFast);
    fleet.run(12_000);
    let is_open = |fleet: &Fleet| {
        fleet.proxies.iter().all(|proxy| proxy.admission.breaker_state() != Some(BreakerState::Closed))
    };
    assert!(
        is_open(&fleet),
        "seed {SEED}: at most the window of good answers before the bad ones are the most"
    );
    fleet.take_report();
    fleet.run(20_000);
    let report = fleet.take_report();
    assert!(report.attempts * 20 <= report.requests, "seed {SEED}: {report:?} under an open breaker");
    set_all(&mut fleet, Behaviour::Works);
    fleet.run(12_000);
    fleet.take_report();
    fleet.run(1000);
    let report = fleet.take_report();
    assert_eq!((report.refused, report.failed), (0, 0), "seed {SEED}: closed again");
}

/// Twenty endpoints behind four proxies, of which the first gets this part of a fair share, in per cent.
fn share_of_first(fleet: &mut Fleet, milliseconds: u32) -> u64 {
    fleet.take_report();
    let before = fleet.backends[0].attempts;
    fleet.run(milliseconds);
    (fleet.backends[0].attempts - before) * 20 * 100 / fleet.take_report().attempts
}

fn twenty(seed: u64, policy: Policy) -> Fleet {
    let backends = (0..20).map(|_| Backend::new(1e6, 80.0)).collect();
    let rules = ClusterRules { policy, ..ClusterRules::default() };
    let mut fleet = Fleet::new(seed, 4, backends, &plan(&rules, &[1; 20]), 1.0);
    fleet.run(5000);
    fleet
}

#[test]
fn a_slow_endpoint_gets_little_without_being_ejected() {
    let ewma = Policy::PeakEwma(EwmaRules::default());
    for (seed, policy, percent_max) in
        [(70, Policy::LeastRequest, 15), (71, ewma, 15), (72, Policy::RoundRobin, 105)]
    {
        let mut fleet = twenty(seed, policy);
        fleet.backends[0].service_ms = 3000.0;
        fleet.run(5000);
        let share = share_of_first(&mut fleet, 10_000);
        println!("{policy:?}: a slow endpoint gets {share} % of a fair share");
        assert!(share <= percent_max, "seed {seed}, {policy:?}: {share} %");
    }
}

#[test]
fn a_flapping_endpoint_is_out_for_longer_each_time() {
    const SEED: u64 = 73;
    let mut fleet = twenty(SEED, Policy::LeastRequest);
    fleet.take_report();
    let (mut failed, mut requests) = (Vec::new(), 0);
    for _ in 0..10 {
        for half_minute in [Behaviour::FailsFast, Behaviour::Works] {
            fleet.backends[0].behaviour = half_minute;
            fleet.run(15_000);
            let report = fleet.take_report();
            failed.push(report.failed);
            requests += report.requests;
        }
    }
    println!("flapping: {failed:?} of {requests}");
    // Five failures at each of four proxies make an ejection; a return falls into a bad time or not.
    let all: u64 = failed.iter().sum();
    assert!(all * 10_000 < requests * 2, "seed {SEED}: {all} of {requests} failed");
    assert!(failed[10..].iter().sum::<u64>() <= failed[..10].iter().sum::<u64>(), "seed {SEED}: {failed:?}");
}
