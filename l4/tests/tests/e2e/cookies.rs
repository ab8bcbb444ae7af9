//! SYN cookies from a box to a real listener behind another machine's program. The kernel's own cookies, which are
//! alike in all namespaces of one machine, take no part: no listener overflows, and a proxy with another key refuses.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use l4_abi::{Decision, Row, TCP};
use l4_load::{LoadOptions, Mode};
use l4_tests::net::{Host, VIP4, VIP6};
use l4_tests::transfer::finish;
use l4_tests::{Pins, Tags, may_run, note};
use socket2::{Domain, Protocol, Socket, Type};

use super::fleet::{Fleet, Role, attach, load, options, owner_among, vip};

/// Longest wait for one step.
const PATIENCE: Duration = Duration::from_secs(30);

/// Boxes answer every SYN; proxies accept with `key`.
fn flooded(key: [u8; 16], mode: Mode) -> Fleet {
    Fleet::tuned(3, mode, None, |role, options| match role {
        Role::Box => LoadOptions { syn_cookies_above: Some(0), ..options },
        Role::Proxy => LoadOptions { syn_cookies_above: Some(0), hash_secret: key, ..options },
    })
}

/// A counter of /proc/net/snmp or /proc/net/netstat in a namespace.
fn counter(host: &Host, file: &str, row: &str, name: &str) -> u64 {
    let text =
        host.enter(|| std::fs::read_to_string(format!("/proc/thread-self/net/{file}"))).expect("procfs");
    let mut lines = text.lines().filter(|line| line.starts_with(row));
    let (names, values) = (lines.next().expect("names"), lines.next().expect("values"));
    let found = names.split(' ').zip(values.split(' ')).find(|(found, _)| *found == name);
    found.expect("the counter exists").1.parse().expect("a number")
}

#[test]
fn connections_come_to_be_by_cookies_of_the_boxes() {
    if !may_run("connections_come_to_be_by_cookies_of_the_boxes") {
        return;
    }
    for (mode, is_tagged) in [(Mode::Native, false), (Mode::Generic, false), (Mode::Native, true)] {
        connections_by_cookies(mode, is_tagged);
    }
}

fn connections_by_cookies(mode: Mode, is_tagged: bool) {
    let mut fleet = flooded(*b"the fleet's key.", mode);
    let _tags = is_tagged.then(|| Tags::on(&fleet.lab));
    let transfers = fleet.start(48);
    let broken = finish(transfers);
    let (sent, accepted) = (fleet.at_boxes(Decision::CookieSent), fleet.at_proxies(Decision::CookieAccepted));
    note(&format!("{mode:?}, VLAN tags {is_tagged}: {sent} cookies sent, {accepted} accepted"));
    assert_eq!(broken.count, 0, "{broken:?}");
    assert!(sent >= 48 && accepted >= 48, "{sent} {accepted}");
    // Every SYN was answered by a box, so that these connections were made without one.
    let of =
        |file, row, name| fleet.lab.proxies.iter().map(|host| counter(host, file, row, name)).sum::<u64>();
    assert!(of("snmp", "Tcp:", "PassiveOpens") >= 48);
    // Cookies of the kernel took no part.
    for name in ["SyncookiesSent", "SyncookiesRecv", "SyncookiesFailed"] {
        assert_eq!(of("netstat", "TcpExt:", name), 0, "{name}");
    }
}

/// The server ends connections, so that its half stays in TIME_WAIT; the client comes back from the same port.
#[test]
fn a_port_that_is_used_again_finds_its_way() {
    if !may_run("a_port_that_is_used_again_finds_its_way") {
        return;
    }
    let mut fleet = flooded(*b"the fleet's key.", Mode::Native);
    let took = fleet.lab.client.enter(|| {
        [VIP4, VIP6].map(|address| {
            let first = visit_from(address, 0).expect("a visit");
            let start = Instant::now();
            visit_from(address, first.port()).expect("the second visit from one port");
            start.elapsed()
        })
    });
    note(&format!("visits from a port that was in TIME_WAIT took {took:?}"));
    // Two at least: ACK and request may find the old connection together.
    assert!(fleet.at_proxies(Decision::CookieDisplaced) >= 2);
    assert_eq!(fleet.at_proxies(Decision::CookieAccepted), 4);
    assert_eq!(fleet.at_proxies(Decision::CookieFailed), 0);
}

#[test]
fn a_cookie_for_a_port_without_a_listener_is_counted_and_reset() {
    if !may_run("a_cookie_for_a_port_without_a_listener_is_counted_and_reset") {
        return;
    }
    const DEAF: u16 = 81;
    let mut fleet = flooded(*b"the fleet's key.", Mode::Native);
    fleet.set_vips(TCP, DEAF, 0);
    for address in [VIP4, VIP6] {
        let to = SocketAddr::new(vip(address).ip(), DEAF);
        // A box answers for anyone; the reset may come while the client still looks at the answer.
        let said = fleet.lab.client.enter(|| {
            TcpStream::connect_timeout(&to, PATIENCE).and_then(|mut stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.read(&mut [0; 16])
            })
        });
        assert_eq!(said.expect_err("reset").kind(), ErrorKind::ConnectionReset);
    }
    assert!(fleet.at_boxes(Decision::CookieSent) >= 2);
    assert!(fleet.at_proxies(Decision::CookieFailed) >= 2);
    assert_eq!(fleet.at_proxies(Decision::CookieAccepted), 0);
}

