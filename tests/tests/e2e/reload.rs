//! SIGHUP: a good config goes live without a dropped request, a bad one never replaces a good one.

use std::time::Duration;

use rustix::process::Signal;
use tests::{Cluster, Config, PATIENCE, Proxy, Route, origin, wait_until};

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
