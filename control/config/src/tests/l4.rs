//! The L4 tier's file: what it becomes, and every error that is the L4 tier's own with its place and way out.

use std::net::IpAddr;
use std::time::Duration;

use l4_steer::config::{AttachMode, Config, Echo, Encapsulation, Fragments, OnStop, Ports, Protocol};
use l4_steer::owner::{OwnerId, OwnerState};

use super::{Set, shown};
use crate::{ConfigError, load_l4_files};

const BASE: &str = "\
hash_key: keys/hash
proxies:
  a: { id: 1, address: 10.0.0.1 }
  b: { id: 2, address: 10.0.0.2, weight: 3 }
vips:
  web:
    addresses: [192.0.2.1, \"2001:db8::1\"]
    ports: [80, 443]
host:
  interfaces: [eth0]
  addresses: [10.0.0.1]
";

fn files(text: &str) -> Set {
    let mut files = super::set(&[("l4.yaml", text), ("keys/short", "0123456789")]);
    files.insert("keys/hash".to_owned(), vec![7; 16]);
    files.insert("keys/quic".to_owned(), vec![9; 16]);
    files
}

fn errors_of(text: &str) -> Vec<ConfigError> {
    load_l4_files(files(text), "l4.yaml").err().unwrap_or_default()
}

fn config(text: &str) -> Config {
    match load_l4_files(files(text), "l4.yaml") {
        Ok(loaded) => {
            assert_eq!(loaded.warnings, []);
            loaded.config
        }
        Err(errors) => panic!("{}", shown(&errors)),
    }
}

#[test]
fn defaults_are_those_of_the_reference() {
    let config = config(BASE);
    let vip = config.vip("web").expect("it is there");
    assert_eq!(vip.protocols, [Protocol::Tcp]);
    assert_eq!(vip.ports, Ports::These(vec![80, 443]));
    assert_eq!(
        (vip.encapsulation, vip.echo, vip.fragments),
        (Encapsulation::Ipip, Echo::Pass, Fragments::Drop)
    );
    assert_eq!(config.windows.drain, Duration::from_secs(300));
    assert_eq!(config.windows.rescue, Duration::from_secs(3_600));
    assert_eq!((config.flows.entries_max, config.flows.idle), (1 << 20, Duration::from_secs(300)));
    assert_eq!((config.flows.inserts_per_second, config.flows.icmp_per_second), (125_000, 100));
    assert_eq!(config.flows.questions_per_second, 10_000);
    assert_eq!(config.flows.syn_cookies_above, None);
    assert_eq!((config.host.mtu_bytes, config.host.attach), (1_500, AttachMode::Auto));
    assert_eq!(config.host.pin_directory.to_str(), Some("/sys/fs/bpf/shard-l4"));
    assert!(config.host.owns(IpAddr::from([10, 0, 0, 1])) && !config.host.owns(IpAddr::from([10, 0, 0, 2])));
    let b = OwnerId::new(2).expect("an id");
    let owner = config.owners.get(b).expect("proxy b");
    assert_eq!((owner.name.as_str(), owner.weight, owner.state), ("b", 3, OwnerState::Active));
    assert_eq!(config.addresses.get(&b), Some(&IpAddr::from([10, 0, 0, 2])));
    assert!(config.trusted.is_empty() && config.drop_rules.is_empty() && config.announce.is_none());
    assert_eq!(config.version.len(), 16);
}

#[test]
fn the_example_loads() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/l4");
    let text = std::fs::read_to_string(root.join("l4.yaml")).expect("the example");
    let mut files = super::set(&[("l4.yaml", &text)]);
    // The keys are made by a script, because they are not committed.
    files.insert("keys/flow-hash".to_owned(), vec![7; 16]);
    files.insert("keys/quic".to_owned(), vec![9; 16]);
    let loaded = load_l4_files(files, "l4.yaml").expect("no errors");
    assert_eq!(loaded.warnings, []);
    let config = loaded.config;
    let quic = &config.vip("web-quic").expect("it is there").quic;
    assert!(quic.len() == 1 && quic[0].key.is_some());
    assert_eq!((config.drop_rules.len(), config.trusted.len()), (2, 1));
    assert_eq!(config.drop_rules[0].until_unix_s, Some(1_801_353_600));
    assert_eq!(config.announce.as_ref().map(|announce| announce.on_stop), Some(OnStop::Withdraw));
    assert!(!format!("{config:?}").contains("9, 9"), "keys are not printed");
}

