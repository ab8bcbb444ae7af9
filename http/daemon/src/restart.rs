//! Hot restart: the successor takes over the listening sockets, says when it serves, and the old process drains.
//!
//! ```text
//!   successor                          old process
//!   connect ────────────────────────►  same user? else close
//!           ◄── "sockets N" + descriptors, in messages of up to 64
//!           ◄── "end"
//!   starts, accepts
//!   "ready" ────────────────────────►  stops accepting, drains, exits
//! ```
//! Both accept for a moment: no connection is refused and none waits in a queue that nobody reads.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use core_runtime::handover;
use core_runtime::net::ListeningSocket;

use crate::listeners::{SocketKey, Sockets};
use crate::oplog;

const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// A predecessor that waits to hear that this process serves.
#[derive(Debug)]
pub(crate) struct Predecessor(UnixStream);

/// Takes the sockets of the process that listens at `path`; `None` when there is none.
///
/// # Errors
/// When there is a process but it does not hand over.
pub(crate) fn take_over(path: &Path) -> io::Result<Option<(Sockets, Predecessor)>> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    let mut sockets: BTreeMap<SocketKey, ListeningSocket> = BTreeMap::new();
    loop {
        let (text, fds) = handover::receive(&stream)?;
        if text == "end" {
            return Ok(Some((Sockets::inherited(sockets), Predecessor(stream))));
        }
        let keys: Vec<SocketKey> = text.lines().filter_map(parse_key).collect();
        if keys.len() != fds.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "names and descriptors do not match"));
        }
        for (key, fd) in keys.into_iter().zip(fds) {
            sockets.insert(key, ListeningSocket::from_fd(fd)?);
        }
    }
}

fn parse_key(line: &str) -> Option<SocketKey> {
    let (shard, name) = line.split_once(' ')?;
    Some((name.to_owned(), shard.parse().ok()?))
}

impl Predecessor {
    /// Tells it that this process serves.
    pub(crate) fn ready(self) {
        if let Err(error) = handover::send(&self.0, "ready", &[]) {
            oplog::warn(&format!("the old process could not be told to drain: {error}"));
        }
    }
}

/// Listens for a successor.
///
/// # Errors
/// What bind says. A socket file that nobody listens on is replaced.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    UnixListener::bind(path)
}

/// Hands the sockets to a successor; true once it says that it serves.
///
/// # Errors
/// When the peer is not trusted or does not keep to the protocol.
pub(crate) fn hand_over(stream: &UnixStream, sockets: &Sockets) -> io::Result<()> {
    if !handover::is_trusted_peer(stream)? {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer is another user"));
    }
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    let all: Vec<_> = sockets.iter().collect();
    for part in all.chunks(handover::FDS_PER_MESSAGE_MAX) {
        let text: String = part.iter().map(|((name, shard), _)| format!("{shard} {name}\n")).collect();
        let fds: Vec<_> = part.iter().map(|(_, socket)| socket.as_fd().as_raw_fd()).collect();
        handover::send(stream, &text, &fds)?;
    }
    handover::send(stream, "end", &[])
}

/// Waits until the successor serves.
///
/// # Errors
/// When it goes away or takes longer than `patience`.
pub(crate) fn wait_until_ready(stream: &UnixStream, patience: Duration) -> io::Result<()> {
    stream.set_read_timeout(Some(patience))?;
    match handover::receive(stream)? {
        (text, _) if text == "ready" => Ok(()),
        (other, _) => Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected message {other:?}"))),
    }
}
