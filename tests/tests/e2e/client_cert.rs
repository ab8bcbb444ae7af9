//! What backends learn of a client's certificate (`x-forwarded-client-cert`), that nobody else can tell them, and
//! that a connection vouches for its own names only (C39, C40).

use tests::config::ListenerTls;
use tests::h2peer::{H2Client, block_on};
use tests::tls::{Authority, ClientTls, Leaf};
use tests::{Config, Listener, Origin, Proxy, RawClient, message, origin};

const NAME: &str = "x-forwarded-client-cert";

/// The listeners `plain`, and `replace` and `strip`, which ask for client certificates.
fn behind_three_listeners(authority: &Authority) -> (Origin, Proxy) {
    let origin = origin::echo();
    let mut config = Config::to(origin.address()).listener(|listener| listener.name = "plain".to_owned());
    for name in ["replace", "strip"] {
        let mut listener = Listener::new(name);
        listener.client_cert_field = name == "replace";
        listener.tls = Some(ListenerTls {
            leaves: vec![authority.leaf(&["a.example"])],
            client_authority: Some(authority.pem().to_owned()),
            ..ListenerTls::default()
        });
        config.listeners.push(listener);
    }
    (origin, Proxy::start(config))
}

fn head(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n")
}

#[track_caller]
fn over_tls(proxy: &Proxy, listener: &str, tls: &ClientTls, lines: &str) {
    let mut client = RawClient::connect_tls(proxy.listener(listener), tls).expect("a handshake");
    client.send(head(lines));
    assert_eq!(client.response("GET").status, 200);
}

/// All values that the newest request carried under any spelling of the name.
fn seen(origin: &Origin) -> Vec<String> {
    let request = origin.requests().pop().expect("a request at the origin");
    let spelled = |name: &str| name.to_ascii_lowercase().replace('_', "-") == NAME;
    request.fields.into_iter().filter(|(name, _)| spelled(name)).map(|(_, value)| value).collect()
}

/// SHA-256 of the certificate, lower-case hexadecimal, by openssl.
fn fingerprint(leaf: &Leaf) -> String {
    let dir = tests::dir::TempDir::new("fingerprint");
    let path = dir.write("leaf.pem", &leaf.certificate_pem).display().to_string();
    let (ok, output, errors) =
        tests::tool::run("openssl", &["x509", "-in", &path, "-noout", "-fingerprint", "-sha256"]);
    assert!(ok, "{errors}");
    let digits = output.split_once('=').expect("NAME=VALUE").1;
    digits.trim().replace(':', "").to_ascii_lowercase()
}

#[test]
fn backends_learn_who_showed_a_certificate() {
    let authority = Authority::default();
    let (origin, proxy) = behind_three_listeners(&authority);
    let leaf = authority.identity("orders", "orders.example", &["spiffe://example/orders"]);
    let wanted = format!(
        "Hash={};Subject=\"CN=orders\";URI=spiffe://example/orders;DNS=orders.example",
        fingerprint(&leaf)
    );
    over_tls(&proxy, "replace", &authority.client_with("a.example", &[], &leaf), "");
    assert_eq!(seen(&origin), [wanted.as_str()]);
    block_on(async {
        let tls = authority.client_with("a.example", &["h2"], &leaf);
        let mut client = H2Client::connect_tls(proxy.listener("replace"), &tls).await;
        assert_eq!(client.get("a.example", "/").await.expect("an answer").status, 200);
    });
    assert_eq!(seen(&origin), [wanted.as_str()], "over HTTP/2");
    over_tls(&proxy, "replace", &authority.client("a.example", &[]), "");
    assert_eq!(seen(&origin), Vec::<String>::new(), "none was shown");
    over_tls(&proxy, "strip", &authority.client_with("a.example", &[], &leaf), "");
    assert_eq!(seen(&origin), Vec::<String>::new(), "it is not asked for");
}

#[test]
fn what_a_client_says_about_certificates_never_passes() {
    let authority = Authority::default();
    let (origin, proxy) = behind_three_listeners(&authority);
    let lines = "X-Forwarded-Client-Cert: Hash=0;Subject=\"CN=admin\"\r\nx-forwarded-client-cert: Hash=1\r\n";
    let leaf = authority.identity("orders", "orders.example", &[]);
    for listener in ["replace", "strip"] {
        over_tls(&proxy, listener, &authority.client("a.example", &[]), lines);
        assert_eq!(seen(&origin), Vec::<String>::new(), "{listener}");
    }
    over_tls(&proxy, "replace", &authority.client_with("a.example", &[], &leaf), lines);
    let values = seen(&origin);
    assert!(values.len() == 1 && values[0].contains("CN=orders"), "ours only: {values:?}");
    let response = tests::client::once(proxy.listener("plain"), head(lines));
    assert_eq!((response.status, seen(&origin)), (200, Vec::new()), "in clear");
    // Backends of the CGI kind cannot tell `_` from `-`.
    let before = origin.requests().len();
    for line in ["X_Forwarded_Client_Cert: Hash=2\r\n", "X-Forwarded_Client-Cert: Hash=3\r\n"] {
        drop(crate::refused(&proxy, line, head(line).as_bytes(), &[400]));
    }
    assert_eq!(origin.requests().len(), before);
}

