//! `shardctl endpoint`: an endpoint is taken out of service and back while the proxy runs.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::dir::TempDir;
use tests::metrics::Metrics;
use tests::proxy::binary;
use tests::tool::Process;
use tests::{Cluster, Config, Origin, PATIENCE, RawClient, message, wait_until};

/// A proxy of two cores that is asked over its unix socket, which may change things.
struct Operated {
    dir: TempDir,
    config: Config,
    process: Process,
    starts: usize,
}

impl Operated {
    #[track_caller]
    fn start(config: Config) -> Self {
        let dir = TempDir::new("operated");
        write(&dir, &config);
        let process = spawn(&dir, 0);
        let proxy = Self { dir, config, process, starts: 1 };
        proxy.wait_ready();
        proxy
    }

    #[track_caller]
    fn wait_ready(&self) {
        let is_ready = || self.try_get("/ready").is_some_and(|(status, _)| status == 200);
        wait_until("it is ready", PATIENCE, is_ready);
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("admin.sock")
    }

    fn try_get(&self, target: &str) -> Option<(u16, String)> {
        let mut stream = UnixStream::connect(self.socket()).ok()?;
        write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.split(' ').nth(1)?.parse().ok()?;
        Some((status, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    #[track_caller]
    fn metrics(&self) -> Metrics {
        Metrics::parse(&self.try_get("/metrics").expect("metrics").1)
    }

    /// `shardctl endpoint`, with its exit code and both outputs.
    fn shardctl(&self, action: &str, cluster: &str, address: &str) -> (Option<i32>, String, String) {
        let mut command = Command::new(binary("shardctl"));
        command.args(["endpoint", action, cluster, address]).arg("--socket").arg(self.socket());
        let done = command.output().expect("shardctl starts");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (done.status.code(), text(done.stdout), text(done.stderr))
    }

    /// The answer of a command that is obeyed.
    #[track_caller]
    fn order(&self, action: &str, address: SocketAddr) -> Value {
        let (code, out, err) = self.shardctl(action, "app/u", &address.to_string());
        assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
        serde_json::from_str(&out).expect("JSON")
    }

    #[track_caller]
    fn reload(&mut self, config: Config) {
        let applied = || self.metrics().sum("shard_reloads_total", &[("result", "applied")]);
        let snapshots = || self.metrics().sum("shard_snapshots_applied_total", &[]);
        let before = (applied(), snapshots());
        write(&self.dir, &config);
        self.process.signal(Signal::HUP);
        wait_until("it is in force on both cores", PATIENCE, || {
            applied() > before.0 && snapshots() >= before.1 + 2.0
        });
        self.config = config;
    }

    /// Another process takes over.
    #[track_caller]
    fn restart(&mut self) {
        let next = spawn(&self.dir, self.starts);
        self.starts += 1;
        let mut old = std::mem::replace(&mut self.process, next);
        assert!(old.wait(PATIENCE).success(), "{}", old.log());
        self.wait_ready();
    }

    fn connect(&self) -> RawClient {
        RawClient::connect(SocketAddr::from(([127, 0, 0, 1], self.config.listeners[0].port)))
    }

    /// One request on a connection of its own, so that either core may answer: who did, and the cookie that was set.
    #[track_caller]
    fn ask(&self, cookie: Option<&str>) -> (String, Option<String>) {
        let line = cookie.map_or_else(String::new, |cookie| format!("Cookie: sid={cookie}\r\n"));
        let mut client = self.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: a.example\r\n{line}\r\n"));
        let response = client.response("GET");
        assert_eq!(response.status, 200, "{}", response.text());
        let set = message::all(&response.fields, "set-cookie").first().map(|line| {
            let value = line.strip_prefix("sid=").expect("the session's cookie");
            value.split(';').next().expect("a value").to_owned()
        });
        (response.text(), set)
    }

    /// Whether the cores show the endpoint as draining, and whether an operator is named.
    #[track_caller]
    fn shown(&self, address: SocketAddr) -> Option<(u64, bool)> {
        let (_, page) = self.try_get("/clusters").expect("the page");
        let page: Value = serde_json::from_str(&page).expect("JSON");
        let clusters = page["clusters"].as_array()?.iter().filter(|cluster| cluster["name"] == "app/u");
        let mut rows = clusters.filter_map(|cluster| cluster["endpoints"].as_array()).flatten();
        let row = rows.find(|row| row["address"] == address.to_string().as_str())?;
        Some((row["cores_draining"].as_u64()?, row["drained_by_operator"].as_bool()?))
    }
}

fn write(dir: &TempDir, config: &Config) {
    for (path, content) in config.files() {
        dir.write(&format!("config/{path}"), content);
    }
}

fn spawn(dir: &TempDir, number: usize) -> Process {
    let mut command = Command::new(binary("shard-proxy"));
    command.arg("--config").arg(dir.path().join("config")).args(["--shards", "2", "--drain-timeout", "5"]);
    command.arg("--admin").arg(format!("unix:{}", dir.path().join("admin.sock").display()));
    command.arg("--restart-socket").arg(dir.path().join("restart.sock"));
    Process::start(&format!("shard-proxy-{number}"), dir, &mut command)
}

/// Origins that answer with their number.
fn origins(count: usize) -> Vec<Origin> {
    let reply = |number: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}");
    (0..count).map(|number| Origin::replying(reply(number))).collect()
}

fn addresses(origins: &[Origin]) -> Vec<SocketAddr> {
    origins.iter().map(Origin::address).collect()
}

fn plain(endpoints: &[SocketAddr]) -> Config {
    Config::with(Cluster::new("u", endpoints).rule("slow_start", json!(false)))
}

/// So many connections that each of two cores has one: the kernel spreads them by a hash.
const CLIENTS: u32 = 20;

/// A client that asks until it is over, and counts.
fn spawn_load(proxy: &Operated, is_over: &Arc<AtomicBool>) -> JoinHandle<u32> {
    let (mut client, is_over) = (proxy.connect(), Arc::clone(is_over));
    std::thread::spawn(move || {
        let mut served = 0;
        while !is_over.load(Ordering::Acquire) {
            client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
            assert_eq!(client.response("GET").status, 200);
            served += 1;
            tests::wait::pause(Duration::from_millis(2));
        }
        served
    })
}

#[test]
fn a_drained_endpoint_gets_nothing_and_no_request_fails() {
    let origins = origins(3);
    let endpoints = addresses(&origins);
    let proxy = Operated::start(plain(&endpoints));
    // Load that goes on over the changes; what fails ends the test.
    let is_over = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = (0..CLIENTS).map(|_| spawn_load(&proxy, &is_over)).collect();
    wait_until("all are used", PATIENCE, || origins.iter().all(|origin| origin.requests().len() > 50));
    let answer = proxy.order("drain", endpoints[0]);
    assert_eq!((&answer["state"], &answer["changed"]), (&json!("drained"), &json!(true)));
    assert_eq!(answer["endpoints_left"], 2);
    wait_until("both cores drain it", PATIENCE, || proxy.shown(endpoints[0]) == Some((2, true)));
    wait_until("its connections are closed", PATIENCE, || origins[0].connections_open() == 0);
    let before = origins[0].requests().len();
    let others = origins[1].requests().len();
    wait_until("the others go on", PATIENCE, || origins[1].requests().len() > others + 200);
    assert_eq!(origins[0].requests().len(), before);
    assert_eq!(proxy.order("drain", endpoints[0])["changed"], false, "it is so already");
    let drained =
        |proxy: &Operated| proxy.metrics().sum("shard_cluster_endpoints_drained", &[("cluster", "app/u")]);
    assert_eq!(drained(&proxy), 1.0);
    let answer = proxy.order("resume", endpoints[0]);
    assert_eq!((&answer["state"], &answer["endpoints_left"]), (&json!("as configured"), &json!(3)));
    wait_until("it is used again", PATIENCE, || origins[0].requests().len() > before);
    assert_eq!(drained(&proxy), 0.0);
    assert_eq!(proxy.shown(endpoints[0]), Some((0, false)));
    is_over.store(true, Ordering::Release);
    let served: u32 = load.into_iter().map(|thread| thread.join().expect("no request failed")).sum();
    assert!(served > 500, "{served}");
    let log = proxy.process.log();
    for line in ["drains, an operator asked for it", "an operator resumed"] {
        assert_eq!(log.matches(line).count(), 1, "{log}");
    }
}

#[test]
fn sticky_sessions_stay_for_the_overlap() {
    let origins = origins(3);
    let endpoints = addresses(&origins);
    let rules = json!({ "keys": ["keys/a"], "cookie": "sid", "overlap": "3s" });
    let config = Config::with(Cluster::new("u", &endpoints).rule("sticky", rules))
        .and_file("keys/a", "0123456789abcdef0123456789abcdef");
    let mut proxy = Operated::start(config.clone());
    let mut begun = std::iter::repeat_with(|| proxy.ask(None)).take(500);
    let (_, cookie) = begun.find(|(at, _)| at == "0").expect("one of 500 sessions is there");
    let cookie = cookie.expect("a new session gets a cookie");
    proxy.order("drain", endpoints[0]);
    for _ in 0..10 {
        assert_eq!(proxy.ask(Some(&cookie)), ("0".to_owned(), None), "the session stays");
        assert_ne!(proxy.ask(None).0, "0", "nothing new");
    }
    // A reload in between changes neither.
    proxy.reload(config.route(|route| *route = tests::Route::prefix("other", "/").to("u")));
    assert_ne!(proxy.ask(None).0, "0");
    let mut moved = None;
    wait_until("the overlap is over", PATIENCE, || {
        let (at, set) = proxy.ask(Some(&cookie));
        assert_eq!(at == "0", set.is_none());
        moved = set.map(|cookie| (at, cookie));
        moved.is_some()
    });
    let (at, cookie) = moved.expect("it has moved");
    proxy.order("resume", endpoints[0]);
    for _ in 0..10 {
        assert_eq!(proxy.ask(Some(&cookie)), (at.clone(), None), "and does not move back");
    }
}

#[test]
fn a_drain_holds_over_reloads_and_hot_restarts_until_the_config_lacks_the_endpoint() {
    let origins = origins(2);
    let endpoints = addresses(&origins);
    let mut proxy = Operated::start(plain(&endpoints));
    proxy.order("drain", endpoints[0]);
    let only_the_other = |proxy: &Operated| {
        for _ in 0..30 {
            assert_eq!(proxy.ask(None).0, "1", "{}", proxy.process.log());
        }
    };
    only_the_other(&proxy);
    proxy.reload(plain(&endpoints).route(|route| *route = tests::Route::prefix("other", "/").to("u")));
    only_the_other(&proxy);
    proxy.restart();
    only_the_other(&proxy);
    assert_eq!(proxy.shown(endpoints[0]), Some((2, true)));
    proxy.reload(plain(&endpoints[1..]));
    let log = proxy.process.log();
    let expected = format!("the config no longer has {}, which an operator drained", endpoints[0]);
    assert!(log.contains(&expected), "{log}");
    proxy.reload(plain(&endpoints));
    wait_until("it came back as the config has it", PATIENCE, || proxy.ask(None).0 == "0");
}

#[test]
fn a_request_in_flight_ends() {
    let (give, take) = std::sync::mpsc::channel::<()>();
    let take = std::sync::Mutex::new(take);
    let origin = Origin::scripted(move |connection| {
        if connection.request().is_some() {
            let waited = take.lock().expect("the test goes on").recv_timeout(PATIENCE);
            assert!(waited.is_ok() && connection.write("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone"));
        }
    });
    let proxy = Operated::start(plain(&[origin.address()]));
    let mut client = proxy.connect();
    client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(1);
    proxy.order("drain", origin.address());
    wait_until("it drains", PATIENCE, || proxy.shown(origin.address()).is_some_and(|(cores, _)| cores > 0));
    give.send(()).expect("the origin waits");
    assert_eq!(client.response("GET").text(), "done");
}

#[test]
fn what_cannot_be_drained_is_named_and_a_loopback_address_changes_nothing() {
    let origins = origins(1);
    let endpoints = addresses(&origins);
    let proxy = Operated::start(plain(&endpoints));
    let (code, _, err) = proxy.shardctl("drain", "u", &endpoints[0].to_string());
    assert!(code == Some(1) && err.contains("there is no cluster \"u\"; the config has app/u"), "{err}");
    let (code, _, err) = proxy.shardctl("drain", "app/u", "127.0.0.1:1");
    let expected = format!("the cluster has no endpoint 127.0.0.1:1; it has {}", endpoints[0]);
    assert!(code == Some(1) && err.contains(&expected), "{err}");
    // The last one may go; that is said.
    assert_eq!(proxy.order("drain", endpoints[0])["endpoints_left"], 0);
    wait_until("nobody answers", PATIENCE, || {
        let mut client = proxy.connect();
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let response = client.response("GET");
        response.status == 503 && response.code().as_deref() == Some("no_healthy_endpoint")
    });
    assert!(proxy.process.log().contains("no other endpoint is left"));
    let (_origin, other) = crate::echo_behind_proxy();
    let admin = other.config().admin;
    let post =
        format!("POST /endpoints/drain?cluster=app/u&address={} HTTP/1.1\r\nHost: x\r\n\r\n", endpoints[0]);
    assert_eq!(tests::client::once_h1(admin, post).status, 403);
    assert_eq!(other.admin("/endpoints/drain").status, 405);
}
