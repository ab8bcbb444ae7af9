//! `shard.v1`: what a listener, route or cluster can be told that Envoy's v3 types have no field for.
//!
//! Each message mirrors proto/shard/v1/options.proto, written by hand so that no build needs protoc. Meanings,
//! ranges and defaults are in docs/resources.md; an absent optional field means the default.

use std::collections::BTreeMap;

use prost::{Enumeration, Message, Name};

use crate::envoy::google::Duration;

/// The key of these messages in `typed_filter_metadata` and `typed_per_filter_config`.
pub const KEY: &str = "shard.v1";

macro_rules! named {
    ($($message:ident),* $(,)?) => {$(
        impl Name for $message {
            const NAME: &'static str = stringify!($message);
            const PACKAGE: &'static str = "shard.v1";
            fn type_url() -> String {
                format!("type.googleapis.com/{}", Self::full_name())
            }
        }
    )*};
}

named!(ListenerOptions, RouteOptions, ClusterOptions, SyslogAccessLog);

/// How new connections are spread over the cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Steering {
    /// The kernel's SO_REUSEPORT hash.
    KernelHash = 0,
    /// The core that took the packet.
    IncomingCpu = 1,
    /// Hand-over to the core with the fewest connections.
    LeastLoaded = 2,
}

/// What a client gets whose server name fits no certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum UnknownSni {
    /// The first certificate of the listener.
    DefaultCertificate = 0,
    /// The alert `unrecognized_name` (RFC 6066 §3).
    Refuse = 1,
}

/// Whether endpoints are told the client's address, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum SendProxyProtocol {
    SendNothing = 0,
    SendV1 = 1,
    SendV2 = 2,
}

/// Rules by client address. `deny` wins; a non-empty `allow` denies everything outside it.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AddressRules {
    /// CIDRs or bare addresses, as text.
    #[prost(string, repeated, tag = "1")]
    pub allow: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub deny: Vec<String>,
}

/// Limits of one client address; 0 is "no limit".
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ClientLimit {
    /// Concurrent connections; only in a [`ListenerOptions`].
    #[prost(uint32, tag = "1")]
    pub connections_max: u32,
    #[prost(uint32, tag = "2")]
    pub requests_per_second: u32,
    /// 0: equal to `requests_per_second`.
    #[prost(uint32, tag = "3")]
    pub requests_burst: u32,
}

/// In `Listener.metadata.typed_filter_metadata["shard.v1"]`.
#[derive(Clone, PartialEq, Message)]
pub struct ListenerOptions {
    #[prost(enumeration = "Steering", tag = "1")]
    pub steering: i32,
    /// Connections on one core.
    #[prost(uint32, optional, tag = "2")]
    pub connections_max: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub access: Option<AddressRules>,
    /// Peers that may send a PROXY header.
    #[prost(string, repeated, tag = "4")]
    pub proxy_protocol_trusted_cidrs: Vec<String>,
    #[prost(uint32, optional, tag = "5")]
    pub request_line_bytes_max: Option<u32>,
    /// Share, 0 to 0.9, by which the age and request limits of each connection are shortened.
    #[prost(double, optional, tag = "6")]
    pub connection_age_jitter: Option<f64>,
    /// In any ten seconds, as the next two.
    #[prost(uint32, optional, tag = "7")]
    pub h2_resets_max: Option<u32>,
    #[prost(uint32, optional, tag = "8")]
    pub h2_control_frames_max: Option<u32>,
    #[prost(uint32, optional, tag = "9")]
    pub h2_small_data_frames_max: Option<u32>,
    #[prost(uint32, optional, tag = "10")]
    pub h2_frame_bytes_max: Option<u32>,
    #[prost(message, optional, tag = "11")]
    pub client_limit: Option<ClientLimit>,
    /// Share of successful requests that are logged, 0 to 1.
    #[prost(double, optional, tag = "12")]
    pub access_log_success_sample: Option<f64>,
    #[prost(enumeration = "UnknownSni", tag = "13")]
    pub unknown_sni: i32,
    /// Only of a TCP listener.
    #[prost(enumeration = "SendProxyProtocol", tag = "14")]
    pub send_proxy_protocol: i32,
    /// Beside the providers of the filter `envoy.filters.http.jwt_authn`.
    #[prost(message, repeated, tag = "15")]
    pub token_providers: Vec<TokenProviderOptions>,
}

/// What Envoy's `JwtProvider` has no field for.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TokenProviderOptions {
    /// Of the provider.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `typ` that its tokens must have (RFC 9068: `at+jwt`); empty: whatever.
    #[prost(string, tag = "2")]
    pub token_type: String,
}

