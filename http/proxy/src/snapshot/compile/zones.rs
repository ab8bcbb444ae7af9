//! Zones of a cluster: where its endpoints live, and what of the traffic stays in the proxy's own.

use control_api::defaults::balance as limits;
use control_api::envoy::cluster::Cluster;
use control_api::envoy::cluster::cluster::common_lb_config::LocalityConfigSpecifier;
use control_api::shard::v1;
use http_balance::levels::{WHOLE, ZoneRules};
use http_balance::plan::Policy;

use super::fault::{Checked, Fault, Within, nothing_else};
use super::{shard_field, value};
use crate::snapshot::model::ZonePreference;

/// The zones of one cluster by number; 0 is none.
#[derive(Debug)]
pub(super) struct Zones(Vec<String>);

impl Default for Zones {
    fn default() -> Self {
        Self(vec![String::new()])
    }
}

impl Zones {
    /// The number of a zone, a new one where it has none. A cluster has fewer endpoints than there are numbers.
    pub(super) fn number(&mut self, name: &str) -> u16 {
        let at = self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    pub(super) fn into_names(self) -> Vec<String> {
        self.0
    }
}

/// That a cluster prefers the proxy's own zone, and the share of each zone where that is told.
pub(super) struct Wanted {
    traffic: Option<v1::Zones>,
}

/// Takes what is said of zones out of `message`; None: they do not count.
pub(super) fn wanted(message: &mut Cluster, options: &v1::ClusterOptions) -> Checked<Option<Wanted>> {
    let common = message.common_lb_config.as_mut();
    let traffic = options.zones.clone();
    let mut aware = match common.and_then(|common| common.locality_config_specifier.take()) {
        None if traffic.is_some() => {
            let fault = Fault::new("zones", "needs common_lb_config.zone_aware_lb_config");
            return shard_field(Err(fault));
        }
        None => return Ok(None),
        Some(LocalityConfigSpecifier::ZoneAwareLbConfig(aware)) => aware,
        Some(LocalityConfigSpecifier::LocalityWeightedLbConfig(_)) => {
            return Err(Fault::unsupported("common_lb_config.locality_weighted_lb_config"));
        }
    };
    let enabled = aware.routing_enabled.take().map_or(100.0, |percent| percent.value);
    let read = if enabled != 0.0 && enabled != 100.0 {
        Err(Fault::new("routing_enabled", format!("is {enabled}, it must be 0 or 100")))
    } else {
        nothing_else(&aware)
    };
    read.within("common_lb_config.zone_aware_lb_config")?;
    if let Some(traffic) = &traffic {
        shard_field(check_traffic(traffic).within("zones"))?;
    }
    Ok((enabled > 0.0).then_some(Wanted { traffic }))
}

fn check_traffic(zones: &v1::Zones) -> Checked<()> {
    let field = "traffic_percent";
    let mut sum = 0;
    for (zone, percent) in &zones.traffic_percent {
        value::name(field, zone)?;
        let percent = value::ranged(field, Some(*percent), &limits::ZONE_TRAFFIC_PERCENT)?;
        sum += percent.unwrap_or_default();
    }
    if sum != 100 {
        return Err(Fault::new(field, format!("makes {sum} together, it must make 100")));
    }
    Ok(())
}

/// The rules of a proxy in the zone `own`, over the zones that endpoints have been read with.
pub(super) fn rules(
    wanted: Option<Wanted>,
    own: Option<&str>,
    zones: &mut Zones,
    (policy, is_sticky): (Policy, bool),
) -> Checked<(ZonePreference, Option<ZoneRules>)> {
    let Some(Wanted { traffic }) = wanted else { return Ok((ZonePreference::Off, None)) };
    // Keys and sessions belong to one endpoint, wherever the proxy is.
    if is_sticky || matches!(policy, Policy::RingHash { .. } | Policy::Maglev { .. }) {
        let message = "is not supported with RING_HASH, MAGLEV and sticky sessions";
        return Err(Fault::new("common_lb_config.zone_aware_lb_config", message));
    }
    let Some(own) = own else { return Ok((ZonePreference::WithoutZone, None)) };
    let local = zones.number(own);
    let origin_share = match traffic {
        // Every zone that is named here sends as much.
        None => u32::try_from(zones.0.len() - 1).map_or(WHOLE, |count| WHOLE / count.max(1)),
        Some(traffic) => {
            let percent = traffic.traffic_percent.get(own).copied().ok_or_else(|| {
                let message = format!("does not name the zone {own:?}, in which this proxy runs");
                Fault::new("zones.traffic_percent", message).within(super::OPTIONS)
            })?;
            percent * (WHOLE / 100)
        }
    };
    Ok((ZonePreference::On, Some(ZoneRules { local, origin_share })))
}
