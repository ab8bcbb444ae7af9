//! Follows one request through a snapshot and writes down each step, as the request path would take it: listener,
//! path normalisation, virtual host, rules, cluster, policies. Pure: a snapshot and a question in, text out.

use std::fmt::Write as _;
use std::time::Duration;

use http_proxy::reason::Reason;
use http_proxy::route::Outcome;
use http_proxy::snapshot::{
    Action, EscapedSlashes, Forward, HostRewrite, ListenerConfig, PathRewrite, Route, Snapshot, SplitKey,
    UpstreamProtocol,
};
use http_wire::h1::HeadLimits;
use http_wire::head::Scheme;
use http_wire::path::{self, PathOutcome, PathPolicy};

use super::request::Question;
use crate::outcome::count;

/// Where the route of a name is written, as `file:line`, when that is known.
pub(super) type Origin<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What became of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// A route took it.
    Routed,
    /// The proxy would answer by itself: refused, redirected to another path, or no route.
    Answered,
    /// No listener would take it.
    NoListener,
}

/// Writes the way of the request to `text`.
pub(super) fn walk(snapshot: &Snapshot, question: &Question, origin: Origin<'_>, text: &mut String) -> End {
    say(text, "request", &question.line());
    let takes = |l: &&ListenerConfig| l.tls.is_some() == (question.scheme == Scheme::Https);
    let of_scheme: Vec<_> = snapshot.listeners.iter().filter(takes).collect();
    let on_port: Vec<_> = of_scheme.iter().copied().filter(|l| l.address.port() == question.port).collect();
    let chosen = if on_port.is_empty() { &of_scheme } else { &on_port };
    if chosen.is_empty() {
        let with = if question.scheme == Scheme::Https { "with" } else { "without" };
        say(text, "listener", &format!("none {with} TLS"));
        return End::NoListener;
    }
    if on_port.is_empty() {
        let note = format!(
            "none on port {}; shown for each listener of {}",
            question.port,
            question.scheme.as_str()
        );
        say(text, "listener", &note);
    }
    let ends = chosen.iter().map(|listener| through_listener(snapshot, listener, question, origin, text));
    // Evaluated to the end: every listener is shown.
    ends.fold(End::NoListener, |end, next| if end == End::Routed { end } else { next })
}

fn through_listener(
    snapshot: &Snapshot,
    listener: &ListenerConfig,
    question: &Question,
    origin: Origin<'_>,
    text: &mut String,
) -> End {
    let tls = if listener.tls.is_some() { ", TLS" } else { "" };
    say(text, "listener", &format!("{} ({}{tls})", listener.name, listener.address));
    let http = &listener.http;
    let limits = HeadLimits {
        request_line_bytes_max: http.request_line_bytes_max,
        head_bytes_max: http.header_bytes_max,
        fields_max: http.header_count_max,
    };
    let head = match question.head(&limits) {
        Ok(head) => head,
        // The codec's codes are reasons by the same word.
        Err(error) => return answered(text, Reason::from_code(error.code()).unwrap_or(Reason::Internal)),
    };
    say(text, "raw path", &shown(head.path()));
    let policy = path_policy(listener);
    let mut normal = Vec::new();
    match path::normalise(head.path(), &policy, &mut normal) {
        Ok(PathOutcome::Unchanged) => normal.extend_from_slice(head.path()),
        Ok(PathOutcome::Changed) => {}
        Ok(PathOutcome::Redirect) => {
            say(text, "answer", &format!("redirect to {}: the path holds an escaped slash", shown(&normal)));
            return End::Answered;
        }
        // `OPTIONS *` has no path to normalise.
        Err(_) if head.path() == b"*" => normal.extend_from_slice(b"*"),
        Err(error) => {
            say(text, "path", &format!("none: {}", error.as_str()));
            return answered(text, Reason::PathRejected);
        }
    }
    say(text, "path", &shown(&normal));
    for step in listener.routes.explain(&head, head.authority(), &normal) {
        match &step.outcome {
            Outcome::HostServed { virtual_host, domains } => {
                let host = shown(head.authority());
                let domains = domains.join(", ");
                say(text, "host", &format!("{host}: virtual host {virtual_host} (domains {domains})"));
            }
            Outcome::HostUnknown | Outcome::NoRoute => say(text, "host", &step.to_string()),
            Outcome::PathDiffers | Outcome::ConditionFails(_) => say(text, "tried", &step.to_string()),
            Outcome::Matched => say(text, "taken", &step.to_string()),
        }
    }
    let Some(found) = listener.routes.find(&head, head.authority(), &normal) else {
        let served = listener.routes.serves_host(head.authority());
        return answered(text, if served { Reason::NoRoute } else { Reason::NoVirtualHost });
    };
    say(text, "route", &found.route.name);
    if let Some(place) = origin(&found.route.name) {
        say(text, "written in", &place);
    }
    action(snapshot, found.route, &normal, found.matched_bytes, &policy, text);
    policies(listener, found.route, text);
    End::Routed
}

