//! What callers see while a backend is stopped, flapping or cold, and while clients are slow: each story with its bound and
//! its figures, which are those of docs/resilience.md. Those that need a machine of their own are in load/neighbours.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::callers::Callers;
use tests::dir::TempDir;
use tests::steady::{Steady, Window};
use tests::tool::Process;
use tests::wait::pause;
use tests::{Cluster, Config, Origin, PATIENCE, Proxy, RawClient, Route, wait_until};

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// What a machine with other tests on it adds to a latency at most.
const SLACK: Duration = Duration::from_millis(100);

fn on_one_core(mut config: Config) -> Proxy {
    config.cores = 1;
    Proxy::start(config)
}

fn is_ejected(proxy: &Proxy, address: SocketAddr) -> bool {
    !proxy.endpoint(address)["ejected"].is_null()
}

fn share(part: usize, all: usize) -> f64 {
    let as_float = |n: usize| f64::from(u32::try_from(n).unwrap_or(u32::MAX));
    as_float(part) * 100.0 / as_float(all.max(1))
}

/// The latency of others is as it was, but for what the machine does.
#[track_caller]
fn unmoved(what: &str, before: &Window, after: &Window) {
    assert_eq!(after.failures, Vec::<String>::new(), "{what}");
    assert!(after.requests >= 50, "{what}: {after:?}");
    assert!(after.p99 <= before.p99 * 2 + SLACK, "{what}: before {before:?}, after {after:?}");
}

/// A backend in a process of its own.
fn backend(dir: &TempDir, name: &str) -> (Process, SocketAddr) {
    let port = tests::port::free_port();
    let mut command = Command::new(tests::proxy::binary("backend"));
    let process = Process::start(name, dir, command.arg(port.to_string()).arg(name));
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    wait_until("the backend listens", PATIENCE, || std::net::TcpStream::connect(address).is_ok());
    (process, address)
}

/// Stops one of three backends; gives the share of failed requests until it is out and the time to that.
fn one_of_three_stops(retries: Value) -> (f64, usize, Duration) {
    let dir = TempDir::new("stopped");
    let backends: Vec<_> = ["one", "two", "three"].iter().map(|name| backend(&dir, name)).collect();
    let addresses: Vec<_> = backends.iter().map(|(_, address)| *address).collect();
    let cluster = Cluster::new("u", &addresses).rule("outlier", json!({ "ejection": "2s" }));
    let config = Config::with(cluster).route(|all| {
        all.timeout = Some(Duration::from_millis(300));
        all.rules.insert("retries".to_owned(), retries);
    });
    let proxy = on_one_core(config);
    let callers = Callers::start(proxy.address(), "/", 10, Duration::from_millis(50));
    wait_until("all serve", PATIENCE, || {
        addresses.iter().all(|address| proxy.endpoint(*address)["connections_h1"].as_u64() > Some(0))
    });
    let (stopped, address) = &backends[0];
    let began = Instant::now();
    stopped.signal(Signal::STOP);
    wait_until("it is ejected", PATIENCE, || is_ejected(&proxy, *address));
    let detected = began.elapsed();
    let answers = callers.since(began);
    let failed = answers.iter().filter(|answer| answer.status != 200).count();
    stopped.signal(Signal::CONT);
    wait_until("it comes back", PATIENCE, || !is_ejected(&proxy, *address));
    let again = Instant::now();
    wait_until("a hundred more answers", PATIENCE, || callers.since(again).len() >= 100);
    let late = callers.since(again).iter().filter(|answer| answer.status != 200).count();
    assert_eq!(late, 0, "a process that goes on is sound");
    (share(failed, answers.len()), failed, detected)
}

#[test]
fn a_stopped_process_is_found_out_by_timeouts() {
    let (percent, failed, detected) = one_of_three_stops(json!(1));
    tests::note(&format!(
        "one of three stops, timeout 300 ms: {failed} requests fail ({percent:.1} %) in the {detected:?} until it is ejected"
    ));
    // Five in a row; P2C sends one at a time to an endpoint at which requests pile up, ten callers send some at once.
    assert!(failed <= 15 && detected < Duration::from_secs(5), "{failed} in {detected:?}");
}

#[test]
fn a_stopped_process_costs_nothing_where_a_slow_try_is_made_again() {
    let (percent, failed, detected) =
        one_of_three_stops(json!({ "per_try_timeout": "100ms", "on_timeout": true }));
    tests::note(&format!(
        "the same with a second try after 100 ms: {failed} fail ({percent:.1} %), ejected after {detected:?}"
    ));
    assert!(failed <= 2 && detected < Duration::from_secs(3), "{failed} in {detected:?}");
}

#[test]
fn a_flapping_endpoint_costs_nothing_that_may_be_repeated() {
    let sound: Vec<_> = (0..2).map(|_| Origin::replying(OK)).collect();
    let flapping = Origin::replying(OK);
    let address = flapping.address();
    let cluster = Cluster::new("u", &[sound[0].address(), sound[1].address(), address])
        .rule("outlier", json!({ "ejection": "1s" }));
    let proxy = on_one_core(Config::with(cluster));
    let callers = Callers::start(proxy.address(), "/", 10, Duration::from_millis(50));
    let began = Instant::now();
    let mut up = Some(flapping);
    for _ in 0..3 {
        drop(up.take());
        pause(Duration::from_secs(1));
        up = Some(Origin::scripted_at(address, |connection| {
            while connection.request().is_some() && connection.write(OK) {}
        }));
        pause(Duration::from_secs(1));
    }
    let answers = callers.since(began);
    let failed = answers.iter().filter(|answer| answer.status != 200).count();
    let slowest = answers.iter().map(|answer| answer.took).max().unwrap_or_default();
    tests::note(&format!(
        "one of three goes and comes each second: {failed} of {} requests fail, the slowest takes {slowest:?}",
        answers.len()
    ));
    assert!(answers.len() > 300 && failed == 0, "{failed} of {}", answers.len());
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
}

