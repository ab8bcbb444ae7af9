//! The system calls that std has no safe form for, each wrapped once. Nothing here keeps state.
#![expect(unsafe_code, reason = "the one place where libc is called")]

use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::{c_int, c_void, sockaddr, socklen_t};

/// Maps the -1 convention to `io::Error`.
fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_size(result: impl TryInto<usize>) -> io::Result<usize> {
    result.try_into().map_err(|_negative| io::Error::last_os_error())
}

fn size_of_socklen<T>() -> socklen_t {
    socklen_t::try_from(size_of::<T>()).expect("socket option types are a few bytes")
}

/// A non-blocking, close-on-exec stream socket of the address's family.
pub(crate) fn stream_socket(addr: &SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: socket takes three integers and returns a new descriptor or -1.
    let fd = check(unsafe {
        libc::socket(family, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0)
    })?;
    // SAFETY: `fd` was just returned by the kernel and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A socket address in the kernel's layout.
struct RawAddr {
    storage: libc::sockaddr_storage,
    len: socklen_t,
}

impl RawAddr {
    fn empty() -> Self {
        // SAFETY: sockaddr_storage is plain integers; all zeroes is a valid value (AF_UNSPEC).
        let storage = unsafe { mem::zeroed() };
        Self { storage, len: size_of_socklen::<libc::sockaddr_storage>() }
    }

    fn new(addr: &SocketAddr) -> Self {
        let mut raw = Self::empty();
        let target: *mut libc::sockaddr_storage = &raw mut raw.storage;
        match addr {
            SocketAddr::V4(v4) => {
                let sin = libc::sockaddr_in {
                    sin_family: libc::sa_family_t::try_from(libc::AF_INET).expect("AF_INET is small"),
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                    sin_zero: [0; 8],
                };
                // SAFETY: sockaddr_storage is larger than and aligned for every sockaddr type.
                unsafe { target.cast::<libc::sockaddr_in>().write(sin) };
                raw.len = size_of_socklen::<libc::sockaddr_in>();
            }
            SocketAddr::V6(v6) => {
                let sin6 = libc::sockaddr_in6 {
                    sin6_family: libc::sa_family_t::try_from(libc::AF_INET6).expect("AF_INET6 is small"),
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: sockaddr_storage is larger than and aligned for every sockaddr type.
                unsafe { target.cast::<libc::sockaddr_in6>().write(sin6) };
                raw.len = size_of_socklen::<libc::sockaddr_in6>();
            }
        }
        raw
    }

    fn as_ptr(&self) -> *const sockaddr {
        (&raw const self.storage).cast()
    }

    fn as_mut_ptr(&mut self) -> *mut sockaddr {
        (&raw mut self.storage).cast()
    }

    fn to_socket_addr(&self) -> Option<SocketAddr> {
        let source: *const libc::sockaddr_storage = &raw const self.storage;
        match c_int::from(self.storage.ss_family) {
            libc::AF_INET => {
                // SAFETY: the family says that the kernel wrote a sockaddr_in, and the storage is large enough.
                let sin = unsafe { source.cast::<libc::sockaddr_in>().read() };
                let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
                Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(sin.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: the family says that the kernel wrote a sockaddr_in6, and the storage is large enough.
                let sin6 = unsafe { source.cast::<libc::sockaddr_in6>().read() };
                let ip = Ipv6Addr::from(sin6.sin6_addr.s6_addr);
                Some(SocketAddr::new(IpAddr::V6(ip), u16::from_be(sin6.sin6_port)))
            }
            _ => None,
        }
    }
}

pub(crate) fn bind(fd: &impl AsRawFd, addr: &SocketAddr) -> io::Result<()> {
    let raw = RawAddr::new(addr);
    // SAFETY: pointer and length describe `raw`, which lives across the call.
    check(unsafe { libc::bind(fd.as_raw_fd(), raw.as_ptr(), raw.len) }).map(drop)
}

pub(crate) fn listen(fd: &impl AsRawFd, backlog: c_int) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) }).map(drop)
}

