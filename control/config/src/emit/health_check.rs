//! Active health checks of a cluster.

use control_api::defaults::balance as limits;
use control_api::envoy::core::HealthCheck;
use control_api::envoy::core::health_check::{
    GrpcHealthCheck, HealthChecker, HttpHealthCheck, Payload, TcpHealthCheck, payload,
};
use control_api::envoy::types::Int64Range;

use super::{Emitter, count, span};
use crate::yaml::Node;

impl Emitter<'_> {
    /// The check of a cluster. Envoy requires four of the fields, so the defaults are written out.
    pub(super) fn health_check(&mut self, node: &Node) -> Option<HealthCheck> {
        let check = node.get("health_check")?;
        let health_checker = Some(self.health_checker(check)?);
        Some(HealthCheck {
            health_checker,
            interval: span(Some(check.duration("interval").unwrap_or(limits::CHECK_INTERVAL.default))),
            timeout: span(Some(check.duration("timeout").unwrap_or(limits::CHECK_TIMEOUT.default))),
            interval_jitter_percent: check
                .int("jitter_percent")
                .unwrap_or(limits::CHECK_JITTER_PERCENT.default),
            unhealthy_threshold: count(Some(
                check.int("unhealthy_after").unwrap_or(limits::CHECK_UNHEALTHY.default),
            )),
            healthy_threshold: count(Some(
                check.int("healthy_after").unwrap_or(limits::CHECK_HEALTHY.default),
            )),
            ..Default::default()
        })
    }

    fn health_checker(&mut self, check: &Node) -> Option<HealthChecker> {
        let path = check.text().or(check.word("http"));
        let is_tcp = check.get("tcp").is_some();
        let strangers = [("statuses", path.is_some()), ("host", path.is_some())];
        let strangers = strangers.into_iter().chain([("send", is_tcp), ("expect", is_tcp)]);
        for (key, belongs) in strangers {
            if let (Some(at), false) = (check.get(key), belongs) {
                let kind = if matches!(key, "send" | "expect") { "tcp" } else { "http" };
                self.error(at, format!("`{key}` belongs to `{kind}` checks"), "delete it");
            }
        }
        if let Some(path) = path {
            let range =
                |(first, last): (u16, u16)| Int64Range { start: first.into(), end: i64::from(last) + 1 };
            return Some(HealthChecker::HttpHealthCheck(HttpHealthCheck {
                path: path.to_owned(),
                host: check.word("host").unwrap_or("").to_ascii_lowercase(),
                expected_statuses: check
                    .words("statuses")
                    .filter_map(crate::rules::status_range)
                    .map(range)
                    .collect(),
                ..Default::default()
            }));
        }
        if let Some(service_name) = check.word("grpc").map(str::to_owned) {
            return Some(HealthChecker::GrpcHealthCheck(GrpcHealthCheck {
                service_name,
                ..Default::default()
            }));
        }
        let tcp = check.get("tcp")?;
        if check.flag("tcp") == Some(false) {
            self.error(tcp, "a check that is switched off", "write `tcp: true`, or delete `health_check`");
        }
        if let (Some(expect), None) = (check.get("expect"), check.get("send")) {
            self.error(
                expect,
                "an answer is expected, and nothing is sent",
                "add `send`, or delete this key",
            );
        }
        let bytes = |key| check.word(key).map(|text| text.as_bytes().to_vec());
        let payload = |bytes| Payload { payload: Some(payload::Payload::Binary(bytes)) };
        Some(HealthChecker::TcpHealthCheck(TcpHealthCheck {
            send: bytes("send").map(payload),
            receive: bytes("expect").map(payload).into_iter().collect(),
            ..Default::default()
        }))
    }
}
