//! SYN cookies from a box to a real listener behind another machine's program. The kernel's own cookies, which are
//! alike in all namespaces of one machine, take no part: no listener overflows, and a proxy with another key refuses.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use l4_abi::{Decision, Row, TCP};
use l4_load::{LoadOptions, Mode};
use l4_tests::net::{Host, VIP4, VIP6};
use l4_tests::transfer::{Kind, finish};
use l4_tests::{Loss, Tags, may_run, note};
use socket2::{Domain, Protocol, Socket, Type};

use super::fleet::{Fleet, Role, owner_among, vip};

/// Longest wait for one step.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Boxes answer every SYN; proxies accept with `key`.
pub(crate) fn flooded(key: [u8; 16], mode: Mode) -> Fleet {
    Fleet::tuned(3, mode, None, |role, options| match role {
        Role::Box => LoadOptions { syn_cookies_above: Some(0), ..options },
        Role::Proxy => LoadOptions { syn_cookies_above: Some(0), hash_secret: key, ..options },
    })
}

/// A counter of /proc/net/snmp or /proc/net/netstat in a namespace.
pub(crate) fn counter(host: &Host, file: &str, row: &str, name: &str) -> u64 {
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

/// The ACK and the first segments of an upload are lost on their way, and those behind them come to a proxy that knows nothing
/// of the connection: it waits for the first one.
#[test]
fn a_connection_outlives_the_loss_of_its_head() {
    if !may_run("a_connection_outlives_the_loss_of_its_head") {
        return;
    }
    const UPLOADS: usize = 20;
    for (mode, head_packets) in [(Mode::Native, 2), (Mode::Native, 4), (Mode::Generic, 2)] {
        let mut fleet = flooded(*b"the fleet's key.", mode);
        let _loss = Loss::of_heads(&fleet.lab, head_packets);
        let broken = finish(fleet.start_each(UPLOADS, |_| Kind::Upload));
        let [early, accepted] =
            [Decision::CookieEarly, Decision::CookieAccepted].map(|decision| fleet.at_proxies(decision));
        note(&format!(
            "{mode:?}: {UPLOADS} uploads without their first {head_packets} packets: {early} segments came early"
        ));
        assert_eq!(broken.count, 0, "{broken:?}");
        assert!(early >= 20, "{early}");
        assert_eq!(accepted, 20, "each is made once");
    }
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
pub(crate) fn visit_from(address: &str, port: u16) -> io::Result<SocketAddr> {
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

/// A proxy that does not take what the answers of boxes offer: the program behind XDP gets no connection of the kernel.
#[test]
fn a_cookie_that_the_kernel_makes_no_connection_of_is_counted_and_reset() {
    if !may_run("a_cookie_that_the_kernel_makes_no_connection_of_is_counted_and_reset") {
        return;
    }
    for mode in [Mode::Native, Mode::Generic] {
        let mut fleet = flooded(*b"the fleet's key.", mode);
        fleet.lab.proxies.iter().for_each(|proxy| proxy.sysctl("net/ipv4/tcp_sack", "0"));
        for address in [VIP4, VIP6] {
            let error = fleet.lab.client.enter(|| visit_from(address, 0)).expect_err("reset").kind();
            assert!(matches!(error, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error:?}");
        }
        let (accepted, failed) =
            (fleet.at_proxies(Decision::CookieAccepted), fleet.at_proxies(Decision::CookieFailed));
        // XDP found a listener each time.
        assert!(accepted >= 2 && failed == accepted, "{mode:?}: {accepted} {failed}");
        fleet.lab.proxies.iter().for_each(|proxy| proxy.sysctl("net/ipv4/tcp_sack", "1"));
        for address in [VIP4, VIP6] {
            fleet.lab.client.enter(|| visit_from(address, 0)).expect("a visit");
        }
        assert_eq!(fleet.at_proxies(Decision::CookieFailed), failed, "{mode:?}");
    }
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
