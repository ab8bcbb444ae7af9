//! Active health checks that speak as requests do: HTTP over TLS, HTTP/2, and gRPC's health protocol against a real tonic
//! server. A check in the clear is in `resilience`.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use serde_json::{Value, json};
use tests::config::{ClusterTls, Protocol};
use tests::h2peer::{H2Origin, drain};
use tests::tls::{Authority, Leaf};
use tests::{Cluster, Config, PATIENCE, Proxy, wait_until};
use tonic::codegen::{Body, Service, StdError, http as grpc_http};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::tls::tls_origin;

#[derive(Clone, PartialEq, prost::Message)]
struct CheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

/// `grpc.health.v1.Health` of a server that knows the service `shop`.
#[derive(Clone)]
struct Health {
    is_serving: Arc<AtomicBool>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl tonic::server::UnaryService<CheckRequest> for Health {
    type Response = CheckResponse;
    type Future = BoxFuture<Result<tonic::Response<CheckResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<CheckRequest>) -> Self::Future {
        let is_known = matches!(request.into_inner().service.as_str(), "" | "shop");
        // SERVING, NOT_SERVING.
        let status = if self.is_serving.load(Ordering::Acquire) { 1 } else { 2 };
        let answer = tonic::Response::new(CheckResponse { status });
        Box::pin(async move { if is_known { Ok(answer) } else { Err(Status::not_found("no such service")) } })
    }
}

impl<B> Service<grpc_http::Request<B>> for Health
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    type Response = grpc_http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: grpc_http::Request<B>) -> Self::Future {
        let health = self.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(match request.uri().path() {
                "/grpc.health.v1.Health/Check" => grpc.unary(health, request).await,
                _ => Status::new(Code::Unimplemented, "no such method").into_http(),
            })
        })
    }
}

/// A tonic server in a thread of its own, which ends with the process.
fn grpc_server(leaf: Option<&Leaf>) -> (SocketAddr, Arc<AtomicBool>) {
    let address = SocketAddr::from(([127, 0, 0, 1], tests::port::free_port()));
    let is_serving = Arc::new(AtomicBool::new(true));
    let mut server = Server::builder();
    if let Some(leaf) = leaf {
        let identity = Identity::from_pem(&leaf.certificate_pem, &leaf.key_pem);
        server = server.tls_config(ServerTlsConfig::new().identity(identity)).expect("a usable certificate");
    }
    let health = Health { is_serving: Arc::clone(&is_serving) };
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        runtime.block_on(server.serve(address, health)).expect("the port is free");
    });
    wait_until("the gRPC server listens", PATIENCE, || std::net::TcpStream::connect(address).is_ok());
    (address, is_serving)
}

fn checked(cluster: Cluster, check: &Value) -> Proxy {
    let mut config = Config::with(cluster.rule("health_check", check.clone()));
    config.cores = 1;
    Proxy::start(config)
}

/// A check every 100 ms; two failures or passes decide.
fn check(kind: &str, of: Value) -> Value {
    let mut check = json!({ "interval": "100ms", "timeout": "5s", "unhealthy_after": 2, "healthy_after": 1 });
    check[kind] = of;
    check
}

#[track_caller]
fn wait_health(proxy: &Proxy, unhealthy: u64, what: &str) {
    // A core knows clusters that it has used.
    let _any_answer = proxy.get("/");
    wait_until(what, PATIENCE, || {
        let page = proxy.admin("/clusters").json();
        page["clusters"][0]["endpoints"][0]["cores_unhealthy"] == unhealthy
    });
}

fn wait_log(proxy: &Proxy, words: &str) {
    wait_until(words, PATIENCE, || proxy.log().contains(words));
}

fn client_tls(authority: &Authority, server_name: &str) -> Option<ClusterTls> {
    Some(ClusterTls {
        authority: authority.pem().to_owned(),
        server_name: server_name.to_owned(),
        identity: None,
    })
}

