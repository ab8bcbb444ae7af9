//! C44 and what the metrics promise: bounded labels, stage histograms, numbers that add up, scrapes that disturb
//! nobody.

use tests::h2peer::{H2Client, block_on};
use tests::metrics::Metrics;
use tests::{Config, Origin, Proxy, client};

use crate::echo_behind_proxy;

/// Stages whose latency is always measured.
const STAGES: &[&str] = &["connect", "first_byte", "total"];

#[test]
fn requests_are_counted_once() {
    let (_origin, proxy) = echo_behind_proxy();
    for _ in 0..25 {
        assert_eq!(proxy.get("/").status, 200);
    }
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        for _ in 0..15 {
            assert_eq!(client.get("a.example", "/").await.expect("an answer").status, 200);
        }
    });
    let total = |metrics: &Metrics| metrics.sum("shard_requests_total", &[]);
    proxy.wait_metrics("40 requests", |metrics| total(metrics) >= 40.0);
    assert!((total(&proxy.metrics()) - 40.0).abs() < f64::EPSILON, "{}", total(&proxy.metrics()));
}

#[test]
fn c44_labels_come_from_the_config_only() {
    let (_origin, proxy) = echo_behind_proxy();
    assert_eq!(proxy.get("/").status, 200);
    proxy.wait_metrics("the first request", |metrics| metrics.sum("shard_requests_total", &[]) >= 1.0);
    let before = proxy.metrics().samples.len();
    let mut connection = proxy.connect();
    for number in 0..500 {
        let request = format!(
            "M{number} /path-{number} HTTP/1.1\r\nHost: host-{number}.example\r\nUser-Agent: agent-{number}\r\nContent-Length: 0\r\n\r\n"
        );
        connection.send(request);
        assert_eq!(connection.response("GET").status, 200);
    }
    proxy.wait_metrics("all requests", |metrics| metrics.sum("shard_requests_total", &[]) >= 501.0);
    let metrics = proxy.metrics();
    assert!(metrics.samples.len() < before + 100, "{before} series before, {} after", metrics.samples.len());
    let leaked =
        metrics.samples.iter().find(|sample| sample.labels.values().any(|value| value.contains("-7")));
    assert_eq!(leaked, None, "client input became a label");
}

#[test]
fn stages_are_measured_in_histograms() {
    let (_origin, proxy) = echo_behind_proxy();
    for _ in 0..20 {
        assert_eq!(proxy.get("/").status, 200);
    }
    proxy.wait_metrics("20 requests", |metrics| metrics.sum("shard_requests_total", &[]) >= 20.0);
    let metrics = proxy.metrics();
    for stage in STAGES {
        let buckets = metrics.series("shard_stage_seconds_bucket", &[("stage", stage)]);
        assert!(buckets > 3, "no histogram of stage {stage}");
    }
}

#[test]
fn errors_are_counted_by_their_reason() {
    let (_origin, proxy) = echo_behind_proxy();
    let response = client::once(proxy.address(), "GET / HTTP/1.1\r\nHost: a b\r\n\r\n");
    let code = response.code().expect("a reason code");
    assert_eq!(code, "bad_host");
    proxy.wait_metrics("the reason's counter", |metrics| {
        metrics.sum("shard_reasons_total", &[("reason", &code)]) >= 1.0
    });
}

#[test]
fn the_admin_listener_answers_while_the_proxy_is_busy() {
    let origin = Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    });
    let proxy = Proxy::start(Config::to(origin.address()));
    let mut held = Vec::new();
    for _ in 0..50 {
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        held.push(client);
    }
    assert_eq!(proxy.admin("/ready").status, 200);
    assert_eq!(proxy.admin("/metrics").status, 200);
    let dump = proxy.admin("/config");
    assert_eq!(dump.status, 200);
    assert!(dump.text().contains("main"), "the listener's name is in the dump");
    proxy.wait_metrics("live connections", |metrics| {
        metrics.sum("shard_listener_connections", &[("listener", "main")]) >= 50.0
    });
    assert_eq!(proxy.admin("/nonsense").status, 404);
    assert_eq!(held.len(), 50);
}

#[test]
fn the_admin_listener_shows_no_private_key() {
    let authority = tests::tls::Authority::default();
    let origin = tests::origin::echo();
    let leaf = authority.leaf(&["a.example"]);
    let proxy = Proxy::start(Config::to(origin.address()).tls(std::slice::from_ref(&leaf)));
    let key_line = leaf.key_pem.lines().nth(1).expect("PEM");
    for page in ["/config", "/metrics", "/connections", "/ready"] {
        let text = proxy.admin(page).text();
        assert!(!text.contains("PRIVATE KEY") && !text.contains(key_line), "{page} shows a private key");
    }
    assert!(!proxy.log().contains(key_line));
}
