//! The endpoints of a cluster that one core keeps.

use std::collections::VecDeque;

use control_api::defaults::balance as limits;
use control_api::shard::v1;
use http_balance::plan::Policy;
use http_balance::subset::{Membership, subset_of_groups};

use super::fault::{Checked, Fault};
use super::{Host, shard_field, value};
use crate::snapshot::model::{EndpointConfig, Subset};

const FIELD: &str = "subset_endpoints_min";

/// Least endpoints that a core is to keep, where a cluster asks for subsets.
pub(super) fn size_min(
    options: &v1::ClusterOptions,
    (policy, is_sticky, has_names): (Policy, bool, bool),
) -> Checked<Option<u32>> {
    if options.subset_endpoints_min.is_none() {
        return Ok(None);
    }
    let size_min =
        shard_field(value::bounded(FIELD, options.subset_endpoints_min, &limits::SUBSET_ENDPOINTS))?;
    let what = if matches!(policy, Policy::RingHash { .. } | Policy::Maglev { .. }) {
        "RING_HASH and MAGLEV"
    } else if is_sticky {
        "sticky sessions"
    } else if has_names {
        "names to resolve"
    } else {
        return Ok(Some(size_min));
    };
    shard_field(Err(Fault::new(FIELD, format!("is not supported with {what}"))))
}

/// Leaves in `endpoints` what the core of `host` keeps.
pub(super) fn take(endpoints: &mut Vec<EndpointConfig>, size_min: Option<u32>, host: &Host<'_>) -> Subset {
    let Some(size_min) = size_min else { return Subset::All };
    let Some((proxy, proxies)) = host.fleet else { return Subset::WithoutFleet };
    let cores = host.cores.max(1);
    // The cores of a proxy are neighbours, so that they have different endpoints.
    let member = proxy.saturating_mul(cores).saturating_add(host.core);
    let who = Membership { member, members: proxies.saturating_mul(cores) };
    let keys: Vec<_> = endpoints.iter().map(|e| (e.id(), (e.role.priority, e.role.zone))).collect();
    let mut chosen: VecDeque<_> = subset_of_groups(who, size_min, &keys).into();
    let mut beyond = Vec::with_capacity(endpoints.len() - chosen.len());
    let mut kept = Vec::with_capacity(chosen.len());
    for (at, endpoint) in std::mem::take(endpoints).into_iter().enumerate() {
        if chosen.front() == Some(&at) {
            chosen.pop_front();
            kept.push(endpoint);
        } else {
            beyond.push(endpoint);
        }
    }
    *endpoints = kept;
    Subset::Part { beyond }
}
