//! One TLS connection, either role, without a socket.
//!
//! ```text
//!            read_tls                    plain / read_plain / take_plain
//!  socket ─────────────► [ AwaitHello ] ─► rustls ─────────────────────► proxy
//!         ◄───────────── outgoing ◄───────────────────────────────────── write_plain, send_close_notify
//!            write_tls
//! ```
//!
//! Built on rustls's unbuffered API: records are decrypted in the caller's buffer, and an idle connection keeps no
//! buffer at all, where the buffered API keeps at least 4 KiB (the figures are in tests/idle_memory.rs).
//! Invariants: `incoming` holds only what rustls could not use yet (a part of a record, or of a handshake message
//! that it has begun to decrypt in place), so its bytes are never changed here; after a failure nothing is read,
//! but an alert may be left to write; `plain` and `outgoing` are bounded. Driven by http/proxy's connection loop.
#![expect(
    clippy::disallowed_types,
    reason = "rustls takes its configuration as Arc; counted within one core"
)]

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{AlertDescription, CipherSuite, CommonState, HandshakeKind, ProtocolVersion};

use crate::certificate::PeerCertificate;
use crate::client::{ClientContext, server_name};
use crate::error::TlsError;
use crate::hello::{Hello, Peeked, peek};
use crate::machine::{Outbound, Sinks, Step as _, ends_early_data, first_flight, pump, seal};
use crate::names::PolicyId;
use crate::provider::PostQuantum;
use crate::server::{ServerContext, ServerShared};

/// Bytes of a ClientHello with its record headers. Real ones are below 4 KiB; no handshake needs more.
pub const HELLO_BYTES_MAX: usize = 17 * 1024;
/// Decrypted bytes that wait for the proxy; above it `read_tls` takes nothing.
pub const PLAIN_BYTES_MAX: usize = 64 * 1024;
/// Encrypted bytes that wait for the socket; above it `write_plain` takes nothing.
const OUTGOING_BYTES_MAX: usize = 64 * 1024;
/// A handshake message of 64 KiB (rustls's limit) in whole records, and one record more. Cut into crumbs, each with
/// its own header and tag, the same message would hold a megabyte.
const INCOMING_BYTES_MAX: usize = 84 * 1024;
const RECORD_HEADER_BYTES: usize = 5;

/// What `read_plain` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// So many bytes were copied.
    Bytes(usize),
    /// Nothing now; more may come.
    Blocked,
    /// The peer said close_notify: this was all.
    Closed,
    /// The transport ended without close_notify: what is missing, nobody knows (RFC 8446 §6.1).
    Truncated,
}

/// How a session came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    Full,
    /// Full, with another round trip because the client had sent no usable key share.
    FullWithRetry,
    Resumed,
}

/// Data that a client sends together with its ClientHello (RFC 8446 §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyData {
    /// No ticket allows it, or nobody asked for it.
    Unavailable,
    /// A ticket allows it, and none was written.
    Possible,
    /// Written, and the server has not answered.
    Offered,
    /// The server takes it for the beginning of the stream.
    Accepted,
    /// The server has thrown it away.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Open,
    CloseNotify,
    Eof,
}

/// Inline: a session and what is around it fill one block of the allocator, apart they leave a fifth of two empty.
enum Machine {
    AwaitHello {
        shared: Arc<ServerShared>,
        bytes_needed: usize,
    },
    Server(UnbufferedServerConnection),
    Client(UnbufferedClientConnection),
    /// Refused before rustls was asked.
    Refused,
}

/// A TLS connection. It never blocks and allocates only for what is in flight.
pub struct Session {
    machine: Machine,
    incoming: Vec<u8>,
    plain: Vec<u8>,
    /// How much of `plain` has been read.
    plain_at: usize,
    outgoing: Vec<u8>,
    server_name: Option<Box<str>>,
    policy: Option<PolicyId>,
    input: Input,
    /// Our close_notify is out (or on its way).
    output_closed: bool,
    failure: Option<Box<TlsError>>,
    early: EarlyData,
}

impl Session {
    /// A session with a client that has just connected.
    pub fn server(context: &ServerContext) -> Self {
        Self::new(Machine::AwaitHello { shared: Arc::clone(&context.shared), bytes_needed: 0 }, None)
    }