#[test]
fn a_cold_endpoint_gets_a_growing_share() {
    let warm: Vec<_> = (0..2).map(|_| Origin::replying(OK)).collect();
    let first = Origin::replying(OK);
    let address = first.address();
    let cluster = Cluster::new("u", &[warm[0].address(), warm[1].address(), address])
        .rule("balance", json!("round_robin"))
        .rule("outlier", json!({ "ejection": "1s" }))
        .rule("slow_start", json!({ "window": "4s" }));
    let proxy = on_one_core(Config::with(cluster));
    let callers = Callers::start(proxy.address(), "/", 10, Duration::from_millis(20));
    drop(first);
    wait_until("it is ejected", PATIENCE, || is_ejected(&proxy, address));
    // Cold: the first 40 requests take 60 ms each, as before caches are filled.
    let served = Arc::new(AtomicU32::new(0));
    let cold = {
        let served = Arc::clone(&served);
        Origin::scripted_at(address, move |connection| {
            while connection.request().is_some() {
                if served.fetch_add(1, Ordering::AcqRel) < 40 {
                    pause(Duration::from_millis(60));
                }
                if !connection.write(OK) {
                    return;
                }
            }
        })
    };
    wait_until("it serves again", PATIENCE, || !cold.requests().is_empty());
    let began = Instant::now();
    let part = |length: Duration| {
        let (own, start) = (cold.requests().len(), Instant::now());
        pause(length);
        let own = cold.requests().len() - own;
        let all = callers.since(start);
        // Of a fair third.
        (share(own, all.len()) * 3.0, all)
    };
    let (early, answers) = part(Duration::from_secs(1));
    wait_until("its slow start is over", PATIENCE, || proxy.endpoint(address)["slow_start_percent"] == 100);
    let window = began.elapsed();
    let (late, _) = part(Duration::from_secs(1));
    let slow = answers.iter().filter(|answer| answer.took >= Duration::from_millis(60)).count();
    tests::note(&format!(
        "a cold endpoint with slow_start 4 s gets {early:.0} % of a fair share in the first second, {late:.0} % after \
         {window:?}; {:.1} % of requests meet the cold one in that second",
        share(slow, answers.len())
    ));
    assert!(early <= 60.0, "{early} % of a fair share in the first second");
    assert!((80.0..=120.0).contains(&late), "{late} % after the window");
    assert!(answers.iter().all(|answer| answer.status == 200));
}

#[test]
fn slow_clients_and_slow_backends_leave_the_others_alone() {
    let trickling = Origin::scripted(|connection| {
        while connection.request().is_some() {
            for byte in OK.as_bytes() {
                pause(Duration::from_millis(50));
                if !connection.write([*byte]) {
                    return;
                }
            }
        }
    });
    let orders = Origin::replying(OK);
    let config = Config::to(orders.address())
        .and_cluster(Cluster::new("slow", &[trickling.address()]))
        .and_route(Route::exact("slow", "/slow").to("slow"))
        .listener(|listener| listener.header_timeout = Some(Duration::from_secs(2)));
    let proxy = on_one_core(config);
    let steady = Steady::start(proxy.address(), 4, 100);
    let before = steady.calmest(2, Duration::from_secs(1));
    // 200 heads, a byte in every 100 ms, and 40 requests to a backend that answers a byte in every 50 ms.
    let _callers = Callers::start(proxy.address(), "/slow", 40, Duration::from_millis(10));
    let mut heads: Vec<_> = (0..200).map(|_| RawClient::connect(proxy.address())).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let loris = {
        let stop = Arc::clone(&stop);
        std::thread::spawn(move || {
            for byte in b"GET / HTTP/1.1\r\nHost: a.example\r\nX: ".iter().chain(std::iter::repeat(&b'x')) {
                if stop.load(Ordering::Acquire) {
                    return heads
                        .into_iter()
                        .map(|mut head| head.try_response("GET").ok())
                        .collect::<Vec<_>>();
                }
                // Those that were refused already cannot be written to.
                heads.iter_mut().for_each(|head| drop(head.try_send([*byte])));
                pause(Duration::from_millis(100));
            }
            Vec::new()
        })
    };
    let after = steady.calmest(4, Duration::from_secs(1));
    stop.store(true, Ordering::Release);
    let ends = loris.join().expect("the slow clients end");
    tests::note(&format!(
        "200 slow heads and 40 slow answers at a time: p99 of others {:?} before, {:?} after",
        before.p99, after.p99
    ));
    unmoved("others", &before, &after);
    let wrong = ends.iter().flatten().filter(|response| response.status != 408).count();
    assert_eq!((ends.len(), wrong), (200, 0), "a slow head is answered with 408 or closed");
    assert!(trickling.requests().len() >= 40);
}
