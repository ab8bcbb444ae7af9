//! Policies of a route: headers, CORS, tokens, limits, and the `shard.v1.RouteOptions` that carries what Envoy lacks.

use std::collections::HashMap;

use control_api::defaults::balance::HEDGE_AFTER;
use control_api::defaults::route::{BODY_BYTES, BODY_RATE, BODY_RATE_WINDOW, FIELD_OPS_MAX};
use control_api::envoy::core::{HeaderValue, HeaderValueOption, header_value_option};
use control_api::envoy::cors::CorsPolicy;
use control_api::envoy::google::{self, Any};
use control_api::envoy::matcher::{RegexMatcher, StringMatcher, string_matcher};
use control_api::envoy::names;
use control_api::envoy::route::Route;
use control_api::shard::v1::{AddressRules, BodyRate, ClientLimit, KEY, PriorityClass, RouteOptions};

use super::balance::switched;
use super::token::token_options;
use super::{Emitter, literal, on, packed, span};
use crate::units::parse_date;
use crate::yaml::Node;

impl Emitter<'_> {
    /// Puts a route's policies into its resource.
    pub(super) fn apply_policies(&mut self, node: &Node, route: &mut Route) {
        if let Some(headers) = node.get("request_headers") {
            let (add, remove) = self.header_operations(headers);
            route.request_headers_to_add.extend(add);
            route.request_headers_to_remove.extend(remove);
        }
        if let Some(headers) = node.get("response_headers") {
            let (add, remove) = self.header_operations(headers);
            route.response_headers_to_add.extend(add);
            route.response_headers_to_remove.extend(remove);
        }
        let mut configs: HashMap<String, Any> = HashMap::new();
        if let Some(cors) = node.get("cors") {
            configs.insert(names::CORS.to_owned(), packed(&self.cors(cors)));
        }
        if let Some(requirement) = self.token_requirement(node) {
            configs.insert(names::JWT_AUTHN.to_owned(), packed(&requirement));
        }
        let options = self.route_options(node);
        if options != RouteOptions::default() {
            configs.insert(KEY.to_owned(), packed(&options));
        }
        route.typed_per_filter_config = configs;
    }

    fn route_options(&mut self, node: &Node) -> RouteOptions {
        let body_bytes_max = match node.size("body_max") {
            Some(bytes) => bytes,
            None if node.is_on("streaming") => 0,
            None => BODY_BYTES.default,
        };
        let date = |key| node.word(key).and_then(|text| parse_date(text).ok());
        RouteOptions {
            body_bytes_max: Some(body_bytes_max),
            access: address_rules(node.get("access")),
            client_limit: node.get("client_limit").map(client_limit),
            deprecation: date("deprecation").map(|d| d.structured()).unwrap_or_default(),
            sunset: date("sunset").map(|d| d.imf_fixdate()).unwrap_or_default(),
            error_pages: self.error_pages(node.list("error_pages")),
            priority_class: priority_class(node),
            retry_on_timeout: self.retry_on_timeout(node),
            retry_with_idempotency_key: node.get("retries").and_then(|r| r.flag("idempotency_key")),
            mirror: Self::mirror_options(node),
            hedge_after: hedge_after(node),
            body_rate: body_rate(node),
            token: token_options(node),
        }
    }

    fn retry_on_timeout(&mut self, node: &Node) -> Option<bool> {
        let retries = node.get("retries")?;
        let on_timeout = retries.flag("on_timeout")?;
        if on_timeout && retries.get("per_try_timeout").is_none() {
            let at = retries.get("on_timeout").unwrap_or(retries);
            self.error(
                at,
                "no attempt has a timeout of its own",
                "add `per_try_timeout`, or delete this key",
            );
        }
        Some(on_timeout)
    }

    fn header_operations(&mut self, headers: &Node) -> (Vec<HeaderValueOption>, Vec<String>) {
        use header_value_option::HeaderAppendAction::{AppendIfExistsOrAdd, OverwriteIfExistsOrAdd};
        let mut additions = Vec::new();
        for (key, action) in [("set", OverwriteIfExistsOrAdd), ("add", AppendIfExistsOrAdd)] {
            for entry in headers.get(key).map_or(&[][..], Node::entries) {
                if let Some(value) = entry.value.text() {
                    additions.push(addition(&entry.key, value, action));
                }
            }
        }
        let removals = headers.strings("remove");
        if additions.len() + removals.len() > FIELD_OPS_MAX {
            self.error(headers, format!("more than {FIELD_OPS_MAX} header operations"), "drop some");
        }
        (additions, removals)
    }

    fn cors(&mut self, cors: &Node) -> CorsPolicy {
        let is_any = cors.words("origins").any(|origin| origin == "*");
        if is_any
            && cors.is_on("credentials")
            && let Some(node) = cors.get("credentials")
        {
            self.error(
                node,
                "browsers refuse credentials together with the origin `*` (fetch standard)",
                "list the origins, or delete this key",
            );
        }
        let joined = |key: &str| cors.words(key).collect::<Vec<_>>().join(", ");
        CorsPolicy {
            allow_origin_string_match: cors.words("origins").map(origin_matcher).collect(),
            allow_methods: joined("methods"),
            allow_headers: joined("headers"),
            expose_headers: joined("expose"),
            max_age: cors.duration("max_age").map(|d| d.as_secs().to_string()).unwrap_or_default(),
            allow_credentials: on(cors.is_on("credentials")),
            ..Default::default()
        }
    }
}

