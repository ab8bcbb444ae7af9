//! C30: hot restart. Sockets, the admin listener and ticket keys change hands, and no client notices.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use tests::tls::Authority;
use tests::{Config, Origin, PATIENCE, Proxy, RawClient, Route, origin, wait_until};

/// Clients that send requests without pause until stopped, and count what went wrong.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    failures: Vec<std::thread::JoinHandle<Vec<String>>>,
}

impl Load {
    fn start(address: SocketAddr, keep_alive: bool, clients: usize) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let failures = (0..clients)
            .map(|_| {
                let (stop, served) = (Arc::clone(&stop), Arc::clone(&served));
                std::thread::spawn(move || hammer(address, keep_alive, &stop, &served))
            })
            .collect();
        Self { stop, served, failures }
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::Acquire)
    }

    fn finish(self) -> Vec<String> {
        self.stop.store(true, Ordering::Release);
        self.failures.into_iter().flat_map(|thread| thread.join().expect("a client thread ends")).collect()
    }
}

fn hammer(address: SocketAddr, keep_alive: bool, stop: &AtomicBool, served: &AtomicUsize) -> Vec<String> {
    let mut failures = Vec::new();
    let connection = if keep_alive { "keep-alive" } else { "close" };
    let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: {connection}\r\n\r\n");
    let mut kept = None;
    while !stop.load(Ordering::Acquire) {
        let fresh = kept.is_none();
        let Some(mut client) = kept.take().or_else(|| connect(address)) else {
            failures.push("connect".to_owned());
            continue;
        };
        let sent = client.try_send(&request);
        match sent.map_err(|error| error.to_string()).and_then(|()| client.try_response("GET")) {
            Ok(response) if response.status == 200 => {
                served.fetch_add(1, Ordering::AcqRel);
                if keep_alive
                    && response.field("connection").is_none_or(|value| !value.eq_ignore_ascii_case("close"))
                {
                    kept = Some(client);
                }
            }
            Ok(response) => failures.push(format!("status {}", response.status)),
            // A kept connection may be closed at any time, before any byte of an answer; every client tries such a
            // request again on a fresh one (RFC 9112 §9.3.1).
            Err(_) if !fresh && client.rest().is_empty() => {}
            Err(error) => failures.push(format!("fresh {fresh}: {error}")),
        }
    }
    failures
}

fn connect(address: SocketAddr) -> Option<RawClient> {
    let tcp = std::net::TcpStream::connect(address).ok()?;
    tcp.set_read_timeout(Some(PATIENCE)).ok()?;
    Some(RawClient::over(tests::client::Stream::Plain(tcp)))
}

/// Both kinds of client, through whatever `restart` does with the proxy, some rounds of it.
#[track_caller]
fn under_load(cores: usize, rounds: usize, mut restart: impl FnMut(&mut Proxy, usize)) {
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    config.cores = cores;
    config.drain = Duration::from_secs(2);
    let mut proxy = Proxy::start(config);
    let loads = [Load::start(proxy.address(), false, 3), Load::start(proxy.address(), true, 3)];
    for round in 0..rounds {
        let before: Vec<usize> = loads.iter().map(Load::served).collect();
        restart(&mut proxy, round);
        wait_until(&format!("both kinds of client are served after restart {round}"), PATIENCE, || {
            loads.iter().zip(&before).all(|(load, before)| load.served() > before + 20)
        });
    }
    for load in loads {
        let failures = load.finish();
        assert!(failures.is_empty(), "{} failures, first {:?}", failures.len(), failures.first());
    }
}

#[test]
fn c30_five_restarts_under_load_lose_nothing() {
    under_load(2, 5, |proxy, _| proxy.hot_restart());
}

#[test]
fn c30_the_number_of_cores_may_change() {
    // A socket that nobody accepts from would swallow its share of the connections.
    let cores = [4, 1, 3, 2];
    under_load(2, cores.len(), |proxy, round| proxy.hot_restart_with_cores(cores[round]));
}

