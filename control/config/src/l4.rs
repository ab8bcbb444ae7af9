//! The L4 tier's file: text → checked tree → `l4_steer::config::Config`.
//!
//! Invariants: as for the config directory: a file with any error yields nothing, all errors are reported with their
//! place and way out, and files named in it lie beside it. What the kernel's maps cannot hold is an error here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use l4_abi::{RULES_MAX, SERVER_IDS_MAX, TRUSTED_MAX, VIPS_MAX};
use l4_steer::config::{
    Announce, AttachMode, Config, DropRule, Echo, Encapsulation, Flows, Fragments, HashSecret, Host, OnStop,
    Ports, Prefix, Protocol, Vip,
};
use l4_steer::owner::{Owner, OwnerId, OwnerList, OwnerState};
use l4_steer::quic_lb::{Key, Layout};
use l4_steer::rollout::Windows;

use crate::files::Files;
use crate::finding::{ConfigError, Findings, Problem};
use crate::schema::{Kind, Object, check, table};
use crate::units::parse_date;
use crate::yaml::{self, Node, Value};

/// An L4 file without errors.
#[derive(Debug)]
pub struct LoadedL4 {
    pub config: Config,
    pub warnings: Vec<ConfigError>,
}

/// Bytes of the hash key and of a QUIC-LB key.
const KEY_BYTES: usize = 16;
const PIN_DIRECTORY: &str = "/sys/fs/bpf/shard-l4";
const ANNOUNCE_LINE: &str = "route {prefix} blackhole;";

/// Loads the L4 tier's file; files that it names are relative to its directory.
///
/// # Errors
/// Every error of the file, in the order of lines; never empty.
pub fn load_l4(file: &Path) -> Result<LoadedL4, Vec<ConfigError>> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or("l4.yaml");
    let directory = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match Files::of_directory(directory) {
        Ok(files) => load_from(files, name),
        Err(error) => {
            let mut findings = Findings::default();
            let message = format!("its directory cannot be read: {error}");
            let problem = Problem::new(message, "name an existing file that this user may read");
            findings.error_in(&file.display().to_string(), problem);
            Err(findings.finish().0)
        }
    }
}

/// Loads the L4 tier's file `name` from memory, by path.
///
/// # Errors
/// As [`load_l4`].
pub fn load_l4_files(files: BTreeMap<String, Vec<u8>>, name: &str) -> Result<LoadedL4, Vec<ConfigError>> {
    load_from(Files::of_memory(files), name)
}

fn load_from(files: Files, name: &str) -> Result<LoadedL4, Vec<ConfigError>> {
    let mut reader = Reader { files, findings: Findings::default() };
    let config = reader.document(name);
    let has_errors = reader.findings.has_errors();
    let digest = reader.files.digest();
    let (errors, warnings) = reader.findings.finish();
    match config {
        Some(mut config) if !has_errors => {
            config.version = digest.chars().take(16).collect();
            Ok(LoadedL4 { config, warnings })
        }
        _ => Err(errors),
    }
}

struct Reader {
    files: Files,
    findings: Findings,
}

/// Values that the check has let through are read by these; what it has refused is reported already.
impl Reader {
    fn document(&mut self, name: &str) -> Option<Config> {
        let file = self.findings.add_file(name);
        let contents = match self.files.read(name) {
            Ok(contents) => contents,
            Err(problem) => {
                self.findings.error_in(name, problem);
                return None;
            }
        };
        let text = crate::text_of(name, &contents, &mut self.findings)?;
        let root = yaml::parse(file, text, &mut self.findings)?;
        check::check_object(&root, &table::L4, &mut self.findings);
        matches!(root.value, Value::Map(_)).then_some(())?;
        self.config(&root)
    }

