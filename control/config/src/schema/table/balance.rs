//! Keys of clusters and routes that choose endpoints and keep failures from spreading (docs/resilience.md).

use control_api::defaults::{balance, mirror};

use super::super::Presence::{Optional, OptionalOr, Required};
use super::super::{
    Field, Group, Kind, Limits, Object, durations, durations_or_none, ints, ints_or_none, numbers, sizes,
};
use super::NONE;
use super::texts::*;

pub(super) const CLUSTER_RULES: &[Field] = &[
    field!(
        "balance",
        Kind::Either(&POLICY, &Kind::Object(&BALANCE)),
        OptionalOr("`p2c`"),
        "How an endpoint is chosen; a word is short for `policy`."
    ),
    field!(
        "zones",
        Kind::Either(&Kind::Bool, &Kind::Object(&ZONES)),
        OptionalOr("`false`"),
        "Endpoints in the proxy's own zone (`--zone`) come first, as far as their capacity goes; `true` takes every default. Not with `ring_hash`, `maglev` and `sticky`."
    ),
    field!(
        "subset",
        Kind::Either(&Kind::Bool, &Kind::Object(&SUBSET)),
        OptionalOr("`false`"),
        "One core of a proxy keeps a part of the endpoints (`--fleet`), for clusters of hundreds; `true` takes every default. Not with `ring_hash`, `maglev`, `sticky` and endpoints given by name."
    ),
    field!(
        "slow_start",
        Kind::Either(&Kind::Bool, &Kind::Object(&SLOW_START)),
        OptionalOr("`true`"),
        "An endpoint that is new or came back gets a growing share; `true` takes every default."
    ),
    field!(
        "outlier",
        Kind::Either(&Kind::Bool, &Kind::Object(&OUTLIER)),
        OptionalOr("`true`"),
        "Ejects endpoints that fail; `true` takes every default."
    ),
    field!(
        "panic_percent",
        ints(balance::PANIC_PERCENT),
        Optional,
        "Available endpoints below which health is ignored; 0: never."
    ),
    field!(
        "health_check",
        Kind::Either(&Kind::Text(&PATH), &Kind::Object(&HEALTH_CHECK)),
        NONE,
        "Asks every endpoint whether it is well. A path is short for `http`. Served without TLS: `tcp`, and `http` over HTTP/1.1."
    ),
    field!(
        "in_flight_max",
        ints_or_none(balance::IN_FLIGHT),
        OptionalOr("no cap"),
        "Requests in flight from this process, an equal part for each core; one more gets 503 at once."
    ),
    field!(
        "adaptive",
        Kind::Either(&Kind::Bool, &Kind::Object(&ADAPTIVE)),
        OptionalOr("`false`"),
        "A cap on requests in flight that follows latency; `true` takes every default."
    ),
    field!(
        "breaker",
        Kind::Either(&Kind::Bool, &Kind::Object(&BREAKER)),
        OptionalOr("`false`"),
        "Refuses requests for a while when most of them fail; `true` takes every default."
    ),
    field!(
        "shed",
        Kind::Either(&Kind::Bool, &Kind::Object(&SHED)),
        OptionalOr("`false`"),
        "Refuses requests class by class under strain (`priority_class` of routes); `true` takes every default."
    ),
    field!(
        "sticky",
        Kind::Object(&STICKY),
        NONE,
        "Sessions keep their endpoint by a signed cookie. Not with `ring_hash` and `maglev`."
    ),
    field!("retry_budget", Kind::Object(&RETRY_BUDGET), Optional, "How many retries all routes may make."),
    field!(
        "hedge_percent",
        ints(balance::HEDGE_PERCENT),
        Optional,
        "How many requests of all routes with `hedge` one core may send twice, of the last ten seconds' requests on them."
    ),
];

pub(super) const ROUTE_RULES: &[Field] = &[
    field!(
        "retries",
        Kind::Either(&ints(balance::RETRIES), &Kind::Object(&RETRIES)),
        OptionalOr("`1`"),
        "Attempts after a failed one, on another endpoint. A number is short for `max`; 0: none."
    ),
    field!(
        "hedge",
        Kind::Either(&Kind::Bool, &Kind::Object(&HEDGE)),
        OptionalOr("`false`"),
        "A second attempt on another endpoint while the first is silent; the first good answer wins. `true` takes every default."
    ),
    field!(
        "priority_class",
        Kind::Choice(&[
            ("standard", "after `free`"),
            ("critical", "last of all"),
            ("free", "after `sheddable`"),
            ("sheddable", "first of all")
        ]),
        Optional,
        "When its requests are shed, where the cluster has `shed`."
    ),
];

