//! Hot restart: the successor takes over sockets and ticket keys, says when it serves, and the old process drains.
//!
//! ```text
//!   successor                          old process
//!   connect ────────────────────────►  same user? else close
//!           ◄── "N NAME" lines + descriptors of listening sockets, in messages of up to 64
//!           ◄── "admin ADDRESS" + the descriptor of the admin listener
//!           ◄── "tickets …", the session ticket keys
//!           ◄── "drained …", endpoints that an operator drains
//!           ◄── "sessions …", the rings of the past of sticky sessions
//!           ◄── "end"
//!   starts, accepts
//!   "ready" ────────────────────────►  stops accepting, drains, exits
//! ```
//! Both accept for a moment: no connection is refused and none waits in a queue that nobody reads. A successor that
//! goes away before it is ready changes nothing. Messages of a kind that the receiver does not know carry no
//! descriptors and are skipped, so that the two may differ in age.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use core_runtime::handover;
use core_runtime::net::ListeningSocket;
use tls::SecretBytes;

use crate::drains::Drains;
use crate::{oplog, sessions, tickets};

const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// Listener name, number in its group, socket.
pub(crate) type NamedSocket = (String, usize, ListeningSocket);

/// What one process leaves to the next.
#[derive(Debug, Default)]
pub(crate) struct Bequest {
    pub(crate) sockets: Vec<NamedSocket>,
    /// The admin listener with its address as the command line has it.
    pub(crate) admin: Option<(String, OwnedFd)>,
    pub(crate) tickets: Option<SecretBytes>,
    /// Endpoints that an operator drains, see `drains`.
    pub(crate) drained: Vec<String>,
    /// The past of sticky sessions, see `sessions`.
    pub(crate) sessions: Vec<String>,
}

/// A predecessor that waits to hear that this process serves.
#[derive(Debug)]
pub(crate) struct Predecessor(UnixStream);

/// Takes over from the process that listens at `path`; `None` when there is none.
///
/// # Errors
/// When there is a process but it does not hand over.
pub(crate) fn take_over(path: &Path) -> io::Result<Option<(Bequest, Predecessor)>> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    // Whoever listens there gets to see nothing, but what it hands over would be served.
    if !handover::is_trusted_peer(&stream)? {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user listens there"));
    }
    stream.set_read_timeout(Some(PEER_TIMEOUT))?;
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    let mut bequest = Bequest::default();
    loop {
        let (text, fds) = handover::receive(&stream)?;
        if text == "end" {
            return Ok(Some((bequest, Predecessor(stream))));
        }
        bequest.add(text, fds)?;
    }
}

impl Bequest {
    fn add(&mut self, text: String, mut fds: Vec<OwnedFd>) -> io::Result<()> {
        let mismatch = || io::Error::new(io::ErrorKind::InvalidData, "names and descriptors do not match");
        if tickets::is_bequest(&text) {
            self.tickets = Some(SecretBytes::from_vec(text.into_bytes()));
        } else if Drains::is_bequest(&text) {
            self.drained.push(text);
        } else if sessions::is_bequest(&text) {
            if self.sessions.len() < sessions::MESSAGES_MAX {
                self.sessions.push(text);
            } else {
                oplog::warn(
                    "the predecessor tells more of sticky sessions than is kept: some go by the present ring",
                );
            }
        } else if let Some(address) = text.strip_prefix("admin ") {
            self.admin = Some((address.to_owned(), fds.pop().ok_or_else(mismatch)?));
        } else {
            let names: Vec<_> = text.lines().filter_map(parse_name).collect();
            if names.len() != fds.len() {
                return Err(mismatch());
            }
            for ((name, number), fd) in names.into_iter().zip(fds) {
                self.sockets.push((name, number, ListeningSocket::from_fd(fd)?));
            }
        }
        Ok(())
    }
}

fn parse_name(line: &str) -> Option<(String, usize)> {
    let (number, name) = line.split_once(' ')?;
    Some((name.to_owned(), number.parse().ok()?))
}

impl Predecessor {
    /// Tells it that this process serves.
    pub(crate) fn ready(self) {
        if let Err(error) = handover::send(&self.0, "ready", &[]) {
            oplog::warn(&format!("the old process could not be told to drain: {error}"));
        }
    }
}

