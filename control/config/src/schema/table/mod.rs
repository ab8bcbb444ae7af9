//! The table of keys, by subject. Order here is the order in the reference page.

use super::Presence::{self, OptionalOr};
use super::{Field, Kind, Object};
use balance::ROUTE_RULES;
use cluster::{CLUSTER_DEFAULTS, ENDPOINT_KIND};
use listener::LISTENER_DEFAULTS;
use route::{POLICY_FIELDS, POLICY_GROUPS};
use texts::{HOST, NAME};
use token::TOKEN_PROVIDER;

// Macros, because only literals keep what they refer to alive for a static.
macro_rules! list {
    ($of:expr, $max:expr) => {
        Kind::List { of: $of, max: $max }
    };
}

macro_rules! field {
    ($key:literal, $kind:expr, $presence:expr, $doc:literal) => {
        Field { key: $key, kind: $kind, presence: $presence, doc: $doc }
    };
}

mod balance;
mod cluster;
mod l4;
mod listener;
mod route;
mod texts;
mod token;

pub(crate) use cluster::CLUSTER;
pub(crate) use l4::{L4, L4_FLOWS, L4_HOST};
pub(crate) use listener::LISTENER;
pub(crate) use route::{ROUTE, ROUTE_DEFAULTS};

const NONE: Presence = OptionalOr("none");

/// The files under `platform/`.
pub(crate) static PLATFORM: Object = Object {
    name: "platform",
    doc: "The platform's files, `platform/*.yaml`. Each top-level key may be spread over several files.",
    fields: &[PLATFORM_FIELDS],
    groups: &[],
};

const PLATFORM_FIELDS: &[Field] = &[
    field!(
        "listeners",
        Kind::Map { key: &NAME, of: &Kind::Object(&LISTENER) },
        NONE,
        "Where clients connect, by name."
    ),
    field!(
        "hosts",
        Kind::Map { key: &HOST, of: &list!(&Kind::Text(&NAME), 1_000) },
        OptionalOr("every service may claim any host"),
        "Ownership: the services that may claim a host. With this key, a host that is not listed cannot be claimed."
    ),
    field!(
        "token_providers",
        Kind::Map { key: &NAME, of: &Kind::Object(&TOKEN_PROVIDER) },
        NONE,
        "Who issues bearer tokens, by name. Only here: a service names a provider in `token` and cannot change it."
    ),
    field!(
        "defaults",
        Kind::Object(&DEFAULTS),
        NONE,
        "What holds where a listener, cluster or service says nothing."
    ),
];

/// `services/<name>/service.yaml`.
pub(crate) static SERVICE: Object = Object {
    name: "service",
    doc: "One service, `services/<name>/service.yaml`, owned by its team. The policies here hold for all its routes.",
    fields: &[SERVICE_FIELDS, POLICY_FIELDS, ROUTE_RULES],
    groups: POLICY_GROUPS,
};

const SERVICE_FIELDS: &[Field] = &[
    field!("name", Kind::Text(&NAME), OptionalOr("the directory's name"), "Must equal the directory's name."),
    field!(
        "listeners",
        list!(&Kind::Text(&NAME), 100),
        OptionalOr("all listeners"),
        "The listeners that serve it."
    ),
    field!("hosts", list!(&Kind::Text(&HOST), 1_000), OptionalOr("`[\"*\"]`"), "The hosts it answers for."),
    field!(
        "endpoints",
        list!(&ENDPOINT_KIND, control_api::defaults::cluster::ENDPOINTS_MAX),
        NONE,
        "Short for one cluster named as the service, with every default."
    ),
    field!(
        "clusters",
        Kind::Map { key: &NAME, of: &Kind::Object(&CLUSTER) },
        NONE,
        "Its clusters by name. The only one is the default of its routes."
    ),
    field!(
        "routes",
        list!(&Kind::Object(&ROUTE), 10_000),
        OptionalOr("one route for every path to the only cluster"),
        "Exact paths win, then regexes in order, then the longest prefix; routes with the same path are tried in order."
    ),
];

/// The whole config in one file.
pub(crate) static SINGLE: Object = Object {
    name: "shard",
    doc: "The whole config in one file, `shard.yaml`, instead of the two directories.",
    fields: &[
        PLATFORM_FIELDS,
        &[field!(
            "services",
            Kind::Map { key: &NAME, of: &Kind::Object(&SERVICE) },
            NONE,
            "The services by name, each as a `service.yaml`."
        )],
    ],
    groups: &[],
};

static DEFAULTS: Object = Object {
    name: "defaults",
    doc: "Defaults of the platform. A key set at the user's own place wins; mappings merge key by key.",
    fields: &[&[
        field!("listener", Kind::Object(&LISTENER_DEFAULTS), NONE, "For every listener."),
        field!("cluster", Kind::Object(&CLUSTER_DEFAULTS), NONE, "For every cluster."),
        field!("route", Kind::Object(&ROUTE_DEFAULTS), NONE, "For every route."),
    ]],
    groups: &[],
};