fn path_policy(listener: &ListenerConfig) -> PathPolicy {
    let escaped_slashes = match listener.http.escaped_slashes {
        EscapedSlashes::Keep => path::EscapedSlashes::Keep,
        EscapedSlashes::Reject => path::EscapedSlashes::Reject,
        EscapedSlashes::Redirect => path::EscapedSlashes::Redirect,
    };
    PathPolicy { escaped_slashes, merge_slashes: listener.http.merge_slashes }
}

/// The answer that the proxy makes by itself for `reason`.
fn answered(text: &mut String, reason: Reason) -> End {
    let status = reason.status().map_or_else(String::new, |status| format!("{status} "));
    say(text, "answer", &format!("{status}{}: {}", reason.code(), reason.title()));
    End::Answered
}

fn action(
    snapshot: &Snapshot,
    route: &Route,
    normal: &[u8],
    matched_bytes: usize,
    policy: &PathPolicy,
    text: &mut String,
) {
    match &route.action {
        Action::Forward(forward) => {
            clusters(snapshot, forward, text);
            if let Some(rewrite) = &forward.path_rewrite {
                say(text, "path sent", &rewritten(rewrite, normal, matched_bytes, policy));
            }
            match &forward.host_rewrite {
                None => {}
                Some(HostRewrite::Literal(host)) => say(text, "host sent", host),
                Some(HostRewrite::Upstream) => say(text, "host sent", "the endpoint's name"),
            }
        }
        Action::Redirect(redirect) => {
            let mut to = format!("redirect {}", redirect.status);
            if redirect.https {
                to.push_str(", scheme https");
            }
            if let Some(host) = &redirect.host {
                push(&mut to, format_args!(", host {host}"));
            }
            if let Some(port) = redirect.port {
                push(&mut to, format_args!(", port {port}"));
            }
            if let Some(rewrite) = &redirect.path {
                push(&mut to, format_args!(", path {}", rewritten(rewrite, normal, matched_bytes, policy)));
            }
            if redirect.strip_query {
                to.push_str(", without the query");
            }
            say(text, "answer", &to);
        }
        Action::Direct(direct) => {
            let kind = &direct.content_type;
            say(text, "answer", &format!("{} with {} bytes of {kind}", direct.status, direct.body.len()));
        }
    }
}

