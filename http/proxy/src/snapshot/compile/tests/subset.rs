//! Subsets: each core keeps its own endpoints, and knows the others by name.

use std::collections::BTreeMap;

use control_api::Resources;
use control_api::envoy::cluster::cluster::{ClusterDiscoveryType, DiscoveryType, LbPolicy};
use control_api::envoy::core::Metadata;
use control_api::shard::v1;
use control_api::to_any;

use super::super::compile_for;
use super::{assignment, endpoint, refusal, small};
use crate::snapshot::{ClusterConfig, Host, StatRegistry, Subset};

fn with_subset(endpoints: u32, size_min: u32) -> Resources {
    let mut resources = small();
    let cluster = &mut resources.clusters[0];
    let all = (1..=endpoints).map(|port| endpoint("10.0.0.1", port)).collect();
    cluster.load_assignment = Some(assignment("backend", all));
    let options = v1::ClusterOptions { subset_endpoints_min: Some(size_min), ..Default::default() };
    cluster.metadata = Some(Metadata {
        typed_filter_metadata: [(v1::KEY.to_owned(), to_any(&options))].into(),
        ..Default::default()
    });
    resources
}

fn cluster(resources: &Resources, host: Host<'_>, stats: &mut StatRegistry) -> ClusterConfig {
    compile_for(resources, &host, stats).expect("a good set").clusters.remove(0)
}

#[test]
fn all_cores_of_a_fleet_together_have_every_endpoint_equally() {
    let resources = with_subset(40, 10);
    let mut stats = StatRegistry::new();
    let mut kept: BTreeMap<u16, u32> = BTreeMap::new();
    for number in 0..3 {
        for core in 0..4 {
            let host = Host { cores: 4, core, fleet: Some((number, 3)), ..Host::default() };
            let found = cluster(&resources, host, &mut stats);
            assert_eq!((found.endpoints.len(), found.plan.endpoints().len()), (10, 10));
            assert_eq!(found.all_endpoints().count(), 40);
            let stat_of_first = found.all_endpoints().find(|e| e.address.port() == 1).map(|e| e.stat);
            let first = stats.id(
                crate::snapshot::StatFamily::Endpoint,
                &StatRegistry::endpoint_name("backend", &"10.0.0.1:1"),
            );
            assert_eq!(stat_of_first, Some(first), "numbers are the same on every core");
            found.endpoints.iter().for_each(|e| *kept.entry(e.address.port()).or_default() += 1);
        }
    }
    assert_eq!((kept.len(), kept.values().all(|times| *times == 3)), (40, true), "{kept:?}");
}

#[test]
fn a_fleet_that_is_too_small_keeps_more() {
    let resources = with_subset(40, 2);
    let host = Host { cores: 1, fleet: Some((1, 4)), ..Host::default() };
    assert_eq!(cluster(&resources, host, &mut StatRegistry::new()).endpoints.len(), 10);
    let alone = Host { cores: 1, fleet: Some((0, 1)), ..Host::default() };
    assert_eq!(cluster(&resources, alone, &mut StatRegistry::new()).endpoints.len(), 40);
    let unknown = cluster(&resources, Host::default(), &mut StatRegistry::new());
    assert_eq!(unknown.endpoints.len(), 40);
    assert!(matches!(unknown.subset, Subset::WithoutFleet));
}

#[test]
fn what_cannot_have_subsets_is_refused_by_name() {
    let mut ring = with_subset(4, 2);
    ring.clusters[0].lb_policy = LbPolicy::RingHash.into();
    let mut named = with_subset(4, 2);
    named.clusters[0].load_assignment = Some(assignment("backend", vec![endpoint("backend.internal", 80)]));
    named.clusters[0].cluster_discovery_type =
        Some(ClusterDiscoveryType::Type(DiscoveryType::StrictDns.into()));
    for (resources, expected) in [
        (with_subset(4, 1), "subset_endpoints_min is 1, it must lie between 2 and 10000"),
        (ring, "subset_endpoints_min is not supported with RING_HASH and MAGLEV"),
        (named, "subset_endpoints_min is not supported with names to resolve"),
    ] {
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}\nwanted: {expected}");
    }
}
