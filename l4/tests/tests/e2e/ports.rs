//! Connections by SYN cookies from ports whose earlier connection is still in the way at the proxy: in TIME_WAIT, half-open,
//! or open and forgotten by its client. The kernel would have ended it at the SYN, which only the box saw.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use l4_abi::{Decision, TCP};
use l4_load::{LoadOptions, Mode};
use l4_tests::net::{Host, VIP4, VIP6};
use l4_tests::transfer::{Kind, Transfer};
use l4_tests::{Loss, Pins, Tags, Tap, may_run, note, tap};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::cookies::{PATIENCE, counter, flooded, visit_from};
use super::fleet::{Fleet, Role, attach, load, options, vip};

const KEY: [u8; 16] = *b"the fleet's key.";
/// A service that speaks first, and ends.
const GREETER: u16 = 25;
const GREETING: &[u8] = b"220 ready\r\n";

/// Has the proxies greet everybody who comes to [`GREETER`].
fn greet(fleet: &mut Fleet) {
    fleet.set_vips(TCP, GREETER, 0);
    for host in &fleet.lab.proxies {
        for address in [VIP4, VIP6] {
            let at = SocketAddr::new(vip(address).ip(), GREETER);
            let listener = host.enter(|| TcpListener::bind(at)).expect("the VIP is on lo");
            host.spawn(move || {
                while let Ok((mut stream, _)) = listener.accept() {
                    // A client that goes away ends its own connection only.
                    drop(stream.write_all(GREETING));
                }
            });
        }
    }
}

/// What the greeter says to a client that says nothing.
fn greeting(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut said = Vec::new();
    stream.read_to_end(&mut said)?;
    if said == GREETING { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Is greeted at this local port (0: any), and says which it was.
fn greeted_from(address: &str, port: u16) -> io::Result<u16> {
    let to = SocketAddr::new(vip(address).ip(), GREETER);
    let any: SocketAddr = if to.is_ipv4() { ([0; 4], port).into() } else { ([0_u16; 8], port).into() };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&any.into())?;
        match socket.connect_timeout(&to.into(), PATIENCE) {
            // The client's own half of the connection before waits for its last acknowledgement.
            Err(error) if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            result => {
                result?;
                let stream = TcpStream::from(socket);
                let port = stream.local_addr()?.port();
                return greeting(stream).map(|()| port);
            }
        }
    }
}

/// The server ends connections, so that its half stays in TIME_WAIT; the client comes back from the same port and waits for
/// the server to speak.
#[test]
fn a_client_that_says_nothing_comes_back_from_its_port() {
    if !may_run("a_client_that_says_nothing_comes_back_from_its_port") {
        return;
    }
    let ways = [
        (Mode::Native, false, false),
        (Mode::Native, true, false),
        (Mode::Native, false, true),
        (Mode::Generic, false, false),
    ];
    for (mode, is_heard, is_tagged) in ways {
        let mut fleet = flooded(KEY, mode);
        greet(&mut fleet);
        let _tags = is_tagged.then(|| Tags::on(&fleet.lab));
        // As tcpdump does.
        let taps = fleet.lab.proxies.iter().filter(|_| is_heard);
        let _taps: Vec<Tap> = taps.map(|proxy| proxy.enter(Tap::open)).collect();
        let took = fleet.lab.client.enter(|| {
            [VIP4, VIP6].map(|address| {
                let port = greeted_from(address, 0).expect("a greeting");
                let start = Instant::now();
                for round in 1..=3 {
                    let again = greeted_from(address, port)
                        .unwrap_or_else(|error| unreachable!("{mode:?} {address} round {round}: {error}"));
                    assert_eq!(again, port);
                }
                start.elapsed()
            })
        });
        note(&format!(
            "{mode:?}, VLAN tags {is_tagged}: three greetings at a port that was in TIME_WAIT took {took:?}"
        ));
        let [displaced, accepted, failed] =
            [Decision::CookieDisplaced, Decision::CookieAccepted, Decision::CookieFailed]
                .map(|decision| fleet.at_proxies(decision));
        assert_eq!((displaced, accepted, failed), (6, 8, 0), "{mode:?}");
    }
}