const POLICIES: &[(&str, &str)] = &[
    ("p2c", "the less busy of two, by weight"),
    ("round_robin", "in turn, by weight"),
    ("random", "by chance and weight"),
    ("least_connections", "the fewest connections for its weight"),
    ("ring_hash", "by key, on a ring"),
    ("maglev", "by key, from a Maglev table"),
    ("peak_ewma", "the shorter expected wait of two"),
];

static POLICY: Kind = Kind::Choice(POLICIES);

static BALANCE: Object = Object {
    name: "balance",
    doc: "How an endpoint is chosen.",
    fields: &[&[
        field!("policy", Kind::Choice(POLICIES), Optional, "The rule."),
        field!(
            "hash_by",
            Kind::Either(&Kind::Choice(&[("client_address", "")]), &Kind::Object(&HASH_BY)),
            OptionalOr("`client_address`"),
            "The key of `ring_hash` and `maglev`; requests without it go by `p2c`."
        ),
        field!(
            "load_bound_percent",
            ints_or_none(balance::LOAD_BOUND_PERCENT),
            OptionalOr("no bound"),
            "`ring_hash` and `maglev`: above this part of its fair share an endpoint passes keys on, such as 125."
        ),
        field!(
            "virtual_nodes",
            ints(balance::RING_VIRTUAL_NODES),
            Optional,
            "`ring_hash`: points of the heaviest endpoint."
        ),
        field!(
            "tau",
            durations(balance::EWMA_TAU),
            Optional,
            "`peak_ewma`: time in which an old average loses half of its weight."
        ),
        field!(
            "failure_penalty",
            durations(balance::EWMA_FAILURE_PENALTY),
            Optional,
            "`peak_ewma`: latency that a failure counts as, at least."
        ),
    ]],
    groups: &[],
};

static HASH_BY: Object = Object {
    name: "hash_by",
    doc: "The part of a request that chooses its endpoint.",
    fields: &[&[
        field!("header", Kind::Text(&HEADER), NONE, "A request header."),
        field!("cookie", Kind::Text(&PARAMETER), NONE, "A cookie."),
        field!("query", Kind::Text(&PARAMETER), NONE, "A query parameter."),
    ]],
    groups: &[Group::ExactlyOne(&["header", "cookie", "query"])],
};

pub(super) static MIRROR: Object = Object {
    name: "mirror",
    doc: "A copy of requests for another cluster, sent behind the request itself; its answer is dropped (docs/resilience.md).",
    fields: &[&[
        field!(
            "cluster",
            Kind::Text(&CLUSTER_REF),
            Required,
            "Where the copies go; none of the route's own clusters."
        ),
        field!(
            "percent",
            numbers(mirror::PERCENT),
            Optional,
            "Part of the keys whose requests are mirrored."
        ),
        field!(
            "by",
            Kind::Either(&Kind::Choice(&[("client_address", "")]), &Kind::Object(&HASH_BY)),
            OptionalOr("the request's id"),
            "The key: all requests of one are mirrored, or none. A request without it goes by its id."
        ),
        field!(
            "remove_headers",
            list!(&Kind::Text(&SETTABLE), 64),
            NONE,
            "Not copied, like `authorization`, `proxy-authorization`, `cookie`, `x-auth-*` and `x-forwarded-client-cert`."
        ),
        field!(
            "buffer_max",
            sizes(mirror::BUFFER_BYTES),
            Optional,
            "Bytes of a body that are held for a copy that is sent more slowly than the request itself; a slower one is cut."
        ),
        field!(
            "timeout",
            durations(mirror::TIMEOUT),
            Optional,
            "From the end of a copied request to the end of its answer."
        ),
        field!("in_flight_max", ints(mirror::IN_FLIGHT), Optional, "Copies that one core makes at a time."),
        field!(
            "bandwidth_max",
            sizes(mirror::BYTES_PER_SECOND),
            Optional,
            "Request body bytes that one core copies in a second."
        ),
    ]],
    groups: &[],
};

