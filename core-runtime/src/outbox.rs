//! Writes of a turn, sent in a row when it ends.
//!
//! ```text
//!   post ──► queued ──end of the turn──► sent
//!                                    └──► rest ──writable──► sent
//! ```
//! A send wakes whoever waits at the other end, and that costs more than the send. Spread over a turn, each finds the
//! other end asleep again; in a row, the first wakes it and the rest is found there (docs/decisions/0010). The bytes
//! belong to the reactor from `post` on: they leave without their task, in order with everything that is written to the
//! same socket later, and before the socket closes if it takes them.
//! Used by `io` (one [`Outgoing`] per registration) and `shard` (the end of the turn).

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use crate::buf::Scratch;
use crate::io::State;
use crate::sys;

/// Bytes of one post; more is written at once.
pub const POST_BYTES_MAX: usize = 32 * 1024;
/// Posts that make a row: with the last of them all leave at once, before the turn ends. Bounds the memory, and the time
/// that the first one waits.
const POSTED_MAX: usize = 16;

thread_local! {
    static QUEUE: RefCell<Vec<(RawFd, Rc<State>)>> = const { RefCell::new(Vec::new()) };
}

/// What is on its way to one socket.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    unsent: RefCell<Option<Unsent>>,
    fault: Cell<Option<Fault>>,
}

#[derive(Debug)]
struct Unsent {
    bytes: Scratch,
    sent: usize,
    /// Waits for the end of the turn, not for the socket.
    is_queued: bool,
}

/// Why a post came to nothing.
#[derive(Clone, Copy, Debug)]
struct Fault {
    errno: i32,
    sent_none: bool,
}

/// How far a post has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The socket has everything.
    All,
    /// It leaves when the turn ends.
    WithTheTurn,
    /// The socket took a part.
    Some,
}

impl Outgoing {
    pub(crate) fn state(&self) -> Sent {
        match &*self.unsent.borrow() {
            None => Sent::All,
            Some(unsent) if unsent.is_queued => Sent::WithTheTurn,
            Some(_) => Sent::Some,
        }
    }

    /// Why bytes that were posted are lost.
    pub(crate) fn fault(&self) -> Option<io::Error> {
        self.fault.get().map(|fault| io::Error::from_raw_os_error(fault.errno))
    }

    /// Whether a post was lost without a byte of it having left.
    pub(crate) fn has_lost_all(&self) -> bool {
        self.fault.get().is_some_and(|fault| fault.sent_none)
    }

    /// Sends what there is.
    ///
    /// # Errors
    /// `WouldBlock` when the socket does not take all of it, else what the socket says; the bytes are lost then.
    pub(crate) fn send(&self, fd: RawFd) -> io::Result<()> {
        let mut slot = self.unsent.borrow_mut();
        let Some(unsent) = slot.as_mut() else {
            return self.fault().map_or(Ok(()), Err);
        };
        unsent.is_queued = false;
        while let Some(rest) = unsent.bytes.get(unsent.sent..).filter(|rest| !rest.is_empty()) {
            match sys::send(fd, rest) {
                Ok(sent) => unsent.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        let errno = error.raw_os_error().unwrap_or(libc::EIO);
                        self.fault.set(Some(Fault { errno, sent_none: unsent.sent == 0 }));
                        *slot = None;
                    }
                    return Err(error);
                }
            }
        }
        *slot = None;
        Ok(())
    }
}

/// Takes bytes for the socket of `state`, to be sent when the turn ends. Gives them back when earlier ones wait.
pub(crate) fn post(fd: RawFd, state: &Rc<State>, bytes: Scratch) -> Result<(), Scratch> {
    {
        let mut slot = state.outgoing.unsent.borrow_mut();
        if slot.is_some() || state.outgoing.fault.get().is_some() {
            return Err(bytes);
        }
        *slot = Some(Unsent { bytes, sent: 0, is_queued: true });
    }
    let is_full = QUEUE.with(|queue| {
        let mut queue = queue.borrow_mut();
        queue.push((fd, Rc::clone(state)));
        queue.len() >= POSTED_MAX
    });
    if is_full {
        send_all();
    }
    Ok(())
}