    /// `None` when something without which nothing else can be checked is wrong; all else is in the findings.
    fn config(&mut self, root: &Node) -> Option<Config> {
        let empty = Node::empty_map(root.at, &root.path);
        let part = |key: &str| root.get(key).unwrap_or(&empty);
        let hash_secret = root.get("hash_key").and_then(|node| self.key(node));
        let (owners, addresses) = self.proxies(part("proxies"));
        let vips = self.vips(part("vips"), &owners);
        let host = self.host(part("host"));
        let trusted = self.trusted(root, &addresses);
        let drop_rules = self.drop_rules(root, &vips);
        self.addresses_apart(part("vips"), &addresses, &host);
        let flows = self.flows(part("flows"));
        let announce = root.get("announce").map(|node| self.announce(node, &vips));
        let windows = self.windows(root);
        Some(Config {
            version: String::new(),
            hash_secret: hash_secret.map(HashSecret)?,
            owners: owners?,
            addresses,
            vips,
            trusted,
            drop_rules,
            windows,
            flows,
            host,
            announce,
        })
    }

    fn error(&mut self, node: &Node, message: impl Into<String>, fix: impl Into<String>) {
        self.findings.error(node, Problem::new(message, fix));
    }

    /// The 16 bytes in the file that a node names.
    fn key(&mut self, node: &Node) -> Option<[u8; KEY_BYTES]> {
        let path = node.text()?;
        let contents = match self.files.read(path) {
            Ok(contents) => contents,
            Err(problem) => {
                self.findings.error(node, problem);
                return None;
            }
        };
        if self.files.is_world_readable(path) {
            let problem =
                Problem::new("every user of this machine can read the key", format!("chmod 640 {path}"));
            self.findings.warn(node, problem);
        }
        let bytes = <[u8; KEY_BYTES]>::try_from(contents.as_slice()).ok();
        if bytes.is_none() {
            let message = format!("a key has {KEY_BYTES} bytes, this file {}", contents.len());
            self.error(node, message, format!("make one by `openssl rand {KEY_BYTES} > FILE`"));
        }
        bytes
    }

    fn proxies(&mut self, node: &Node) -> (Option<OwnerList>, BTreeMap<OwnerId, IpAddr>) {
        let mut owners = Vec::new();
        let mut addresses = BTreeMap::new();
        let (mut ids, mut places) = (Seen::default(), Seen::default());
        for entry in node.entries() {
            let proxy = &entry.value;
            let state = match proxy.word("state") {
                Some("draining") => OwnerState::Draining,
                Some("down") => OwnerState::Down,
                _ => OwnerState::Active,
            };
            let weight = proxy.int("weight").map_or(Some(1), |weight| u16::try_from(weight).ok());
            let id = proxy.int("id").and_then(|id| OwnerId::new(u16::try_from(id).ok()?));
            let address = proxy.word("address").and_then(|text| text.parse::<IpAddr>().ok());
            if let (Some(id), Some(node)) = (id, proxy.get("id")) {
                ids.once(id, node, "id", &entry.key, &mut self.findings);
            }
            if let (Some(address), Some(node)) = (address, proxy.get("address")) {
                places.once(address, node, "address", &entry.key, &mut self.findings);
            }
            if let (Some(id), Some(address), Some(weight)) = (id, address, weight) {
                addresses.insert(id, address);
                owners.push(Owner { id, name: entry.key.clone(), weight, state });
            }
        }
        let is_whole = owners.len() == node.entries().len();
        if is_whole
            && !node.entries().is_empty()
            && owners.iter().all(|owner| owner.state != OwnerState::Active)
        {
            self.error(
                node,
                "no proxy is active, so new flows have nowhere to go",
                "set one to `state: active`",
            );
        }
        (OwnerList::new(owners).ok(), addresses)
    }

