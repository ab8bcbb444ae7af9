//! TLS towards clients and upstreams: names, kinds of key, client certificates, resumption, reload.

use std::sync::Arc;

use rustls::HandshakeKind;
use tests::config::{ClusterTls, ListenerTls};
use tests::tls::{Authority, ClientTls, KeyKind};
use tests::{Config, Origin, PATIENCE, Proxy, RawClient, origin, wait_until};

/// Connects, asks once, and says whose certificate was shown (its serial, as DER bytes).
#[track_caller]
fn ask(proxy: &Proxy, tls: &ClientTls) -> (u16, Vec<u8>) {
    let mut client = RawClient::connect_tls(proxy.address(), tls).expect("a handshake");
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    let status = client.response("GET").status;
    let chain = client.tls().and_then(|tls| tls.peer_certificates()).expect("a certificate");
    (status, chain[0].to_vec())
}

#[test]
fn c40_names_choose_certificates() {
    let authority = Authority::default();
    let origin = origin::echo();
    let leaves = [
        authority.leaf(&["default.example"]),
        authority.leaf(&["a.example"]),
        authority.leaf(&["*.a.example"]),
        authority.leaf(&["*.b.a.example"]),
    ];
    let proxy = Proxy::start(Config::to(origin.address()).tls(&leaves));
    for name in ["a.example", "A.EXAMPLE", "x.a.example", "x.b.a.example", "default.example"] {
        let (status, _) = ask(&proxy, &authority.client(name, &["http/1.1"]));
        assert_eq!(status, 200, "{name}");
    }
    // A wildcard stands for one label: these get the default certificate, which does not verify.
    for name in ["x.y.a.example", "other.example"] {
        let error = RawClient::connect_tls(proxy.address(), &authority.client(name, &[])).err();
        assert!(error.is_some(), "{name} must not verify");
    }
}

#[test]
fn c40_many_names() {
    let authority = Authority::default();
    let origin = origin::echo();
    let names: Vec<String> = (0..300).map(|number| format!("host-{number}.example")).collect();
    let leaves: Vec<_> = names.iter().map(|name| authority.leaf(&[name])).collect();
    let proxy = Proxy::start(Config::to(origin.address()).tls(&leaves));
    for name in [&names[0], &names[150], &names[299]] {
        assert_eq!(ask(&proxy, &authority.client(name, &[])).0, 200, "{name}");
    }
}

#[test]
fn ecdsa_and_rsa_by_what_the_client_verifies() {
    let authority = Authority::default();
    let origin = origin::echo();
    let (ecdsa, rsa) =
        (authority.leaf(&["a.example"]), authority.leaf_with(&["a.example"], KeyKind::Rsa2048));
    let proxy = Proxy::start(Config::to(origin.address()).tls(&[rsa, ecdsa]));
    let address = proxy.address().to_string();
    let dir = tests::dir::TempDir::new("tls");
    let ca = dir.write("ca.pem", authority.pem()).display().to_string();
    for (algorithms, wanted) in [("ECDSA+SHA256", "ecdsa"), ("RSA-PSS+SHA256:RSA+SHA256", "rsa")] {
        let arguments = [
            "s_client",
            "-connect",
            &address,
            "-servername",
            "a.example",
            "-CAfile",
            &ca,
            "-sigalgs",
            algorithms,
            "-brief",
        ];
        let (_, output, errors) = tests::tool::run("openssl", &arguments);
        let text = format!("{output}{errors}").to_ascii_lowercase();
        assert!(text.contains(&format!("signature type: {wanted}")), "{algorithms}: {text}");
    }
}

#[test]
fn versions_from_1_2_up() {
    let authority = Authority::default();
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()).tls(&[authority.leaf(&["a.example"])]));
    let address = proxy.address().to_string();
    for (version, served) in [("-tls1_2", true), ("-tls1_3", true), ("-tls1_1", false)] {
        let arguments = ["s_client", "-connect", &address, "-servername", "a.example", version, "-brief"];
        let (_, output, errors) = tests::tool::run("openssl", &arguments);
        let text = format!("{output}{errors}");
        assert_eq!(text.contains("CONNECTION ESTABLISHED"), served, "{version}: {text}");
    }
}

#[test]
fn plain_http_to_a_tls_port_is_closed() {
    let authority = Authority::default();
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()).tls(&[authority.leaf(&["a.example"])]));
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    client.expect_close();
    crate::untouched(&origin, "plain HTTP");
}

fn with_client_certificates(authority: &Authority, required: bool) -> (Origin, Proxy) {
    let origin = origin::echo();
    let leaf = authority.leaf(&["a.example"]);
    let pem = authority.pem().to_owned();
    let proxy = Proxy::start(Config::to(origin.address()).listener(|listener| {
        listener.tls = Some(ListenerTls {
            leaves: vec![leaf],
            client_authority: Some(pem),
            client_required: required,
            ..ListenerTls::default()
        });
    }));
    (origin, proxy)
}

