//! Keys of the L4 tier's file: proxies, VIPs, drop rules, the machine, the announcement.

use std::time::Duration;

use control_api::defaults::Bound;

use super::super::Presence::{Optional, OptionalOr, Required};
use super::super::{Field, Kind, Limits, Object, durations, ints};
use super::NONE;
use super::texts::*;

const S_1: Duration = Duration::from_secs(1);
const FIVE_MINUTES: Duration = Duration::from_secs(300);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// `l4.yaml`.
pub(crate) static L4: Object = Object {
    name: "l4",
    doc: "The L4 tier, the file of `shard-l4 --config FILE`. All but `host` is the same on every box of a fleet.",
    fields: &[&[
        field!(
            "hash_key",
            Kind::Text(&FILE),
            Required,
            "File of exactly 16 random bytes, the key of the flow hash: the same on every box, or a flow that meets another box meets another proxy."
        ),
        field!(
            "proxies",
            Kind::Map { key: &NAME, of: &Kind::Object(&PROXY) },
            Required,
            "The proxies by name. The name decides which flows are a proxy's."
        ),
        field!(
            "vips",
            Kind::Map { key: &NAME, of: &Kind::Object(&VIP) },
            Required,
            "What clients connect to, by name."
        ),
        field!("host", Kind::Object(&L4_HOST), Required, "This machine."),
        field!(
            "trusted",
            list!(&Kind::Text(&CIDR), 1_000),
            OptionalOr("the proxies"),
            "Who may send encapsulated packets besides the proxies: the other boxes. From anybody else they are dropped."
        ),
        field!("drop_rules", list!(&Kind::Object(&DROP_RULE), 16_000), NONE, "Packets that are not wanted."),
        field!(
            "drain_window",
            durations(Bound { min: S_1, default: FIVE_MINUTES, max: HOUR }),
            Optional,
            "The time that a change of the proxies has for itself; another planned change waits for its end."
        ),
        field!(
            "rescue_window",
            durations(Bound { min: S_1, default: HOUR, max: DAY }),
            Optional,
            "How long after the last change a packet without a socket is still offered to the row's previous owner."
        ),
        field!(
            "flows",
            Kind::Object(&L4_FLOWS),
            Optional,
            "The flow table, and what one CPU may do in a second."
        ),
        field!("announce", Kind::Object(&ANNOUNCE), NONE, "How a BGP speaker learns of the VIPs."),
    ]],
    groups: &[],
};

static PROXY: Object = Object {
    name: "l4_proxy",
    doc: "A proxy as the L4 tier sees it.",
    fields: &[&[
        field!(
            "id",
            Kind::Int(Limits { min: 1, default: None, max: 4_095 }),
            Required,
            "Its number in flow tables and QUIC connection ids. Another proxy must not get it before all of these are forgotten."
        ),
        field!("address", Kind::Text(&ADDRESS), Required, "Where its encapsulated packets go."),
        field!(
            "weight",
            ints(Bound { min: 1, default: 1, max: 1_000 }),
            Optional,
            "Its share of new flows, relative to the others."
        ),
        field!(
            "state",
            Kind::Choice(&[
                ("active", "new flows and its own"),
                ("draining", "its own flows only"),
                ("down", "nothing: its flows are lost, and are spread over the others at once")
            ]),
            Optional,
            "What it may be sent."
        ),
    ]],
    groups: &[],
};

static VIP: Object = Object {
    name: "l4_vip",
    doc: "Addresses that stand for the proxies together.",
    fields: &[&[
        field!("addresses", list!(&Kind::Text(&ADDRESS), 64), Required, "IPv4 and IPv6."),
        field!(
            "ports",
            list!(&Kind::Int(Limits { min: 1, default: None, max: 65_535 }), 256),
            OptionalOr("every port that no other VIP of the address has"),
            "Its ports."
        ),
        field!(
            "protocols",
            list!(&Kind::Choice(&[("tcp", ""), ("udp", "")]), 2),
            OptionalOr("`[tcp]`"),
            "Its protocols."
        ),
        field!(
            "encapsulation",
            Kind::Choice(&[
                ("ipip", "IP in IP, 20 or 40 bytes more"),
                ("gue", "IP in UDP in IP, 28 or 48 bytes more; the proxies' receive queues spread the flows")
            ]),
            Optional,
            "How packets travel to a proxy."
        ),
        field!(
            "echo",
            Kind::Choice(&[("pass", "the host's stack answers"), ("answer", "the box answers")]),
            Optional,
            "ICMP echo requests."
        ),
        field!(
            "fragments",
            Kind::Choice(&[
                ("drop", "dropped and counted"),
                ("forward", "flows are told apart by addresses alone; needs a VIP without `ports`")
            ]),
            Optional,
            "Fragments of packets."
        ),
        field!(
            "quic",
            list!(&Kind::Object(&QUIC), 7),
            NONE,
            "How QUIC connection ids name proxies (QUIC-LB); other packets go by hash. Needs `protocols: [udp]`."
        ),
    ]],
    groups: &[],
};

