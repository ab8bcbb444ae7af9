//! SIGHUP: a good config goes live without a dropped request, a bad one never replaces a good one.

use std::time::Duration;

use rustix::process::Signal;
use tests::{Cluster, Config, PATIENCE, Proxy, RawClient, Route, origin, wait_until};

#[test]
fn a_new_route_goes_live_and_connections_stay() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    let mut client = proxy.connect();
    client.send("GET /new HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(client.response("GET").status, 200);
    proxy.reload(config.and_route(Route::prefix("new", "/new").direct(418, "tea")));
    client.send("GET /new HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let response = client.response("GET");
    assert_eq!(
        (response.status, response.text().as_str()),
        (418, "tea"),
        "the same connection sees the new route"
    );
}

#[test]
fn a_bad_config_changes_nothing_and_is_explained() {
    let origin = origin::echo();
    let mut proxy = Proxy::start(Config::to(origin.address()));
    let version = proxy.version();
    let broken = Config::to(origin.address())
        .route(|route| route.action = tests::config::Action::Forward(vec![("nowhere".to_owned(), 1)]));
    for (path, content) in broken.files() {
        proxy.dir().write(&format!("config/{path}"), content);
    }
    proxy.process().signal(Signal::HUP);
    wait_until("the refusal is in the log", PATIENCE, || proxy.log().contains("nowhere"));
    assert_eq!(proxy.get("/").status, 200);
    assert_eq!(proxy.version(), version);
}

#[test]
fn removed_upstreams_are_left_alone_and_new_ones_used() {
    let (one, two) = (origin::echo(), origin::echo());
    let config = Config::to(one.address());
    let mut proxy = Proxy::start(config.clone());
    assert_eq!(proxy.get("/").status, 200);
    proxy.reload(config.cluster(|cluster| *cluster = Cluster::new("u", &[two.address()])));
    let before = one.requests().len();
    for _ in 0..10 {
        assert_eq!(proxy.get("/").status, 200);
    }
    assert_eq!((one.requests().len(), two.requests().len()), (before, 10));
    wait_until("connections to the removed upstream are closed", PATIENCE, || one.connections_open() == 0);
}

#[test]
fn a_request_in_flight_finishes_under_its_old_config() {
    let origin = tests::Origin::scripted(|connection| {
        while let Some(request) = connection.request() {
            if !connection.quiet_for(Duration::from_millis(700)) || !connection.echo(&request) {
                return;
            }
        }
    });
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    let mut client = proxy.connect();
    client.send("GET /slow HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let _seen = origin.wait_request(1);
    proxy.reload(config.and_route(Route::prefix("slow", "/slow").direct(404, "gone")));
    assert_eq!(client.response("GET").status, 200);
}

#[test]
fn many_reloads_leave_no_memory_behind() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    let reload = |proxy: &mut Proxy, number: usize| {
        let route = Route::prefix("turn", "/turn").direct(200, &number.to_string());
        proxy.reload(config.clone().and_route(route));
        assert_eq!(proxy.get("/turn").text(), number.to_string());
    };
    (0..10).for_each(|number| reload(&mut proxy, number));
    let pid = proxy.process().pid();
    let resident = || {
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("the process lives");
        statm
            .split_whitespace()
            .nth(1)
            .and_then(|pages| pages.parse::<u64>().ok())
            .expect("a number of pages")
    };
    let before = resident();
    (10..40).for_each(|number| reload(&mut proxy, number));
    let after = resident();
    assert!(after <= before + before / 5, "{before} pages before 30 reloads, {after} after");
}

#[test]
fn listeners_come_and_go() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    proxy.reload(config.clone().and_listener(tests::Listener::new("second")));
    let second = proxy.listener("second");
    assert_eq!(tests::client::get(second, "a.example", "/").status, 200);
    let mut kept = RawClient::connect(second);
    kept.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    assert_eq!(kept.response("GET").status, 200);
    proxy.reload(config);
    wait_until("the removed listener is closed", PATIENCE, || std::net::TcpStream::connect(second).is_err());
    // A connection of it gets an answer to its next request, and is told that it was the last one.
    kept.send("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let response = kept.response("GET");
    assert_eq!(response.status, 200);
    assert_eq!(response.field("connection").map(str::to_ascii_lowercase).as_deref(), Some("close"));
    assert_eq!(proxy.get("/").status, 200);
}

#[test]
fn a_listener_may_move_to_another_address() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    let old = proxy.address();
    proxy.reload(config.listener(|listener| listener.port = tests::port::free_port()));
    assert_ne!(proxy.address(), old);
    assert_eq!(proxy.get("/").status, 200);
    wait_until("the old address is closed", PATIENCE, || std::net::TcpStream::connect(old).is_err());
}

#[test]
fn an_address_that_is_not_to_be_had_refuses_the_whole_reload() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    let version = proxy.version();
    let mut taken = tests::Listener::new("taken");
    let holder = std::net::TcpListener::bind(("127.0.0.1", taken.port)).expect("a free port");
    taken.name = "taken".to_owned();
    let other = tests::Listener::new("other");
    let other_port = other.port;
    let wanted = config
        .and_listener(other)
        .and_listener(taken)
        .and_route(Route::prefix("new", "/new").direct(418, "tea"));
    proxy.write_config(&wanted);
    proxy.process().signal(Signal::HUP);
    wait_until("the refusal is in the log", PATIENCE, || proxy.log().contains("reload refused"));
    let log = proxy.log();
    assert!(log.contains("\"taken\"") && log.contains("another process listens there"), "{log}");
    assert!(log.contains("listeners.yaml:"), "the place is named: {log}");
    assert_eq!(proxy.version(), version);
    assert_ne!(proxy.get("/new").status, 418, "routes of a refused config are not in force");
    assert!(std::net::TcpStream::connect(("127.0.0.1", other_port)).is_err(), "nothing else was bound");
    proxy.wait_metrics("it is counted", |metrics| {
        metrics.sum("shard_reloads_total", &[("result", "refused")]) >= 1.0
    });
    drop(holder);
    proxy.reload(wanted);
    assert_eq!(proxy.get("/new").status, 418);
    assert_eq!(tests::client::get(proxy.listener("taken"), "a.example", "/").status, 200);
}

