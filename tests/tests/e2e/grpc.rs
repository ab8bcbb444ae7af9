//! C41 and gRPC through the proxy with a real tonic client and server, in the clear and over TLS on both sides:
//! unary, all kinds of streaming, status and metadata, cancellation, deadlines, and what a gRPC caller sees when the
//! proxy itself fails.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tests::config::{ClusterTls, ListenerTls};
use tests::h2peer::{H2Client, H2Origin, block_on, drain, request};
use tests::tls::{Authority, Leaf};
use tests::{Config, Origin, Proxy, Response, Route};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Body, Service, StdError, http as grpc_http};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity, Server, ServerTlsConfig};
use tonic::{Code, Status, Streaming};
use tonic_prost::ProstCodec;

/// The only message of the test service.
#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(uint32, tag = "2")]
    count: u32,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// `shard.test.Echo`: `Say` (unary), `Repeat` (server streaming), `Join` (client streaming), `Chat` (both ways),
/// `Fail` (unary).
#[derive(Clone)]
struct Echo {
    /// Told how each stream of answers ended.
    ends: UnboundedSender<StreamEnd>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamEnd {
    /// All was sent.
    Complete,
    /// The client took its call back.
    Cancelled,
}

struct Say;
impl tonic::server::UnaryService<Text> for Say {
    type Response = Text;
    type Future = BoxFuture<Result<tonic::Response<Text>, Status>>;

    fn call(&mut self, request: tonic::Request<Text>) -> Self::Future {
        Box::pin(async move {
            let metadata = request.metadata().get("x-metadata").cloned();
            let mut response = tonic::Response::new(request.into_inner());
            if let Some(value) = metadata {
                response.metadata_mut().insert("x-metadata", value);
            }
            Ok(response)
        })
    }
}

struct Fail;
impl tonic::server::UnaryService<Text> for Fail {
    type Response = Text;
    type Future = BoxFuture<Result<tonic::Response<Text>, Status>>;

    fn call(&mut self, _request: tonic::Request<Text>) -> Self::Future {
        Box::pin(async { Err(Status::data_loss("100 % gone\nü")) })
    }
}

struct Repeat(UnboundedSender<StreamEnd>);
impl tonic::server::ServerStreamingService<Text> for Repeat {
    type Response = Text;
    type ResponseStream = Told<tokio_stream::Iter<Box<dyn Iterator<Item = Result<Text, Status>> + Send>>>;
    type Future = BoxFuture<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Text>) -> Self::Future {
        let ends = self.0.clone();
        Box::pin(async move {
            let Text { text, count } = request.into_inner();
            let items = (0..count).map(move |count| Ok(Text { text: text.clone(), count }));
            let items: Box<dyn Iterator<Item = _> + Send> = Box::new(items);
            Ok(tonic::Response::new(Told::new(tokio_stream::iter(items), ends)))
        })
    }
}

struct Join;
impl tonic::server::ClientStreamingService<Text> for Join {
    type Response = Text;
    type Future = BoxFuture<Result<tonic::Response<Text>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Text>>) -> Self::Future {
        Box::pin(async move {
            let mut stream = request.into_inner();
            let mut joined = Text::default();
            while let Some(part) = stream.next().await {
                joined.text += &part?.text;
                joined.count += 1;
            }
            Ok(tonic::Response::new(joined))
        })
    }
}

/// Answers each message at once, before the next one.
struct Chat(UnboundedSender<StreamEnd>);
impl tonic::server::StreamingService<Text> for Chat {
    type Response = Text;
    type ResponseStream = Told<Streaming<Text>>;
    type Future = BoxFuture<Result<tonic::Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Text>>) -> Self::Future {
        let answers = Told::new(request.into_inner(), self.0.clone());
        Box::pin(async { Ok(tonic::Response::new(answers)) })
    }
}

/// A stream of answers that tells its end when it is dropped.
struct Told<S> {
    items: S,
    end: StreamEnd,
    ends: UnboundedSender<StreamEnd>,
}

impl<S> Told<S> {
    fn new(items: S, ends: UnboundedSender<StreamEnd>) -> Self {
        Self { items, end: StreamEnd::Cancelled, ends }
    }
}

impl<S: tokio_stream::Stream + Unpin> tokio_stream::Stream for Told<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let item = Pin::new(&mut self.items).poll_next(context);
        if let Poll::Ready(None) = item {
            self.end = StreamEnd::Complete;
        }
        item
    }
}

impl<S> Drop for Told<S> {
    fn drop(&mut self) {
        // The test may be over.
        self.ends.send(self.end).ok();
    }
}

