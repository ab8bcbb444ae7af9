//! C30 at full speed: hot restarts while thousands of new connections a second come in, while streams run, and while
//! connections wait in the queue of a process that stands still.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tests::h1peer::{H1Client, Reading};
use tests::tls::{Authority, ClientTls};
use tests::{Config, Listener, PATIENCE, Proxy, RawClient, Route, origin, wait_until};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";

/// Clients that connect anew for each request.
struct Flood {
    stop: AtomicBool,
    served: AtomicU64,
    resumed: AtomicU64,
    full: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Flood {
    fn failed(&self, what: String) {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    async fn once(&self, address: std::net::SocketAddr, tls: Option<&ClientTls>) {
        let opened = match tls {
            None => H1Client::connect(address).await,
            Some(tls) => H1Client::connect_tls(address, tls).await,
        };
        let mut client = match opened {
            Ok(client) => client,
            Err(error) => return self.failed(format!("connect: {error}")),
        };
        if tls.is_some() {
            let counter = if client.is_resumed { &self.resumed } else { &self.full };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let Err(error) = client.send(REQUEST).await {
            return self.failed(format!("send: {error}"));
        }
        match client.head().await {
            Ok(Some(mut response)) if response.status == 200 => {
                match client.body("GET", &mut response, Reading::FAST).await {
                    Ok(_) => drop(self.served.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => self.failed(format!("body: {error}")),
                }
            }
            other => self.failed(format!("answer: {other:?}")),
        }
    }
}

fn run_clients(
    flood: &Arc<Flood>,
    address: std::net::SocketAddr,
    clients: usize,
    tls: Option<ClientTls>,
) -> std::thread::JoinHandle<()> {
    let flood = Arc::clone(flood);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime can be made");
        runtime.block_on(async {
            let workers: Vec<_> = (0..clients)
                .map(|_| {
                    let (flood, tls) = (Arc::clone(&flood), tls.clone());
                    tokio::spawn(async move {
                        while !flood.stop.load(Ordering::Acquire) {
                            let once = flood.once(address, tls.as_ref());
                            if tokio::time::timeout(PATIENCE, once).await.is_err() {
                                flood.failed("no end within the patience".to_owned());
                            }
                        }
                    })
                })
                .collect();
            for worker in workers {
                worker.await.expect("a client ends");
            }
        });
    })
}

/// Answers with 60 bytes, ten a second.
fn slow_origin() -> tests::Origin {
    tests::Origin::scripted(|connection| {
        while connection.request().is_some() {
            if !connection.write("HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n") {
                return;
            }
            for _ in 0..60 {
                if !connection.quiet_for(Duration::from_millis(100)) || !connection.write("x") {
                    return;
                }
            }
        }
    })
}

/// A quick answer on both listeners, everything else from the slow origin.
fn restart_config(slow: std::net::SocketAddr, authority: &Authority) -> Config {
    let mut config =
        Config::to(slow).and_route(Route::exact("quick", "/").direct(200, "quick")).and_listener(Listener {
            tls: Some(tests::config::ListenerTls {
                leaves: vec![authority.leaf(&["a.example"])],
                ..tests::config::ListenerTls::default()
            }),
            ..Listener::new("tls")
        });
    config.routes.rotate_right(1);
    (config.cores, config.drain) = (2, Duration::from_secs(15));
    config
}

#[test]
fn c30_three_restarts_under_thousands_of_new_connections_a_second() {
    let _alone = crate::alone();
    let authority = Authority::default();
    let slow = slow_origin();
    let mut proxy = Proxy::start(restart_config(slow.address(), &authority));
    let flood = Arc::new(Flood {
        stop: AtomicBool::new(false),
        served: AtomicU64::new(0),
        resumed: AtomicU64::new(0),
        full: AtomicU64::new(0),
        failures: Mutex::default(),
    });
    // Six seconds each: they begin in one process and end in it, two restarts later.
    let mut streams: Vec<RawClient> = (0..8).map(|_| proxy.connect()).collect();
    for stream in &mut streams {
        stream.send("GET /slow HTTP/1.1\r\nHost: a.example\r\n\r\n");
    }
    let _all_there = slow.wait_request(8);
    let tls = authority.client("a.example", &["http/1.1"]);
    let mut threads = vec![run_clients(&flood, proxy.address(), 48, None)];
    threads.push(run_clients(&flood, proxy.listener("tls"), 2, Some(tls)));
    let started = Instant::now();
    let mut old = Vec::new();
    for restart in 0..3 {
        let before = flood.served.load(Ordering::Relaxed);
        wait_until("a thousand are served", PATIENCE * 2, || {
            flood.served.load(Ordering::Relaxed) > before + 1000
        });
        let next = proxy.start_beside(&format!("successor-{restart}"), &[]);
        wait_until("the successor serves", PATIENCE, || next.log().contains("ready: version"));
        old.push(proxy.replace_process(next));
    }
    let before = flood.served.load(Ordering::Relaxed);
    wait_until("a thousand more are served", PATIENCE * 2, || {
        flood.served.load(Ordering::Relaxed) > before + 1000
    });
    let took = started.elapsed();
    flood.stop.store(true, Ordering::Release);
    for thread in threads {
        thread.join().expect("a client thread ends");
    }
    for mut stream in streams {
        let response = stream.response("GET");
        assert!(response.complete && response.body.len() == 60, "a stream that runs on in the old process");
    }
    for mut process in old {
        let status = process.wait(PATIENCE * 2);
        assert!(status.success(), "{status}: {}", process.log());
    }
    let failures = std::mem::take(&mut *flood.failures.lock().unwrap_or_else(PoisonError::into_inner));
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    tests::note(&format!(
        "{} requests on connections of their own in {took:.1?}, {} TLS handshakes resumed, {} full, {} failures",
        count(&flood.served),
        count(&flood.resumed),
        count(&flood.full),
        failures.len()
    ));
    assert!(failures.is_empty(), "{} failures, first {:?}", failures.len(), failures.first());
    // Each of the two TLS clients begins without a ticket; all later ones open it, in whatever process.
    assert!(count(&flood.full) <= 4 && count(&flood.resumed) > 10, "tickets outlive a restart");
}

/// Clients that have connected and sent while the process stands still: they wait in the kernel's queue.
fn waiting_clients(proxy: &Proxy, count: usize) -> Vec<RawClient> {
    (0..count)
        .map(|_| {
            let mut client = proxy.connect();
            client.send(REQUEST);
            client
        })
        .collect()
}

#[track_caller]
fn all_served(clients: Vec<RawClient>) {
    for mut client in clients {
        assert_eq!(client.response("GET").status, 200);
    }
}

#[test]
fn c30_the_queue_of_a_process_that_is_told_to_end_is_served() {
    let _alone = crate::alone();
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    (config.cores, config.drain) = (2, Duration::from_secs(10));
    let mut proxy = Proxy::start(config);
    proxy.signal(Signal::STOP);
    let clients = waiting_clients(&proxy, 400);
    // The signal to end is the first thing that it sees when it runs again.
    proxy.signal(Signal::TERM);
    proxy.signal(Signal::CONT);
    all_served(clients);
    assert!(proxy.process().wait(PATIENCE).success());
}

#[test]
fn c30_the_queue_at_a_restart_is_served() {
    let _alone = crate::alone();
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    (config.cores, config.drain) = (2, Duration::from_secs(10));
    let mut proxy = Proxy::start(config);
    for restart in 0..3 {
        proxy.signal(Signal::STOP);
        let clients = waiting_clients(&proxy, 400);
        let next = proxy.start_beside(&format!("successor-{restart}"), &[]);
        proxy.signal(Signal::CONT);
        wait_until("the successor serves", PATIENCE, || next.log().contains("ready: version"));
        let mut old = proxy.replace_process(next);
        all_served(clients);
        assert!(old.wait(PATIENCE).success(), "{}", old.log());
    }
}
