//! What a route does: `RouteAction`, `RedirectAction`, `DirectResponseAction`.

use std::time::Duration;

use control_api::defaults::{balance, route as limits};
use control_api::envoy::google;
use control_api::envoy::matcher::RegexMatchAndSubstitute;
use control_api::envoy::route::redirect_action::{
    PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier,
};
use control_api::envoy::route::route_action::hash_policy::PolicySpecifier;
use control_api::envoy::route::route_action::{ClusterSpecifier, HashPolicy, HostRewriteSpecifier};
use control_api::envoy::route::weighted_cluster::RandomValueSpecifier;
use control_api::envoy::route::{
    DirectResponseAction, RedirectAction, RetryPolicy, RouteAction, WeightedCluster,
};
use http_balance::retry::RetryRules;
use http_balance::shed::Class;
use http_wire::token::is_token;
use rustc_hash::FxHashMap;

use super::fault::{Checked, Fault, Within, nothing_else};
use super::matches::regex_text;
use super::{mirror, value};
use crate::route::PathRule;
use crate::snapshot::model::{
    ClusterIndex, ClusterSplit, DirectResponse, Forward, HashKey, HostRewrite, IdempotencyKey, PathRewrite,
    Redirect, SplitKey,
};

/// Places of the clusters in the snapshot.
pub(super) type ClusterPlaces = FxHashMap<String, ClusterIndex>;

/// What a `RouteAction` says.
#[derive(Debug)]
pub(super) struct ForwardParts {
    pub(super) forward: Forward,
    /// None: off.
    pub(super) timeout: Option<Duration>,
    pub(super) idle_timeout: Option<Duration>,
}

pub(super) fn forward(
    mut action: RouteAction,
    path: &PathRule,
    clusters: &ClusterPlaces,
) -> Checked<ForwardParts> {
    let hash_policy = std::mem::take(&mut action.hash_policy);
    let hash_by = hash_keys(&hash_policy)?;
    let split = match action.cluster_specifier.take() {
        Some(ClusterSpecifier::Cluster(name)) => {
            let cluster = place("cluster", &name, clusters)?;
            ClusterSplit { entries: vec![(cluster, 1)], weight_total: 1, hash_by: None }
        }
        Some(ClusterSpecifier::WeightedClusters(weighted)) => split(weighted, hash_policy, clusters)?,
        Some(ClusterSpecifier::ClusterHeader(_)) => return Err(Fault::unsupported("cluster_header")),
        Some(ClusterSpecifier::ClusterSpecifierPlugin(_)) => {
            return Err(Fault::unsupported("cluster_specifier_plugin"));
        }
        Some(ClusterSpecifier::InlineClusterSpecifierPlugin(_)) => {
            return Err(Fault::unsupported("inline_cluster_specifier_plugin"));
        }
        None => return Err(Fault::missing("cluster")),
    };
    let host_rewrite = match action.host_rewrite_specifier.take() {
        Some(HostRewriteSpecifier::HostRewriteLiteral(host)) => {
            Some(HostRewrite::Literal(host_text("host_rewrite_literal", host)?))
        }
        Some(HostRewriteSpecifier::AutoHostRewrite(auto)) => auto.value.then_some(HostRewrite::Upstream),
        Some(HostRewriteSpecifier::HostRewriteHeader(_)) => {
            return Err(Fault::unsupported("host_rewrite_header"));
        }
        Some(HostRewriteSpecifier::HostRewritePathRegex(_)) => {
            return Err(Fault::unsupported("host_rewrite_path_regex"));
        }
        Some(HostRewriteSpecifier::HostRewrite(_)) => return Err(Fault::unsupported("host_rewrite")),
        None => None,
    };
    let rewrites = Rewrites {
        prefix: std::mem::take(&mut action.prefix_rewrite),
        full: unescaped("path_rewrite", &std::mem::take(&mut action.path_rewrite))?,
        regex: action.regex_rewrite.take(),
    };
    let path_rewrite = rewrites.only_one(path)?;
    let timeout = timeout(action.timeout.take())?;
    let idle_timeout =
        value::ranged_duration("idle_timeout", action.idle_timeout.take(), &limits::IDLE_TIMEOUT)?;
    let retry = action.retry_policy.take().map(|policy| retry_rules(policy).within("retry_policy"));
    let retry = retry.transpose()?;
    let mirror = mirror::mirror(std::mem::take(&mut action.request_mirror_policies), &split, clusters)?;
    // Shard always sends x-forwarded-host, so either value asks for what happens anyway.
    action.append_x_forwarded_host = false;
    nothing_else(&action)?;
    let forward = Forward {
        split,
        path_rewrite,
        host_rewrite,
        hash_by,
        retry,
        idempotency_key: IdempotencyKey::default(),
        class: Class::default(),
        mirror: mirror.map(Box::new),
        hedge_after: None,
    };
    Ok(ForwardParts { forward, timeout, idle_timeout })
}