/// The same with a client that speaks first: it need not repeat what it said.
#[test]
fn a_port_that_is_used_again_finds_its_way() {
    if !may_run("a_port_that_is_used_again_finds_its_way") {
        return;
    }
    let mut fleet = flooded(KEY, Mode::Native);
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
    assert!(fleet.at_proxies(Decision::CookieAccepted) >= 2);
    assert_eq!(fleet.at_proxies(Decision::CookieFailed), 0);
    let opened: u64 = fleet.lab.proxies.iter().map(opened).sum();
    assert_eq!(opened, 4, "each visit is one connection");
}

/// Connections that came to a host.
fn opened(host: &Host) -> u64 {
    counter(host, "snmp", "Tcp:", "PassiveOpens")
}

/// A kernel that is told to keep what is in TIME_WAIT is asked to make room once, not for ever.
#[test]
fn a_kernel_that_keeps_time_wait_is_asked_once() {
    if !may_run("a_kernel_that_keeps_time_wait_is_asked_once") {
        return;
    }
    let mut fleet = flooded(KEY, Mode::Native);
    greet(&mut fleet);
    fleet.lab.proxies.iter().for_each(|proxy| proxy.sysctl("net/ipv4/tcp_rfc1337", "1"));
    let (port, held) = fleet.lab.client.enter(|| {
        let port = greeted_from(VIP4, 0).expect("a greeting");
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
        socket.set_reuse_address(true).expect("a socket");
        socket.bind(&SocketAddr::from(([0; 4], port)).into()).expect("its port");
        let to = SocketAddr::new(vip(VIP4).ip(), GREETER);
        socket.connect_timeout(&to.into(), PATIENCE).expect("a box answers");
        (port, socket)
    });
    let deadline = Instant::now() + PATIENCE;
    while fleet.at_proxies(Decision::CookieFailed) == 0 {
        assert!(Instant::now() < deadline, "port {port}: nothing failed");
        std::thread::yield_now();
    }
    // What the client does not say again is not looked at again.
    assert_eq!(fleet.lab.client.enter(|| greeted_from(VIP6, 0)).map(drop).ok(), Some(()));
    let [displaced, failed] =
        [Decision::CookieDisplaced, Decision::CookieFailed].map(|decision| fleet.at_proxies(decision));
    assert_eq!((displaced, failed), (1, 1));
    drop(held);
}

/// A late copy of a request, whose connection is in TIME_WAIT: what it asks for is not done twice.
#[test]
fn a_late_copy_of_a_request_is_not_served_again() {
    if !may_run("a_late_copy_of_a_request_is_not_served_again") {
        return;
    }
    let mut fleet = flooded(KEY, Mode::Native);
    for address in [VIP4, VIP6] {
        let request = fleet.lab.client.enter(|| {
            let tap = Tap::open();
            let port = visit_from(address, 0).expect("a visit").port().to_be_bytes();
            tap.wait_for(|packet| {
                let tcp = tap::tcp(packet)?;
                (tcp[..2] == port && tcp[20..].starts_with(b"GET")).then(|| packet.to_vec())
            })
        });
        let (before, came) = (counts(&mut fleet), fleet.at_proxies(Decision::Decapsulated));
        send_again(&fleet, address, &request);
        let deadline = Instant::now() + PATIENCE;
        while fleet.at_proxies(Decision::Decapsulated) == came {
            assert!(Instant::now() < deadline, "{address}: the copy does not come");
            std::thread::yield_now();
        }
        // Whatever came of it has come of it by the end of another visit.
        fleet.lab.client.enter(|| visit_from(address, 0)).expect("a visit");
        let after = counts(&mut fleet);
        assert_eq!(after, (before.0, before.1 + 1, before.2 + 1), "{address}");
    }
}

/// Sends an IP packet from the client.
fn send_again(fleet: &Fleet, address: &str, packet: &[u8]) {
    fleet.lab.client.enter(|| {
        let to = SocketAddr::new(vip(address).ip(), 0);
        let raw = Socket::new(Domain::for_address(to), Type::RAW, Some(Protocol::from(255)));
        raw.expect("root may").send_to(packet, &SockAddr::from(to)).expect("it goes");
    });
}

/// Displaced, accepted, and connections made.
fn counts(fleet: &mut Fleet) -> (u64, u64, u64) {
    let opened = fleet.lab.proxies.iter().map(opened).sum();
    let [displaced, accepted] =
        [Decision::CookieDisplaced, Decision::CookieAccepted].map(|decision| fleet.at_proxies(decision));
    (displaced, accepted, opened)
}