    fn vips(&mut self, node: &Node, owners: &Option<OwnerList>) -> Vec<Vip> {
        // The map's index 0 is not in use.
        let most = usize::try_from(VIPS_MAX).unwrap_or(usize::MAX) - 1;
        if node.entries().is_empty() || node.entries().len() > most {
            self.error(node, format!("1 to {most} VIPs are expected"), "add one, or merge some");
        }
        let mut seen = Seen::default();
        let mut echoes: HashMap<IpAddr, (Echo, String)> = HashMap::new();
        let mut server_ids = 0;
        let mut vips = Vec::new();
        for entry in node.entries() {
            let vip = self.vip(&entry.key, &entry.value, owners);
            let at = entry.value.get("addresses").unwrap_or(&entry.value);
            // A list that names a thing twice is reported by itself.
            for key in keys_of(&vip).collect::<HashSet<_>>() {
                seen.once(key, at, "address with this port and protocol", &entry.key, &mut self.findings);
            }
            for address in &vip.addresses {
                let (echo, other) = echoes.entry(*address).or_insert_with(|| (vip.echo, entry.key.clone()));
                if *echo != vip.echo {
                    let message =
                        format!("the VIP `{other}` has the address {address} too, with another `echo`");
                    self.findings.error(&entry.value, Problem::new(message, "write the same `echo` in both"));
                }
            }
            server_ids += vip.quic.len() * owners.as_ref().map_or(0, |owners| owners.owners().len());
            vips.push(vip);
        }
        if server_ids > usize::try_from(SERVER_IDS_MAX).unwrap_or(usize::MAX) {
            let message =
                format!("proxies × QUIC configurations are {server_ids}, at most {SERVER_IDS_MAX} fit");
            self.error(
                node,
                message,
                "merge VIPs, or delete QUIC configurations that are not in use any more",
            );
        }
        vips.sort_by(|a, b| a.name.cmp(&b.name));
        vips
    }

    fn vip(&mut self, name: &str, node: &Node, owners: &Option<OwnerList>) -> Vip {
        let ports = match node.get("ports") {
            None => Ports::Every,
            Some(list) => Ports::These(
                list.items().iter().filter_map(|port| port.plain()?.parse::<u16>().ok()).collect(),
            ),
        };
        let protocol = |word: &str| if word == "udp" { Protocol::Udp } else { Protocol::Tcp };
        let mut protocols: Vec<Protocol> = node.words("protocols").map(protocol).collect();
        if protocols.is_empty() {
            protocols.push(Protocol::Tcp);
        }
        let fragments = match node.word("fragments") {
            Some("forward") => Fragments::Forward,
            _ => Fragments::Drop,
        };
        if let (Some(fragments), Some(_)) = (node.get("fragments"), node.get("ports"))
            && fragments.text() == Some("forward")
        {
            let message =
                "only the first fragment of a packet has ports, so a VIP with `ports` cannot forward them";
            self.error(fragments, message, "delete `ports`, or write `fragments: drop`");
        }
        if let Some(quic) = node.get("quic")
            && !protocols.contains(&Protocol::Udp)
        {
            self.error(quic, "QUIC without UDP", "add `udp` to `protocols`");
        }
        Vip {
            name: name.to_owned(),
            addresses: node.words("addresses").filter_map(|text| text.parse().ok()).collect(),
            ports,
            protocols,
            encapsulation: match node.word("encapsulation") {
                Some("gue") => Encapsulation::Gue,
                _ => Encapsulation::Ipip,
            },
            echo: if node.word("echo") == Some("answer") { Echo::Answer } else { Echo::Pass },
            fragments,
            quic: self.quic(node.list("quic"), owners),
        }
    }

    fn quic(&mut self, nodes: &[Node], owners: &Option<OwnerList>) -> Vec<Layout> {
        let mut seen = Seen::default();
        let mut layouts = Vec::new();
        for node in nodes {
            let byte =
                |key: &str, default: u8| node.int(key).and_then(|n| u8::try_from(n).ok()).unwrap_or(default);
            let key = node.get("key").map(|key| self.key(key).map(Key));
            let layout = Layout {
                codepoint: byte("codepoint", 0),
                server_id_bytes: byte("server_id_bytes", 8),
                nonce_bytes: byte("nonce_bytes", 8),
                key: key.flatten(),
            };
            seen.once(layout.codepoint, node, "codepoint", "of another entry", &mut self.findings);
            if let Err(error) = layout.check() {
                self.error(node, error.to_string(), "correct `server_id_bytes` and `nonce_bytes`");
            }
            let unnamed = owners.iter().flat_map(|owners| owners.owners());
            if let Some(owner) = unnamed.into_iter().find(|owner| layout.server_id(owner.id).is_none()) {
                let message = format!(
                    "the id {} of proxy `{}` does not fit into {} byte(s)",
                    owner.id, owner.name, layout.server_id_bytes
                );
                self.error(node, message, "write `server_id_bytes: 2` or more");
            }
            layouts.push(layout);
        }
        layouts
    }

