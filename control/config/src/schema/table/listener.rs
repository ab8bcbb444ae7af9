//! Keys of listeners: address, TLS, limits, access log.

use control_api::defaults::{h2, listener, route, tcp};

use super::super::Presence::{Optional, OptionalOr, Required};
use super::super::{
    Field, Group, Kind, Limits, Object, durations, durations_or_none, ints, ints_or_none, numbers, sizes,
};
use super::NONE;
use super::texts::*;

pub(crate) static LISTENER: Object = Object {
    name: "listener",
    doc: "A listening address and how its connections are treated.",
    fields: &[
        &[
            field!("address", Kind::Text(&LISTEN), Required, "IP and port to bind, on every core."),
            field!(
                "tcp",
                Kind::Object(&TCP),
                OptionalOr("HTTP"),
                "Passes connections on byte by byte instead of serving HTTP; TLS stays between client and endpoint."
            ),
        ],
        LISTENER_FIELDS,
    ],
    groups: &[],
};

pub(super) static LISTENER_DEFAULTS: Object = Object {
    name: "listener_defaults",
    doc: "The keys of a listener, without its address.",
    fields: &[LISTENER_FIELDS],
    groups: &[],
};

const LISTENER_FIELDS: &[Field] = &[
    field!(
        "tls",
        Kind::Object(&TLS),
        OptionalOr("plaintext, HTTP/1 and HTTP/2 by prior knowledge"),
        "Terminates TLS."
    ),
    field!(
        "proxy_protocol",
        Kind::Object(&PROXY_PROTOCOL),
        NONE,
        "Requires a PROXY protocol header (v1 or v2) on every connection."
    ),
    field!(
        "client_address",
        Kind::Object(&CLIENT_ADDRESS),
        OptionalOr("the peer's address"),
        "Whose word about the client's address counts."
    ),
    field!(
        "client_cert_header",
        Kind::Choice(&[
            ("strip", "client-sent ones are removed, none is added"),
            ("replace", "client-sent ones are removed, ours is added when the client showed a certificate")
        ]),
        Optional,
        "`x-forwarded-client-cert` towards backends."
    ),
    field!("access", Kind::Object(&ACCESS), OptionalOr("all clients"), "By the client's address."),
    field!("client_limit", Kind::Object(&CLIENT_LIMIT), NONE, "Limits of one client address."),
    field!("limits", Kind::Object(&LIMITS), Optional, "Sizes and counts."),
    field!("timeouts", Kind::Object(&TIMEOUTS), Optional, "Time limits of a connection."),
    field!("h2", Kind::Object(&H2), Optional, "HTTP/2 towards clients."),
    field!(
        "merge_slashes",
        Kind::Bool,
        OptionalOr("`false`"),
        "Turns `//` in a path into `/`, for matching and towards the upstream."
    ),
    field!(
        "escaped_slashes",
        Kind::Choice(&[
            ("keep", "kept, and not treated as `/`"),
            ("reject", "400"),
            ("redirect", "the client is redirected to the decoded path")
        ]),
        Optional,
        "`%2F` and `%5C` in a path."
    ),
    field!(
        "upgrades",
        list!(&Kind::Text(&UPGRADE), listener::UPGRADES_MAX),
        NONE,
        "Upgrade protocols that are passed on, such as `websocket`."
    ),
    field!(
        "steering",
        Kind::Choice(&[
            ("kernel", "the kernel's hash"),
            ("cpu", "the core that took the packet"),
            ("least_loaded", "the core with the fewest connections")
        ]),
        Optional,
        "How new connections are spread over the cores."
    ),
    field!(
        "access_log",
        Kind::Object(&ACCESS_LOG),
        NONE,
        "One line a request: every error, and a sample of the successes."
    ),
    field!(
        "error_pages",
        list!(&Kind::Object(&ERROR_PAGE), 50),
        OptionalOr("problem details (RFC 9457)"),
        "Bodies of errors that the proxy makes itself."
    ),
];

