//! The pages that shardctl l4 shows, as JSON: the present state, flows, where a packet would go, sampled decisions.

use std::net::{IpAddr, SocketAddr};

use l4_abi::hash::{self, HashKeys};
use l4_abi::{Decision, TraceEvent, VIP_QUIC, unmapped};
use l4_load::{Result, VipKey};
use l4_steer::config::{Fragments, Ports, Protocol, Vip};
use l4_steer::owner::OwnerId;
use serde_json::{Value, json};

use crate::desired;
use crate::feed;
use crate::service::Service;

/// Events in one answer; the rest waits in the kernel's ring, which drops when it is full.
const TRACE_EVENTS_MAX: usize = 20_000;

/// What is in force.
pub(crate) fn show(service: &Service) -> Value {
    let facts = &service.facts;
    let rollout = &service.rollout;
    let left = |ends: Option<std::time::Duration>| ends.map(|ends| ends.saturating_sub(facts.now).as_secs());
    let proxies: Vec<Value> = rollout
        .list()
        .owners()
        .iter()
        .chain(rollout.reachable().filter(|owner| rollout.list().get(owner.id).is_none()))
        .map(|owner| {
            let (rows, rows_previous) = desired::shares(rollout, owner.id);
            let address = service.addresses.get(&owner.id);
            json!({
                "name": owner.name,
                "id": owner.id.get(),
                "address": address.map(ToString::to_string),
                "state": desired::state_word(rollout, owner.id),
                "weight": owner.weight,
                "rows": rows,
                "rows_previous": rows_previous,
                "local": address.is_some_and(|address| service.config.host.owns(*address)),
            })
        })
        .collect();
    json!({
        "config": service.config.version,
        "list": rollout.list().version().to_string(),
        "list_waiting": rollout.waiting().map(|list| list.version().to_string()),
        "phase": facts.phase.word(),
        "announced": facts.is_announced,
        "drain_ends_in_s": left(rollout.drain_ends()),
        "rescue_ends_in_s": left(rollout.rescue_ends()),
        "interfaces": service.interfaces.iter().map(|(name, mode)| json!({ "name": name, "mode": mode })).collect::<Vec<_>>(),
        "proxies": proxies,
        "vips": service.config.vips.iter().map(|vip| vip_json(vip, service)).collect::<Vec<_>>(),
        "drop_rules": service.desired.rules.len(),
    })
}

fn vip_json(vip: &Vip, service: &Service) -> Value {
    let ports = match &vip.ports {
        Ports::Every => json!("every"),
        Ports::These(ports) => json!(ports),
    };
    json!({
        "name": vip.name,
        "id": service.ids.get(&vip.name),
        "addresses": vip.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "ports": ports,
        "protocols": vip.protocols.iter().map(|protocol| protocol.word()).collect::<Vec<_>>(),
    })
}

/// All counters that are not zero.
pub(crate) fn counters(service: &mut Service) -> Result<Value> {
    let owners: Vec<(String, OwnerId)> =
        service.rollout.reachable().map(|owner| (owner.name.clone(), owner.id)).collect();
    let ids = service.ids.clone();
    let maps = service.program.maps();
    let mut vips = Vec::new();
    for (name, id) in std::iter::once(("none", 0)).chain(ids.iter().map(|(name, id)| (name.as_str(), *id))) {
        let counts = maps.vip_counts(id)?;
        let decisions: serde_json::Map<String, Value> = Decision::ALL
            .into_iter()
            .filter(|decision| counts.of(*decision) > 0)
            .map(|decision| (decision.name().to_owned(), json!(counts.of(decision))))
            .collect();
        let rescue = maps.rescue_counts(id)?;
        vips.push(json!({
            "vip": name,
            "decisions": decisions,
            "forwarded_bytes": counts.forwarded_bytes,
            "table": rescue.version,
            "rescued_since_table": rescue.rescued,
            "reset_since_table": rescue.reset,
        }));
    }
    let mut proxies = Vec::new();
    for (name, id) in owners {
        let counts = maps.owner_counts(id.get())?;
        proxies.push(json!({ "proxy": name, "packets": counts.packets, "bytes": counts.bytes }));
    }
    let mut rules = Vec::new();
    for (key, rule) in maps.rules()? {
        let (vip, address, bits) = feed::rule_of(&key);
        let name = ids.iter().find(|(_, id)| **id == vip).map(|(name, _)| name);
        rules.push(json!({
            "vip": name,
            "source": format!("{address}/{bits}"),
            "packets_per_second": rule.packets_per_s,
            "dropped": rule.dropped,
        }));
    }
    Ok(json!({ "vips": vips, "proxies": proxies, "drop_rules": rules }))
}

/// Up to `max` remembered flows.
pub(crate) fn flows(service: &mut Service, max: usize) -> Result<Value> {
    let rollout = &service.rollout;
    let names: Vec<(u16, String)> =
        rollout.reachable().map(|owner| (owner.id.get(), owner.name.clone())).collect();
    let maps = service.program.maps();
    let mut list = Vec::new();
    for (hash, flow) in maps.flows(max)? {
        let owner = names.iter().find(|(id, _)| *id == flow.owner).map(|(_, name)| name);
        list.push(json!({
            "hash": format!("{hash:016x}"),
            "proxy": owner,
            "id": flow.owner,
            "idle_s": maps.flow_age(&flow)?.as_secs(),
        }));
    }
    Ok(json!({ "flows": list }))
}

