//! What passes by the interfaces of a network namespace.

use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// Longest wait for a packet.
const PATIENCE: Duration = Duration::from_secs(30);
/// Every protocol (`ETH_P_ALL`), as a socket of packets wants it: in network order.
const ALL: i32 = 0x0300;
const IP4_BYTES: usize = 20;
const IP6_BYTES: usize = 40;

/// Hears every packet from when it is made; those that nobody takes wait in the kernel, as far as they find room.
#[derive(Debug)]
pub struct Tap(Socket);

impl Tap {
    /// Listens in the namespace of the calling thread.
    ///
    /// # Panics
    ///
    /// When the kernel refuses: the test fails.
    #[must_use]
    pub fn open() -> Self {
        let socket =
            Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(ALL))).expect("root may listen");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self(socket)
    }

    /// The first IP packet of which `what` makes something. Its header has no options.
    ///
    /// # Panics
    ///
    /// When none comes in time: the test fails.
    pub fn wait_for<T>(&self, mut what: impl FnMut(&[u8]) -> Option<T>) -> T {
        use std::io::Read as _;
        let mut buffer = vec![0; 1 << 16];
        loop {
            let bytes = (&self.0).read(&mut buffer).expect("the packet comes");
            if let Some(found) = what(&buffer[..bytes]) {
                return found;
            }
        }
    }

    /// The initial sequence numbers of a connection that came to be since: the client's and the server's.
    ///
    /// # Panics
    ///
    /// When its SYN-ACK does not come by.
    #[must_use]
    pub fn beginnings(&self, client: SocketAddr, server: SocketAddr) -> (u32, u32) {
        let ports = [server.port().to_be_bytes(), client.port().to_be_bytes()].concat();
        self.wait_for(|packet| {
            let tcp = tcp(packet)?;
            let word = |at: usize| tcp[at..at + 4].try_into().map(u32::from_be_bytes).ok();
            (tcp[..4] == ports && tcp[13] & 0x3f == 0x12)
                .then(|| Some((word(8)?.wrapping_sub(1), word(4)?)))
                .flatten()
        })
    }
}

/// The TCP header of an IP packet and what follows it.
#[must_use]
pub fn tcp(packet: &[u8]) -> Option<&[u8]> {
    let (protocol, header) =
        if packet.first()? >> 4 == 4 { (packet.get(9)?, IP4_BYTES) } else { (packet.get(6)?, IP6_BYTES) };
    (*protocol == crate::frame::TCP).then(|| packet.get(header..)).flatten().filter(|tcp| tcp.len() >= 20)
}