static TCP: Object = Object {
    name: "tcp",
    doc: "Where connections of a TCP listener go. Clusters are named as `service` or `service/cluster`; such a service is only served over HTTP when it has `hosts`, `routes` or `listeners`. The time to connect is the cluster's `connect_timeout`.",
    fields: &[&[
        field!(
            "cluster",
            Kind::Text(&CLUSTER_REF),
            OptionalOr("connections that no server name places are closed"),
            "Takes every connection that `server_names` does not place, also those that do not begin with TLS."
        ),
        field!(
            "server_names",
            Kind::Map { key: &HOST, of: &Kind::Text(&CLUSTER_REF) },
            NONE,
            "Cluster by the server name (SNI) that a TLS client asks for. Exact names first, then the longest `*.suffix`, which stands for one or more labels."
        ),
        field!(
            "hello_timeout",
            durations(listener::PROXY_HEADER_TIMEOUT),
            Optional,
            "Time from accept for the client's first TLS message, where there are `server_names`."
        ),
        field!(
            "send_proxy_protocol",
            Kind::Choice(&[("v1", "a line of text"), ("v2", "binary")]),
            NONE,
            "Begins connections to endpoints with a PROXY header that says who the client is. All endpoints must expect it; TCP checks do not send it."
        ),
        field!("idle_timeout", durations(tcp::IDLE_TIMEOUT), Optional, "Without a byte in either direction."),
        field!(
            "connection_age_max",
            durations_or_none(tcp::CONNECTION_AGE),
            OptionalOr("no limit"),
            "Age at which a connection is cut."
        ),
    ]],
    groups: &[],
};

static TLS: Object = Object {
    name: "tls",
    doc: "TLS towards clients. Certificates are chosen by server name (exact, then wildcard) and by what the client can verify.",
    fields: &[&[
        field!(
            "certificates",
            list!(&Kind::Object(&CERTIFICATE), 10_000),
            Required,
            "The first is the default."
        ),
        field!("min_version", Kind::Choice(&[("TLSv1.2", ""), ("TLSv1.3", "")]), Optional, "Lowest version."),
        field!(
            "alpn",
            list!(&Kind::Choice(&[("h2", ""), ("http/1.1", "")]), 2),
            OptionalOr("`[h2, http/1.1]`"),
            "Protocols on offer, best first."
        ),
        field!("client_ca", Kind::Text(&FILE), NONE, "PEM file of the CAs of client certificates."),
        field!(
            "client_certificate",
            Kind::Choice(&[
                ("optional", "asked for, verified if shown"),
                ("required", "without one the handshake fails")
            ]),
            Optional,
            "Needs `client_ca`."
        ),
        field!("tickets", Kind::Bool, OptionalOr("`true`"), "Session tickets."),
        field!(
            "ticket_keys",
            list!(&Kind::Text(&FILE), listener::TICKET_KEYS_MAX),
            OptionalOr("made by the process, rotated each 12 h"),
            "Files of exactly 80 random bytes: current, previous, next."
        ),
        field!(
            "unknown_name",
            Kind::Choice(&[
                ("default", "the first certificate is shown"),
                ("refuse", "the handshake fails with `unrecognized_name`")
            ]),
            Optional,
            "A server name that fits no certificate."
        ),
    ]],
    groups: &[],
};

static CERTIFICATE: Object = Object {
    name: "certificate",
    doc: "A certificate and its key.",
    fields: &[&[
        field!("cert", Kind::Text(&FILE), Required, "PEM file: the certificate, then its chain."),
        field!("key", Kind::Text(&FILE), Required, "PEM file of the private key, not encrypted."),
    ]],
    groups: &[],
};

static PROXY_PROTOCOL: Object = Object {
    name: "proxy_protocol",
    doc: "PROXY protocol from load balancers in front.",
    fields: &[&[
        field!(
            "trusted",
            list!(&Kind::Text(&CIDR), 10_000),
            Required,
            "Peers that may send the header; others are closed."
        ),
        field!("timeout", durations(listener::PROXY_HEADER_TIMEOUT), Optional, "Time for the header."),
    ]],
    groups: &[],
};

