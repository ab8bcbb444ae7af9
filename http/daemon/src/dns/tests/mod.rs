//! The resolver against a name server of the test's own: what changes, what fails, what is forged.

mod server;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use domain::base::iana::Rcode;
use http_proxy::snapshot::{DnsTarget, EndpointRole, StatId};

use self::server::{Say, Server};
use super::client::{Client, Servers};
use super::message::{LookupError, QueryName};
use super::{DnsSettings, Event, Handle, NameState, Pace, start};

/// For everything that should happen.
const DEADLINE: Duration = Duration::from_secs(20);

const CLUSTER: &str = "orders";

/// TTLs of 0 count as this here, so that a change is seen soon.
const FAST: Duration = Duration::from_millis(50);

/// A running resolver and what it told.
struct Bench {
    handle: Handle,
    changes: Receiver<(String, Vec<String>)>,
    events: Receiver<String>,
}

fn settings(servers: Vec<SocketAddr>) -> DnsSettings {
    DnsSettings {
        servers,
        timeout: Some(Duration::from_secs(2)),
        attempts: Some(1),
        hosts: "/nonexistent/hosts".into(),
        pace: Pace { ttl_min: FAST, retry_min: FAST, retry_max: FAST * 4, ..Pace::default() },
        ..DnsSettings::default()
    }
}

fn target(name: &str) -> DnsTarget {
    DnsTarget {
        name: name.to_owned(),
        port: 80,
        weight: 1,
        stat: StatId(0),
        hostname: name.to_owned(),
        role: EndpointRole::default(),
        refresh_min: FAST,
        stale_max: Duration::from_secs(3600),
    }
}

impl Bench {
    fn new(settings: DnsSettings) -> Self {
        let ((change, changes), (event, events)) = (channel(), channel());
        let handle = start(
            settings,
            move |resolved| {
                let endpoints =
                    resolved.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect();
                change.send((resolved.cluster, endpoints)).expect("the test listens");
            },
            move |told: &Event| event.send(told.to_string()).expect("the test listens"),
        );
        Self { handle: handle.expect("the resolver starts"), changes, events }
    }

    fn with(server: &Server, targets: Vec<DnsTarget>) -> Self {
        let bench = Self::new(settings(vec![server.address]));
        bench.set(targets);
        bench
    }

    fn set(&self, targets: Vec<DnsTarget>) {
        self.handle.set_targets(vec![(CLUSTER.to_owned(), targets)]).expect("the resolver runs");
    }

    /// The next list that is reported has to be this one: last bytes of 127.0.0.x.
    #[track_caller]
    fn expect(&self, addresses: &[u8]) {
        let addresses: Vec<String> = addresses.iter().map(|last| format!("127.0.0.{last}:80")).collect();
        let change = self.changes.recv_timeout(DEADLINE).expect("a change in time");
        assert_eq!(change, (CLUSTER.to_owned(), addresses));
    }

    #[track_caller]
    fn expect_event(&self, part: &str) {
        let event = self.events.recv_timeout(DEADLINE).expect("an event in time");
        assert!(event.contains(part), "{event}");
    }

    /// The state of the only name.
    fn state(&self) -> NameState {
        let mut state = self.handle.state().expect("the resolver answers");
        assert_eq!(state.len(), 1);
        state.remove(0)
    }