    /// A session with an upstream; its ClientHello is ready to be written. `name` is a DNS name or an IP address:
    /// what the certificate is verified for, and what resumption goes by.
    ///
    /// # Errors
    /// [`TlsError::ServerName`] when `name` is neither, [`TlsError::Protocol`] when randomness fails.
    pub fn client(context: &ClientContext, name: &str) -> Result<Self, TlsError> {
        let mut session = Self::unsent_client(context, name)?;
        session.feed(&mut [])?;
        Ok(session)
    }

    /// Its ClientHello is not made yet.
    fn unsent_client(context: &ClientContext, name: &str) -> Result<Self, TlsError> {
        let connection = UnbufferedClientConnection::new(context.config(), server_name(name)?)?;
        Ok(Self::new(Machine::Client(connection), Some(name.to_ascii_lowercase().into())))
    }

    /// As [`Session::client`]; when a ticket allows early data ([`EarlyData::Possible`]), [`Session::write_early`] may put
    /// some behind the ClientHello before it is written.
    ///
    /// # Errors
    /// As [`Session::client`].
    pub fn client_early(context: &ClientContext, name: &str) -> Result<Self, TlsError> {
        let mut session = Self::unsent_client(context, name)?;
        if let Machine::Client(connection) = &mut session.machine
            && first_flight(connection, None, &mut session.outgoing)?.is_some()
        {
            session.early = EarlyData::Possible;
            return Ok(session);
        }
        session.feed(&mut [])?;
        Ok(session)
    }

    /// Puts as much of `data` as the ticket allows behind the ClientHello and returns how much that was: 0 where early
    /// data is not [`EarlyData::Possible`]. What is [`EarlyData::Refused`] later has to be written again.
    ///
    /// # Errors
    /// [`TlsError::Protocol`] when it cannot be encrypted.
    pub fn write_early(&mut self, data: &[u8]) -> Result<usize, TlsError> {
        let Machine::Client(connection) = &mut self.machine else { return Ok(0) };
        if self.early != EarlyData::Possible || data.is_empty() {
            return Ok(0);
        }
        let taken = first_flight(connection, Some(data), &mut self.outgoing)?;
        self.early = EarlyData::Offered;
        self.feed(&mut [])?;
        Ok(taken.unwrap_or(0))
    }

    /// Tickets of TLS 1.3 that the server has sent so far.
    pub fn tickets(&self) -> u32 {
        match &self.machine {
            Machine::Client(connection) => connection.tls13_tickets_received(),
            _ => 0,
        }
    }

    /// What became of early data.
    pub fn early_data(&self) -> EarlyData {
        match self.early {
            // The client has finished without saying EndOfEarlyData.
            EarlyData::Offered if !self.is_handshaking() => EarlyData::Refused,
            state => state,
        }
    }

    fn new(machine: Machine, server_name: Option<Box<str>>) -> Self {
        Self {
            machine,
            incoming: Vec::new(),
            plain: Vec::new(),
            plain_at: 0,
            outgoing: Vec::new(),
            server_name,
            policy: None,
            input: Input::Open,
            output_closed: false,
            failure: None,
            early: EarlyData::Unavailable,
        }
    }

    /// Takes ciphertext from the peer and decrypts it in place. Returns how much was taken: all of it, or nothing
    /// while [`PLAIN_BYTES_MAX`] bytes wait to be read. What comes after close_notify is taken and ignored
    /// (RFC 8446 §6.1).
    ///
    /// # Errors
    /// The session's failure, now and on every later call. Plaintext from before it can still be read, and
    /// `write_tls` still yields the alert.
    pub fn read_tls(&mut self, bytes: &mut [u8]) -> Result<usize, TlsError> {
        if let Some(failure) = &self.failure {
            return Err(TlsError::clone(failure));
        }
        if self.input != Input::Open {
            return Ok(bytes.len());
        }
        if self.plain().len() >= PLAIN_BYTES_MAX {
            return Ok(0);
        }
        let done = match self.machine {
            Machine::AwaitHello { .. } => self.await_hello(bytes),
            _ => self.feed(bytes),
        };
        match done {
            Ok(()) => Ok(bytes.len()),
            Err(failure) => {
                self.incoming = Vec::new();
                self.failure = Some(Box::new(failure.clone()));
                Err(failure)
            }
        }
    }

    /// The transport has ended. Without close_notify before it, reading ends in [`Plain::Truncated`].
    pub fn read_eof(&mut self) {
        if self.input == Input::Open {
            self.input = Input::Eof;
        }
    }