/// Starts a connect; `Ok` also when it is in progress.
pub(crate) fn connect(fd: &impl AsRawFd, addr: &SocketAddr) -> io::Result<()> {
    let raw = RawAddr::new(addr);
    // SAFETY: pointer and length describe `raw`, which lives across the call.
    match check(unsafe { libc::connect(fd.as_raw_fd(), raw.as_ptr(), raw.len) }) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Takes one queued connection, non-blocking and close-on-exec.
pub(crate) fn accept(fd: &impl AsRawFd) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
    let mut raw = RawAddr::empty();
    let mut len = raw.len;
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the address pointer and `len` describe `raw`, which lives across the call.
    let new = check(unsafe { libc::accept4(fd.as_raw_fd(), raw.as_mut_ptr(), &raw mut len, flags) })?;
    // SAFETY: `new` was just returned by the kernel and nobody else owns it.
    Ok((unsafe { OwnedFd::from_raw_fd(new) }, raw.to_socket_addr()))
}

pub(crate) fn local_addr(fd: &impl AsRawFd) -> io::Result<SocketAddr> {
    let mut raw = RawAddr::empty();
    let mut len = raw.len;
    // SAFETY: the address pointer and `len` describe `raw`, which lives across the call.
    check(unsafe { libc::getsockname(fd.as_raw_fd(), raw.as_mut_ptr(), &raw mut len) })?;
    raw.to_socket_addr().ok_or_else(|| io::Error::from(io::ErrorKind::Unsupported))
}

// Reading and sending are bare system calls: the wrappers of libc are cancellation points, for which they keep books in
// every call of a process with threads, though no thread of ours is ever cancelled.

pub(crate) fn recv(fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
    let (fd, flags) = (libc::c_long::from(fd), libc::c_long::from(libc::MSG_DONTWAIT));
    let (at, len, none) = (into.as_mut_ptr(), into.len(), ptr::null::<sockaddr>());
    // SAFETY: pointer and length describe `into`, which the kernel only writes to; it is asked for no address.
    check_size(unsafe { libc::syscall(libc::SYS_recvfrom, fd, at, len, flags, none, none) })
}

/// Whether a byte, an end or an error waits: `Ok(0)` is the end of the stream, `WouldBlock` a quiet live one.
pub(crate) fn peek(fd: RawFd) -> io::Result<usize> {
    let mut byte = 0u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: the pointer is to one writable byte and the length says one.
    check_size(unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, flags) })
}

pub(crate) fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let (fd, flags) = (libc::c_long::from(fd), libc::c_long::from(libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL));
    let (at, len, none) = (bytes.as_ptr(), bytes.len(), ptr::null::<sockaddr>());
    // SAFETY: pointer and length describe `bytes`, which the kernel only reads; it is given no address.
    check_size(unsafe { libc::syscall(libc::SYS_sendto, fd, at, len, flags, none, none) })
}

pub(crate) fn send_vectored(fd: RawFd, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: msghdr is integers and pointers; all zeroes is a valid empty message.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = slices.as_ptr().cast_mut().cast();
    message.msg_iovlen = slices.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: IoSlice is guaranteed to have the layout of iovec, and sendmsg only reads through it.
    check_size(unsafe { libc::sendmsg(fd, &raw const message, flags) })
}

/// Two ends of a non-blocking pipe: to read from, to write to.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the pointer is to room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) })?;
    // SAFETY: the kernel has just made this descriptor, and nobody else has it.
    let read = unsafe { OwnedFd::from_raw_fd(ends[0]) };
    // SAFETY: as above.
    let write = unsafe { OwnedFd::from_raw_fd(ends[1]) };
    Ok((read, write))
}

pub(crate) fn set_pipe_bytes(pipe: &OwnedFd, bytes: usize) -> io::Result<()> {
    let bytes = i32::try_from(bytes).map_err(io::Error::other)?;
    // SAFETY: integers only.
    check(unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, bytes) }).map(drop)
}

/// Moves up to `bytes_max` bytes between a pipe and a socket. Both ends are non-blocking. A socket whose peer is gone gives
/// EPIPE: Rust programs ignore SIGPIPE.
pub(crate) fn splice(from: RawFd, to: RawFd, bytes_max: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    // SAFETY: integers and null offsets only.
    check_size(unsafe { libc::splice(from, ptr::null_mut(), to, ptr::null_mut(), bytes_max, flags) })
}

