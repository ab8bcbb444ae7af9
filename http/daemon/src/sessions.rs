//! The past of sticky sessions, as a successor is told it: which rings there were, of whom and for how long they have
//! been over, and where sessions are served. Tables are not sent: the successor makes the same ones from the same members.
//!
//! ```text
//!   sessions 1                       the version of this format and of how rings are made
//!   c CLUSTER
//!   h AGE ADDRESS SERIES HOSTNAME    an endpoint; AGE in ms since it has gone, - while the cluster has it
//!   r VERSION VIRTUAL_NODES AGE      a ring; AGE in ms since it was retired, - for the current one
//!   m ID WEIGHT                      a member of it, ID in hexadecimal
//! ```
//! Invariants: no line begins with a number, which would be a socket to older processes; no message is longer than
//! [`MESSAGE_BYTES_MAX`]; there are at most [`LINES_MAX`] lines and a ring is sent whole or not at all. Called by the
//! main thread on both sides.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use http_balance::EndpointId;
use http_balance::generations::Recipe;
use http_balance::ring::{Member, RingVersion};
use http_proxy::snapshot::{Heritage, Home};

const WORD: &str = "sessions ";
const HEAD: &str = "sessions 1";
/// The wire has room for 64 KiB.
const MESSAGE_BYTES_MAX: usize = 60 * 1024;
/// Of all clusters: some 6 MB. Nine rings of 2,000 endpoints are 20,000.
const LINES_MAX: usize = 250_000;
/// Messages that a successor keeps; [`LINES_MAX`] lines of the longest usual kind are fewer.
pub(crate) const MESSAGES_MAX: usize = 512;

/// What is sent.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) messages: Vec<String>,
    /// Rings for which there was no room.
    pub(crate) left_out: usize,
}

/// Messages for a successor.
pub(crate) fn bequest(heritage: &BTreeMap<String, Heritage>) -> Told {
    bequest_within(heritage, LINES_MAX)
}

fn bequest_within(heritage: &BTreeMap<String, Heritage>, lines_max: usize) -> Told {
    let mut room = lines_max;
    let mut take = |lines: usize| {
        let fits = lines <= room;
        room -= if fits { lines } else { 0 };
        fits
    };
    let mut kept: Vec<(&String, &Heritage, usize)> = Vec::new();
    for (cluster, of) in heritage {
        if take(1 + of.homes.len()) {
            kept.push((cluster, of, 0));
        }
    }
    // The current rings of all clusters first, then those before: a ring without the later ones is of use, too, but the
    // later ones have more sessions.
    let most = kept.iter().map(|(_, of, _)| of.rings.len()).max().unwrap_or(0);
    for at in 0..most {
        for (_, of, rings) in kept.iter_mut().filter(|(_, _, rings)| *rings == at) {
            if of.rings.get(at).is_some_and(|ring| take(1 + ring.members.len())) {
                *rings += 1;
            }
        }
    }
    let all: usize = heritage.values().map(|of| of.rings.len()).sum();
    let sent: usize = kept.iter().map(|(_, _, rings)| rings).sum();
    let mut pages = Pages::default();
    for (cluster, of, rings) in kept {
        pages.add(&format!("c {cluster}"));
        of.homes.iter().for_each(|(home, age)| pages.add(&home_line(home, *age)));
        for ring in of.rings.iter().take(rings) {
            let Recipe { version: RingVersion(version), virtual_nodes, members, retired } = ring;
            pages.add(&format!("r {version} {virtual_nodes} {}", age_text(*retired)));
            for Member { id: EndpointId(id), weight } in members {
                pages.add(&format!("m {id:x} {weight}"));
            }
        }
    }
    Told { messages: pages.done, left_out: all - sent }
}

#[derive(Default)]
struct Pages {
    done: Vec<String>,
}

impl Pages {
    fn add(&mut self, line: &str) {
        let has_room = |page: &&mut String| page.len() + 1 + line.len() <= MESSAGE_BYTES_MAX;
        match self.done.last_mut().filter(has_room) {
            Some(page) => {
                page.push('\n');
                page.push_str(line);
            }
            None => self.done.push(format!("{HEAD}\n{line}")),
        }
    }
}

fn home_line(Home { address, hostname, series }: &Home, age: Option<Duration>) -> String {
    let mut line = format!("h {} {address} {}", age_text(age), series.as_deref().unwrap_or("-"));
    // One that the format cannot carry is left out; the address serves.
    if let Some(hostname) = hostname.as_deref().filter(|name| !name.chars().any(char::is_control)) {
        write!(line, " {hostname}").unwrap_or_default();
    }
    line
}

fn age_text(age: Option<Duration>) -> String {
    age.map_or_else(|| "-".to_owned(), |age| age.as_millis().to_string())
}

/// Whether a message is such a bequest, of whatever version.
pub(crate) fn is_bequest(text: &str) -> bool {
    text.starts_with(WORD)
}

