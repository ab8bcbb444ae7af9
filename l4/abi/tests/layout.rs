//! `l4/xdp/abi.h` and this crate are the same layout: a C file of static assertions is made from Rust's sizes,
//! offsets and constants and must compile.
#![expect(clippy::tests_outside_test_module, reason = "this whole file is a test target")]

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

use l4_abi::{
    Config, Decision, FlowSet, Owner, OwnerCounts, PrefixKey, QuicConfig, RescueCounts, Row, Rule, RuleKey,
    ServerIdKey, Settings, TablePage, TraceEvent, Vip, Vip4Key, Vip6Key, VipBucket, VipCounts, VipSlot,
};

type Slot4 = VipSlot<Vip4Key>;
type Slot6 = VipSlot<Vip6Key>;
type Bucket4 = VipBucket<Vip4Key>;
type Bucket6 = VipBucket<Vip6Key>;

/// Size of a C struct and the offset of each named field, as assertions.
macro_rules! layout {
    ($text:ident, $($rust:ident = $c:literal { $($field:ident),* })*) => {
        $(
            writeln!($text, "_Static_assert(sizeof(struct {}) == {}, \"size of {}\");", $c, size_of::<$rust>(), $c)
                .expect("a String takes all");
            let mut end = 0;
            $(
                let offset = offset_of!($rust, $field);
                assert_eq!(offset, end, "no padding before {} of {}", stringify!($field), $c);
                end = offset + field_size(|value: &$rust| size_of_val(&value.$field));
                writeln!(
                    $text,
                    "_Static_assert(__builtin_offsetof(struct {}, {}) == {offset}, \"{}\");",
                    $c, stringify!($field), concat!($c, ".", stringify!($field)),
                ).expect("a String takes all");
            )*
            assert_eq!(end, size_of::<$rust>(), "all fields of {} are named and no padding follows", $c);
        )*
    };
}

/// Size of the field that `pick` measures.
fn field_size<T: Zeroed>(pick: impl Fn(&T) -> usize) -> usize {
    pick(&T::zeroed())
}

trait Zeroed: Sized {
    fn zeroed() -> Self;
}

macro_rules! zeroed {
    ($($type:ident => $value:expr),* $(,)?) => {
        $(impl Zeroed for $type { fn zeroed() -> Self { $value } })*
    };
}

zeroed! {
    Vip4Key => Vip4Key { address: [0; 4], port: [0; 2], protocol: 0, zero: 0 },
    Vip6Key => Vip6Key { address: [0; 16], port: [0; 2], protocol: 0, zero: [0; 5] },
    Vip => Vip::default(),
    Owner => Owner::default(),
    Row => Row::default(),
    TablePage => TablePage { version: 0, rows: [Row::default(); l4_abi::PAGE_ROWS] },
    FlowSet => FlowSet::default(),
    Slot4 => VipSlot { key: Vip4Key::zeroed(), vip: Vip::default() },
    Slot6 => VipSlot { key: Vip6Key::zeroed(), vip: Vip::default() },
    Bucket4 => VipBucket { slots: [Slot4::zeroed(); l4_abi::VIP_SLOTS] },
    Bucket6 => VipBucket { slots: [Slot6::zeroed(); l4_abi::VIP_SLOTS] },
    VipCounts => VipCounts::default(),
    OwnerCounts => OwnerCounts::default(),
    RescueCounts => RescueCounts::default(),
    PrefixKey => PrefixKey { prefix_bits: 0, address: [0; 16] },
    RuleKey => RuleKey { prefix_bits: 0, vip: 0, address: [0; 16] },
    Rule => Rule::default(),
    QuicConfig => QuicConfig { form: 0, server_id_bytes: 0, nonce_bytes: 0, zero: 0, round_keys: [0; 44] },
    ServerIdKey => ServerIdKey { vip: 0, config: 0, bytes: 0, zero: [0; 2], id: [0; 16] },
    Settings => Settings::default(),
    TraceEvent => TraceEvent {
        time_ns: 0, flow: 0, vip: 0, decision: 0, owner: 0, source: [0; 16], destination: [0; 16],
        source_port: [0; 2], destination_port: [0; 2], protocol: 0, zero: 0, packet_bytes: 0,
    },
    Config => Config {
        hash_a: [0; 12], hash_b: [0; 12], cookie_key: [0; 2], own4: [0; 4], mtu_bytes: 0, own6: [0; 16], flow_set_mask: 0, flow_idle_units: 0,
        window_ticks: 0, inserts_per_window: 0, icmp_per_window: 0, cookies: 0, syns_per_window: 0,
        questions_per_window: 0,
    },
}