pub(crate) fn shutdown_write(fd: RawFd) -> io::Result<()> {
    // SAFETY: integers only.
    check(unsafe { libc::shutdown(fd, libc::SHUT_WR) }).map(drop)
}

/// The pending error of a socket (SO_ERROR), cleared by reading it.
pub(crate) fn take_error(fd: RawFd) -> io::Result<()> {
    let mut error: c_int = 0;
    let mut len = size_of_socklen::<c_int>();
    // SAFETY: the pointers are to a c_int and its length, both live across the call.
    check(unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &raw mut len)
    })?;
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// A socket option that takes an int.
pub(crate) fn set_int_option(fd: &impl AsRawFd, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    set_option(fd, level, name, &value)
}

/// SO_LINGER; with zero seconds a close sends RST.
pub(crate) fn set_linger(fd: &impl AsRawFd, seconds: c_int) -> io::Result<()> {
    let linger = libc::linger { l_onoff: 1, l_linger: seconds };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger)
}

/// Attaches a classic BPF program that picks the socket of a reuseport group by the CPU that took the packet.
pub(crate) fn steer_by_cpu(fd: &impl AsRawFd) -> io::Result<()> {
    let instruction = |code: u32, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("classic BPF codes are 16 bits"),
        jt: 0,
        jf: 0,
        k,
    };
    // Load the number of the CPU (SKF_AD_OFF + SKF_AD_CPU), return it as the socket's index.
    const SKF_AD_CPU: u32 = 0xffff_f000 + 36;
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, SKF_AD_CPU),
        instruction(libc::BPF_RET | 0x10, 0),
    ];
    let fprog = libc::sock_fprog { len: 2, filter: program.as_mut_ptr() };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &fprog)
}

/// Takes the program of [`steer_by_cpu`] off the group again; a group without one is left as it is.
pub(crate) fn steer_by_hash(fd: &impl AsRawFd) -> io::Result<()> {
    match set_int_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_REUSEPORT_BPF, 0) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn set_option<T>(fd: &impl AsRawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of_socklen::<T>();
    let pointer = ptr::from_ref(value).cast::<c_void>();
    // SAFETY: pointer and length describe `value`; the kernel copies it during the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, pointer, len) }).map(drop)
}

/// A non-blocking eventfd.
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
    // SAFETY: `fd` was just returned by the kernel and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn write_fd(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `bytes`, which the kernel only reads.
    check_size(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

pub(crate) fn read_fd(fd: RawFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `into`, which the kernel only writes to.
    check_size(unsafe { libc::read(fd, into.as_mut_ptr().cast(), into.len()) })
}

pub(crate) fn epoll_create() -> io::Result<OwnedFd> {
    // SAFETY: integers only.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: `fd` was just returned by the kernel and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn epoll_add(epoll: RawFd, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    let mut event = libc::epoll_event { events, u64: data };
    // SAFETY: `event` lives across the call; the kernel copies it.
    check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event) }).map(drop)
}

pub(crate) fn epoll_del(epoll: RawFd, fd: RawFd) -> io::Result<()> {
    // SAFETY: EPOLL_CTL_DEL ignores the event pointer, null is allowed since Linux 2.6.9.
    check(unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, ptr::null_mut()) }).map(drop)
}

pub(crate) fn epoll_wait(
    epoll: RawFd,
    events: &mut [libc::epoll_event],
    timeout_ms: c_int,
) -> io::Result<usize> {
    let room = c_int::try_from(events.len()).unwrap_or(c_int::MAX);
    // SAFETY: pointer and count describe `events`, which the kernel only writes to.
    let got = check(unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), room, timeout_ms) })?;
    Ok(usize::try_from(got).unwrap_or(0))
}

/// Pins the calling thread to one CPU.
pub(crate) fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // SAFETY: cpu_set_t is an array of integers; all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    if cpu >= size_of_val(&set) * 8 {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: `cpu` is inside the set, checked above.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: pointer and size describe `set`; pid 0 is the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }).map(drop)
}

/// The CPUs that the calling thread may run on, ascending.
pub(crate) fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: cpu_set_t is an array of integers; all zeroes is the empty set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: pointer and size describe `set`; pid 0 is the calling thread.
    check(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) })?;
    // SAFETY: every index asked for is inside the set.
    Ok((0..size_of_val(&set) * 8).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect())
}