    fn host(&mut self, node: &Node) -> Host {
        let mut host = Host {
            interfaces: node.strings("interfaces"),
            attach: match node.word("attach") {
                Some("native") => AttachMode::Native,
                Some("generic") => AttachMode::Generic,
                _ => AttachMode::Auto,
            },
            address4: None,
            address6: None,
            mtu_bytes: number(node, "mtu", &table::L4_HOST),
            pin_directory: PathBuf::from(node.word("pin_directory").unwrap_or(PIN_DIRECTORY)),
        };
        for item in node.list("addresses") {
            let is_second = match item.text().map(str::parse) {
                Some(Ok(IpAddr::V4(address))) => host.address4.replace(address).is_some(),
                Some(Ok(IpAddr::V6(address))) => host.address6.replace(address).is_some(),
                _ => false,
            };
            if is_second {
                self.error(item, "a second address of one family", "keep one IPv4 and one IPv6 address");
            }
        }
        host
    }

    /// A VIP must not be a tunnel's end: the box would steer its own encapsulated packets.
    fn addresses_apart(&mut self, vips: &Node, proxies: &BTreeMap<OwnerId, IpAddr>, host: &Host) {
        for vip in vips.entries() {
            for item in vip.value.list("addresses") {
                let Some(address) = item.text().and_then(|text| text.parse::<IpAddr>().ok()) else {
                    continue;
                };
                if host.owns(address) || proxies.values().any(|proxy| *proxy == address) {
                    let message = "this is the tunnel address of a proxy or of this machine";
                    self.error(item, message, "give the VIP an address of its own");
                }
            }
        }
    }

    fn trusted(&mut self, root: &Node, proxies: &BTreeMap<OwnerId, IpAddr>) -> Vec<Prefix> {
        let trusted: Vec<Prefix> = root.words("trusted").filter_map(prefix).collect();
        let most = usize::try_from(TRUSTED_MAX).unwrap_or(usize::MAX);
        let count = trusted.len() + proxies.len();
        if let (Some(node), true) = (root.get("trusted").or(root.get("proxies")), count > most) {
            let message = format!("{count} trusted sources, the proxies included; at most {most} fit");
            self.error(node, message, "merge ranges");
        }
        trusted
    }

    fn drop_rules(&mut self, root: &Node, vips: &[Vip]) -> Vec<DropRule> {
        let mut seen = Seen::default();
        let mut rules = Vec::new();
        let mut entries = 0;
        for node in root.list("drop_rules") {
            let vip = node.word("vip").map(str::to_owned);
            if let (Some(name), Some(at)) = (&vip, node.get("vip"))
                && vips.iter().all(|vip| vip.name != *name)
            {
                let names: Vec<&str> = vips.iter().map(|vip| vip.name.as_str()).collect();
                self.error(at, "there is no such VIP", format!("write one of {}", names.join(", ")));
            }
            let Some(source) = node.word("source").and_then(prefix) else { continue };
            seen.once((vip.clone(), source), node, "source", "of another rule", &mut self.findings);
            entries += if vip.is_some() { 1 } else { vips.len() };
            let until = node.word("until").and_then(|text| parse_date(text).ok());
            rules.push(DropRule {
                vip,
                source,
                packets_per_second: node.int("packets_per_second").unwrap_or(0),
                until_unix_s: until.map(|date| date.unix_s),
            });
        }
        let most = usize::try_from(RULES_MAX).unwrap_or(usize::MAX);
        if let (Some(node), true) = (root.get("drop_rules"), entries > most) {
            let message = format!("{entries} rules, counted once for each VIP; at most {most} fit");
            self.error(node, message, "merge ranges, or name the VIP of a rule");
        }
        rules
    }