#[test]
fn errors_name_their_place_and_the_way_out() {
    // What is replaced in the base, by what; line, key, a part of the message, a part of the fix.
    let cases = [
        ("keys/hash", "keys/none", 1, "hash_key", "cannot be read", "create it"),
        ("keys/hash", "keys/short", 1, "hash_key", "a key has 16 bytes, this file 10", "openssl rand 16"),
        ("keys/hash", "/etc/passwd", 1, "hash_key", "not a path inside", "relative"),
        ("id: 2", "id: 1", 4, "proxies.b.id", "already taken, at l4.yaml:3", "its own"),
        ("id: 2", "id: 4096", 4, "proxies.b.id", "above the most allowed value, 4095", "from 1 to 4095"),
        ("id: 2, ", "", 4, "proxies.b", "the key `id` is missing", "add `id`"),
        ("10.0.0.2", "10.0.0.1", 4, "proxies.b.address", "already taken, at l4.yaml:3", "its own"),
        ("10.0.0.2", "10.0.0.300", 4, "proxies.b.address", "not an IP address", "192.0.2.7"),
        ("10.0.0.2", "0.0.0.0", 4, "proxies.b.address", "no host has such an address", "192.0.2.7"),
        ("weight: 3", "weight: 0", 4, "proxies.b.weight", "below the least", "from 1 to 1000"),
        ("weight: 3", "state: drainig", 4, "proxies.b.state", "expected", "did you mean `draining`?"),
        ("192.0.2.1,", "10.0.0.2,", 7, "vips.web.addresses[0]", "tunnel address", "of its own"),
        ("[80, 443]", "[80, 80]", 8, "vips.web.ports[1]", "twice", "delete"),
        ("[80, 443]", "[0]", 8, "vips.web.ports[0]", "below the least", "from 1 to 65535"),
        ("[10.0.0.1]", "[10.0.0.1, 10.0.0.9]", 11, "host.addresses[1]", "a second address", "one IPv4"),
        ("[eth0]", "[eth/0]", 10, "host.interfaces[0]", "not a network interface", "ip link"),
        ("hash_key", "hashkey", 1, "hashkey", "unknown key", "did you mean `hash_key`?"),
    ];
    for (from, to, line, key, message, fix) in cases {
        let errors = errors_of(&BASE.replacen(from, to, 1));
        let found = errors.iter().find(|error| error.key == key && error.message.contains(message));
        let Some(error) = found else { panic!("{to}: wanted {key}: {message}, got:\n{}", shown(&errors)) };
        assert_eq!((error.file.as_str(), error.line), ("l4.yaml", line), "{error}");
        assert!(error.fix.contains(fix), "{error}\nwanted fix: {fix}");
        assert!(errors.len() == 1 || key.starts_with("hash"), "{to}: {}", shown(&errors));
    }
}

#[test]
fn added_keys_are_checked_against_the_rest() {
    // Lines added at the end of the base, the first of them line 12, or below the VIP as line 9.
    let vip = |lines: &str| BASE.replacen("host:\n", &format!("{lines}host:\n"), 1);
    let end = |lines: &str| format!("{BASE}{lines}");
    let cases = [
        (end("drop_rules: [{ source: 10.0.0.0/8, vip: wib }]\n"), 12, "drop_rules[0].vip", "no such VIP"),
        (end("drop_rules: [{ source: 10.0.0.1/8 }]\n"), 12, "drop_rules[0].source", "bits beyond its prefix"),
        (
            end("drop_rules:\n  - { source: 10.0.0.0/8 }\n  - { source: 10.0.0.0/8 }\n"),
            14,
            "drop_rules[1]",
            "already taken, at l4.yaml:13",
        ),
        (end("drop_rules: [{ source: 10.0.0.0/8, until: soon }]\n"), 12, "drop_rules[0].until", "not a date"),
        (end("drain_window: 10m\nrescue_window: 1m\n"), 13, "rescue_window", "shorter than the drain window"),
        (end("announce: { command: [birdc] }\n"), 12, "announce", "one of `file4` or `file6`"),
        (end("announce: { file4: x }\n"), 12, "announce.file4", "not an absolute path"),
        (
            end("announce: { file4: /x, file6: /y, line: route }\n"),
            12,
            "announce.line",
            "which prefix it announces",
        ),
        (vip("    fragments: forward\n"), 9, "vips.web.fragments", "only the first fragment"),
        (vip("    quic: [{ codepoint: 1 }]\n"), 9, "vips.web.quic", "QUIC without UDP"),
        (
            vip("    protocols: [udp]\n    quic: [{ nonce_bytes: 5, key: keys/quic }]\n"),
            10,
            "vips.web.quic[0]",
            "16 bytes together",
        ),
        (
            vip("    protocols: [udp]\n    quic: [{ codepoint: 1 }, { codepoint: 1, nonce_bytes: 7 }]\n"),
            10,
            "vips.web.quic[1]",
            "already taken",
        ),
        (
            vip("  other: { addresses: [192.0.2.1], ports: [443] }\n"),
            9,
            "vips.other.addresses",
            "already taken, at l4.yaml:7",
        ),
        (vip("  other: { addresses: [192.0.2.1], echo: answer }\n"), 9, "vips.other", "with another `echo`"),
    ];
    for (text, line, key, message) in cases {
        let errors = errors_of(&text);
        let [error] = errors.as_slice() else { panic!("wanted {key}: {message}, got:\n{}", shown(&errors)) };
        assert_eq!((error.line, error.key.as_str()), (line, key), "{error}");
        assert!(error.message.contains(message), "{error}\nwanted: {message}");
        assert!(!error.fix.is_empty(), "{error}");
    }
    let none = BASE.replace("weight: 3", "state: down").replace("10.0.0.1 }", "10.0.0.1, state: draining }");
    assert!(shown(&errors_of(&none)).contains("no proxy is active"));
}

#[test]
fn a_missing_file_and_a_family_that_is_announced_nowhere_are_told() {
    let errors = load_l4_files(files(BASE), "other.yaml").expect_err("there is no such file");
    assert!(shown(&errors).contains("other.yaml"), "{}", shown(&errors));
    let loaded =
        load_l4_files(files(&format!("{BASE}announce: {{ file4: /x }}\n")), "l4.yaml").expect("good");
    assert!(shown(&loaded.warnings).contains("IPv6 VIPs are announced nowhere"), "{:?}", loaded.warnings);
}
