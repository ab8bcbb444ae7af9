//! Listening sockets of all listeners: bound once, kept across reloads, handed over on a restart.
//!
//! A group is the SO_REUSEPORT group of one address: a socket for each shard, and those that a predecessor with
//! more shards left behind. Every socket of a group is accepted from as long as it is open: the kernel goes on
//! giving each its share of new connections, and closing one loses what waits in its queue (C30). The process
//! keeps a descriptor of each socket, so that it can pass them on whatever the shards do.
//!
//! Invariants: [`Sockets::plan`] changes nothing, so a reload whose address is not to be had is refused whole;
//! a group follows its address, not the listener's name, so that renaming a listener closes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use core_runtime::net::{BindOptions, ListeningSocket};
use http_proxy::snapshot::StatId;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::describe::Wanted;
use crate::oplog;

/// All sockets of the process.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    groups: Vec<Group>,
}

#[derive(Clone, Debug)]
struct Group {
    /// The listener's name at the last plan: finds the group of a port that the kernel chose.
    name: String,
    /// As bound.
    address: SocketAddr,
    /// By number, which is the shard's where there is one.
    sockets: BTreeMap<usize, Rc<ListeningSocket>>,
    /// Which listener the shards accept for.
    serving: Option<StatId>,
    /// None when another process has set it.
    steers_by_cpu: Option<bool>,
}

/// What has to happen to serve a config: all closing before all opening.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) close: Vec<StatId>,
    pub(crate) open: Vec<Opening>,
    groups: Vec<Group>,
    steering: Vec<bool>,
}

/// A socket for a shard.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) shard: usize,
    pub(crate) listener: StatId,
    pub(crate) socket: ListeningSocket,
}

/// An address that cannot be listened on.
#[derive(Debug)]
pub(crate) struct BindError {
    pub(crate) listener: String,
    pub(crate) address: SocketAddr,
    pub(crate) error: io::Error,
    /// File, line and key of the listener, when they are known.
    pub(crate) place: Option<String>,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listener {:?}: cannot listen on {}: ", self.listener, self.address)?;
        match self.error.kind() {
            io::ErrorKind::AddrInUse => f.write_str("another process listens there")?,
            io::ErrorKind::PermissionDenied if self.address.port() < 1024 => {
                f.write_str("not permitted; ports below 1024 need CAP_NET_BIND_SERVICE")?;
            }
            io::ErrorKind::AddrNotAvailable => f.write_str("no interface of this host has the address")?,
            _ => write!(f, "{}", self.error)?,
        }
        match &self.place {
            Some(place) => write!(f, " ({place})"),
            None => Ok(()),
        }
    }
}

impl Sockets {
    /// Sockets that another process handed over, with the listener's name and the number of each.
    pub(crate) fn inherited(sockets: impl IntoIterator<Item = (String, usize, ListeningSocket)>) -> Self {
        let mut all = Self::default();
        for (name, number, socket) in sockets {
            let address = socket.addr();
            let at = all.groups.iter().position(|group| group.address == address);
            let at = at.unwrap_or_else(|| {
                let sockets = BTreeMap::new();
                all.groups.push(Group { name, address, sockets, serving: None, steers_by_cpu: None });
                all.groups.len() - 1
            });
            if let Some(group) = all.groups.get_mut(at) {
                group.sockets.insert(number, Rc::new(socket));
            }
        }
        all
    }

