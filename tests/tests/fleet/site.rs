//! One box that has shard-l4 alone, three machines that have shard-l4 and shard-proxy, an origin behind them. The router
//! spreads the VIPs over all four, so that most packets reach a machine that must send them on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::Duration;

use l4_load::Program;
use l4_tests::Pins;
use l4_tests::net::{Host, Lab, VIP4, VIP6};
use l4_tests::transfer::{Kind, Transfer, serve};
use rustix::process::Signal;
use serde_json::json;
use tests::dir::TempDir;
use tests::metrics::Metrics;
use tests::proxy::binary;
use tests::tool::Process;
use tests::{Config, Listener, PATIENCE, Proxy, client, wait_for, wait_until};

const PORT: u16 = 80;
const ORIGIN_PORT: u16 = 9000;
const L4_METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9902);
const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9901);

/// What the file says of each proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Active,
    Draining,
    Down,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Down => "down",
        }
    }
}

/// A machine with its programs.
pub(crate) struct Machine {
    pub(crate) host: Host,
    /// Where the programs read and write; each start has a log of its own there.
    dir: TempDir,
    starts: usize,
    l4: Option<Process>,
    proxy: Option<Proxy>,
}

/// The fleet. Processes end first, then pins and links go, then the namespaces.
pub(crate) struct Site {
    pub(crate) machines: Vec<Machine>,
    states: [State; 3],
    pins: Pins,
    _router: Program,
    lab: Lab,
}

impl Site {
    /// Starts everything and waits until it is ready.
    pub(crate) fn start() -> Self {
        let lab = Lab::with_origins(1, 3, 1);
        let router = lab.open_router();
        let origin = SocketAddr::new(lab.origins[0].address(false), ORIGIN_PORT);
        let listener = lab.origins[0].enter(|| TcpListener::bind(origin)).expect("a free port");
        lab.origins[0].spawn(move || serve(&listener));
        let machines = lab.boxes.iter().chain(&lab.proxies).map(|host| Machine {
            host: host.clone(),
            dir: TempDir::new("fleet"),
            starts: 0,
            l4: None,
            proxy: None,
        });
        let mut site = Self {
            machines: machines.collect(),
            states: [State::Active; 3],
            pins: Pins::new(),
            _router: router,
            lab,
        };
        site.write_l4();
        for machine in &mut site.machines {
            machine.start_l4();
        }
        for machine in &mut site.machines[1..] {
            machine.proxy = Some(machine.host.enter(|| Proxy::start(proxy_config(origin))));
        }
        let hosts: Vec<Host> = site.machines.iter().map(|machine| machine.host.clone()).collect();
        site.lab.route_vips(&hosts);
        site
    }

    /// The machine of proxy 1, 2 or 3.
    pub(crate) fn proxy(&mut self, id: usize) -> &mut Machine {
        &mut self.machines[id]
    }

    /// Writes the file of every machine: alike but for `host`.
    fn write_l4(&self) {
        let own = |host: &Host| [host.address(false), host.address(true)];
        let proxies: serde_json::Map<String, serde_json::Value> = (1_usize..)
            .zip(self.lab.proxies.iter().zip(self.states))
            .map(|(id, (host, state))| {
                // Both families carry tunnels.
                let address = host.address(id % 2 == 0);
                (format!("p{id}"), json!({ "id": id, "address": address, "state": state.word() }))
            })
            .collect();
        for machine in &self.machines {
            let file = json!({
                "hash_key": "hash.key",
                "proxies": proxies,
                "vips": { "web": { "addresses": [VIP4, VIP6], "ports": [PORT] } },
                // Every machine encapsulates, by addresses of both families.
                "trusted": ["10.2.0.0/16", "10.3.0.0/16", "fd00:2::/32", "fd00:3::/32"],
                "flows": { "syn_cookies_above": 1 },
                "host": {
                    "interfaces": ["e0"],
                    "addresses": own(&machine.host),
                    "mtu": 1600,
                    "pin_directory": self.pins.path().join(machine.host.router_end()),
                },
            });
            machine.dir.write("hash.key", b"the fleet's key.");
            machine.dir.write("l4.yaml", file.to_string());
        }
    }

    /// Writes another state of one proxy, and has every machine load it.
    pub(crate) fn set_state(&mut self, id: usize, state: State) {
        self.states[id - 1] = state;
        self.write_l4();
        for machine in &self.machines {
            let applied = |metrics: &Metrics| metrics.sum("shard_l4_reloads_applied_total", &[]);
            let before = applied(&machine.l4_metrics());
            machine.l4().signal(Signal::HUP);
            wait_until("the list of proxies is in force", PATIENCE, || {
                applied(&machine.l4_metrics()) > before
            });
        }
    }

