//! Sticky sessions: rules, cookie and keys reach the snapshot, the rings of the past are remembered, and what cannot be is
//! refused by name.

use std::time::Duration;

use control_api::envoy::cluster::Cluster;
use control_api::envoy::cluster::cluster::LbPolicy;
use control_api::envoy::core::{DataSource, Metadata, data_source};
use control_api::envoy::tls::{GenericSecret, Secret, TlsSessionTicketKeys, secret};
use control_api::shard::v1;
use control_api::{Resources, to_any};
use http_balance::sticky::{CookieKey, CookieMac, StickyRules};

use super::super::compile_for;
use super::{assignment, compiled, endpoint, refusal, seconds, small};
use crate::snapshot::model::ClusterConfig;
use crate::snapshot::{Host, Snapshot, StatFamily, StatRegistry};

fn secret(name: &str, bytes: usize) -> Secret {
    let specifier = Some(data_source::Specifier::InlineBytes(name.bytes().cycle().take(bytes).collect()));
    let source = DataSource { specifier, ..Default::default() };
    let generic = GenericSecret { secret: Some(source), ..Default::default() };
    Secret { name: name.to_owned(), r#type: Some(secret::Type::GenericSecret(generic)) }
}

fn sticky() -> v1::Sticky {
    v1::Sticky { keys: vec!["a".to_owned()], ..Default::default() }
}

fn with(edit: impl FnOnce(&mut v1::Sticky, &mut Cluster)) -> Resources {
    let mut resources = small();
    for name in ["a", "b", "c"] {
        resources.secrets.insert(secret(name, 32));
    }
    let tickets = secret::Type::SessionTicketKeys(TlsSessionTicketKeys {
        keys: secret("t", 80).r#type.into_iter().filter_map(source_of).collect(),
    });
    resources.secrets.insert(Secret { name: "tickets".to_owned(), r#type: Some(tickets) });
    let mut sticky = sticky();
    edit(&mut sticky, &mut resources.clusters[0]);
    let options = v1::ClusterOptions { sticky: Some(sticky), ..Default::default() };
    resources.clusters[0].metadata = Some(Metadata {
        typed_filter_metadata: [(v1::KEY.to_owned(), to_any(&options))].into(),
        ..Default::default()
    });
    resources
}

fn source_of(kind: secret::Type) -> Option<DataSource> {
    match kind {
        secret::Type::GenericSecret(generic) => generic.secret,
        _ => None,
    }
}

fn cluster(edit: impl FnOnce(&mut v1::Sticky, &mut Cluster)) -> ClusterConfig {
    compiled(&with(edit)).clusters.remove(0)
}

#[test]
fn unset_is_the_documented_default() {
    let plain = compiled(&small()).clusters.remove(0);
    assert!(plain.sticky.is_none() && plain.plan.rules.sticky.is_none(), "off");
    let found = cluster(|_, _| {});
    assert_eq!(found.plan.rules.sticky, Some(StickyRules::default()));
    let cookie = found.sticky.expect("on");
    assert_eq!(cookie.attributes, "; Path=/; HttpOnly; SameSite=Lax");
    let digits = cookie.cookie.strip_prefix("shard-").expect("a name that says whose it is");
    assert!(digits.len() == 8 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{digits}");
    assert_ne!(cookie.tag(CookieKey::Current, b"m"), None);
    assert_eq!(cookie.tag(CookieKey::Previous, b"m"), None);
}

#[test]
fn every_field_reaches_the_snapshot() {
    let found = cluster(|sticky, _| {
        sticky.cookie = "sid".to_owned();
        sticky.path = "/shop".to_owned();
        sticky.max_age = seconds(60);
        sticky.keys = vec!["b".to_owned(), "a".to_owned()];
        sticky.overlap = seconds(5);
        sticky.virtual_nodes = Some(100);
    });
    let rules = StickyRules { overlap: Duration::from_secs(5), virtual_nodes: 100 };
    assert_eq!(found.plan.rules.sticky, Some(rules));
    let cookie = found.sticky.expect("on");
    assert_eq!(cookie.cookie, "sid");
    assert_eq!(cookie.attributes, "; Path=/shop; HttpOnly; SameSite=Lax; Max-Age=60");
    let by_a = cluster(|_, _| {}).sticky.and_then(|cookie| cookie.tag(CookieKey::Current, b"m"));
    assert_eq!(cookie.tag(CookieKey::Previous, b"m"), by_a);
    assert_ne!(cookie.tag(CookieKey::Current, b"m"), by_a);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    type Edit<'a> = &'a dyn Fn(&mut v1::Sticky, &mut Cluster);
    let cases: [(Edit<'_>, &str); 12] = [
        (&|s, _| s.keys.clear(), "sticky.keys is required"),
        (&|s, _| s.keys = vec!["x".to_owned()], "sticky.keys[0] names the unknown secret \"x\""),
        (&|s, _| s.keys = vec!["tickets".to_owned()], "\"tickets\", which is no generic_secret"),
        (&|s, _| s.keys = ["a", "b", "c"].map(str::to_owned).to_vec(), "more than 2 entries"),
        (&|s, _| s.cookie = "a b".to_owned(), "sticky.cookie must be a token"),
        (&|s, _| s.cookie = "a".repeat(129), "at most 128 bytes"),
        (&|s, _| s.path = "shop".to_owned(), "sticky.path must begin with"),
        (&|s, _| s.path = "/; Domain=example.com".to_owned(), "sticky.path must begin with"),
        (&|s, _| s.overlap = seconds(0), "sticky.overlap"),
        (&|s, _| s.max_age = seconds(0), "sticky.max_age"),
        (&|s, _| s.virtual_nodes = Some(99), "sticky.virtual_nodes"),
        (&|_, c| c.lb_policy = LbPolicy::RingHash.into(), "sticky is not supported with the lb_policies"),
    ];
    for (edit, expected) in cases {
        let refusal = refusal(&with(edit));
        assert!(refusal.contains(expected), "{refusal}\nwanted: {expected}");
    }
    let mut short = with(|_, _| {});
    short.secrets.insert(secret("c", 31));
    let refusal = refusal(&short);
    assert!(refusal.contains("generic_secret.secret has 31 bytes, it must have 32 to 64"), "{refusal}");
}

#[test]
fn rings_and_series_of_endpoints_that_have_gone_are_kept_for_the_overlap() {
    let mut stats = StatRegistry::new();
    let mut compile = |ports: &[u32], now: u64| -> Snapshot {
        let endpoints = ports.iter().map(|port| endpoint("127.0.0.1", *port)).collect();
        let resources = with(|_, c| c.load_assignment = Some(assignment("backend", endpoints)));
        let host = Host { now: Duration::from_secs(now), ..Host::default() };
        stats.retire_unused();
        // As for two cores.
        compile_for(&resources, &host, &mut stats).expect("a good config");
        compile_for(&resources, &host, &mut stats).expect("a good config")
    };
    let shown = |snapshot: &Snapshot| format!("{:?}", snapshot.clusters[0].plan);
    let generations = |snapshot: &Snapshot| shown(snapshot).matches("valid_until").count();
    assert_eq!(generations(&compile(&[1, 2], 0)), 1);
    assert_eq!(generations(&compile(&[1], 10)), 2, "the ring of the past");
    assert_eq!(generations(&compile(&[1], 1_809)), 2);
    assert_eq!(generations(&compile(&[1], 1_810)), 1, "30 minutes later");
    compile(&[1], 1_811);
    stats.retire_unused();
    let names: Vec<_> = stats.names(StatFamily::Endpoint).map(|(_, name)| name).collect();
    assert_eq!(names, ["other", "backend/127.0.0.1:1"]);
}

#[test]
fn a_config_that_is_not_used_leaves_no_trace_among_the_rings() {
    let mut stats = StatRegistry::new();
    let resources = |ports: &[u32], sound: bool| {
        let endpoints = ports.iter().map(|port| endpoint("127.0.0.1", *port)).collect();
        let mut resources = with(|_, c| c.load_assignment = Some(assignment("backend", endpoints)));
        if !sound {
            // Behind the cluster with sessions, which is compiled first.
            let mut other = resources.clusters[0].clone();
            other.name = "other".to_owned();
            other.lb_policy = LbPolicy::RingHash.into();
            resources.clusters.push(other);
        }
        resources
    };
    let at = |now| Host { now: Duration::from_secs(now), ..Host::default() };
    compile_for(&resources(&[1, 2], true), &at(0), &mut stats).expect("a good config");
    let (kept, points) = (stats.keep_rings(), stats.ring_points());
    compile_for(&resources(&[1], false), &at(10), &mut stats).expect_err("a bad one");
    assert!(stats.ring_points() > points, "this is why it has to be undone");
    stats.restore_rings(kept);
    assert_eq!(stats.ring_points(), points);
    let next = compile_for(&resources(&[1, 2], true), &at(20), &mut stats).expect("a good config");
    assert_eq!(next.clusters[0].plan.generations().len(), 1);
    assert_eq!(next.clusters[0].departed.len(), 0);
}

#[test]
fn a_successor_knows_where_sessions_are_that_its_config_has_no_endpoint_for() {
    let compiled = |stats: &mut StatRegistry, ports: &[u32], now: u64| {
        let endpoints = ports.iter().map(|port| endpoint("127.0.0.1", *port)).collect();
        let resources = with(|_, c| c.load_assignment = Some(assignment("backend", endpoints)));
        let host = Host { now: Duration::from_secs(now), ..Host::default() };
        compile_for(&resources, &host, stats).expect("a good config").clusters.remove(0)
    };
    let mut stats = StatRegistry::new();
    compiled(&mut stats, &[1, 2], 0);
    compiled(&mut stats, &[1], 600);
    let mut heir = StatRegistry::new();
    heir.inherit(stats.heritage(Duration::from_secs(900)));
    let found = compiled(&mut heir, &[1, 3], 0);
    assert_eq!(found.plan.generations().len(), 3);
    let departed: Vec<_> = found.departed.iter().map(|endpoint| endpoint.address.port()).collect();
    assert_eq!(departed, [2]);
    let until = found.plan.departed()[0].1;
    assert_eq!(until, Duration::from_secs(1800 - 300), "of 30 minutes five are over");
    let name = heir.name(StatFamily::Endpoint, found.departed[0].stat);
    assert_eq!(name, Some("backend/127.0.0.1:2"));
}

#[test]
fn a_series_is_not_given_away_while_its_endpoint_may_have_sessions() {
    let mut stats = StatRegistry::new();
    let mut gone = None;
    for (ports, now) in [(&[1, 2][..], 0), (&[1], 10), (&[1], 11), (&[1], 12)] {
        let endpoints = ports.iter().map(|port| endpoint("127.0.0.1", *port)).collect();
        let resources = with(|_, c| c.load_assignment = Some(assignment("backend", endpoints)));
        let host = Host { now: Duration::from_secs(now), ..Host::default() };
        stats.retire_unused();
        compile_for(&resources, &host, &mut stats).expect("a good config");
        let id = stats.names(StatFamily::Endpoint).find(|(_, name)| *name == "backend/127.0.0.1:2");
        let id = id.map(|(id, _)| id).expect("still there");
        assert_eq!(*gone.get_or_insert(id), id);
    }
}
