//! `mirror` of a route: Envoy's policy, and options for what it has no field for. Unwritten keys become no fields.

use control_api::envoy::core::RuntimeFractionalPercent;
use control_api::envoy::mutation::HeaderMutation;
use control_api::envoy::mutation::header_mutation::Action;
use control_api::envoy::route::route_action::RequestMirrorPolicy;
use control_api::envoy::types::FractionalPercent;
use control_api::envoy::types::fractional_percent::DenominatorType;
use control_api::shard::v1::MirrorOptions;

use super::{Emitter, span};
use crate::yaml::Node;

impl Emitter<'_> {
    /// `clusters` are those of the route itself.
    pub(super) fn mirror_policy(
        &mut self,
        service: &str,
        node: &Node,
        clusters: &[(String, u32)],
    ) -> Option<RequestMirrorPolicy> {
        let mirror = node.get("mirror")?;
        let reference = mirror.get("cluster")?;
        let cluster = self.resolve_cluster(service, reference)?;
        if clusters.iter().any(|(own, _)| *own == cluster) {
            let message =
                format!("the route itself sends requests to `{cluster}`: its backends would act twice");
            self.error(reference, message, "name another cluster");
        }
        let removals = mirror.words("remove_headers");
        Some(RequestMirrorPolicy {
            cluster,
            runtime_fraction: mirror.number("percent").map(millionths),
            // Shard keeps the host as it is.
            disable_shadow_host_suffix_append: true,
            request_headers_mutations: removals
                .map(|name| HeaderMutation { action: Some(Action::Remove(name.to_owned())) })
                .collect(),
            ..Default::default()
        })
    }

    pub(super) fn mirror_options(node: &Node) -> Option<MirrorOptions> {
        let mirror = node.get("mirror")?;
        let word = |key| mirror.get("by").and_then(|by| by.word(key)).unwrap_or("").to_owned();
        let options = MirrorOptions {
            key_header: word("header"),
            key_cookie: word("cookie"),
            key_query: word("query"),
            key_client_address: mirror.word("by") == Some("client_address"),
            buffer_bytes_max: mirror.small_size("buffer_max"),
            timeout: span(mirror.duration("timeout")),
            in_flight_max: mirror.int("in_flight_max"),
            bytes_per_second_max: mirror.small_size("bandwidth_max"),
        };
        (options != MirrorOptions::default()).then_some(options)
    }
}

fn millionths(percent: f64) -> RuntimeFractionalPercent {
    let share = format!("{:.0}", percent * 10_000.0);
    RuntimeFractionalPercent {
        default_value: Some(FractionalPercent {
            numerator: share.parse().unwrap_or(1_000_000),
            denominator: DenominatorType::Million.into(),
        }),
        ..Default::default()
    }
}
