//! The pages of the admin listener.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use core_runtime::mailbox::{SendError, mailbox};
use http_proxy::core::Command;
use http_proxy::survey::{ConnectionRow, EndpointRow, EndpointState, Spoken, Survey, SurveyOf, SurveyRows};
use serde_json::{Value, json};

use super::{Phase, Sources, lock};
use crate::describe::Titles;
use crate::dns::NameState;

/// How long the cores may take to answer; one that does not is left out and named.
const SURVEY_PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Page {
    pub(super) status: &'static str,
    pub(super) content_type: &'static str,
    pub(super) body: Vec<u8>,
}

impl Page {
    pub(super) fn text(status: &'static str, body: &str) -> Self {
        Self { status, content_type: "text/plain", body: body.as_bytes().to_vec() }
    }

    pub(super) fn json(value: &Value) -> Self {
        Self { status: "200 OK", content_type: "application/json", body: format!("{value}\n").into_bytes() }
    }
}

pub(super) fn page(path: &str, sources: &Sources) -> Page {
    match path {
        "/metrics" => metrics(sources),
        "/ready" => ready(sources),
        "/config" => Page::json(&config(sources)),
        "/connections" => Page::json(&connections(sources)),
        "/clusters" => Page::json(&clusters(sources)),
        "/generations" => Page::json(&generations(sources)),
        _ => Page::text("404 Not Found", "/metrics /ready /config /connections /clusters /generations\n"),
    }
}

fn metrics(sources: &Sources) -> Page {
    let mut state = lock(&sources.state);
    let state = &mut *state;
    let mut body = Vec::with_capacity(64 * 1024);
    state.aggregate.render(&state.names, &mut body);
    state.facts.render(&mut body);
    Page { status: "200 OK", content_type: "text/plain; version=0.0.4", body }
}

fn ready(sources: &Sources) -> Page {
    let phase = lock(&sources.state).phase;
    match phase {
        Phase::Ready => Page::text("200 OK", "ready\n"),
        Phase::Starting => Page::text("503 Service Unavailable", "starting\n"),
        Phase::Draining => Page::text("503 Service Unavailable", "draining\n"),
    }
}

fn config(sources: &Sources) -> Value {
    let names = lock(&sources.resolver).as_ref().map(crate::dns::Handle::state);
    let dns = match names {
        None => json!([]),
        Some(Ok(names)) => names.iter().map(dns_name).collect(),
        Some(Err(error)) => json!({ "error": error.to_string() }),
    };
    let mut config = lock(&sources.state).config.clone();
    if let Some(config) = config.as_object_mut() {
        config.insert("dns".to_owned(), dns);
    }
    config
}

fn dns_name(state: &NameState) -> Value {
    json!({
        "cluster": state.cluster,
        "name": state.name,
        "addresses": state.addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "expires_in_s": state.expires_in.map(|time| time.as_secs()),
        "stale": state.stale,
        "last_error": state.last_error,
    })
}

/// Asks every core and waits for the answers; the numbers of the cores that gave none.
fn survey(sources: &Sources, what: SurveyOf) -> (Vec<Survey>, Vec<usize>) {
    let count = sources.shards.len();
    let mut answers = Vec::with_capacity(count);
    // Without a descriptor for the answers no core has answered.
    if let Ok((reply, inbox)) = mailbox::<Survey>(count.max(1)) {
        for shard in &sources.shards {
            match shard.send(Command::Survey { what, reply: reply.clone() }) {
                Ok(()) | Err(SendError::Full(_) | SendError::Closed(_)) => {}
            }
        }
        drop(reply);
        let until = Instant::now() + SURVEY_PATIENCE;
        while answers.len() < count
            && let Ok(Some(answer)) = inbox.receive_timeout(until.saturating_duration_since(Instant::now()))
        {
            answers.push(answer);
        }
    }
    answers.sort_unstable_by_key(|answer| answer.core);
    let silent = (0..count).filter(|core| answers.iter().all(|answer| answer.core != *core)).collect();
    (answers, silent)
}

fn connections(sources: &Sources) -> Value {
    let (answers, silent) = survey(sources, SurveyOf::Connections);
    let state = lock(&sources.state);
    let mut rows = Vec::new();
    let mut left_off = 0;
    for answer in &answers {
        left_off += answer.left_off;
        if let SurveyRows::Connections(found) = &answer.rows {
            rows.extend(found.iter().map(|row| connection(answer.core, row, &state.titles)));
        }
    }
    let cores: Vec<_> = state
        .aggregate
        .cores()
        .enumerate()
        .map(|(core, stats)| {
            let gauges = stats.map(|stats| stats.gauges).unwrap_or_default();
            json!({
                "core": core,
                "connections": gauges.connections,
                "requests": gauges.requests,
                "upstream_connections": gauges.upstream_connections,
            })
        })
        .collect();
    json!({ "cores": cores, "connections": rows, "left_off": left_off, "silent_cores": silent })
}

fn connection(core: usize, row: &ConnectionRow, titles: &Titles) -> Value {
    json!({
        "core": core,
        "listener": titles.listeners.get(&row.listener.0),
        "client": row.peer.to_string(),
        "protocol": match row.protocol {
            None => "new",
            Some(Spoken::H2) => "h2",
            Some(Spoken::H1) => "h1",
            Some(Spoken::Tcp) => "tcp",
        },
        "age_ms": u64::try_from(row.age.as_millis()).unwrap_or(u64::MAX),
        "requests": row.requests,
        "in_flight": row.in_flight,
    })
}