#[test]
fn c30_a_renamed_listener_keeps_its_queue() {
    under_load(2, 4, |proxy, round| {
        let mut config = proxy.config().clone();
        config.listeners[0].name = format!("name-{round}");
        proxy.reload(config);
    });
}

#[test]
fn a_successor_with_a_bad_config_leaves_the_old_process_serving() {
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    config.cores = 2;
    let mut proxy = Proxy::start(config.clone());
    let load = Load::start(proxy.address(), false, 2);
    let broken = config
        .clone()
        .route(|route| route.action = tests::config::Action::Forward(vec![("nowhere".to_owned(), 1)]));
    proxy.write_config(&broken);
    let mut successor = proxy.start_beside("bad-config", &[]);
    assert_eq!(successor.wait(PATIENCE).code(), Some(78), "{}", successor.log());
    // One that comes so far as to take the sockets, and then has no shard to start.
    proxy.write_config(&config);
    let other = tests::port::free_port();
    let holder = std::net::TcpListener::bind(("127.0.0.1", other)).expect("a free port");
    proxy.write_config(
        &config.clone().and_listener(tests::Listener { port: other, ..tests::Listener::new("taken") }),
    );
    let mut successor = proxy.start_beside("no-address", &[]);
    assert_eq!(successor.wait(PATIENCE).code(), Some(69), "{}", successor.log());
    assert!(
        successor.log().contains("\"taken\"") && successor.log().contains("listeners.yaml"),
        "{}",
        successor.log()
    );
    drop(holder);
    let before = load.served();
    wait_until("the old process serves", PATIENCE, || load.served() > before + 50);
    assert_eq!(proxy.admin("/ready").status, 200);
    proxy.write_config(&config);
    proxy.hot_restart();
    let before = load.served();
    wait_until("a good successor serves", PATIENCE, || load.served() > before + 50);
    let failures = load.finish();
    assert!(failures.is_empty(), "{} failures, first {:?}", failures.len(), failures.first());
}

#[test]
fn requests_in_flight_finish_in_the_old_process() {
    let origin = Origin::scripted(|connection| {
        while let Some(request) = connection.request() {
            if !connection.quiet_for(Duration::from_millis(600)) || !connection.echo(&request) {
                return;
            }
        }
    });
    let mut proxy = Proxy::start(Config::to(origin.address()));
    let mut client = proxy.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(1);
    proxy.hot_restart();
    assert_eq!(client.response("GET").status, 200);
    assert_eq!(proxy.get("/").status, 200);
}

#[test]
fn the_successor_serves_its_own_config_and_the_same_admin_address() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    let (version, pid) = (proxy.version(), proxy.process().pid());
    proxy.write_config(&config.and_route(Route::prefix("new", "/new").direct(418, "tea")));
    proxy.hot_restart();
    assert_ne!(proxy.process().pid(), pid);
    assert_ne!(proxy.version(), version);
    assert_eq!(proxy.get("/new").status, 418);
    proxy.process().signal(Signal::TERM);
    assert!(proxy.process().wait(PATIENCE).success());
    assert!(!proxy.dir().path().join("restart.sock").exists(), "the last process cleans up");
}

/// Asks over TLS and says whether the handshake resumed a session.
#[track_caller]
fn resumes(proxy: &Proxy, tls: &tests::tls::ClientTls) -> bool {
    let mut client = RawClient::connect_tls(proxy.address(), tls).expect("a handshake");
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    client.tls().expect("TLS").handshake_kind() == Some(rustls::HandshakeKind::Resumed)
}

