//! What a cluster that slows down and a mirror that does not answer do to clients that have nothing to do with them.
//!
//! Clients ask at a fixed rate through the proxy, and in the same windows others ask the same backend by another way: of
//! search without the proxy, which shows the machine's part; of mirrors through another proxy without one, and without any.
//! A figure is the p99 of a calm window: a quarter of the windows have a better one. What a rule of the proxy's does to its
//! clients it does in every window, and what else the machine does it does in some.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use serde_json::json;
use tests::callers::Callers;
use tests::dir::TempDir;
use tests::steady::{Steady, Window, median, set_nice};
use tests::tool::Process;
use tests::wait::pause;
use tests::{Cluster, Config, Origin, Proxy, Route};

use crate::floods::backend;

/// The proxy, the backends and the clients that are measured go first.
const NICE: i32 = -15;
const NICE_OF_SEARCHES: i32 = 5;
/// Quiet and slow in turn.
const ROUNDS: usize = 4;
/// In each of them.
const WINDOWS: usize = 4;
const WINDOW: Duration = Duration::from_millis(1000);
const TRIES: u32 = 3;
const CLIENTS: u32 = 8;
const RATE: u32 = 400;
/// From the moment that search slows down to the beginning of the first window: the cap is reached.
const RAMP: Duration = Duration::from_millis(400);
/// The searches of before have come back.
const RECOVERY: Duration = Duration::from_millis(3300);
/// What is less cannot be told from the machine's own doing: a wake-up of a thread takes 40 to 100 µs on a virtual machine,
/// and a request through the proxy waits for four. Where a backend answers at once that is more than a tenth of a p99; where
/// one works for 5 ms it is two per cent.
const FLOOR: Duration = Duration::from_micros(100);

/// Backends of `orders`: one answers at once, one works for 5 ms.
struct Orders {
    quick: SocketAddr,
    usual: SocketAddr,
    _processes: [Process; 2],
}

impl Orders {
    fn start(dir: &TempDir) -> Self {
        let (one, quick) = backend(dir, "quick", "0");
        let (other, usual) = backend(dir, "usual", "0");
        set_delay(usual, 5);
        Self { quick, usual, _processes: [one, other] }
    }

    /// A config that sends `/usual` to the second and what no other route takes to the first.
    fn config(&self) -> Config {
        Config::to(self.quick)
            .and_cluster(Cluster::new("usual", &[self.usual]))
            .and_route(Route::exact("usual", "/usual").to("usual"))
    }
}

/// Answers of a backend take so long from now on.
#[track_caller]
fn set_delay(address: SocketAddr, ms: u32) {
    assert_eq!(tests::client::get_h1(address, "a.example", &format!("/delay/{ms}")).status, 200);
}

/// A figure of a calm window, of each way.
fn calm<const N: usize>(windows: &[[Window; N]], figure: fn(&Window) -> Duration) -> [Duration; N] {
    std::array::from_fn(|way| {
        let mut all: Vec<Duration> = windows.iter().map(|window| figure(&window[way])).collect();
        all.sort_unstable();
        all[all.len() / 4]
    })
}

/// How far the p99 of one way's windows lie apart, the best and the worst quarter aside. What moves it by less cannot be
/// told from what moves it when nothing changes.
fn spread<const N: usize>(windows: &[[Window; N]], way: usize) -> Duration {
    let mut all: Vec<Duration> = windows.iter().map(|window| window[way].p99).collect();
    all.sort_unstable();
    all[all.len() * 3 / 4].saturating_sub(all[all.len() / 4])
}

/// Nobody failed, and each way has been asked.
#[track_caller]
fn all_served<const N: usize>(windows: &[[Window; N]]) {
    let failures: Vec<&String> = windows.iter().flatten().flat_map(|window| &window.failures).collect();
    assert!(failures.is_empty(), "others failed: {failures:?}");
    let fewest = windows.iter().flatten().map(|window| window.requests).min();
    assert!(fewest >= Some(50), "at least {fewest:?} requests in a window");
}

/// A p99 by one way or at one time, and what it has become by the other.
struct Moved {
    what: String,
    before: Duration,
    after: Duration,
    percent_max: u32,
    /// What the machine adds by itself, as the clients without the proxy see it.
    machine: Duration,
}