    fn await_hello(&mut self, bytes: &mut [u8]) -> Result<(), TlsError> {
        let Machine::AwaitHello { shared, bytes_needed } = &mut self.machine else { return self.feed(bytes) };
        // The whole hello in the first read is the rule: then nothing is copied.
        let direct = self.incoming.is_empty();
        if !direct {
            self.incoming.extend_from_slice(bytes);
            if self.incoming.len() < *bytes_needed {
                return Ok(());
            }
        }
        let so_far = if direct { &*bytes } else { self.incoming.as_slice() };
        let hello = match peek(so_far) {
            Peeked::Hello(hello) => hello,
            Peeked::Unreadable => Hello::default(),
            Peeked::Incomplete { bytes_needed: needed } if needed <= HELLO_BYTES_MAX => {
                *bytes_needed = needed;
                if direct {
                    self.incoming.extend_from_slice(bytes);
                }
                return Ok(());
            }
            Peeked::Incomplete { .. } => {
                return Err(self.refuse(AlertDescription::DecodeError, TlsError::HelloTooLong));
            }
        };
        let Some(entry) = shared.names.lookup(hello.server_name.as_deref()) else {
            return Err(self.refuse(AlertDescription::UnrecognisedName, TlsError::UnrecognizedName));
        };
        let policy = entry.policy;
        let post_quantum = if hello.hybrid_costs_retry { PostQuantum::Off } else { PostQuantum::Offer };
        let Some(config) = shared.config(policy, post_quantum) else {
            return Err(self.refuse(AlertDescription::InternalError, TlsError::UnrecognizedName));
        };
        self.policy = Some(policy);
        self.server_name = hello.server_name;
        self.machine = Machine::Server(UnbufferedServerConnection::new(config)?);
        if direct {
            self.feed(bytes)
        } else {
            let mut buffered = std::mem::take(&mut self.incoming);
            self.feed(&mut buffered)
        }
    }

    /// Ends the session before rustls has begun, with a plaintext alert (RFC 8446 §6.2).
    fn refuse(&mut self, alert: AlertDescription, failure: TlsError) -> TlsError {
        const CONTENT_ALERT: u8 = 21;
        const LEVEL_FATAL: u8 = 2;
        self.machine = Machine::Refused;
        self.outgoing.extend_from_slice(&[CONTENT_ALERT, 3, 3, 0, 2, LEVEL_FATAL, u8::from(alert)]);
        failure
    }

    fn feed(&mut self, mut bytes: &mut [u8]) -> Result<(), TlsError> {
        // First complete the record that was cut; everything after it is decrypted where it lies.
        while !self.incoming.is_empty() && !bytes.is_empty() {
            let (now, later) = bytes.split_at_mut(record_gap(&self.incoming, bytes.len()));
            self.incoming.extend_from_slice(now);
            let mut buffered = std::mem::take(&mut self.incoming);
            let (used, result) = self.pump(&mut buffered);
            buffered.drain(..used.min(buffered.len()));
            self.incoming = buffered;
            result?;
            self.check_incoming()?;
            bytes = later;
        }
        if self.incoming.is_empty() {
            let (used, result) = self.pump(bytes);
            result?;
            self.incoming.extend_from_slice(bytes.get(used..).unwrap_or(&[]));
        }
        if self.input == Input::CloseNotify {
            self.incoming.clear();
        }
        self.check_incoming()
    }

    fn check_incoming(&self) -> Result<(), TlsError> {
        if self.incoming.len() > INCOMING_BYTES_MAX { Err(TlsError::TooManyFragments) } else { Ok(()) }
    }

    /// Lets rustls work through `input`. Returns how many bytes at its front are done with.
    fn pump(&mut self, input: &mut [u8]) -> (usize, Result<(), TlsError>) {
        let outgoing_before = self.outgoing.len();
        let mut sinks = Sinks { plain: &mut self.plain, outgoing: &mut self.outgoing, close_notify: false };
        let (used, result) = match &mut self.machine {
            Machine::Server(connection) => pump(connection, input, &mut sinks),
            Machine::Client(connection) => pump(connection, input, &mut sinks),
            Machine::AwaitHello { .. } | Machine::Refused => (input.len(), Ok(())),
        };
        if sinks.close_notify {
            self.input = Input::CloseNotify;
        }
        if self.early == EarlyData::Offered
            && ends_early_data(self.outgoing.get(outgoing_before..).unwrap_or_default())
        {
            self.early = EarlyData::Accepted;
        }
        (used, result.map_err(TlsError::Protocol))
    }

