//! A lab whose boxes and proxies run the program, fed with one table.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use l4_abi::{Decision, Owner, Row, TABLE_ROWS, TCP, UDP, Vip};
use l4_load::{LoadOptions, Mode, Program, VipKey};
use l4_tests::chain;
use l4_tests::net::{Host, Lab, VIP4, VIP6};
use l4_tests::transfer::{Kind, Transfer, serve};

pub(crate) const VIP: u32 = 1;
pub(crate) const PORT: u16 = 80;

pub(crate) struct Fleet {
    /// First, so that it goes last: programs detach before their namespaces go.
    boxes: Vec<Program>,
    proxies: Vec<Program>,
    _router: Program,
    pub(crate) lab: Lab,
    version: u32,
}

/// What a host of the lab does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Box,
    Proxy,
}

pub(crate) fn options(host: &Host, mtu_bytes: u32, pin_dir: Option<PathBuf>) -> LoadOptions {
    let (IpAddr::V4(own4), IpAddr::V6(own6)) = (host.address(false), host.address(true)) else {
        unreachable!("one of each family")
    };
    LoadOptions {
        pin_dir,
        hash_secret: *b"the fleet's key.",
        own4: Some(own4),
        own6: Some(own6),
        mtu_bytes,
        flows_max: 8192,
        ..LoadOptions::default()
    }
}

impl Fleet {
    /// Two boxes, three proxies; the rows belong to the first `active` proxies.
    pub(crate) fn new(active: u16) -> Self {
        Self::with(active, 1600, None)
    }

    pub(crate) fn with(active: u16, mtu_bytes: u32, pin_dir: Option<&Path>) -> Self {
        Self::tuned(active, Mode::Native, pin_dir, |_, options| LoadOptions { mtu_bytes, ..options })
    }

    /// With options that `tune` changes for each host.
    pub(crate) fn tuned(
        active: u16,
        mode: Mode,
        pin_dir: Option<&Path>,
        tune: impl Fn(Role, LoadOptions) -> LoadOptions,
    ) -> Self {
        let lab = Lab::new(2, 3);
        let router = lab.open_router();
        let boxes = lab.boxes.iter().map(|host| {
            let pins = pin_dir.map(|folder| folder.join(host.router_end()));
            program(&lab, host, None, mode, &tune(Role::Box, options(host, 1600, pins)))
        });
        let boxes = boxes.collect();
        let local = (1..).zip(&lab.proxies);
        let proxies = local
            .map(|(id, host)| {
                program(&lab, host, Some(id), mode, &tune(Role::Proxy, options(host, 1600, None)))
            })
            .collect();
        for host in &lab.proxies {
            for address in [VIP4, VIP6] {
                let listener = host.enter(|| TcpListener::bind(vip(address))).expect("the VIP is on lo");
                host.spawn(move || serve(&listener));
            }
        }
        let mut fleet = Self { boxes, proxies, _router: router, lab, version: 0 };
        let owner = move |row: usize| owner_among(row, active);
        fleet.publish(|row| Row { current: owner(row), previous: owner(row) });
        fleet
    }

    /// Publishes one table to all hosts, as a feed does.
    pub(crate) fn publish(&mut self, row: impl Fn(usize) -> Row) {
        self.version += 1;
        let rows: Vec<Row> = (0..TABLE_ROWS).map(row).collect();
        for program in self.boxes.iter_mut().chain(&mut self.proxies) {
            program.maps().swap_table(VIP, self.version, &rows).expect("a table is taken");
        }
    }

    /// Publishes one table to the boxes, of which the proxies have not heard yet.
    pub(crate) fn publish_at_boxes(&mut self, row: impl Fn(usize) -> Row) {
        self.version += 1;
        let rows: Vec<Row> = (0..TABLE_ROWS).map(row).collect();
        for program in &mut self.boxes {
            program.maps().swap_table(VIP, self.version, &rows).expect("a table is taken");
        }
    }

    pub(crate) const fn boxes(&mut self) -> &mut Vec<Program> {
        &mut self.boxes
    }

    /// Gives the VIPs of a protocol other flags, on all hosts; at another port where one is named.
    pub(crate) fn set_vips(&mut self, protocol: u8, port: u16, flags: u32) {
        for program in self.boxes.iter_mut().chain(&mut self.proxies) {
            for address in [VIP4, VIP6] {
                let key = VipKey { address: vip(address).ip(), port, protocol };
                program.maps().set_vip(key, Vip { id: VIP, flags }).expect("a VIP is taken");
            }
        }
    }