    /// Binds what is missing for `wanted` and says what the shards have to do; nothing happens until
    /// [`Sockets::commit`], and dropping the plan closes what it bound.
    ///
    /// # Errors
    /// The first address that is not to be had.
    pub(crate) fn plan(&self, wanted: &[Wanted], shards: usize) -> Result<Plan, BindError> {
        let mut plan = Plan { close: Vec::new(), open: Vec::new(), groups: Vec::new(), steering: Vec::new() };
        let mut is_used = vec![false; self.groups.len()];
        for listener in wanted {
            let failed = |error| BindError {
                listener: listener.name.clone(),
                address: listener.address,
                error,
                place: None,
            };
            let known = self.find(listener, &is_used);
            if let Some((at, _)) = known {
                is_used.iter_mut().skip(at).take(1).for_each(|used| *used = true);
            }
            let mut group = match known {
                Some((_, group)) => group.clone(),
                None => self.new_group(listener).map_err(failed)?,
            };
            group.name.clone_from(&listener.name);
            group.fill(shards).map_err(failed)?;
            if group.serving != Some(listener.stat) {
                plan.close.extend(group.serving.replace(listener.stat));
                for (number, socket) in &group.sockets {
                    let socket = socket.try_clone().map_err(failed)?;
                    plan.open.push(Opening { shard: number % shards, listener: listener.stat, socket });
                }
            }
            plan.groups.push(group);
            plan.steering.push(listener.steer_by_cpu);
        }
        let gone = self.groups.iter().zip(is_used).filter(|(_, used)| !used);
        plan.close.extend(gone.filter_map(|(group, _)| group.serving));
        Ok(plan)
    }

    /// Makes a plan the state: what it does not name is closed here, and on the shards when they have done as told.
    pub(crate) fn commit(&mut self, groups: Groups) {
        self.groups = groups.groups;
        for (group, wanted) in self.groups.iter_mut().zip(groups.steering) {
            group.steer(wanted);
        }
    }

    fn find(&self, listener: &Wanted, is_used: &[bool]) -> Option<(usize, &Group)> {
        let is_it = |group: &Group| match listener.address.port() {
            0 => group.name == listener.name && group.address.ip() == listener.address.ip(),
            _ => group.address == listener.address,
        };
        self.groups.iter().enumerate().find(|(at, group)| is_used.get(*at) == Some(&false) && is_it(group))
    }

    fn new_group(&self, listener: &Wanted) -> io::Result<Group> {
        let address = listener.address;
        // SO_REUSEPORT would let two unrelated processes of one user share a port without a word.
        let overlaps = |group: &Group| {
            let (ours, theirs) = (group.address, address);
            ours.port() == theirs.port() && (ours.ip().is_unspecified() || theirs.ip().is_unspecified())
        };
        if address.port() != 0 && !self.groups.iter().any(overlaps) {
            probe(&address)?;
        }
        let (name, sockets) = (listener.name.clone(), BTreeMap::new());
        Ok(Group { name, address, sockets, serving: None, steers_by_cpu: Some(false) })
    }

    /// The bound address of a listener.
    pub(crate) fn address(&self, listener: StatId) -> Option<SocketAddr> {
        self.groups.iter().find(|group| group.serving == Some(listener)).map(|group| group.address)
    }

    /// Second descriptors of every socket, for a successor.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub(crate) fn duplicate(&self) -> io::Result<Vec<(String, usize, ListeningSocket)>> {
        let all = self
            .groups
            .iter()
            .flat_map(|group| group.sockets.iter().map(move |(number, socket)| (group, number, socket)));
        all.map(|(group, number, socket)| Ok((group.name.clone(), *number, socket.try_clone()?))).collect()
    }

    /// The sockets of a shard that has ended, for another one.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub(crate) fn of_shard(&self, dead: usize, shards: usize, heir: usize) -> io::Result<Vec<Opening>> {
        let mut open = Vec::new();
        for group in &self.groups {
            let Some(listener) = group.serving else { continue };
            for (_, socket) in group.sockets.iter().filter(|(number, _)| *number % shards == dead) {
                open.push(Opening { shard: heir, listener, socket: socket.try_clone()? });
            }
        }
        Ok(open)
    }

    /// Closes the process's own descriptors: the shards' are then the last ones.
    pub(crate) fn release(&mut self) {
        self.groups.clear();
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.groups.iter().map(|group| group.sockets.len()).sum()
    }
}

