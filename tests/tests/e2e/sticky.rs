//! Sticky sessions: a session keeps its endpoint while that serves or drains, leaves it when it is dead, and nobody
//! makes a cookie but the proxy.

use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tests::metrics::Metrics;
use tests::tls::Authority;

use tests::{Cluster, Config, Origin, PATIENCE, Proxy, RawClient, Response, Route, message, wait_until};

const KEYS: [(&str, &str); 3] = [
    ("keys/a", "0123456789abcdef0123456789abcdef"),
    ("keys/b", "fedcba9876543210fedcba9876543210"),
    ("keys/c", "00112233445566778899aabbccddeeff"),
];

/// Origins that answer with their number.
fn origins(count: usize) -> Vec<Origin> {
    let reply = |number: usize| format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}");
    (0..count).map(|number| Origin::replying(reply(number))).collect()
}

fn addresses(origins: &[Origin]) -> Vec<SocketAddr> {
    origins.iter().map(Origin::address).collect()
}

/// Everything to one cluster with sessions, on two cores.
fn sticky(endpoints: &[SocketAddr], rules: Value) -> Config {
    let mut config = Config::with(Cluster::new("u", endpoints).rule("sticky", rules));
    config.cores = 2;
    KEYS.iter().fold(config, |config, (path, key)| config.and_file(path, key))
}

fn by_key_a() -> Value {
    json!({ "keys": ["keys/a"], "cookie": "sid" })
}

/// Asks on a connection of its own, so that either core may answer.
#[track_caller]
fn ask(proxy: &Proxy, cookie: Option<&str>) -> Response {
    let line = cookie.map_or_else(String::new, |cookie| format!("Cookie: sid={cookie}\r\n"));
    let mut client = proxy.connect();
    client.send(format!("GET / HTTP/1.1\r\nHost: a.example\r\n{line}\r\n"));
    let response = client.response("GET");
    assert_eq!(response.status, 200, "{}", response.text());
    response
}

/// The value of the session cookie that a response sets.
fn set(response: &Response) -> Option<String> {
    let lines = message::all(&response.fields, "set-cookie");
    assert!(lines.len() <= 1, "{lines:?}");
    let line = lines.first()?.strip_prefix("sid=")?;
    line.split(';').next().map(str::to_owned)
}

/// A new session: which origin it has, and its cookie.
#[track_caller]
fn begin(proxy: &Proxy) -> (String, String) {
    let response = ask(proxy, None);
    let cookie = set(&response).expect("a new session gets a cookie");
    (response.text(), cookie)
}

/// A new session at one origin.
#[track_caller]
fn begin_at(proxy: &Proxy, origin: &str) -> String {
    let mut begun = std::iter::repeat_with(|| begin(proxy)).take(500);
    begun.find(|(at, _)| at == origin).expect("one of 500 sessions is there").1
}

fn fate(metrics: &Metrics, fate: &str) -> f64 {
    metrics.sum("shard_cluster_sessions_total", &[("cluster", "app/u"), ("fate", fate)])
}

fn refused(metrics: &Metrics, code: &str) -> f64 {
    metrics.sum("shard_cluster_session_cookies_refused_total", &[("cluster", "app/u"), ("code", code)])
}

#[test]
fn a_session_stays_where_it_began_on_every_core() {
    let origins = origins(3);
    let proxy = Proxy::start(sticky(&addresses(&origins), by_key_a()));
    let first = ask(&proxy, None);
    let line = first.field("set-cookie").expect("a cookie");
    let (value, attributes) = line.split_once(';').expect("attributes");
    assert_eq!(attributes, " Path=/; HttpOnly; SameSite=Lax", "no Secure without TLS");
    assert_eq!(value.len(), "sid=".len() + 50, "{value}");
    for _ in 0..20 {
        let (at, cookie) = begin(&proxy);
        for _ in 0..5 {
            let again = ask(&proxy, Some(&cookie));
            assert_eq!((again.text(), set(&again)), (at.clone(), None));
        }
        let seen = origins[at.parse::<usize>().expect("a number")].requests();
        let told = seen.last().and_then(|request| request.field("cookie").map(str::to_owned));
        assert_eq!(told, Some(format!("sid={cookie}")), "the backend gets the cookie as it came");
    }
    proxy.wait_metrics("every request is counted by its fate", |metrics| {
        fate(metrics, "new") == 21.0 && fate(metrics, "kept") == 100.0
    });
}

