//! SYN cookies from a box to a real listener behind another machine's program. The kernel's own cookies, which are
//! alike in all namespaces of one machine, take no part: no listener overflows, and a proxy with another key refuses.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use l4_abi::Decision;
use l4_load::{LoadOptions, Mode};
use l4_tests::net::{Host, VIP4, VIP6};
use l4_tests::transfer::finish;
use l4_tests::{Tags, may_run, note};

use super::fleet::{Fleet, Role, vip};

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
