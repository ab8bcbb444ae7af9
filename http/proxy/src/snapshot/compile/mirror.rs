//! Mirrors of a route: `RequestMirrorPolicy` and, for what it has no field for, `shard.v1.MirrorOptions`.

use std::time::Duration;

use control_api::defaults::mirror as limits;
use control_api::envoy::core::RuntimeFractionalPercent;
use control_api::envoy::mutation::HeaderMutation;
use control_api::envoy::mutation::header_mutation::Action;
use control_api::envoy::route::route_action::RequestMirrorPolicy;
use control_api::envoy::types::fractional_percent::DenominatorType;
use control_api::shard::v1;
use http_balance::mirror::MirrorRules;
use http_balance::stable_hash;
use http_wire::token::is_token;

use super::action::{ClusterPlaces, place};
use super::fault::{Checked, Fault, Within, nothing_else};
use super::value;
use crate::snapshot::model::{ClusterSplit, HashKey, Mirror};

const WHOLE: u32 = 1_000_000;

/// Names whose removal `shard.v1` would not carry out: they frame the message or name its target.
const KEPT: [&str; 6] = ["host", "content-length", "transfer-encoding", "connection", "te", "trailer"];

/// The mirror of a route, with every limit at its default.
pub(super) fn mirror(
    policies: Vec<RequestMirrorPolicy>,
    split: &ClusterSplit,
    clusters: &ClusterPlaces,
) -> Checked<Option<Mirror>> {
    let mut policies = policies.into_iter();
    let Some(first) = policies.next() else { return Ok(None) };
    if policies.next().is_some() {
        return Err(Fault::new(
            "request_mirror_policies",
            "has more than one entry: shard mirrors to one cluster",
        ));
    }
    one(first, split, clusters).within_item("request_mirror_policies", 0).map(Some)
}

fn one(mut policy: RequestMirrorPolicy, split: &ClusterSplit, clusters: &ClusterPlaces) -> Checked<Mirror> {
    let name = std::mem::take(&mut policy.cluster);
    if name.is_empty() {
        return Err(Fault::missing("cluster"));
    }
    let cluster = place("cluster", &name, clusters)?;
    if split.entries.iter().any(|(own, _)| *own == cluster) {
        return Err(Fault::new("cluster", format!("is {name:?}, which the route itself sends requests to")));
    }
    let sample = policy.runtime_fraction.take().map_or(Ok(WHOLE), sample).within("runtime_fraction")?;
    if !std::mem::take(&mut policy.disable_shadow_host_suffix_append) {
        return Err(Fault::new(
            "disable_shadow_host_suffix_append",
            "must be true: shard keeps the host and marks mirrors by x-mirrored",
        ));
    }
    let mut removed_fields = Vec::new();
    for (at, mutation) in std::mem::take(&mut policy.request_headers_mutations).into_iter().enumerate() {
        removed_fields.push(removal(mutation).within_item("request_headers_mutations", at)?);
    }
    nothing_else(&policy)?;
    let unset = MirrorLimits::default();
    let rules = MirrorRules { sample, ..unset.rules };
    Ok(Mirror { cluster, rules, key: unset.key, removed_fields, timeout: unset.timeout })
}

/// In millionths, without the runtime key: shard has none.
fn sample(mut fraction: RuntimeFractionalPercent) -> Checked<u32> {
    let share = fraction.default_value.take().ok_or_else(|| Fault::missing("default_value"))?;
    nothing_else(&fraction)?;
    let scale = match DenominatorType::try_from(share.denominator) {
        Ok(DenominatorType::Hundred) => 10_000,
        Ok(DenominatorType::TenThousand) => 100,
        Ok(DenominatorType::Million) => 1,
        Err(unknown) => {
            return Err(Fault::new("default_value.denominator", format!("is not supported: {unknown}")));
        }
    };
    let sample = share.numerator.checked_mul(scale).filter(|sample| *sample <= WHOLE);
    sample.ok_or_else(|| Fault::new("default_value", "is more than the whole"))
}

fn removal(mutation: HeaderMutation) -> Checked<String> {
    match mutation.action {
        Some(Action::Remove(name)) => {
            let name = name.to_ascii_lowercase();
            if !is_token(name.as_bytes()) || KEPT.contains(&name.as_str()) {
                return Err(Fault::new("remove", format!("is {name:?}, which cannot be removed")));
            }
            Ok(name)
        }
        Some(Action::Append(_)) => Err(Fault::unsupported("append")),
        Some(Action::RemoveOnMatch(_)) => Err(Fault::unsupported("remove_on_match")),
        None => Err(Fault::missing("remove")),
    }
}

/// What `shard.v1` says of mirrors at one level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MirrorLimits {
    key: Option<HashKey>,
    rules: MirrorRules,
    timeout: Duration,
}

impl Default for MirrorLimits {
    fn default() -> Self {
        Self {
            key: None,
            rules: MirrorRules {
                sample: WHOLE,
                salt: 0,
                in_flight_max: limits::IN_FLIGHT.default,
                bytes_per_second_max: u64::from(limits::BYTES_PER_SECOND.default),
                buffered_bytes_max: u64::from(limits::BUFFER_BYTES.default),
            },
            timeout: limits::TIMEOUT.default,
        }
    }
}

impl MirrorLimits {
    pub(super) fn read(options: v1::MirrorOptions) -> Checked<Self> {
        let v1::MirrorOptions { key_header, key_cookie, key_query, key_client_address, .. } = options;
        let names = [
            ("key_header", key_header.to_ascii_lowercase(), HashKey::Field as fn(String) -> HashKey),
            ("key_cookie", key_cookie, HashKey::Cookie),
            ("key_query", key_query, HashKey::Query),
        ];
        let mut keys = Vec::new();
        for (field, name, kind) in names.into_iter().filter(|(_, name, _)| !name.is_empty()) {
            if !is_token(name.as_bytes()) {
                return Err(Fault::new(field, format!("is {name:?}, which is no name")));
            }
            keys.push(kind(name));
        }
        keys.extend(key_client_address.then_some(HashKey::ClientAddress));
        if keys.len() > 1 {
            return Err(Fault::new("", "has more than one key"));
        }
        let buffer = value::bounded("buffer_bytes_max", options.buffer_bytes_max, &limits::BUFFER_BYTES)?;
        let rate =
            value::bounded("bytes_per_second_max", options.bytes_per_second_max, &limits::BYTES_PER_SECOND)?;
        let rules = MirrorRules {
            in_flight_max: value::bounded("in_flight_max", options.in_flight_max, &limits::IN_FLIGHT)?,
            bytes_per_second_max: u64::from(rate),
            buffered_bytes_max: u64::from(buffer),
            ..Self::default().rules
        };
        let timeout = value::bounded_duration("timeout", options.timeout, &limits::TIMEOUT)?;
        Ok(Self { key: keys.pop(), rules, timeout })
    }

    /// Each route samples by itself.
    pub(super) fn apply(&self, route: &str, mirror: &mut Mirror) {
        let MirrorRules { sample, .. } = mirror.rules;
        mirror.rules = MirrorRules { sample, salt: stable_hash(route.as_bytes()), ..self.rules };
        mirror.key.clone_from(&self.key);
        mirror.timeout = self.timeout;
    }
}