#[test]
fn other_clusters_set_no_cookie() {
    let origins = origins(2);
    let config = sticky(&addresses(&origins), by_key_a())
        .and_cluster(Cluster::new("plain", &addresses(&origins)))
        .and_route(Route::prefix("plain", "/plain").to("plain"));
    let proxy = Proxy::start(config);
    let (_, cookie) = begin(&proxy);
    let mut client = proxy.connect();
    client.send(format!("GET /plain HTTP/1.1\r\nHost: a.example\r\nCookie: sid={cookie}\r\n\r\n"));
    assert_eq!(client.response("GET").field("set-cookie"), None);
    assert_eq!(proxy.get("/plain").field("set-cookie"), None);
    let of_plain =
        |metrics: &Metrics| metrics.sum("shard_cluster_sessions_total", &[("cluster", "app/plain")]);
    proxy.wait_metrics("one session, of the other cluster", |metrics| {
        fate(metrics, "new") == 1.0 && of_plain(metrics) == 0.0
    });
}

#[test]
fn the_sessions_of_a_dead_endpoint_move_once() {
    let mut origins = origins(3);
    let mut config = sticky(&addresses(&origins), by_key_a());
    config.cores = 1;
    let proxy = Proxy::start(config);
    let cookie = begin_at(&proxy, "0");
    drop(origins.remove(0));
    // Until the endpoint is out its session is served elsewhere and keeps its cookie: this may pass.
    let mut moved = None;
    wait_until("the session gets another cookie", PATIENCE, || {
        let response = ask(&proxy, Some(&cookie));
        assert_ne!(response.text(), "0");
        moved = set(&response).map(|cookie| (response.text(), cookie));
        moved.is_some()
    });
    let (at, cookie) = moved.expect("it has moved");
    for _ in 0..10 {
        let again = ask(&proxy, Some(&cookie));
        assert_eq!((again.text(), set(&again)), (at.clone(), None));
    }
    proxy.wait_metrics("the move is counted", |metrics| fate(metrics, "endpoint_gone") == 1.0);
}

/// Sessions stay at an endpoint that drains, whichever way, and move when the overlap is over.
#[track_caller]
fn drains(without: impl Fn(&[SocketAddr]) -> Value) {
    let origins = origins(3);
    let endpoints = addresses(&origins);
    let rules = |overlap: &str| json!({ "keys": ["keys/a"], "cookie": "sid", "overlap": overlap });
    let mut proxy = Proxy::start(sticky(&endpoints, rules("5s")));
    let cookies: Vec<_> = (0..4).map(|_| begin_at(&proxy, "0")).collect();
    let left = |overlap| {
        sticky(&endpoints, rules(overlap)).cluster(|cluster| {
            cluster.rules.insert("endpoints".to_owned(), without(&endpoints));
        })
    };
    proxy.reload(left("5s"));
    for cookie in &cookies {
        for _ in 0..3 {
            let response = ask(&proxy, Some(cookie));
            assert_eq!((response.text(), set(&response)), ("0".to_owned(), None), "{}", proxy.log());
        }
    }
    for _ in 0..30 {
        assert_ne!(begin(&proxy).0, "0", "no new session while it drains");
    }
    let cookie = &cookies[0];
    let mut moved = None;
    wait_until("the overlap is over", PATIENCE, || {
        let response = ask(&proxy, Some(cookie));
        moved = set(&response).map(|cookie| (response.text(), cookie));
        moved.is_some()
    });
    let (at, cookie) = moved.expect("it has moved");
    assert_ne!(at, "0");
    for _ in 0..10 {
        let again = ask(&proxy, Some(&cookie));
        assert_eq!((again.text(), set(&again)), (at.clone(), None));
    }
}

#[test]
fn a_draining_endpoint_keeps_its_sessions_for_the_overlap() {
    drains(|all| json!([{ "address": all[0], "drain": true }, all[1].to_string(), all[2].to_string()]));
}

#[test]
fn a_removed_endpoint_keeps_its_sessions_for_the_overlap() {
    drains(|all| json!([all[1].to_string(), all[2].to_string()]));
}