/// Whether a peer may become the successor: keys and sockets are for this user alone.
///
/// # Errors
/// When it may not, or the system does not say who it is.
pub(crate) fn check_successor(stream: &UnixStream) -> io::Result<()> {
    if handover::is_trusted_peer(stream)? {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the peer is another user"))
}

/// Hands everything to a successor.
///
/// # Errors
/// When the peer does not read, or goes away.
pub(crate) fn hand_over(stream: &UnixStream, bequest: &Bequest) -> io::Result<()> {
    stream.set_write_timeout(Some(PEER_TIMEOUT))?;
    for part in bequest.sockets.chunks(handover::FDS_PER_MESSAGE_MAX) {
        let text: String = part.iter().map(|(name, number, _)| format!("{number} {name}\n")).collect();
        let fds: Vec<_> = part.iter().map(|(_, _, socket)| socket.as_fd().as_raw_fd()).collect();
        handover::send(stream, &text, &fds)?;
    }
    if let Some((address, fd)) = &bequest.admin {
        handover::send(stream, &format!("admin {address}"), &[fd.as_raw_fd()])?;
    }
    if let Some(tickets) = &bequest.tickets {
        handover::send(stream, std::str::from_utf8(tickets.as_slice()).map_err(io::Error::other)?, &[])?;
    }
    for text in bequest.drained.iter().chain(&bequest.sessions) {
        handover::send(stream, text, &[])?;
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
        (other, _) => {
            Err(io::Error::new(io::ErrorKind::InvalidData, format!("unexpected message {other:?}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use core_runtime::net::BindOptions;

    use super::*;
    use crate::unix_socket::{self, Live};

    #[test]
    fn everything_arrives_and_ready_comes_back() {
        let path = std::env::temp_dir().join(format!("shard-restart-{}", std::process::id()));
        let listener = unix_socket::listen(&path, Live::Refuse).expect("a socket");
        let admin = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let sockets: Vec<_> = (0..70)
            .map(|number| {
                let socket = ListeningSocket::bind(any, BindOptions::default()).expect("a free port");
                (format!("name with blanks {number}"), number, socket)
            })
            .collect();
        let addresses: Vec<_> = sockets.iter().map(|(_, _, socket)| socket.addr()).collect();
        let old = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("the successor");
            check_successor(&stream).expect("the same user");
            let admin = Some(("127.0.0.1:0".to_owned(), OwnedFd::from(admin)));
            let tickets = Some(SecretBytes::from_slice(b"tickets 1 secret"));
            let drained = vec!["drained\n10.0.0.1:1 u".to_owned()];
            let sessions = vec!["sessions 1\nc u".to_owned()];
            hand_over(&stream, &Bequest { sockets, admin, tickets, drained, sessions }).expect("it reads");
            wait_until_ready(&stream, Duration::from_secs(10)).expect("it is ready");
        });
        let (bequest, predecessor) = take_over(&path).expect("it hands over").expect("it is there");
        let names: Vec<_> =
            bequest.sockets.iter().map(|(name, number, socket)| (name, number, socket.addr())).collect();
        for (at, address) in addresses.iter().enumerate() {
            assert_eq!(names.get(at), Some(&(&format!("name with blanks {at}"), &at, *address)));
        }
        assert_eq!(bequest.admin.as_ref().map(|(address, _)| address.as_str()), Some("127.0.0.1:0"));
        assert_eq!(bequest.tickets.as_ref().map(SecretBytes::as_slice), Some(&b"tickets 1 secret"[..]));
        assert_eq!(bequest.drained, ["drained\n10.0.0.1:1 u"]);
        assert_eq!(bequest.sessions, ["sessions 1\nc u"]);
        predecessor.ready();
        old.join().expect("the old process is content");
        TcpStream::connect(addresses[69]).expect("the sockets lived through it");
        assert!(take_over(&path).expect("nobody listens any more").is_none());
        unix_socket::remove(&path).expect("removable");
    }

    #[test]
    fn a_successor_that_goes_away_is_an_error_not_readiness() {
        let (here, there) = UnixStream::pair().expect("a pair");
        drop(there);
        assert!(wait_until_ready(&here, Duration::from_secs(10)).is_err());
        let (here, there) = UnixStream::pair().expect("a pair");
        handover::send(&there, "steady", &[]).expect("sent");
        assert!(wait_until_ready(&here, Duration::from_secs(10)).is_err());
    }

    #[test]
    fn messages_that_do_not_add_up_are_refused_and_unknown_ones_skipped() {
        let mut bequest = Bequest::default();
        assert!(bequest.add("0 main\n1 main\n".to_owned(), Vec::new()).is_err());
        assert!(bequest.add("admin 127.0.0.1:1".to_owned(), Vec::new()).is_err());
        bequest.add("weather fine".to_owned(), Vec::new()).expect("a newer predecessor may say more");
        assert!(bequest.sockets.is_empty() && bequest.admin.is_none());
    }
}