impl<B> Service<grpc_http::Request<B>> for Echo
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
        let ends = self.ends.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::default());
            Ok(match request.uri().path() {
                "/shard.test.Echo/Say" => grpc.unary(Say, request).await,
                "/shard.test.Echo/Fail" => grpc.unary(Fail, request).await,
                "/shard.test.Echo/Repeat" => grpc.server_streaming(Repeat(ends), request).await,
                "/shard.test.Echo/Join" => grpc.client_streaming(Join, request).await,
                "/shard.test.Echo/Chat" => grpc.streaming(Chat(ends), request).await,
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}

/// A tonic server in a thread of its own, which ends with the process, and what it tells of its streams.
fn server(leaf: Option<&Leaf>) -> (SocketAddr, UnboundedReceiver<StreamEnd>) {
    let address = SocketAddr::from(([127, 0, 0, 1], tests::port::free_port()));
    let (tell, ends) = unbounded_channel();
    let mut server = Server::builder();
    if let Some(leaf) = leaf {
        let identity = Identity::from_pem(&leaf.certificate_pem, &leaf.key_pem);
        server = server.tls_config(ServerTlsConfig::new().identity(identity)).expect("a usable certificate");
    }
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        runtime.block_on(server.serve(address, Echo { ends: tell })).expect("the port is free");
    });
    tests::wait_until("the gRPC server listens", tests::PATIENCE, || {
        std::net::TcpStream::connect(address).is_ok()
    });
    (address, ends)
}

type Client = tonic::client::Grpc<tonic::transport::Channel>;

async fn client(address: SocketAddr) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("a URI");
    tonic::client::Grpc::new(endpoint.connect().await.expect("the proxy speaks HTTP/2"))
}

/// As [`client`], over TLS to `a.example`.
async fn client_tls(address: SocketAddr, authority: &Authority) -> Client {
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authority.pem()))
        .domain_name("a.example");
    let endpoint = Endpoint::from_shared(format!("https://{address}")).expect("a URI");
    let channel = endpoint.tls_config(tls).expect("an authority's certificate").connect().await;
    tonic::client::Grpc::new(channel.expect("the proxy speaks HTTP/2 over TLS"))
}

fn path(method: &str) -> grpc_http::uri::PathAndQuery {
    format!("/shard.test.Echo/{method}").parse().expect("a path")
}

fn text(text: &str, count: u32) -> Text {
    Text { text: text.to_owned(), count }
}

async fn unary(
    client: &mut Client,
    method: &str,
    request: tonic::Request<Text>,
) -> Result<tonic::Response<Text>, Status> {
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    client.unary(request, path(method), ProstCodec::<Text, Text>::default()).await
}

/// Every kind of call once: `Say` with metadata, `Repeat`, `Join`, `Chat`, and calls that fail.
async fn every_kind_of_call(client: &mut Client, ends: &mut UnboundedReceiver<StreamEnd>) {
    let mut request = tonic::Request::new(text("hello", 1));
    request.metadata_mut().insert("x-metadata", "kept".parse().expect("ASCII"));
    let response = unary(client, "Say", request).await.expect("an answer");
    assert_eq!(response.metadata().get("x-metadata").map(|value| value.as_bytes()), Some(b"kept".as_slice()));
    assert_eq!(response.into_inner(), text("hello", 1));

    client.ready().await.expect("a live connection");
    let stream = client.server_streaming(
        tonic::Request::new(text("again", 1_000)),
        path("Repeat"),
        ProstCodec::<Text, Text>::default(),
    );
    let mut stream = stream.await.expect("a stream").into_inner();
    let mut received = 0;
    while let Some(item) = stream.next().await {
        assert_eq!(item.expect("an item"), text("again", received));
        received += 1;
    }
    assert_eq!(received, 1_000);
    assert_eq!(ends.recv().await, Some(StreamEnd::Complete));

    client.ready().await.expect("a live connection");
    let parts = tokio_stream::iter((0..500).map(|number| text("x", number)));
    let joined = client
        .client_streaming(tonic::Request::new(parts), path("Join"), ProstCodec::<Text, Text>::default())
        .await;
    let joined = joined.expect("an answer").into_inner();
    assert_eq!((joined.text.len(), joined.count), (500, 500));

    let (say, mut answers) = chat(client).await;
    // Each message leaves when the one before was answered: neither direction waits for the other's end.
    for number in 0..100 {
        say.send(text("turn", number)).await.expect("the call goes on");
        let answer = answers.next().await.expect("an answer").expect("no failure");
        assert_eq!(answer, text("turn", number));
    }
    drop(say);
    assert!(answers.next().await.is_none(), "the end of one side ends the other");
    answers.trailers().await.expect("status 0");
    assert_eq!(ends.recv().await, Some(StreamEnd::Complete));

    let status = unary(client, "Fail", tonic::Request::new(text("", 0))).await.expect_err("a failure");
    assert_eq!(
        (status.code(), status.message()),
        (Code::DataLoss, "100 % gone\nü"),
        "the upstream's status is never changed"
    );
    let status = unary(client, "Nothing", tonic::Request::new(text("", 0))).await.expect_err("a failure");
    assert_eq!(status.code(), Code::Unimplemented);
}

