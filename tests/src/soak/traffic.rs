//! The soak's clients: every kind of connection and request that the proxy serves, each checking its own answers.
//! A worker asks, notes how it ended, and asks again until told to stop; it makes a request whole before it ends.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Ask;
use super::judge::{Ending, Event, Kind};
use crate::h1peer::{H1Client, Reading};
use crate::h2peer;
use crate::message::Response;
use crate::random::Random;
use crate::tls::{Authority, ClientTls};

/// Longest time for one request, backends that stand still included.
const PATIENCE: Duration = Duration::from_secs(20);
/// Streams at a time of one h2 connection.
const STREAMS: usize = 8;
/// Requests after which a client leaves an h2 connection.
const H2_REQUESTS: u32 = 400;
const HOST: &str = "a.example";

/// What all workers share.
pub(super) struct Traffic {
    pub(super) started: Instant,
    pub(super) stop: AtomicBool,
    pub(super) ids: AtomicU64,
    pub(super) plain: SocketAddr,
    pub(super) secure: SocketAddr,
    pub(super) authority: Authority,
    pub(super) events: Mutex<Sender<Event>>,
    pub(super) resumed: AtomicU64,
    pub(super) handshakes: AtomicU64,
}

/// How a worker connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Plain,
    /// TLS with a session cache of the worker's own.
    Resuming,
    /// TLS without one.
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Style {
    door: Door,
    keeps: bool,
    mix: &'static [Kind],
}

const MIXED: &[Kind] = &[
    Kind::Get,
    Kind::Get,
    Kind::Get,
    Kind::Get,
    Kind::PutSmall,
    Kind::PostSmall,
    Kind::Grpc,
    Kind::Download,
];
const SMALL: &[Kind] = &[Kind::Get, Kind::PostSmall];
const LARGE: &[Kind] = &[Kind::PutLarge, Kind::PostLarge];
const TUNNELS: &[Kind] = &[Kind::Tunnel];
const SLOW: &[Kind] = &[Kind::Download];

const fn style(door: Door, keeps: bool, mix: &'static [Kind]) -> Style {
    Style { door, keeps, mix }
}

/// The HTTP/1 workers.
const STYLES: &[Style] = &[
    style(Door::Plain, true, MIXED),
    style(Door::Plain, true, MIXED),
    style(Door::Plain, true, SMALL),
    style(Door::Plain, true, SMALL),
    style(Door::Plain, false, SMALL),
    style(Door::Plain, false, SMALL),
    style(Door::Plain, false, MIXED),
    style(Door::Plain, true, LARGE),
    style(Door::Resuming, true, LARGE),
    style(Door::Resuming, false, SMALL),
    style(Door::Full, false, SMALL),
    style(Door::Resuming, true, MIXED),
    style(Door::Plain, false, TUNNELS),
    style(Door::Plain, false, TUNNELS),
    style(Door::Resuming, false, TUNNELS),
    style(Door::Plain, true, SLOW),
    style(Door::Resuming, true, SLOW),
];

/// The HTTP/2 connections, each with [`STREAMS`] workers.
const H2_DOORS: &[Door] = &[Door::Resuming, Door::Resuming, Door::Plain, Door::Full];

/// Runs all workers on the calling thread until they are told to stop. `half` 0 takes HTTP/1, 1 takes HTTP/2.
pub(super) fn run(traffic: &Arc<Traffic>, half: usize, seed: u64) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    runtime.block_on(async {
        let mut workers = Vec::new();
        let mut seeds = Random::new(seed);
        if half == 0 {
            for style in STYLES {
                let (traffic, random) = (Arc::clone(traffic), Random::new(seeds.draw()));
                workers.push(tokio::spawn(h1_worker(traffic, *style, random)));
            }
        } else {
            for door in H2_DOORS {
                let (traffic, random) = (Arc::clone(traffic), Random::new(seeds.draw()));
                workers.push(tokio::spawn(h2_worker(traffic, *door, random)));
            }
        }
        for worker in workers {
            worker.await.expect("a worker ends");
        }
    });
}

