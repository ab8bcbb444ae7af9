//! Days in a fleet's life, with transfers half-way: SYN cookies, a drain, a crash, restarts of shard-l4.

use l4_tests::may_run;
use l4_tests::transfer::{Kind, finish};
use rustix::process::Signal;
use tests::note;

use crate::site::{Site, State};

const OPEN: &str = "shard_listener_connections";
const ACCEPTED: &str = "shard_listener_connections_accepted_total";

#[test]
fn transfers_pass_all_machines_by_cookies_that_the_file_asks_for() {
    if !may_run("transfers_pass_all_machines_by_cookies_that_the_file_asks_for") {
        return;
    }
    let site = Site::start();
    let broken = finish(site.start_transfers(80));
    assert_eq!(broken.count, 0, "{broken:?}");
    let accepted = site.wait_proxies(ACCEPTED, 80);
    let [sent, taken, local, unpacked] =
        ["cookie_sent", "cookie_accepted", "local", "decapsulated"].map(|decision| site.decided(decision));
    note(&format!(
        "connections by proxy {accepted:?}; {sent} cookies sent, {taken} accepted; {local} packets met their proxy at \
         once, {unpacked} by another machine"
    ));
    assert!(accepted.iter().all(|count| *count > 8), "{accepted:?}");
    // Four machines, two CPUs: each passes a SYN or two before it begins with cookies.
    assert!(sent >= 40 && taken >= 40, "{sent} {taken}");
    assert!(local > 100 && unpacked > 100, "{local} {unpacked}");
    assert_eq!(site.decided("reset"), 0);
}

#[test]
fn a_drained_proxy_loses_nothing_and_a_killed_one_its_own_connections_only() {
    if !may_run("a_drained_proxy_loses_nothing_and_a_killed_one_its_own_connections_only") {
        return;
    }
    let mut site = Site::start();
    let before = site.start_transfers(60);
    let [.., served] = site.wait_proxies(ACCEPTED, 60);
    assert!(served > 5, "proxy 3 had its share: {served}");
    site.set_state(3, State::Draining);
    let after = site.start_transfers(40);
    assert_eq!(site.wait_proxies(ACCEPTED, 100)[2], served, "new connections avoid it");
    let broken = finish(before);
    assert_eq!(broken.count, 0, "begun before the drain: {broken:?}");
    site.proxy(3).stop_proxy();
    let broken = finish(after);
    assert_eq!(broken.count, 0, "begun in the drain: {broken:?}");

    // What is open from here on is open for the uploads.
    site.wait_proxies(OPEN, 0);
    // Uploads, because the kernel delivers what a dead proxy has written already.
    let (uploads, failed) = site.transfers(40, |_| Kind::Upload);
    assert_eq!(failed, 0);
    let [lost, ..] = site.wait_proxies(OPEN, 40);
    assert!(lost > 5, "proxy 1 has its share: {lost}");
    site.proxy(1).kill_proxy();
    let broken = finish(uploads);
    assert_eq!(u64::try_from(broken.count), Ok(lost), "{broken:?}");
    site.set_state(1, State::Down);
    let broken = finish(site.start_transfers(40));
    assert_eq!(broken.count, 0, "begun after the crash: {broken:?}");
    note(&format!("drained: 0 of 100 broken; killed: {lost} of 40, which were its own; then 0 of 40"));
}

#[test]
fn shard_l4_restarts_and_crashes_without_a_lost_connection() {
    if !may_run("shard_l4_restarts_and_crashes_without_a_lost_connection") {
        return;
    }
    let mut site = Site::start();
    let before = site.start_transfers(40);
    for (index, machine) in site.machines.iter_mut().enumerate() {
        // Every other one crashes.
        machine.end_l4(if index % 2 == 0 { Signal::TERM } else { Signal::KILL });
    }
    // No daemon runs: programs, maps and the program that takes cookies are the kernel's.
    let between = site.start_transfers(40);
    for machine in &mut site.machines {
        machine.start_l4();
        let log = machine.l4().log();
        assert!(log.contains("starting from the tables in the kernel"), "{log}");
        assert!(log.contains("replaced the running program"), "{log}");
    }
    let remembered = site.decided("forward_new");
    let broken = finish(before.into_iter().chain(between).collect());
    assert_eq!(broken.count, 0, "begun before: {broken:?}");
    assert_eq!(site.decided("forward_new"), remembered, "the flow tables outlived the restart");
    let broken = finish(site.start_transfers(40));
    assert_eq!(broken.count, 0, "begun after: {broken:?}");
    assert_eq!(site.decided("reset") + site.decided("rescued"), 0);
    let cookies = site.decided("cookie_accepted");
    note(&format!("restarts: 0 of 120 broken; {remembered} flows remembered; {cookies} cookies accepted"));
}
