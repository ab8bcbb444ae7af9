//! Network namespaces that a test makes and removes: hosts joined by a router, each entered by threads of this process.
//!
//!     client ── router ─┬─ box 1, box 2      (ECMP to the VIPs; the program forwards)
//!                       ├─ proxy 1, 2, 3     (the program unpacks; the kernel answers directly)
//!                       └─ origin            (where a test asks for one: behind proxies that are real ones)
//!
//! Links to boxes and proxies carry 1,600 bytes, so that an outer header fits on a client's full packet.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use l4_load::{LoadOptions, Mode, Program};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Network of a host: 10.NET.NUMBER.0/24, the router at .1 and the host at .2; in IPv6 fd00:NET:NUMBER::/64.
#[derive(Clone, Debug)]
pub struct Host {
    space: String,
    net: u8,
    number: u8,
}

/// Counts labs of this process, for names that do not collide.
static LABS: AtomicUsize = AtomicUsize::new(0);

/// All hosts of one test.
pub struct Lab {
    pub client: Host,
    pub router: Host,
    pub boxes: Vec<Host>,
    pub proxies: Vec<Host>,
    pub origins: Vec<Host>,
}

pub const VIP4: &str = "192.0.2.10";
pub const VIP6: &str = "2001:db8::10";

impl Lab {
    /// Makes the namespaces, links, addresses and routes.
    ///
    /// # Panics
    ///
    /// When a command fails: the test fails with its output.
    #[must_use]
    pub fn new(boxes: u8, proxies: u8) -> Self {
        Self::with_origins(boxes, proxies, 0)
    }

    /// The same with hosts that no VIP leads to.
    ///
    /// # Panics
    ///
    /// As [`Lab::new`].
    #[must_use]
    pub fn with_origins(boxes: u8, proxies: u8, origins: u8) -> Self {
        let lab = LABS.fetch_add(1, Ordering::Relaxed);
        let host = |name: &str, net: u8, number: u8| Host {
            space: format!("l4t{}x{lab}{name}{number}", std::process::id()),
            net,
            number,
        };
        let lab = Self {
            client: host("c", 1, 1),
            router: host("r", 0, 0),
            boxes: (1..=boxes).map(|number| host("b", 2, number)).collect(),
            proxies: (1..=proxies).map(|number| host("p", 3, number)).collect(),
            origins: (1..=origins).map(|number| host("o", 4, number)).collect(),
        };
        let mut commands = String::new();
        for host in lab.all() {
            commands.push_str(&format!("netns add {}\n", host.space));
        }
        ip(None, &commands);
        lab.router.sysctl("net/ipv4/ip_forward", "1");
        lab.router.sysctl("net/ipv6/conf/all/forwarding", "1");
        lab.router.sysctl("net/ipv4/fib_multipath_hash_policy", "1");
        lab.router.sysctl("net/ipv6/fib_multipath_hash_policy", "1");
        // A packet that never left the machine is spread by its socket's hash, which changes with each time-out; on a
        // wire it would be spread by its ports.
        lab.client.sysctl("net/core/txrehash", "0");
        for host in lab.leaves() {
            lab.join(host);
        }
        for proxy in &lab.proxies {
            ip(Some(proxy), &format!("addr add {VIP4}/32 dev lo\naddr add {VIP6}/128 dev lo nodad\n"));
        }
        lab.route_vips(&lab.boxes);
        lab
    }

    fn leaves(&self) -> impl Iterator<Item = &Host> {
        [&self.client].into_iter().chain(&self.boxes).chain(&self.proxies).chain(&self.origins)
    }

    fn all(&self) -> impl Iterator<Item = &Host> {
        [&self.router].into_iter().chain(self.leaves())
    }