impl Traffic {
    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Acquire)
    }

    fn note(&self, id: u64, kind: Kind, from: Duration, ending: Ending) {
        let event = Event { id, kind, from, to: self.started.elapsed(), ending };
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.send(event).expect("the judge outlives the traffic");
    }

    fn ask(&self, kind: Kind, random: &mut Random) -> Ask {
        let what = match kind {
            Kind::Grpc => "grpc",
            Kind::Download => "down",
            Kind::Tunnel => "tunnel",
            _ => "echo",
        };
        let cluster = if kind == Kind::Tunnel { "one" } else { *random.choose(&["one", "two"]) };
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let mut ask =
            Ask { cluster: cluster.to_owned(), what: what.to_owned(), id, pieces: 1, ..Ask::default() };
        if kind == Kind::Download {
            ask.bytes = usize::try_from(random.between(1, 512 * 1024)).expect("small");
            ask.pieces = usize::try_from(random.between(1, 20)).expect("small");
            ask.gap_ms = random.between(0, 40);
        }
        ask
    }

    fn tls(&self, alpn: &str) -> ClientTls {
        self.authority.client(HOST, &[alpn])
    }
}

/// Body bytes of a kind's request.
fn upload_bytes(kind: Kind, random: &mut Random) -> usize {
    let (least, most) = match kind {
        Kind::Get | Kind::Download | Kind::Tunnel => return 0,
        Kind::PutLarge | Kind::PostLarge => (100 * 1024, 600 * 1024),
        Kind::PutSmall | Kind::PostSmall | Kind::Grpc => (1, 16 * 1024),
    };
    usize::try_from(random.between(least, most)).expect("small")
}

/// What is wrong with a whole answer to `ask`, if anything.
fn fault_of(ask: &Ask, kind: Kind, sent: usize, seen: usize, response: &Response) -> Option<String> {
    if kind == Kind::Download {
        return (seen != ask.bytes).then(|| format!("{seen} of {} bytes", ask.bytes));
    }
    let sum = u64::from(ask.byte()) * u64::try_from(sent).unwrap_or(0);
    let wanted = format!("{} {sent} {sum}\n", ask.id);
    if response.body != wanted.as_bytes() {
        return Some(format!("{wanted:?} wanted, got {:?}", response.text()));
    }
    let is_finished = kind != Kind::Grpc
        || (response.trailer("grpc-status") == Some("0")
            && response.trailer("x-id") == Some(ask.id.to_string().as_str()));
    (!is_finished).then(|| format!("trailers {:?}", response.trailers))
}

fn refusal(response: &Response) -> Ending {
    Ending::Refused { status: response.status, code: response.code().unwrap_or_default() }
}

async fn h1_worker(traffic: Arc<Traffic>, style: Style, mut random: Random) {
    let resuming = traffic.tls("http/1.1");
    let mut kept: Option<H1Client> = None;
    while traffic.goes_on() {
        let kind = *random.choose(style.mix);
        let ask = traffic.ask(kind, &mut random);
        let from = traffic.started.elapsed();
        let attempt = async {
            let mut client = match kept.take() {
                Some(client) => client,
                None => match connect(&traffic, style.door, &resuming).await {
                    Ok(client) => client,
                    Err(error) => return (None, Ending::Silence(format!("no connection: {error}"))),
                },
            };
            let ending = h1_exchange(&mut client, &ask, kind, style.keeps, &mut random).await;
            (Some(client), ending)
        };
        let (client, (ending, stays)) = match tokio::time::timeout(PATIENCE, attempt).await {
            Ok((client, ending)) => (client, split(ending, style.keeps)),
            Err(_) => (None, (Ending::Wrong("no end within the patience".to_owned()), false)),
        };
        kept = client.filter(|_| stays);
        traffic.note(ask.id, kind, from, ending);
        let pause = random.between(0, 3);
        if pause == 0 {
            tokio::time::sleep(Duration::from_millis(random.between(0, 20))).await;
        }
    }
}

