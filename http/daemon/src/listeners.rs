//! Listening sockets of all listeners and shards: bound once, kept across reloads, handed over on a restart.
//!
//! Each shard has a socket of its own in the SO_REUSEPORT group of each listener. The process keeps a second
//! descriptor of every socket, so that it can pass them on whatever the shards do.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use core_runtime::net::{BindOptions, ListeningSocket};
use http_proxy::snapshot::{ListenerConfig, Steering};

/// Identifies one socket: listener name and shard number.
pub(crate) type SocketKey = (String, usize);

/// All sockets of the process.
#[derive(Debug, Default)]
pub(crate) struct Sockets {
    held: BTreeMap<SocketKey, ListeningSocket>,
}

impl Sockets {
    /// Sockets that another process handed over.
    pub(crate) fn inherited(sockets: BTreeMap<SocketKey, ListeningSocket>) -> Self {
        Self { held: sockets }
    }

    /// The socket of a listener and shard: the one that is there, or a new one. `None` when it is in use by
    /// its shard already.
    ///
    /// # Errors
    /// What bind says, with the address.
    pub(crate) fn open(&mut self, config: &ListenerConfig, shard: usize) -> io::Result<ListeningSocket> {
        let key = (config.name.clone(), shard);
        if let Some(socket) = self.held.get(&key)
            && is_same(socket.addr(), config.address)
        {
            return socket.try_clone();
        }
        let options =
            BindOptions { steer_by_cpu: config.steering == Steering::IncomingCpu, ..BindOptions::default() };
        // A port chosen by the kernel for the first shard is the port of all.
        let chosen = self.held.range((config.name.clone(), 0)..).next();
        let address = match chosen {
            Some(((name, _), first)) if *name == config.name && config.address.port() == 0 => first.addr(),
            _ => config.address,
        };
        let socket = ListeningSocket::bind(address, options)
            .map_err(|error| io::Error::new(error.kind(), format!("listener {:?}: {address}: {error}", config.name)))?;
        let twin = socket.try_clone()?;
        self.held.insert(key, socket);
        Ok(twin)
    }

    /// Closes the sockets of a listener that is gone.
    pub(crate) fn close(&mut self, listener: &str) {
        self.held.retain(|(name, _), _| name != listener);
    }

    /// The bound address of a listener.
    pub(crate) fn address(&self, listener: &str) -> Option<SocketAddr> {
        self.held.iter().find(|((name, _), _)| name == listener).map(|(_, socket)| socket.addr())
    }

    /// Every socket, for the successor.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SocketKey, &ListeningSocket)> {
        self.held.iter()
    }

    /// Sockets of shards that this process does not have, or of listeners that the config does not name.
    pub(crate) fn drop_unused(&mut self, shards: usize, is_named: impl Fn(&str) -> bool) {
        self.held.retain(|(name, shard), _| *shard < shards && is_named(name));
    }
}

/// Port 0 asks for any port, so any port is the same.
fn is_same(bound: SocketAddr, wanted: SocketAddr) -> bool {
    bound.ip() == wanted.ip() && (wanted.port() == 0 || bound.port() == wanted.port())
}
