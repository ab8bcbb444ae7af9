//! `RouteConfiguration`: virtual hosts and routes, into the table that stop 7 reads.

use control_api::defaults::route as limits;
use control_api::envoy::route::route::Action as Chosen;
use control_api::envoy::route::{Route as RouteMessage, RouteConfiguration, VirtualHost};

use http_balance::retry::OnTimeout;

use super::action::{self, ClusterPlaces};
use super::fault::{Checked, Fault, Within, nothing_else};
use super::fields::{LevelOps, merged};
use super::matches;
use super::policy::RoutePolicies;
use super::token::Requirements;
use super::value;
use crate::route::{RouteError, RouteRule, RouteTable, VirtualHostConfig};
use crate::snapshot::model::{Action, Forward, Route};
use crate::snapshot::stats::{StatFamily, StatRegistry};

/// What all routes of a level have in common: its outer levels' operations and policies, and its own.
struct Outer<'a> {
    /// Most specific first.
    ops: Vec<&'a LevelOps>,
    policies: RoutePolicies,
    /// Of the listener; None: of no listener yet.
    requirements: Option<&'a Requirements>,
}

pub(super) fn table(
    config: &RouteConfiguration,
    clusters: &ClusterPlaces,
    requirements: Option<&Requirements>,
    stats: &mut StatRegistry,
) -> Checked<RouteTable> {
    let mut config = config.clone();
    value::name("name", &std::mem::take(&mut config.name))?;
    value::fixed("validate_clusters", config.validate_clusters.take(), true)?;
    // Shard ignores the port unless a domain names one, and keeps its own limit on bodies.
    config.ignore_port_in_host_matching = false;
    let body_bytes_max = config.max_direct_response_body_size_bytes.take().map_or(0, |bytes| bytes.value);
    if usize::try_from(body_bytes_max).is_ok_and(|bytes| bytes > limits::BODY_INLINE_BYTES_MAX) {
        return Err(Fault::new(
            "max_direct_response_body_size_bytes",
            format!("is above {}", limits::BODY_INLINE_BYTES_MAX),
        ));
    }
    let ops = LevelOps::read(
        std::mem::take(&mut config.request_headers_to_add),
        std::mem::take(&mut config.request_headers_to_remove),
        std::mem::take(&mut config.response_headers_to_add),
        std::mem::take(&mut config.response_headers_to_remove),
    )?;
    let policies =
        RoutePolicies::default().with_level(&std::mem::take(&mut config.typed_per_filter_config))?;
    let hosts = std::mem::take(&mut config.virtual_hosts);
    nothing_else(&config)?;
    let outer = Outer { ops: vec![&ops], policies, requirements };
    let mut names = Vec::with_capacity(hosts.len());
    let mut built = Vec::with_capacity(hosts.len());
    for (at, host) in hosts.into_iter().enumerate() {
        names.push(host.name.clone());
        built.push(virtual_host(host, &outer, clusters, stats).within_item("virtual_hosts", at)?);
    }
    check_route_names(&built)?;
    RouteTable::build(built).map_err(|error| table_fault(&error, &names))
}

fn virtual_host(
    mut host: VirtualHost,
    outer: &Outer<'_>,
    clusters: &ClusterPlaces,
    stats: &mut StatRegistry,
) -> Checked<VirtualHostConfig> {
    let name = std::mem::take(&mut host.name);
    value::name("name", &name)?;
    let domains = std::mem::take(&mut host.domains);
    if domains.is_empty() {
        return Err(Fault::missing("domains"));
    }
    let ops = LevelOps::read(
        std::mem::take(&mut host.request_headers_to_add),
        std::mem::take(&mut host.request_headers_to_remove),
        std::mem::take(&mut host.response_headers_to_add),
        std::mem::take(&mut host.response_headers_to_remove),
    )?;
    let policies = outer.policies.with_level(&std::mem::take(&mut host.typed_per_filter_config))?;
    let routes = std::mem::take(&mut host.routes);
    nothing_else(&host)?;
    let mut levels = vec![&ops];
    levels.extend(&outer.ops);
    let outer = Outer { ops: levels, policies, requirements: outer.requirements };
    let mut rules = Vec::with_capacity(routes.len());
    for (at, message) in routes.into_iter().enumerate() {
        let name = if message.name.is_empty() { format!("{name}/{at}") } else { message.name.clone() };
        rules.push(rule(message, name, &outer, clusters, stats).within_item("routes", at)?);
    }
    Ok(VirtualHostConfig { name, domains, rules })
}