#[test]
fn a_cookie_that_the_proxy_did_not_write_is_a_new_session() {
    let origins = origins(3);
    let proxy = Proxy::start(sticky(&addresses(&origins), by_key_a()));
    let (_, cookie) = begin(&proxy);
    let flipped = |at: usize| {
        let mut bytes = cookie.clone().into_bytes();
        bytes[at] = if bytes[at] == b'x' { b'y' } else { b'x' };
        String::from_utf8(bytes).expect("ASCII")
    };
    let forged = [
        (cookie[..49].to_owned(), "cookie_length"),
        (format!("{cookie}A"), "cookie_length"),
        (String::new(), "cookie_length"),
        (format!("{}!", &cookie[..49]), "cookie_encoding"),
        (flipped(0), "cookie_format"),
        (flipped(4), "cookie_tag"),
        (flipped(20), "cookie_tag"),
        (flipped(40), "cookie_tag"),
    ];
    for (value, code) in &forged {
        let response = ask(&proxy, Some(value));
        let new = set(&response).unwrap_or_else(|| panic!("{code}: {value} was believed"));
        assert_ne!(new, cookie);
    }
    proxy.wait_metrics("each is counted as what it is", |metrics| {
        let count = |code: &str| forged.iter().filter(|(_, known)| *known == code).map(|_| 1.0).sum::<f64>();
        ["cookie_length", "cookie_encoding", "cookie_format", "cookie_tag"]
            .iter()
            .all(|code| refused(metrics, code) == count(code))
            && fate(metrics, "new") == 9.0
    });
}

#[test]
fn keys_rotate_by_reload() {
    let origins = origins(3);
    let config = |keys: Value| sticky(&addresses(&origins), json!({ "keys": keys, "cookie": "sid" }));
    let mut proxy = Proxy::start(config(json!(["keys/a"])));
    let (at, by_a) = begin(&proxy);
    proxy.reload(config(json!(["keys/b", "keys/a"])));
    let response = ask(&proxy, Some(&by_a));
    assert_eq!(response.text(), at, "the previous key is believed");
    let by_b = set(&response).expect("and its cookie is written by the current one");
    let response = ask(&proxy, Some(&by_b));
    assert_eq!((response.text(), set(&response)), (at.clone(), None));
    proxy.reload(config(json!(["keys/c", "keys/b"])));
    let response = ask(&proxy, Some(&by_b));
    assert_eq!(response.text(), at);
    assert!(set(&response).is_some());
    // Replayed after two rotations.
    assert!(set(&ask(&proxy, Some(&by_a))).is_some());
    proxy.wait_metrics("the replay is counted", |metrics| {
        refused(metrics, "cookie_tag") == 1.0 && fate(metrics, "new") == 2.0
    });
}

#[test]
fn cookies_are_secure_on_tls_and_say_what_the_config_says() {
    let origins = origins(1);
    let authority = Authority::default();
    let rules = json!({ "keys": ["keys/a"], "cookie": "sid", "path": "/shop", "max_age": "1h" });
    let config = sticky(&addresses(&origins), rules).tls(&[authority.leaf(&["a.example"])]);
    let proxy = Proxy::start(config);
    let mut client =
        RawClient::connect_tls(proxy.address(), &authority.client("a.example", &[])).expect("TLS");
    client.send("GET /shop HTTP/1.1\r\nHost: a.example\r\n\r\n");
    let response = client.response("GET");
    let line = response.field("set-cookie").expect("a cookie").to_owned();
    assert!(line.ends_with("; Path=/shop; HttpOnly; SameSite=Lax; Max-Age=3600; Secure"), "{line}");
}

#[test]
fn a_dead_pooled_connection_does_not_move_a_session() {
    // Closes every connection behind the response, and does not say so.
    let origins: Vec<_> = (0..3)
        .map(|number| {
            Origin::scripted(move |connection| {
                if connection.request().is_some() {
                    connection.write(format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}"));
                }
            })
        })
        .collect();
    let mut config = sticky(&addresses(&origins), by_key_a());
    config.cores = 1;
    let proxy = Proxy::start(config);
    let (at, cookie) = begin(&proxy);
    for _ in 0..50 {
        let response = ask(&proxy, Some(&cookie));
        assert_eq!((response.text(), set(&response)), (at.clone(), None));
    }
}

