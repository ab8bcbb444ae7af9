//! Clusters of one, two, three and five endpoints: ejection caps, panic and breakers.

use http_balance::admission::AdmissionRules;
use http_balance::breaker::{BreakerRules, BreakerState};
use http_balance::endpoint::{Availability, Health, Slot};
use http_balance::{ClusterRules, Event};

use crate::backend::{Backend, Behaviour};
use crate::fleet::{Fleet, plan};

const SIZES: [usize; 4] = [1, 2, 3, 5];

fn fleet(seed: u64, endpoints: usize, breaker: Option<BreakerRules>) -> Fleet {
    let rules = ClusterRules {
        admission: AdmissionRules { breaker, ..AdmissionRules::default() },
        ..ClusterRules::default()
    };
    let backends = (0..endpoints).map(|_| Backend::new(1000.0, 5.0)).collect();
    Fleet::new(seed, 4, backends, &plan(&rules, &vec![1; endpoints]), 0.5)
}

fn ejected(fleet: &Fleet, proxy: usize) -> usize {
    let proxy = &fleet.proxies[proxy];
    let out = |view: &http_balance::cluster::EndpointView| {
        matches!(view.availability, Availability::Ejected { .. })
    };
    proxy.state.views(&proxy.plan, fleet.now()).filter(out).count()
}

#[test]
fn one_bad_endpoint_is_left_unless_it_is_the_only_one() {
    for (seed, endpoints) in (20..).zip(SIZES) {
        for behaviour in [Behaviour::FailsFast, Behaviour::Down] {
            let mut fleet = fleet(seed, endpoints, None);
            fleet.run(1000);
            fleet.backends[0].behaviour = behaviour;
            fleet.run(1000);
            fleet.take_report();
            fleet.run(5000);
            let report = fleet.take_report();
            for proxy in 0..4 {
                assert_eq!(ejected(&fleet, proxy), usize::from(endpoints > 1), "seed {seed}: {endpoints}");
            }
            assert_eq!(report.failed == 0, endpoints > 1, "seed {seed}: {endpoints}, {behaviour:?}");
        }
    }
}

#[test]
fn when_all_are_bad_at_most_one_goes_and_the_rest_is_asked() {
    for (seed, endpoints) in (30..).zip(SIZES) {
        let mut fleet = fleet(seed, endpoints, None);
        fleet.backends.iter_mut().for_each(|backend| backend.behaviour = Behaviour::FailsFast);
        fleet.run(5000);
        let report = fleet.take_report();
        for proxy in 0..4 {
            assert_eq!(ejected(&fleet, proxy), usize::from(endpoints > 1), "seed {seed}: {endpoints}");
            assert!(
                !fleet.proxies[proxy].state.is_in_panic(),
                "seed {seed}: ejection stays above the threshold"
            );
        }
        assert_eq!(report.refused, 0);
        let told =
            fleet.proxies[0].events.iter().filter(|event| matches!(event, Event::NotEjected { .. })).count();
        assert!(told > 0, "seed {seed}: {endpoints}: refused ejections are told");
        // They recover: nobody is kept out for longer than its time and a tenth.
        fleet.backends.iter_mut().for_each(|backend| backend.behaviour = Behaviour::Works);
        fleet.run(34_000);
        fleet.take_report();
        fleet.run(1000);
        assert_eq!((ejected(&fleet, 0), fleet.take_report().failed), (0, 0), "seed {seed}: {endpoints}");
    }
}

#[test]
fn health_below_half_is_panic_and_above_is_not() {
    for (seed, endpoints) in (40..).zip(SIZES) {
        for down in 0..=endpoints {
            let mut fleet = fleet(seed, endpoints, None);
            fleet.run(500);
            for backend in 0..down {
                fleet.backends[backend].behaviour = Behaviour::Down;
                let now = fleet.now();
                for proxy in &mut fleet.proxies {
                    let slot = proxy.state.slot_at(backend).unwrap_or(Slot(0));
                    proxy.state.set_health(slot, Health::Unhealthy, now);
                }
            }
            fleet.run(500);
            fleet.take_report();
            let before: Vec<u64> = fleet.backends.iter().map(|backend| backend.attempts).collect();
            fleet.run(1000);
            let is_panic = (endpoints - down) * 2 < endpoints;
            for proxy in &fleet.proxies {
                assert_eq!(
                    proxy.state.is_in_panic(),
                    is_panic,
                    "seed {seed}: {down} of {endpoints} are down"
                );
            }
            for (at, backend) in fleet.backends.iter().enumerate() {
                let is_asked = backend.attempts > before[at];
                assert_eq!(
                    is_asked,
                    is_panic || at >= down,
                    "seed {seed}: {at} with {down} of {endpoints} down"
                );
            }
            assert_eq!(fleet.take_report().failed > 0, is_panic, "seed {seed}: {down} of {endpoints}");
        }
    }
}

#[test]
fn a_breaker_opens_on_the_whole_cluster_and_closes_after_it() {
    for (seed, endpoints) in (50..).zip(SIZES) {
        let mut fleet = fleet(seed, endpoints, Some(BreakerRules::default()));
        fleet.run(2000);
        fleet.backends.iter_mut().for_each(|backend| backend.behaviour = Behaviour::FailsFast);
        fleet.run(5000);
        fleet.take_report();
        fleet.run(4000);
        let report = fleet.take_report();
        for proxy in &fleet.proxies {
            let state = proxy.admission.breaker_state();
            assert!(matches!(state, Some(BreakerState::Open { .. })), "seed {seed}: {endpoints}: {state:?}");
        }
        assert_eq!(report.requests, report.refused, "seed {seed}: open for ten seconds");
        fleet.backends.iter_mut().for_each(|backend| backend.behaviour = Behaviour::Works);
        fleet.run(12_000);
        fleet.take_report();
        fleet.run(1000);
        let report = fleet.take_report();
        assert_eq!((report.refused, report.failed), (0, 0), "seed {seed}: {endpoints}: closed again");
    }
}
