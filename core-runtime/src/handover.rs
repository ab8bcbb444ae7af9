//! Passing descriptors to another process over a unix stream socket: the wire of a hot restart.
//!
//! One message = a length-prefixed text and up to 64 descriptors. Blocking calls with time limits: this runs on
//! a plain thread, never on a shard.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use crate::sys;

/// Descriptors in one message.
pub const FDS_PER_MESSAGE_MAX: usize = sys::FDS_MAX;
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Sends a text and descriptors as one message.
///
/// # Errors
/// `InvalidInput` over the bounds, else what the socket says.
pub fn send(socket: &UnixStream, text: &str, fds: &[RawFd]) -> io::Result<()> {
    let len = u32::try_from(text.len()).map_err(io::Error::other)?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message text is too long"));
    }
    // The descriptors ride on the length word, so that they arrive with its first byte.
    let header = len.to_be_bytes();
    let sent = uninterrupted(|| sys::send_fds(socket.as_raw_fd(), &header, fds))?;
    let mut socket = socket;
    socket.write_all(&header[sent..])?;
    socket.write_all(text.as_bytes())
}

/// Receives one message.
///
/// # Errors
/// `UnexpectedEof` when the peer closed, `InvalidData` for what is no message, else what the socket says.
pub fn receive(socket: &UnixStream) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut header = [0u8; 4];
    let (got, fds) = uninterrupted(|| sys::recv_fds(socket.as_raw_fd(), &mut header))?;
    if got == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
    }
    let mut reader = socket;
    reader.read_exact(&mut header[got..])?;
    let len = usize::try_from(u32::from_be_bytes(header)).map_err(io::Error::other)?;
    if len > TEXT_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message text is too long"));
    }
    let mut text = vec![0; len];
    reader.read_exact(&mut text)?;
    let text = String::from_utf8(text).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok((text, fds))
}

/// Calls again what a signal has interrupted: with a time limit on the socket the kernel does not go on by itself, whatever
/// the handler was installed with (signal(7)).
fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Whether the peer runs as the same user as this process (or as root): nobody else may take over sockets.
///
/// # Errors
/// What the kernel says.
pub fn is_trusted_peer(socket: &UnixStream) -> io::Result<bool> {
    let peer = sys::peer_uid(socket.as_raw_fd())?;
    Ok(peer == 0 || peer == sys::effective_uid())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_passed_listener_still_listens() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let addr = listener.local_addr().expect("addr");
        send(&here, "listener main", &[listener.as_fd().as_raw_fd()]).expect("send");
        drop(listener);
        let (text, mut fds) = receive(&there).expect("receive");
        assert_eq!(text, "listener main");
        assert_eq!(fds.len(), 1);
        let listener = TcpListener::from(fds.remove(0));
        TcpStream::connect(addr).expect("the socket lived through the hand-over");
        listener.accept().expect("accepts");
        assert!(is_trusted_peer(&here).expect("peer"));
    }

    #[test]
    fn bounds_and_ends_are_errors() {
        let (here, there) = UnixStream::pair().expect("a pair");
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        assert_eq!(send(&here, &long, &[]).expect_err("too long").kind(), io::ErrorKind::InvalidInput);
        send(&here, "", &[]).expect("an empty text is fine");
        assert_eq!(receive(&there).expect("receive").0, "");
        drop(here);
        assert_eq!(receive(&there).expect_err("closed").kind(), io::ErrorKind::UnexpectedEof);
    }
}