#[test]
fn rings_that_go_before_their_time_are_told() {
    let origins = origins(2);
    let endpoints = addresses(&origins);
    // Each reload has other members: their weights differ.
    let weighing = |weight: u32| {
        let mut config = sticky(&endpoints, by_key_a()).cluster(|cluster| {
            let first = json!({ "address": endpoints[0], "weight": weight });
            cluster.rules.insert("endpoints".to_owned(), json!([first, endpoints[1].to_string()]));
        });
        config.cores = 1;
        config
    };
    let mut proxy = Proxy::start(weighing(1));
    let (_, cookie) = begin(&proxy);
    (2..=9).for_each(|weight| proxy.reload(weighing(weight)));
    let dropped =
        |metrics: &Metrics| metrics.sum("shard_session_rings_dropped_total", &[("limit", "generations")]);
    assert_eq!(dropped(&proxy.metrics()), 0.0);
    let expired = fate(&proxy.metrics(), "ring_expired");
    ask(&proxy, Some(&cookie));
    proxy.reload(weighing(10));
    assert_eq!(dropped(&proxy.metrics()), 1.0);
    assert!(proxy.metrics().sum("shard_session_ring_points", &[]) > 2000.0);
    let log = proxy.log();
    let expected = "cluster app/u: 1 ring(s) of sticky sessions were dropped before `overlap` was over";
    assert!(log.contains(expected), "{log}");
    ask(&proxy, Some(&cookie));
    proxy.wait_metrics("the session goes by the present ring", |m| fate(m, "ring_expired") == expired + 1.0);
}

#[test]
fn sessions_stay_over_a_hot_restart() {
    let origins = origins(3);
    let mut proxy = Proxy::start(sticky(&addresses(&origins), by_key_a()));
    let sessions: Vec<_> = (0..10).map(|_| begin(&proxy)).collect();
    proxy.hot_restart();
    for (at, cookie) in &sessions {
        let again = ask(&proxy, Some(cookie));
        assert_eq!((again.text(), set(&again)), (at.clone(), None), "both have the same ring");
    }
    proxy.wait_metrics("all were kept", |metrics| fate(metrics, "kept") == 10.0);
}

#[test]
fn sessions_of_former_rings_keep_their_endpoint_over_hot_restarts() {
    let origins = origins(4);
    let endpoints = addresses(&origins);
    let all = sticky(&endpoints, by_key_a());
    let with =
        |endpoints: &[SocketAddr]| all.clone().cluster(|cluster| cluster.endpoints = endpoints.to_vec());
    let mut proxy = Proxy::start(with(&endpoints[..3]));
    let sessions: Vec<_> = (0..40).map(|_| begin(&proxy)).collect();
    // One more, and the ring of the cookies is of the past; then one less, which only the past still knows.
    proxy.reload(with(&endpoints));
    proxy.reload(with(&endpoints[1..]));
    let version = |proxy: &Proxy| proxy.metrics().sum("shard_session_ring_version", &[("cluster", "app/u")]);
    let ring = version(&proxy);
    assert!(ring > 0.0);
    let gone = sessions.iter().filter(|(at, _)| at == "0").count();
    assert!(gone > 0, "one of 40 sessions is at the endpoint that goes");
    for round in 0..2 {
        proxy.hot_restart();
        assert_eq!(version(&proxy), ring, "both processes have the same ring");
        for (at, cookie) in &sessions {
            let again = ask(&proxy, Some(cookie));
            assert_eq!(&again.text(), at, "restart {round}: {}", proxy.log());
        }
        for _ in 0..20 {
            assert_ne!(begin(&proxy).0, "0", "no new session where the config has no endpoint");
        }
        proxy.wait_metrics("all were kept", |metrics| {
            fate(metrics, "kept") + fate(metrics, "renewed") == 40.0 && fate(metrics, "new") == 20.0
        });
    }
    // A successor whose own config differs: what was current before it is of the past now.
    let (at, cookie) = begin(&proxy);
    let mut left = endpoints.clone();
    left.remove(at.parse().expect("a number"));
    proxy.write_config(&with(&left));
    proxy.hot_restart();
    assert_eq!(ask(&proxy, Some(&cookie)).text(), at, "{}", proxy.log());
}

