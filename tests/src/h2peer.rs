//! Well-behaved HTTP/2 peers on the `h2` crate and a tokio runtime of the test's own: a client, and an origin that
//! runs in a thread. [`block_on`] runs a test's asynchronous part with a time limit.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::message::{FieldLines, Response, hash};
use crate::tls::ClientTls;

/// Limit of one asynchronous test.
const TEST_LIMIT: Duration = Duration::from_secs(60);

/// Runs `future` on a runtime of its own.
///
/// # Panics
/// When it does not end within a minute.
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let result = runtime.block_on(async { tokio::time::timeout(TEST_LIMIT, future).await });
    result.expect("the asynchronous part ends within a minute")
}

/// What ends an h2 exchange without a whole response.
pub type H2Error = h2::Error;

/// A client connection.
pub struct H2Client {
    send: SendRequest<Bytes>,
    driver: JoinHandle<Result<(), h2::Error>>,
}

impl H2Client {
    /// Prior knowledge over plain TCP.
    ///
    /// # Panics
    /// When nobody listens or the peer speaks something else.
    pub async fn connect(address: SocketAddr) -> Self {
        let tcp = TcpStream::connect(address).await.expect("somebody listens");
        tcp.set_nodelay(true).expect("a TCP socket");
        Self::over(tcp).await
    }

    /// Over TLS; `tls` must offer `h2`.
    ///
    /// # Panics
    /// When the handshake fails or the server does not choose `h2`.
    pub async fn connect_tls(address: SocketAddr, tls: &ClientTls) -> Self {
        let tcp = TcpStream::connect(address).await.expect("somebody listens");
        tcp.set_nodelay(true).expect("a TCP socket");
        let connector = tokio_rustls::TlsConnector::from(tls.config());
        let stream = connector.connect(tls.name(), tcp).await.expect("the handshake succeeds");
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()), "ALPN");
        Self::over(stream).await
    }

    async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (send, connection) = h2::client::Builder::new()
            .initial_window_size(1 << 20)
            .initial_connection_window_size(1 << 22)
            .handshake(io)
            .await
            .expect("the peer speaks HTTP/2");
        Self { send, driver: tokio::spawn(connection) }
    }

    /// Opens a stream; the body goes through the returned handle unless `end`.
    ///
    /// # Errors
    /// When the connection takes no more streams.
    pub async fn open(
        &mut self,
        request: Request<()>,
        end: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), H2Error> {
        let mut ready = self.send.clone().ready().await?;
        ready.send_request(request, end)
    }

    /// Whether the server announced extended CONNECT (RFC 8441 §3).
    #[must_use]
    pub fn extended_connect(&self) -> bool {
        self.send.is_extended_connect_protocol_enabled()
    }

    /// A whole exchange.
    ///
    /// # Errors
    /// When the stream or the connection is reset.
    pub async fn exchange(
        &mut self,
        request: Request<()>,
        body: &[u8],
        trailers: Option<HeaderMap>,
    ) -> Result<Response, H2Error> {
        let bodiless = body.is_empty() && trailers.is_none();
        let (future, mut stream) = self.open(request, bodiless).await?;
        let sending = async move {
            if !bodiless {
                send_all(&mut stream, body, trailers.is_none()).await?;
                if let Some(trailers) = trailers {
                    stream.send_trailers(trailers)?;
                }
            }
            Ok::<(), H2Error>(())
        };
        let (sent, response) = tokio::join!(sending, collect(future));
        // A server may answer and reset the rest of the upload (RFC 9113 §8.1).
        response.or_else(|error| sent.and(Err(error)))
    }

    /// `GET path` for `authority`.
    ///
    /// # Errors
    /// As [`Self::exchange`].
    pub async fn get(&mut self, authority: &str, path: &str) -> Result<Response, H2Error> {
        self.exchange(request("GET", authority, path), b"", None).await
    }

    /// Waits for the end of the connection.
    ///
    /// # Errors
    /// The fault that ended it.
    pub async fn closed(self) -> Result<(), H2Error> {
        drop(self.send);
        self.driver.await.unwrap_or(Ok(()))
    }
}

/// A request head.
///
/// # Panics
/// When the parts make no URI.
#[must_use]
pub fn request(method: &str, authority: &str, path: &str) -> Request<()> {
    let uri = format!("http://{authority}{path}");
    Request::builder().method(method).uri(uri).body(()).expect("method, authority and path are legal")
}