    /// Decrypted bytes that have not been read.
    pub fn plain(&self) -> &[u8] {
        self.plain.get(self.plain_at..).unwrap_or(&[])
    }

    /// Marks the first `len` bytes of [`Session::plain`] as read.
    pub fn consume_plain(&mut self, len: usize) {
        self.plain_at = self.plain.len().min(self.plain_at + len);
        if self.plain_at == self.plain.len() {
            self.plain.clear();
            self.plain_at = 0;
        }
    }

    /// Copies decrypted bytes to `out`.
    ///
    /// # Errors
    /// The session's failure, once what came before it has been read.
    pub fn read_plain(&mut self, out: &mut [u8]) -> Result<Plain, TlsError> {
        let plain = self.plain();
        if plain.is_empty() {
            return self.plain_end();
        }
        let len = plain.len().min(out.len());
        let (from, to) = (plain.get(..len).unwrap_or(&[]), out.get_mut(..len).unwrap_or_default());
        to.copy_from_slice(from);
        self.consume_plain(len);
        Ok(Plain::Bytes(len))
    }

    /// Moves all decrypted bytes to the end of `out`; an empty `out` trades places with the session's buffer, so
    /// that nothing is copied.
    ///
    /// # Errors
    /// As [`Session::read_plain`].
    pub fn take_plain(&mut self, out: &mut Vec<u8>) -> Result<Plain, TlsError> {
        let len = self.plain().len();
        if len == 0 {
            return self.plain_end();
        }
        if out.is_empty() && self.plain_at == 0 {
            std::mem::swap(out, &mut self.plain);
        } else {
            out.extend_from_slice(self.plain());
            self.consume_plain(len);
        }
        Ok(Plain::Bytes(len))
    }

    fn plain_end(&self) -> Result<Plain, TlsError> {
        match (&self.failure, self.input) {
            (Some(failure), _) => Err(TlsError::clone(failure)),
            (None, Input::Open) => Ok(Plain::Blocked),
            (None, Input::CloseNotify) => Ok(Plain::Closed),
            (None, Input::Eof) => Ok(Plain::Truncated),
        }
    }

    /// Encrypts as much of `data` as the bound on outgoing bytes allows and returns how much that was: 0 during the
    /// handshake, after our close_notify, and while too much waits to be written.
    ///
    /// # Errors
    /// The session's failure; [`rustls::Error::EncryptError`] when a TLS 1.2 key is worn out.
    pub fn write_plain(&mut self, data: &[u8]) -> Result<usize, TlsError> {
        if let Some(failure) = &self.failure {
            return Err(TlsError::clone(failure));
        }
        let room = OUTGOING_BYTES_MAX.saturating_sub(self.outgoing.len());
        let data = data.get(..data.len().min(room)).unwrap_or(&[]);
        // RFC 8446 §6.1: nothing follows close_notify.
        if data.is_empty() || self.output_closed {
            return Ok(0);
        }
        Ok(if self.seal(Outbound::Data(data))? { data.len() } else { 0 })
    }

    /// Says that nothing more will be written (RFC 8446 §6.1). Returns whether there is such an alert to write: not
    /// during the handshake, where there is nothing to truncate.
    pub fn send_close_notify(&mut self) -> bool {
        if self.failure.is_some() || self.output_closed {
            return false;
        }
        self.output_closed = self.seal(Outbound::CloseNotify).unwrap_or(false);
        self.output_closed
    }

    /// Encrypts `what`; false when the session cannot send.
    fn seal(&mut self, what: Outbound<'_>) -> Result<bool, TlsError> {
        // Replies to the peer (a key update) go first, and the state machine has to stand at "may write".
        let mut held = std::mem::take(&mut self.incoming);
        let (used, result) = self.pump(&mut held);
        held.drain(..used.min(held.len()));
        let outcome = match (result, &mut self.machine) {
            (Ok(()), Machine::Server(connection)) => seal(connection, &mut held, &mut self.outgoing, what),
            (Ok(()), Machine::Client(connection)) => seal(connection, &mut held, &mut self.outgoing, what),
            (Ok(()), Machine::AwaitHello { .. } | Machine::Refused) => Ok(false),
            (Err(failure), _) => {
                self.failure = Some(Box::new(failure.clone()));
                return Err(failure);
            }
        };
        self.incoming = held;
        Ok(outcome?)
    }

