//! The admin listener: what it shows, who may ask, and that asking disturbs nobody.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use serde_json::Value;
use tests::h2peer::{H2Client, block_on};
use tests::{Config, Origin, PATIENCE, Proxy, Route, origin, wait_until};

/// An origin that takes requests and never answers.
fn silent() -> Origin {
    Origin::scripted(|connection| {
        if connection.request().is_some() {
            connection.wait_close();
        }
    })
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

#[test]
fn open_connections_are_listed() {
    let origin = silent();
    let mut config = Config::to(origin.address());
    config.cores = 2;
    let proxy = Proxy::start(config);
    let mut busy = proxy.connect();
    busy.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(1);
    let _quiet = proxy.connect();
    let peer = |client: &tests::client::Stream| client.tcp().local_addr().expect("connected").to_string();
    let busy = busy.into_stream();
    let mine = peer(&busy);
    let pages = || proxy.admin("/connections").json();
    wait_until("both are listed", PATIENCE, || list(&pages(), "connections").len() == 2);
    let page = pages();
    let row = list(&page, "connections").iter().find(|row| row["client"] == mine.as_str());
    let row = row.unwrap_or_else(|| panic!("{mine} is not in {page}"));
    assert_eq!(row["listener"], "main");
    assert_eq!(row["protocol"], "h1");
    assert_eq!((row["requests"].as_u64(), row["in_flight"].as_u64()), (Some(1), Some(1)));
    assert!(row["age_ms"].as_u64().is_some());
    assert_eq!(list(&page, "silent_cores").len(), 0);
    drop(busy);
    wait_until("the closed one is gone", PATIENCE, || list(&pages(), "connections").len() == 1);
}

#[test]
fn h2_connections_count_their_streams() {
    let (_origin, proxy) = crate::echo_behind_proxy();
    block_on(async {
        let mut client = H2Client::connect(proxy.address()).await;
        for _ in 0..5 {
            assert_eq!(client.get("a.example", "/").await.expect("an answer").status, 200);
        }
        let page = proxy.admin("/connections").json();
        let row = &list(&page, "connections")[0];
        assert_eq!((row["protocol"].as_str(), row["requests"].as_u64()), (Some("h2"), Some(5)));
        assert_eq!(row["in_flight"].as_u64(), Some(0));
    });
}

#[test]
fn a_long_list_is_bounded_and_says_so() {
    let (_origin, proxy) = crate::echo_behind_proxy();
    let held: Vec<_> = (0..2100).map(|_| proxy.connect()).collect();
    let page = || proxy.admin("/connections").json();
    wait_until("all are accepted", PATIENCE, || {
        let page = page();
        let left_off = page["left_off"].as_u64().and_then(|count| usize::try_from(count).ok());
        list(&page, "connections").len() + left_off.unwrap_or(0) == held.len()
    });
    assert_eq!(list(&page(), "connections").len(), 2000);
}

#[test]
fn clusters_show_endpoints_with_their_work() {
    let origin = silent();
    let mut config = Config::to(origin.address());
    config.cores = 2;
    let proxy = Proxy::start(config);
    let mut clients: Vec<_> = (0..4).map(|_| proxy.connect()).collect();
    for (at, client) in clients.iter_mut().enumerate() {
        client.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
        let _seen = origin.wait_request(at + 1);
    }
    let page = proxy.admin("/clusters").json();
    let cluster = &list(&page, "clusters")[0];
    assert_eq!(cluster["name"], "app/u");
    let endpoint = &list(cluster, "endpoints")[0];
    assert_eq!(endpoint["address"], origin.address().to_string());
    assert_eq!((endpoint["in_flight"].as_u64(), endpoint["connections_h1"].as_u64()), (Some(4), Some(4)));
    assert_eq!(endpoint["cores"], endpoint["cores_available"]);
}

#[test]
fn c43_generations_go_when_nobody_holds_them() {
    let origin = silent();
    let config = Config::to(origin.address()).and_route(Route::prefix("quick", "/quick").direct(200, "ok"));
    let mut proxy = Proxy::start(config.clone());
    let mut holder = proxy.connect();
    holder.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(1);
    let first = proxy.version();
    for round in 0..5 {
        proxy
            .reload(config.clone().and_route(Route::prefix("turn", "/turn").direct(200, &round.to_string())));
    }
    let generations = || {
        let page = proxy.admin("/generations").json();
        list(&list(&page, "cores")[0], "generations").to_vec()
    };
    // The request in flight keeps its own; those between have gone, though their cluster was not used again.
    wait_until("two generations are left", PATIENCE, || generations().len() == 2);
    let rows = generations();
    let old =
        rows.iter().find(|row| row["version"] == first.as_str()).expect("held by the request in flight");
    assert_eq!((old["current"].as_bool(), old["holders"].as_u64() > Some(0)), (Some(false), true));
    assert!(rows.iter().any(|row| row["version"] == proxy.version().as_str() && row["current"] == true));
    proxy.wait_metrics("the gauge says so, too", |metrics| {
        (metrics.sum("shard_core_snapshots", &[]) - 2.0).abs() < f64::EPSILON
    });
    drop(holder);
    wait_until("the current one is left", PATIENCE, || generations().len() == 1);
}

#[test]
fn process_metrics_are_there_and_make_sense() {
    let (_origin, proxy) = crate::echo_behind_proxy();
    let metrics = proxy.metrics();
    for (name, least) in [
        ("shard_build_info", 1.0),
        ("shard_config_info", 1.0),
        ("shard_shards_running", 1.0),
        ("shard_core_driver_info", 1.0),
        ("process_open_fds", 5.0),
        ("process_max_fds", 64.0),
        ("process_resident_memory_bytes", 1e6),
        ("process_threads", 3.0),
    ] {
        assert!(metrics.sum(name, &[]) >= least, "{name}: {}", metrics.sum(name, &[]));
    }
    for name in [
        "shard_reloads_total",
        "shard_series_overflow_total",
        "shard_session_ring_points",
        "shard_session_rings_dropped_total",
        "shard_secrets_locked",
        "shard_uptime_seconds",
    ] {
        assert!(metrics.series(name, &[]) > 0, "{name}");
    }
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let started = metrics.sum("process_start_time_seconds", &[]);
    assert!((started - now).abs() < 120.0, "{started} at {now}");
    assert!(metrics.series("shard_config_info", &[("version", &proxy.version())]) == 1);
}

#[test]
fn the_unix_socket_is_private_stale_files_go_and_live_ones_stay() {
    let origin = origin::echo();
    let dir = tests::dir::TempDir::new("admin-unix");
    let path = dir.path().join("admin.sock");
    // A stale file, as a killed process leaves it.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let unix = format!("unix:{}", path.display());
    let config = Config::to(origin.address());
    for (path, content) in config.files() {
        dir.write(&format!("config/{path}"), content);
    }
    let start = |name: &str| {
        let mut command = std::process::Command::new(tests::proxy::binary("shard-proxy"));
        command.arg("--config").arg(dir.path().join("config")).args(["--shards", "1", "--admin", &unix]);
        tests::tool::Process::start(name, &dir, &mut command)
    };
    let ask = |page: &str| -> Option<String> {
        let mut stream = UnixStream::connect(&path).ok()?;
        write!(stream, "GET {page} HTTP/1.1\r\nHost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    let mut first = start("first");
    wait_until("it is ready", PATIENCE, || {
        ask("/ready").is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
    });
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    let mut second = start("second");
    assert_eq!(second.wait(PATIENCE).code(), Some(69), "{}", second.log());
    assert!(
        ask("/ready").is_some_and(|answer| answer.starts_with("HTTP/1.1 200")),
        "the live one keeps its socket"
    );
    first.signal(Signal::TERM);
    assert!(first.wait(PATIENCE).success());
    assert!(!path.exists(), "a clean end leaves no file");
}

#[test]
fn slow_and_silent_clients_do_not_keep_others_out() {
    let (_origin, proxy) = crate::echo_behind_proxy();
    let admin = proxy.config().admin;
    // Of 16 places; one or two may still belong to the readiness checks of the start.
    let silent: Vec<_> = (0..12).map(|_| std::net::TcpStream::connect(admin).expect("accepted")).collect();
    assert_eq!(proxy.admin("/ready").status, 200);
    // With all places taken a client is turned away at once, and let in when the silent ones have run out of time.
    let more: Vec<_> = (0..8).map(|_| std::net::TcpStream::connect(admin).expect("accepted")).collect();
    proxy.wait_metrics("a place is free again", |_| true);
    drop((silent, more));
}

#[test]
fn only_get_is_answered() {
    let (_origin, proxy) = crate::echo_behind_proxy();
    let admin = proxy.config().admin;
    let response =
        tests::client::once_h1(admin, "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(response.status, 405);
    let text = proxy.admin("/other").text();
    for page in ["/metrics", "/ready", "/config", "/connections", "/clusters", "/generations"] {
        assert!(text.contains(page), "{text}");
    }
}

#[test]
fn names_are_resolved_shown_and_used() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    assert_eq!(list(&proxy.admin("/config").json(), "dns").len(), 0);
    // The name of every host's own hosts file; IPv6 may be there, too, where the origin does not listen.
    let by_name =
        config.files().into_iter().find(|(path, _)| path.starts_with("services/")).expect("a service");
    let address = origin.address();
    let text = by_name.1.replace(&address.to_string(), &format!("localhost:{}", address.port()));
    assert_ne!(text, by_name.1, "the address was in it");
    let before = proxy.version();
    proxy.dir().write(&format!("config/{}", by_name.0), text);
    proxy.process().signal(Signal::HUP);
    wait_until("the named cluster is live", PATIENCE, || proxy.version() != before);
    wait_until("the name is resolved and shown", PATIENCE, || {
        let page = proxy.admin("/config").json();
        list(&page, "dns").first().is_some_and(|name| {
            name["cluster"] == "app/u"
                && name["name"] == "localhost"
                && list(name, "addresses").iter().any(|address| address == "127.0.0.1")
        })
    });
    let endpoint = format!("localhost:{}", address.port());
    // Each core takes it up when it comes to it.
    proxy.wait_metrics("a request goes there, and the name stands for its addresses", |metrics| {
        let seen = origin.requests().len();
        proxy.get("/named").status == 200
            && origin.requests().len() > seen
            && metrics.sum("shard_endpoint_connects_total", &[("endpoint", &endpoint)]) >= 1.0
    });
}
