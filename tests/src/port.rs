//! Ports for programs that cannot be asked which port the kernel gave them. All lie below 32768, where no
//! outgoing connection of this machine can hold them, and no two calls of a process return the same.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

const PORT_FIRST: u32 = 12_000;
const PORT_END: u32 = 32_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A TCP port of 127.0.0.1 on which nobody listens now. Two processes start at different places of the range, so
/// that a clash between the look and the use is unlikely; a program that fails to bind says so in its log.
#[must_use]
pub fn free_port() -> u16 {
    let start = std::process::id().wrapping_mul(37);
    let span = PORT_END - PORT_FIRST;
    for _ in 0..span {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(PORT_FIRST + start.wrapping_add(step) % span).expect("below 32000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {PORT_FIRST} and {PORT_END}");
}