static SLOW_START: Object = Object {
    name: "slow_start",
    doc: "The share of an endpoint is `max(floor, (age / window) ^ (1 / aggression))` of its usual one.",
    fields: &[&[
        field!("window", durations(balance::SLOW_START_WINDOW), Optional, "Time to the full share."),
        field!("floor_percent", ints(balance::SLOW_START_FLOOR_PERCENT), Optional, "The least share."),
        field!(
            "aggression",
            numbers(balance::SLOW_START_AGGRESSION),
            Optional,
            "1: a straight line; above, the share rises early."
        ),
    ]],
    groups: &[],
};

/// 0 or the bound's range.
const CONSECUTIVE: Kind = Kind::Int(Limits {
    min: 0,
    default: Some(super::super::widen(balance::CONSECUTIVE.default)),
    max: super::super::widen(balance::CONSECUTIVE.max),
});

static OUTLIER: Object = Object {
    name: "outlier",
    doc: "When an endpoint is put aside, and for how long. Counted on each core.",
    fields: &[&[
        field!("consecutive_5xx", CONSECUTIVE, Optional, "Responses of 500 to 599 in a row; 0: no cause."),
        field!("consecutive_gateway", CONSECUTIVE, Optional, "502, 503 and 504 in a row; 0: no cause."),
        field!(
            "consecutive_local",
            CONSECUTIVE,
            Optional,
            "Failed connects, resets and time-outs in a row; 0: no cause."
        ),
        field!(
            "success_rate",
            Kind::Either(&Kind::Bool, &Kind::Object(&SUCCESS_RATE)),
            OptionalOr("`false`"),
            "Endpoints that fail far more than the others; `true` takes every default."
        ),
        field!(
            "latency",
            Kind::Either(&Kind::Bool, &Kind::Object(&LATENCY)),
            OptionalOr("`false`"),
            "Endpoints that are far slower than the others; `true` takes every default."
        ),
        field!("interval", durations(balance::OUTLIER_INTERVAL), Optional, "How often these two are judged."),
        field!("ejection", durations(balance::EJECTION), Optional, "The first time out; doubled each time."),
        field!("ejection_max", durations(balance::EJECTION_MAX), Optional, "The longest time out."),
        field!(
            "ejected_percent_max",
            ints(balance::EJECTED_PERCENT),
            Optional,
            "Share of the endpoints that may be out at once."
        ),
        field!(
            "endpoints_min",
            Kind::Int(Limits {
                min: 0,
                default: Some(super::super::widen(balance::EJECT_ONE_ENDPOINTS.default)),
                max: super::super::widen(balance::EJECT_ONE_ENDPOINTS.max),
            }),
            Optional,
            "Clusters of so many endpoints may lose one whatever the share; 0: the share alone decides."
        ),
        field!("log_only", Kind::Bool, OptionalOr("`false`"), "Decisions are told and not carried out."),
    ]],
    groups: &[],
};

static SUCCESS_RATE: Object = Object {
    name: "success_rate",
    doc: "An endpoint is an outlier when its success rate is so far below the mean.",
    fields: &[&[
        field!(
            "deviation_percent",
            Kind::Int(Limits { min: 10, default: Some(190), max: 1_000 }),
            Optional,
            "Hundredths of a standard deviation."
        ),
        field!(
            "endpoints_min",
            ints(balance::OUTLIER_ENDPOINTS),
            Optional,
            "Endpoints with enough requests below which none is judged."
        ),
        field!(
            "requests_min",
            ints(balance::SUCCESS_RATE_REQUESTS),
            Optional,
            "Requests in the interval below which an endpoint is not judged."
        ),
    ]],
    groups: &[],
};

static LATENCY: Object = Object {
    name: "latency",
    doc: "An endpoint is an outlier when its mean latency is so far above the median.",
    fields: &[&[
        field!(
            "median_percent",
            ints(balance::LATENCY_MEDIAN_PERCENT),
            Optional,
            "Percent of the median of all endpoints."
        ),
        field!(
            "endpoints_min",
            ints(balance::OUTLIER_ENDPOINTS),
            Optional,
            "Endpoints with enough requests below which none is judged."
        ),
        field!(
            "requests_min",
            ints(balance::LATENCY_REQUESTS),
            Optional,
            "Requests in the interval below which an endpoint is not judged."
        ),
    ]],
    groups: &[],
};

