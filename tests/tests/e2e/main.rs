//! End-to-end tests against the built `shard-proxy`, one module a family. Run one family with
//! `cargo test -p tests --test e2e FAMILY::`. Case numbers (C01 …) are those of the project's list of inputs that
//! other proxies got wrong.
#![expect(clippy::tests_outside_test_module, reason = "this whole crate is a test target")]

mod admin;
mod bodiless;
mod client_cert;
mod connection_fields;
mod cors;
mod dns;
mod drain;
mod early;
mod endpoint;
mod errors;
mod forwarded;
mod grpc;
mod h1_basics;
mod h1_corpus;
mod h2_basics;
mod h2_hostile;
mod h2_limits;
mod h2_pool;
mod h2_stall;
mod h2_upstream;
mod health;
mod hedge;
mod host;
mod http10;
mod interim;
mod limits;
mod logs;
mod metrics;
mod mirror;
mod mirror_bodies;
mod paths;
mod pools;
mod proxy_protocol;
mod reload;
mod resilience;
mod restart;
mod routing;
mod slow;
mod smuggling;
mod start;
mod sticky;
mod stories;
mod streaming;
mod subset;
mod tcp;
mod tcp_names;
mod tcp_postgres;
mod tls;
mod token;
mod tools;
mod trailers;
mod truncation;
mod tunnels;
mod zones;

use tests::{Config, End, Origin, Proxy, Response, origin};

/// An echo origin and a proxy that sends everything to it.
#[track_caller]
fn echo_behind_proxy() -> (Origin, Proxy) {
    let origin = origin::echo();
    let proxy = Proxy::start(Config::to(origin.address()));
    (origin, proxy)
}

/// An origin that answers each request with the same bytes, behind a proxy.
#[track_caller]
fn reply_behind_proxy(reply: &str) -> (Origin, Proxy) {
    let origin = Origin::replying(reply);
    let proxy = Proxy::start(Config::to(origin.address()));
    (origin, proxy)
}

/// Sends bytes that must be refused: an error status from `statuses` (or a bare close), then the connection ends.
/// Returns the response, if there was one.
#[track_caller]
fn refused(proxy: &Proxy, what: &str, bytes: &[u8], statuses: &[u16]) -> Option<Response> {
    let mut client = proxy.connect();
    // The proxy may refuse before it has read everything.
    drop(client.try_send(bytes));
    let response = client.try_response("GET").ok();
    let status = response.as_ref().map(|response| response.status);
    assert!(
        status.is_some_and(|status| statuses.contains(&status)),
        "{what}: {statuses:?} wanted, got {response:?}"
    );
    assert_ne!(client.ending(), End::Open, "{what}: the connection must be closed");
    response
}

/// Nothing of what was refused may have reached the origin.
#[track_caller]
fn untouched(origin: &Origin, what: &str) {
    let text = origin.received_text();
    assert!(text.is_empty(), "{what}: reached the origin: {text:?}");
}
