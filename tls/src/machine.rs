//! Driving rustls's unbuffered connections: one loop for reading, one step for sending, for both roles.
//!
//! Invariants towards rustls: what it leaves in the input is handed in again unchanged, in front of new bytes; a
//! queued message is encoded as soon as it is shown; after a failure it is asked for nothing but the queued alert.
//! Called by the session only.

use rustls::CommonState;
use rustls::client::{ClientConnectionData, EarlyDataError, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus};

/// RFC 8446 §5.1.
const RECORD_PLAIN_BYTES_MAX: usize = 16 * 1024;
/// Header, TLS 1.2 explicit nonce or TLS 1.3 content type, and tag: at most 29 bytes a record.
const RECORD_OVERHEAD_BYTES: usize = 32;
/// TLS 1.3 exactly: header, content type, and the tag of 16 bytes that all its suites have (RFC 8446 §5.2).
const TLS13_OVERHEAD_BYTES: usize = 5 + 1 + 16;

/// rustls's two unbuffered connections under one name.
pub(crate) trait Step {
    type Data;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn common(&self) -> &CommonState;
}

impl Step for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

impl Step for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn step<'c, 'i>(&'c mut self, incoming: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn common(&self) -> &CommonState {
        self
    }
}

pub(crate) struct Sinks<'a> {
    pub(crate) plain: &'a mut Vec<u8>,
    pub(crate) outgoing: &'a mut Vec<u8>,
    pub(crate) close_notify: bool,
}

enum Progress {
    Go,
    Stop,
    Failed(rustls::Error),
}

/// Steps through `input` until rustls wants more bytes or has something to say.
pub(crate) fn pump<S: Step>(
    machine: &mut S,
    input: &mut [u8],
    sinks: &mut Sinks<'_>,
) -> (usize, Result<(), rustls::Error>) {
    let mut used = 0;
    loop {
        let UnbufferedStatus { mut discard, state } = machine.step(input.get_mut(used..).unwrap_or_default());
        let progress = match state {
            Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                match traffic.next_record() {
                    Some(Ok(record)) => {
                        sinks.plain.extend_from_slice(record.payload);
                        discard += record.discard;
                    }
                    Some(Err(e)) => break Progress::Failed(e),
                    None => break Progress::Go,
                }
            },
            Ok(ConnectionState::EncodeTlsData(mut message)) => {
                encode(&mut message, sinks.outgoing);
                Progress::Go
            }
            Ok(ConnectionState::TransmitTlsData(sent)) => {
                sent.done();
                Progress::Go
            }
            Ok(ConnectionState::PeerClosed) => {
                sinks.close_notify = true;
                Progress::Stop
            }
            Ok(
                ConnectionState::BlockedHandshake
                | ConnectionState::WriteTraffic(_)
                | ConnectionState::Closed,
            ) => Progress::Stop,
            // Early data is never accepted as a server, and there are no further states today.
            Ok(_) => Progress::Failed(rustls::Error::General("unexpected TLS state".to_owned())),
            Err(e) => Progress::Failed(e),
        };
        used += discard;
        match progress {
            Progress::Go => {}
            Progress::Stop => return (used, Ok(())),
            Progress::Failed(e) => {
                drain_alert(machine, input.get_mut(used..).unwrap_or_default(), sinks.outgoing);
                return (used, Err(e));
            }
        }
    }
}

/// After a failure, fetches the alert that rustls has queued. It hands out what is queued before it looks at
/// `rest` again; once nothing is queued it must not be asked, or it would judge the same bad record twice.
fn drain_alert<S: Step>(machine: &mut S, rest: &mut [u8], outgoing: &mut Vec<u8>) {
    while machine.common().wants_write() {
        let UnbufferedStatus { state, .. } = machine.step(rest);
        let Ok(ConnectionState::EncodeTlsData(mut message)) = state else { return };
        encode(&mut message, outgoing);
    }
}

/// Appends a handshake record or alert to `outgoing`.
fn encode<D>(message: &mut EncodeTlsData<'_, D>, outgoing: &mut Vec<u8>) {
    let start = outgoing.len();
    // The first try only asks for the size.
    let Err(EncodeError::InsufficientSize(size)) = message.encode(&mut []) else { return };
    outgoing.resize(start + size.required_size, 0);
    let written = message.encode(outgoing.get_mut(start..).unwrap_or_default()).unwrap_or(0);
    outgoing.truncate(start + written);
}

/// Encodes the first flight of a client to the end of `outgoing`, and behind it as much of `early` as the ticket allows.
/// Returns how much that was; None when there is no ticket that allows any. Without `early` the flight stays unsent as
/// far as rustls knows, so that another call may follow; anything else that steps ends it.
pub(crate) fn first_flight(
    connection: &mut UnbufferedClientConnection,
    early: Option<&[u8]>,
    outgoing: &mut Vec<u8>,
) -> Result<Option<usize>, rustls::Error> {
    loop {
        match connection.process_tls_records(&mut []).state? {
            ConnectionState::EncodeTlsData(mut message) => encode(&mut message, outgoing),
            ConnectionState::TransmitTlsData(mut sent) => {
                let Some(mut adapter) = sent.may_encrypt_early_data() else { return Ok(None) };
                let Some(early) = early else { return Ok(Some(0)) };
                let taken = seal_early(early, outgoing, |part, place| adapter.encrypt(part, place))?;
                sent.done();
                return Ok(Some(taken));
            }
            _ => return Ok(None),
        }
    }
}