static HEALTH_CHECK: Object = Object {
    name: "health_check",
    doc: "What every endpoint is asked, and what its answers mean.",
    fields: &[&[
        field!("http", Kind::Text(&PATH), NONE, "GET of this path."),
        field!(
            "statuses",
            list!(&Kind::Text(&STATUSES), balance::CHECK_STATUSES_MAX),
            OptionalOr("`[200]`"),
            "`http`: statuses that pass."
        ),
        field!(
            "host",
            Kind::Text(&DNS_NAME),
            OptionalOr("the endpoint's `hostname`, DNS name or address"),
            "`http`: the host asked for."
        ),
        field!(
            "grpc",
            Kind::Text(&GRPC_SERVICE),
            NONE,
            "`grpc.health.v1.Health/Check` of this service; `\"\"` is the whole server."
        ),
        field!("tcp", Kind::Bool, NONE, "`true`: a connection that is accepted passes."),
        field!("send", Kind::Text(&PAYLOAD), NONE, "`tcp`: sent first."),
        field!("expect", Kind::Text(&PAYLOAD), NONE, "`tcp`: how the answer must begin; needs `send`."),
        field!("interval", durations(balance::CHECK_INTERVAL), Optional, "Between two checks."),
        field!("timeout", durations(balance::CHECK_TIMEOUT), Optional, "For the answer."),
        field!(
            "jitter_percent",
            ints(balance::CHECK_JITTER_PERCENT),
            Optional,
            "Part of the interval by which a check may be earlier or later."
        ),
        field!("unhealthy_after", ints(balance::CHECK_UNHEALTHY), Optional, "Failures in a row."),
        field!("healthy_after", ints(balance::CHECK_HEALTHY), Optional, "Passes in a row."),
    ]],
    groups: &[Group::ExactlyOne(&["http", "grpc", "tcp"])],
};

static ADAPTIVE: Object = Object {
    name: "adaptive",
    doc: "A cap on the requests in flight from one core, lowered when latency rises above the usual one.",
    fields: &[&[
        field!("in_flight_min", ints(balance::ADAPTIVE_MIN), Optional, "The least cap."),
        field!("in_flight_max", ints(balance::ADAPTIVE_MAX), Optional, "The highest cap, and the first."),
        field!(
            "tolerance_percent",
            ints(balance::ADAPTIVE_TOLERANCE_PERCENT),
            Optional,
            "Latency in percent of the usual one up to which nothing is done."
        ),
    ]],
    groups: &[],
};

static BREAKER: Object = Object {
    name: "breaker",
    doc: "Opens when more than a share of the requests in a window fail, then lets probes pass. One for each core.",
    fields: &[&[
        field!("failure_percent", ints(balance::BREAKER_FAILURE_PERCENT), Optional, "It opens above."),
        field!(
            "requests_min",
            ints(balance::BREAKER_REQUESTS),
            Optional,
            "Requests in the window below which it never opens."
        ),
        field!("window", durations(balance::BREAKER_WINDOW), Optional, "Time that it looks back."),
        field!("open", durations(balance::BREAKER_OPEN), Optional, "How long everything is refused."),
        field!(
            "probe_percent",
            ints(balance::BREAKER_PROBE_PERCENT),
            Optional,
            "Requests that pass after it."
        ),
        field!("probes", ints(balance::BREAKER_PROBES), Optional, "Finished probes that decide."),
    ]],
    groups: &[],
};

static SHED: Object = Object {
    name: "shed",
    doc: "Strain in percent from which each class is shed, all of it where the next one begins. Rising in this order.",
    fields: &[&[
        field!(
            "sheddable_from",
            Kind::Int(Limits { min: 1, default: Some(75), max: 99 }),
            Optional,
            "`sheddable`."
        ),
        field!("free_from", Kind::Int(Limits { min: 1, default: Some(80), max: 99 }), Optional, "`free`."),
        field!(
            "standard_from",
            Kind::Int(Limits { min: 1, default: Some(86), max: 99 }),
            Optional,
            "`standard`."
        ),
        field!(
            "critical_from",
            Kind::Int(Limits { min: 1, default: Some(94), max: 99 }),
            Optional,
            "`critical`."
        ),
    ]],
    groups: &[],
};