/// The part of a plan that becomes the state.
#[derive(Debug)]
pub(crate) struct Groups {
    groups: Vec<Group>,
    steering: Vec<bool>,
}

impl Plan {
    /// What the shards have to close, what they have to open, and the state that this makes.
    pub(crate) fn parts(self) -> (Vec<StatId>, Vec<Opening>, Groups) {
        (self.close, self.open, Groups { groups: self.groups, steering: self.steering })
    }
}

impl Group {
    fn fill(&mut self, shards: usize) -> io::Result<()> {
        for number in 0..shards {
            if !self.sockets.contains_key(&number) {
                let socket = ListeningSocket::bind(self.address, BindOptions::default())?;
                // A port that the kernel chose for the first socket is the port of all.
                self.address = socket.addr();
                self.sockets.insert(number, Rc::new(socket));
            }
        }
        Ok(())
    }

    /// The kernel keeps the rule for the group, so one socket is enough.
    fn steer(&mut self, by_cpu: bool) {
        if self.steers_by_cpu == Some(by_cpu) {
            return;
        }
        if let Some(socket) = self.sockets.values().next() {
            match socket.set_steer_by_cpu(by_cpu) {
                Ok(()) => self.steers_by_cpu = Some(by_cpu),
                Err(error) => {
                    oplog::warn(&format!("listener {:?}: steering cannot be set: {error}", self.name))
                }
            }
        }
    }
}