    /// Waits until the server was asked this often from now on.
    fn after_questions(server: &Server, more: usize) {
        let wanted = server.asked() + more;
        let end = Instant::now() + DEADLINE;
        while server.asked() < wanted {
            assert!(Instant::now() < end, "{} questions of {wanted}", server.asked());
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_new_address_is_there_one_second_after_the_ttl() {
    let server = Server::start();
    server.say("db.test", Say::A(vec![2], 2));
    let bench = Bench::with(&server, vec![target("db.test")]);
    bench.expect(&[2]);
    let state = bench.state();
    assert_eq!(
        (state.addresses, state.stale, state.last_error),
        (vec![IpAddr::from([127, 0, 0, 2])], false, None)
    );
    assert!(state.expires_in.is_some_and(|left| left <= Duration::from_secs(2)));
    server.say("db.test", Say::A(vec![3], 2));
    let changed = Instant::now();
    bench.expect(&[3]);
    assert!(changed.elapsed() < Duration::from_secs(3), "{:?}", changed.elapsed());
    assert!(server.asked() <= 3, "one question per TTL, not {}", server.asked());
}

#[test]
fn failures_keep_the_last_good_answer_and_raise_one_alarm() {
    for (failure, told) in [
        (Say::Code(Rcode::SERVFAIL), "says SERVFAIL"),
        (Say::Code(Rcode::NXDOMAIN), "NXDOMAIN"),
        (Say::Empty, "no address"),
        (Say::Chain(vec!["b.test", "c.test", "b.test"], 9), "a loop"),
    ] {
        let server = Server::start();
        server.say("db.test", Say::A(vec![2], 0));
        let bench = Bench::with(&server, vec![target("db.test")]);
        bench.expect(&[2]);
        server.say("db.test", failure);
        bench.expect_event(told);
        Bench::after_questions(&server, 3);
        let state = bench.state();
        assert_eq!((state.addresses.len(), state.stale), (1, true));
        assert!(state.last_error.is_some_and(|error| error.contains(told)));
        server.say("db.test", Say::A(vec![3], 0));
        bench.expect_event("resolves again");
        bench.expect(&[3]);
    }
}

#[test]
fn old_answers_end_at_the_stale_limit() {
    let server = Server::start();
    server.say("db.test", Say::A(vec![2], 0));
    let stale_max = Duration::from_millis(400);
    let bench = Bench::with(&server, vec![DnsTarget { stale_max, ..target("db.test") }]);
    bench.expect(&[2]);
    let changed = Instant::now();
    server.say("db.test", Say::Code(Rcode::SERVFAIL));
    bench.expect(&[]);
    assert!(changed.elapsed() >= stale_max, "{:?}", changed.elapsed());
    bench.expect_event("the last 1 addresses stay in use");
    bench.expect_event("lost the addresses of db.test");
    server.say("db.test", Say::A(vec![2], 0));
    bench.expect(&[2]);
    bench.expect_event("resolves again");
}

#[test]
fn a_name_that_never_resolved_is_reported_empty_and_asked_again() {
    let server = Server::start();
    let bench = Bench::with(&server, vec![target("db.test")]);
    bench.expect(&[]);
    bench.expect_event("there is no earlier answer");
    server.say("db.test", Say::A(vec![2], 60));
    bench.expect(&[2]);
}

#[test]
fn a_truncated_answer_is_asked_for_again_over_tcp() {
    let server = Server::start();
    let forty: Vec<u8> = (1..=40).collect();
    server.say("db.test", Say::OverTcp(forty.clone()));
    let bench = Bench::with(&server, vec![target("db.test")]);
    bench.expect(&forty);
}

#[test]
fn chains_and_letters_are_followed_and_forgeries_are_not() {
    for say in [Say::Chain(vec!["b.test", "C.test", "d.test"], 2), Say::UpperCase(2), Say::AfterForgeries(2)]
    {
        let server = Server::start();
        server.say("db.test", say);
        let bench = Bench::with(&server, vec![target("db.test")]);
        bench.expect(&[2]);
    }
}

#[test]
fn a_ttl_of_zero_has_a_floor() {
    let server = Server::start();
    server.say("db.test", Say::A(vec![2], 0));
    let bench = Bench::with(&server, vec![target("db.test")]);
    bench.expect(&[2]);
    let (begin, before) = (Instant::now(), server.asked());
    Bench::after_questions(&server, 5);
    let most = begin.elapsed().as_millis() / FAST.as_millis() + 2;
    assert!(u128::try_from(server.asked() - before).expect("a count") <= most.max(6), "{most}");
    assert!(begin.elapsed() >= FAST * 4);
}

#[test]
fn impossible_names_are_told_and_never_asked_for() {
    let server = Server::start();
    let bench = Bench::with(&server, vec![target(&format!("{}.test", "a".repeat(70)))]);
    bench.expect_event("a label has 70 bytes");
    bench.expect(&[]);
    assert_eq!(server.asked(), 0);
}

#[test]
fn addresses_and_localhost_need_no_server() {
    let dead: SocketAddr = ([127, 0, 0, 1], 9).into();
    let bench = Bench::new(settings(vec![dead]));
    for (name, endpoint) in [
        ("127.0.0.7", "127.0.0.7:80"),
        ("::1", "[::1]:80"),
        ("[::1]", "[::1]:80"),
        ("localhost", "127.0.0.1:80"),
        ("LOCALHOST.", "127.0.0.1:80"),
    ] {
        bench.set(Vec::new());
        bench.set(vec![target(name)]);
        loop {
            let (_, endpoints) = bench.changes.recv_timeout(DEADLINE).expect("a change in time");
            if endpoints == [endpoint] {
                break;
            }
        }
    }
}

#[test]
fn the_next_server_is_asked_when_one_is_dead_or_fails() {
    let (failing, good) = (Server::start(), Server::start());
    failing.say("db.test", Say::Code(Rcode::REFUSED));
    good.say("db.test", Say::A(vec![2], 0));
    // A port that refuses all but one peer, and that nobody else can get meanwhile.
    let refusing = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a UDP port");
    refusing.connect((Ipv4Addr::LOCALHOST, 9)).expect("a peer");
    let closed = refusing.local_addr().expect("an address");
    let bench = Bench::new(settings(vec![closed, failing.address, good.address]));
    bench.set(vec![target("db.test")]);
    bench.expect(&[2]);
    let asked = failing.asked();
    Bench::after_questions(&good, 3);
    assert_eq!(failing.asked(), asked, "who answered last is asked first");
}

#[test]
fn slow_names_do_not_hold_up_the_others() {
    let server = Server::start();
    let slow: Vec<DnsTarget> = (0..6).map(|number| target(&format!("slow{number}.test"))).collect();
    slow.iter().for_each(|target| server.say(&target.name, Say::Nothing));
    server.say("db.test", Say::A(vec![2], 0));
    let timeout = Duration::from_secs(3);
    let bench = Bench::new(DnsSettings { timeout: Some(timeout), ..settings(vec![server.address]) });
    let begin = Instant::now();
    bench.set(slow.into_iter().chain([target("db.test")]).collect());
    bench.expect(&[2]);
    Bench::after_questions(&server, 5);
    assert!(begin.elapsed() < timeout, "{:?}", begin.elapsed());
}

#[test]
fn a_family_without_a_reply_does_not_hold_up_the_other() {
    let server = Server::start();
    server.say("db.test", Say::OnlyV4(2));
    let timeout = Duration::from_secs(5);
    let bench = Bench::new(DnsSettings { timeout: Some(timeout), ..settings(vec![server.address]) });
    let begin = Instant::now();
    bench.set(vec![target("db.test")]);
    bench.expect(&[2]);
    assert!(begin.elapsed() < timeout / 2, "{:?}", begin.elapsed());
    assert!(bench.state().last_error.is_some_and(|error| error.starts_with("AAAA: no reply")));
}

#[test]
fn a_stopped_client_asks_nobody() {
    let server = Server::start();
    let addresses = vec![server.address];
    let servers = Servers { addresses, timeout: DEADLINE, attempts: 1 };
    let name = QueryName::parse("db.test").expect("a good name");
    for stopped in [true, false] {
        let lookup = Client::new(Arc::new(AtomicBool::new(stopped))).look_up(&name, &servers, 0);
        assert_eq!(matches!(lookup.v4, Err(LookupError::Stopped)), stopped, "{lookup:?}");
        assert!(!stopped || server.asked() == 0);
    }
}

#[test]
fn nothing_happens_after_stop() {
    let server = Server::start();
    server.say("db.test", Say::A(vec![2], 0));
    let bench = Bench::with(&server, vec![target("db.test")]);
    bench.expect(&[2]);
    bench.handle.stop();
    // The callback went with the thread.
    let last = std::iter::repeat_with(|| bench.changes.recv_timeout(DEADLINE)).find_map(Result::err);
    assert_eq!(last, Some(RecvTimeoutError::Disconnected));
}