static STICKY: Object = Object {
    name: "sticky",
    doc: "The cookie holds a session id and no address: `NAME=VALUE; Path=PATH; HttpOnly; SameSite=Lax`, with `Secure` on TLS. Backends get it as the client sent it.",
    fields: &[&[
        field!(
            "keys",
            list!(&Kind::Text(&FILE), balance::STICKY_KEYS_MAX),
            Required,
            "Files of 32 to 64 random bytes: current, previous. To rotate, put a new one in front and let go of the last."
        ),
        field!(
            "cookie",
            Kind::Text(&COOKIE),
            OptionalOr("`shard-` and eight hexadecimal digits that stand for the cluster"),
            "Name of the cookie. Clusters that share a host need names or paths of their own."
        ),
        field!("path", Kind::Text(&COOKIE_PATH), OptionalOr("`/`"), "Path of the cookie."),
        field!(
            "max_age",
            durations_or_none(balance::STICKY_MAX_AGE),
            OptionalOr("until the browser ends"),
            "How long browsers keep the cookie."
        ),
        field!(
            "overlap",
            durations(balance::STICKY_OVERLAP),
            Optional,
            "How long a session stays at an endpoint that drains, or where the endpoints of its time had put it."
        ),
        field!(
            "virtual_nodes",
            ints(balance::RING_VIRTUAL_NODES),
            Optional,
            "Points of the heaviest endpoint on the ring."
        ),
    ]],
    groups: &[],
};

static ZONES: Object = Object {
    name: "zones",
    doc: "A zone keeps its requests as far as its part of the endpoints' weight reaches its part of the requests; the rest goes to the other zones.",
    fields: &[&[field!(
        "traffic",
        Kind::Map { key: &ZONE, of: &ints_or_none(balance::ZONE_TRAFFIC_PERCENT) },
        OptionalOr("the same from every zone of the endpoints and the proxy's own"),
        "Percent of all proxies' requests by the zone of the proxy, 100 together. Proxies in a zone that is not named refuse the config."
    )]],
    groups: &[],
};

static SUBSET: Object = Object {
    name: "subset",
    doc: "Which part of the endpoints one core of a proxy keeps; all proxies together have every endpoint about equally often.",
    fields: &[&[field!(
        "endpoints_min",
        ints(balance::SUBSET_ENDPOINTS),
        Optional,
        "Least endpoints of one core; more where the fleet is too small to reach all."
    )]],
    groups: &[],
};

static RETRY_BUDGET: Object = Object {
    name: "retry_budget",
    doc: "Retries that a cluster gets from one core, whatever its routes say.",
    fields: &[&[
        field!("percent", ints(balance::RETRY_BUDGET_PERCENT), Optional, "Of the last second's requests."),
        field!(
            "floor_per_second",
            ints(balance::RETRY_FLOOR_PER_SECOND),
            Optional,
            "Always allowed, so that a quiet cluster can retry at all."
        ),
    ]],
    groups: &[],
};

static HEDGE: Object = Object {
    name: "hedge",
    doc: "For requests that may be sent again: GET, HEAD, PUT, DELETE, OPTIONS, and POST with Idempotency-Key where `retries` allows it; with a body of at most 64 KiB, once all of it has come. Not in clusters with `sticky`.",
    fields: &[&[field!(
        "after",
        durations(balance::HEDGE_AFTER),
        Optional,
        "Silence of the first attempt; about what 95 of 100 answers stay under."
    )]],
    groups: &[],
};

static RETRIES: Object = Object {
    name: "retries",
    doc: "When a request is sent again: the connect failed, the stream was refused, the connection died before the response, or a 503 says that the request was not processed.",
    fields: &[&[
        field!("max", ints(balance::RETRIES), Optional, "Attempts after the first."),
        field!(
            "per_try_timeout",
            durations_or_none(balance::PER_TRY_TIMEOUT),
            OptionalOr("what the `timeout` leaves"),
            "Wait for the response of one attempt."
        ),
        field!(
            "on_timeout",
            Kind::Bool,
            OptionalOr("`false`"),
            "Also when `per_try_timeout` is over; doubles the load on a slow cluster."
        ),
        field!(
            "idempotency_key",
            Kind::Bool,
            OptionalOr("`false`"),
            "A POST with Idempotency-Key may be sent again, as GET, HEAD, PUT, DELETE and OPTIONS are."
        ),
    ]],
    groups: &[],
};
