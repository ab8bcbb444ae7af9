//! Boxes and proxies come and go while 200 transfers are half-way: none may break.

use l4_abi::{Decision, Row};
use l4_tests::transfer::finish;
use l4_tests::{may_run, note};

use super::fleet::{Fleet, owner_among};

const TRANSFERS: usize = 200;

/// Which owners a change leads from and to, and what is remembered of the former.
#[derive(Clone, Copy)]
struct Change {
    from: u16,
    to: u16,
    second_chance: bool,
    /// The proxies have not heard of it.
    at_boxes_only: bool,
}

const CHANGE: Change = Change { from: 2, to: 3, second_chance: true, at_boxes_only: false };

impl Change {
    fn row(self, row: usize) -> Row {
        let current = owner_among(row, self.to);
        Row { current, previous: if self.second_chance { owner_among(row, self.from) } else { current } }
    }
}

/// Runs transfers through a change of proxies, of boxes, or of both; says how many broke.
fn broken_by(name: &str, change: Option<Change>, box_goes: bool) -> usize {
    let mut fleet = Fleet::new(change.map_or(3, |change| change.from));
    let transfers = fleet.start(TRANSFERS);
    match change {
        Some(change) if change.at_boxes_only => fleet.publish_at_boxes(|row| change.row(row)),
        Some(change) => fleet.publish(|row| change.row(row)),
        None => {}
    }
    if box_goes {
        fleet.lab.route_vips(&fleet.lab.boxes[1..]);
    }
    let broken = finish(transfers);
    let (rescued, arrived) = (fleet.at_proxies(Decision::Rescued), fleet.at_proxies(Decision::RescueArrived));
    note(&format!(
        "{name}: {} of {TRANSFERS} broken; {rescued} packets rescued, {arrived} arrived; by row at the boxes {}",
        broken.count,
        fleet.at_boxes(Decision::ForwardStateless) + fleet.at_boxes(Decision::ForwardNew),
    ));
    if change.is_some_and(|change| change.second_chance) && box_goes {
        assert!(rescued > 0 && arrived > 0, "the second chance was needed");
    }
    broken.count
}

#[test]
fn a_box_that_goes_breaks_nothing() {
    if may_run("a_box_that_goes_breaks_nothing") {
        assert_eq!(broken_by("box removed", None, true), 0);
    }
}

#[test]
fn a_proxy_that_comes_or_drains_breaks_nothing() {
    if !may_run("a_proxy_that_comes_or_drains_breaks_nothing") {
        return;
    }
    for (name, from, to) in [("proxy added", 2, 3), ("proxy drained", 3, 2)] {
        let change = Change { from, to, ..CHANGE };
        assert_eq!(broken_by(name, Some(change), false), 0, "{name}");
    }
}

#[test]
fn both_at_once_break_nothing_with_a_second_chance() {
    if !may_run("both_at_once_break_nothing_with_a_second_chance") {
        return;
    }
    for (name, from, to) in [("proxy added and box removed", 2, 3), ("proxy drained and box removed", 3, 2)] {
        let change = Change { from, to, ..CHANGE };
        assert_eq!(broken_by(name, Some(change), true), 0, "{name}");
    }
}

/// A proxy by whose table a row is another's still asks that one.
#[test]
fn proxies_that_hear_of_a_change_later_break_nothing() {
    if !may_run("proxies_that_hear_of_a_change_later_break_nothing") {
        return;
    }
    for (name, from, to) in [("added", 2, 3), ("drained", 3, 2)] {
        let change = Change { from, to, at_boxes_only: true, ..CHANGE };
        assert_eq!(broken_by(&format!("proxy {name} at the boxes and box removed"), Some(change), true), 0);
    }
}

/// The guard's own guard: without the second chance the moved share of the removed box's flows breaks.
#[test]
fn both_at_once_break_flows_without_a_second_chance() {
    if !may_run("both_at_once_break_flows_without_a_second_chance") {
        return;
    }
    let change = Change { second_chance: false, ..CHANGE };
    let broken = broken_by("the same without second chance", Some(change), true);
    // A third of the rows moved, half of the flows lost their box: a sixth of 200 is 33.
    assert!((10..70).contains(&broken), "{broken}");
}