/// User and system CPU time of the calling thread, in nanoseconds.
pub(crate) fn thread_cpu_ns() -> io::Result<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec that lives across the call.
    check(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) })?;
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Ok(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Room for the control message that carries `FDS_MAX` descriptors.
pub(crate) const FDS_MAX: usize = 64;
const CONTROL_BYTES: usize = 16 + FDS_MAX * 4 + 16;

#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

/// Sends `bytes` and the descriptors over a unix stream socket (SCM_RIGHTS). At least one byte, at most
/// [`FDS_MAX`] descriptors.
pub(crate) fn send_fds(socket: RawFd, bytes: &[u8], fds: &[RawFd]) -> io::Result<usize> {
    if bytes.is_empty() || fds.len() > FDS_MAX {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut control = Control([0; CONTROL_BYTES]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: msghdr is integers and pointers; all zeroes is a valid empty message.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    if !fds.is_empty() {
        let payload = u32::try_from(size_of_val(fds)).expect("at most 64 descriptors");
        message.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: CMSG_SPACE is arithmetic on its argument.
        message.msg_controllen =
            usize::try_from(unsafe { libc::CMSG_SPACE(payload) }).expect("u32 fits usize");
        // SAFETY: msg_control and msg_controllen describe `control`, which has room for one header.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: CMSG_LEN is arithmetic on its argument.
        let len = unsafe { libc::CMSG_LEN(payload) };
        let value = libc::cmsghdr {
            cmsg_len: usize::try_from(len).expect("u32 fits usize"),
            cmsg_level: libc::SOL_SOCKET,
            cmsg_type: libc::SCM_RIGHTS,
        };
        // SAFETY: `header` points into `control`, which is aligned for it and large enough.
        unsafe { header.write(value) };
        // SAFETY: `header` is a valid header inside `control`.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: CONTROL_BYTES leaves room for FDS_MAX descriptors behind the header.
        unsafe { ptr::copy_nonoverlapping(fds.as_ptr().cast(), data, size_of_val(fds)) };
    }
    // SAFETY: `message` describes `iov` and `control`, which live across the call.
    check_size(unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) })
}

/// Receives bytes and descriptors from a unix stream socket.
pub(crate) fn recv_fds(socket: RawFd, into: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut control = Control([0; CONTROL_BYTES]);
    let mut iov = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: msghdr is integers and pointers; all zeroes is a valid empty message.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_BYTES;
    // SAFETY: `message` describes `iov` and `control`, which live across the call.
    let got = check_size(unsafe { libc::recvmsg(socket, &raw mut message, libc::MSG_CMSG_CLOEXEC) })?;
    let mut fds = Vec::new();
    // SAFETY: the kernel filled msg_control and msg_controllen.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if !header.is_null() {
        // SAFETY: not null, so it is a whole header inside `control`.
        let value = unsafe { header.read() };
        if value.cmsg_level == libc::SOL_SOCKET && value.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: CMSG_LEN is arithmetic on its argument.
            let overhead = usize::try_from(unsafe { libc::CMSG_LEN(0) }).expect("u32 fits usize");
            let count = value.cmsg_len.saturating_sub(overhead) / size_of::<RawFd>();
            // SAFETY: `header` is a valid header inside `control`.
            let data = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
            for index in 0..count {
                // SAFETY: the kernel wrote `count` descriptors behind the header.
                let place = unsafe { data.add(index) };
                // SAFETY: `place` is inside `control`; its alignment is not known, so it is read unaligned.
                let fd = unsafe { place.read_unaligned() };
                // SAFETY: SCM_RIGHTS made this descriptor for us.
                fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
            }
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "descriptors were truncated"));
    }
    Ok((got, fds))
}

/// User id of the peer of a unix socket.
pub(crate) fn peer_uid(socket: RawFd) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_socklen::<libc::ucred>();
    let pointer: *mut c_void = (&raw mut peer).cast();
    // SAFETY: pointer and length describe `peer`, live across the call.
    check(unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, pointer, &raw mut len) })?;
    Ok(peer.uid)
}

pub(crate) fn effective_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}
