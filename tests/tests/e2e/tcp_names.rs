//! TCP listeners that choose by the server name of a ClientHello: TLS passes through to the endpoint that owns the
//! certificate, and what is no ClientHello, or names nobody, has its reason.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::config::ClusterTls;
use tests::dir::TempDir;
use tests::tls::{Authority, ClientTls};
use tests::{Cluster, PATIENCE, Proxy, RawClient, wait_until};

use crate::tcp::{backend, connect, echo, proxy, rest, wait_reason};

/// A TLS server that says its name.
fn named(authority: &Authority, name: &'static str) -> SocketAddr {
    let config = authority.server(&authority.leaf(&[name]), &[]);
    backend(move |stream| {
        let session = rustls::ServerConnection::new(Arc::clone(&config)).expect("a session");
        let mut tls = rustls::StreamOwned::new(session, stream);
        let mut byte = [0];
        if tls.read_exact(&mut byte).is_ok() && tls.write_all(name.as_bytes()).is_ok() {
            tls.conn.send_close_notify();
            drop(tls.flush());
        }
    })
}

/// Two TLS servers with certificates of their own, and the names that lead to them.
fn two_servers(authority: &Authority, more: &Value) -> (Vec<Cluster>, Value) {
    let clusters = vec![
        Cluster::new("a", &[named(authority, "a.example")]),
        Cluster::new("b", &[named(authority, "x.b.example")]),
    ];
    let mut keys = json!({ "server_names": { "a.example": "app/a", "*.b.example": "app/b" } });
    let own = keys.as_object_mut().expect("an object");
    own.extend(more.as_object().expect("an object").clone());
    (clusters, keys)
}

/// What the server that a client reaches says of itself, once its certificate has been verified for `tls`.
fn reached(proxy: &Proxy, tls: &ClientTls) -> std::io::Result<Vec<u8>> {
    let mut client = RawClient::connect_tls(proxy.listener("tcp"), tls)?;
    client.send("?");
    Ok(client.rest())
}

#[test]
fn each_name_reaches_the_server_with_its_certificate() {
    let authority = Authority::new("tests");
    let (clusters, keys) = two_servers(&authority, &json!({}));
    let log = TempDir::new("tcp-names");
    let path = log.path().join("access.log");
    let proxy = proxy(&keys, clusters, |listener| listener.access_log = Some(path.display().to_string()));
    for name in ["a.example", "x.b.example"] {
        let said =
            reached(&proxy, &authority.client(name, &[])).expect("the server's own certificate verifies");
        assert_eq!(said, name.as_bytes());
    }
    assert!(reached(&proxy, &authority.client("c.example", &[])).is_err());
    wait_reason(&proxy, "server_name_unknown");
    // No name is sent for an address.
    assert!(reached(&proxy, &authority.client("127.0.0.1", &[])).is_err());
    proxy.wait_metrics("no name is an unknown name", |metrics| {
        metrics.sum("shard_reasons_total", &[("reason", "server_name_unknown")]) == 2.0
    });
    wait_until("the log has its rows", PATIENCE, || {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        text.contains("\"server_name\":\"a.example\"")
            && text.contains("\"cluster\":\"app/b\"")
            && text.contains("\"protocol\":\"TCP\"")
            && text.contains("\"reason\":\"server_name_unknown\"")
    });
}

#[test]
fn a_hello_in_single_bytes_is_put_together() {
    let authority = Authority::new("tests");
    let (clusters, keys) = two_servers(&authority, &json!({}));
    let proxy = proxy(&keys, clusters, |_| {});
    let mut stream = connect(&proxy);
    stream.set_nodelay(true).expect("a socket");
    let mut session = authority.client("x.b.example", &[]).connection();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).expect("a ClientHello");
    for byte in hello.chunks(1) {
        stream.write_all(byte).expect("the listener reads");
    }
    let mut tls = rustls::StreamOwned::new(session, stream);
    tls.write_all(b"?").expect("the handshake succeeds");
    let mut said = Vec::new();
    tls.read_to_end(&mut said).expect("a clean end");
    assert_eq!(said, b"x.b.example");
}

#[test]
fn what_is_no_client_hello_is_closed_with_a_reason() {
    let authority = Authority::new("tests");
    let (clusters, keys) = two_servers(&authority, &json!({ "hello_timeout": "500ms" }));
    let proxy = proxy(&keys, clusters, |_| {});
    let bad = |count: f64| {
        proxy.wait_metrics("counted", |metrics| {
            metrics.sum("shard_reasons_total", &[("reason", "client_hello_bad")]) == count
        });
    };
    let mut garbage = connect(&proxy);
    garbage.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("open");
    assert!(rest(&garbage).unwrap_or_default().is_empty());
    bad(1.0);

    // Records of 16 KiB that never become a whole ClientHello.
    let mut oversized = connect(&proxy);
    let record = [&[22, 3, 1, 0x40, 0][..], &[1, 0xff, 0xff, 0xff], &vec![0; 0x4000 - 4]].concat();
    // The listener may be gone before it is all written.
    drop(oversized.write_all(&record.repeat(3)));
    assert!(rest(&oversized).unwrap_or_default().is_empty());
    bad(2.0);

    let start = Instant::now();
    let mut slow = connect(&proxy);
    slow.write_all(&[22, 3, 1]).expect("open");
    assert!(rest(&slow).unwrap_or_default().is_empty());
    assert!(start.elapsed() > Duration::from_millis(400), "{:?}", start.elapsed());
    wait_reason(&proxy, "client_hello_timeout");
}

#[test]
fn the_rest_goes_to_the_default() {
    let authority = Authority::new("tests");
    let (mut clusters, keys) = two_servers(&authority, &json!({ "cluster": "app/rest" }));
    clusters.push(Cluster::new("rest", &[named(&authority, "c.example")]));
    let proxy = proxy(&keys, clusters, |_| {});
    for name in ["a.example", "c.example"] {
        assert_eq!(reached(&proxy, &authority.client(name, &[])).expect("verified"), name.as_bytes());
    }

    let (mut clusters, keys) = two_servers(&authority, &json!({ "cluster": "app/rest" }));
    clusters.push(Cluster::new("rest", &[echo()]));
    let proxy = crate::tcp::proxy(&keys, clusters, |_| {});
    let mut plain = connect(&proxy);
    plain.write_all(b"EHLO me\r\n").expect("open");
    let mut bytes = [0; 9];
    plain.read_exact(&mut bytes).expect("what is no TLS goes to the default as it is");
    assert_eq!(&bytes, b"EHLO me\r\n");
}

#[test]
fn a_cluster_with_tls_gets_it_from_the_proxy() {
    let authority = Authority::new("tests");
    let mut cluster = Cluster::new("a", &[named(&authority, "a.example")]);
    cluster.tls = Some(ClusterTls {
        authority: authority.pem().to_owned(),
        server_name: "a.example".to_owned(),
        identity: None,
    });
    let keys = json!({ "cluster": "app/a" });
    let good = proxy(&keys, vec![cluster.clone()], |_| {});
    let mut client = connect(&good);
    client.write_all(b"?").expect("open");
    assert_eq!(rest(&client).expect("close_notify is a clean end"), b"a.example");

    cluster.tls.as_mut().expect("set above").server_name = "b.example".to_owned();
    let wrong = proxy(&keys, vec![cluster], |_| {});
    assert!(rest(&connect(&wrong)).is_err());
    wait_reason(&wrong, "upstream_tls_failed");
}