/// A client crashes, and its address comes back from the same port: the proxy still has its connection.
#[test]
fn a_connection_that_its_client_forgot_makes_room() {
    if !may_run("a_connection_that_its_client_forgot_makes_room") {
        return;
    }
    for mode in [Mode::Native, Mode::Generic] {
        let mut fleet = flooded(KEY, mode);
        let took = [VIP4, VIP6].map(|address| {
            let (mut stream, port) = fleet.lab.client.enter(|| {
                let stream = TcpStream::connect_timeout(&vip(address), PATIENCE).expect("a box answers");
                let port = stream.local_addr().expect("bound").port();
                (stream, port)
            });
            // A request that does not end.
            stream.write_all(b"GET /1000").expect("a socket");
            let deadline = Instant::now() + PATIENCE;
            // An acknowledgement that came later would be answered by a reset.
            while in_state(&fleet, "01") == 0 || !is_acknowledged(&fleet.lab.client, port) {
                assert!(Instant::now() < deadline, "no connection");
                std::thread::yield_now();
            }
            forget(&fleet.lab.client, address, stream);
            assert_eq!(in_state(&fleet, "01"), 1, "the proxy heard of it");
            let start = Instant::now();
            fleet.lab.client.enter(|| visit_from(address, port)).expect("a visit from the port");
            start.elapsed()
        });
        note(&format!("{mode:?}: visits from a port whose connection was forgotten took {took:?}"));
        assert!(fleet.at_proxies(Decision::CookieDisplaced) >= 2);
        assert_eq!(fleet.at_proxies(Decision::CookieFailed), 0, "{mode:?}");
        let opened: u64 = fleet.lab.proxies.iter().map(opened).sum();
        assert_eq!(opened, 4, "each visit is one connection");
    }
}

/// Ends a client's socket without a word to the other side.
fn forget(client: &Host, address: &str, stream: TcpStream) {
    let rule = |verb: &str| {
        let family = if address == VIP4 { "-4" } else { "-6" };
        let mut command = Command::new("ip");
        command.args([family, "rule", verb, "to", address, "blackhole"]);
        let status = client.enter(|| command.status()).expect("ip runs");
        assert!(status.success(), "{command:?}");
    };
    rule("add");
    let socket = Socket::from(stream);
    socket.set_linger(Some(Duration::ZERO)).expect("a socket");
    drop(socket);
    rule("del");
}

/// A late copy of a first segment, whose connection is open and has gone on; that of a download has ended at the server, but
/// for what the client has not taken yet.
#[test]
fn a_late_copy_does_not_end_its_own_connection() {
    if !may_run("a_late_copy_does_not_end_its_own_connection") {
        return;
    }
    let mut fleet = flooded(KEY, Mode::Native);
    for (address, kind) in
        [(VIP4, Kind::Download), (VIP6, Kind::Download), (VIP4, Kind::Upload), (VIP6, Kind::Upload)]
    {
        let made = counts(&mut fleet).2;
        let (transfer, first) = fleet.lab.client.enter(|| {
            let tap = Tap::open();
            let transfer = Transfer::start(vip(address), kind).expect("half of it");
            let method: &[u8] = if kind == Kind::Download { b"GET" } else { b"PUT" };
            let first =
                tap.wait_for(|packet| tap::tcp(packet)?[20..].starts_with(method).then(|| packet.to_vec()));
            (transfer, first)
        });
        let deadline = Instant::now() + PATIENCE;
        while counts(&mut fleet).2 == made {
            assert!(Instant::now() < deadline, "no connection");
            std::thread::yield_now();
        }
        let (before, came) = (counts(&mut fleet), fleet.at_proxies(Decision::Decapsulated));
        send_again(&fleet, address, &first);
        while fleet.at_proxies(Decision::Decapsulated) == came {
            assert!(Instant::now() < deadline, "{address}: the copy does not come");
            std::thread::yield_now();
        }
        fleet.lab.client.enter(|| transfer.finish()).expect("the other half");
        assert_eq!(counts(&mut fleet), before, "{address} {kind:?}");
    }
}

/// A SYN is passed on, its answer is lost, and the repeated one is answered by a box: the client knows another number than
/// the half-open connection at the proxy.
#[test]
fn a_half_open_connection_makes_room() {
    if !may_run("a_half_open_connection_makes_room") {
        return;
    }
    room_of_half_open(&[(VIP4, 80), (VIP6, 80), (VIP4, GREETER), (VIP6, GREETER)], 0);
}

