//! What shardctl l4 says of a fleet, against what its packets do.

use std::process::Output;

use l4_tests::may_run;
use l4_tests::transfer::finish;
use serde_json::Value;
use tests::note;

use crate::site::{Machine, Site};

const ACCEPTED: &str = "shard_listener_connections_accepted_total";

/// What it prints, when it ends well.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn json(machine: &Machine, words: &[&str]) -> Value {
    let text = said(&machine.shardctl(&[&["--json"], words].concat()));
    serde_json::from_str(&text).unwrap_or_else(|error| unreachable!("{words:?}: {error}: {text}"))
}

#[test]
fn lookup_flows_and_counters_agree_with_what_proxies_see() {
    if !may_run("lookup_flows_and_counters_agree_with_what_proxies_see") {
        return;
    }
    let site = Site::start();
    let connections = site.connect(30);
    let mut by_proxy = [0; 3];
    let mut hashes = Vec::new();
    for (from, to, _) in &connections {
        // Any machine knows: the box, of which only a fourth of the packets came, is asked for all.
        let found = json(&site.machines[0], &["lookup", "tcp", &from.to_string(), &to.to_string()]);
        let name = found["goes_to"].as_str().unwrap_or_else(|| unreachable!("{found}"));
        let id: usize = name.trim_start_matches('p').parse().expect("p1, p2 or p3");
        by_proxy[id - 1] += 1;
        hashes.push(found["hash"].as_str().expect("a hash").to_owned());
    }
    assert_eq!(site.wait_proxies(ACCEPTED, 30), by_proxy, "each connection is where lookup says");
    let flows: Vec<String> =
        site.machines.iter().map(|machine| said(&machine.shardctl(&["flows", "--max", "10000"]))).collect();
    for hash in &hashes {
        assert!(flows.iter().any(|text| text.contains(hash.as_str())), "{hash}: {flows:?}");
    }
    // Beside the metrics, which are another door to the same maps.
    let web = |machine: &Machine, decision: &str| {
        let counters = json(machine, &["counters"]);
        let vip =
            counters["vips"].as_array().and_then(|vips| vips.iter().find(|vip| vip["vip"] == "web").cloned());
        vip.and_then(|vip| vip["decisions"][decision].as_u64()).unwrap_or(0)
    };
    let taken: u64 = site.machines.iter().map(|machine| web(machine, "cookie_accepted")).sum();
    assert_eq!(taken, site.decided("cookie_accepted"));
    assert!(taken > 0, "the file asks for cookies");
    note(&format!("30 connections at the proxies that shardctl l4 lookup names: {by_proxy:?}"));
}

#[test]
fn trace_show_and_drain_tell_and_do_what_they_say() {
    if !may_run("trace_show_and_drain_tell_and_do_what_they_say") {
        return;
    }
    let site = Site::start();
    let client = "10.1.1.2:";
    let traced = std::thread::scope(|scope| {
        let tracing =
            scope.spawn(|| said(&site.machines[1].shardctl(&["trace", "--one-in", "1", "--seconds", "3"])));
        while !tracing.is_finished() {
            assert_eq!(finish(site.start_transfers(8)).count, 0);
        }
        tracing.join().expect("no panic")
    });
    let lines: Vec<&str> =
        traced.lines().filter(|line| line.contains(" web ") && line.contains(client)).collect();
    assert!(!lines.is_empty(), "{traced}");
    // Off again: nothing is sampled for the next one who asks.
    let settings = json(&site.machines[1], &["show"]);
    assert!(settings["phase"] == "ready", "{settings}");

    let shown = json(&site.machines[2], &["show"]);
    let proxies = shown["proxies"].as_array().expect("a list");
    let rows: u64 = proxies.iter().filter_map(|proxy| proxy["rows"].as_u64()).sum();
    assert_eq!(rows, 65_537);
    let local: Vec<&str> = proxies
        .iter()
        .filter(|proxy| proxy["local"] == true)
        .filter_map(|proxy| proxy["name"].as_str())
        .collect();
    assert_eq!(local, ["p2"], "machine 2 is proxy 2");
    let table = said(&site.machines[2].shardctl(&["show"]));
    assert!(table.contains("p1") && table.contains("192.0.2.10"), "{table}");

    let ready = || site.machines[0].shardctl(&["ready"]).status.code();
    assert_eq!(ready(), Some(0));
    assert!(said(&site.machines[0].shardctl(&["drain"])).contains("drained"));
    assert_eq!(ready(), Some(1));
    // A drained box attracts no packets; those that still come are forwarded.
    assert_eq!(finish(site.start_transfers(16)).count, 0);
    assert!(said(&site.machines[0].shardctl(&["drain", "--undo"])).contains("ready"));
    assert_eq!(ready(), Some(0));
    note(&format!("{} decisions of a client traced", lines.len()));
}