static CLIENT_ADDRESS: Object = Object {
    name: "client_address",
    doc: "The client's address from X-Forwarded-For, read from the right.",
    fields: &[&[
        field!(
            "trusted",
            list!(&Kind::Text(&CIDR), 10_000),
            NONE,
            "Proxies in front: addresses in these ranges are skipped, the first other one is the client."
        ),
        field!(
            "hops",
            ints(listener::XFF_HOPS),
            NONE,
            "Number of proxies in front: the address that the outermost of them saw."
        ),
    ]],
    groups: &[Group::ExactlyOne(&["trusted", "hops"])],
};

pub(super) static ACCESS: Object = Object {
    name: "access",
    doc: "Rules by client address. `deny` wins; with `allow`, every other address is denied.",
    fields: &[&[
        Field {
            key: "allow",
            kind: Kind::List { of: &Kind::Text(&CIDR), max: 10_000 },
            presence: OptionalOr("all"),
            doc: "Ranges that may call.",
        },
        Field {
            key: "deny",
            kind: Kind::List { of: &Kind::Text(&CIDR), max: 10_000 },
            presence: NONE,
            doc: "Ranges that may not.",
        },
    ]],
    groups: &[],
};

static CLIENT_LIMIT: Object = Object {
    name: "client_limit",
    doc: "Limits of one client address, over all cores.",
    fields: &[
        &[field!(
            "connections",
            ints_or_none(route::CLIENT_CONNECTIONS),
            OptionalOr("no limit"),
            "Concurrent connections."
        )],
        RATE_FIELDS,
    ],
    groups: &[],
};

pub(super) static ROUTE_LIMIT: Object = Object {
    name: "route_client_limit",
    doc: "Limits of one client address on one route.",
    fields: &[RATE_FIELDS],
    groups: &[],
};

const RATE_FIELDS: &[Field] = &[
    field!(
        "requests_per_second",
        ints_or_none(route::REQUESTS_PER_SECOND),
        OptionalOr("no limit"),
        "Requests a second."
    ),
    field!(
        "burst",
        ints_or_none(route::REQUESTS_PER_SECOND),
        OptionalOr("equal to `requests_per_second`"),
        "Requests at once."
    ),
];

static LIMITS: Object = Object {
    name: "limits",
    doc: "Sizes and counts of a listener.",
    fields: &[&[
        field!(
            "connections_max",
            ints(listener::CONNECTIONS),
            Optional,
            "Connections on one core; one more is refused and counted."
        ),
        field!(
            "header_bytes_max",
            Kind::Size(Limits { min: 1 << 10, default: Some(32 << 10), max: 256 << 10 }),
            Optional,
            "Bytes of a request head, in whole KiB."
        ),
        field!("header_count_max", ints(listener::HEADER_COUNT), Optional, "Headers of a request."),
        field!(
            "request_line_bytes_max",
            sizes(listener::REQUEST_LINE_BYTES),
            Optional,
            "Bytes of the request line; over HTTP/2 of the line that the target would make."
        ),
        field!(
            "requests_per_connection_max",
            ints_or_none(listener::REQUESTS_PER_CONNECTION),
            OptionalOr("no limit"),
            "Requests after which a connection is closed."
        ),
        field!(
            "connection_age_max",
            durations_or_none(listener::CONNECTION_AGE),
            OptionalOr("no limit"),
            "Age after which a connection is closed at the next safe moment."
        ),
        field!(
            "connection_age_jitter",
            numbers(listener::AGE_JITTER),
            Optional,
            "Share by which each connection's own age and request limits are shortened."
        ),
    ]],
    groups: &[],
};

