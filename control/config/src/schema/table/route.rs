//! Keys of routes: what they match, what they do, their policies.

use control_api::defaults::route;

use super::super::Presence::{Optional, OptionalOr, Required};
use super::super::{Field, Group, Kind, Limits, Object, durations, durations_or_none, ints_or_none, sizes};
use super::NONE;
use super::balance::{MIRROR, ROUTE_RULES};
use super::listener::{ACCESS, ERROR_PAGE, ROUTE_LIMIT};
use super::texts::*;
use super::token::TOKEN;

pub(crate) static ROUTE: Object = Object {
    name: "route",
    doc: "What requests it matches, and what happens then.",
    fields: &[ROUTE_FIELDS, POLICY_FIELDS, ROUTE_RULES],
    groups: &[
        Group::AtMostOne(&["cluster", "split", "redirect", "respond"]),
        Group::AtMostOne(&["timeout", "streaming"]),
    ],
};

const ROUTE_FIELDS: &[Field] = &[
    field!(
        "name",
        Kind::Text(&NAME),
        OptionalOr("`route-<number>`"),
        "Unique in the service; the metric label is `<service>/<route>`."
    ),
    field!("match", Kind::Object(&MATCH), OptionalOr("every path"), "Requests that take this route."),
    field!(
        "cluster",
        Kind::Text(&CLUSTER_REF),
        OptionalOr("the service's only cluster"),
        "Where requests go."
    ),
    field!("split", list!(&Kind::Object(&SPLIT), 100), NONE, "Several clusters by weight."),
    field!(
        "split_by",
        Kind::Object(&SPLIT_BY),
        OptionalOr("chance"),
        "Keeps a caller on one side of a split."
    ),
    field!("mirror", Kind::Object(&MIRROR), NONE, "Copies requests to another cluster."),
    field!("redirect", Kind::Object(&REDIRECT), NONE, "Answers with a redirect."),
    field!("respond", Kind::Object(&RESPOND), NONE, "Answers itself."),
    field!("rewrite", Kind::Object(&REWRITE), NONE, "Changes path or host towards the upstream."),
];

pub(super) const POLICY_GROUPS: &[Group] = &[Group::AtMostOne(&["timeout", "streaming"])];

pub(crate) static ROUTE_DEFAULTS: Object = Object {
    name: "route_defaults",
    doc: "Policies of routes, also allowed for a whole service.",
    fields: &[POLICY_FIELDS, ROUTE_RULES],
    groups: POLICY_GROUPS,
};

pub(super) const POLICY_FIELDS: &[Field] = &[
    field!("timeout", durations(route::TIMEOUT), Optional, "From the whole request to the response head."),
    field!(
        "streaming",
        Kind::Bool,
        OptionalOr("`false`"),
        "For long-lived streams (SSE, gRPC streaming, uploads): no `timeout`, no `body_max`, an `idle_timeout` of 1h."
    ),
    field!(
        "idle_timeout",
        durations_or_none(route::IDLE_TIMEOUT),
        OptionalOr("the listener's `body_idle`"),
        "Without progress in either direction."
    ),
    field!(
        "body_max",
        Kind::Size(Limits {
            min: route::BODY_BYTES.min,
            default: Some(route::BODY_BYTES.default),
            max: route::BODY_BYTES.max
        }),
        Optional,
        "Bytes of a request body."
    ),
    field!(
        "body_rate",
        Kind::Either(&Kind::Bool, &Kind::Object(&BODY_RATE)),
        OptionalOr("`false`"),
        "A least rate of request bodies; `true` takes every default. Leave it off where clients pause on purpose."
    ),
    field!("request_headers", Kind::Object(&HEADERS), NONE, "Headers towards the upstream."),
    field!("response_headers", Kind::Object(&HEADERS), NONE, "Headers towards the client."),
    field!("cors", Kind::Object(&CORS), NONE, "Cross-origin requests of browsers, preflights included."),
    field!(
        "access",
        Kind::Object(&ACCESS),
        OptionalOr("all clients"),
        "By the client's address, on top of the listener's."
    ),
    field!("client_limit", Kind::Object(&ROUTE_LIMIT), NONE, "Limits of one client address."),
    field!(
        "token",
        Kind::Either(&Kind::Bool, &Kind::Object(&TOKEN)),
        OptionalOr("`false`"),
        "Callers show a valid bearer token; `true` takes every default, `false` lifts it for a route."
    ),
    field!("deprecation", Kind::Text(&DATE), NONE, "`Deprecation` header (RFC 9745)."),
    field!("sunset", Kind::Text(&DATE), NONE, "`Sunset` header (RFC 8594)."),
    field!(
        "error_pages",
        list!(&Kind::Object(&ERROR_PAGE), 50),
        OptionalOr("the listener's"),
        "Bodies of errors that the proxy makes itself."
    ),
];

