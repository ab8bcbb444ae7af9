//! Zones: where endpoints live, and the preference for the proxy's own.

use std::collections::BTreeMap;

use control_api::Resources;
use control_api::envoy::cluster::cluster::common_lb_config::{
    LocalityConfigSpecifier, LocalityWeightedLbConfig, ZoneAwareLbConfig,
};
use control_api::envoy::cluster::cluster::{CommonLbConfig, LbPolicy};
use control_api::envoy::core::{Locality, Metadata};
use control_api::envoy::endpoint::LocalityLbEndpoints;
use control_api::envoy::google::UInt64Value;
use control_api::envoy::types::Percent;
use control_api::shard::v1;
use control_api::to_any;
use http_balance::levels::{WHOLE, ZoneRules};

use super::super::compile_for;
use super::{endpoint, refusal, small};
use crate::snapshot::{ClusterConfig, Host, StatRegistry, ZonePreference};

/// Endpoints in these zones, of a cluster that prefers the proxy's.
fn zoned(zones: &[&str], aware: ZoneAwareLbConfig, traffic: &[(&str, u32)]) -> Resources {
    let mut resources = small();
    let cluster = &mut resources.clusters[0];
    let localities = zones.iter().zip(1..).map(|(zone, port)| LocalityLbEndpoints {
        locality: Some(Locality { zone: (*zone).to_owned(), region: "r".to_owned(), ..Default::default() }),
        lb_endpoints: vec![endpoint("10.0.0.1", port)],
        ..Default::default()
    });
    cluster.load_assignment.as_mut().expect("set").endpoints = localities.collect();
    let specifier = Some(LocalityConfigSpecifier::ZoneAwareLbConfig(aware));
    cluster.common_lb_config =
        Some(CommonLbConfig { locality_config_specifier: specifier, ..Default::default() });
    let traffic: BTreeMap<_, _> = traffic.iter().map(|(zone, share)| ((*zone).to_owned(), *share)).collect();
    if !traffic.is_empty() {
        set_options(&mut resources, v1::Zones { traffic_percent: traffic });
    }
    resources
}

fn set_options(resources: &mut Resources, zones: v1::Zones) {
    let options = v1::ClusterOptions { zones: Some(zones), ..Default::default() };
    resources.clusters[0].metadata = Some(Metadata {
        typed_filter_metadata: [(v1::KEY.to_owned(), to_any(&options))].into(),
        ..Default::default()
    });
}

fn cluster_in(zone: Option<&str>, resources: &Resources) -> Result<ClusterConfig, String> {
    let host = Host { zone, ..Host::default() };
    let built = compile_for(resources, &host, &mut StatRegistry::new());
    built.map(|mut snapshot| snapshot.clusters.remove(0)).map_err(|nacks| nacks[0].to_string())
}

#[test]
fn endpoints_know_their_zone_and_the_proxy_its_share() {
    let resources = zoned(&["a", "b", "", "b"], ZoneAwareLbConfig::default(), &[]);
    for (own, local, share) in [("a", 1, WHOLE / 2), ("b", 2, WHOLE / 2), ("c", 4, WHOLE / 3)] {
        let cluster = cluster_in(Some(own), &resources).expect("a good set");
        let numbers: Vec<_> = cluster.endpoints.iter().map(|endpoint| endpoint.role.zone).collect();
        assert_eq!(numbers, [1, 2, 0, 2]);
        let wanted = if own == "c" { vec!["", "a", "b", "c"] } else { vec!["", "a", "b"] };
        assert_eq!(cluster.zones, wanted);
        let local = if own == "c" { 3 } else { local };
        assert_eq!(cluster.plan.rules.zones, Some(ZoneRules { local, origin_share: share }), "{own}");
        assert_eq!(cluster.zone_preference, ZonePreference::On);
    }
    let cluster = cluster_in(None, &resources).expect("a good set");
    assert_eq!((cluster.plan.rules.zones, cluster.zone_preference), (None, ZonePreference::WithoutZone));
    let told = zoned(&["a", "b"], ZoneAwareLbConfig::default(), &[("a", 10), ("b", 90)]);
    let cluster = cluster_in(Some("a"), &told).expect("a good set");
    assert_eq!(cluster.plan.rules.zones, Some(ZoneRules { local: 1, origin_share: WHOLE / 10 }));
    let off = ZoneAwareLbConfig { routing_enabled: Some(Percent { value: 0.0 }), ..Default::default() };
    let cluster = cluster_in(Some("a"), &zoned(&["a"], off, &[])).expect("a good set");
    assert_eq!((cluster.plan.rules.zones, cluster.zone_preference), (None, ZonePreference::Off));
}

#[test]
fn what_zones_cannot_be_is_refused_by_name() {
    let plain = ZoneAwareLbConfig::default;
    let half = ZoneAwareLbConfig { routing_enabled: Some(Percent { value: 50.0 }), ..plain() };
    let least = ZoneAwareLbConfig { min_cluster_size: Some(UInt64Value { value: 6 }), ..plain() };
    let mut ring = zoned(&["a"], plain(), &[]);
    ring.clusters[0].lb_policy = LbPolicy::RingHash.into();
    let mut weighted = small();
    let specifier = LocalityConfigSpecifier::LocalityWeightedLbConfig(LocalityWeightedLbConfig {});
    weighted.clusters[0].common_lb_config =
        Some(CommonLbConfig { locality_config_specifier: Some(specifier), ..Default::default() });
    let mut alone = small();
    set_options(&mut alone, v1::Zones::default());
    for (resources, expected) in [
        (zoned(&["a"], half, &[]), "zone_aware_lb_config.routing_enabled is 50, it must be 0 or 100"),
        (zoned(&["a"], least, &[]), "zone_aware_lb_config.min_cluster_size is not supported"),
        (zoned(&["a"], plain(), &[("a", 60), ("b", 30)]), "zones.traffic_percent makes 90 together"),
        (zoned(&["a"], plain(), &[("a", 100), ("b", 0)]), "zones.traffic_percent is 0"),
        (ring, "zone_aware_lb_config is not supported with RING_HASH, MAGLEV and sticky sessions"),
        (weighted, "locality_weighted_lb_config is not supported"),
        (alone, "zones needs common_lb_config.zone_aware_lb_config"),
    ] {
        let refusal = refusal(&resources);
        assert!(refusal.contains(expected), "{refusal}\nwanted: {expected}");
    }
    let strange = zoned(&["a"], plain(), &[("a", 100)]);
    let refusal = cluster_in(Some("z"), &strange).expect_err("a zone that is not named");
    assert!(refusal.contains("does not name the zone \"z\", in which this proxy runs"), "{refusal}");
}
