//! The counters in Prometheus's text format (docs/l4.md lists them).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use l4_abi::Decision;
use l4_load::{Maps, Result};
use l4_steer::rollout::Rollout;

use crate::desired;
use crate::feed;
use crate::service::Facts;

/// Writes everything that is counted.
///
/// # Errors
/// When a map cannot be read.
pub(crate) fn text(
    maps: &Maps,
    rollout: &Rollout,
    ids: &BTreeMap<String, u32>,
    facts: &Facts,
) -> Result<String> {
    let mut out = String::with_capacity(16 * 1024);
    service(&mut out, rollout, facts);
    vips(&mut out, maps, ids)?;
    owners(&mut out, maps, rollout)?;
    rules(&mut out, maps, ids)?;
    Ok(out)
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    add(out, format_args!("# HELP shard_l4_{name} {help}\n# TYPE shard_l4_{name} {kind}\n"));
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a String takes everything");
}

fn single(out: &mut String, name: &str, kind: &str, help: &str, value: u64) {
    head(out, name, kind, help);
    add(out, format_args!("shard_l4_{name} {value}\n"));
}

fn service(out: &mut String, rollout: &Rollout, facts: &Facts) {
    let mixed = rollout.rows().iter().filter(|row| row.current != row.previous).count();
    let left = rollout.drain_ends().map_or(0, |ends| ends.saturating_sub(facts.now).as_secs());
    head(out, "config_info", "gauge", "The config and the list of proxies in force.");
    add(
        out,
        format_args!(
            "shard_l4_config_info{{config=\"{}\",list=\"{}\"}} 1\n",
            facts.config_version,
            rollout.list().version()
        ),
    );
    for (name, kind, help, value) in [
        ("ready", "gauge", "Whether everything is loaded and attached.", u64::from(facts.is_ready)),
        ("announced", "gauge", "Whether the VIPs are announced.", u64::from(facts.is_announced)),
        ("rows_with_previous", "gauge", "Rows that have another previous owner.", count(mixed)),
        ("drain_seconds_left", "gauge", "Until the next planned change of the proxies may come.", left),
        ("change_waiting", "gauge", "Whether such a change waits.", u64::from(rollout.waiting().is_some())),
        ("reloads_applied_total", "counter", "Files that were loaded and taken.", facts.reloads_applied),
        ("reloads_refused_total", "counter", "Files that were refused.", facts.reloads_refused),
        ("feed_errors_total", "counter", "Writes to the kernel's maps that failed.", facts.feed_errors),
        ("announce_errors_total", "counter", "Announcements that failed.", facts.announce_errors),
        ("rows_moved_total", "counter", "Rows that got a new owner.", facts.rows_moved),
        ("rows_lost_total", "counter", "Moved rows whose former owner was gone.", facts.rows_lost),
        (
            "rows_forgotten_total",
            "counter",
            "Rows that forgot a previous owner that was still there.",
            facts.rows_forgotten,
        ),
    ] {
        single(out, name, kind, help, value);
    }
}

fn vips(out: &mut String, maps: &Maps, ids: &BTreeMap<String, u32>) -> Result<()> {
    let none = ("none".to_owned(), 0);
    let all: Vec<(String, u32)> =
        std::iter::once(none).chain(ids.iter().map(|(name, id)| (name.clone(), *id))).collect();
    head(out, "packets_total", "counter", "Packets by what became of them; vip=\"none\" were for no VIP.");
    let mut bytes = Vec::new();
    for (name, id) in &all {
        let counts = maps.vip_counts(*id)?;
        for decision in Decision::ALL {
            let packets = counts.of(decision);
            // Of the many decisions only those that happen are series.
            if packets > 0 {
                let decision = decision.name();
                add(
                    out,
                    format_args!(
                        "shard_l4_packets_total{{vip=\"{name}\",decision=\"{decision}\"}} {packets}\n"
                    ),
                );
            }
        }
        bytes.push((name, counts.forwarded_bytes));
    }
    head(
        out,
        "forwarded_bytes_total",
        "counter",
        "Bytes of packets that were encapsulated, without the outer header.",
    );
    for (name, bytes) in bytes {
        add(out, format_args!("shard_l4_forwarded_bytes_total{{vip=\"{name}\"}} {bytes}\n"));
    }
    head(out, "second_chances", "gauge", "Packets without a socket since the last change of a VIP's table.");
    for (name, id) in ids {
        let counts = maps.rescue_counts(*id)?;
        for (outcome, packets) in [("rescued", counts.rescued), ("reset", counts.reset)] {
            let version = counts.version;
            add(
                out,
                format_args!(
                    "shard_l4_second_chances{{vip=\"{name}\",outcome=\"{outcome}\",table=\"{version}\"}} {packets}\n"
                ),
            );
        }
    }
    Ok(())
}

fn owners(out: &mut String, maps: &Maps, rollout: &Rollout) -> Result<()> {
    let names: Vec<_> = rollout.reachable().map(|owner| (owner.name.clone(), owner.id)).collect();
    let mut counts = Vec::new();
    for (_, id) in &names {
        counts.push(maps.owner_counts(id.get())?);
    }
    for (name, kind, help) in [
        ("owner_packets_total", "counter", "Packets sent to a proxy."),
        ("owner_bytes_total", "counter", "Their bytes, without the outer header."),
        ("owner_rows", "gauge", "Rows that a proxy owns."),
        ("owner_rows_previous", "gauge", "Rows of others in which it is asked second."),
    ] {
        head(out, name, kind, help);
        for ((owner, id), counts) in names.iter().zip(&counts) {
            let value = match name {
                "owner_packets_total" => counts.packets,
                "owner_bytes_total" => counts.bytes,
                "owner_rows" => count(desired::shares(rollout, *id).0),
                _ => count(desired::shares(rollout, *id).1),
            };
            add(out, format_args!("shard_l4_{name}{{owner=\"{owner}\"}} {value}\n"));
        }
    }
    Ok(())
}

fn rules(out: &mut String, maps: &Maps, ids: &BTreeMap<String, u32>) -> Result<()> {
    head(out, "rule_dropped_total", "counter", "Packets that a drop rule dropped.");
    for (key, rule) in maps.rules()? {
        let (vip, address, bits) = feed::rule_of(&key);
        let name = ids.iter().find(|(_, id)| **id == vip).map_or("", |(name, _)| name.as_str());
        let dropped = rule.dropped;
        add(
            out,
            format_args!(
                "shard_l4_rule_dropped_total{{vip=\"{name}\",source=\"{address}/{bits}\"}} {dropped}\n"
            ),
        );
    }
    Ok(())
}

fn count(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}
