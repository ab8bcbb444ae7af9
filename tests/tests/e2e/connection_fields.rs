//! C14: hop-by-hop fields and those nominated by `Connection`.

use tests::client;

use crate::{echo_behind_proxy, reply_behind_proxy};

#[test]
fn c14_nominated_fields_are_removed_before_ours_are_added() {
    let (origin, proxy) = echo_behind_proxy();
    for connection in [
        "Connection: close, x-forwarded-FOR, X-Real-Ip, Authorization, Host, Content-Length, x-request-id, x-forwarded-proto, X-Secret",
        "Connection: close\r\nConnection: X-Forwarded-For, x-secret\r\nConnection: HOST,,Content-Length , AUTHORIZATION,x-request-id",
    ] {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a.example\r\n{connection}\r\nX-Real-Ip: 6.6.6.6\r\nX-Secret: s\r\n\
             X-Forwarded-For: 6.6.6.6\r\nAuthorization: Basic eDp5\r\nContent-Length: 2\r\n\r\nhi"
        );
        let response = client::once(proxy.address(), request);
        assert_eq!(response.status, 200, "{connection}");
        let seen = origin.requests().pop().expect("a request");
        assert_eq!(seen.body, b"hi");
        assert_eq!(seen.field("host"), Some("a.example"));
        assert_eq!(seen.field("authorization"), Some("Basic eDp5"), "cannot be nominated away");
        assert_eq!(seen.field("x-forwarded-for"), Some("127.0.0.1"), "ours arrives");
        assert_eq!(seen.field("x-forwarded-proto"), Some("http"));
        assert!(seen.field("x-request-id").is_some_and(|id| !id.is_empty()));
        assert_eq!(
            (seen.field("x-secret"), seen.field("x-real-ip").filter(|_| connection.contains("X-Real-Ip"))),
            (None, None)
        );
    }
    assert_eq!(origin.faults(), Vec::<String>::new());
}

#[test]
fn c14_hop_by_hop_fields_stay_here() {
    let (origin, proxy) = echo_behind_proxy();
    let request = "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
                   TE: trailers, gzip\r\nProxy-Authorization: x\r\nTrailer: x\r\nUpgrade: x\r\nX-End: to end\r\n\r\n";
    assert_eq!(client::once(proxy.address(), request).status, 200);
    let seen = origin.requests().pop().expect("a request");
    for name in ["keep-alive", "proxy-connection", "upgrade", "proxy-authorization"] {
        assert_eq!(seen.field(name), None, "{name}");
    }
    assert!(matches!(seen.field("te"), None | Some("trailers")), "{:?}", seen.field("te"));
    assert_eq!(seen.field("x-end"), Some("to end"));
}

#[test]
fn c14_and_on_the_way_back() {
    let (_origin, proxy) = reply_behind_proxy(
        "HTTP/1.1 200 OK\r\nConnection: X-Private, keep-alive\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n\
         Proxy-Connection: x\r\nX-End: to end\r\nContent-Length: 2\r\n\r\nok",
    );
    let response = client::once(proxy.address(), "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!((response.status, response.text().as_str()), (200, "ok"));
    for name in ["x-private", "keep-alive", "proxy-connection"] {
        assert_eq!(response.field(name), None, "{name}");
    }
    assert_eq!(response.field("x-end"), Some("to end"));
}

#[test]
fn c14_a_long_list_is_refused() {
    let (origin, proxy) = echo_behind_proxy();
    let names: Vec<String> = (0..40).map(|number| format!("x-{number}")).collect();
    let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: {}\r\n\r\n", names.join(","));
    assert_eq!(client::once(proxy.address(), request).status, 400);
    crate::untouched(&origin, "a long Connection list");
}

#[test]
fn identity_fields_of_a_client_never_pass() {
    let (origin, proxy) = echo_behind_proxy();
    let request = "GET / HTTP/1.1\r\nHost: a.example\r\nX-Auth-Subject: root\r\nx-auth-scope: all\r\nX-Forwarded-Client-Cert: Hash=1\r\n\
                   X-Shard-Attempt: 7\r\nX-Mirrored: true\r\n\r\n";
    assert_eq!(client::once(proxy.address(), request).status, 200);
    let seen = origin.requests().pop().expect("a request");
    for name in ["x-auth-subject", "x-auth-scope", "x-forwarded-client-cert", "x-shard-attempt", "x-mirrored"]
    {
        assert_eq!(seen.field(name), None, "{name}");
    }
}
