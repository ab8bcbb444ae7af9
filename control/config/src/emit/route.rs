//! Routes of a service: match, action, policies.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use control_api::defaults::route::STREAMING_IDLE_TIMEOUT;
use control_api::envoy::core::header_value_option::HeaderAppendAction;
use control_api::envoy::google::BoolValue;
use control_api::envoy::matcher::RegexMatchAndSubstitute;
use control_api::envoy::route::{
    DirectResponseAction, RedirectAction, RetryPolicy, Route, RouteAction, WeightedCluster, redirect_action,
    route, route_action, weighted_cluster,
};

use super::policy::{addition, regex_matcher};
use super::route_match::{PathKey, path_key};
use super::{Emitter, count, inline_bytes, literal, span};
use crate::gather::Service;
use crate::yaml::Node;

/// A route ready to go into virtual hosts.
pub(super) struct BuiltRoute {
    pub(super) key: PathKey,
    pub(super) route: Route,
    /// Where it was written.
    pub(super) node: Node,
}

/// A service with its routes, in the order written.
pub(super) struct BuiltService<'a> {
    pub(super) service: &'a Service,
    pub(super) routes: Vec<BuiltRoute>,
}

impl<'a> Emitter<'a> {
    pub(super) fn emit_services(&mut self) -> Vec<BuiltService<'a>> {
        let config = self.config;
        let mut built = Vec::new();
        for service in &config.services {
            let routes = self.service_routes(service);
            built.push(BuiltService { service, routes });
        }
        built
    }

    fn service_routes(&mut self, service: &Service) -> Vec<BuiltRoute> {
        let written = service.node.list("routes");
        let mut names: HashSet<String> = HashSet::new();
        let mut routes = Vec::new();
        if written.is_empty() && service.node.get("routes").is_none() && !self.is_for_tcp(service) {
            let everything = Node::empty_map(service.node.at, &service.node.path);
            routes.extend(self.route(service, &everything, "default"));
        }
        for (at, node) in written.iter().enumerate() {
            let unnamed = format!("route-{}", at + 1);
            let name = node.word("name").unwrap_or(&unnamed);
            if !names.insert(name.to_owned()) {
                let at = node.get("name").unwrap_or(node);
                self.error(at, format!("a second route named `{name}`"), "give it another name");
            }
            routes.extend(self.route(service, node, name));
        }
        self.refuse_unreachable(&routes);
        routes
    }

    /// Whether a service says nothing about HTTP and TCP listeners lead to it: it must not be served to HTTP unasked.
    fn is_for_tcp(&self, service: &Service) -> bool {
        let is_its_own = |cluster: &String| {
            let rest = cluster.strip_prefix(service.name.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let is_silent = ["hosts", "listeners"].iter().all(|key| service.node.get(key).is_none());
        is_silent && self.tcp_clusters.iter().any(is_its_own)
    }

    fn route(&mut self, service: &Service, own: &Node, name: &str) -> Option<BuiltRoute> {
        let node = self.config.route(&service.node, own);
        let full_name = format!("{}/{name}", service.name);
        let condition = node.get("match");
        let key = path_key(condition);
        let mut route = Route {
            name: full_name.clone(),
            r#match: Some(self.route_match(&key, condition)),
            ..Default::default()
        };
        route.action = Some(if let Some(redirect) = node.get("redirect") {
            route::Action::Redirect(self.redirect(redirect, &key))
        } else if let Some(respond) = node.get("respond") {
            route::Action::DirectResponse(self.respond(respond, &mut route)?)
        } else {
            route::Action::Route(self.forward(service, &node, &key)?)
        });
        if !matches!(route.action, Some(route::Action::Route(_)))
            && let Some(rewrite) = own.get("rewrite")
        {
            self.error(
                rewrite,
                "only requests that go to a cluster are rewritten",
                "delete the key, or use `redirect`",
            );
        }
        if !matches!(route.action, Some(route::Action::Route(_)))
            && let Some(mirror) = own.get("mirror")
        {
            self.error(mirror, "only requests that go to a cluster are mirrored", "delete the key");
        }
        self.apply_policies(&node, &mut route);
        self.remember("route", &full_name, own);
        Some(BuiltRoute { key, route, node: own.clone() })
    }

    fn forward(&mut self, service: &Service, node: &Node, key: &PathKey) -> Option<RouteAction> {
        let mut action = RouteAction::default();
        let clusters = match (node.get("cluster"), node.get("split")) {
            (Some(cluster), _) => vec![(self.resolve_cluster(&service.name, cluster)?, 1)],
            (None, Some(split)) => self.split(service, split),
            (None, None) => vec![(self.default_cluster(service, node)?, 1)],
        };
        action.cluster_specifier = Some(if node.get("split").is_some() {
            self.split_by(node, &mut action);
            route_action::ClusterSpecifier::WeightedClusters(weighted(
                &clusters,
                node.get("split_by").is_some(),
            ))
        } else {
            if let Some(by) = node.get("split_by") {
                self.error(by, "nothing is split here", "add `split`, or delete this key");
            }
            route_action::ClusterSpecifier::Cluster(clusters.first()?.0.clone())
        });
        self.hash_by(node, &clusters, &mut action);
        action.retry_policy = retry_policy(node);
        action.request_mirror_policies.extend(self.mirror_policy(&service.name, node, &clusters));
        let is_streaming = node.is_on("streaming");
        action.timeout =
            if is_streaming { span(Some(Duration::ZERO)) } else { span(node.duration("timeout")) };
        action.idle_timeout =
            span(node.duration("idle_timeout").or(is_streaming.then_some(STREAMING_IDLE_TIMEOUT)));
        if let Some(rewrite) = node.get("rewrite") {
            self.rewrite(rewrite, key, &clusters, &mut action);
        }
        Some(action)
    }

    fn default_cluster(&mut self, service: &Service, node: &Node) -> Option<String> {
        let only = self.only_cluster(&service.name);
        if only.is_none() {
            let has_some = service.node.get("clusters").or(service.node.get("endpoints")).is_some();
            let (message, fix) = if has_some {
                (
                    "the route names no cluster, and the service has several",
                    "add `cluster`, `split`, `redirect` or `respond`",
                )
            } else {
                ("the service has no endpoints", "add `endpoints` or `clusters` to the service")
            };
            self.error(node, message, fix);
        }
        only
    }

    fn split(&mut self, service: &Service, split: &Node) -> Vec<(String, u32)> {
        let mut clusters: Vec<(String, u32)> = Vec::new();
        for side in split.items() {
            let (Some(reference), Some(weight)) = (side.get("cluster"), side.int("weight")) else {
                continue;
            };
            let Some(name) = self.resolve_cluster(&service.name, reference) else {
                continue;
            };
            if clusters.iter().any(|(known, _)| *known == name) {
                self.error(reference, "the split names this cluster twice", "add the weights up");
            }
            clusters.push((name, weight));
        }
        let is_whole = clusters.len() == split.items().len();
        if is_whole && clusters.iter().all(|(_, weight)| *weight == 0) {
            self.error(split, "all weights are 0", "give at least one cluster a weight");
        }
        clusters
    }

    fn split_by(&mut self, node: &Node, action: &mut RouteAction) {
        use route_action::hash_policy::{Cookie, Header, PolicySpecifier};
        let Some(by) = node.get("split_by") else {
            return;
        };
        let specifier = match (by.word("header"), by.word("cookie")) {
            (Some(header), _) => {
                PolicySpecifier::Header(Header { header_name: header.to_owned(), ..Default::default() })
            }
            (None, Some(cookie)) => {
                PolicySpecifier::Cookie(Cookie { name: cookie.to_owned(), ..Default::default() })
            }
            (None, None) => return,
        };
        action
            .hash_policy
            .push(route_action::HashPolicy { policy_specifier: Some(specifier), ..Default::default() });
    }

    /// The key of clusters that choose endpoints by hash. Envoy's routes have one key, for splits and clusters alike.
    fn hash_by(&mut self, node: &Node, clusters: &[(String, u32)], action: &mut RouteAction) {
        for (name, _) in clusters {
            let Some(key) = self.hash_key_of(name).cloned() else { continue };
            let known = action.hash_policy.first().and_then(|policy| policy.policy_specifier.as_ref());
            if known.is_some_and(|known| *known != key) {
                let at = node.get("split_by").or(node.get("split")).unwrap_or(node);
                self.error(
                    at,
                    format!("the cluster `{name}` hashes by another key than the rest of this route"),
                    "give `split_by` and the `hash_by` of all clusters of the split the same key",
                );
            } else if known.is_none() {
                action
                    .hash_policy
                    .push(route_action::HashPolicy { policy_specifier: Some(key), ..Default::default() });
            }
        }
    }

    fn rewrite(
        &mut self,
        rewrite: &Node,
        key: &PathKey,
        clusters: &[(String, u32)],
        action: &mut RouteAction,
    ) {
        if let Some(prefix) = rewrite.get("prefix") {
            self.refuse_prefix_of_regex(prefix, key);
            action.prefix_rewrite = prefix.text().unwrap_or("").to_owned();
        }
        action.path_rewrite = rewrite.word("path").map(literal).unwrap_or_default();
        action.regex_rewrite = rewrite.get("regex").and_then(|replace| self.replacement(replace));
        if let Some(host) = rewrite.word("host") {
            let host = host.to_ascii_lowercase();
            action.host_rewrite_specifier =
                Some(route_action::HostRewriteSpecifier::HostRewriteLiteral(host));
        } else if rewrite.is_on("host_from_endpoint") {
            if let Some((unnamed, _)) = clusters.iter().find(|(name, _)| !self.is_named_cluster(name)) {
                let message = format!("an endpoint of the cluster `{unnamed}` has only an address");
                let at = rewrite.get("host_from_endpoint").unwrap_or(rewrite);
                self.error(at, message, "add a `hostname` to each endpoint, or use `host`");
            }
            action.host_rewrite_specifier =
                Some(route_action::HostRewriteSpecifier::AutoHostRewrite(BoolValue { value: true }));
        }
    }

    fn redirect(&mut self, redirect: &Node, key: &PathKey) -> RedirectAction {
        use redirect_action::{PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier};
        let code = match redirect.word("status") {
            Some("302") => RedirectResponseCode::Found,
            Some("303") => RedirectResponseCode::SeeOther,
            Some("307") => RedirectResponseCode::TemporaryRedirect,
            Some("308") => RedirectResponseCode::PermanentRedirect,
            _ => RedirectResponseCode::MovedPermanently,
        };
        let path = if let Some(path) = redirect.word("path") {
            Some(PathRewriteSpecifier::PathRedirect(path.to_owned()))
        } else if let Some(prefix) = redirect.get("prefix") {
            self.refuse_prefix_of_regex(prefix, key);
            prefix.text().map(|p| PathRewriteSpecifier::PrefixRewrite(p.to_owned()))
        } else {
            let replacement = redirect.get("regex").and_then(|replace| self.replacement(replace));
            replacement.map(PathRewriteSpecifier::RegexRewrite)
        };
        let changes = ["https", "host", "port", "path", "prefix", "regex"];
        let is_change = |key: &str| redirect.get(key).is_some_and(|n| n.plain() != Some("false"));
        if !changes.iter().any(|key| is_change(key)) {
            self.error(
                redirect,
                "the redirect leads back to where it came from",
                "add `https`, `host`, `port` or `path`",
            );
        }
        RedirectAction {
            host_redirect: redirect.word("host").unwrap_or("").to_ascii_lowercase(),
            port_redirect: redirect.int("port").unwrap_or(0),
            response_code: code.into(),
            strip_query: redirect.is_on("strip_query"),
            scheme_rewrite_specifier: redirect
                .is_on("https")
                .then_some(SchemeRewriteSpecifier::HttpsRedirect(true)),
            path_rewrite_specifier: path,
        }
    }

    fn respond(&mut self, respond: &Node, route: &mut Route) -> Option<DirectResponseAction> {
        let body = self.body(respond)?;
        if let Some(content_type) = respond.word("content_type") {
            let set = addition("content-type", content_type, HeaderAppendAction::OverwriteIfExistsOrAdd);
            route.response_headers_to_add.push(set);
        }
        Some(DirectResponseAction {
            status: respond.int("status").unwrap_or(200),
            body: (!body.is_empty()).then(|| inline_bytes(&body)),
            ..Default::default()
        })
    }

    fn replacement(&mut self, replace: &Node) -> Option<RegexMatchAndSubstitute> {
        let (pattern, substitution) = (replace.word("pattern")?, replace.word("substitution")?);
        if crate::rules::compile(pattern).is_ok()
            && let Err(problem) = crate::rules::substitution(pattern, substitution)
        {
            self.findings.error(replace.get("substitution").unwrap_or(replace), problem);
        }
        Some(RegexMatchAndSubstitute {
            pattern: Some(regex_matcher(pattern)),
            substitution: substitution.to_owned(),
        })
    }

    fn refuse_prefix_of_regex(&mut self, prefix: &Node, key: &PathKey) {
        if matches!(key, PathKey::Regex(_)) {
            self.error(
                prefix,
                "a regex match has no prefix to replace",
                "use `regex` with a pattern and a substitution",
            );
        }
    }

    /// Routes behind one with the same path and no further condition, or with the same conditions, never match.
    fn refuse_unreachable(&mut self, routes: &[BuiltRoute]) {
        let mut earlier: HashMap<&PathKey, Vec<&BuiltRoute>> = HashMap::new();
        for built in routes {
            let rivals = earlier.entry(&built.key).or_default();
            let is_catch_all = |r: &BuiltRoute| {
                r.route
                    .r#match
                    .as_ref()
                    .is_some_and(|m| m.headers.is_empty() && m.query_parameters.is_empty())
            };
            let blocker = rivals.iter().find(|r| is_catch_all(r) || r.route.r#match == built.route.r#match);
            if let Some(blocker) = blocker {
                let message = format!(
                    "never reached: `{}` in {} takes every such request",
                    blocker.route.name,
                    self.findings.place_of(&blocker.node)
                );
                let at = built.node.get("match").unwrap_or(&built.node);
                self.error(at, message, "move it before that route, or give it another path");
            }
            rivals.push(built);
        }
    }
}

/// Why shard sends a request again, in Envoy's words.
const RETRY_ON: &str = "connect-failure,refused-stream,reset";

/// What the author says of retries, as far as Envoy has fields for it; the rest is in the route's options.
fn retry_policy(node: &Node) -> Option<RetryPolicy> {
    let retries = node.get("retries")?;
    let retries_max = node.int("retries").or_else(|| retries.int("max"));
    Some(RetryPolicy {
        retry_on: RETRY_ON.to_owned(),
        num_retries: count(retries_max),
        per_try_timeout: span(retries.duration("per_try_timeout")),
        ..Default::default()
    })
}

fn weighted(clusters: &[(String, u32)], is_hashed: bool) -> WeightedCluster {
    WeightedCluster {
        clusters: clusters
            .iter()
            .map(|(name, weight)| weighted_cluster::ClusterWeight {
                name: name.clone(),
                weight: count(Some(*weight)),
                ..Default::default()
            })
            .collect(),
        random_value_specifier: is_hashed
            .then_some(weighted_cluster::RandomValueSpecifier::UseHashPolicy(BoolValue { value: true })),
        ..Default::default()
    }
}
