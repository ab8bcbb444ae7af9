//! One stream of the client: what is left to send, and what its answer has said so far.

use crate::core::Flight;
use crate::tally::Fault;

/// Cuts gRPC's length-prefixed messages out of DATA (PROTOCOL-HTTP2.md of the gRPC project).
#[derive(Debug, Default)]
pub(crate) struct Messages {
    head: [u8; 5],
    head_bytes: usize,
    left: usize,
}

impl Messages {
    /// Takes bytes; how many messages have ended in them.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> u32 {
        let mut rest = bytes;
        let mut ended = 0;
        while !rest.is_empty() {
            if self.head_bytes < self.head.len() {
                let take = (self.head.len() - self.head_bytes).min(rest.len());
                let (part, after) = rest.split_at(take);
                if let Some(place) = self.head.get_mut(self.head_bytes..self.head_bytes + take) {
                    place.copy_from_slice(part);
                }
                self.head_bytes += take;
                rest = after;
                if self.head_bytes < self.head.len() {
                    break;
                }
                let [_, a, b, c, d] = self.head;
                self.left = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            } else {
                let take = self.left.min(rest.len());
                self.left -= take;
                rest = rest.get(take..).unwrap_or(&[]);
            }
            if self.head_bytes == self.head.len() && self.left == 0 {
                ended += 1;
                self.head_bytes = 0;
            }
        }
        ended
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) flight: Flight,
    /// The body, and how much of it has been sent.
    pub(crate) body: Vec<u8>,
    pub(crate) body_sent: usize,
    /// What the peer takes on this stream.
    pub(crate) window: i64,
    /// Bytes received since the last WINDOW_UPDATE.
    pub(crate) unreported: usize,
    pub(crate) status: u16,
    pub(crate) messages: Messages,
    pub(crate) last_message: std::time::Duration,
    pub(crate) grpc_status: Option<u32>,
}

impl Stream {
    pub(crate) fn new(flight: Flight, body: Vec<u8>, window: i64) -> Self {
        Self {
            flight,
            body,
            body_sent: 0,
            window,
            unreported: 0,
            status: 0,
            messages: Messages::default(),
            last_message: flight.sent,
            grpc_status: None,
        }
    }

    pub(crate) fn unsent(&self) -> usize {
        self.body.len() - self.body_sent
    }

    /// What its end means for a gRPC call.
    pub(crate) fn grpc_fault(&self) -> Option<Fault> {
        (self.grpc_status != Some(0)).then_some(Fault::Grpc)
    }
}

/// A decimal number of a field's value.
pub(crate) fn decimal(value: &[u8]) -> Option<u32> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_whatever_the_cuts() {
        let mut bytes = Vec::new();
        for len in [0u8, 3, 200] {
            bytes.extend_from_slice(&[0, 0, 0, 0, len]);
            bytes.resize(bytes.len() + usize::from(len), 7);
        }
        for step in 1..bytes.len() {
            let mut messages = Messages::default();
            let ended: u32 = bytes.chunks(step).map(|part| messages.feed(part)).sum();
            assert_eq!(ended, 3, "in steps of {step}");
        }
    }
}