/// In `typed_per_filter_config["shard.v1"]` of a RouteConfiguration, VirtualHost or Route. They merge field by
/// field, the most specific set field wins; `error_pages` by status.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RouteOptions {
    /// Bytes of a request body; 0: no limit.
    #[prost(uint64, optional, tag = "1")]
    pub body_bytes_max: Option<u64>,
    /// On top of the listener's rules.
    #[prost(message, optional, tag = "2")]
    pub access: Option<AddressRules>,
    #[prost(message, optional, tag = "3")]
    pub client_limit: Option<ClientLimit>,
    /// RFC 9745: `@` and unix seconds. Empty: none.
    #[prost(string, tag = "4")]
    pub deprecation: String,
    /// RFC 8594: an IMF-fixdate. Empty: none.
    #[prost(string, tag = "5")]
    pub sunset: String,
    #[prost(message, repeated, tag = "6")]
    pub error_pages: Vec<ErrorPage>,
    /// Unset: standard.
    #[prost(enumeration = "PriorityClass", optional, tag = "7")]
    pub priority_class: Option<i32>,
    /// A per-try timeout is a reason to try again.
    #[prost(bool, optional, tag = "8")]
    pub retry_on_timeout: Option<bool>,
    /// A POST with Idempotency-Key may be sent again.
    #[prost(bool, optional, tag = "9")]
    pub retry_with_idempotency_key: Option<bool>,
    /// Beside `request_mirror_policies`, and nothing without it.
    #[prost(message, optional, tag = "10")]
    pub mirror: Option<MirrorOptions>,
    /// Silence of the first attempt after which a second one starts; 0: never, as without it.
    #[prost(message, optional, tag = "11")]
    pub hedge_after: Option<Duration>,
    #[prost(message, optional, tag = "12")]
    pub body_rate: Option<BodyRate>,
    /// Beside the `requirement_name` of `envoy.filters.http.jwt_authn`, and nothing without it.
    #[prost(message, optional, tag = "13")]
    pub token: Option<TokenOptions>,
}

/// What a route asks of a token beside being valid.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct TokenOptions {
    /// Each must be in the token's `scope` or `scp`.
    #[prost(string, repeated, tag = "1")]
    pub scopes: Vec<String>,
}

/// The least rate of a request body.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct BodyRate {
    /// 0: no limit.
    #[prost(uint32, optional, tag = "1")]
    pub bytes_per_second_min: Option<u32>,
    /// Over which it is averaged.
    #[prost(message, optional, tag = "2")]
    pub window: Option<Duration>,
}

/// What Envoy's mirror policy has no field for. At most one of the first four; none: by request id.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct MirrorOptions {
    /// Field whose value is sampled.
    #[prost(string, tag = "1")]
    pub key_header: String,
    #[prost(string, tag = "2")]
    pub key_cookie: String,
    #[prost(string, tag = "3")]
    pub key_query: String,
    /// By the client's address.
    #[prost(bool, tag = "4")]
    pub key_client_address: bool,
    /// Bytes of a request body that are held for a mirror that takes it more slowly than the primary; beyond it is given up.
    #[prost(uint32, optional, tag = "5")]
    pub buffer_bytes_max: Option<u32>,
    /// From the end of the mirrored request to that of its response.
    #[prost(message, optional, tag = "6")]
    pub timeout: Option<Duration>,
    /// This and the next: of one core.
    #[prost(uint32, optional, tag = "7")]
    pub in_flight_max: Option<u32>,
    /// Request body bytes.
    #[prost(uint32, optional, tag = "8")]
    pub bytes_per_second_max: Option<u32>,
}

/// Which requests are shed first; the last one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum PriorityClass {
    Standard = 0,
    Critical = 1,
    Free = 2,
    Sheddable = 3,
}

/// The body for errors of one status that the proxy makes itself.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ErrorPage {
    #[prost(uint32, tag = "1")]
    pub status: u32,
    #[prost(string, tag = "2")]
    pub content_type: String,
    #[prost(bytes = "vec", tag = "3")]
    pub body: Vec<u8>,
}