/// Where a packet of a flow would go, and why.
pub(crate) fn lookup(
    service: &mut Service,
    protocol: Protocol,
    source: SocketAddr,
    destination: SocketAddr,
) -> Result<Value> {
    let key = |port| VipKey { address: destination.ip(), port, protocol: protocol.number() };
    let vips = &service.desired.vips;
    let Some(vip) = vips.get(&key(destination.port())).or_else(|| vips.get(&key(0))).copied() else {
        return Ok(
            json!({ "vip": null, "goes_to": null, "because": "no VIP has this address, port and protocol" }),
        );
    };
    let name = service.ids.iter().find(|(_, id)| **id == vip.id).map(|(name, _)| name.clone());
    let is_whole = name
        .as_deref()
        .and_then(|name| service.config.vip(name))
        .is_some_and(|vip| vip.fragments == Fragments::Forward);
    let port = |address: SocketAddr| if is_whole { SocketAddr::new(address.ip(), 0) } else { address };
    let keys = HashKeys::new(&service.config.hash_secret.0);
    let hash = keys.flow(port(source), port(destination), protocol.number());
    let at = hash::row(hash);
    let row = service.rollout.rows().get(at).copied().unwrap_or_default();
    let flow = service.program.maps().flow(hash)?;
    let kept = service.program.maps().flow_bits();
    let age = match &flow {
        Some(flow) => Some(service.program.maps().flow_age(flow)?),
        None => None,
    };
    let is_fresh = age.is_some_and(|age| age < service.config.flows.idle);
    let known = flow.filter(|flow| is_fresh && service.desired.owners.contains_key(&flow.owner));
    let proxy = |id: u16| {
        let owner = service.rollout.reachable().find(|owner| owner.id.get() == id);
        owner.map(|owner| owner.name.clone())
    };
    let rule = service.desired.rule_for(vip.id, source.ip(), l4_load::monotonic_ns());
    let is_dropped = rule.is_some_and(|(_, limit)| limit.packets_per_s == 0);
    let goes_to = proxy(known.map_or(row.current, |flow| flow.owner)).filter(|_| !is_dropped);
    let because = match (known, &goes_to) {
        _ if is_dropped => "a drop rule drops it",
        (Some(_), _) => "the flow table knows it",
        (None, None) => "its row has no proxy that is up",
        (None, Some(_)) if vip.flags & VIP_QUIC != 0 => "of its row, unless its connection id names a proxy",
        (None, Some(_)) => "of its row",
    };
    Ok(json!({
        "vip": name,
        "rule": rule.map(|((source, bits), limit)| {
            json!({ "source": format!("{source}/{bits}"), "packets_per_second": limit.packets_per_s })
        }),
        "hash": format!("{:016x}", hash & kept),
        "row": at,
        "current": proxy(row.current),
        "previous": proxy(row.previous),
        "flow": flow.map(|flow| json!({ "proxy": proxy(flow.owner), "idle_s": age.map(|age| age.as_secs()) })),
        "goes_to": goes_to,
        "because": because,
    }))
}

/// The decisions that were sampled since the last question.
pub(crate) fn trace(service: &mut Service) -> Value {
    let names: Vec<(u32, String)> = service.ids.iter().map(|(name, id)| (*id, name.clone())).collect();
    let proxies: Vec<(u16, String)> =
        service.rollout.reachable().map(|owner| (owner.id.get(), owner.name.clone())).collect();
    let mut events = Vec::new();
    let maps = service.program.maps();
    let kept = maps.flow_bits();
    maps.trace(|event| {
        if events.len() < TRACE_EVENTS_MAX {
            events.push(event_json(&TraceEvent { flow: event.flow & kept, ..*event }, &names, &proxies));
        }
    });
    json!({ "events": events })
}

fn event_json(event: &TraceEvent, vips: &[(u32, String)], proxies: &[(u16, String)]) -> Value {
    let decision = Decision::ALL.get(usize::from(event.decision)).map(|decision| decision.name());
    let address = |bytes: [u8; 16], port: [u8; 2]| -> String {
        let address: IpAddr = unmapped(bytes);
        SocketAddr::new(address, u16::from_be_bytes(port)).to_string()
    };
    json!({
        "time_ns": event.time_ns,
        "decision": decision,
        "vip": vips.iter().find(|(id, _)| *id == event.vip).map(|(_, name)| name),
        "proxy": proxies.iter().find(|(id, _)| *id == event.owner).map(|(_, name)| name),
        "source": address(event.source, event.source_port),
        "destination": address(event.destination, event.destination_port),
        "protocol": event.protocol,
        "bytes": event.packet_bytes,
        "hash": format!("{:016x}", event.flow),
    })
}