static BODY_RATE: Object = Object {
    name: "body_rate",
    doc: "From the first byte of a body on, while the client is waited for. Time in which the backend takes nothing does not count.",
    fields: &[&[
        field!("min", sizes(route::BODY_RATE), Optional, "Bytes a second, on average over the window."),
        field!(
            "window",
            durations(route::BODY_RATE_WINDOW),
            Optional,
            "Time for as many bytes as make the rate."
        ),
    ]],
    groups: &[],
};

static MATCH: Object = Object {
    name: "match",
    doc: "All conditions must hold. Paths are matched after normalisation.",
    fields: &[&[
        field!(
            "prefix",
            Kind::Text(&PATH),
            OptionalOr("`/`"),
            "Whole segments: `/v1` matches `/v1` and `/v1/x`, not `/v10`."
        ),
        field!("path", Kind::Text(&PATH), NONE, "The whole path."),
        field!("regex", Kind::Text(&REGEX), NONE, "The whole path, by pattern."),
        field!("methods", list!(&Kind::Text(&METHOD), 16), OptionalOr("all"), "Methods."),
        field!("headers", Kind::Map { key: &HEADER, of: &MATCHER }, NONE, "Headers by name."),
        field!("query", Kind::Map { key: &PARAMETER, of: &MATCHER }, NONE, "Query parameters by name."),
    ]],
    groups: &[Group::AtMostOne(&["prefix", "path", "regex"])],
};

static MATCHER: Kind = Kind::Either(&Kind::Text(&VALUE), &Kind::Object(&VALUE_MATCH));

static VALUE_MATCH: Object = Object {
    name: "value_match",
    doc: "How a header or query parameter is compared. A plain text is short for `exact`.",
    fields: &[&[
        field!("exact", Kind::Text(&VALUE), NONE, "The whole value."),
        field!("prefix", Kind::Text(&VALUE), NONE, "Its start."),
        field!("suffix", Kind::Text(&VALUE), NONE, "Its end."),
        field!("contains", Kind::Text(&VALUE), NONE, "A part of it."),
        field!("regex", Kind::Text(&REGEX), NONE, "The whole value, by pattern."),
        field!("present", Kind::Bool, NONE, "Whether it is there at all."),
        field!(
            "ignore_case",
            Kind::Bool,
            OptionalOr("`false`"),
            "Compares without regard to ASCII case; not with `regex` or `present`."
        ),
        field!("not", Kind::Bool, OptionalOr("`false`"), "Turns the outcome round."),
    ]],
    groups: &[Group::ExactlyOne(&["exact", "prefix", "suffix", "contains", "regex", "present"])],
};

static SPLIT: Object = Object {
    name: "split",
    doc: "One side of a split.",
    fields: &[&[
        field!("cluster", Kind::Text(&CLUSTER_REF), Required, "Where requests go."),
        field!(
            "weight",
            ints_or_none(route::WEIGHT),
            Required,
            "Its share of the sum of weights; 0 gets nothing."
        ),
    ]],
    groups: &[],
};

static SPLIT_BY: Object = Object {
    name: "split_by",
    doc: "What a split hashes, so that the same caller stays on the same side.",
    fields: &[&[
        field!("header", Kind::Text(&HEADER), NONE, "A request header."),
        field!("cookie", Kind::Text(&PARAMETER), NONE, "A cookie."),
    ]],
    groups: &[Group::ExactlyOne(&["header", "cookie"])],
};