/// Zero turns the limit off.
fn timeout(timeout: Option<google::Duration>) -> Checked<Option<Duration>> {
    match value::duration("timeout", timeout)? {
        Some(Duration::ZERO) => Ok(None),
        set => value::bounded("timeout", set, &limits::TIMEOUT).map(Some),
    }
}

pub(super) fn place(field: &str, name: &str, clusters: &ClusterPlaces) -> Checked<ClusterIndex> {
    clusters
        .get(name)
        .copied()
        .ok_or_else(|| Fault::new(field, format!("names the unknown cluster {name:?}")))
}

fn split(
    mut weighted: WeightedCluster,
    hash_policy: Vec<HashPolicy>,
    clusters: &ClusterPlaces,
) -> Checked<ClusterSplit> {
    let by_hash = match weighted.random_value_specifier.take() {
        Some(RandomValueSpecifier::UseHashPolicy(by_hash)) => by_hash.value,
        Some(RandomValueSpecifier::HeaderName(_)) => {
            return Err(Fault::unsupported("weighted_clusters.header_name"));
        }
        None => false,
    };
    let mut entries = Vec::with_capacity(weighted.clusters.len());
    let mut weight_total = 0_u32;
    for (at, mut cluster) in std::mem::take(&mut weighted.clusters).into_iter().enumerate() {
        let mut entry = || -> Checked<(ClusterIndex, u32)> {
            let name = std::mem::take(&mut cluster.name);
            let weight = cluster.weight.take().ok_or_else(|| Fault::missing("weight"))?.value;
            nothing_else(&cluster)?;
            let weight = value::ranged("weight", Some(weight), &limits::WEIGHT)?.unwrap_or(0);
            Ok((place("name", &name, clusters)?, weight))
        };
        let (cluster, weight) = entry().within_item("clusters", at).within("weighted_clusters")?;
        // A share of nothing is checked like the others and then left out.
        if weight > 0 {
            weight_total = weight_total
                .checked_add(weight)
                .ok_or_else(|| Fault::new("weighted_clusters", "has weights whose sum is too large"))?;
            entries.push((cluster, weight));
        }
    }
    nothing_else(&weighted).within("weighted_clusters")?;
    if entries.is_empty() {
        return Err(Fault::new("weighted_clusters", "needs a cluster with a weight above 0"));
    }
    let hash_by = match (by_hash, hash_policy.len()) {
        (false, _) => None,
        (true, 1) => hash_policy
            .into_iter()
            .next()
            .map(|policy| split_key(policy).within_item("hash_policy", 0))
            .transpose()?,
        (true, _) => {
            return Err(Fault::new("hash_policy", "must have exactly one entry with use_hash_policy"));
        }
    };
    Ok(ClusterSplit { entries, weight_total, hash_by })
}

/// Where clusters that hash find a request's key. The first key that a request has counts, which is what `terminal`
/// means to Envoy; without it Envoy would mix the keys.
fn hash_keys(policies: &[HashPolicy]) -> Checked<Vec<HashKey>> {
    let last = policies.len().saturating_sub(1);
    let key = |(at, policy): (usize, &HashPolicy)| {
        let key = hash_key(policy.clone()).within_item("hash_policy", at)?;
        if at < last && !policy.terminal {
            let fault =
                Fault::new("terminal", "must be true in all entries but the last: keys are never mixed");
            return Err(fault).within_item("hash_policy", at);
        }
        Ok(key)
    };
    policies.iter().enumerate().map(key).collect()
}

fn hash_key(mut policy: HashPolicy) -> Checked<HashKey> {
    policy.terminal = false;
    match policy.policy_specifier.take() {
        Some(PolicySpecifier::QueryParameter(mut query)) => {
            let name = std::mem::take(&mut query.name);
            nothing_else(&query).within("query_parameter")?;
            nothing_else(&policy)?;
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && !b"&=#".contains(&b)) {
                return Err(Fault::new("query_parameter.name", format!("is {name:?}, which is no name")));
            }
            Ok(HashKey::Query(name))
        }
        Some(PolicySpecifier::ConnectionProperties(mut connection)) => {
            let by_client = std::mem::take(&mut connection.source_ip);
            nothing_else(&connection).within("connection_properties")?;
            nothing_else(&policy)?;
            if !by_client {
                return Err(Fault::new("connection_properties.source_ip", "must be true"));
            }
            Ok(HashKey::ClientAddress)
        }
        other => {
            policy.policy_specifier = other;
            Ok(match split_key(policy)? {
                SplitKey::Field(name) => HashKey::Field(name),
                SplitKey::Cookie(name) => HashKey::Cookie(name),
            })
        }
    }
}

