//! Active health checks of a cluster.

use control_api::defaults::balance as limits;
use control_api::envoy::core::HealthCheck;
use control_api::envoy::core::health_check::{
    GrpcHealthCheck, HealthChecker, HttpHealthCheck, Payload, TcpHealthCheck, payload,
};
use control_api::envoy::types::Int64Range;
use http_balance::check::{CheckKind, CheckRules};

use super::fault::{Checked, Fault, Within, nothing_else};
use super::value;
use crate::snapshot::model::UpstreamProtocol;

/// The one check of a cluster, or none.
pub(super) fn rules(checks: Vec<HealthCheck>) -> Checked<Option<CheckRules>> {
    if checks.len() > 1 {
        return Err(Fault::new("health_checks", "has several entries: shard makes one check"));
    }
    let first = checks.into_iter().next();
    first.map(|check| rule(check).within_item("health_checks", 0)).transpose()
}

/// A gRPC check speaks HTTP/2, as the requests of its cluster do.
pub(super) fn is_fit(check: &CheckRules, protocol: UpstreamProtocol) -> Checked<()> {
    match (&check.kind, protocol) {
        (CheckKind::Grpc { .. }, UpstreamProtocol::Http1) => Err(Fault::new(
            "grpc_health_check",
            "needs a cluster that speaks HTTP/2: set its protocol, or check by http or tcp",
        )),
        (CheckKind::Grpc { .. } | CheckKind::Http { .. } | CheckKind::Tcp { .. }, _) => Ok(()),
    }
}

fn rule(mut check: HealthCheck) -> Checked<CheckRules> {
    let kind = match check.health_checker.take() {
        Some(HealthChecker::HttpHealthCheck(http)) => self::http(http).within("http_health_check")?,
        Some(HealthChecker::GrpcHealthCheck(grpc)) => self::grpc(grpc).within("grpc_health_check")?,
        Some(HealthChecker::TcpHealthCheck(tcp)) => self::tcp(tcp).within("tcp_health_check")?,
        Some(HealthChecker::CustomHealthCheck(_)) => return Err(Fault::unsupported("custom_health_check")),
        None => return Err(Fault::missing("http_health_check, grpc_health_check or tcp_health_check")),
    };
    // 0 is Envoy's "unset", and its default.
    let jitter_percent = std::mem::take(&mut check.interval_jitter_percent);
    let rules = CheckRules {
        kind,
        interval: value::bounded_duration("interval", check.interval.take(), &limits::CHECK_INTERVAL)?,
        timeout: value::bounded_duration("timeout", check.timeout.take(), &limits::CHECK_TIMEOUT)?,
        jitter_percent: value::bounded(
            "interval_jitter_percent",
            Some(jitter_percent),
            &limits::CHECK_JITTER_PERCENT,
        )?,
        unhealthy_threshold: value::bounded_u32(
            "unhealthy_threshold",
            check.unhealthy_threshold.take(),
            &limits::CHECK_UNHEALTHY,
        )?,
        healthy_threshold: value::bounded_u32(
            "healthy_threshold",
            check.healthy_threshold.take(),
            &limits::CHECK_HEALTHY,
        )?,
    };
    nothing_else(&check)?;
    Ok(rules)
}

fn http(mut http: HttpHealthCheck) -> Checked<CheckKind> {
    let path = std::mem::take(&mut http.path);
    let is_target = path.starts_with('/') && path.bytes().all(|b| b.is_ascii_graphic() && b != b'#');
    if !is_target {
        return Err(Fault::new(
            "path",
            format!("is {path:?}: it must start with `/` and have no blank or `#`"),
        ));
    }
    let host = std::mem::take(&mut http.host);
    let is_host = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
    if host.len() > 255 || !host.bytes().all(is_host) {
        return Err(Fault::new("host", format!("is {host:?}, which is no host")));
    }
    let ranges = std::mem::take(&mut http.expected_statuses);
    if ranges.len() > limits::CHECK_STATUSES_MAX {
        let most = limits::CHECK_STATUSES_MAX;
        return Err(Fault::new("expected_statuses", format!("has more than {most} ranges")));
    }
    nothing_else(&http)?;
    let mut statuses = Vec::with_capacity(ranges.len().max(1));
    for (at, Int64Range { start, end }) in ranges.into_iter().enumerate() {
        let status = |n: i64| u16::try_from(n).ok().filter(|n| (100..=599).contains(n));
        let (Some(first), Some(last)) = (status(start), status(end.saturating_sub(1))) else {
            let message = format!("is {start} to {end}: it must lie between 100 and 600, the end left out");
            let fault: Checked<_> = Err(Fault::new("", message));
            return fault.within_item("expected_statuses", at);
        };
        if last < first {
            let fault: Checked<_> = Err(Fault::new("", format!("is {start} to {end}, which is empty")));
            return fault.within_item("expected_statuses", at);
        }
        statuses.push(first..=last);
    }
    if statuses.is_empty() {
        statuses.push(200..=200);
    }
    Ok(CheckKind::Http { path, host: (!host.is_empty()).then_some(host), statuses })
}

fn grpc(mut grpc: GrpcHealthCheck) -> Checked<CheckKind> {
    let service = std::mem::take(&mut grpc.service_name);
    nothing_else(&grpc)?;
    Ok(CheckKind::Grpc { service })
}

fn tcp(mut tcp: TcpHealthCheck) -> Checked<CheckKind> {
    let send = tcp.send.take().map(|send| bytes(send).within("send")).transpose()?.unwrap_or_default();
    let mut receive = std::mem::take(&mut tcp.receive);
    if receive.len() > 1 {
        return Err(Fault::new("receive", "has several entries: shard compares the start with one"));
    }
    let expect = receive.pop().map(|expect| bytes(expect).within_item("receive", 0)).transpose()?;
    nothing_else(&tcp)?;
    if expect.is_some() && send.is_empty() {
        return Err(Fault::new("receive", "needs send"));
    }
    Ok(CheckKind::Tcp { send, expect: expect.unwrap_or_default() })
}

/// Envoy's texts are hexadecimal.
fn bytes(payload: Payload) -> Checked<Vec<u8>> {
    let bytes = match payload.payload {
        Some(payload::Payload::Binary(bytes)) => bytes,
        Some(payload::Payload::Text(text)) => {
            let pair = |at: usize| text.get(at..at + 2).and_then(|pair| u8::from_str_radix(pair, 16).ok());
            let is_hex = text.len() % 2 == 0 && text.bytes().all(|b| b.is_ascii_hexdigit());
            let decoded: Option<Vec<u8>> = (0..text.len()).step_by(2).map(pair).collect();
            decoded
                .filter(|_| is_hex)
                .ok_or_else(|| Fault::new("text", "must be pairs of hexadecimal digits"))?
        }
        None => return Err(Fault::missing("binary or text")),
    };
    if bytes.is_empty() || bytes.len() > limits::CHECK_PAYLOAD_BYTES_MAX {
        return Err(Fault::new("", format!("must have 1 to {} bytes", limits::CHECK_PAYLOAD_BYTES_MAX)));
    }
    Ok(bytes)
}