/// A SYN is passed on, its answer is lost, and the repeated one is answered by a box: the client knows another number than
/// the half-open connection at the proxy.
#[test]
fn a_half_open_connection_makes_room() {
    if !may_run("a_half_open_connection_makes_room") {
        return;
    }
    let pins = Pins::new();
    let mut fleet = Fleet::tuned(3, Mode::Native, Some(pins.path()), |role, options| match role {
        Role::Box => options,
        Role::Proxy => LoadOptions { syn_cookies_above: Some(0), ..options },
    });
    // What proxies answer is lost on the router; what boxes answer is not.
    let answers = |fleet: &Fleet, verb: &str| {
        for (proxy, family) in fleet.lab.proxies.iter().flat_map(|proxy| [(proxy, "-4"), (proxy, "-6")]) {
            let mut command = Command::new("ip");
            command.args([family, "rule", verb, "iif", &proxy.router_end(), "blackhole"]);
            let status = fleet.lab.router.enter(|| command.status()).expect("ip runs");
            assert!(status.success(), "{command:?}");
        }
    };
    answers(&fleet, "add");
    let connecting = [VIP4, VIP6].map(|address| {
        let (to, connected) = (vip(address), std::sync::mpsc::channel());
        let thread = fleet.lab.client.spawn(move || {
            connected.0.send(TcpStream::connect_timeout(&to, PATIENCE)).expect("the test waits");
        });
        (thread, connected.1)
    });
    let deadline = Instant::now() + PATIENCE;
    while half_open(&fleet) < 2 {
        assert!(Instant::now() < deadline, "no half-open connections");
        std::thread::yield_now();
    }
    for host in &fleet.lab.boxes {
        let pins = Some(pins.path().join(host.router_end()));
        let options = LoadOptions { syn_cookies_above: Some(0), ..options(host, 1600, pins) };
        let mut program = load(&options);
        assert!(host.enter(|| attach(&mut program, "e0")).replaced);
    }
    let streams = connecting.map(|(thread, connected)| {
        let stream = connected.recv_timeout(PATIENCE).expect("an end").expect("a box answers");
        thread.join().expect("no panic");
        stream
    });
    answers(&fleet, "del");
    for mut stream in streams {
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(b"GET /1000 HTTP/1.1\r\nhost: l4\r\n\r\n").expect("a socket");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        assert!(answer.len() > 1000);
    }
    assert!(fleet.at_proxies(Decision::CookieDisplaced) >= 2);
    assert_eq!(fleet.at_proxies(Decision::CookieAccepted), 2);
}

/// Connections in SYN_RECV at the proxies.
fn half_open(fleet: &Fleet) -> usize {
    let count = |host: &Host| {
        host.enter(|| {
            let read =
                |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("procfs");
            let state = |line: &&str| line.split_whitespace().nth(3) == Some("03");
            read("tcp").lines().filter(state).count() + read("tcp6").lines().filter(state).count()
        })
    };
    fleet.lab.proxies.iter().map(count).sum()
}

/// Requests right behind the ACK, so that a proxy often gets both in one poll: before it has a socket.
#[test]
fn a_request_that_comes_with_the_ack_is_not_lost() {
    if !may_run("a_request_that_comes_with_the_ack_is_not_lost") {
        return;
    }
    const VISITS: u64 = 400;
    let mut fleet = flooded(*b"the fleet's key.", Mode::Native);
    // A drain: what seems to have no socket is sent on, and reset.
    fleet.publish(|row| Row { current: owner_among(row, 2), previous: owner_among(row, 3) });
    let repeated = |fleet: &Fleet| counter(&fleet.lab.client, "snmp", "Tcp:", "RetransSegs");
    let before = repeated(&fleet);
    fleet.lab.client.enter(|| {
        std::thread::scope(|scope| {
            for address in [VIP4, VIP4, VIP6, VIP6] {
                scope.spawn(move || {
                    for _ in 0..VISITS / 4 {
                        visit_from(address, 0).expect("a visit");
                    }
                });
            }
        });
    });
    let repeated = repeated(&fleet) - before;
    let (accepted, rescued) =
        (fleet.at_proxies(Decision::CookieAccepted), fleet.at_proxies(Decision::Rescued));
    note(&format!(
        "{VISITS} visits: {accepted} cookies accepted, {repeated} segments repeated, {rescued} rescued"
    ));
    assert_eq!(rescued, 0);
    assert_eq!(accepted, VISITS, "a connection is made once");
    assert!(repeated < VISITS / 20, "{repeated}");
}

/// One request from this local port (0: any); says from where it was.
fn visit_from(address: &str, port: u16) -> io::Result<SocketAddr> {
    let (vip, any) = (vip(address), if address == VIP4 { "0.0.0.0:0" } else { "[::]:0" });
    let mut any: SocketAddr = any.parse().expect("an address");
    any.set_port(port);
    let socket = Socket::new(Domain::for_address(vip), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&any.into())?;
    socket.connect_timeout(&vip.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /1000 HTTP/1.1\r\nhost: l4\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    if answer.len() > 1000 { stream.local_addr() } else { Err(ErrorKind::UnexpectedEof.into()) }
}

#[test]
fn cookies_under_another_key_are_refused() {
    if !may_run("cookies_under_another_key_are_refused") {
        return;
    }
    let mut fleet = flooded(*b"a key of nobody.", Mode::Native);
    fleet.lab.client.enter(|| {
        for address in [VIP4, VIP6] {
            // The box answers the SYN, so that the client believes in its connection; the proxy does not.
            let said = TcpStream::connect_timeout(&vip(address), PATIENCE).and_then(|mut stream| {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(b"GET /1 HTTP/1.1\r\nhost: l4\r\n\r\n")?;
                stream.read(&mut [0; 16])
            });
            let error = said.expect_err("reset").kind();
            assert!(matches!(error, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error:?}");
        }
    });
    assert!(fleet.at_boxes(Decision::CookieSent) >= 2);
    assert_eq!(fleet.at_proxies(Decision::CookieAccepted), 0);
}