/// The causes of a retry, which shard has as one.
const RETRY_ON: [&str; 3] = ["connect-failure", "refused-stream", "reset"];

/// Whether a time-out is a cause is for the options to say.
fn retry_rules(mut policy: RetryPolicy) -> Checked<RetryRules> {
    let retry_on = std::mem::take(&mut policy.retry_on);
    let given: Vec<&str> = retry_on.split(',').map(str::trim).filter(|cause| !cause.is_empty()).collect();
    let all = RETRY_ON.join(",");
    if let Some(unknown) = given.iter().find(|cause| !RETRY_ON.contains(cause)) {
        let message = format!("has the cause {unknown:?}, which is not supported: it must be {all:?}");
        return Err(Fault::new("retry_on", message));
    }
    if let Some(missing) = RETRY_ON.iter().find(|cause| !given.contains(cause)) {
        let message = format!("lacks {missing:?}: shard has these causes as one, {all:?}");
        return Err(Fault::new("retry_on", message));
    }
    let retries_max = policy.num_retries.take().map(|retries| retries.value);
    let per_try_timeout = policy.per_try_timeout.take();
    nothing_else(&policy)?;
    let unset = RetryRules::default();
    Ok(RetryRules {
        retries_max: value::bounded("num_retries", retries_max, &balance::RETRIES)?,
        per_try_timeout: value::ranged_duration(
            "per_try_timeout",
            per_try_timeout,
            &balance::PER_TRY_TIMEOUT,
        )?,
        ..unset
    })
}

fn split_key(mut policy: HashPolicy) -> Checked<SplitKey> {
    let (key, field, name) = match policy.policy_specifier.take() {
        Some(PolicySpecifier::Header(mut header)) => {
            let name = std::mem::take(&mut header.header_name).to_ascii_lowercase();
            nothing_else(&header).within("header")?;
            (SplitKey::Field(name.clone()), "header.header_name", name)
        }
        Some(PolicySpecifier::Cookie(mut cookie)) => {
            let name = std::mem::take(&mut cookie.name);
            nothing_else(&cookie).within("cookie")?;
            (SplitKey::Cookie(name.clone()), "cookie.name", name)
        }
        Some(PolicySpecifier::ConnectionProperties(_)) => {
            return Err(Fault::unsupported("connection_properties"));
        }
        Some(PolicySpecifier::QueryParameter(_)) => return Err(Fault::unsupported("query_parameter")),
        Some(PolicySpecifier::FilterState(_)) => return Err(Fault::unsupported("filter_state")),
        None => return Err(Fault::new("", "has no key: give header or cookie")),
    };
    nothing_else(&policy)?;
    if !is_token(name.as_bytes()) {
        return Err(Fault::new(field, format!("is {name:?}, which is no name")));
    }
    Ok(key)
}

pub(super) fn redirect(mut action: RedirectAction, path: &PathRule) -> Checked<Redirect> {
    let status = match RedirectResponseCode::try_from(std::mem::take(&mut action.response_code)) {
        Ok(RedirectResponseCode::MovedPermanently) => 301,
        Ok(RedirectResponseCode::Found) => 302,
        Ok(RedirectResponseCode::SeeOther) => 303,
        Ok(RedirectResponseCode::TemporaryRedirect) => 307,
        Ok(RedirectResponseCode::PermanentRedirect) => 308,
        Err(unknown) => return Err(Fault::new("response_code", format!("is not supported: {unknown}"))),
    };
    let https = match action.scheme_rewrite_specifier.take() {
        Some(SchemeRewriteSpecifier::HttpsRedirect(https)) => https,
        Some(SchemeRewriteSpecifier::SchemeRedirect(scheme)) if scheme == "https" => true,
        Some(SchemeRewriteSpecifier::SchemeRedirect(scheme)) => {
            return Err(Fault::new("scheme_redirect", format!("is {scheme:?}, only `https` is supported")));
        }
        None => false,
    };
    let host = std::mem::take(&mut action.host_redirect);
    let host = if host.is_empty() { None } else { Some(host_text("host_redirect", host)?) };
    let port = match std::mem::take(&mut action.port_redirect) {
        0 => None,
        port => Some(u16::try_from(port).map_err(|error| {
            Fault::new("port_redirect", format!("is {port}, which is no port ({error})"))
        })?),
    };
    let path_rewrite = match action.path_rewrite_specifier.take() {
        None => None,
        Some(PathRewriteSpecifier::PathRedirect(text)) => {
            Some(PathRewrite::Full(path_text("path_redirect", text)?))
        }
        Some(PathRewriteSpecifier::PrefixRewrite(text)) => prefix_rewrite(text, path)?,
        Some(PathRewriteSpecifier::RegexRewrite(rewrite)) => Some(regex_rewrite(rewrite)?),
        Some(PathRewriteSpecifier::PathRewrite(_)) => return Err(Fault::unsupported("path_rewrite")),
    };
    let strip_query = std::mem::take(&mut action.strip_query);
    nothing_else(&action)?;
    if !https && host.is_none() && port.is_none() && path_rewrite.is_none() && !strip_query {
        return Err(Fault::new("", "changes nothing, so it would redirect for ever"));
    }
    Ok(Redirect { status, https, host, port, path: path_rewrite, strip_query })
}