    /// Starts transfers at once, half of them over IPv6; says how many could not be started.
    pub(crate) fn transfers(
        &self,
        count: usize,
        kind: impl Fn(usize) -> Kind + Sync,
    ) -> (Vec<Transfer>, usize) {
        let address = |index: usize| if (index / 2).is_multiple_of(2) { VIP4 } else { VIP6 };
        let start = |index: usize| Transfer::start(vip(address(index)), kind(index));
        let started: Vec<_> = self.lab.client.enter(|| {
            std::thread::scope(|scope| {
                let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || start(index))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            })
        });
        let all = started.len();
        let started: Vec<_> = started
            .into_iter()
            .filter_map(|transfer| transfer.inspect_err(|error| tests::note(&format!("start: {error}"))).ok())
            .collect();
        let failed = all - started.len();
        (started, failed)
    }

    /// Transfers of both kinds, none of which may fail to start.
    pub(crate) fn start_transfers(&self, count: usize) -> Vec<Transfer> {
        let (started, failed) = self.transfers(count, both);
        assert_eq!(failed, 0, "of {count} transfers");
        started
    }

    /// Connections that are open and have said nothing, half of them over IPv6; first the client's address of each.
    pub(crate) fn connect(&self, count: usize) -> Vec<(SocketAddr, SocketAddr, TcpStream)> {
        let one = |index: usize| {
            let to = vip(if index.is_multiple_of(2) { VIP4 } else { VIP6 });
            let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
            Ok((stream.local_addr()?, to, stream))
        };
        let opened: std::io::Result<_> = self.lab.client.enter(|| (0..count).map(one).collect());
        opened.expect("each is accepted")
    }

    /// Waits until the proxies that run show a sum of a metric, which lags by half a second; returns each one's part.
    pub(crate) fn wait_proxies(&self, name: &str, all: u64) -> [u64; 3] {
        wait_for(&format!("{name} of {all}"), PATIENCE, || {
            let parts = [1, 2, 3].map(|id| self.machines[id].proxy_metric(name));
            (parts.iter().sum::<u64>() == all).then_some(parts)
        })
    }

    /// A decision's count over all machines.
    pub(crate) fn decided(&self, decision: &str) -> u64 {
        let labels = [("vip", "web"), ("decision", decision)];
        let all: f64 = self
            .machines
            .iter()
            .map(|machine| machine.l4_metrics().sum("shard_l4_packets_total", &labels))
            .sum();
        whole(all)
    }
}

/// Downloads and uploads by turns.
pub(crate) const fn both(index: usize) -> Kind {
    if index.is_multiple_of(2) { Kind::Download } else { Kind::Upload }
}

fn vip(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), PORT)
}

/// A count, which the text format writes as a real number.
fn whole(value: f64) -> u64 {
    // The sum of no sample is -0.
    format!("{:.0}", value.abs()).parse().expect("a count")
}

/// Two reactors that share the VIP's port, of both families; requests and bodies of any length.
fn proxy_config(origin: SocketAddr) -> Config {
    let on = |listener: &mut Listener, address: IpAddr| {
        listener.address = Some(address);
        listener.port = PORT;
    };
    let mut six = Listener::new("six");
    on(&mut six, Ipv6Addr::UNSPECIFIED.into());
    let mut config = Config::to(origin)
        .listener(|listener| on(listener, Ipv4Addr::UNSPECIFIED.into()))
        .and_listener(six)
        .route(|route| route.streaming = true);
    config.admin = ADMIN;
    config.cores = 2;
    config.drain = Duration::from_secs(20);
    config
}

impl Machine {
    /// Starts shard-l4 and waits until it is ready.
    pub(crate) fn start_l4(&mut self) {
        self.starts += 1;
        let mut command = Command::new(binary("shard-l4"));
        command
            .args(["--config", "l4.yaml", "--control", "l4.sock", "--metrics", &L4_METRICS.to_string()])
            .current_dir(self.dir.path());
        let name = format!("shard-l4-{}", self.starts);
        let mut process = self.host.enter(|| Process::start(&name, &self.dir, &mut command));
        wait_until("shard-l4 is ready", PATIENCE, || {
            assert!(process.status().is_none(), "shard-l4 ended: {}", process.log());
            process.log().lines().any(|line| line.ends_with(" info ready"))
        });
        self.l4 = Some(process);
    }

    pub(crate) fn l4(&self) -> &Process {
        self.l4.as_ref().expect("shard-l4 runs")
    }

    /// Ends shard-l4 by a signal, and returns its log.
    pub(crate) fn end_l4(&mut self, signal: Signal) -> String {
        let mut process = self.l4.take().expect("shard-l4 runs");
        process.signal(signal);
        let status = process.wait(PATIENCE);
        assert_eq!(status.success(), signal == Signal::TERM, "{status}: {}", process.log());
        process.log()
    }

    /// Asks this machine's shard-l4, as an operator does.
    pub(crate) fn shardctl(&self, words: &[&str]) -> Output {
        let socket = self.dir.path().join("l4.sock");
        let mut command = Command::new(binary("shardctl"));
        command.args(["l4", "--socket"]).arg(socket).args(words).output().expect("shardctl runs")
    }

    pub(crate) fn l4_metrics(&self) -> Metrics {
        self.host.enter(|| Metrics::parse(&client::get(L4_METRICS, "localhost", "/metrics").text()))
    }

    /// Ends shard-proxy as an operator does: what it holds may finish.
    pub(crate) fn stop_proxy(&mut self) {
        let proxy = self.proxy.take().expect("shard-proxy runs");
        let status = self.host.enter(|| proxy.stop());
        assert!(status.success(), "{status}");
    }

    /// Ends shard-proxy at once.
    pub(crate) fn kill_proxy(&mut self) {
        let mut proxy = self.proxy.take().expect("shard-proxy runs");
        proxy.signal(Signal::KILL);
        proxy.process().wait(PATIENCE);
    }

    /// A metric of shard-proxy, over its listeners; 0 where none runs.
    fn proxy_metric(&self, name: &str) -> u64 {
        let metric = |proxy: &Proxy| self.host.enter(|| whole(proxy.metrics().sum(name, &[])));
        self.proxy.as_ref().map_or(0, metric)
    }
}
