//! Opens a connection to the target: TCP, then TLS where the scheme wants it, each timed.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;
use std::time::Duration;

use core_runtime::clock::Epoch;
use core_runtime::net::{ConnectError, TcpStream};
use core_runtime::timer::Deadline;
use tls::{
    ClientContext, ClientContextBuilder, EarlyData, Handshake, Identity, SecretBytes, Session, Verification,
};

use super::{Link, Opening};
use crate::plan::{EarlyRequests, TlsPlan};
use crate::tally::Fault;

/// Why there is no connection.
#[derive(Debug)]
pub(crate) struct DialError {
    pub(crate) fault: Fault,
    pub(crate) text: String,
}

/// A connection and how long its parts took.
#[derive(Debug)]
pub(crate) struct Dialed {
    pub(crate) link: Link,
    pub(crate) connect: Duration,
    /// None on plaintext.
    pub(crate) tls: Option<Shaken>,
}

/// A handshake that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shaken {
    pub(crate) span: Duration,
    pub(crate) is_resumed: bool,
    pub(crate) early_data: EarlyData,
}

impl Shaken {
    pub(super) fn new(session: &Session, span: Duration) -> Self {
        let is_resumed = session.handshake() == Some(Handshake::Resumed);
        Self { span, is_resumed, early_data: session.early_data() }
    }
}

/// What a dialled connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// It is to be ready.
    Handshake,
    /// A request is due that may leave as early data: where a ticket allows that, the handshake is left to
    /// [`Link::poll_open`].
    EarlyRequest,
}

/// The TLS configuration of one core.
///
/// # Errors
/// What is wrong with the CAs or the client certificate.
pub(crate) fn tls_context(plan: &TlsPlan, alpn: &[&str]) -> Result<ClientContext, String> {
    let verification = match &plan.roots_pem {
        Some(roots_pem) => Verification::Full { roots_pem: roots_pem.clone(), rules: Vec::new() },
        None => Verification::Off,
    };
    let mut builder = ClientContextBuilder::new("--cacert", verification);
    builder.versions = plan.versions;
    builder.alpn = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    builder.session_names_max = usize::from(plan.resume);
    builder.groups.clone_from(&plan.groups);
    builder.early_data = plan.early_data != EarlyRequests::None;
    let key = plan.identity.as_ref().map(|(_, key)| SecretBytes::from_slice(key));
    let identity = match (&plan.identity, &key) {
        (Some((chain, _)), Some(key)) => {
            Some(Identity { label: "--cert and --key", chain_pem: chain, key_pem: key })
        }
        _ => None,
    };
    builder.build(identity.as_ref()).map_err(|error| error.to_string())
}

/// Connects within `timeout`, the handshake included unless `start` leaves it to the link.
///
/// # Errors
/// The class of the fault and its text.
pub(crate) async fn dial(
    addr: SocketAddr,
    tls: Option<(&ClientContext, &str)>,
    timeout: Duration,
    epoch: &Epoch,
    buffer: &RefCell<Box<[u8]>>,
    start: Start,
) -> Result<Dialed, DialError> {
    let started = epoch.read();
    let tcp = TcpStream::connect(addr, timeout).await.map_err(|error| match error {
        ConnectError::TimedOut => DialError {
            fault: Fault::ConnectTimeout,
            text: format!("connecting to {addr}: no answer within {timeout:?}"),
        },
        ConnectError::Io(error) => {
            DialError { fault: Fault::Connect, text: format!("connecting to {addr}: {error}") }
        }
    })?;
    let connected = epoch.read();
    let connect = connected.saturating_sub(started);
    let Some((context, name)) = tls else {
        return Ok(Dialed { link: Link::plain(tcp), connect, tls: None });
    };
    let failed = |why: String| DialError {
        fault: Fault::Tls,
        text: format!("TLS handshake with {addr} for {name}: {why}"),
    };
    let session = match start {
        Start::Handshake => Session::client(context, name),
        Start::EarlyRequest => Session::client_early(context, name),
    };
    let session = session.map_err(|error| failed(error.to_string()))?;
    if session.early_data() == EarlyData::Possible {
        let link = Link::early(tcp, session, Opening { connect, connected, early_bytes: 0 });
        return Ok(Dialed { link, connect, tls: None });
    }
    let mut link = Link::tls(tcp, session);
    let deadline = Deadline::new();
    deadline.set_after(timeout);
    poll_fn(|cx| {
        if let Poll::Ready(result) = link.poll_handshake(cx, &mut buffer.borrow_mut()) {
            return Poll::Ready(result.map_err(|error| failed(chain(&error))));
        }
        deadline.poll_expired(cx).map(|()| Err(failed(format!("no end within {timeout:?}"))))
    })
    .await?;
    let span = epoch.read().saturating_sub(connected);
    let tls = link.session().map(|session| Shaken::new(session, span));
    Ok(Dialed { link, connect, tls })
}

/// An error with its causes.
pub(super) fn chain(error: &io::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let more = inner.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = inner.source();
    }
    text
}