    /// Moves the ciphertext for the peer to the end of `out` and returns its length; an empty `out` trades places
    /// with the session's buffer, so that nothing is copied.
    pub fn write_tls(&mut self, out: &mut Vec<u8>) -> usize {
        let len = self.outgoing.len();
        if out.is_empty() {
            std::mem::swap(out, &mut self.outgoing);
        } else {
            out.append(&mut self.outgoing);
        }
        len
    }

    /// Whether there is ciphertext to write.
    pub fn wants_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether more ciphertext would be of use now.
    pub fn wants_read(&self) -> bool {
        self.failure.is_none() && self.input == Input::Open && self.plain().is_empty()
    }

    /// Gives back the memory of all empty buffers. Call it when the connection goes to wait for the peer.
    pub fn release_buffers(&mut self) {
        for buffer in [&mut self.incoming, &mut self.plain, &mut self.outgoing] {
            if buffer.is_empty() {
                *buffer = Vec::new();
            }
        }
    }

    fn common(&self) -> Option<&CommonState> {
        match &self.machine {
            Machine::Server(connection) => Some(connection.common()),
            Machine::Client(connection) => Some(connection.common()),
            Machine::AwaitHello { .. } | Machine::Refused => None,
        }
    }

    /// Whether application data cannot flow yet.
    pub fn is_handshaking(&self) -> bool {
        self.common().is_none_or(CommonState::is_handshaking)
    }

    /// How the session came about; None during the handshake.
    pub fn handshake(&self) -> Option<Handshake> {
        let kind = self.common().filter(|c| !c.is_handshaking())?.handshake_kind()?;
        Some(match kind {
            HandshakeKind::Full => Handshake::Full,
            HandshakeKind::FullWithHelloRetryRequest => Handshake::FullWithRetry,
            HandshakeKind::Resumed => Handshake::Resumed,
        })
    }

    /// The protocol agreed by ALPN.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.common()?.alpn_protocol()
    }

    /// Server: the name that the client asked for, lower case, no trailing dot. Client: the name that was dialled.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Server: the client-auth policy that the handshake goes by.
    pub fn policy(&self) -> Option<PolicyId> {
        self.policy
    }

    /// `TLSv1.2` or `TLSv1.3`.
    pub fn version(&self) -> Option<&'static str> {
        match self.common()?.protocol_version()? {
            ProtocolVersion::TLSv1_3 => Some("TLSv1.3"),
            ProtocolVersion::TLSv1_2 => Some("TLSv1.2"),
            _ => None,
        }
    }

    /// The cipher suite by its IANA name.
    pub fn cipher(&self) -> Option<&'static str> {
        match self.common()?.negotiated_cipher_suite()?.suite() {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some("TLS_AES_128_GCM_SHA256"),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some("TLS_AES_256_GCM_SHA384"),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some("TLS_CHACHA20_POLY1305_SHA256"),
            other => other.as_str(),
        }
    }

    /// The key exchange group by its IANA name; None for TLS 1.2 sessions that were resumed.
    pub fn group(&self) -> Option<&'static str> {
        self.common()?.negotiated_key_exchange_group()?.name().as_str()
    }

    /// The peer's verified certificate. Parsed anew on each call.
    pub fn peer_certificate(&self) -> Option<PeerCertificate<'_>> {
        PeerCertificate::read(self.common()?.peer_certificates()?.first()?)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let role = match self.machine {
            Machine::AwaitHello { .. } => "await hello",
            Machine::Server(_) => "server",
            Machine::Client(_) => "client",
            Machine::Refused => "refused",
        };
        f.debug_struct("Session")
            .field("role", &role)
            .field("server_name", &self.server_name)
            .field("handshaking", &self.is_handshaking())
            .field("input", &self.input)
            .field("failure", &self.failure)
            .finish_non_exhaustive()
    }
}

/// How many of `available` bytes complete the record at the front of `incoming`. What stands there may also be a
/// handshake message that rustls has already opened, whose length is not to be told; any answer above zero is
/// right then, and everything is the quickest.
fn record_gap(incoming: &[u8], available: usize) -> usize {
    let gap = match incoming.first_chunk::<RECORD_HEADER_BYTES>() {
        None => RECORD_HEADER_BYTES - incoming.len(),
        Some(&[_, _, _, high, low]) => {
            let whole = RECORD_HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
            whole.saturating_sub(incoming.len())
        }
    };
    if gap == 0 { available } else { gap.min(available) }
}
