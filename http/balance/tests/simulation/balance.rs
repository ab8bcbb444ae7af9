//! Load is spread evenly, by weight, and over subsets.

use std::rc::Rc;

use http_balance::subset::{SubsetRules, subset};
use http_balance::{ClusterPlan, ClusterRules, EndpointId, EndpointSpec};

use crate::backend::Backend;
use crate::fleet::{Fleet, id, plan};

/// Requests in flight for each unit of weight: of the busiest endpoint and of the median one, at this moment.
fn busiest_and_median(fleet: &Fleet, weights: &[u32]) -> (f64, f64) {
    let load = |(backend, weight): (&Backend, &u32)| f64::from(backend.in_flight) / f64::from(*weight);
    let mut loads: Vec<f64> = fleet.backends.iter().zip(weights).map(load).collect();
    loads.sort_by(f64::total_cmp);
    (loads[loads.len() - 1], loads[loads.len() / 2])
}

#[test]
fn p2c_with_mixed_weights_keeps_the_busiest_within_a_third_of_the_median() {
    const SEED: u64 = 1;
    let weights: Vec<u32> = (0..2000).map(|at| [1, 2, 4][at % 3]).collect();
    let backends = weights.iter().map(|weight| Backend::new(1e3 * f64::from(*weight), 50.0)).collect();
    let plan = plan(&ClusterRules::default(), &weights);
    let mut fleet = Fleet::new(SEED, 160, backends, &plan, 60.0);
    fleet.run(220);
    let mut worst = 0.0f64;
    for _ in 0..8 {
        fleet.run(12);
        let (busiest, median) = busiest_and_median(&fleet, &weights);
        worst = worst.max(busiest / median);
    }
    println!("busiest/median {worst:.3}");
    assert!(worst <= 1.3, "seed {SEED}: busiest/median {worst:.3}");
}

/// How many of `members` proxies keep each endpoint.
fn kept(members: u32, endpoints: &[EndpointId], size_min: u32) -> Vec<u32> {
    let mut kept = vec![0; endpoints.len()];
    for member in 0..members {
        subset(SubsetRules { member, size_min }, endpoints).into_iter().for_each(|at| kept[at] += 1);
    }
    kept
}

#[test]
fn subsets_are_even_within_a_tenth() {
    let ids: Vec<EndpointId> = (0..2000).map(id).collect();
    for (members, size_min) in
        [(160, 25), (160, 100), (160, 200), (160, 400), (155, 100), (151, 50), (5_120, 37)]
    {
        let kept = kept(members, &ids, size_min);
        let mean = f64::from(kept.iter().sum::<u32>()) / 2000.0;
        for count in kept {
            // Whole numbers around the mean, where a tenth of it is less than one.
            let off = (f64::from(count) - mean).abs();
            assert!(
                off <= mean / 10.0 || off < 1.0,
                "{members} proxies, {size_min} each: {count} of {mean:.2}"
            );
        }
    }
}

#[test]
fn load_over_subsets_is_even_within_a_tenth() {
    const SEED: u64 = 2;
    let ids: Vec<EndpointId> = (0..2000).map(id).collect();
    let backends: Vec<Backend> = ids.iter().map(|_| Backend::new(1e3, 50.0)).collect();
    let rules = ClusterRules::default();
    let mut fleet = Fleet::new(SEED, 160, backends, &plan(&rules, &[1; 2000]), 8.0);
    for (at, member) in (0..160).enumerate() {
        let chosen = subset(SubsetRules { member, size_min: 100 }, &ids);
        let specs = chosen.into_iter().map(|backend| EndpointSpec::new(ids[backend], 1)).collect();
        let plan = Rc::new(ClusterPlan::build(rules.clone(), specs, Vec::new()).unwrap());
        fleet.adopt(at, &plan);
    }
    fleet.run(2500);
    let mean = fleet.backends.iter().map(|backend| backend.attempts).sum::<u64>() / 2000;
    for backend in &fleet.backends {
        assert!(backend.attempts.abs_diff(mean) <= mean / 10, "seed {SEED}: {} of {mean}", backend.attempts);
    }
}