    /// One link between a host and the router. Each end knows the other's link address from the start: looked up, a
    /// lost question takes a second, in which the kernel drops the oldest of the packets that wait.
    fn join(&self, host: &Host) {
        let (net, number, far) = (host.net, host.number, host.router_end());
        let link = |end: u8| format!("02:00:00:{net:02x}:{number:02x}:{end:02x}");
        let (near_link, far_link) = (link(2), link(1));
        let mtu = if net == 1 { 1500 } else { 1600 };
        ip(
            None,
            &format!(
                "link add e0 address {near_link} mtu {mtu} netns {} type veth \
                 peer name {far} address {far_link} mtu {mtu} netns {}\n",
                host.space, self.router.space
            ),
        );
        ip(
            Some(&self.router),
            &format!(
                "addr add 10.{net}.{number}.1/24 dev {far}\naddr add fd00:{net}:{number}::1/64 dev {far} nodad\n\
                 link set lo up\nlink set {far} up\n\
                 neigh replace 10.{net}.{number}.2 lladdr {near_link} dev {far} nud permanent\n\
                 neigh replace fd00:{net}:{number}::2 lladdr {near_link} dev {far} nud permanent\n"
            ),
        );
        host.sysctl("net/ipv6/conf/all/accept_dad", "0");
        ip(
            Some(host),
            &format!(
                "link set lo up\naddr add 10.{net}.{number}.2/24 dev e0\n\
                 addr add fd00:{net}:{number}::2/64 dev e0 nodad\nlink set e0 up\n\
                 route add default via 10.{net}.{number}.1\nroute add default via fd00:{net}:{number}::1\n\
                 neigh replace 10.{net}.{number}.1 lladdr {far_link} dev e0 nud permanent\n\
                 neigh replace fd00:{net}:{number}::1 lladdr {far_link} dev e0 nud permanent\n"
            ),
        );
        for (space, interface) in [(host, "e0"), (&self.router, far.as_str())] {
            // A checksum that is left to the card would reach the program undone, and the proxy wrong.
            run(Command::new("ethtool").args(["--offload", interface, "tx", "off"]), space);
            for setting in ["rp_filter", "accept_redirects"] {
                space.sysctl(&format!("net/ipv4/conf/{interface}/{setting}"), "0");
            }
        }
        host.sysctl("net/ipv4/conf/all/rp_filter", "0");
        self.router.sysctl("net/ipv4/conf/all/rp_filter", "0");
    }

    /// Puts a program that knows no VIP on the router's ends: without one there, a veth drops what the other end
    /// transmits. It is taken off with the value.
    ///
    /// # Panics
    ///
    /// When the kernel refuses, with the reason: the calling test fails.
    #[must_use]
    pub fn open_router(&self) -> Program {
        let options = LoadOptions { flows_max: 1024, ..LoadOptions::default() };
        let loaded = Program::load(&options).and_then(|mut program| {
            self.router.enter(|| {
                for host in self.boxes.iter().chain(&self.proxies) {
                    program.attach(&host.router_end(), Mode::Native)?;
                }
                Ok(program)
            })
        });
        loaded.unwrap_or_else(|error| unreachable!("{}", crate::chain(&error)))
    }

    /// Routes the VIPs over these boxes.
    pub fn route_vips(&self, boxes: &[Host]) {
        for (vip, v6) in [(VIP4, false), (VIP6, true)] {
            let mut command = format!("route replace {vip}/{}", if v6 { 128 } else { 32 });
            for host in boxes {
                command.push_str(&format!(" nexthop via {}", host.address(v6)));
            }
            command.push('\n');
            ip(Some(&self.router), &command);
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in self.all() {
            let removed = Command::new("ip").args(["netns", "del", &host.space]).status();
            if !removed.is_ok_and(|status| status.success()) {
                crate::note(&format!("namespace {} is left behind", host.space));
            }
        }
    }
}

impl Host {
    /// The router's interface towards this host.
    #[must_use]
    pub fn router_end(&self) -> String {
        format!("r{}n{}", self.net, self.number)
    }

    /// The host's address, which is its tunnel address too.
    #[must_use]
    pub fn address(&self, v6: bool) -> std::net::IpAddr {
        let (net, number) = (self.net, self.number);
        let text = if v6 { format!("fd00:{net}:{number}::2") } else { format!("10.{net}.{number}.2") };
        text.parse().expect("an address")
    }

    /// Runs `work` on a thread inside this namespace; sockets made there stay there.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.move_in();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs `work` on a thread of its own inside this namespace.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) -> std::thread::JoinHandle<()> {
        let host = self.clone();
        std::thread::spawn(move || {
            host.move_in();
            work();
        })
    }

    fn move_in(&self) {
        let file = std::fs::File::open(format!("/run/netns/{}", self.space)).expect("the namespace exists");
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), kind).expect("root may enter it");
    }

    /// Writes a setting of this namespace.
    pub fn sysctl(&self, name: &str, value: &str) {
        self.enter(|| std::fs::write(format!("/proc/sys/{name}"), value))
            .unwrap_or_else(|error| unreachable!("{name}: {error}"));
    }
}

/// Runs `ip` on a batch of commands.
pub fn ip(host: Option<&Host>, commands: &str) {
    let mut command = Command::new("ip");
    if let Some(host) = host {
        command.args(["-n", &host.space]);
    }
    let mut child = command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("ip is installed (.ci/packages)");
    child.stdin.take().expect("piped").write_all(commands.as_bytes()).expect("ip reads");
    let output = child.wait_with_output().expect("ip ends");
    assert!(output.status.success(), "{commands}{}", String::from_utf8_lossy(&output.stderr));
}

/// Runs a command to its end in a namespace.
pub(crate) fn run(command: &mut Command, host: &Host) {
    let output = host.enter(|| command.output()).expect("the command is installed (.ci/packages)");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