#[test]
fn what_is_left_of_the_overlap_counts_after_a_hot_restart() {
    let origins = origins(3);
    let endpoints = addresses(&origins);
    let rules = || json!({ "keys": ["keys/a"], "cookie": "sid", "overlap": "6s" });
    let mut proxy = Proxy::start(sticky(&endpoints, rules()));
    let cookie = begin_at(&proxy, "0");
    proxy.reload(sticky(&endpoints[1..], rules()));
    assert_eq!(ask(&proxy, Some(&cookie)).text(), "0");
    proxy.hot_restart();
    wait_until("the overlap is over", PATIENCE, || set(&ask(&proxy, Some(&cookie))).is_some());
    let moves = |metrics: &Metrics| fate(metrics, "ring_expired") + fate(metrics, "endpoint_gone");
    proxy.wait_metrics("it moved once", |metrics| moves(metrics) == 1.0);
}

#[test]
fn a_refused_config_leaves_the_rings_as_they_are() {
    let origins = origins(3);
    let endpoints = addresses(&origins);
    let config = |endpoints: &[SocketAddr]| {
        let mut config = sticky(endpoints, by_key_a());
        config.cores = 1;
        config
    };
    let mut proxy = Proxy::start(config(&endpoints[..2]));
    let (at, cookie) = begin(&proxy);
    // Good, but for a listener that cannot be bound: the refusal comes last.
    let taken = tests::Listener::new("taken");
    let holder = std::net::TcpListener::bind(("127.0.0.1", taken.port)).expect("a free port");
    proxy.write_config(&config(&endpoints).and_listener(taken));
    proxy.process().signal(Signal::HUP);
    wait_until("the refusal is in the log", PATIENCE, || proxy.log().contains("reload refused"));
    drop(holder);
    let points = |metrics: &Metrics| metrics.sum("shard_session_ring_points", &[]);
    assert_eq!(points(&proxy.metrics()), 512.0);
    // The next config shows what the process remembers.
    let mut same = config(&endpoints[..2]);
    same.clusters[0].connect_timeout = Some(Duration::from_secs(2));
    proxy.reload(same);
    assert_eq!(points(&proxy.metrics()), 512.0, "one ring, the one that has always been in force");
    let again = ask(&proxy, Some(&cookie));
    assert_eq!((again.text(), set(&again)), (at, None));
}

#[test]
fn sessions_stay_at_endpoints_that_are_given_by_name() {
    let origins = origins(4);
    let name = |origin: &Origin| format!("localhost:{}", origin.address().port());
    let named = |origins: &[Origin]| {
        sticky(&[], by_key_a()).cluster(|cluster| {
            cluster.dns_endpoints = origins.iter().map(name).collect();
        })
    };
    let mut proxy = Proxy::start(named(&origins[..3]));
    let sessions: Vec<_> = (0..20).map(|_| begin(&proxy)).collect();
    let all_stay = |proxy: &Proxy, sessions: &[(String, String)]| -> Vec<(String, String)> {
        let stay = |(at, cookie): &(String, String)| {
            let again = ask(proxy, Some(cookie));
            assert_eq!(&again.text(), at, "{}", proxy.log());
            (at.clone(), set(&again).unwrap_or_else(|| cookie.clone()))
        };
        sessions.iter().map(stay).collect()
    };
    all_stay(&proxy, &sessions);
    // One more name: another ring, and nobody moves for it.
    proxy.reload(named(&origins));
    let sessions = all_stay(&proxy, &sessions);
    proxy.wait_metrics("by the rings of before and after", |metrics| {
        fate(metrics, "kept") + fate(metrics, "renewed") == 40.0 && fate(metrics, "renewed") > 0.0
    });
    wait_until("new sessions go to the new one, too", PATIENCE, || begin(&proxy).0 == "3");
    // Those that have a cookie of the present ring stay over a restart: both processes have the same.
    let begun: Vec<_> = (0..10).map(|_| begin(&proxy)).collect();
    proxy.hot_restart();
    all_stay(&proxy, &begun);
    proxy.wait_metrics("all were kept", |metrics| fate(metrics, "kept") == 10.0);
    // Two names less: their sessions stay for the overlap, and over a restart, too.
    proxy.reload(named(&origins[..2]));
    let begun = all_stay(&proxy, &begun);
    proxy.hot_restart();
    all_stay(&proxy, &begun);
    drop(sessions);
}