/// What all cores together have of one endpoint.
#[derive(Default)]
struct Sum {
    hostname: Option<String>,
    in_flight: u64,
    connections_h1: usize,
    connections_h2: usize,
    cores: usize,
    cores_available: usize,
    weight: u32,
    /// In thousandths: the core where it is least.
    slow_start: u32,
    /// Over the cores, in millionths.
    share: u64,
    zone: String,
    cores_draining: usize,
    cores_unhealthy: usize,
    cores_in_panic: usize,
    /// Cause, cores, and the longest time that is left.
    ejected: Option<(&'static str, usize, Duration)>,
}

/// What all cores together have of one cluster.
#[derive(Default)]
struct Whole {
    seen: BTreeSet<usize>,
    in_flight: u64,
    cores_in_panic: usize,
    cores_breaker_open: usize,
}

impl Whole {
    fn add(&mut self, core: usize, row: &EndpointRow) {
        if self.seen.insert(core) {
            self.in_flight += row.condition.in_flight;
            self.cores_in_panic += usize::from(row.condition.is_in_panic);
            self.cores_breaker_open += usize::from(row.condition.breaker_is_open);
        }
    }
}

fn clusters(sources: &Sources) -> Value {
    let (answers, silent) = survey(sources, SurveyOf::Endpoints);
    let mut left_off = 0;
    let mut sums: BTreeMap<(u32, String), Sum> = BTreeMap::new();
    let mut wholes: BTreeMap<u32, Whole> = BTreeMap::new();
    for answer in &answers {
        left_off += answer.left_off;
        if let SurveyRows::Endpoints(rows) = &answer.rows {
            for row in rows {
                add(&mut sums, row);
                wholes.entry(row.cluster.0).or_default().add(answer.core, row);
            }
        }
    }
    let state = lock(&sources.state);
    let mut clusters: BTreeMap<u32, Vec<Value>> = BTreeMap::new();
    for ((cluster, address), sum) in sums {
        let drained = state.titles.clusters.get(&cluster).and_then(|name| state.facts.drained.get(name));
        let is_drained =
            drained.is_some_and(|drained| address.parse().is_ok_and(|address| drained.contains(&address)));
        clusters.entry(cluster).or_default().push(json!({
            "address": address,
            "hostname": sum.hostname,
            "in_flight": sum.in_flight,
            "connections_h1": sum.connections_h1,
            "connections_h2": sum.connections_h2,
            "weight": sum.weight,
            "slow_start_percent": sum.slow_start / 10,
            "share_percent": share_percent(&sum),
            "zone": Some(&sum.zone).filter(|zone| !zone.is_empty()),
            "cores": sum.cores,
            "cores_available": sum.cores_available,
            "cores_draining": sum.cores_draining,
            "drained_by_operator": is_drained,
            "cores_unhealthy": sum.cores_unhealthy,
            "cores_in_panic": sum.cores_in_panic,
            "ejected": sum.ejected.map(|(cause, cores, left)| json!({
                "cause": cause,
                "cores": cores,
                "left_ms": u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            })),
        }));
    }
    let clusters: Vec<_> = clusters
        .into_iter()
        .map(|(cluster, endpoints)| {
            let whole = wholes.remove(&cluster).unwrap_or_default();
            json!({
                "name": state.titles.clusters.get(&cluster),
                "in_flight": whole.in_flight,
                "cores": whole.seen.len(),
                "cores_in_panic": whole.cores_in_panic,
                "cores_breaker_open": whole.cores_breaker_open,
                "endpoints": endpoints,
            })
        })
        .collect();
    json!({ "clusters": clusters, "left_off": left_off, "silent_cores": silent })
}

/// The part of the requests that an endpoint is weighed for, over the cores that know it; two decimals.
fn share_percent(sum: &Sum) -> f64 {
    let cores = u64::try_from(sum.cores).unwrap_or(u64::MAX).max(1);
    let hundredths = u32::try_from(sum.share / cores / 100).unwrap_or(u32::MAX);
    f64::from(hundredths) / 100.0
}

fn add(sums: &mut BTreeMap<(u32, String), Sum>, row: &EndpointRow) {
    let sum = sums.entry((row.cluster.0, row.address.to_string())).or_default();
    sum.hostname.clone_from(&row.hostname);
    sum.in_flight += u64::from(row.in_flight);
    sum.connections_h1 += row.connections_h1;
    sum.connections_h2 += row.connections_h2;
    sum.weight = row.weight;
    sum.share += u64::from(row.share);
    sum.zone.clone_from(&row.zone);
    sum.slow_start = if sum.cores == 0 { row.slow_start } else { sum.slow_start.min(row.slow_start) };
    sum.cores += 1;
    sum.cores_in_panic += usize::from(row.in_panic);
    match row.state {
        EndpointState::Available => sum.cores_available += 1,
        EndpointState::Draining => sum.cores_draining += 1,
        EndpointState::Unhealthy => sum.cores_unhealthy += 1,
        EndpointState::Ejected { left, cause } => {
            let (_, cores, longest) = sum.ejected.unwrap_or((cause, 0, left));
            sum.ejected = Some((cause, cores + 1, longest.max(left)));
        }
    }
}

fn generations(sources: &Sources) -> Value {
    let (answers, silent) = survey(sources, SurveyOf::Generations);
    let cores: Vec<_> = answers
        .iter()
        .map(|answer| {
            let rows: &[_] = match &answer.rows {
                SurveyRows::Generations(rows) => rows,
                SurveyRows::Connections(_) | SurveyRows::Endpoints(_) => &[],
            };
            let rows = rows.iter().map(
                |row| json!({ "version": row.version, "holders": row.holders, "current": row.is_current }),
            );
            json!({ "core": answer.core, "generations": rows.collect::<Vec<_>>() })
        })
        .collect();
    json!({ "cores": cores, "silent_cores": silent })
}