/// Sets or adds one header.
pub(super) fn addition(
    key: &str,
    value: &str,
    action: header_value_option::HeaderAppendAction,
) -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue { key: key.to_owned(), value: literal(value), ..Default::default() }),
        append_action: action.into(),
        ..Default::default()
    }
}

/// `false` lifts an outer level's.
fn body_rate(node: &Node) -> Option<BodyRate> {
    node.get("body_rate")?;
    let Some(rate) = switched(node, "body_rate") else {
        return Some(BodyRate { bytes_per_second_min: Some(0), window: None });
    };
    let min = rate.small_size("min").unwrap_or(BODY_RATE.default);
    let window = rate.duration("window").unwrap_or(BODY_RATE_WINDOW.default);
    Some(BodyRate { bytes_per_second_min: Some(min), window: span(Some(window)) })
}

/// Zero is written where an inner level switches off what an outer one has on.
fn hedge_after(node: &Node) -> Option<google::Duration> {
    node.get("hedge")?;
    let after = switched(node, "hedge").map(|hedge| hedge.duration("after").unwrap_or(HEDGE_AFTER.default));
    span(Some(after.unwrap_or_default()))
}

fn priority_class(node: &Node) -> Option<i32> {
    let class = match node.word("priority_class")? {
        "critical" => PriorityClass::Critical,
        "free" => PriorityClass::Free,
        "sheddable" => PriorityClass::Sheddable,
        _ => PriorityClass::Standard,
    };
    Some(class.into())
}

pub(super) fn address_rules(access: Option<&Node>) -> Option<AddressRules> {
    access.map(|node| AddressRules { allow: node.strings("allow"), deny: node.strings("deny") })
}

/// The request limits of one client address.
pub(super) fn client_limit(node: &Node) -> ClientLimit {
    ClientLimit {
        connections_max: 0,
        requests_per_second: node.int("requests_per_second").unwrap_or(0),
        requests_burst: node.int("burst").unwrap_or(0),
    }
}

pub(super) fn regex_matcher(regex: &str) -> RegexMatcher {
    RegexMatcher { regex: regex.to_owned(), ..Default::default() }
}

fn origin_matcher(origin: &str) -> StringMatcher {
    let pattern = match origin.split_once("://*.") {
        // One label or more, as `*.` reads to most people; the suffix is literal.
        Some((scheme, suffix)) => string_matcher::MatchPattern::SafeRegex(regex_matcher(&format!(
            "{scheme}://([a-z0-9-]+\\.)+{}",
            regex::escape(suffix)
        ))),
        None => string_matcher::MatchPattern::Exact(origin.to_owned()),
    };
    StringMatcher { match_pattern: Some(pattern), ..Default::default() }
}