pub(super) fn direct_response(
    mut action: DirectResponseAction,
    content_type: Option<String>,
) -> Checked<DirectResponse> {
    let status = std::mem::take(&mut action.status);
    let status = u16::try_from(status).ok().filter(|status| (200..=599).contains(status));
    let status = status.ok_or_else(|| Fault::new("status", "must lie between 200 and 599"))?;
    let body = value::inline("body", action.body.take(), limits::BODY_INLINE_BYTES_MAX)?;
    nothing_else(&action)?;
    // RFC 9110 §6.4.1: such responses have no content, and writing one would break the framing.
    if !body.is_empty() && matches!(status, 204 | 205 | 304) {
        return Err(Fault::new("body", format!("is not possible with status {status}")));
    }
    Ok(DirectResponse { status, content_type: content_type.unwrap_or_else(|| "text/plain".to_owned()), body })
}

/// The three ways to rewrite a path, of which a route has at most one.
struct Rewrites {
    prefix: String,
    full: String,
    regex: Option<RegexMatchAndSubstitute>,
}

impl Rewrites {
    fn only_one(self, path: &PathRule) -> Checked<Option<PathRewrite>> {
        match (self.prefix, self.full, self.regex) {
            (prefix, full, None) if full.is_empty() => prefix_rewrite(prefix, path),
            (prefix, full, None) if prefix.is_empty() => {
                Ok(Some(PathRewrite::Full(path_text("path_rewrite", full)?)))
            }
            (prefix, full, Some(regex)) if prefix.is_empty() && full.is_empty() => {
                Ok(Some(regex_rewrite(regex)?))
            }
            _ => Err(Fault::new("", "has more than one of prefix_rewrite, path_rewrite and regex_rewrite")),
        }
    }
}

/// None when the text is empty, which is "not set".
fn prefix_rewrite(text: String, path: &PathRule) -> Checked<Option<PathRewrite>> {
    if text.is_empty() {
        return Ok(None);
    }
    match path {
        PathRule::Regex(_) => {
            Err(Fault::new("prefix_rewrite", "is not supported with safe_regex: use regex_rewrite"))
        }
        PathRule::Exact(..) | PathRule::Prefix(..) | PathRule::Segments(..) => {
            Ok(Some(PathRewrite::Prefix(path_text("prefix_rewrite", text)?)))
        }
    }
}

fn regex_rewrite(mut rewrite: RegexMatchAndSubstitute) -> Checked<PathRewrite> {
    let pattern = rewrite.pattern.take().ok_or_else(|| Fault::missing("regex_rewrite.pattern"))?;
    let pattern = regex_text(pattern).within("pattern").within("regex_rewrite")?;
    let substitution = std::mem::take(&mut rewrite.substitution);
    nothing_else(&rewrite).within("regex_rewrite")?;
    if !substitution.is_empty() && !is_path_text(&substitution) {
        return Err(Fault::new(
            "regex_rewrite.substitution",
            "holds a blank, a control character, `?` or `#`",
        ));
    }
    PathRewrite::regex(&pattern, &substitution)
        .map_err(|reason| Fault::new("regex_rewrite.pattern.regex", reason))
}

/// A path that may stand in a request line and a Location field.
fn path_text(field: &str, text: String) -> Checked<String> {
    if !text.starts_with('/') || !is_path_text(&text) {
        return Err(Fault::new(
            field,
            format!("is {text:?}: a path starts with `/` and has no blank, control character, `?` or `#`"),
        ));
    }
    Ok(text)
}

fn is_path_text(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_graphic() && b != b'?' && b != b'#')
}

/// `%%` is a per cent sign, and nothing else follows one.
fn unescaped(field: &str, text: &str) -> Checked<String> {
    let plain = text.replace("%%", "");
    if plain.contains('%') {
        return Err(Fault::new(
            field,
            "holds a format operator, which is not supported: write `%%` for a per cent sign",
        ));
    }
    Ok(text.replace("%%", "%"))
}

/// A host with or without a port.
fn host_text(field: &str, host: String) -> Checked<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if host.is_empty() || host.len() > 255 || !host.bytes().all(plain) {
        return Err(Fault::new(field, format!("is {host:?}, which is no host")));
    }
    Ok(host.to_ascii_lowercase())
}