/// What a predecessor left, by cluster. Messages of another version and lines that cannot be read are passed over; a
/// ring that lacks something for it is not made, because its version does not fit.
pub(crate) fn inherited(messages: &[String]) -> BTreeMap<String, Heritage> {
    let mut all: BTreeMap<String, Heritage> = BTreeMap::new();
    let mut cluster = String::new();
    for text in messages {
        let mut lines = text.lines();
        if lines.next() != Some(HEAD) {
            continue;
        }
        for (kind, rest) in lines.filter_map(|line| line.split_once(' ')) {
            if kind == "c" {
                rest.clone_into(&mut cluster);
                all.entry(cluster.clone()).or_default();
                continue;
            }
            let Some(of) = all.get_mut(&cluster) else { continue };
            match kind {
                "h" => of.homes.extend(home(rest)),
                "r" => of.rings.extend(ring(rest)),
                "m" => {
                    if let (Some(ring), Some(member)) = (of.rings.last_mut(), member(rest)) {
                        ring.members.push(member);
                    }
                }
                _ => {}
            }
        }
    }
    all
}

fn home(line: &str) -> Option<(Home, Option<Duration>)> {
    let mut words = line.splitn(4, ' ');
    let age = age(words.next()?)?;
    let address = words.next()?.parse().ok()?;
    let series = words.next().filter(|word| *word != "-").map(str::to_owned);
    let hostname = words.next().map(str::to_owned);
    Some((Home { address, hostname, series }, age))
}

fn ring(line: &str) -> Option<Recipe> {
    let mut words = line.split(' ');
    let version = RingVersion(words.next()?.parse().ok()?);
    let virtual_nodes = words.next()?.parse().ok()?;
    let retired = age(words.next()?)?;
    Some(Recipe { version, virtual_nodes, members: Vec::new(), retired })
}

fn member(line: &str) -> Option<Member> {
    let (id, weight) = line.split_once(' ')?;
    Some(Member { id: EndpointId(u64::from_str_radix(id, 16).ok()?), weight: weight.parse().ok()? })
}

fn age(word: &str) -> Option<Option<Duration>> {
    if word == "-" {
        return Some(None);
    }
    Some(Some(Duration::from_millis(word.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heritage(rings: usize, members: u64) -> Heritage {
        let member = |n| Member { id: EndpointId(u64::MAX - n), weight: 100 };
        let ring = |at: usize| Recipe {
            version: RingVersion(u32::MAX - u32::try_from(at).expect("few")),
            virtual_nodes: 256,
            members: (0..members).map(member).collect(),
            retired: (at > 0).then(|| Duration::from_millis(7)),
        };
        let home = |name: Option<&str>, series: Option<&str>| Home {
            address: "[2001:db8::1]:443".parse().expect("an address"),
            hostname: name.map(str::to_owned),
            series: series.map(str::to_owned),
        };
        let homes = vec![
            (home(None, None), None),
            (home(Some("a name"), None), Some(Duration::from_millis(1500))),
            (home(Some("b.example"), Some("b.example:443")), None),
        ];
        Heritage { rings: (0..rings).map(ring).collect(), homes }
    }

    #[test]
    fn what_is_told_arrives() {
        let all =
            BTreeMap::from([("app/a b".to_owned(), heritage(3, 5000)), ("app/u".to_owned(), heritage(1, 2))]);
        let told = bequest(&all);
        assert_eq!((told.messages.len(), told.left_out), (6, 0));
        for text in &told.messages {
            assert!(is_bequest(text) && text.len() <= MESSAGE_BYTES_MAX);
            let sockets = text.lines().filter_map(|line| line.split(' ').next()?.parse::<usize>().ok());
            assert_eq!(sockets.count(), 0, "an older process takes them for sockets");
        }
        assert_eq!(inherited(&told.messages), all);
        assert!(bequest(&BTreeMap::new()).messages.is_empty());
    }

    #[test]
    fn without_room_the_oldest_rings_stay_behind_and_are_counted() {
        let all = BTreeMap::from([("a".to_owned(), heritage(3, 10)), ("b".to_owned(), heritage(2, 10))]);
        let rings = |lines| {
            let told = bequest_within(&all, lines);
            let heir = inherited(&told.messages);
            (heir.values().map(|of| of.rings.len()).collect::<Vec<_>>(), told.left_out)
        };
        // 4 lines for the endpoints of each cluster, 11 for each ring.
        assert_eq!(rings(8 + 55), (vec![3, 2], 0));
        assert_eq!(rings(8 + 54), (vec![2, 2], 1));
        assert_eq!(rings(8 + 33), (vec![2, 1], 2));
        assert_eq!(rings(8 + 11), (vec![1, 0], 4));
        assert_eq!(rings(3), (vec![], 5));
    }

    #[test]
    fn other_versions_and_nonsense_are_passed_over() {
        let text = |text: &str| vec![text.to_owned()];
        assert!(is_bequest("sessions 2\nc a"));
        assert!(!is_bequest("session") && !is_bequest("0 sessions"));
        assert!(inherited(&text("sessions 2\nc a\nr 1 256 -")).is_empty());
        assert!(inherited(&text("sessions 1\nr 1 256 -\nm 1 1")).is_empty(), "of no cluster");
        let of = inherited(&text(
            "sessions 1\nc a\nm 1 1\nr x 256 -\nr 1 256\nh - nowhere -\nz 1\nr 1 256 -\nm x 1\nm 1 y",
        ));
        let ring = Recipe { version: RingVersion(1), virtual_nodes: 256, members: Vec::new(), retired: None };
        assert_eq!(of["a"], Heritage { rings: vec![ring], homes: Vec::new() });
    }
}