#[test]
fn client_certificates_are_required_or_checked_when_shown() {
    let authority = Authority::default();
    let stranger = Authority::new("stranger");
    let good = authority.leaf(&["client.example"]);
    let bad = stranger.leaf(&["client.example"]);
    for required in [true, false] {
        let (_origin, proxy) = with_client_certificates(&authority, required);
        // TLS 1.3 clients learn of a refusal with their first read.
        let served = |tls: &ClientTls| {
            RawClient::connect_tls(proxy.address(), tls).is_ok_and(|mut client| {
                client.try_send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n").is_ok()
                    && client.try_response("GET").is_ok_and(|response| response.status == 200)
            })
        };
        assert!(served(&authority.client_with("a.example", &[], &good)), "required {required}");
        assert_eq!(
            served(&authority.client("a.example", &[])),
            !required,
            "no certificate, required {required}"
        );
        assert!(!served(&authority.client_with("a.example", &[], &bad)), "a stranger's, required {required}");
    }
}

#[test]
fn sessions_resume_on_any_core() {
    let authority = Authority::default();
    let origin = origin::echo();
    let mut config = Config::to(origin.address()).tls(&[authority.leaf(&["a.example"])]);
    config.cores = 2;
    let proxy = Proxy::start(config);
    let tls = authority.client("a.example", &["http/1.1"]);
    let mut resumed = 0;
    for number in 0..20 {
        let mut client = RawClient::connect_tls(proxy.address(), &tls).expect("a handshake");
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        assert_eq!(client.response("GET").status, 200);
        let kind = client.tls().and_then(|tls| tls.handshake_kind());
        resumed += usize::from(number > 0 && kind == Some(HandshakeKind::Resumed));
    }
    assert_eq!(resumed, 19, "every connection after the first resumes, whichever core takes it");
}

#[test]
fn a_renewed_certificate_goes_live_and_connections_stay() {
    let authority = Authority::default();
    let origin = origin::echo();
    let config = Config::to(origin.address()).tls(&[authority.leaf(&["a.example"])]);
    let mut proxy = Proxy::start(config.clone());
    let tls = authority.client("a.example", &["http/1.1"]);
    let mut kept = RawClient::connect_tls(proxy.address(), &tls).expect("a handshake");
    kept.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(kept.response("GET").status, 200);
    let before = ask(&proxy, &authority.client("a.example", &[])).1;
    proxy.reload(config.tls(&[authority.leaf(&["a.example"])]));
    wait_until("the new certificate is shown", PATIENCE, || {
        ask(&proxy, &authority.client("a.example", &[])).1 != before
    });
    kept.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(kept.response("GET").status, 200);
}

/// An origin that speaks TLS: HTTP/1.1, one request a connection.
pub(crate) fn tls_origin(config: Arc<rustls::ServerConfig>) -> Origin {
    Origin::scripted(move |connection| {
        let mut session = rustls::ServerConnection::new(Arc::clone(&config)).expect("a valid configuration");
        let mut stream = connection.stream();
        let mut tls = rustls::Stream::new(&mut session, &mut stream);
        let mut bytes = Vec::new();
        let mut block = [0; 4096];
        while tests::message::end_of(b"\r\n\r\n", &bytes).is_none() {
            match std::io::Read::read(&mut tls, &mut block) {
                Ok(count) if count > 0 => bytes.extend_from_slice(&block[..count]),
                _ => return,
            }
        }
        let name = tls.conn.server_name().unwrap_or_default().to_owned();
        let reply =
            format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{name}", name.len());
        drop(std::io::Write::write_all(&mut tls, reply.as_bytes()));
        tls.conn.send_close_notify();
        drop(std::io::Write::flush(&mut tls));
    })
}

#[test]
fn upstream_certificates_are_checked_for_issuer_and_name() {
    let (authority, stranger) = (Authority::default(), Authority::new("stranger"));
    let origin = tls_origin(authority.server(&authority.leaf(&["backend.example"]), &["http/1.1"]));
    for (issuer, name, status) in [
        (&authority, "backend.example", 200),
        (&authority, "other.example", 502),
        (&stranger, "backend.example", 502),
    ] {
        let tls =
            ClusterTls { authority: issuer.pem().to_owned(), server_name: name.to_owned(), identity: None };
        let proxy = Proxy::start(Config::to(origin.address()).cluster(|cluster| cluster.tls = Some(tls)));
        let response = proxy.get("/");
        assert_eq!(response.status, status, "{name}: {response:?}");
        if status == 200 {
            assert_eq!(response.text(), name, "the server name is sent");
        } else {
            assert_eq!(response.code().as_deref(), Some("upstream_tls_failed"));
        }
    }
}