impl Moved {
    fn is_within(&self) -> bool {
        self.after <= self.allowed()
    }

    fn allowed(&self) -> Duration {
        self.before + (self.before * self.percent_max / 100).max(FLOOR) + self.machine
    }

    fn note(&self) {
        let Self { what, before, after, machine, .. } = self;
        let allowed = self.allowed();
        tests::note(&format!(
            "p99 of orders ({what}): {before:?}, then {after:?}; up to {allowed:?}, {machine:?} of it for the machine's part"
        ));
    }
}

/// Measures, and once more where it is too much: what a rule of the proxy's does it does each time.
#[track_caller]
fn judge(mut measure: impl FnMut() -> Vec<Moved>) {
    for left in (0..TRIES).rev() {
        let all = measure();
        all.iter().for_each(Moved::note);
        let Some(moved) = all.iter().find(|moved| !moved.is_within()) else { return };
        assert!(left > 0, "{}: p99 goes from {:?} to {:?}", moved.what, moved.before, moved.after);
    }
}

/// Calls `work` as a thread that gives way to those that are measured.
fn behind<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_nice(NICE_OF_SEARCHES);
            work()
        });
        thread.join().expect("it starts")
    })
}

#[test]
fn search_slows_down_and_orders_do_not() {
    let _alone = crate::alone();
    set_nice(NICE);
    let dir = TempDir::new("search");
    let orders = Orders::start(&dir);
    let (_search, search) = backend(&dir, "search", "20");
    set_delay(search, 80);
    let capped = Cluster::new("search", &[search]).rule("in_flight_max", json!(20));
    let mut config =
        orders.config().and_cluster(capped).and_route(Route::exact("search", "/search").to("search"));
    config.routes.reverse();
    let proxy = Proxy::start(config);
    let steady = [
        Steady::start(proxy.address(), CLIENTS, RATE),
        Steady::start(orders.quick, CLIENTS, RATE),
        Steady::asking("/usual", proxy.address(), CLIENTS, RATE),
        Steady::asking("/usual", orders.usual, CLIENTS, RATE),
    ];
    let windows = || (0..WINDOWS).map(|_| Steady::windows(steady.each_ref(), WINDOW));
    let searches = behind(|| Callers::start(proxy.address(), "/search", 40, Duration::from_millis(200)));
    pause(WINDOW);
    let mut answers = Vec::new();
    judge(|| {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            before.extend(windows());
            let began = Instant::now();
            set_delay(search, 3000);
            pause(RAMP);
            after.extend(windows());
            set_delay(search, 80);
            pause(RECOVERY);
            answers.extend(searches.since(began));
        }
        all_served(&before);
        all_served(&after);
        let loud = [0, 2].map(|way| spread(&before, way));
        let (before, after) = (calm(&before, |window| window.p99), calm(&after, |window| window.p99));
        let moved = |(way, what): (usize, &str)| Moved {
            what: format!("{what}, search from 80 ms to 3 s"),
            before: before[way],
            after: after[way],
            percent_max: 10,
            // A request through the proxy goes two ways like that of a client without it.
            machine: after[way + 1].saturating_sub(before[way + 1]) * 2 + loud[way / 2],
        };
        [(0, "at once"), (2, "5 ms")].map(moved).into()
    });
    drop(searches);
    let refused = answers.iter().filter(|answer| answer.code.as_deref() == Some("in_flight_limit"));
    let (refusal, count) = (median(refused.clone().map(|answer| answer.took)), refused.count());
    let slowest = answers.iter().map(|answer| answer.took).max().unwrap_or_default();
    tests::note(&format!(
        "{count} of {} searches refused, in {refusal:?}; the slowest takes {slowest:?}",
        answers.len()
    ));
    assert!(count > 500, "{count} of {} are refused at once", answers.len());
    assert!(refusal < Duration::from_millis(1), "a refusal takes {refusal:?}");
    assert!(slowest < Duration::from_millis(3500), "nothing waits in a queue: {slowest:?}");
    proxy.wait_metrics("there is no retry storm", |metrics| {
        let of = |name: &str| metrics.sum(name, &[("cluster", "app/search")]);
        of("shard_cluster_in_flight") == 0.0 && of("shard_cluster_retries_total") == 0.0
    });
}

