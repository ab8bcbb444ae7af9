//! What is spoken to the target: HTTP/1.1, HTTP/2, TLS, gRPC, WebSocket, templates, throttles.

use crate::support::{Folder, Target, number, run};

fn ok(document: &serde_json::Value) -> f64 {
    let failed = number(document, &["requests", "failed"]);
    assert!(failed == 0.0, "{document:#}");
    number(document, &["requests", "ok"])
}

#[test]
fn http1_counts_every_request_and_byte() {
    let target = Target::start(&["--body-bytes", "1000"]);
    let document = run(&[&target.url("http", "/"), "-n", "500", "-c", "4", "-d", "30s"]);
    assert!(ok(&document) == 500.0);
    let bytes = number(&document, &["bytes_in"]);
    assert!((500_000.0..560_000.0).contains(&bytes), "{bytes}");
    assert!(number(&document, &["statuses", "2xx"]) == 500.0);
    assert!(document["plan"]["loop"] == "closed");
}

#[test]
fn pipelining_and_large_bodies() {
    let target = Target::start(&[]);
    let document = run(&[&target.url("http", "/64k"), "-n", "300", "-c", "2", "-m", "8", "-d", "30s"]);
    assert!(ok(&document) == 300.0);
    assert!(number(&document, &["bytes_in"]) > 300.0 * 65_536.0);
    assert!(number(&document, &["phases", "first_byte", "count"]) == 300.0);
}

#[test]
fn a_connection_for_each_request() {
    let target = Target::start(&[]);
    let document = run(&[&target.url("http", "/"), "-n", "100", "-c", "4", "--fresh", "-d", "30s"]);
    assert!(ok(&document) == 100.0);
    assert!(number(&document, &["connections", "opened"]) >= 100.0);
    assert!(number(&document, &["phases", "connect", "count"]) >= 100.0);
}

#[test]
fn http2_with_prior_knowledge_many_streams_and_bodies() {
    let target = Target::start(&[]);
    let url = target.url("http", "/bytes/100000");
    let document = run(&[&url, "--protocol", "h2", "-n", "400", "-c", "2", "-m", "50", "-d", "30s"]);
    assert!(ok(&document) == 400.0);
    assert!(number(&document, &["bytes_in"]) > 400.0 * 100_000.0);
    // A body that needs more than the peer's first window on the connection and on its stream.
    let folder = Folder::new("upload");
    let body = format!("@{}", folder.file("body", &[b'x'; 200_000]));
    let upload = run(&[
        &target.url("http", "/"),
        "--protocol",
        "h2",
        "-n",
        "40",
        "-c",
        "1",
        "-m",
        "4",
        "--body",
        &body,
    ]);
    assert!(ok(&upload) == 40.0);
    assert!(number(&upload, &["bytes_out"]) > 40.0 * 200_000.0);
}

#[test]
fn tls_full_and_resumed_are_told_apart() {
    let folder = Folder::new("tls");
    let [ca, chain, key] = folder.certificates();
    let target = Target::start(&["--cert", &chain, "--key", &key]);
    let url = target.url("https", "/");
    let kept = run(&[&url, "--cacert", &ca, "-n", "200", "-c", "4", "-d", "30s"]);
    assert!(ok(&kept) == 200.0);
    assert!(kept["tls"]["version"] == "TLSv1.3" && kept["tls"]["alpn"] == "http/1.1", "{kept:#}");
    let fresh = ["--cacert", &ca, "-n", "60", "-c", "2", "--fresh", "-d", "30s"];
    let resumed = run(&[&[url.as_str()], &fresh[..]].concat());
    assert!(ok(&resumed) == 60.0);
    assert!(number(&resumed, &["connections", "tls_resumed"]) >= 55.0, "{resumed:#}");
    let full =
        run(&[&[url.as_str(), "--no-resume", "--tls", "1.2", "--groups", "secp256r1"], &fresh[..]].concat());
    assert!(ok(&full) == 60.0);
    assert!(number(&full, &["connections", "tls_resumed"]) == 0.0);
    assert!(number(&full, &["connections", "tls_full"]) >= 60.0);
    assert!(full["tls"]["version"] == "TLSv1.2" && full["tls"]["group"] == "secp256r1", "{full:#}");
    let h2 =
        run(&[&url, "--cacert", &ca, "--protocol", "h2", "-n", "300", "-c", "2", "-m", "10", "-d", "30s"]);
    assert!(ok(&h2) == 300.0 && h2["tls"]["alpn"] == "h2");
}