#[test]
fn names_in_a_certificate_add_no_element_and_no_line() {
    let authority = Authority::default();
    let (origin, proxy) = behind_three_listeners(&authority);
    for (common_name, uri) in [
        ("a\";DNS=admin.example;\"", "spiffe://example/a"),
        ("a", "spiffe://example/a;DNS=admin.example"),
        ("a", "spiffe://example/a,By=admin"),
        ("a\\", "spiffe://example/a\";DNS=admin.example"),
        ("a\r\nX-Evil: 1", "spiffe://example/a"),
        ("a", "spiffe://example/a\r\nX-Evil: 1"),
    ] {
        let leaf = authority.identity(common_name, "real.example", &[uri]);
        let tls = authority.client_with("a.example", &[], &leaf);
        let mut client = RawClient::connect_tls(proxy.listener("replace"), &tls).expect("a handshake");
        client.send(head(""));
        // A name that fits no field may be refused; it may not be passed on as something else.
        if client.try_response("GET").is_ok_and(|response| response.status == 200) {
            let values = seen(&origin);
            let names: Vec<String> = values.iter().flat_map(|value| elements(value)).collect();
            assert_eq!(names, ["Hash", "Subject", "URI", "DNS"], "{common_name:?} {uri:?}: {values:?}");
        }
        assert_eq!(message::all(&last_fields(&origin), "x-evil"), Vec::<&str>::new());
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

fn last_fields(origin: &Origin) -> message::FieldLines {
    origin.requests().pop().map(|request| request.fields).unwrap_or_default()
}

/// Names of the elements of a value, quotes and their escapes honoured.
fn elements(value: &str) -> Vec<String> {
    let (mut names, mut name, mut in_name) = (Vec::new(), String::new(), true);
    let (mut quoted, mut escaped) = (false, false);
    for character in value.chars() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            ';' | ',' if !quoted => {
                in_name = true;
                name.clear();
            }
            '=' if in_name && !quoted => {
                names.push(std::mem::take(&mut name));
                in_name = false;
            }
            _ if in_name => name.push(character),
            _ => {}
        }
    }
    names
}

#[test]
fn c40_a_host_that_the_certificates_do_not_cover_is_misdirected() {
    let authority = Authority::default();
    let origin = origin::echo();
    let leaves = [authority.leaf(&["a.example"]), authority.leaf(&["b.example", "*.c.example"])];
    for required in [true, false] {
        let pem = authority.pem().to_owned();
        let proxy = Proxy::start(Config::to(origin.address()).listener(|listener| {
            listener.tls = Some(ListenerTls {
                leaves: leaves.to_vec(),
                client_authority: Some(pem),
                client_required: required,
                unknown_refused: true,
            });
        }));
        let identity = authority.leaf(&["client.example"]);
        let tls = authority.client_with("a.example", &["http/1.1"], &identity);
        let mut client = RawClient::connect_tls(proxy.address(), &tls).expect("a handshake");
        // RFC 9110 §15.5.20: the connection goes on for the hosts that it stands for.
        for (host, status) in [
            ("a.example", 200),
            ("other.example", 421),
            ("A.Example:443", 200),
            ("b.example", 200),
            ("x.c.example", 200),
            ("x.y.c.example", 421),
            ("c.example", 421),
            ("127.0.0.1", 421),
            ("a.example", 200),
        ] {
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            let response = client.response("GET");
            assert_eq!(response.status, status, "{host}, required {required}: {response:?}");
            if status == 421 {
                assert_eq!(response.code().as_deref(), Some("misdirected"), "{host}");
            }
        }
        let tls = authority.client_with("b.example", &["h2"], &identity);
        block_on(async {
            let mut client = H2Client::connect_tls(proxy.address(), &tls).await;
            for (host, status) in [("b.example", 200), ("other.example", 421), ("a.example", 200)] {
                let response = client.get(host, "/").await.expect("the connection lives");
                assert_eq!(response.status, status, "{host} over HTTP/2");
            }
        });
        let unknown = authority.client_with("other.example", &[], &identity);
        assert!(RawClient::connect_tls(proxy.address(), &unknown).is_err(), "no certificate for that name");
    }
}
