//! One loaded program with a small fleet in its maps, and runs of it on single frames.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use l4_abi::hash::HashKeys;
use l4_abi::{Decision, Owner, Row, TABLE_ROWS, TCP, UDP, Vip};
use l4_load::{LoadOptions, Maps, Program, VipKey};

use crate::frame::{Packet, is_v6};

/// This host's tunnel addresses.
pub const OWN4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 100);
pub const OWN6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100);
/// Proxies 1 and 2 behind IPv4 tunnels, 4 and 5 behind IPv6 ones; 3 is this host.
pub const OWNER1: &str = "10.9.0.1";
pub const OWNER2: &str = "10.9.0.2";
pub const LOCAL: u16 = 3;
pub const OWNER4: &str = "fd00::4";
pub const OWNER5: &str = "fd00::5";

/// VIP 1: TCP and UDP, port 443, both families.
pub const VIP: u32 = 1;
pub const VIP4: &str = "192.0.2.10:443";
pub const VIP6: &str = "[2001:db8::10]:443";
pub const CLIENT4: &str = "198.51.100.7:40000";
pub const CLIENT6: &str = "[2001:db8:1::7]:40000";

/// The secret of the flow hash.
pub const SECRET: [u8; 16] = *b"sixteen bytes ok";

/// XDP actions.
pub const DROP: u32 = 1;
pub const PASS: u32 = 2;
pub const TX: u32 = 3;

pub struct Rig {
    program: Program,
}

thread_local! {
    /// What [`reached`] takes.
    static REACHED: RefCell<BTreeSet<(&'static str, bool)>> = const { RefCell::new(BTreeSet::new()) };
}

/// The decisions that this thread's rigs have come to since the last call, by name, each with whether the flow's packet was
/// IPv6.
#[must_use]
pub fn reached() -> BTreeSet<(&'static str, bool)> {
    REACHED.take()
}

/// What a frame became.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub action: u32,
    pub frame: Vec<u8>,
    /// Decisions that were counted, by VIP.
    pub counted: Vec<(u32, Decision)>,
}

impl Rig {
    /// The options that [`Rig::new`] loads with.
    #[must_use]
    pub fn options() -> LoadOptions {
        LoadOptions {
            hash_secret: SECRET,
            own4: Some(OWN4),
            own6: Some(OWN6),
            mtu_bytes: 1600,
            flows_max: 4096,
            ..LoadOptions::default()
        }
    }

    /// A program with VIP 1 and the five owners; every row belongs to owner 1.
    #[must_use]
    pub fn new() -> Self {
        Self::with(&Self::options())
    }

    /// The same with other options.
    ///
    /// # Panics
    ///
    /// When the kernel refuses, with the reason: the calling test fails.
    #[must_use]
    pub fn with(options: &LoadOptions) -> Self {
        let program = Program::load(options).unwrap_or_else(|error| unreachable!("{}", crate::chain(&error)));
        let mut rig = Self { program };
        for (id, address) in [(1, OWNER1), (2, OWNER2), (4, OWNER4), (5, OWNER5)] {
            rig.owner(id, Owner::remote(ip(address)));
        }
        rig.owner(LOCAL, Owner::local(OWN4.into()));
        for address in [VIP4, VIP6] {
            rig.vip(address, TCP, VIP, 0);
            rig.vip(address, UDP, VIP, 0);
        }
        rig.rows(VIP, 1, |_| Row { current: 1, previous: 1 });
        rig
    }

    /// The maps.
    pub const fn maps(&mut self) -> &mut Maps {
        self.program.maps()
    }

    /// The program.
    pub const fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    /// Adds a VIP.
    pub fn vip(&mut self, address: &str, protocol: u8, id: u32, flags: u32) {
        let address: SocketAddr = address.parse().expect("an address with a port");
        let key = VipKey { address: address.ip(), port: address.port(), protocol };
        self.maps().set_vip(key, Vip { id, flags }).expect("a VIP is taken");
    }

    /// Sets an owner.
    pub fn owner(&mut self, id: u16, owner: Owner) {
        self.maps().set_owner(id, &owner).expect("an owner is taken");
    }

    /// Publishes a table.
    pub fn rows(&mut self, vip: u32, version: u32, row: impl Fn(usize) -> Row) {
        let rows: Vec<Row> = (0..TABLE_ROWS).map(row).collect();
        self.maps().swap_table(vip, version, &rows).expect("a table is taken");
    }

    /// Publishes a table whose rows are all alike.
    pub fn all_rows(&mut self, vip: u32, version: u32, current: u16, previous: u16) {
        self.rows(vip, version, |_| Row { current, previous });
    }

    /// Runs the program on a frame once.
    pub fn run(&mut self, frame: &[u8]) -> Outcome {
        self.outcome(frame, |program| program.run(frame, 1))
    }

    /// The same with a frame in front of which there is no room.
    pub fn run_without_room(&mut self, frame: &[u8]) -> Outcome {
        self.outcome(frame, |program| program.run_without_room(frame))
    }

    fn outcome(
        &mut self,
        frame: &[u8],
        run: impl FnOnce(&Program) -> Result<l4_load::Ran, l4_load::Error>,
    ) -> Outcome {
        let before = self.counts();
        let ran = run(&self.program).unwrap_or_else(|error| unreachable!("{}", crate::chain(&error)));
        let after = self.counts();
        let mut counted = Vec::new();
        for (vip, (before, after)) in (0..).zip(before.iter().zip(&after)) {
            for decision in Decision::ALL {
                let times = after.of(decision) - before.of(decision);
                counted.extend((0..times).map(|_| (vip, decision)));
            }
        }
        let v6 = is_v6(frame);
        REACHED.with_borrow_mut(|reached| {
            reached.extend(counted.iter().map(|(_, decision)| (decision.name(), v6)));
        });
        Outcome { action: ran.action, frame: ran.frame, counted }
    }

    /// Counters of the first VIPs.
    fn counts(&mut self) -> Vec<l4_abi::VipCounts> {
        (0..6).map(|vip| self.maps().vip_counts(vip).expect("counters are read")).collect()
    }
}

impl Default for Rig {
    fn default() -> Self {
        Self::new()
    }
}

/// The flow hash of a packet, by l4-abi.
#[must_use]
pub fn hash(packet: &Packet) -> u64 {
    HashKeys::new(&SECRET).flow(packet.source, packet.destination, packet.protocol)
}

/// An address.
#[must_use]
pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}