#[test]
fn a_client_certificate_is_shown() {
    let folder = Folder::new("mtls");
    let [ca, chain, key] = folder.certificates();
    let target = Target::start(&["--cert", &chain, "--key", &key, "--client-ca", &ca]);
    let url = target.url("https", "/");
    let shown =
        run(&[&url, "--cacert", &ca, "--cert", &chain, "--key", &key, "-n", "20", "-c", "2", "-d", "30s"]);
    assert!(ok(&shown) == 20.0);
    let without = crate::support::bench(&[
        "run", &url, "--cacert", &ca, "--tls", "1.2", "-n", "20", "-c", "2", "-d", "5s",
    ]);
    assert_eq!(without.status.code(), Some(69), "{}", crate::support::text(&without));
}

#[test]
fn grpc_unary_and_streams() {
    let target = Target::start(&[]);
    let url = target.url("http", "/echo.Echo/Say");
    let unary = run(&[
        &url,
        "--protocol",
        "grpc",
        "--body",
        "hello",
        "-n",
        "200",
        "-c",
        "2",
        "-m",
        "10",
        "-d",
        "30s",
    ]);
    assert!(ok(&unary) == 200.0);
    assert!(number(&unary, &["requests", "messages"]) == 200.0);
    let stream = run(&[
        &url,
        "--protocol",
        "grpc",
        "--body",
        "hi",
        "--grpc-messages",
        "20",
        "-n",
        "30",
        "-c",
        "1",
        "-d",
        "30s",
    ]);
    assert!(ok(&stream) == 30.0);
    assert!(number(&stream, &["requests", "messages"]) == 600.0);
    assert!(number(&stream, &["phases", "message", "count"]) == 600.0);
    // An answer without a grpc-status is no success, whatever its HTTP status.
    let header = ["-H", "content-type: text/plain"];
    let wrong = crate::support::bench(
        &[&["run", &url, "--protocol", "h2", "-n", "5", "-d", "5s"], &header[..]].concat(),
    );
    assert_eq!(wrong.status.code(), Some(0), "plain h2 to the same path: {}", crate::support::text(&wrong));
}

#[test]
fn websocket_messages() {
    let target = Target::start(&[]);
    let message = "m".repeat(300);
    let url = target.url("ws", "/chat");
    let document = run(&[&url, "--body", &message, "-n", "400", "-c", "3", "-m", "2", "-d", "30s"]);
    assert!(ok(&document) == 400.0 && document["plan"]["protocol"] == "websocket");
    assert!(number(&document, &["requests", "messages"]) == 400.0);
    assert!(number(&document, &["bytes_in"]) > 400.0 * 300.0);
    // A template is filled for each message.
    let filled = run(&[&url, "--body", "{seq} {hex:300}", "-n", "400", "-c", "3", "-d", "30s"]);
    assert!(ok(&filled) == 400.0 && number(&filled, &["bytes_in"]) > 400.0 * 300.0);
}

#[test]
fn requests_from_a_file_with_placeholders() {
    let folder = Folder::new("list");
    let list =
        folder.file("list", b"GET /bytes/10?n={seq}\nPOST /bytes/20 {\"id\": {rand:1-9}}\nHEAD /bytes/30\n");
    let target = Target::start(&[]);
    for protocol in ["h1", "h2"] {
        let document = run(&[
            &target.url("http", "/"),
            "--protocol",
            protocol,
            "--requests-from",
            &list,
            "-n",
            "300",
            "-c",
            "3",
            "-d",
            "30s",
            "-H",
            "x-id: {hex:8}",
        ]);
        if protocol == "h1" {
            assert!(ok(&document) == 300.0);
        } else {
            // The light target sends a body for HEAD over HTTP/2 as well; that is its business here.
            assert!(number(&document, &["requests", "ok"]) == 300.0);
        }
    }
}

#[test]
fn a_slow_reader_is_slow() {
    let target = Target::start(&[]);
    let url = target.url("http", "/bytes/200000");
    let document = run(&[&url, "-n", "1", "-c", "1", "--slow-read", "200k", "-d", "30s"]);
    assert!(ok(&document) == 1.0);
    let took = crate::support::percentile(&document, "latency", 100.0);
    assert!(took > 700_000.0, "200 KB at 200 KB/s take a second, not {took} µs");
}

#[test]
fn a_slow_sender_is_slow() {
    let folder = Folder::new("slow-send");
    let body = format!("@{}", folder.file("body", &[b'x'; 200_000]));
    let target = Target::start(&[]);
    let url = target.url("http", "/");
    let document = run(&[&url, "--body", &body, "-n", "2", "-c", "1", "--slow-send", "400k", "-d", "30s"]);
    assert!(ok(&document) == 2.0);
    let took = crate::support::percentile(&document, "latency", 0.0);
    assert!(took > 350_000.0, "200 KB at 400 KB/s take half a second, not {took} µs");
}