static TIMEOUTS: Object = Object {
    name: "timeouts",
    doc: "Time limits of a listener's connections.",
    fields: &[&[
        field!("handshake", durations(listener::HANDSHAKE_TIMEOUT), Optional, "TLS handshake, from accept."),
        field!(
            "header",
            durations(listener::HEADER_TIMEOUT),
            Optional,
            "From the first byte wanted to a whole request head."
        ),
        field!("idle", durations(listener::IDLE_TIMEOUT), Optional, "Between two requests."),
        field!(
            "body_idle",
            durations(listener::BODY_IDLE_TIMEOUT),
            Optional,
            "Without any progress of a body, either way."
        ),
    ]],
    groups: &[],
};

static H2: Object = Object {
    name: "h2",
    doc: "HTTP/2 towards clients. The budgets count cheap-to-send frames in any ten seconds; beyond them the connection is closed with ENHANCE_YOUR_CALM.",
    fields: &[&[
        field!("streams_max", ints(h2::STREAMS), Optional, "Concurrent streams."),
        field!("stream_window", sizes(h2::STREAM_WINDOW_BYTES), Optional, "Flow-control window of a stream."),
        field!(
            "connection_window",
            sizes(h2::CONNECTION_WINDOW_BYTES),
            Optional,
            "Flow-control window of a connection."
        ),
        field!("frame_bytes_max", sizes(h2::FRAME_BYTES), Optional, "Largest frame accepted."),
        field!(
            "extended_connect",
            Kind::Bool,
            OptionalOr("`true` with `upgrades`, else `false`"),
            "WebSocket over HTTP/2 (RFC 8441)."
        ),
        field!("resets_max", ints(h2::RESETS), Optional, "Budget: reset streams, ours and theirs."),
        field!(
            "control_frames_max",
            ints(h2::CONTROL_FRAMES),
            Optional,
            "Budget: PING, SETTINGS, PRIORITY and empty frames."
        ),
        field!(
            "small_data_frames_max",
            ints(h2::SMALL_DATA_FRAMES),
            Optional,
            "Budget: DATA frames under 64 bytes."
        ),
    ]],
    groups: &[],
};

static ACCESS_LOG: Object = Object {
    name: "access_log",
    doc: "An access log.",
    fields: &[&[
        field!(
            "to",
            Kind::Choice(&[
                ("stdout", ""),
                ("file", "needs `path`; reopened on signal"),
                ("syslog", "RFC 5424; needs `address`"),
                ("none", "off, where the platform's default is on")
            ]),
            Optional,
            "Where lines go."
        ),
        field!("path", Kind::Text(&LOG_FILE), NONE, "Of `to: file`."),
        field!("address", Kind::Text(&SYSLOG), NONE, "Of `to: syslog`."),
        field!(
            "tag",
            Kind::Text(&SYSLOG_TAG),
            OptionalOr("`shard-proxy`"),
            "Application name, of `to: syslog`."
        ),
        field!(
            "template",
            Kind::Text(&TEMPLATE),
            OptionalOr("JSON"),
            "Text lines instead of JSON; the fields are listed at the end of this page."
        ),
        field!(
            "success_sample",
            numbers(listener::ACCESS_LOG_SUCCESS_SAMPLE),
            Optional,
            "Share of successful requests that are logged."
        ),
    ]],
    groups: &[],
};

pub(super) static ERROR_PAGE: Object = Object {
    name: "error_page",
    doc: "The body for one status.",
    fields: &[&[
        field!(
            "status",
            Kind::Int(Limits { min: 400, default: None, max: 599 }),
            Required,
            "Status of the errors it is for."
        ),
        field!("body", Kind::Text(&BODY), NONE, "The page itself, at most 64 KiB."),
        field!("file", Kind::Text(&FILE), NONE, "A file with the page, at most 64 KiB."),
        field!(
            "content_type",
            Kind::Text(&MEDIA_TYPE),
            OptionalOr("`text/html; charset=utf-8`"),
            "Its media type."
        ),
    ]],
    groups: &[Group::ExactlyOne(&["body", "file"])],
};