/// The ending, and whether the connection may go on.
fn split(ending: Ending, keeps: bool) -> (Ending, bool) {
    match ending {
        Ending::Wrong(word) if word == LAST => (Ending::Served, false),
        Ending::Served => (Ending::Served, keeps),
        other => (other, false),
    }
}

/// Marks a served request whose answer said `Connection: close`.
const LAST: &str = "served, the last one";

async fn connect(traffic: &Traffic, door: Door, resuming: &ClientTls) -> std::io::Result<H1Client> {
    if door == Door::Plain {
        return H1Client::connect(traffic.plain).await;
    }
    let fresh = (door == Door::Full).then(|| traffic.tls("http/1.1"));
    let client = H1Client::connect_tls(traffic.secure, fresh.as_ref().unwrap_or(resuming)).await?;
    traffic.handshakes.fetch_add(1, Ordering::Relaxed);
    traffic.resumed.fetch_add(u64::from(client.is_resumed), Ordering::Relaxed);
    Ok(client)
}

async fn h1_exchange(
    client: &mut H1Client,
    ask: &Ask,
    kind: Kind,
    keeps: bool,
    random: &mut Random,
) -> Ending {
    let is_fresh = client.exchanges == 0;
    let sent = upload_bytes(kind, random);
    let target = ask.target();
    let mut head = format!("{} {target} HTTP/1.1\r\nHost: {HOST}\r\n", kind.method());
    head += match (kind, keeps) {
        (Kind::Tunnel, _) => "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        (Kind::Grpc, _) => "TE: trailers\r\nConnection: TE\r\n",
        (_, false) => "Connection: close\r\n",
        _ => "",
    };
    let is_chunked = kind == Kind::Grpc || (sent > 0 && random.between(0, 2) == 0);
    let mut bytes = head.into_bytes();
    if is_chunked {
        bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
        let mut left = sent;
        while left > 0 {
            let piece = left.min(usize::try_from(random.between(1, 32 * 1024)).expect("small"));
            bytes.extend_from_slice(format!("{piece:x}\r\n").as_bytes());
            bytes.resize(bytes.len() + piece, ask.byte());
            bytes.extend_from_slice(b"\r\n");
            left -= piece;
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
    } else {
        if sent > 0 {
            bytes.extend_from_slice(format!("Content-Length: {sent}\r\n").as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.resize(bytes.len() + sent, ask.byte());
    }
    // The proxy may answer, and close, before it has read everything: the answer counts.
    let sending = client.send(&bytes).await;
    let mut response = match client.head().await {
        Ok(Some(response)) => response,
        Ok(None) if is_fresh => return Ending::Silence(format!("closed, sending ended {sending:?}")),
        Ok(None) => return Ending::Stale,
        Err(error) => return Ending::Wrong(format!("half a head: {error}")),
    };
    let backend = response.field("x-backend").map(str::to_owned);
    if kind == Kind::Tunnel && response.status == 101 {
        return tunnel(client, backend.unwrap_or_default(), random).await;
    }
    let gap = if kind == Kind::Download { random.between(0, 4) } else { 0 };
    let reading = Reading {
        byte: (kind == Kind::Download && backend.is_some()).then(|| ask.byte()),
        gap: Duration::from_millis(gap),
    };
    match client.body(kind.method(), &mut response, reading).await {
        Err(_) => Ending::Cut { backend: backend.unwrap_or_else(|| "the proxy".to_owned()) },
        Ok(_) if backend.is_none() => refusal(&response),
        Ok(seen) if seen.odd > 0 => Ending::Wrong(format!("{} foreign bytes", seen.odd)),
        Ok(seen) => match fault_of(ask, kind, sent, seen.bytes, &response) {
            Some(fault) => Ending::Wrong(fault),
            None if response.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) => {
                Ending::Wrong(LAST.to_owned())
            }
            None => Ending::Served,
        },
    }
}

/// Some rounds of bytes there and back, then FIN both ways.
async fn tunnel(client: &mut H1Client, backend: String, random: &mut Random) -> Ending {
    for _ in 0..random.between(1, 40) {
        let bytes = usize::try_from(random.between(1, 8000)).expect("small");
        let word: Vec<u8> = (0..bytes).map(|_| u8::try_from(random.draw() & 0xff).unwrap_or(0)).collect();
        if client.send(&word).await.is_err() {
            return Ending::Cut { backend };
        }
        match client.take(bytes).await {
            Ok(back) if back == word => {}
            Ok(_) => return Ending::Wrong("a tunnel gave back other bytes".to_owned()),
            Err(_) => return Ending::Cut { backend },
        }
        tokio::time::sleep(Duration::from_millis(random.between(0, 60))).await;
    }
    match client.finish().await {
        Ok(()) => {}
        Err(_) => return Ending::Cut { backend },
    }
    match client.more().await {
        Ok(0) => Ending::Served,
        Ok(_) => Ending::Wrong("bytes behind the tunnel's end".to_owned()),
        Err(_) => Ending::Cut { backend },
    }
}

async fn h2_worker(traffic: Arc<Traffic>, door: Door, mut random: Random) {
    let resuming = traffic.tls("h2");
    while traffic.goes_on() {
        let opened = tokio::time::timeout(PATIENCE, h2_connect(&traffic, door, &resuming)).await;
        let opened = opened.unwrap_or_else(|_| Err("no handshake within the patience".to_owned()));
        let (send, driver) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let id = traffic.ids.fetch_add(1, Ordering::Relaxed);
                let now = traffic.started.elapsed();
                traffic.note(id, Kind::Get, now, Ending::Silence(format!("no connection: {error}")));
                continue;
            }
        };
        let budget = Arc::new(AtomicU64::new(u64::from(H2_REQUESTS)));
        let streams: Vec<_> = (0..STREAMS)
            .map(|_| {
                let (traffic, send, budget) = (Arc::clone(&traffic), send.clone(), Arc::clone(&budget));
                tokio::spawn(h2_stream(traffic, send, budget, Random::new(random.draw())))
            })
            .collect();
        for stream in streams {
            stream.await.expect("a stream's worker ends");
        }
        drop(send);
        driver.abort();
    }
}