/// Fails when anybody listens on the address. The kernel lets a socket without SO_REUSEPORT share only with sockets
/// that do not listen.
fn probe(address: &SocketAddr) -> io::Result<()> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    Ok(rustix::net::bind(&socket, address)?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn wanted(stat: u32, name: &str, address: SocketAddr) -> Wanted {
        Wanted { stat: StatId(stat), name: name.to_owned(), address, steer_by_cpu: false }
    }

    fn any() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    fn commit(sockets: &mut Sockets, plan: Plan) -> (Vec<StatId>, Vec<Opening>) {
        let (close, open, groups) = plan.parts();
        sockets.commit(groups);
        (close, open)
    }

    fn shards_of(open: &[Opening]) -> Vec<usize> {
        open.iter().map(|opening| opening.shard).collect()
    }

    #[test]
    fn each_shard_gets_a_socket_and_an_unchanged_listener_is_left_alone() {
        let mut sockets = Sockets::default();
        let plan = sockets.plan(&[wanted(1, "a", any())], 3).expect("free ports");
        let (close, open) = commit(&mut sockets, plan);
        assert_eq!((close.len(), shards_of(&open)), (0, vec![0, 1, 2]));
        let address = sockets.address(StatId(1)).expect("bound");
        assert!(open.iter().all(|opening| opening.socket.addr() == address), "one port for all");
        for again in [any(), address] {
            let (close, open, _) =
                sockets.plan(&[wanted(1, "a", again)], 3).expect("nothing to bind").parts();
            assert_eq!((close.len(), open.len()), (0, 0));
        }
    }

    #[test]
    fn a_renamed_listener_keeps_its_sockets() {
        let mut sockets = Sockets::default();
        let plan = sockets.plan(&[wanted(1, "a", any())], 1).expect("free ports");
        let (_, open) = commit(&mut sockets, plan);
        let address = open[0].socket.addr();
        // The only descriptor that is left is the process's own: a client that has connected still waits in it.
        drop(open);
        let _client = TcpStream::connect(address).expect("the queue takes it");
        let plan = sockets.plan(&[wanted(2, "b", address)], 1).expect("nothing to bind");
        let (close, open) = commit(&mut sockets, plan);
        assert_eq!(close, [StatId(1)]);
        assert_eq!((open.len(), open[0].listener, open[0].socket.addr()), (1, StatId(2), address));
        assert_eq!(sockets.count(), 1);
    }

    #[test]
    fn addresses_may_be_swapped() {
        let mut sockets = Sockets::default();
        let plan = sockets.plan(&[wanted(1, "a", any()), wanted(2, "b", any())], 1).expect("free ports");
        commit(&mut sockets, plan);
        let [a, b] = [1, 2].map(|stat| sockets.address(StatId(stat)).expect("bound"));
        let plan = sockets.plan(&[wanted(1, "a", b), wanted(2, "b", a)], 1).expect("nothing to bind");
        let (mut close, open) = commit(&mut sockets, plan);
        close.sort_unstable_by_key(|stat| stat.0);
        assert_eq!((close, open.len()), (vec![StatId(1), StatId(2)], 2));
        assert_eq!((sockets.address(StatId(1)), sockets.address(StatId(2))), (Some(b), Some(a)));
    }

    #[test]
    fn one_address_in_use_refuses_the_whole_plan() {
        let taken = TcpListener::bind(any()).expect("a free port").local_addr().expect("bound");
        let holder = TcpListener::bind(taken).expect("still free");
        let mut sockets = Sockets::default();
        let plan = sockets.plan(&[wanted(1, "a", any())], 1).expect("free ports");
        commit(&mut sockets, plan);
        let kept = sockets.address(StatId(1));
        let error = sockets.plan(&[wanted(2, "new", any()), wanted(3, "bad", taken)], 1).expect_err("in use");
        assert_eq!((error.listener.as_str(), error.address), ("bad", taken));
        assert!(error.to_string().contains("another process listens there"), "{error}");
        assert_eq!((sockets.count(), sockets.address(StatId(1))), (1, kept), "nothing has changed");
        drop(holder);
        sockets.plan(&[wanted(3, "bad", taken)], 1).expect("free again");
    }

    #[test]
    fn another_process_of_ours_with_reuseport_is_noticed_too() {
        let theirs = ListeningSocket::bind(any(), BindOptions::default()).expect("a free port");
        let error = Sockets::default().plan(&[wanted(1, "a", theirs.addr())], 1).expect_err("in use");
        assert_eq!(error.error.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn sockets_of_a_larger_predecessor_are_all_served() {
        let mut old = Sockets::default();
        let plan = old.plan(&[wanted(1, "a", any())], 4).expect("free ports");
        commit(&mut old, plan);
        let address = old.address(StatId(1)).expect("bound");
        let mut new = Sockets::inherited(old.duplicate().expect("descriptors"));
        let plan = new.plan(&[wanted(7, "a", address)], 3).expect("nothing to bind");
        let (close, open) = commit(&mut new, plan);
        assert_eq!((close.len(), shards_of(&open)), (0, vec![0, 1, 2, 0]));
        assert_eq!(shards_of(&new.of_shard(0, 3, 2).expect("descriptors")), [2, 2]);
    }

    #[test]
    fn a_successor_with_more_shards_binds_the_rest() {
        let mut old = Sockets::default();
        let plan = old.plan(&[wanted(1, "a", any())], 1).expect("free ports");
        commit(&mut old, plan);
        let address = old.address(StatId(1)).expect("bound");
        let new = Sockets::inherited(old.duplicate().expect("descriptors"));
        let (_, open, _) = new.plan(&[wanted(1, "a", address)], 3).expect("the same user").parts();
        assert_eq!(shards_of(&open), [0, 1, 2]);
        assert!(open.iter().all(|opening| opening.socket.addr() == address));
    }

    #[test]
    fn specific_and_wildcard_addresses_of_one_config_do_not_block_each_other() {
        let mut sockets = Sockets::default();
        let plan =
            sockets.plan(&[wanted(1, "all", SocketAddr::from(([0, 0, 0, 0], 0)))], 1).expect("free ports");
        commit(&mut sockets, plan);
        let wide = sockets.address(StatId(1)).expect("bound");
        let narrow = SocketAddr::from(([127, 0, 0, 1], wide.port()));
        sockets.plan(&[wanted(1, "all", wide), wanted(2, "one", narrow)], 1).expect("both can be bound");
    }
}