/// In `Cluster.metadata.typed_filter_metadata["shard.v1"]`.
#[derive(Clone, PartialEq, Message)]
pub struct ClusterOptions {
    /// This and the next two: bounds of one core's connections to one endpoint.
    #[prost(uint32, optional, tag = "1")]
    pub idle_max: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub connections_max: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub h2_connections_max: Option<u32>,
    /// How long the last good DNS answer is kept when look-ups fail.
    #[prost(message, optional, tag = "4")]
    pub dns_stale_max: Option<Duration>,
    /// Other than `ByLbPolicy` only with `lb_policy` LEAST_REQUEST.
    #[prost(enumeration = "Balance", tag = "5")]
    pub balance: i32,
    /// Only with [`Balance::PeakEwma`].
    #[prost(message, optional, tag = "6")]
    pub peak_ewma: Option<PeakEwma>,
    /// Points of the heaviest endpoint, only with `lb_policy` RING_HASH.
    #[prost(uint32, optional, tag = "7")]
    pub ring_virtual_nodes: Option<u32>,
    /// For policies that have no `slow_start_config` in Envoy's types; a window of 0 turns it off.
    #[prost(message, optional, tag = "8")]
    pub slow_start: Option<SlowStart>,
    /// Beside `outlier_detection`.
    #[prost(message, optional, tag = "9")]
    pub outlier: Option<OutlierOptions>,
    /// Retries a second and core that are always allowed.
    #[prost(uint32, optional, tag = "10")]
    pub retry_floor_per_second: Option<u32>,
    /// Unset: off.
    #[prost(message, optional, tag = "11")]
    pub adaptive_concurrency: Option<AdaptiveConcurrency>,
    /// Unset: off.
    #[prost(message, optional, tag = "12")]
    pub breaker: Option<Breaker>,
    /// Unset: off.
    #[prost(message, optional, tag = "13")]
    pub shed: Option<Shed>,
    /// Unset: off. Not with the `lb_policies` RING_HASH and MAGLEV, nor with names to resolve.
    #[prost(message, optional, tag = "14")]
    pub sticky: Option<Sticky>,
    /// Beside `common_lb_config.zone_aware_lb_config`; unset: every zone sends as much.
    #[prost(message, optional, tag = "15")]
    pub zones: Option<Zones>,
    /// Least endpoints that a core keeps; unset: all. Not with the `lb_policies` RING_HASH and MAGLEV, `sticky`, and names
    /// to resolve.
    #[prost(uint32, optional, tag = "16")]
    pub subset_endpoints_min: Option<u32>,
    /// Hedges that all routes may make, in percent of the requests that may be hedged.
    #[prost(uint32, optional, tag = "17")]
    pub hedge_percent: Option<u32>,
}

/// Ways to choose an endpoint that `lb_policy` has no word for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
#[repr(i32)]
pub enum Balance {
    ByLbPolicy = 0,
    /// Latency times requests in flight.
    PeakEwma = 1,
    /// Connections by capacity.
    LeastConnections = 2,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PeakEwma {
    /// Time in which an old average loses half of its weight.
    #[prost(message, optional, tag = "1")]
    pub tau: Option<Duration>,
    /// Latency that a failed attempt counts as, at least.
    #[prost(message, optional, tag = "2")]
    pub failure_penalty: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SlowStart {
    #[prost(message, optional, tag = "1")]
    pub window: Option<Duration>,
    #[prost(double, optional, tag = "2")]
    pub aggression: Option<f64>,
    #[prost(uint32, optional, tag = "3")]
    pub floor_percent: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct OutlierOptions {
    /// Decisions are told and not carried out.
    #[prost(bool, tag = "1")]
    pub log_only: bool,
    /// Endpoints of a cluster that may lose one whatever the share; only with `always_eject_one_host`.
    #[prost(uint32, optional, tag = "2")]
    pub endpoints_min: Option<u32>,
    /// Unset: off.
    #[prost(message, optional, tag = "3")]
    pub latency: Option<LatencyOutlier>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct LatencyOutlier {
    /// Of the median of all endpoints.
    #[prost(uint32, optional, tag = "1")]
    pub median_percent: Option<u32>,
    /// Endpoints that are judged at all.
    #[prost(uint32, optional, tag = "2")]
    pub endpoints_min: Option<u32>,
    /// Requests in the interval that make an endpoint judged.
    #[prost(uint32, optional, tag = "3")]
    pub requests_min: Option<u32>,
}

/// Bounds of one core.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AdaptiveConcurrency {
    #[prost(uint32, optional, tag = "1")]
    pub in_flight_min: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub in_flight_max: Option<u32>,
    /// Latency in percent of the usual one up to which nothing is done.
    #[prost(uint32, optional, tag = "3")]
    pub tolerance_percent: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Breaker {
    /// Share of failures above which it opens.
    #[prost(uint32, optional, tag = "1")]
    pub failure_percent: Option<u32>,
    /// Finished requests in the window below which it never opens.
    #[prost(uint32, optional, tag = "2")]
    pub requests_min: Option<u32>,
    #[prost(message, optional, tag = "3")]
    pub window: Option<Duration>,
    #[prost(message, optional, tag = "4")]
    pub open: Option<Duration>,
    /// Share of requests that pass while probing.
    #[prost(uint32, optional, tag = "5")]
    pub probe_percent: Option<u32>,
    /// Finished probes that decide.
    #[prost(uint32, optional, tag = "6")]
    pub probes: Option<u32>,
}

/// Strain in thousandths from which a class is shed; rising from sheddable to critical.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Shed {
    #[prost(uint32, optional, tag = "1")]
    pub sheddable_from: Option<u32>,
    #[prost(uint32, optional, tag = "2")]
    pub free_from: Option<u32>,
    #[prost(uint32, optional, tag = "3")]
    pub standard_from: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub critical_from: Option<u32>,
}

/// Sessions that keep their endpoint by a signed cookie.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Sticky {
    /// Empty: `shard-` and eight hexadecimal digits that stand for the cluster.
    #[prost(string, tag = "1")]
    pub cookie: String,
    /// Of the cookie; empty: `/`.
    #[prost(string, tag = "2")]
    pub path: String,
    /// Of the cookie; unset: until the browser ends.
    #[prost(message, optional, tag = "3")]
    pub max_age: Option<Duration>,
    /// Names of Secrets with a `generic_secret` of 32 to 64 bytes: the current key, then the previous one.
    #[prost(string, repeated, tag = "4")]
    pub keys: Vec<String>,
    /// How long a session stays at an endpoint that drains, or under a ring that was replaced.
    #[prost(message, optional, tag = "5")]
    pub overlap: Option<Duration>,
    /// Points of the heaviest endpoint.
    #[prost(uint32, optional, tag = "6")]
    pub virtual_nodes: Option<u32>,
}

/// Where the requests of all proxies come from.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Zones {
    /// Percent of them by the zone of the proxy; 100 together.
    #[prost(btree_map = "string, uint32", tag = "1")]
    pub traffic_percent: BTreeMap<String, u32>,
}

/// An access log sent to syslog (RFC 5424), as the `typed_config` of an `AccessLog`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SyslogAccessLog {
    /// `unix:/dev/log` or `udp:192.0.2.1:514`.
    #[prost(string, tag = "1")]
    pub address: String,
    /// APP-NAME; empty: `shard-proxy`.
    #[prost(string, tag = "2")]
    pub tag: String,
    /// As `text_format_source` of the other access logs; empty: JSON.
    #[prost(string, tag = "3")]
    pub template: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROTO: &str = include_str!("../../proto/shard/v1/options.proto");
    const RUST: &str = include_str!("v1.rs");

