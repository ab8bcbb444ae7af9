//! The two files of the host that say where names come from: resolv.conf(5) and hosts(5).
//!
//! Invariants: a file is read again when it changed, never more than [`FILE_BYTES_MAX`] of it; one that is missing
//! means its defaults. `search`, `domain` and `ndots` are not used: names in the config are whole names.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// What is read of a file at most.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// As many as resolv.conf(5) promises to use.
const SERVERS_MAX: usize = 3;

const PORT: u16 = 53;

/// What shard uses of resolv.conf(5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResolvConf {
    /// Never empty.
    pub(super) servers: Vec<SocketAddr>,
    pub(super) timeout: Option<Duration>,
    pub(super) attempts: Option<u32>,
}

/// Names of hosts(5), lower case.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hosts(HashMap<String, Vec<IpAddr>>);

/// What a file means.
pub(super) trait FromText {
    fn from_text(text: &str) -> Self;
}

impl FromText for ResolvConf {
    fn from_text(text: &str) -> Self {
        let mut conf = Self { servers: Vec::new(), timeout: None, attempts: None };
        for line in text.lines() {
            // Comments begin at the start of a line; a `#` behind a value is a word that means nothing here.
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let server = words.next().and_then(server);
                    conf.servers.extend(server.filter(|_| conf.servers.len() < SERVERS_MAX));
                }
                Some("options") => words.for_each(|word| conf.option(word)),
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            // resolv.conf(5): without an entry it is the server of this host.
            conf.servers.push(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT)));
        }
        conf
    }
}

impl ResolvConf {
    fn option(&mut self, word: &str) {
        let Some((key, value)) = word.split_once(':') else { return };
        let Ok(value) = value.parse::<u32>() else { return };
        match key {
            "timeout" => self.timeout = Some(Duration::from_secs(u64::from(value))),
            "attempts" => self.attempts = Some(value),
            _ => {}
        }
    }
}

/// `192.0.2.1`, `2001:db8::1` or `fe80::1%2`; an interface by name is not resolved.
fn server(word: &str) -> Option<SocketAddr> {
    match word.parse::<IpAddr>() {
        Ok(address) => Some(SocketAddr::from((address, PORT))),
        Err(_) => format!("[{word}]:{PORT}").parse().ok(),
    }
}

impl FromText for Hosts {
    fn from_text(text: &str) -> Self {
        let mut hosts: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for line in text.lines() {
            let line = line.split_once('#').map_or(line, |(before, _)| before);
            let mut words = line.split_ascii_whitespace();
            let Some(Ok(address)) = words.next().map(str::parse::<IpAddr>) else { continue };
            for name in words {
                let addresses = hosts.entry(name.trim_end_matches('.').to_ascii_lowercase()).or_default();
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        Self(hosts)
    }
}

impl Hosts {
    /// Addresses of a lower-case name.
    ///
    /// `localhost` and names below it are this host in any case (RFC 6761 §6.3). They stand for the IPv4 address
    /// where there is one: a local backend listens on one family, as a rule on that, and both would be balanced.
    pub(super) fn get(&self, name: &str) -> Option<Vec<IpAddr>> {
        let listed = self.0.get(name);
        if name != "localhost" && !name.ends_with(".localhost") {
            return listed.cloned();
        }
        let Some(listed) = listed else { return Some(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) };
        let v4: Vec<IpAddr> = listed.iter().copied().filter(IpAddr::is_ipv4).collect();
        Some(if v4.is_empty() { listed.clone() } else { v4 })
    }
}

/// A file whose meaning is kept until it changes.
#[derive(Debug)]
pub(super) struct Watched<T> {
    path: PathBuf,
    /// Time of change and length; None: there was no file.
    stamp: Option<(SystemTime, u64)>,
    value: T,
}

impl<T: FromText> Watched<T> {
    pub(super) fn new(path: PathBuf) -> Self {
        let stamp = stamp(&path);
        let value = T::from_text(&read(&path));
        Self { path, stamp, value }
    }

    /// The meaning of the file as it is now.
    pub(super) fn get(&mut self) -> &T {
        let stamp = stamp(&self.path);
        if stamp != self.stamp {
            self.stamp = stamp;
            self.value = T::from_text(&read(&self.path));
        }
        &self.value
    }
}

fn stamp(path: &PathBuf) -> Option<(SystemTime, u64)> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Both manuals say that a file which cannot be read is the same as an empty one.
fn read(path: &PathBuf) -> String {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)) {
        Ok(_) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_is_read_as_its_manual_says() {
        for (text, servers, timeout, attempts) in [
            ("", vec!["127.0.0.1:53"], None, None),
            ("; nameserver 192.0.2.1\n#nameserver 192.0.2.1", vec!["127.0.0.1:53"], None, None),
            ("nameserver 192.0.2.1", vec!["192.0.2.1:53"], None, None),
            (
                "search a.test b.test\nnameserver\t192.0.2.1 # first\nnameserver 2001:db8::1\nnameserver fe80::1%2\n\
                 nameserver 192.0.2.4\noptions ndots:5 timeout:3 attempts:4 rotate timeout:x",
                vec!["192.0.2.1:53", "[2001:db8::1]:53", "[fe80::1%2]:53"],
                Some(3),
                Some(4),
            ),
            ("nameserver none\nnameserver\nnameserver 192.0.2.9", vec!["192.0.2.9:53"], None, None),
        ] {
            let conf = ResolvConf::from_text(text);
            let found: Vec<String> = conf.servers.iter().map(SocketAddr::to_string).collect();
            assert_eq!(found, servers, "{text}");
            assert_eq!((conf.timeout, conf.attempts), (timeout.map(Duration::from_secs), attempts), "{text}");
        }
    }

    #[test]
    fn hosts_knows_names_and_aliases_and_localhost() {
        let hosts = Hosts::from_text(
            "127.0.0.1 localhost\n::1 localhost ip6-localhost\n10.0.0.1\tDb.test db # main\n10.0.0.2 db\n\
             #10.0.0.3 db\nnonsense db\n10.0.0.1 db",
        );
        for (name, addresses) in [
            ("db", Some(vec!["10.0.0.1", "10.0.0.2"])),
            ("db.test", Some(vec!["10.0.0.1"])),
            ("ip6-localhost", Some(vec!["::1"])),
            ("localhost", Some(vec!["127.0.0.1"])),
            ("api.localhost", Some(vec!["127.0.0.1"])),
            ("main", None),
            ("notlocalhost", None),
        ] {
            let addresses =
                addresses.map(|list| list.iter().map(|a| a.parse().expect("an address")).collect());
            assert_eq!(hosts.get(name), addresses, "{name}");
        }
        assert_eq!(Hosts::default().get("localhost"), Some(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]));
    }

    #[test]
    fn a_changed_file_is_read_again() {
        let path = std::env::temp_dir().join(format!("shard-dns-hosts-{}", std::process::id()));
        let mut hosts = Watched::<Hosts>::new(path.clone());
        assert_eq!(hosts.get().get("db"), None);
        for (text, address) in [("10.0.0.1 db\n", [10, 0, 0, 1]), ("10.0.0.20 db\n", [10, 0, 0, 20])] {
            fs::write(&path, text).expect("a temporary file");
            assert_eq!(hosts.get().get("db"), Some(vec![IpAddr::from(address)]));
        }
        fs::remove_file(&path).expect("the temporary file");
        assert_eq!(hosts.get().get("db"), None);
    }
}