/// Opens a `Chat`.
async fn chat(client: &mut Client) -> (tokio::sync::mpsc::Sender<Text>, Streaming<Text>) {
    let (say, said) = tokio::sync::mpsc::channel(1);
    client.ready().await.expect("a live connection");
    let requests = tonic::Request::new(ReceiverStream::new(said));
    let answers = client.streaming(requests, path("Chat"), ProstCodec::<Text, Text>::default()).await;
    (say, answers.expect("a stream").into_inner())
}

#[test]
fn a_tonic_client_and_server_through_the_proxy() {
    let (upstream, mut ends) = server(None);
    let proxy = Proxy::start(Config::to_h2(upstream).route(|route| route.streaming = true));
    block_on(async {
        every_kind_of_call(&mut client(proxy.address()).await, &mut ends).await;
    });
}

#[test]
fn a_tonic_client_and_server_over_tls_on_both_sides() {
    let authority = Authority::default();
    let (upstream, mut ends) = server(Some(&authority.leaf(&["backend.example"])));
    let tls = ClusterTls {
        authority: authority.pem().to_owned(),
        server_name: "backend.example".to_owned(),
        identity: None,
    };
    let config = Config::to_h2(upstream)
        .cluster(|cluster| cluster.tls = Some(tls))
        .route(|route| route.streaming = true)
        .listener(|listener| {
            listener.tls =
                Some(ListenerTls { leaves: vec![authority.leaf(&["a.example"])], ..Default::default() });
        });
    let proxy = Proxy::start(config);
    block_on(async {
        let mut client = client_tls(proxy.address(), &authority).await;
        every_kind_of_call(&mut client, &mut ends).await;
    });
}

#[test]
fn a_call_that_the_client_takes_back_ends_at_the_server() {
    let (upstream, mut ends) = server(None);
    let proxy = Proxy::start(Config::to_h2(upstream).route(|route| route.streaming = true));
    block_on(async {
        let mut client = client(proxy.address()).await;
        client.ready().await.expect("a live connection");
        let stream = client.server_streaming(
            tonic::Request::new(text("endless", u32::MAX)),
            path("Repeat"),
            ProstCodec::<Text, Text>::default(),
        );
        let mut answers = stream.await.expect("a stream").into_inner();
        assert_eq!(answers.next().await.expect("an answer").expect("no failure"), text("endless", 0));
        drop(answers);
        assert_eq!(ends.recv().await, Some(StreamEnd::Cancelled));
        // The connection is as good as before.
        let response = unary(&mut client, "Say", tonic::Request::new(text("next", 1))).await;
        assert_eq!(response.expect("an answer").into_inner(), text("next", 1));
    });
}

#[test]
fn c41_a_tonic_client_reads_the_status_of_the_proxys_own_errors() {
    let dead = { tests::origin::echo().address() };
    let mut config = Config::to_h2(dead);
    config.routes = vec![
        Route::exact("dead", "/shard.test.Echo/Say").to("u"),
        Route::exact("denied", "/shard.test.Echo/Fail")
            .to("u")
            .having(|route| route.deny = vec!["127.0.0.0/8".to_owned()]),
    ];
    let proxy = Proxy::start(config);
    block_on(async {
        let mut client = client(proxy.address()).await;
        for (method, code) in
            [("Say", Code::Unavailable), ("Fail", Code::PermissionDenied), ("Join", Code::Unimplemented)]
        {
            let failed = unary(&mut client, method, tonic::Request::new(text("", 0))).await;
            let status = failed.expect_err("a failure");
            assert_eq!(status.code(), code, "{method}: {status:?}");
            assert!(!status.message().is_empty(), "{method}: {status:?}");
            assert!(status.metadata().contains_key("x-request-id"), "{method}: {status:?}");
        }
    });
}

/// A gRPC request by hand; what comes back, trailers-only or not, as (HTTP status, grpc-status, grpc-message).
#[track_caller]
fn status_of(response: &Response) -> (u16, Option<&str>) {
    (response.status, response.trailer("grpc-status").or_else(|| response.field("grpc-status")))
}

async fn call(proxy: &Proxy, path: &str, fields: &[(&'static str, &'static str)]) -> Response {
    let mut client = H2Client::connect(proxy.address()).await;
    let mut head = request("POST", "a.example", path);
    head.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
    head.headers_mut().insert("te", http::HeaderValue::from_static("trailers"));
    for (name, value) in fields {
        head.headers_mut().insert(*name, http::HeaderValue::from_static(value));
    }
    client.exchange(head, b"\0\0\0\0\0", None).await.expect("an answer")
}