type Opened = (h2::client::SendRequest<Bytes>, tokio::task::JoinHandle<Result<(), h2::Error>>);

async fn h2_connect(traffic: &Traffic, door: Door, resuming: &ClientTls) -> Result<Opened, String> {
    let address = if door == Door::Plain { traffic.plain } else { traffic.secure };
    let tcp = tokio::net::TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    tcp.set_nodelay(true).map_err(|error| error.to_string())?;
    let wire: Box<dyn crate::h1peer::Wire> = if door == Door::Plain {
        Box::new(tcp)
    } else {
        let tls = if door == Door::Full { traffic.tls("h2") } else { resuming.clone() };
        let connector = tokio_rustls::TlsConnector::from(tls.config());
        let stream = connector.connect(tls.name(), tcp).await.map_err(|error| error.to_string())?;
        let is_resumed = stream.get_ref().1.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        traffic.handshakes.fetch_add(1, Ordering::Relaxed);
        traffic.resumed.fetch_add(u64::from(is_resumed), Ordering::Relaxed);
        Box::new(stream)
    };
    let (send, connection) = h2::client::Builder::new()
        .initial_window_size(1 << 18)
        .initial_connection_window_size(1 << 20)
        .handshake(wire)
        .await
        .map_err(|error| error.to_string())?;
    Ok((send, tokio::spawn(connection)))
}

