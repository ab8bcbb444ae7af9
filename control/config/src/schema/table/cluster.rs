//! Keys of clusters: endpoints, pools, TLS, DNS.

use control_api::defaults::{balance, cluster};

use super::super::Presence::{Optional, OptionalOr, Required};
use super::super::{Field, Kind, Object, durations, durations_or_none, ints, ints_or_none};
use super::NONE;
use super::balance::CLUSTER_RULES;
use super::texts::*;

pub(super) static ENDPOINT_KIND: Kind = Kind::Either(&Kind::Text(&ENDPOINT), &Kind::Object(&ENDPOINT_OBJECT));

static ENDPOINT_OBJECT: Object = Object {
    name: "endpoint",
    doc: "One endpoint. A plain text is short for `address`.",
    fields: &[&[
        field!(
            "address",
            Kind::Text(&ENDPOINT),
            Required,
            "Where it listens. A DNS name is looked up again and again, and every address joins."
        ),
        field!("weight", ints(cluster::ENDPOINT_WEIGHT), Optional, "Its share of requests."),
        field!(
            "priority",
            ints(balance::PRIORITY),
            Optional,
            "Used when too few endpoints of the lower numbers are available; no number may be left out."
        ),
        field!("zone", Kind::Text(&ZONE), NONE, "Where it lives, for `zones` of the cluster."),
        field!(
            "drain",
            Kind::Bool,
            OptionalOr("`false`"),
            "Gets no new request; what is in flight ends, idle connections are closed."
        ),
        field!(
            "hostname",
            Kind::Text(&DNS_NAME),
            OptionalOr("the DNS name"),
            "Its name for TLS and `host_from_endpoint`."
        ),
    ]],
    groups: &[],
};

pub(crate) static CLUSTER: Object = Object {
    name: "cluster",
    doc: "A set of endpoints with the same job. Each rule and its default is explained in docs/resilience.md.",
    fields: &[
        &[field!("endpoints", list!(&ENDPOINT_KIND, cluster::ENDPOINTS_MAX), Required, "Its endpoints.")],
        CLUSTER_FIELDS,
        CLUSTER_RULES,
    ],
    groups: &[],
};

pub(super) static CLUSTER_DEFAULTS: Object = Object {
    name: "cluster_defaults",
    doc: "The keys of a cluster, without its endpoints.",
    fields: &[CLUSTER_FIELDS, CLUSTER_RULES],
    groups: &[],
};

const CLUSTER_FIELDS: &[Field] = &[
    field!(
        "protocol",
        Kind::Choice(&[("http1", ""), ("http2", "for gRPC; prior knowledge without TLS")]),
        Optional,
        "Towards the endpoints."
    ),
    field!("connect_timeout", durations(cluster::CONNECT_TIMEOUT), Optional, "TCP and TLS."),
    field!(
        "tls",
        Kind::Object(&UPSTREAM_TLS),
        OptionalOr("plaintext"),
        "TLS towards the endpoints; the name in the certificate is always checked."
    ),
    field!("pool", Kind::Object(&POOL), Optional, "Bounds of one core's connections to one endpoint."),
    field!("dns", Kind::Object(&DNS), Optional, "Endpoints given by name."),
];

static UPSTREAM_TLS: Object = Object {
    name: "upstream_tls",
    doc: "TLS towards endpoints; `{}` takes every default.",
    fields: &[&[
        field!(
            "server_name",
            Kind::Text(&DNS_NAME),
            OptionalOr("the endpoint's `hostname` or DNS name"),
            "Name sent and checked."
        ),
        field!(
            "names",
            list!(&Kind::Text(&DNS_NAME), 16),
            OptionalOr("the server name"),
            "One of these must be in the certificate."
        ),
        field!("ca", Kind::Text(&FILE), OptionalOr("the system's"), "PEM file of the CAs."),
        field!("cert", Kind::Text(&FILE), NONE, "PEM file of our client certificate; needs `key`."),
        field!("key", Kind::Text(&FILE), NONE, "PEM file of its private key; needs `cert`."),
        field!("min_version", Kind::Choice(&[("TLSv1.2", ""), ("TLSv1.3", "")]), Optional, "Lowest version."),
    ]],
    groups: &[],
};

static POOL: Object = Object {
    name: "pool",
    doc: "Bounds of one core's connections to one endpoint.",
    fields: &[&[
        field!("idle_max", ints(cluster::IDLE_CONNECTIONS), Optional, "Idle HTTP/1 connections kept."),
        field!(
            "idle_timeout",
            durations(cluster::IDLE_TIMEOUT),
            Optional,
            "Shorter than the endpoint's own, so that the proxy closes first."
        ),
        field!("connections_max", ints(cluster::CONNECTIONS), Optional, "Connections."),
        field!(
            "requests_max",
            ints_or_none(cluster::REQUESTS_PER_CONNECTION),
            OptionalOr("no limit"),
            "Requests after which a connection is closed."
        ),
        field!("h2_connections_max", ints(cluster::H2_CONNECTIONS), Optional, "HTTP/2 connections."),
        field!("h2_streams_max", ints(cluster::H2_STREAMS), Optional, "Streams of one HTTP/2 connection."),
        field!(
            "h2_ping_interval",
            durations_or_none(cluster::H2_PING_INTERVAL),
            OptionalOr("no pings"),
            "Keep-alive pings; some servers count eager ones as abuse."
        ),
        field!(
            "h2_ping_timeout",
            durations(cluster::H2_PING_TIMEOUT),
            Optional,
            "Wait for the answer; needs `h2_ping_interval`."
        ),
    ]],
    groups: &[],
};

static DNS: Object = Object {
    name: "dns",
    doc: "Look-ups of endpoints given by name.",
    fields: &[&[
        field!(
            "refresh_min",
            durations(cluster::DNS_REFRESH_MIN),
            Optional,
            "Least time between two look-ups; longer TTLs are obeyed."
        ),
        field!(
            "stale_max",
            durations(cluster::DNS_STALE_MAX),
            Optional,
            "How long the last good answer is kept when look-ups fail."
        ),
    ]],
    groups: &[],
};
