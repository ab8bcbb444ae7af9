//! Listening sockets: made off the shard (privileges, hot restart), registered on it.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll};

use crate::io::Registered;
use crate::sys;

/// How to bind.
#[derive(Clone, Copy, Debug)]
pub struct BindOptions {
    /// Length of the accept queue; the kernel caps it at net.core.somaxconn.
    pub backlog: u32,
    /// Let the kernel pick the socket of the group by the CPU that took the packet.
    pub steer_by_cpu: bool,
}

impl Default for BindOptions {
    fn default() -> Self {
        Self { backlog: 4096, steer_by_cpu: false }
    }
}

/// A bound, listening socket that is not yet on a shard. Closing it resets what waits in its queue, so on a
/// restart it is handed over instead (see `handover`).
#[derive(Debug)]
pub struct ListeningSocket {
    fd: OwnedFd,
    addr: SocketAddr,
}

impl ListeningSocket {
    /// Binds one socket of a SO_REUSEPORT group and listens.
    ///
    /// # Errors
    /// What the kernel says, e.g. `AddrInUse` or `PermissionDenied`.
    pub fn bind(addr: SocketAddr, options: BindOptions) -> io::Result<Self> {
        let fd = sys::stream_socket(&addr)?;
        sys::set_int_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)?;
        sys::set_int_option(&fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        if addr.is_ipv6() {
            sys::set_int_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
        }
        sys::bind(&fd, &addr)?;
        sys::listen(&fd, i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        if options.steer_by_cpu {
            sys::steer_by_cpu(&fd)?;
        }
        Self::from_fd(fd)
    }

    /// Takes over a listening socket from another process.
    ///
    /// # Errors
    /// When it has no internet address.
    pub fn from_fd(fd: OwnedFd) -> io::Result<Self> {
        let addr = sys::local_addr(&fd)?;
        // Its connections inherit it.
        sys::set_int_option(&fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
        Ok(Self { fd, addr })
    }

    /// The bound address, with the port that the kernel chose.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// A second descriptor for the same socket.
    ///
    /// # Errors
    /// When descriptors have run out.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, addr: self.addr })
    }

    /// Lets the kernel pick the socket of the whole group by the CPU that took the packet, or by its hash again.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_steer_by_cpu(&self, on: bool) -> io::Result<()> {
        if on { sys::steer_by_cpu(&self.fd) } else { sys::steer_by_hash(&self.fd) }
    }

    /// Registers it with the calling thread's reactor.
    ///
    /// # Errors
    /// When the thread is no shard or the registration fails.
    pub fn open(self) -> io::Result<Listener> {
        Ok(Listener { io: Registered::new(self.fd, false)?, addr: self.addr })
    }
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A connection as it comes from the kernel: not yet registered anywhere, so it can go to another shard.
#[derive(Debug)]
pub struct Accepted {
    pub fd: OwnedFd,
    pub peer: SocketAddr,
    /// The listener's address, unless it listens on all of them and only the socket knows.
    pub local: Option<SocketAddr>,
}

/// A listening socket on its shard.
#[derive(Debug)]
pub struct Listener {
    io: Registered,
    addr: SocketAddr,
}

impl Listener {
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn accepted(&self, fd: OwnedFd, peer: SocketAddr) -> Accepted {
        Accepted { fd, peer, local: (!self.addr.ip().is_unspecified()).then_some(self.addr) }
    }

    /// The next connection.
    ///
    /// # Errors
    /// Out of descriptors or memory: the caller waits a moment, because the connection stays in the queue.
    pub async fn accept(&self) -> io::Result<Accepted> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// The next connection, without waiting longer than the kernel's queue is filled.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn poll_accept(&self, cx: &Context<'_>) -> Poll<io::Result<Accepted>> {
        loop {
            if self.io.poll_readable(cx).is_pending() {
                return Poll::Pending;
            }
            match sys::accept(&FdRef(&self.io)) {
                Ok((fd, Some(peer))) => return Poll::Ready(Ok(self.accepted(fd, peer))),
                Ok((_no_address, None)) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.io.clear_readable(),
                // The connection died in the queue: the next one is as good.
                Err(error) if is_gone_before_accept(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl Listener {
    /// A connection that waits in the kernel's queue, whether or not an event has told of it: for the last look
    /// before the socket is closed.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn try_accept(&self) -> io::Result<Option<Accepted>> {
        loop {
            match sys::accept(&FdRef(&self.io)) {
                Ok((fd, Some(peer))) => return Ok(Some(self.accepted(fd, peer))),
                Ok((_no_address, None)) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if is_gone_before_accept(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

struct FdRef<'a>(&'a Registered);

impl AsRawFd for FdRef<'_> {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.0.fd()
    }
}

/// Errors that accept(2) says to treat like EAGAIN: they belong to one connection, not to the listener.
fn is_gone_before_accept(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::ECONNABORTED
                | libc::EINTR
                | libc::ENETDOWN
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
        )
    )
}