#[test]
fn c41_errors_of_the_proxy_are_grpc_errors() {
    let dead = { tests::origin::echo().address() };
    let never = Origin::scripted(tests::OriginConn::wait_close);
    let alive = H2Origin::echo();
    let mut config = Config::to_h2(dead).and_cluster(tests::Cluster {
        protocol: tests::Protocol::Http2,
        ..tests::Cluster::new("slow", &[never.address()])
    });
    config.clusters.push(tests::Cluster {
        protocol: tests::Protocol::Http2,
        ..tests::Cluster::new("alive", &[alive.address()])
    });
    config.routes = vec![
        Route::prefix("dead", "/dead").to("u"),
        Route::prefix("slow", "/slow")
            .to("slow")
            .having(|route| route.timeout = Some(Duration::from_millis(400))),
        Route::prefix("denied", "/denied")
            .to("u")
            .having(|route| route.deny = vec!["127.0.0.0/8".to_owned()]),
        Route::prefix("small", "/small").to("alive").having(|route| route.body_bytes_max = Some(1)),
    ];
    let proxy = Proxy::start(config);
    block_on(async {
        for (path, wanted) in
            [("/dead", "14"), ("/slow", "4"), ("/denied", "7"), ("/small", "8"), ("/none", "12")]
        {
            for content_type in ["application/grpc", "application/grpc+proto"] {
                let response = call(&proxy, path, &[("content-type", content_type)]).await;
                assert_eq!(status_of(&response), (200, Some(wanted)), "{path}: {response:?}");
                assert_eq!(response.field("content-type"), Some(content_type), "{path}");
                assert!(response.body.is_empty(), "{path}: trailers only");
            }
        }
        // Not gRPC: an ordinary error.
        let response = call(&proxy, "/none", &[("content-type", "application/json")]).await;
        assert_eq!(response.status, 404);
    });
}

#[test]
fn c41_an_h1_request_of_the_type_gets_a_grpc_status_too() {
    let (_origin, proxy) = crate::reply_behind_proxy("nonsense\r\n\r\n");
    let request =
        "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n";
    let response = tests::client::once(proxy.address(), request);
    assert_eq!(status_of(&response).0, 200, "{response:?}");
    assert!(status_of(&response).1.is_some());
}

#[test]
fn c27_grpc_timeout_is_a_deadline() {
    let never = Origin::scripted(tests::OriginConn::wait_close);
    let proxy = Proxy::start(Config::to_h2(never.address()).route(|route| route.streaming = true));
    block_on(async {
        let start = std::time::Instant::now();
        let response = call(&proxy, "/x", &[("grpc-timeout", "500m")]).await;
        assert_eq!(status_of(&response), (200, Some("4")), "{response:?}");
        assert!(
            start.elapsed() > Duration::from_millis(400) && start.elapsed() < Duration::from_secs(3),
            "{:?}",
            start.elapsed()
        );
        for bad in ["", "5", "5x", "123456789S", "-1S", "S"] {
            let fields = [("grpc-timeout", bad)];
            let response = tokio::time::timeout(Duration::from_secs(3), call(&proxy, "/x", &fields)).await;
            let status = response.as_ref().map(|response| status_of(response).1.map(str::to_owned));
            // Refused, or ignored and then left to the client's own patience.
            assert!(
                matches!(status, Ok(Some(ref code)) if code == "3") || status.is_err(),
                "{bad:?}: {status:?}"
            );
        }
    });
}

#[test]
fn c41_after_the_head_a_reset_upstream_becomes_a_status_or_a_reset() {
    let origin = H2Origin::start(|request, mut respond| async move {
        let mut body = request.into_body();
        drain(&mut body).await?;
        let head = http::Response::builder()
            .header("content-type", "application/grpc")
            .body(())
            .expect("a legal head");
        let mut stream = respond.send_response(head, false)?;
        stream.send_data(bytes::Bytes::from_static(b"\0\0\0\0\x01x"), false)?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.send_reset(h2::Reason::INTERNAL_ERROR);
        Ok(())
    });
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        let mut head = request("POST", "a.example", "/x");
        head.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        match client.exchange(head, b"\0\0\0\0\0", None).await {
            Ok(response) => {
                assert!(response.trailer("grpc-status").is_some_and(|status| status != "0"), "{response:?}")
            }
            Err(error) => assert!(error.reason().is_some(), "{error}"),
        }
    });
}

#[test]
fn c12_te_trailers_reaches_a_grpc_upstream() {
    let origin = H2Origin::echo();
    let proxy = Proxy::start(Config::to_h2(origin.address()));
    let response = block_on(call(&proxy, "/x", &[]));
    let fields = response.json()["fields"].to_string();
    assert!(fields.contains("[\"te\",\"trailers\"]"), "{fields}");
}