/// Sends `body` as the peer's windows allow.
///
/// # Errors
/// When the stream is reset meanwhile.
pub async fn send_all(stream: &mut SendStream<Bytes>, body: &[u8], end: bool) -> Result<(), H2Error> {
    let mut rest = Bytes::copy_from_slice(body);
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        let granted = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
        let Some(granted) = granted.transpose()? else {
            return Ok(());
        };
        let piece = rest.split_to(granted.min(rest.len()));
        stream.send_data(piece, end && rest.is_empty())?;
    }
    if end && body.is_empty() {
        stream.send_data(Bytes::new(), true)?;
    }
    Ok(())
}

/// Reads a response to its end.
///
/// # Errors
/// When the stream or the connection is reset before.
pub async fn collect(future: ResponseFuture) -> Result<Response, H2Error> {
    let (head, mut body) = future.await?.into_parts();
    let mut response = Response {
        status: head.status.as_u16(),
        version: "HTTP/2".to_owned(),
        fields: lines(&head.headers),
        ..Response::default()
    };
    response.body = drain(&mut body).await?;
    if let Some(trailers) = body.trailers().await? {
        response.trailers = lines(&trailers);
    }
    response.complete = true;
    Ok(response)
}

/// Reads a body to its end and opens the window as it goes.
///
/// # Errors
/// When the stream is reset before.
pub async fn drain(body: &mut RecvStream) -> Result<Vec<u8>, H2Error> {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

fn lines(fields: &HeaderMap) -> FieldLines {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    fields.iter().map(|(name, value)| (name.as_str().to_owned(), text(value.as_bytes()))).collect()
}

/// An h2c origin with prior knowledge, in a thread of its own. It ends with the process; dropping it stops accepts.
pub struct H2Origin {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
}

impl H2Origin {
    /// Runs `handler` for each request.
    ///
    /// # Panics
    /// When no port is free.
    #[must_use]
    pub fn start<H, F>(handler: H) -> Self
    where
        H: Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
        F: Future<Output = Result<(), H2Error>> + Send + 'static,
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a TCP socket");
        let address = listener.local_addr().expect("a bound socket has an address");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        std::thread::spawn({
            let seen = Arc::clone(&seen);
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("a runtime can be made");
                runtime.block_on(async {
                    let listener = TcpListener::from_std(listener).expect("a listening socket");
                    tokio::select! {
                        () = accept(listener, handler, seen) => {}
                        _ = stopped => {}
                    }
                });
            }
        });
        Self { address, seen, stop: Some(stop) }
    }

    /// An origin that answers with a JSON description of the request, like the h1 echo.
    #[must_use]
    pub fn echo() -> Self {
        Self::start(|request, mut respond| async move {
            let (head, mut body) = request.into_parts();
            let bytes = drain(&mut body).await?;
            let trailers = body.trailers().await?.map(|trailers| lines(&trailers));
            let text = serde_json::json!({
                "method": head.method.as_str(),
                "target": head.uri.path_and_query().map(http::uri::PathAndQuery::as_str),
                "authority": head.uri.authority().map(http::uri::Authority::as_str),
                "version": "HTTP/2",
                "fields": lines(&head.headers),
                "body_bytes": bytes.len(),
                "body_hash": hash(&bytes),
                "trailers": trailers.unwrap_or_default(),
            })
            .to_string();
            let response = http::Response::builder().header("content-type", "application/json").body(());
            let mut stream = respond.send_response(response.expect("a legal head"), false)?;
            send_all(&mut stream, text.as_bytes(), true).await
        })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `METHOD path` of each request that arrived.
    #[must_use]
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for H2Origin {
    fn drop(&mut self) {
        // The thread may have ended with a failing handler.
        self.stop.take().map(|stop| stop.send(()).is_ok());
    }
}

async fn accept<H, F>(listener: TcpListener, handler: H, seen: Arc<Mutex<Vec<String>>>)
where
    H: Fn(Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), H2Error>> + Send + 'static,
{
    while let Ok((tcp, _)) = listener.accept().await {
        let (handler, seen) = (handler.clone(), Arc::clone(&seen));
        tokio::spawn(async move {
            let mut connection =
                h2::server::Builder::new().enable_connect_protocol().handshake::<_, Bytes>(tcp).await?;
            while let Some(request) = connection.accept().await {
                let (request, respond) = request?;
                let line = format!("{} {}", request.method(), request.uri().path());
                seen.lock().unwrap_or_else(PoisonError::into_inner).push(line);
                tokio::spawn(handler(request, respond));
            }
            Ok::<(), H2Error>(())
        });
    }
}