/// One stream after the other, until the connection takes no more.
async fn h2_stream(
    traffic: Arc<Traffic>,
    send: h2::client::SendRequest<Bytes>,
    budget: Arc<AtomicU64>,
    mut random: Random,
) {
    let take = |left: u64| left.checked_sub(1);
    while traffic.goes_on()
        && budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
        && let Ok(mut ready) = send.clone().ready().await
    {
        let mix = if random.between(0, 30) == 0 { LARGE } else { MIXED };
        let kind = *random.choose(mix);
        let ask = traffic.ask(kind, &mut random);
        let from = traffic.started.elapsed();
        let attempt = h2_exchange(&mut ready, &ask, kind, &mut random);
        let ending = match tokio::time::timeout(PATIENCE, attempt).await {
            Ok(Some(ending)) => ending,
            // The connection took no more streams: nothing was asked.
            Ok(None) => return,
            Err(_) => Ending::Wrong("no end within the patience".to_owned()),
        };
        let is_over = ending == Ending::NotProcessed;
        traffic.note(ask.id, kind, from, ending);
        if is_over {
            return;
        }
    }
}

async fn h2_exchange(
    send: &mut h2::client::SendRequest<Bytes>,
    ask: &Ask,
    kind: Kind,
    random: &mut Random,
) -> Option<Ending> {
    let mut request = h2peer::request(kind.method(), HOST, &ask.target());
    if kind == Kind::Grpc {
        let fields = request.headers_mut();
        fields.insert("te", http::HeaderValue::from_static("trailers"));
        fields.insert("content-type", http::HeaderValue::from_static("application/grpc"));
    }
    let sent = upload_bytes(kind, random);
    let (future, mut stream) = send.send_request(request, sent == 0).ok()?;
    let body = vec![ask.byte(); sent];
    let sending = async { if sent > 0 { h2peer::send_all(&mut stream, &body, true).await } else { Ok(()) } };
    let answer = h2_answer(future, ask, kind, sent);
    let (_, ending) = tokio::join!(sending, answer);
    Some(ending)
}

async fn h2_answer(future: h2::client::ResponseFuture, ask: &Ask, kind: Kind, sent: usize) -> Ending {
    let (head, mut body) = match future.await {
        Ok(response) => response.into_parts(),
        Err(error) if error.reason() == Some(h2::Reason::REFUSED_STREAM) => return Ending::NotProcessed,
        Err(error) if error.is_go_away() && error.is_remote() => return Ending::NotProcessed,
        // A reset overtakes the head that it cuts.
        Err(error) if error.is_reset() && error.reason() == Some(h2::Reason::INTERNAL_ERROR) => {
            return Ending::Cut { backend: String::new() };
        }
        Err(error) => return Ending::Silence(format!("h2: {error:?}")),
    };
    let backend = head.headers.get("x-backend").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let mut response = Response { status: head.status.as_u16(), ..Response::default() };
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let lines = |fields: &http::HeaderMap| {
        fields.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect()
    };
    response.fields = lines(&head.headers);
    let bytes = match h2peer::drain(&mut body).await {
        Ok(bytes) => bytes,
        Err(_) => return Ending::Cut { backend: backend.unwrap_or_else(|| "the proxy".to_owned()) },
    };
    match body.trailers().await {
        Ok(trailers) => response.trailers = trailers.map(|fields| lines(&fields)).unwrap_or_default(),
        Err(_) => return Ending::Cut { backend: backend.unwrap_or_else(|| "the proxy".to_owned()) },
    }
    if backend.is_none() {
        response.body = bytes;
        return refusal(&response);
    }
    if kind == Kind::Download && bytes.iter().any(|byte| *byte != ask.byte()) {
        return Ending::Wrong("foreign bytes".to_owned());
    }
    let seen = bytes.len();
    response.body = if kind == Kind::Download { Vec::new() } else { bytes };
    match fault_of(ask, kind, sent, seen, &response) {
        Some(fault) => Ending::Wrong(fault),
        None => Ending::Served,
    }
}