#[test]
fn a_grpc_server_says_whether_it_serves() {
    let authority = Authority::default();
    for leaf in [None, Some(authority.leaf(&["backend.example"]))] {
        let (address, is_serving) = grpc_server(leaf.as_ref());
        let tls = leaf.as_ref().and_then(|_| client_tls(&authority, "backend.example"));
        let cluster = Cluster { protocol: Protocol::Http2, tls, ..Cluster::new("u", &[address]) };
        let proxy = checked(cluster, &check("grpc", json!("shop")));
        is_serving.store(false, Ordering::Release);
        wait_health(&proxy, 1, "NOT_SERVING takes it out");
        wait_log(&proxy, "is unhealthy: it says that it does not serve");
        is_serving.store(true, Ordering::Release);
        wait_health(&proxy, 0, "SERVING brings it back");
        wait_log(&proxy, "is healthy");
    }
}

#[test]
fn a_grpc_service_that_is_not_known_does_not_serve() {
    let (address, _is_serving) = grpc_server(None);
    let cluster = Cluster { protocol: Protocol::Http2, ..Cluster::new("u", &[address]) };
    let proxy = checked(cluster, &check("grpc", json!("other")));
    wait_health(&proxy, 1, "NOT_FOUND takes it out");
    wait_log(&proxy, "is unhealthy: it says that it does not serve");
}

#[test]
fn http_over_http2_goes_by_the_status() {
    let is_well = Arc::new(AtomicBool::new(false));
    let origin = H2Origin::start({
        let is_well = Arc::clone(&is_well);
        move |request, mut respond| {
            let is_check = request.uri().path() == "/up";
            let is_ill = is_check && !is_well.load(Ordering::Acquire);
            async move {
                drain(&mut request.into_body()).await?;
                let head = http::Response::builder().status(if is_ill { 503 } else { 200 }).body(());
                respond.send_response(head.expect("a legal head"), true).map(drop)
            }
        }
    });
    let cluster = Cluster { protocol: Protocol::Http2, ..Cluster::new("u", &[origin.address()]) };
    let proxy = checked(cluster, &check("http", json!("/up")));
    wait_health(&proxy, 1, "503 takes it out");
    wait_log(&proxy, "is unhealthy: it answers with the status 503");
    is_well.store(true, Ordering::Release);
    wait_health(&proxy, 0, "200 brings it back");
}

#[test]
fn http_over_tls_needs_the_right_certificate() {
    let (authority, stranger) = (Authority::default(), Authority::new("stranger"));
    let origin = tls_origin(authority.server(&authority.leaf(&["backend.example"]), &["http/1.1"]));
    for (issuer, name, unhealthy) in [
        (&authority, "backend.example", 0),
        (&authority, "other.example", 1),
        (&stranger, "backend.example", 1),
    ] {
        let cluster = Cluster { tls: client_tls(issuer, name), ..Cluster::new("u", &[origin.address()]) };
        let proxy = checked(cluster, &check("http", json!("/")));
        if unhealthy == 1 {
            wait_health(&proxy, 1, name);
            wait_log(&proxy, "is unhealthy: TLS with it fails");
        } else {
            wait_until("checks pass", PATIENCE, || origin.connections() > 3);
            wait_health(&proxy, 0, name);
            assert!(!proxy.log().contains("is unhealthy"), "{}", proxy.log());
        }
    }
}

#[test]
fn tcp_over_tls_is_a_handshake_and_bytes_over_it() {
    let authority = Authority::default();
    let origin = tls_origin(authority.server(&authority.leaf(&["backend.example"]), &["http/1.1"]));
    let cluster =
        |name| Cluster { tls: client_tls(&authority, name), ..Cluster::new("u", &[origin.address()]) };
    let mut asks = check("tcp", json!(true));
    asks["send"] = json!("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    asks["expect"] = json!("HTTP/1.1 200");
    let proxy = checked(cluster("backend.example"), &asks);
    wait_until("checks pass", PATIENCE, || origin.connections() > 3);
    wait_health(&proxy, 0, "the answer is the expected one");
    assert!(!proxy.log().contains("is unhealthy"), "{}", proxy.log());
    let proxy = checked(cluster("other.example"), &check("tcp", json!(true)));
    wait_health(&proxy, 1, "the handshake fails");
    wait_log(&proxy, "is unhealthy: TLS with it fails");
}