fn rule(
    mut message: RouteMessage,
    name: String,
    outer: &Outer<'_>,
    clusters: &ClusterPlaces,
    stats: &mut StatRegistry,
) -> Checked<RouteRule> {
    message.name.clear();
    value::name("name", &name)?;
    let matcher = message.r#match.take().ok_or_else(|| Fault::missing("match"))?;
    let conditions = matches::conditions(matcher).within("match")?;
    let policies = outer.policies.with_level(&std::mem::take(&mut message.typed_per_filter_config))?;
    let response_add = std::mem::take(&mut message.response_headers_to_add);
    let mut ops = LevelOps::read(
        std::mem::take(&mut message.request_headers_to_add),
        std::mem::take(&mut message.request_headers_to_remove),
        response_add.clone(),
        std::mem::take(&mut message.response_headers_to_remove),
    )?;
    let mut timeout = None;
    let mut idle_timeout = None;
    let action = match message.action.take() {
        Some(Chosen::Route(forward)) => {
            let mut parts = action::forward(forward, &conditions.path, clusters).within("route")?;
            obey(&policies, &name, &mut parts.forward)?;
            (timeout, idle_timeout) = (parts.timeout, parts.idle_timeout);
            Action::Forward(Box::new(parts.forward))
        }
        Some(Chosen::Redirect(redirect)) => {
            Action::Redirect(Box::new(action::redirect(redirect, &conditions.path).within("redirect")?))
        }
        Some(Chosen::DirectResponse(direct)) => {
            let content_type = ops.response.take_set("content-type", &response_add);
            Action::Direct(Box::new(action::direct_response(direct, content_type).within("direct_response")?))
        }
        Some(Chosen::FilterAction(_)) => return Err(Fault::unsupported("filter_action")),
        Some(Chosen::NonForwardingAction(_)) => return Err(Fault::unsupported("non_forwarding_action")),
        None => return Err(Fault::new("", "has no action: give route, redirect or direct_response")),
    };
    nothing_else(&message)?;
    let levels = || std::iter::once(&ops).chain(outer.ops.iter().copied());
    let route = Route {
        stat: stats.id(StatFamily::Route, &name),
        name,
        action,
        timeout,
        idle_timeout,
        body_bytes_max: policies.body_bytes_max,
        body_rate: policies.body_rate,
        request_fields: merged(levels().map(|level| &level.request))?,
        response_fields: merged(levels().map(|level| &level.response))?,
        cors: policies.cors,
        access: policies.access,
        client_limit: policies.client_limit,
        token: policies.token.rule(outer.requirements)?,
        deprecation: policies.deprecation,
        sunset: policies.sunset,
        error_pages: policies.error_pages,
    };
    Ok(RouteRule { path: conditions.path, headers: conditions.headers, query: conditions.query, route })
}

/// What the options of `shard.v1` say about forwarding.
fn obey(policies: &RoutePolicies, route: &str, forward: &mut Forward) -> Checked<()> {
    forward.class = policies.class;
    forward.hedge_after = policies.hedge_after;
    if let Some(mirror) = &mut forward.mirror {
        policies.mirror.apply(route, mirror);
    }
    forward.idempotency_key = policies.idempotency_key;
    if policies.retry_on_timeout {
        match &mut forward.retry {
            Some(retry) if retry.per_try_timeout.is_some() => retry.on_timeout = OnTimeout::Retry,
            Some(_) | None => {
                return Err(Fault::new(
                    "route.retry_policy.per_try_timeout",
                    "is required by retry_on_timeout",
                ));
            }
        }
    }
    Ok(())
}

/// A route's name is its metric label, so one virtual host uses it once. The same route may stand in several virtual
/// hosts and is then counted as one.
fn check_route_names(hosts: &[VirtualHostConfig]) -> Checked<()> {
    for (host_at, host) in hosts.iter().enumerate() {
        let mut seen = rustc_hash::FxHashSet::default();
        for (at, rule) in host.rules.iter().enumerate() {
            if !seen.insert(rule.route.name.as_str()) {
                let fault: Checked<()> =
                    Err(Fault::new("name", format!("{:?} is used twice", rule.route.name)));
                return fault.within_item("routes", at).within_item("virtual_hosts", host_at);
            }
        }
    }
    Ok(())
}

/// The table names what is wrong by names, which are unique; a path by indices is what the other faults have.
fn table_fault(error: &RouteError, hosts: &[String]) -> Fault {
    let host = hosts.iter().position(|name| *name == error.virtual_host);
    let field = host.map_or_else(String::new, |at| format!("virtual_hosts[{at}]"));
    Fault::new(&field, format!("is refused: {error}"))
}