/// Seals `early` record by record, because rustls cuts it at the ticket's bound and tells only the ciphertext's length.
fn seal_early(
    early: &[u8],
    outgoing: &mut Vec<u8>,
    mut encrypt: impl FnMut(&[u8], &mut [u8]) -> Result<usize, EarlyDataError>,
) -> Result<usize, rustls::Error> {
    let mut taken = 0;
    for part in early.chunks(RECORD_PLAIN_BYTES_MAX) {
        let start = outgoing.len();
        outgoing.resize(start + part.len() + RECORD_OVERHEAD_BYTES, 0);
        let written = match encrypt(part, outgoing.get_mut(start..).unwrap_or_default()) {
            Ok(written) => written,
            Err(EarlyDataError::ExceededAllowedEarlyData) => 0,
            Err(EarlyDataError::Encrypt(_)) => return Err(rustls::Error::EncryptError),
        };
        outgoing.truncate(start + written);
        let plain = written.saturating_sub(TLS13_OVERHEAD_BYTES);
        taken += plain;
        if plain < part.len() {
            break;
        }
    }
    Ok(taken)
}

/// Whether whole records that a client's handshake made hold its EndOfEarlyData, which it sends only when the server has
/// accepted early data (RFC 8446 §4.5). It is the one handshake message without a body, so its length tells it from any
/// other; rustls has no other sign of it in the unbuffered API.
pub(crate) fn ends_early_data(mut records: &[u8]) -> bool {
    const APPLICATION_DATA: u8 = 23;
    const HANDSHAKE_HEADER_BYTES: usize = 4;
    while let Some((&[kind, _, _, high, low], rest)) = records.split_first_chunk::<5>() {
        let len = usize::from(u16::from_be_bytes([high, low]));
        if kind == APPLICATION_DATA && 5 + len == HANDSHAKE_HEADER_BYTES + TLS13_OVERHEAD_BYTES {
            return true;
        }
        records = rest.get(len..).unwrap_or_default();
    }
    false
}

/// What to put on the wire.
#[derive(Clone, Copy)]
pub(crate) enum Outbound<'d> {
    Data(&'d [u8]),
    CloseNotify,
}

impl Outbound<'_> {
    /// The bytes it takes encrypted, as an upper bound.
    fn size_guess(self) -> usize {
        match self {
            Self::Data(data) => {
                data.len() + (data.len() / RECORD_PLAIN_BYTES_MAX + 1) * RECORD_OVERHEAD_BYTES
            }
            Self::CloseNotify => 2 + RECORD_OVERHEAD_BYTES,
        }
    }
}

/// Encrypts `what` to the end of `outgoing`; false when the connection cannot send now. `incoming` is what the
/// last [`pump`] has left over.
pub(crate) fn seal<S: Step>(
    machine: &mut S,
    incoming: &mut [u8],
    outgoing: &mut Vec<u8>,
    what: Outbound<'_>,
) -> Result<bool, rustls::Error> {
    let Ok(ConnectionState::WriteTraffic(mut traffic)) = machine.step(incoming).state else {
        return Ok(false);
    };
    let start = outgoing.len();
    outgoing.resize(start + what.size_guess(), 0);
    loop {
        let place = outgoing.get_mut(start..).unwrap_or_default();
        let sealed = match what {
            Outbound::Data(data) => traffic.encrypt(data, place),
            Outbound::CloseNotify => traffic.queue_close_notify(place),
        };
        match sealed {
            Ok(written) => {
                outgoing.truncate(start + written);
                return Ok(written > 0);
            }
            // A key update that goes first makes it longer than guessed.
            Err(EncryptError::InsufficientSize(size)) if start + size.required_size > outgoing.len() => {
                outgoing.resize(start + size.required_size, 0);
            }
            Err(EncryptError::InsufficientSize(_) | EncryptError::EncryptExhausted) => {
                outgoing.truncate(start);
                return Err(rustls::Error::EncryptError);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_early_data_is_known_by_its_length() {
        let record = |kind: u8, len: u8| [&[kind, 3, 3, 0, len][..], &vec![0; usize::from(len)]].concat();
        let (change_cipher_spec, end, finished) = (record(20, 1), record(23, 21), record(23, 53));
        assert!(ends_early_data(&[end.clone(), finished.clone()].concat()));
        assert!(ends_early_data(&[change_cipher_spec.clone(), end.clone(), finished.clone()].concat()));
        let alert = record(23, 19);
        for other in [&[][..], &[change_cipher_spec, finished].concat(), &alert, &record(22, 21), &end[..4]] {
            assert!(!ends_early_data(other), "{other:?}");
        }
    }
}