    fn flows(&mut self, node: &Node) -> Flows {
        let of = |key| number(node, key, &table::L4_FLOWS);
        Flows {
            entries_max: of("entries_max"),
            idle: node.duration("idle").unwrap_or(default_duration("idle", &table::L4_FLOWS)),
            inserts_per_second: of("inserts_per_second"),
            questions_per_second: of("questions_per_second"),
            icmp_per_second: of("icmp_per_second"),
            syn_cookies_above: std::num::NonZero::new(of("syn_cookies_above")),
        }
    }

    fn windows(&mut self, root: &Node) -> Windows {
        let of = |key| root.duration(key).unwrap_or(default_duration(key, &table::L4));
        let windows = Windows { drain: of("drain_window"), rescue: of("rescue_window") };
        if let (Some(node), true) = (root.get("rescue_window"), windows.rescue < windows.drain) {
            self.error(node, "shorter than the drain window", "write at least the value of `drain_window`");
        }
        windows
    }

    fn announce(&mut self, node: &Node, vips: &[Vip]) -> Announce {
        let path = |key: &str| node.word(key).map(PathBuf::from);
        let announce = Announce {
            file4: path("file4"),
            file6: path("file6"),
            line: node.word("line").unwrap_or(ANNOUNCE_LINE).to_owned(),
            command: node.strings("command"),
            on_stop: if node.word("on_stop") == Some("keep") { OnStop::Keep } else { OnStop::Withdraw },
        };
        if announce.file4.is_none() && announce.file6.is_none() {
            self.error(
                node,
                "one of `file4` or `file6` is missing",
                "add the file that the BGP speaker includes",
            );
        }
        for (family, is_named, of) in [
            ("4", announce.file4.is_some(), IpAddr::is_ipv4 as fn(&IpAddr) -> bool),
            ("6", announce.file6.is_some(), IpAddr::is_ipv6),
        ] {
            if !is_named && vips.iter().flat_map(|vip| &vip.addresses).any(of) {
                let message = format!("the IPv{family} VIPs are announced nowhere");
                self.findings.warn(node, Problem::new(message, format!("add `file{family}`")));
            }
        }
        announce
    }
}

/// Values that must be there once, with the place of the first.
struct Seen<T>(HashMap<T, String>);

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Eq + Hash> Seen<T> {
    fn once(&mut self, value: T, node: &Node, what: &str, owner: &str, findings: &mut Findings) {
        let place = findings.place_of(node);
        if let Some(first) = self.0.get(&value) {
            let message = format!("this {what} is already taken, at {first} (`{owner}` comes second)");
            findings.error(node, Problem::new(message, "give each its own"));
            return;
        }
        self.0.insert(value, place);
    }
}

/// Address, port (0 = every port) and protocol of each map entry of a VIP.
fn keys_of(vip: &Vip) -> impl Iterator<Item = (IpAddr, u16, Protocol)> {
    let ports = match &vip.ports {
        Ports::Every => vec![0],
        Ports::These(ports) => ports.clone(),
    };
    let of_address = move |address: IpAddr| {
        let ports = ports.clone();
        vip.protocols
            .iter()
            .flat_map(move |protocol| ports.clone().into_iter().map(move |port| (address, port, *protocol)))
    };
    vip.addresses.iter().copied().flat_map(of_address)
}

fn prefix(text: &str) -> Option<Prefix> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address.parse().ok()?, bits.parse().ok()?),
        None => {
            let address: IpAddr = text.parse().ok()?;
            (address, if address.is_ipv4() { 32 } else { 128 })
        }
    };
    Some(Prefix { address, bits })
}

/// A number, or its default in the table of keys.
fn number(node: &Node, key: &str, object: &Object) -> u32 {
    node.int(key).unwrap_or_else(|| match object.field(key).map(|field| &field.kind) {
        Some(Kind::Int(limits)) => limits.default.and_then(|n| u32::try_from(n).ok()).unwrap_or(0),
        _ => 0,
    })
}

fn default_duration(key: &str, object: &Object) -> Duration {
    match object.field(key).map(|field| &field.kind) {
        Some(Kind::Duration(limits)) => limits.default.unwrap_or_default(),
        _ => Duration::ZERO,
    }
}