static QUIC: Object = Object {
    name: "l4_quic",
    doc: "A QUIC-LB configuration. The server id of a proxy is its `id` as a big-endian number.",
    fields: &[&[
        field!(
            "codepoint",
            Kind::Int(Limits { min: 0, default: Some(0), max: 6 }),
            Optional,
            "Config rotation bits."
        ),
        field!(
            "server_id_bytes",
            Kind::Int(Limits { min: 1, default: Some(8), max: 15 }),
            Optional,
            "Bytes of a server id."
        ),
        field!(
            "nonce_bytes",
            Kind::Int(Limits { min: 4, default: Some(8), max: 18 }),
            Optional,
            "Bytes of a nonce. With a key, 16 together with the server id."
        ),
        field!(
            "key",
            Kind::Text(&FILE),
            OptionalOr("plaintext"),
            "File of exactly 16 random bytes: connection ids are encrypted in a single pass."
        ),
    ]],
    groups: &[],
};

static DROP_RULE: Object = Object {
    name: "l4_drop_rule",
    doc: "Packets of a source that are dropped. Of several rules for a packet the one with the longest prefix counts.",
    fields: &[&[
        field!("source", Kind::Text(&CIDR), Required, "Whose packets."),
        field!("vip", Kind::Text(&NAME), OptionalOr("every VIP"), "To which VIP."),
        field!(
            "packets_per_second",
            Kind::Int(Limits { min: 0, default: Some(0), max: 100_000_000 }),
            Optional,
            "What still passes on this box."
        ),
        field!("until", Kind::Text(&DATE), OptionalOr("for ever"), "When the rule ends."),
    ]],
    groups: &[],
};

pub(crate) static L4_FLOWS: Object = Object {
    name: "l4_flows",
    doc: "Bounds of the flow table. Pinned maps keep the size that they were made with.",
    fields: &[&[
        field!(
            "entries_max",
            ints(Bound { min: 1_024, default: 1 << 20, max: 1 << 26 }),
            Optional,
            "Flows that are remembered, 8 bytes each."
        ),
        field!(
            "idle",
            durations(Bound { min: S_1, default: FIVE_MINUTES, max: HOUR }),
            Optional,
            "A flow is forgotten after this time without a packet."
        ),
        field!(
            "inserts_per_second",
            ints(Bound { min: 0, default: 125_000, max: 10_000_000 }),
            Optional,
            "New flows that one CPU remembers in a second; beyond, flows are steered by their row alone."
        ),
        field!(
            "questions_per_second",
            ints(Bound { min: 0, default: 10_000, max: 10_000_000 }),
            Optional,
            "Datagrams of unknown flows for which one CPU of a proxy asks the previous owner of the row in a second, after a \
             change of the proxies; those beyond stay. They take nothing of `inserts_per_second`."
        ),
        field!(
            "icmp_per_second",
            ints(Bound { min: 0, default: 100, max: 1_000_000 }),
            Optional,
            "ICMP errors that one CPU makes in a second."
        ),
        field!(
            "syn_cookies_above",
            ints(Bound { min: 0, default: 0, max: 10_000_000 }),
            Optional,
            "SYNs of one VIP that one CPU passes on in a second; those beyond are answered with SYN cookies. 0 = never, \
             and then the cookies of other boxes are not accepted either. Needs Linux 6.9 on boxes and proxies."
        ),
    ]],
    groups: &[],
};

pub(crate) static L4_HOST: Object = Object {
    name: "l4_host",
    doc: "What is particular to one machine.",
    fields: &[&[
        field!("interfaces", list!(&Kind::Text(&INTERFACE), 32), Required, "Where packets come in."),
        field!(
            "attach",
            Kind::Choice(&[
                ("auto", "in the driver, or else in the stack, which is told and slower"),
                ("native", "in the driver, or not at all"),
                ("generic", "in the stack")
            ]),
            Optional,
            "Where the program runs."
        ),
        field!(
            "addresses",
            list!(&Kind::Text(&ADDRESS), 2),
            Required,
            "The machine's tunnel addresses, at most one of each family. A proxy with one of them is this machine."
        ),
        field!(
            "mtu",
            ints(Bound { min: 576, default: 1_500, max: 9_216 }),
            Optional,
            "The largest packet on the links to the proxies, outer headers included."
        ),
        field!(
            "pin_directory",
            Kind::Text(&ABSOLUTE),
            OptionalOr("`/sys/fs/bpf/shard-l4`"),
            "Where program and maps stay while the daemon is away; on a BPF file system."
        ),
    ]],
    groups: &[],
};

static ANNOUNCE: Object = Object {
    name: "l4_announce",
    doc: "Files that a BGP speaker includes. They hold one line a VIP address while the box is ready, and nothing otherwise.",
    fields: &[&[
        field!("file4", Kind::Text(&ABSOLUTE), NONE, "For IPv4."),
        field!("file6", Kind::Text(&ABSOLUTE), NONE, "For IPv6."),
        field!(
            "line",
            Kind::Text(&ANNOUNCE_LINE),
            OptionalOr("`route {prefix} blackhole;`, as BIRD wants it"),
            "The line; `{prefix}` stands for the address as a host route."
        ),
        field!(
            "command",
            list!(&Kind::Text(&WORD), 32),
            NONE,
            "Run when a file has changed, without a shell, such as `[birdc, configure]`."
        ),
        field!(
            "on_stop",
            Kind::Choice(&[("withdraw", ""), ("keep", "for an upgrade: the program in the kernel goes on")]),
            Optional,
            "What happens to the announcement when the daemon ends."
        ),
    ]],
    groups: &[],
};