#[test]
fn c39_sessions_resume_after_reload_restart_and_one_rotation() {
    let authority = Authority::default();
    let origin = origin::echo();
    let leaf = authority.leaf(&["a.example"]);
    let mut config = Config::to(origin.address()).tls(std::slice::from_ref(&leaf));
    config.cores = 2;
    let mut proxy = Proxy::start(config.clone());
    let client = authority.client("a.example", &["http/1.1"]);
    assert!(!resumes(&proxy, &client), "the first one");
    assert!(resumes(&proxy, &client));
    proxy.reload(config.clone().and_route(Route::prefix("x", "/x").direct(200, "x")));
    assert!(resumes(&proxy, &client), "after a reload");
    for restart in 0..3 {
        proxy.hot_restart();
        assert!(resumes(&proxy, &client), "after restart {restart}");
    }
    // Nothing of the keys is in the log: they travel as 160 hexadecimal digits.
    let longest = proxy.log().split(|c: char| !c.is_ascii_hexdigit()).map(str::len).max();
    assert!(longest.unwrap_or(0) < 100, "{}", proxy.log());
}

#[test]
fn c39_rotation_keeps_sessions() {
    let authority = Authority::default();
    let origin = origin::echo();
    let leaf = authority.leaf(&["a.example"]);
    let config = Config::to(origin.address()).tls(std::slice::from_ref(&leaf));
    let proxy = Proxy::start_with(config, &["--ticket-rotation", "2"]);
    let client = authority.client("a.example", &["http/1.1"]);
    let rotations = || proxy.metrics().sum("shard_ticket_rotations_total", &[]);
    assert!(!resumes(&proxy, &client), "the first one");
    let before = rotations();
    // A ticket outlives one rotation; each visit brings a new one.
    let mut visits = 0;
    while rotations() < before + 3.0 {
        assert!(resumes(&proxy, &client), "visit {visits} after {} rotations", rotations() - before);
        visits += 1;
        tests::wait::pause(Duration::from_millis(100));
    }
    // And not two: the ticket of now opens with no key after two more rotations.
    let (stale, before) = (client, rotations());
    wait_until("two rotations", PATIENCE, || rotations() >= before + 2.0);
    wait_until("another one, for a visit that fell on a rotation", PATIENCE, || rotations() >= before + 3.0);
    assert!(!resumes(&proxy, &stale), "a ticket does not live for ever");
}

#[test]
fn tls_clients_that_connect_during_a_restart_are_served() {
    let authority = Authority::default();
    let origin = origin::echo();
    let leaf = authority.leaf(&["a.example"]);
    let mut config = Config::to(origin.address()).tls(std::slice::from_ref(&leaf));
    config.drain = Duration::from_secs(5);
    let mut proxy = Proxy::start(config);
    let tls = authority.client("a.example", &["http/1.1"]);
    // Shaken hands with the old process, asked after it has begun to drain.
    let mut early = RawClient::connect_tls(proxy.address(), &tls).expect("a handshake");
    proxy.process().signal(Signal::TERM);
    wait_until("the drain has begun", PATIENCE, || proxy.log().contains("draining"));
    early.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let response = early.response("GET");
    assert_eq!(response.status, 200);
    assert_eq!(response.field("connection").map(str::to_ascii_lowercase).as_deref(), Some("close"));
    assert!(proxy.process().wait(PATIENCE).success());
}

#[test]
fn a_signal_to_reload_that_comes_while_a_successor_starts_is_obeyed() {
    let origin = origin::echo();
    let mut proxy = Proxy::start(Config::to(origin.address()));
    let mut next = proxy.start_beside("next", &[]);
    let pid = next.pid();
    wait_until("the successor minds its signals", PATIENCE, || {
        tests::procfs::minds(pid, Signal::HUP.as_raw())
    });
    wait_until("the successor serves", PATIENCE, || {
        assert!(next.status().is_none(), "{}", next.log());
        next.signal(Signal::HUP);
        next.log().contains("ready: version")
    });
    let mut old = proxy.replace_process(next);
    assert!(old.wait(PATIENCE).success(), "{}", old.log());
    assert_eq!(proxy.get("/").status, 200);
    proxy.wait_metrics("the config was loaded again", |metrics| {
        metrics.sum("shard_reloads_total", &[("result", "applied")]) >= 1.0
    });
}