/// Writes the listeners' file with a change by text, and waits until it is in force.
#[track_caller]
fn reload_listeners(proxy: &mut Proxy, change: impl Fn(&mut serde_json::Value)) {
    let (path, text) = proxy.config().files().remove(0);
    assert!(path.contains("listeners"), "{path}");
    let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    change(&mut value["listeners"]["main"]);
    let before = proxy.version();
    proxy.dir().write(&format!("config/{path}"), value.to_string());
    proxy.process().signal(Signal::HUP);
    wait_until("the changed listener is live", PATIENCE, || proxy.version() != before);
}

#[test]
fn steering_changes_without_a_new_socket() {
    let origin = origin::echo();
    let mut config = Config::to(origin.address());
    config.cores = 2;
    let mut proxy = Proxy::start(config);
    for (turn, steering) in ["cpu", "kernel", "least_loaded", "cpu", "kernel"].into_iter().enumerate() {
        reload_listeners(&mut proxy, |listener| {
            listener["steering"] = steering.into();
            listener["limits"]["header_count_max"] = (100 + turn).into();
        });
        for _ in 0..20 {
            assert_eq!(proxy.get("/").status, 200, "{steering}");
        }
        assert!(!proxy.log().contains("steering cannot be set"), "{}", proxy.log());
    }
}

#[test]
fn a_burst_of_signals_is_few_reloads_and_the_last_config_counts() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    for number in 0..50 {
        proxy.write_config(
            &config.clone().and_route(Route::prefix("n", "/n").direct(200, &number.to_string())),
        );
        proxy.process().signal(Signal::HUP);
    }
    wait_until("the last one is in force", PATIENCE, || proxy.get("/n").text() == "49");
    proxy.wait_metrics("reloads are counted", |metrics| {
        metrics.sum("shard_reloads_total", &[("result", "applied")]) >= 1.0
    });
    let reloads = proxy.metrics().sum("shard_reloads_total", &[("result", "applied")]);
    assert!(reloads < 25.0, "{reloads} reloads for 50 signals");
}

#[test]
fn watch_loads_what_has_changed_and_nothing_else() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let proxy = Proxy::start_with(config.clone(), &["--watch"]);
    let version = proxy.version();
    // The same bytes in a new file are no change.
    proxy.write_config(&config);
    proxy.write_config(&config.clone().and_route(Route::prefix("w", "/w").direct(200, "seen")));
    wait_until("the change is in force", PATIENCE, || proxy.get("/w").text() == "seen");
    assert_ne!(proxy.version(), version);
    let broken = config
        .clone()
        .route(|route| route.action = tests::config::Action::Forward(vec![("nowhere".to_owned(), 1)]));
    proxy.write_config(&broken);
    wait_until("a bad one is refused", PATIENCE, || proxy.log().contains("reload refused"));
    assert_eq!(proxy.get("/w").text(), "seen");
    proxy.write_config(&config.and_route(Route::prefix("w", "/w").direct(200, "again")));
    wait_until("a good one is taken", PATIENCE, || proxy.get("/w").text() == "again");
    assert_eq!(proxy.log().matches("reload refused").count(), 1, "told once: {}", proxy.log());
}

#[test]
fn series_of_what_has_gone_disappear_and_new_ones_start_at_zero() {
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone());
    let requests =
        |proxy: &Proxy, route: &str| proxy.metrics().sum("shard_route_requests_total", &[("route", route)]);
    for turn in 0..6 {
        let name = format!("turn-{turn}");
        proxy.reload(config.clone().and_route(Route::prefix(&name, "/turn").direct(200, &name)));
        let label = format!("app/{name}");
        assert_eq!(proxy.get("/turn").text(), name);
        wait_until("the request is counted", PATIENCE, || requests(&proxy, &label) >= 1.0);
        assert!(
            (requests(&proxy, &label) - 1.0).abs() < f64::EPSILON,
            "{name}: {}",
            requests(&proxy, &label)
        );
        if turn > 0 {
            let gone = format!("app/turn-{}", turn - 1);
            assert_eq!(proxy.metrics().series("shard_route_requests_total", &[("route", &gone)]), 0);
        }
    }
}

#[test]
fn idle_connections_of_a_listener_that_has_gone_end_by_themselves() {
    let get = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let origin = origin::echo();
    let config = Config::to(origin.address());
    let mut proxy = Proxy::start(config.clone().and_listener(tests::Listener::new("extra")));
    let extra = proxy.listener("extra");
    let (mut idle, mut kept) = (RawClient::connect(extra), proxy.connect());
    for client in [&mut idle, &mut kept] {
        assert_eq!(client.send(get).response("GET").status, 200);
    }
    let mut idle_h2 = tests::h2raw::H2Conn::client(RawClient::connect(extra).into_stream(), &[]);
    assert!(idle_h2.read().is_some(), "settings");
    proxy.reload(config);
    assert_eq!(idle.ending(), tests::End::Closed);
    assert!(idle_h2.wait_goaway().is_some(), "HTTP/2 is told");
    assert_eq!(kept.send(get).response("GET").status, 200, "others stay");
}
