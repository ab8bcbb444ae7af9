//! A rolling deploy of all endpoints: drain, stop, start cold, slow start.

use std::rc::Rc;

use http_balance::plan::Standing;
use http_balance::{ClusterPlan, ClusterRules, EndpointSpec, Rng};

use crate::backend::{Backend, Behaviour};
use crate::fleet::{Fleet, id, plan};

const ENDPOINTS: usize = 2000;
const BATCH: usize = 200;

fn with_draining(draining: std::ops::Range<usize>) -> Rc<ClusterPlan> {
    let spec = |backend: usize| {
        let standing = if draining.contains(&backend) { Standing::Draining } else { Standing::Serving };
        EndpointSpec { standing, ..EndpointSpec::new(id(backend), 1) }
    };
    let specs = (0..ENDPOINTS).map(spec).collect();
    Rc::new(ClusterPlan::build(ClusterRules::default(), specs, Vec::new()).expect("a sound plan"))
}

/// The new plan reaches the proxies within half a second, each at its own moment.
fn roll_out(fleet: &mut Fleet, plan: &Rc<ClusterPlan>, rng: &mut Rng) {
    let mut arrivals: Vec<(u64, usize)> = (0..fleet.proxies.len()).map(|at| (rng.below(500), at)).collect();
    arrivals.sort_unstable();
    let began = u64::from(fleet.now_ms);
    for (after, at) in arrivals {
        fleet.run(u32::try_from(began + after - u64::from(fleet.now_ms)).expect("at most 500"));
        fleet.adopt(at, plan);
    }
    fleet.run(u32::try_from(began + 500 - u64::from(fleet.now_ms)).expect("at most 500"));
}

#[test]
fn a_rolling_deploy_loses_nothing_and_keeps_the_tail() {
    const SEED: u64 = 9;
    let backends = (0..ENDPOINTS).map(|_| Backend::new(4.0, 200.0)).collect();
    let mut fleet = Fleet::new(SEED, 20, backends, &plan(&ClusterRules::default(), &[1; ENDPOINTS]), 1.0);
    let mut rng = Rng::new(SEED);
    fleet.run(3000);
    fleet.take_report();
    fleet.run(10_000);
    let usual = fleet.take_report().percentile(990);
    let mut worst = 0;
    for batch in 0..ENDPOINTS / BATCH {
        let out = batch * BATCH..(batch + 1) * BATCH;
        roll_out(&mut fleet, &with_draining(out.clone()), &mut rng);
        fleet.run(5000);
        for backend in &mut fleet.backends[out.clone()] {
            assert_eq!(backend.in_flight, 0, "seed {SEED}: a request is left after the drain");
            backend.behaviour = Behaviour::Down;
        }
        fleet.run(4000);
        for backend in &mut fleet.backends[out] {
            (backend.behaviour, backend.started_ms) = (Behaviour::Works, Some(fleet.now_ms));
        }
        roll_out(&mut fleet, &with_draining(0..0), &mut rng);
        fleet.run(10_000);
        let report = fleet.take_report();
        assert_eq!((report.failed, report.refused), (0, 0), "seed {SEED}, batch {batch}");
        worst = worst.max(report.percentile(990));
    }
    println!("p99: {usual} ms, {worst} ms in the worst batch");
    assert!(worst * 2 < usual * 3, "seed {SEED}: p99 from {usual} ms to {worst} ms");
}