    /// `(message, field, tag)` of every message in the .proto file.
    fn proto_fields() -> Vec<(String, String, u32)> {
        let mut fields = Vec::new();
        let mut message = None;
        for line in PROTO.lines().map(|l| l.split("//").next().unwrap_or("").trim()) {
            if let Some(name) = line.strip_prefix("message ") {
                message = name.split_whitespace().next().map(str::to_owned);
            } else if line == "}" {
                message = None;
            } else if let (Some(message), Some((head, tag))) =
                (&message, line.trim_end_matches(';').split_once(" = "))
            {
                let field = head.rsplit(' ').next().expect("a field has a name");
                fields.push((message.clone(), field.to_owned(), tag.parse().expect("a tag number")));
            }
        }
        fields
    }

    /// The same from the structs above, by their `#[prost(…, tag = "N")]` lines.
    fn rust_fields() -> Vec<(String, String, u32)> {
        let mut fields = Vec::new();
        let (mut message, mut tag) = (String::new(), None);
        for line in RUST.lines().map(str::trim).take_while(|l| *l != "#[cfg(test)]") {
            if let Some(name) = line.strip_prefix("pub struct ") {
                message = name.trim_end_matches(" {").to_owned();
            } else if line.starts_with("#[prost(") {
                tag = line
                    .split("tag = \"")
                    .nth(1)
                    .and_then(|t| t.split('"').next())
                    .and_then(|t| t.parse().ok());
            } else if let (Some(n), Some(field)) = (tag, line.strip_prefix("pub ")) {
                fields.push((message.clone(), field.split(':').next().expect("a name").to_owned(), n));
                tag = None;
            }
        }
        fields
    }

    #[test]
    fn the_published_proto_and_the_structs_have_the_same_fields() {
        let (mut proto, mut rust) = (proto_fields(), rust_fields());
        assert!(proto.len() > 25, "the .proto reader found only {proto:?}");
        proto.sort();
        rust.sort();
        assert_eq!(proto, rust);
    }

    #[test]
    fn unset_messages_encode_to_nothing() {
        assert!(ListenerOptions::default().encode_to_vec().is_empty());
        assert!(RouteOptions::default().encode_to_vec().is_empty());
        assert!(ClusterOptions::default().encode_to_vec().is_empty());
        assert_eq!(Steering::try_from(0), Ok(Steering::KernelHash));
        assert_eq!(UnknownSni::try_from(0), Ok(UnknownSni::DefaultCertificate));
    }

    #[test]
    fn an_optional_zero_is_told_from_unset() {
        let zero = RouteOptions { body_bytes_max: Some(0), ..Default::default() };
        let back = RouteOptions::decode(zero.encode_to_vec().as_slice()).expect("own bytes");
        assert_eq!(back.body_bytes_max, Some(0));
    }
}
