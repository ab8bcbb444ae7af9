//! Sticky sessions of a cluster: cookie and keys, and the rings under whose versions cookies may still be written.
//!
//! Which rings there were is remembered beside the statistics names, for the process: every core gets the same ones,
//! whether it has served the cluster before or not, and shares them.

use std::time::Duration;

use control_api::Secrets;
use control_api::defaults::balance as limits;
use control_api::envoy::tls::{GenericSecret, secret};
use control_api::shard::v1;
use http_balance::generations::Generation;
use http_balance::plan::Policy;
use http_balance::sticky::StickyRules;
use http_balance::{ClusterRules, EndpointId};
use http_wire::token::is_token;
use tls::MacKey;

use super::fault::{Checked, Fault, Within};
use super::tls::secret_bytes;
use super::{shard_field, value};
use crate::snapshot::model::{DnsTarget, EndpointConfig, StickyConfig};
use crate::snapshot::rings::By;
use crate::snapshot::stats::StatRegistry;

/// The rules and the cookie; None when sessions are off.
pub(super) fn read(
    cluster: &str,
    options: &v1::ClusterOptions,
    policy: Policy,
    secrets: &Secrets,
) -> Checked<Option<(StickyRules, StickyConfig)>> {
    let Some(sticky) = &options.sticky else { return Ok(None) };
    if matches!(policy, Policy::RingHash { .. } | Policy::Maglev { .. }) {
        let message =
            "is not supported with the lb_policies RING_HASH and MAGLEV, which have a key of their own";
        return shard_field(Err(Fault::new("sticky", message)));
    }
    let rules = || -> Checked<StickyRules> {
        Ok(StickyRules {
            overlap: value::bounded_duration("overlap", sticky.overlap, &limits::STICKY_OVERLAP)?,
            virtual_nodes: value::bounded(
                "virtual_nodes",
                sticky.virtual_nodes,
                &limits::RING_VIRTUAL_NODES,
            )?,
        })
    };
    let both = || Ok((rules()?, cookie(cluster, sticky, secrets)?));
    shard_field(both().within("sticky").map(Some))
}

fn cookie(cluster: &str, sticky: &v1::Sticky, secrets: &Secrets) -> Checked<StickyConfig> {
    let id = EndpointId::of(cluster.as_bytes());
    let cookie = match sticky.cookie.as_str() {
        "" => format!("shard-{:08x}", id.0 >> 32),
        name if is_token(name.as_bytes()) && name.len() <= limits::STICKY_COOKIE_BYTES_MAX => name.to_owned(),
        _ => {
            let most = limits::STICKY_COOKIE_BYTES_MAX;
            return Err(Fault::new("cookie", format!("must be a token of at most {most} bytes")));
        }
    };
    let path = if sticky.path.is_empty() { "/" } else { &sticky.path };
    // RFC 6265 §4.1.1: what ends an attribute may not stand in one.
    let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b';');
    if !path.starts_with('/') || !is_plain || path.len() > limits::STICKY_PATH_BYTES_MAX {
        let most = limits::STICKY_PATH_BYTES_MAX;
        let message =
            format!("must begin with \"/\" and have at most {most} bytes of printable ASCII without \";\"");
        return Err(Fault::new("path", message));
    }
    let mut attributes = format!("; Path={path}; HttpOnly; SameSite=Lax");
    if let Some(age) = value::ranged_duration("max_age", sticky.max_age, &limits::STICKY_MAX_AGE)? {
        attributes.push_str(&format!("; Max-Age={}", age.as_secs()));
    }
    let mut keys =
        sticky.keys.iter().enumerate().map(|(at, name)| key(name, secrets).within_item("keys", at));
    let current = keys.next().ok_or_else(|| Fault::missing("keys"))??;
    let previous = keys.next().transpose()?;
    if keys.next().is_some() {
        return Err(Fault::new("keys", "has more than 2 entries: current, previous"));
    }
    Ok(StickyConfig { cookie, cluster: id, attributes, current, previous })
}

fn key(name: &str, secrets: &Secrets) -> Checked<MacKey> {
    let secret = secrets.get(name).and_then(|secret| secret.r#type.as_ref());
    match secret {
        Some(secret::Type::GenericSecret(generic)) => generic_key(generic),
        Some(_) => Err(Fault::new("", format!("names {name:?}, which is no generic_secret"))),
        None => Err(Fault::new("", format!("names the unknown secret {name:?}"))),
    }
}

/// The key of a secret, copied into custody.
pub(super) fn generic_key(generic: &GenericSecret) -> Checked<MacKey> {
    // Looked at in place: a copy of the message would leave one of the key behind.
    if !generic.secrets.is_empty() {
        return Err(Fault::unsupported("secrets"));
    }
    let bytes = secret_bytes("secret", generic.secret.as_ref())?;
    let (least, most) = (limits::STICKY_KEY_BYTES.min, limits::STICKY_KEY_BYTES.max);
    if !(least..=most).contains(&bytes.len()) {
        return Err(Fault::new(
            "secret",
            format!("has {} bytes, it must have {least} to {most}", bytes.len()),
        ));
    }
    Ok(MacKey::new(bytes))
}

/// The rings of a cluster with sessions, the current one first, and the endpoints that have gone but may still have
/// sessions, with the end of their time; empty without sessions.
pub(super) fn rings(
    cluster: &str,
    rules: &ClusterRules,
    (endpoints, dns): (&[EndpointConfig], &[DnsTarget]),
    stats: &mut StatRegistry,
) -> (Vec<Generation>, Vec<(EndpointConfig, Duration)>) {
    let Some(rules) = &rules.sticky else { return (Vec::new(), Vec::new()) };
    let by = if dns.is_empty() { By::Address } else { By::Name };
    stats.rings(cluster, rules, (by, endpoints))
}