/// The same when ACK and first segment are lost: those behind them find the half-open connection, and wait.
#[test]
fn a_half_open_connection_makes_room_when_the_head_is_lost() {
    if !may_run("a_half_open_connection_makes_room_when_the_head_is_lost") {
        return;
    }
    room_of_half_open(&[(VIP4, 80), (VIP6, 80)], 2);
}

fn room_of_half_open(visits: &[(&'static str, u16)], lost_packets: u32) {
    let pins = Pins::new();
    let mut fleet = Fleet::tuned(3, Mode::Native, Some(pins.path()), |role, options| match role {
        Role::Box => options,
        Role::Proxy => LoadOptions { syn_cookies_above: Some(0), ..options },
    });
    greet(&mut fleet);
    answers_of_proxies(&fleet, "add");
    let _loss = Loss::of_heads(&fleet.lab, lost_packets);
    let connecting = visits.iter().map(|&(address, port)| {
        let (to, connected) = (SocketAddr::new(vip(address).ip(), port), std::sync::mpsc::channel());
        let thread = fleet.lab.client.spawn(move || {
            connected.0.send(TcpStream::connect_timeout(&to, PATIENCE)).expect("the test waits");
        });
        (thread, connected.1, port)
    });
    let connecting: Vec<_> = connecting.collect();
    let deadline = Instant::now() + PATIENCE;
    while in_state(&fleet, "03") < visits.len() {
        assert!(Instant::now() < deadline, "no half-open connections");
        std::thread::yield_now();
    }
    for host in &fleet.lab.boxes {
        let pins = Some(pins.path().join(host.router_end()));
        let options = LoadOptions { syn_cookies_above: Some(0), ..options(host, 1600, pins) };
        let mut program = load(&options);
        assert!(host.enter(|| attach(&mut program, "e0")).replaced);
    }
    // What a proxy says to a client that says nothing is lost until then, and repeated.
    let streams = connecting.into_iter().map(|(thread, connected, port)| {
        let stream = connected.recv_timeout(PATIENCE).expect("an end").expect("a box answers");
        thread.join().expect("no panic");
        (stream, port)
    });
    let streams: Vec<_> = streams.collect();
    answers_of_proxies(&fleet, "del");
    // Of several segments.
    let request = format!("GET /1000 HTTP/1.1\r\nhost: l4\r\nfiller: {}\r\n\r\n", "-".repeat(6000));
    for (mut stream, port) in streams {
        if port == GREETER {
            greeting(stream).expect("a greeting");
            continue;
        }
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(request.as_bytes()).expect("a socket");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("an answer");
        assert!(answer.len() > 1000);
    }
    let made = u64::try_from(visits.len()).expect("few");
    assert_eq!(counts(&mut fleet), (made, made, made));
    assert!(lost_packets == 0 || fleet.at_proxies(Decision::CookieEarly) >= made);
}

/// Lets what proxies answer be lost on the router ("add"), or no more ("del"); what boxes answer is not lost.
fn answers_of_proxies(fleet: &Fleet, verb: &str) {
    for (proxy, family) in fleet.lab.proxies.iter().flat_map(|proxy| [(proxy, "-4"), (proxy, "-6")]) {
        let mut command = Command::new("ip");
        command.args([family, "rule", verb, "iif", &proxy.router_end(), "blackhole"]);
        let status = fleet.lab.router.enter(|| command.status()).expect("ip runs");
        assert!(status.success(), "{command:?}");
    }
}

/// Connections in a state at the proxies, by its number in procfs: 01 is ESTABLISHED, 03 SYN_RECV.
fn in_state(fleet: &Fleet, number: &str) -> usize {
    let state = |line: &&str| line.split_whitespace().nth(3) == Some(number);
    fleet.lab.proxies.iter().map(|host| connections(host).lines().filter(state).count()).sum()
}

/// Whether all that a host has sent from a port has arrived.
fn is_acknowledged(host: &Host, port: u16) -> bool {
    let port = format!(":{port:04X}");
    connections(host).lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1).is_some_and(|local| local.ends_with(&port))
            && words.get(4).is_some_and(|queues| queues.starts_with("00000000:"))
    })
}

/// The kernel's lines about a host's TCP connections.
fn connections(host: &Host) -> String {
    let read = |file| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).expect("procfs");
    host.enter(|| read("tcp") + &read("tcp6"))
}