fn assertions() -> String {
    let mut text = String::from("#include \"abi.h\"\n");
    layout! { text,
        Vip4Key = "vip4_key" { address, port, protocol, zero }
        Vip6Key = "vip6_key" { address, port, protocol, zero }
        Vip = "vip" { id, flags }
        Owner = "owner" { flags, zero, address }
        Row = "row" { current, previous }
        TablePage = "table_page" { version, rows }
        FlowSet = "flow_set" { ways }
        Slot4 = "vip4_slot" { key, vip }
        Slot6 = "vip6_slot" { key, vip }
        Bucket4 = "vip4_bucket" { slots }
        Bucket6 = "vip6_bucket" { slots }
        VipCounts = "vip_counts" { packets, forwarded_bytes }
        OwnerCounts = "owner_counts" { packets, bytes }
        RescueCounts = "rescue_counts" { version, rescued, reset }
        PrefixKey = "prefix_key" { prefix_bits, address }
        RuleKey = "rule_key" { prefix_bits, vip, address }
        Rule = "rule" { expires_ns, packets_per_s, window_s, used, zero, dropped }
        QuicConfig = "quic_config" { form, server_id_bytes, nonce_bytes, zero, round_keys }
        ServerIdKey = "server_id_key" { vip, config, bytes, zero, id }
        Settings = "settings" { trace_one_in, any_port }
        TraceEvent = "trace_event" {
            time_ns, flow, vip, decision, owner, source, destination, source_port, destination_port, protocol,
            zero, packet_bytes
        }
        Config = "config" {
            hash_a, hash_b, cookie_key, own4, mtu_bytes, own6, flow_set_mask, flow_idle_units, window_ticks,
            inserts_per_window, icmp_per_window, cookies, syns_per_window, questions_per_window
        }
    }
    constants(&mut text);
    text
}

fn constants(text: &mut String) {
    let mut constant = |name: &str, value: u64| {
        writeln!(text, "_Static_assert({name} == {value}ull, \"{name}\");").expect("a String takes all");
    };
    macro_rules! constants {
        ($($name:ident),*) => { $(constant(stringify!($name), u64::try_from(l4_abi::$name).expect("positive"));)* };
    }
    constants!(
        ABI_VERSION,
        VIPS_MAX,
        OWNERS_MAX,
        TABLE_ROWS,
        PAGE_ROWS,
        TABLE_PAGES,
        RULES_MAX,
        TRUSTED_MAX,
        SERVER_IDS_MAX
    );
    constants!(VIP_BUCKETS, VIP_BUCKET_SHIFT, VIP_SLOTS, VIP_PROBES, VIP_MIX, VIP_MIX_SECOND, VIP_MIX_THIRD);
    constants!(FLOW_WAYS, FLOW_OWNER_MASK, FLOW_SEEN_TICKS_SHIFT);
    constants!(QUIC_CONFIGS, HASH_KEYS, RESCUE_MARK4, RESCUE_MARK6, RETURN_MARK4, RETURN_MARK6, GUE_PORT);
    constants!(VIP_GUE, VIP_HASH_ADDRESSES, VIP_RULES, VIP_QUIC, VIP_ECHO, OWNER_USED, OWNER_LOCAL, OWNER_V6);
    constants!(QUIC_UNUSED, QUIC_PLAIN, QUIC_ENCRYPTED);
    for decision in Decision::ALL {
        let name = format!("DECISION_{}", decision.name().to_uppercase());
        constant(&name, u64::from(decision as u32));
    }
    constant("DECISIONS", u64::try_from(Decision::ALL.len()).expect("few"));
}

/// Whether clang accepts `source` beside the header, and what it says.
fn compiles(source: &str) -> (bool, String) {
    let compiler =
        if Command::new("clang-19").arg("--version").output().is_ok() { "clang-19" } else { "clang" };
    let mut child = Command::new(compiler)
        .args(["-target", "bpf", "-D__x86_64__", "-I/usr/include/x86_64-linux-gnu", "-fsyntax-only"])
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/../xdp"))
        .args(["-xc", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("clang-19 is installed (.ci/packages)");
    child.stdin.take().expect("piped").write_all(source.as_bytes()).expect("clang reads");
    let output = child.wait_with_output().expect("clang ends");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn both_sides_have_one_layout() {
    let (agrees, said) = compiles(&assertions());
    assert!(agrees, "{said}");
}

#[test]
fn a_difference_is_found() {
    let source = format!("{}_Static_assert(sizeof(struct flow) == 12, \"size of flow\");\n", assertions());
    let (agrees, said) = compiles(&source);
    assert!(!agrees && said.contains("size of flow"), "{said}");
}
