//! What the fleet simulation must show, at a size that a test can afford; the figures in docs/l4.md come from the
//! example `fleet` at full size.
#![expect(clippy::tests_outside_test_module, reason = "this whole file is a test target")]

#[path = "../examples/fleet/model.rs"]
mod model;

use std::time::Duration;

use model::skew::{self, Asks, Case, Change};
use model::{Event, Measured, POLICIES, Router, Size};

const SIZE: Size = Size { boxes: 8, proxies: 40, flows: 33_000, seed: 7 };

fn worst(measured: &[Measured], event: Event) -> f64 {
    let of = measured.iter().filter(|m| m.event == event);
    of.map(|m| m.broken as f64 / m.flows as f64).fold(0.0, f64::max)
}

#[test]
fn changes_and_losses_break_far_less_than_one_in_n() {
    let bound = 1.0 / f64::from(SIZE.proxies);
    for router in [Router::Resilient, Router::Modulo] {
        let measured = model::run(SIZE, POLICIES[0], router);
        for event in Event::ALL {
            let share = worst(&measured, event);
            assert!(share < bound / 10.0, "{router:?} {}: {share} (seed {})", event.words(), SIZE.seed);
        }
    }
}

#[test]
fn second_chance_carries_a_drain_without_any_flow_table() {
    let policy = POLICIES[1];
    assert!(!policy.has_flow_table, "{}", policy.name);
    let measured = model::run(SIZE, policy, Router::Resilient);
    let drained: Vec<&Measured> = measured.iter().filter(|m| m.event == Event::ProxyDrained).collect();
    assert_eq!(drained.len(), 40);
    assert!(drained.iter().all(|m| m.rescued > 0));
}

#[test]
fn the_comparison_can_tell_good_from_bad() {
    let without = model::run(SIZE, POLICIES[2], Router::Modulo);
    let ours = model::run(SIZE, POLICIES[0], Router::Modulo);
    let modulo = model::run(SIZE, POLICIES[5], Router::Modulo);
    let event = Event::BoxLostInDrain;
    assert!(worst(&without, event) > 4.0 * worst(&ours, event), "no second chance breaks more");
    assert!(worst(&modulo, Event::ProxyDrained) > 0.9, "modulo moves nearly everything");
}

#[test]
fn a_seed_gives_the_same_run_again() {
    let small = Size { flows: 2_000, ..SIZE };
    let counts = |size| -> Vec<(usize, usize, usize)> {
        let measured = model::run(size, POLICIES[0], Router::Resilient);
        measured.iter().map(|m| (m.cut, m.broken, m.rescued)).collect()
    };
    assert_eq!(counts(small), counts(small));
    assert_ne!(counts(small), counts(Size { seed: 8, ..small }));
}

#[test]
fn machines_that_learn_of_a_change_late_break_far_less_than_one_in_n() {
    let bound = 1.0 / f64::from(SIZE.proxies);
    for change in [Change::ProxyDrained, Change::ProxyAdded] {
        for box_lost in [None, Some(Router::Resilient), Some(Router::Modulo)] {
            let share = |asks, seconds| {
                let skew = Duration::from_secs(seconds);
                skew::broken(SIZE, Case { change, asks, box_lost, skew })
            };
            let short = share(Asks::Present, 1);
            assert!(short < bound / 100.0, "{change:?} {box_lost:?}: {short} (seed {})", SIZE.seed);
            let long = share(Asks::Present, 10);
            assert!(long < bound / 10.0, "{change:?} {box_lost:?}: {long} (seed {})", SIZE.seed);
            // The comparison can tell good from bad.
            if box_lost.is_some() {
                assert!(share(Asks::PreviousOnly, 1) > 2.0 * short, "{change:?} {box_lost:?}");
                assert!(share(Asks::Nobody, 1) > bound / 50.0, "{change:?} {box_lost:?}");
            }
        }
    }
}
