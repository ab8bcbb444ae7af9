//! The io_uring driver: one multishot poll per descriptor, edge-triggered, armed once in its life.
//!
//! The ring belongs to its thread (SINGLE_ISSUER) and completions run only when the shard asks for them
//! (DEFER_TASKRUN), so that a burst of packets costs one pass and no interrupts of our own code. The kernel never
//! holds memory of ours, so no operation has to be waited for before memory may go.
#![expect(unsafe_code, reason = "pushing a submission is unsafe in the io-uring crate")]

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};

use super::{events_from_bits, interest};
use crate::io::{self as registry, Events, Token};

/// Completion mark of operations whose result nobody waits for; no token has the top bit.
const IGNORED: u64 = u64::MAX;

pub(crate) struct Ring {
    ring: IoUring,
}

impl Ring {
    pub(crate) fn new() -> io::Result<Self> {
        const SUBMISSIONS: u32 = 1024;
        // A multishot poll posts a completion for each wake: room for several per descriptor and turn.
        const COMPLETIONS: u32 = 16384;
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(COMPLETIONS)
            .dontfork()
            .build(SUBMISSIONS)?;
        Ok(Self { ring })
    }

    pub(crate) fn register(&mut self, fd: RawFd, token: Token) -> io::Result<()> {
        self.push(&opcode::PollAdd::new(Fd(fd), interest()).multi(true).build().user_data(token.to_u64()))
    }

    /// The poll holds the socket open until it is cancelled, so a close takes effect with the next submission. Not
    /// `PollRemove`: that gives up with EALREADY while an event is on its way, as it always is under load, and the
    /// socket would live until the peer's end.
    pub(crate) fn deregister(&mut self, token: Token) -> io::Result<()> {
        let entry = opcode::AsyncCancel::new(token.to_u64()).build().user_data(IGNORED);
        self.push(&entry.flags(squeue::Flags::SKIP_SUCCESS))
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        loop {
            // SAFETY: poll operations carry a descriptor and numbers only, no pointer to memory of ours.
            let pushed = unsafe { self.ring.submission().push(entry) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.ring.submit()?;
        }
    }

    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        let result = match timeout {
            None => submitter.submit_and_wait(1),
            Some(Duration::ZERO) => submitter.submit_with_args(0, &SubmitArgs::new()),
            Some(time) => {
                let timespec = Timespec::from(time);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timespec))
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) if is_passing(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn next_event(&mut self) -> Option<(Token, Events)> {
        loop {
            let completion = self.ring.completion().next()?;
            if completion.user_data() == IGNORED {
                continue;
            }
            let token = Token::from_u64(completion.user_data());
            if !cqueue::more(completion.flags()) && completion.result() != -libc::ECANCELED {
                self.arm_again(token);
            }
            let events = match u32::try_from(completion.result()) {
                Ok(bits) => events_from_bits(bits),
                // The poll itself failed: let the owner find out by a call on the socket.
                Err(_negative) => Events { readable: true, writable: true, ended: true, failed: true },
            };
            return Some((token, events));
        }
    }

    /// The kernel ends a multishot poll when the completion queue overflows; the descriptor must not go deaf.
    fn arm_again(&mut self, token: Token) {
        if let Some(fd) = registry::descriptor(token) {
            let armed = self.register(fd, token);
            debug_assert!(armed.is_ok(), "the queue has room after a submit: {armed:?}");
        }
    }
}

/// A timeout, a signal, or a full completion queue that the following reads will empty.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN))
}
