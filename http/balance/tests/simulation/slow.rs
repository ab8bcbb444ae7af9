//! A cluster that goes from 80 ms to 3 s: what waits stays bounded, classes go in order, and all comes back.

use http_balance::ClusterRules;
use http_balance::admission::AdmissionRules;
use http_balance::gradient::GradientRules;
use http_balance::shed::{Class, ShedRules};

use crate::backend::Backend;
use crate::fleet::{Fleet, Report, plan};

const CLASSES: &[Class] = &[Class::Critical, Class::Standard, Class::Free, Class::Sheddable];

/// Four proxies with a thousand requests a second each: 80 in flight when all is well.
fn search(seed: u64, admission: AdmissionRules) -> Fleet {
    let rules = ClusterRules { admission, ..ClusterRules::default() };
    let backends = (0..20).map(|_| Backend::new(1e6, 80.0)).collect();
    let mut fleet = Fleet::new(seed, 4, backends, &plan(&rules, &[1; 20]), 1.0);
    fleet.classes = CLASSES;
    fleet.run(20_000);
    let report = fleet.take_report();
    assert_eq!(report.refused, 0, "seed {seed}: nothing is refused while all is well");
    fleet
}

fn set_service(fleet: &mut Fleet, ms: f64) {
    fleet.backends.iter_mut().for_each(|backend| backend.service_ms = ms);
}

/// Thousandths of each class that were refused, in the order of [`CLASSES`].
fn refused(report: &Report) -> Vec<u64> {
    let part = |class| report.by_class.get(class).map_or(0, |(refused, all)| refused * 1000 / all);
    CLASSES.iter().map(part).collect()
}

fn most_in_flight(fleet: &Fleet) -> u32 {
    fleet.proxies.iter().map(|proxy| proxy.admission.in_flight()).max().unwrap_or(0)
}

#[test]
fn under_a_cap_the_classes_go_in_order_and_come_back() {
    const SEED: u64 = 60;
    let shed = Some(ShedRules::default());
    let admission = AdmissionRules { in_flight_max: Some(1000), shed, ..AdmissionRules::default() };
    let mut fleet = search(SEED, admission);
    set_service(&mut fleet, 3000.0);
    for second in 0..30 {
        fleet.run(1000);
        assert!(most_in_flight(&fleet) <= 1000, "seed {SEED}, second {second}");
        let refused = refused(&fleet.take_report());
        let in_order = refused.windows(2).all(|pair| pair[1] + 30 >= pair[0]);
        assert!(in_order, "seed {SEED}, second {second}: {refused:?}");
        if second >= 10 {
            assert!(refused[0] < 50 && refused[3] > 950, "seed {SEED}, second {second}: {refused:?}");
        }
    }
    set_service(&mut fleet, 80.0);
    fleet.run(20_000);
    fleet.take_report();
    fleet.run(5_000);
    assert_eq!(fleet.take_report().refused, 0, "seed {SEED}");
}

#[test]
fn adaptive_concurrency_finds_a_low_limit_and_gives_it_up() {
    const SEED: u64 = 61;
    let admission = AdmissionRules { gradient: Some(GradientRules::default()), ..AdmissionRules::default() };
    let mut fleet = search(SEED, admission);
    set_service(&mut fleet, 3000.0);
    fleet.run(25_000);
    let waiting = most_in_flight(&fleet);
    assert!(waiting < 100, "seed {SEED}: {waiting} wait where 3,000 would");
    set_service(&mut fleet, 80.0);
    fleet.run(60_000);
    fleet.take_report();
    fleet.run(5_000);
    assert_eq!(fleet.take_report().refused, 0, "seed {SEED}");
}