/// p99 of primaries with a mirror at `mirror`, beside that without one.
fn with_mirror(orders: &Orders, what: &str, mirror: SocketAddr) {
    let mut plain = orders.config();
    let mut mirrored = orders.config().and_cluster(Cluster::new("m", &[mirror]));
    for route in &mut mirrored.routes {
        route.rules.insert("mirror".to_owned(), json!({ "cluster": "m" }));
    }
    for config in [&mut plain, &mut mirrored] {
        config.routes.reverse();
    }
    let (mut plain, mut mirrored) = (Proxy::start(plain), Proxy::start(mirrored));
    let pids = [plain.process().pid(), mirrored.process().pid()];
    let ways = [plain.address(), mirrored.address()];
    let steady = [
        Steady::start(ways[0], CLIENTS, RATE),
        Steady::start(ways[1], CLIENTS, RATE),
        Steady::start(orders.quick, CLIENTS, RATE),
        Steady::asking("/usual", ways[0], CLIENTS, RATE),
        Steady::asking("/usual", ways[1], CLIENTS, RATE),
        Steady::asking("/usual", orders.usual, CLIENTS, RATE),
    ];
    pause(WINDOW);
    judge(|| {
        let windows: Vec<_> =
            (0..ROUNDS * WINDOWS).map(|_| Steady::windows(steady.each_ref(), WINDOW)).collect();
        all_served(&windows);
        let p99 = calm(&windows, |window| window.p99);
        let p50 = calm(&windows, |window| window.p50);
        let moved = |(way, name): (usize, &str)| Moved {
            what: format!("{name}, {what} mirror"),
            before: p99[way],
            after: p99[way + 1],
            percent_max: 2,
            machine: p99[way + 2].saturating_sub(p50[way + 2]),
        };
        [(0, "at once"), (3, "5 ms")].map(moved).into()
    });
    let cpu = pids.map(|pid| tests::procfs::usage(pid).expect("it runs").cpu);
    let [of_plain, of_mirrored] = [&plain, &mirrored].map(|proxy| proxy.metrics());
    let requests = [&of_plain, &of_mirrored].map(|metrics| metrics.sum("shard_cluster_requests_total", &[]));
    tests::note(&format!("  processor time {cpu:?} for {requests:?} requests without and with it"));
    let ends = ["failed", "skipped"]
        .map(|end| of_mirrored.sum(&format!("shard_cluster_mirrors_{end}_total"), &[("cluster", "app/m")]));
    assert!(ends.iter().sum::<f64>() > 1000.0, "they were to be mirrored: {ends:?}");
}

/// Orders with mirrors at each of these, one after the other.
fn with_mirrors(mirrors: &[(&str, SocketAddr)]) {
    let _alone = crate::alone();
    set_nice(NICE);
    let dir = TempDir::new("mirror");
    let orders = Orders::start(&dir);
    for (what, address) in mirrors {
        with_mirror(&orders, what, *address);
    }
}

#[test]
fn c50_a_mirror_that_is_dead_or_silent_does_not_move_the_primary() {
    let silent = Origin::scripted(|connection| while connection.request().is_some() {});
    let dead = SocketAddr::from(([127, 0, 0, 1], tests::port::free_port()));
    with_mirrors(&[("dead", dead), ("silent", silent.address())]);
}

#[test]
fn c50_a_mirror_that_never_reads_or_resets_does_not_move_the_primary() {
    // Nobody accepts what connects to it, so nobody reads.
    let deaf = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let resetting = Origin::scripted(|connection| {
        if connection.head().is_some() {
            connection.reset();
        }
    });
    let address = deaf.local_addr().expect("it is bound");
    with_mirrors(&[("deaf", address), ("resetting", resetting.address())]);
}

#[test]
fn c50_a_mirror_that_answers_a_byte_a_second_does_not_move_the_primary() {
    let dripping = Origin::scripted(|connection| {
        let answers =
            connection.head().is_some() && connection.write("HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n");
        while answers && connection.quiet_for(Duration::from_secs(1)) && connection.write("z") {}
    });
    with_mirrors(&[("dripping", dripping.address())]);
}
