//! The lines of the table: which packet each is, which counter proves it, and what the reference took for it.

use l4_abi::Decision;
use l4_tests::frame::{ACK, SYN};
use l4_tests::rig::{LOCAL, VIP, VIP4};

/// One line of the table.
pub(crate) struct Path {
    pub(crate) name: &'static str,
    pub(crate) reference: Option<Reference>,
    pub(crate) destination: &'static str,
    pub(crate) tcp_flags: u8,
    /// Flows that the rounds go through, less one; 0 = one flow.
    pub(crate) mask: u32,
    /// Packets that fill the flow table first, sent as SYN.
    pub(crate) warm_up: u32,
    /// The row's previous owner; the present one is 1.
    pub(crate) previous: u16,
    pub(crate) counter: (u32, Decision),
    pub(crate) input: Input,
    pub(crate) has_cookies: bool,
}

impl Path {
    /// How many flows there are, if so few that the caches hold them.
    pub(crate) fn cached_flows(&self) -> u32 {
        if (1..=0xffff).contains(&self.mask) { self.mask + 1 } else { 0 }
    }

    /// Whether the flows of this path are in the flow table.
    pub(crate) fn is_remembered(&self) -> bool {
        matches!(self.counter.1, Decision::ForwardNew | Decision::ForwardFlow)
    }
}

/// What Katran took on the same path, less the harness.
#[derive(Clone, Copy)]
pub(crate) struct Reference {
    /// The frozen figure of 2026-08, in nanoseconds.
    pub(crate) frozen: f64,
    /// Measured again on 2026-11-30, its commit 19f08fec of 2026-08-22, in the same rounds as ours and the yardstick:
    /// the least, in nanoseconds.
    pub(crate) again: f64,
    /// The same, in yardsticks: the median of the rounds' own ratios.
    pub(crate) in_yardsticks: f64,
    /// The share of it that is allowed.
    pub(crate) allowed: f64,
}

/// How a packet comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// From its client.
    Client,
    /// Encapsulated by a machine with this address; the rows are this host's.
    Tunnel(&'static str),
    /// The same, of a connection with timestamps.
    Stamped(&'static str),
    /// From a client against whom there is a rule.
    Ruled,
    /// From its client, its IP length one byte beyond the frame.
    Cut,
    /// The first fragment.
    Fragment,
    /// From its client, to a listener of this host, with a cookie of this fleet.
    Cookie,
}

/// What most paths have.
pub(crate) const PLAIN: Path = Path {
    name: "",
    reference: None,
    destination: VIP4,
    tcp_flags: ACK,
    mask: 0,
    warm_up: 0,
    previous: 1,
    counter: (VIP, Decision::ForwardFlow),
    input: Input::Client,
    has_cookies: false,
};

/// A trusted machine, and one that is not.
const BOX: &str = "10.9.1.1";
const STRANGER: &str = "10.10.1.1";

pub(crate) const PATHS: [Path; 19] = [
    Path {
        name: "new SYN, inserted",
        reference: Some(Reference { frozen: 996.0, again: 817.0, in_yardsticks: 1.035, allowed: 0.8 }),
        tcp_flags: SYN,
        mask: 0xff_ffff,
        warm_up: 1_200_000,
        counter: (VIP, Decision::ForwardNew),
        ..PLAIN
    },
    Path {
        name: "established, hot flow",
        reference: Some(Reference { frozen: 80.0, again: 102.0, in_yardsticks: 1.31, allowed: 0.55 }),
        warm_up: 1,
        ..PLAIN
    },
    Path {
        name: "established, 64 k flows",
        reference: Some(Reference { frozen: 239.0, again: 234.0, in_yardsticks: 1.06, allowed: 0.8 }),
        mask: 0xffff,
        warm_up: 65_536,
        ..PLAIN
    },
    Path {
        name: "stateless, one flow",
        reference: Some(Reference { frozen: 117.0, again: 107.0, in_yardsticks: 1.325, allowed: 0.45 }),
        previous: 2,
        counter: (VIP, Decision::ForwardStateless),
        ..PLAIN
    },
    Path {
        name: "stateless, 64 k flows",
        mask: 0xffff,
        previous: 2,
        counter: (VIP, Decision::ForwardStateless),
        ..PLAIN
    },
    Path {
        name: "not ours, passed",
        reference: Some(Reference { frozen: 25.0, again: 49.0, in_yardsticks: 1.10, allowed: 0.8 }),
        destination: OTHER,
        counter: (0, Decision::NotOurs),
        ..PLAIN
    },
    Path {
        name: "not ours, 64 k flows",
        destination: OTHER,
        mask: 0xffff,
        counter: (0, Decision::NotOurs),
        ..PLAIN
    },
    Path {
        name: "decapsulated",
        previous: LOCAL,
        counter: (VIP, Decision::Decapsulated),
        input: Input::Tunnel(BOX),
        ..PLAIN
    },
    Path {
        name: "decapsulated, cookies on",
        previous: LOCAL,
        counter: (VIP, Decision::Decapsulated),
        input: Input::Tunnel(BOX),
        has_cookies: true,
        ..PLAIN
    },
    Path {
        name: "same, with timestamps",
        previous: LOCAL,
        counter: (VIP, Decision::Decapsulated),
        input: Input::Stamped(BOX),
        has_cookies: true,
        ..PLAIN
    },
    Path {
        name: "second chance, sent on",
        counter: (VIP, Decision::Rescued),
        input: Input::Tunnel(BOX),
        ..PLAIN
    },
    Path {
        name: "SYN, cookie sent",
        tcp_flags: SYN,
        counter: (VIP, Decision::CookieSent),
        has_cookies: true,
        ..PLAIN
    },
    Path {
        name: "SYNs of 16 M clients, same",
        tcp_flags: SYN,
        mask: 0xff_ffff,
        counter: (VIP, Decision::CookieSent),
        has_cookies: true,
        ..PLAIN
    },
    Path {
        name: "cookie accepted",
        previous: LOCAL,
        counter: (VIP, Decision::CookieAccepted),
        input: Input::Cookie,
        has_cookies: true,
        ..PLAIN
    },
    Path { name: "dropped by a rule", counter: (VIP, Decision::DropRule), input: Input::Ruled, ..PLAIN },
    Path {
        name: "same, 16 k rules",
        mask: 0xff_ffff,
        counter: (VIP, Decision::DropRule),
        input: Input::Ruled,
        ..PLAIN
    },
    Path { name: "dropped, bad length", counter: (0, Decision::DropBad), input: Input::Cut, ..PLAIN },
    Path {
        name: "dropped, fragment",
        counter: (VIP, Decision::DropFragment),
        input: Input::Fragment,
        ..PLAIN
    },
    Path {
        name: "dropped, untrusted",
        counter: (0, Decision::DropUntrusted),
        input: Input::Tunnel(STRANGER),
        ..PLAIN
    },
];

/// An address that is no VIP's.
const OTHER: &str = "192.0.2.99:443";