static REDIRECT: Object = Object {
    name: "redirect",
    doc: "A redirect; what is not named stays as in the request.",
    fields: &[&[
        field!(
            "status",
            Kind::Choice(&[("301", ""), ("302", ""), ("303", ""), ("307", ""), ("308", "")]),
            Optional,
            "Status."
        ),
        field!("https", Kind::Bool, OptionalOr("`false`"), "To the https scheme."),
        field!("host", Kind::Text(&DNS_NAME), NONE, "To another host."),
        field!("port", Kind::Int(Limits { min: 1, default: None, max: 65_535 }), NONE, "To another port."),
        field!("path", Kind::Text(&PATH), NONE, "To this path."),
        field!("prefix", Kind::Text(&PATH), NONE, "Replaces the matched prefix."),
        field!("regex", Kind::Object(&REPLACE), NONE, "Replaces every match in the path."),
        field!("strip_query", Kind::Bool, OptionalOr("`false`"), "Drops the query."),
    ]],
    groups: &[Group::AtMostOne(&["path", "prefix", "regex"])],
};

static REPLACE: Object = Object {
    name: "replace",
    doc: "A pattern and what stands in its place.",
    fields: &[&[
        field!("pattern", Kind::Text(&REGEX), Required, "What is replaced."),
        field!("substitution", Kind::Text(&VALUE), Required, "`\\1` is the first group."),
    ]],
    groups: &[],
};

static RESPOND: Object = Object {
    name: "respond",
    doc: "A response made by the proxy.",
    fields: &[&[
        field!("status", Kind::Int(Limits { min: 200, default: Some(200), max: 599 }), Optional, "Status."),
        field!("body", Kind::Text(&BODY), NONE, "The body, at most 64 KiB."),
        field!("file", Kind::Text(&FILE), NONE, "A file with the body, at most 64 KiB."),
        field!("content_type", Kind::Text(&MEDIA_TYPE), OptionalOr("`text/plain`"), "Its media type."),
    ]],
    groups: &[Group::AtMostOne(&["body", "file"])],
};

static REWRITE: Object = Object {
    name: "rewrite",
    doc: "Changes towards the upstream; the outcome is normalised and checked again.",
    fields: &[&[
        field!("prefix", Kind::Text(&PATH), NONE, "Replaces the matched prefix."),
        field!("path", Kind::Text(&PATH), NONE, "Replaces the whole path."),
        field!("regex", Kind::Object(&REPLACE), NONE, "Replaces every match in the path."),
        field!("host", Kind::Text(&DNS_NAME), NONE, "This host."),
        field!(
            "host_from_endpoint",
            Kind::Bool,
            OptionalOr("`false`"),
            "The endpoint's `hostname` or DNS name."
        ),
    ]],
    groups: &[
        Group::AtMostOne(&["prefix", "path", "regex"]),
        Group::AtMostOne(&["host", "host_from_endpoint"]),
    ],
};

static HEADERS: Object = Object {
    name: "headers",
    doc: "Changes of headers: removals first, then additions.",
    fields: &[&[
        field!(
            "set",
            Kind::Map { key: &SETTABLE, of: &Kind::Text(&VALUE) },
            NONE,
            "Replaces every value of the header."
        ),
        field!("add", Kind::Map { key: &SETTABLE, of: &Kind::Text(&VALUE) }, NONE, "Adds a value."),
        field!("remove", list!(&Kind::Text(&SETTABLE), route::FIELD_OPS_MAX), NONE, "Removes the header."),
    ]],
    groups: &[],
};

static CORS: Object = Object {
    name: "cors",
    doc: "Cross-origin resource sharing (fetch standard).",
    fields: &[&[
        field!("origins", list!(&Kind::Text(&ORIGIN), 100), Required, "Origins that may read responses."),
        field!(
            "methods",
            list!(&Kind::Text(&METHOD), 16),
            OptionalOr("only those that need no preflight"),
            "Methods they may use."
        ),
        field!("headers", list!(&Kind::Text(&HEADER), 64), NONE, "Request headers they may send."),
        field!("expose", list!(&Kind::Text(&HEADER), 64), NONE, "Response headers they may read."),
        field!(
            "max_age",
            Kind::Duration(Limits {
                min: std::time::Duration::ZERO,
                default: None,
                max: std::time::Duration::from_secs(86_400)
            }),
            OptionalOr("the browser's"),
            "How long a preflight may be cached."
        ),
        field!(
            "credentials",
            Kind::Bool,
            OptionalOr("`false`"),
            "Cookies and client certificates; not with origin `*`."
        ),
    ]],
    groups: &[],
};