fn clusters(snapshot: &Snapshot, forward: &Forward, text: &mut String) {
    let split = &forward.split;
    for (index, weight) in &split.entries {
        let Some(cluster) = snapshot.clusters.get(index.0) else { continue };
        let protocol = match cluster.protocol {
            UpstreamProtocol::Http1 => "HTTP/1.1",
            UpstreamProtocol::Http2 => "HTTP/2",
        };
        let tls = if cluster.tls.is_some() { " over TLS" } else { "" };
        let endpoints = count(cluster.endpoints.len(), "endpoint");
        let mut line = format!("{}: {protocol}{tls}, {endpoints}", cluster.name);
        if !cluster.dns.is_empty() {
            push(&mut line, format_args!(" and {}", count(cluster.dns.len(), "DNS name")));
        }
        if split.entries.len() > 1 {
            push(&mut line, format_args!(", weight {weight} of {}", split.weight_total));
        }
        say(text, "cluster", &line);
        for (label, rules) in cluster.rules_in_short() {
            say(text, label, &rules);
        }
    }
    for (label, rules) in forward.rules_in_short() {
        say(text, label, &rules);
    }
    match &split.hash_by {
        None => {}
        Some(SplitKey::Field(name)) => say(text, "split", &format!("by hash of the field {name}")),
        Some(SplitKey::Cookie(name)) => say(text, "split", &format!("by hash of the cookie {name}")),
    }
}

/// What the exchange makes of the path: the rewrite, then the same check as for a path from outside.
fn rewritten(rewrite: &PathRewrite, normal: &[u8], matched_bytes: usize, policy: &PathPolicy) -> String {
    let mut out = Vec::new();
    rewrite.apply(normal, matched_bytes, &mut out);
    match path::recheck(&mut out, policy, &mut Vec::new()) {
        Ok(()) => shown(&out),
        Err(error) => format!("none, the request is refused: {}", error.as_str()),
    }
}

fn policies(listener: &ListenerConfig, route: &Route, text: &mut String) {
    if matches!(route.action, Action::Forward(_)) {
        let duration = |d: Option<Duration>| d.map_or_else(|| "off".to_owned(), |d| format!("{d:?}"));
        say(text, "timeout", &duration(route.timeout));
        let body_idle = route.idle_timeout.unwrap_or(listener.http.body_idle_timeout);
        say(text, "body idle", &duration(Some(body_idle)));
        say(text, "body", &route.body_bytes_max.map_or_else(|| "any length".to_owned(), at_most));
    }
    let mut list = Vec::new();
    let limits = [("the listener", &listener.http.client_limit), ("the route", &route.client_limit)];
    for (whose, limit) in limits {
        if let Some(rate) = limit.and_then(|l| l.requests) {
            list.push(format!("{}/s per client (burst {}) by {whose}", rate.per_second, rate.burst));
        }
    }
    if route.access.is_some() {
        list.push("address rules of the route".to_owned());
    }
    if route.cors.is_some() {
        list.push("CORS".to_owned());
    }
    if let Some(token) = listener.http.token_policy(route) {
        let provider = &token.provider.config().name;
        let scopes = if token.scopes.is_empty() { "any scope".to_owned() } else { token.scopes.join(", ") };
        list.push(format!("token of {provider} with {scopes}"));
    }
    if !route.request_fields.is_empty() {
        list.push("request fields are changed".to_owned());
    }
    if !route.response_fields.is_empty() {
        list.push("response fields are changed".to_owned());
    }
    if let Some(since) = &route.deprecation {
        list.push(format!("deprecated since {since}"));
    }
    if let Some(until) = &route.sunset {
        list.push(format!("goes away at {until}"));
    }
    if !route.error_pages.is_empty() {
        let statuses: Vec<_> = route.error_pages.iter().map(|p| p.status.to_string()).collect();
        list.push(format!("own error pages for {}", statuses.join(", ")));
    }
    for policy in &list {
        say(text, "policy", policy);
    }
}

fn at_most(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    match (bytes / MIB, bytes % MIB) {
        (mib @ 1.., 0) => format!("at most {mib} MiB"),
        _ => format!("at most {bytes} bytes"),
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn say(text: &mut String, label: &str, value: &str) {
    push(text, format_args!("{label:<11} {value}\n"));
}

fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a String takes every write");
}