/// Sends everything that was posted.
pub(crate) fn send_all() {
    let mut queue = QUEUE.with(RefCell::take);
    for (fd, state) in queue.drain(..) {
        // Else it has left already, perhaps with its socket, whose number may be another's now.
        if state.outgoing.state() == Sent::WithTheTurn {
            state.send(fd);
        }
    }
    // Its memory serves the next turn; nothing was posted meanwhile.
    QUEUE.with(|slot| *slot.borrow_mut() = queue);
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::{Poll, ready};
    use std::time::Duration;

    use super::*;
    use crate::buf::Buf;
    use crate::clock::Epoch;
    use crate::net::{BindOptions, ListeningSocket, TcpStream};
    use crate::shard::{DriverChoice, run};

    fn with_a_pair<F: Future<Output = ()>>(test: impl Fn(TcpStream, TcpStream) -> F + Copy + 'static) {
        for choice in [DriverChoice::Ring, DriverChoice::Epoll] {
            run(choice, &Epoch::start(), move |_kind| async move {
                let socket =
                    ListeningSocket::bind("127.0.0.1:0".parse().expect("an address"), BindOptions::default())
                        .expect("bind");
                let addr = socket.addr();
                let listener = socket.open().expect("open");
                let ours = TcpStream::connect(addr, Duration::from_secs(5)).await.expect("connect");
                let theirs =
                    TcpStream::from_fd(listener.accept().await.expect("accept").fd).expect("register");
                test(ours, theirs).await;
            })
            .expect("the loop ran");
        }
    }

    fn scratch(bytes: &[u8]) -> Scratch {
        let mut scratch = Scratch::take();
        scratch.extend_from_slice(bytes);
        scratch
    }

    /// Reads until the end or `len` bytes.
    async fn read(stream: &TcpStream, len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut buf = Buf::try_take().expect("a buffer");
        while all.len() < len {
            let got = poll_fn(|cx| {
                loop {
                    ready!(stream.poll_readable(cx));
                    match stream.try_read_buf(&mut buf) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        other => return Poll::Ready(other),
                    }
                }
            })
            .await
            .expect("read");
            if got == 0 {
                break;
            }
            all.extend_from_slice(buf.filled());
            buf.consume(got);
        }
        all
    }

    /// As much as the socket takes, so that the next bytes have to wait.
    fn fill(stream: &TcpStream) -> usize {
        let mut filled = 0;
        while let Ok(sent) = stream.try_write(&[b'x'; 64 * 1024]) {
            filled += sent;
        }
        filled
    }

    #[test]
    fn a_post_leaves_at_the_end_of_the_turn_and_before_what_is_written_later() {
        with_a_pair(|ours, theirs| async move {
            ours.post(scratch(b"one")).expect("nothing waits");
            assert_eq!(ours.io_state(), Sent::WithTheTurn);
            let back = ours.post(scratch(b"two")).expect_err("one at a time");
            assert_eq!(back.as_slice(), b"two");
            assert!(poll_fn(|cx| ours.poll_posted(cx)).await.is_ok());
            assert_eq!(ours.try_write(&back).expect("room"), 3);
            assert_eq!(read(&theirs, 6).await, b"onetwo");
            ours.post(scratch(b"three")).expect("nothing waits");
            crate::next_turn().await;
            assert_eq!(ours.io_state(), Sent::All);
            assert_eq!(read(&theirs, 5).await, b"three");
        });
    }

    #[test]
    fn what_a_task_posted_before_it_ended_arrives() {
        with_a_pair(|ours, theirs| async move {
            ours.post(scratch(b"last words")).expect("nothing waits");
            drop(ours);
            assert_eq!(read(&theirs, usize::MAX).await, b"last words");
        });
        with_a_pair(|ours, theirs| async move {
            ours.post(scratch(b"last words")).expect("nothing waits");
            ours.shutdown_write().expect("open");
            assert_eq!(read(&theirs, usize::MAX).await, b"last words");
        });
    }

    #[test]
    fn what_the_socket_does_not_take_leaves_later_without_a_task() {
        with_a_pair(|ours, theirs| async move {
            let filled = fill(&ours);
            ours.post(scratch(b"behind")).expect("nothing waits");
            crate::next_turn().await;
            assert_eq!(ours.io_state(), Sent::Some);
            assert!(!ours.is_quiet(), "not fit for another request");
            assert!(ours.try_write(b"not yet").is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
            let all = read(&theirs, filled + 6).await;
            assert_eq!(all.len(), filled + 6);
            assert!(all.ends_with(b"xbehind"));
            poll_fn(|cx| ours.poll_sent(cx)).await.expect("sent");
            assert_eq!(ours.io_state(), Sent::All);
        });
    }

    #[test]
    fn a_lost_post_is_told_by_the_next_read_and_write() {
        // The peer is there and silent: only the post can tell.
        with_a_pair(|ours, theirs| async move {
            ours.shutdown_write().expect("open");
            ours.post(scratch(b"too late")).expect("nothing waits");
            poll_fn(|cx| ours.poll_readable(cx)).await;
            let told = ours.try_read(&mut [0; 8]).map_err(|error| error.kind());
            assert_eq!(told, Err(io::ErrorKind::BrokenPipe));
            assert!(ours.has_lost_post());
            drop(theirs);
        });
        with_a_pair(|ours, theirs| async move {
            theirs.reset_on_close().expect("a socket option");
            drop(theirs);
            poll_fn(|cx| ours.poll_readable(cx)).await;
            // Takes the socket's own error, so that only the post has one.
            assert!(ours.try_read(&mut [0; 8]).is_err());
            ours.post(scratch(b"nobody reads")).expect("nothing waits");
            assert!(!ours.has_lost_post());
            crate::next_turn().await;
            assert!(ours.has_lost_post());
            assert!(poll_fn(|cx| ours.poll_posted(cx)).await.is_err());
            assert!(ours.try_write(b"more").is_err());
            assert!(!ours.is_quiet());
            ours.post(scratch(b"again")).expect_err("there is no use");
        });
    }

    #[test]
    fn a_long_write_of_another_socket_lets_posts_go_first() {
        with_a_pair(|ours, theirs| async move {
            ours.post(scratch(b"short")).expect("nothing waits");
            theirs.try_write(&[b'x'; POST_BYTES_MAX]).expect("room");
            assert_eq!(ours.io_state(), Sent::WithTheTurn, "that was not long");
            theirs.try_write(&[b'x'; POST_BYTES_MAX + 1]).expect("room");
            assert_eq!(ours.io_state(), Sent::All);
        });
    }

    #[test]
    fn many_posts_in_a_turn_are_sent_before_its_end() {
        with_a_pair(|ours, theirs| async move {
            let pairs = 3 * POSTED_MAX;
            let mut kept = Vec::new();
            for _ in 0..pairs {
                let socket =
                    ListeningSocket::bind("127.0.0.1:0".parse().expect("an address"), BindOptions::default())
                        .expect("bind");
                let stream =
                    TcpStream::connect(socket.addr(), Duration::from_secs(5)).await.expect("connect");
                kept.push((stream, socket));
            }
            crate::next_turn().await;
            for (stream, _) in &kept {
                stream.post(scratch(b"x")).expect("nothing waits");
            }
            let waiting = kept.iter().filter(|(stream, _)| stream.io_state() == Sent::WithTheTurn).count();
            assert!(waiting < POSTED_MAX, "{waiting}");
            drop((ours, theirs));
        });
    }
}