    /// The maps of all hosts.
    pub(crate) fn maps(&mut self) -> impl Iterator<Item = &mut l4_load::Maps> {
        self.boxes.iter_mut().chain(&mut self.proxies).map(Program::maps)
    }

    /// A decision's count over the boxes.
    pub(crate) fn at_boxes(&mut self, decision: Decision) -> u64 {
        counted(&mut self.boxes, decision)
    }

    /// A decision's count over the proxies.
    pub(crate) fn at_proxies(&mut self, decision: Decision) -> u64 {
        counted(&mut self.proxies, decision)
    }

    /// Packets that each box forwarded, and that each proxy was sent.
    pub(crate) fn spread(&mut self) -> (Vec<u64>, Vec<u64>) {
        let mut owners = vec![0; self.proxies.len()];
        let mut each = Vec::new();
        for program in &mut self.boxes {
            let mut all = 0;
            for (id, total) in (1..).zip(&mut owners) {
                let packets = program.maps().owner_counts(id).expect("a read").packets;
                *total += packets;
                all += packets;
            }
            each.push(all);
        }
        (each, owners)
    }

    /// Starts transfers, half of them uploads, half over IPv6.
    pub(crate) fn start(&self, count: usize) -> Vec<Transfer> {
        self.start_each(count, |index| if index % 4 < 2 { Kind::Download } else { Kind::Upload })
    }

    /// Starts transfers of the given kinds, half of them over IPv6.
    pub(crate) fn start_each(&self, count: usize, kind: impl Fn(usize) -> Kind + Sync) -> Vec<Transfer> {
        self.lab.client.enter(|| {
            (0..count)
                .map(|index| {
                    let address = vip(if index % 2 == 0 { VIP4 } else { VIP6 });
                    let kind = kind(index);
                    Transfer::start(address, kind)
                        .unwrap_or_else(|error| unreachable!("{index} {kind:?}: {error}"))
                })
                .collect()
        })
    }
}

/// The row's owner while `active` proxies share the rows evenly, and as few rows as possible move between two counts.
pub(crate) fn owner_among(row: usize, active: u16) -> u16 {
    let sixth = u16::try_from(row % 6).expect("small");
    match active {
        1 => 1,
        2 => 1 + sixth % 2,
        // Rows 4 and 5 of six go to the third proxy.
        _ => {
            if sixth < 4 {
                1 + sixth % 2
            } else {
                3
            }
        }
    }
}

pub(crate) fn vip(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), PORT)
}

pub(crate) fn load(options: &LoadOptions) -> Program {
    Program::load(options).unwrap_or_else(|error| unreachable!("{}", chain(&error)))
}

pub(crate) fn attach(program: &mut Program, interface: &str) -> l4_load::Attached {
    attach_as(program, interface, Mode::Native)
}

fn attach_as(program: &mut Program, interface: &str, mode: Mode) -> l4_load::Attached {
    program.attach(interface, mode).unwrap_or_else(|error| unreachable!("{}", chain(&error)))
}

fn counted(programs: &mut [Program], decision: Decision) -> u64 {
    programs.iter_mut().map(|program| program.maps().vip_counts(VIP).expect("a read").of(decision)).sum()
}

/// The program of a box, or of the proxy with this id.
fn program(lab: &Lab, host: &Host, id: Option<u16>, mode: Mode, options: &LoadOptions) -> Program {
    let mut program = load(options);
    feed(program.maps(), lab, id);
    host.enter(|| attach_as(&mut program, "e0", mode));
    program
}

/// VIPs, owners and trusted sources. Odd owners are reached over IPv4, even ones over IPv6.
fn feed(maps: &mut l4_load::Maps, lab: &Lab, own: Option<u16>) {
    for address in [VIP4, VIP6] {
        for protocol in [TCP, UDP] {
            let key = VipKey { address: vip(address).ip(), port: PORT, protocol };
            maps.set_vip(key, Vip { id: VIP, flags: 0 }).expect("a VIP is taken");
        }
    }
    for (id, host) in (1..).zip(&lab.proxies) {
        let address = host.address(id % 2 == 0);
        let owner = if own == Some(id) { Owner::local(address) } else { Owner::remote(address) };
        maps.set_owner(id, &owner).expect("an owner is taken");
    }
    for (prefix, bits) in [("10.2.0.0", 16), ("10.3.0.0", 16), ("fd00:2::", 32), ("fd00:3::", 32)] {
        maps.set_trusted(prefix.parse().expect("an address"), bits).expect("trusted");
    }
}
