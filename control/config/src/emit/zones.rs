//! Zones of a cluster: localities of endpoints, and the preference for the proxy's own.

use control_api::envoy::cluster::Cluster;
use control_api::envoy::cluster::cluster::common_lb_config::{LocalityConfigSpecifier, ZoneAwareLbConfig};
use control_api::envoy::core::Locality;
use control_api::shard::v1::Zones;

use super::Emitter;
use super::balance::{common, policy_word};
use crate::finding::Problem;
use crate::yaml::{Node, Value};

impl Emitter<'_> {
    /// Writes the preference into `cluster`; the shares of the zones, where they are told, are an option.
    pub(super) fn zones(&mut self, node: &Node, cluster: &mut Cluster) -> Option<Zones> {
        let zones = node.get("zones")?;
        let is_map = matches!(zones.value, Value::Map(_));
        if !is_map && !node.is_on("zones") {
            return None;
        }
        let policy = policy_word(node);
        if matches!(policy, "ring_hash" | "maglev") {
            let message = format!("`zones` and `{policy}` exclude each other: a key belongs to one endpoint");
            self.error(zones, message, "keep one of the two");
        }
        if node.get("sticky").is_some() {
            let message = "`zones` and `sticky` exclude each other: a session belongs to one endpoint";
            self.error(zones, message, "keep one of the two");
        }
        if node.list("endpoints").iter().all(|endpoint| endpoint.get("zone").is_none()) {
            let problem =
                Problem::new("no endpoint has a `zone`", "say where each one lives, or write `zones: false`");
            self.findings.warn(zones, problem);
        }
        let aware = LocalityConfigSpecifier::ZoneAwareLbConfig(ZoneAwareLbConfig::default());
        common(cluster).locality_config_specifier = Some(aware);
        let traffic = zones.get("traffic")?;
        let shares =
            || traffic.entries().iter().filter_map(|entry| Some((&entry.key, traffic.int(&entry.key)?)));
        let sum: u32 = shares().map(|(_, percent)| percent).sum();
        if sum != 100 {
            self.error(traffic, format!("the zones make {sum} percent together"), "make them 100");
        }
        Some(Zones { traffic_percent: shares().map(|(zone, percent)| (zone.clone(), percent)).collect() })
    }
}

/// None where no zone is known.
pub(super) fn locality(zone: &str) -> Option<Locality> {
    (!zone.is_empty()).then(|| Locality { zone: zone.to_owned(), ..Default::default() })
}
