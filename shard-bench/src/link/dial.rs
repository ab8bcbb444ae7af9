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
use tls::{ClientContext, ClientContextBuilder, Handshake, Identity, SecretBytes, Session, Verification};

use super::Link;
use crate::plan::TlsPlan;
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
    /// The handshake, and whether it resumed a session.
    pub(crate) tls: Option<(Duration, Resumption)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumption {
    Full,
    Resumed,
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
    let mut builder = ClientContextBuilder::new("target", verification);
    builder.versions = plan.versions;
    builder.alpn = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    builder.session_names_max = usize::from(plan.resume);
    builder.groups.clone_from(&plan.groups);
    let key = plan.identity.as_ref().map(|(_, key)| SecretBytes::from_slice(key));
    let identity = match (&plan.identity, &key) {
        (Some((chain, _)), Some(key)) => Some(Identity { label: "--cert", chain_pem: chain, key_pem: key }),
        _ => None,
    };
    builder.build(identity.as_ref()).map_err(|error| error.to_string())
}

/// Connects within `timeout`, the handshake included.
///
/// # Errors
/// The class of the fault and its text.
pub(crate) async fn dial(
    addr: SocketAddr,
    tls: Option<(&ClientContext, &str)>,
    timeout: Duration,
    epoch: &Epoch,
    buffer: &RefCell<Box<[u8]>>,
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
    let session = Session::client(context, name).map_err(|error| failed(error.to_string()))?;
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
    let kind = match link.session().and_then(Session::handshake) {
        Some(Handshake::Resumed) => Resumption::Resumed,
        _ => Resumption::Full,
    };
    Ok(Dialed { link, connect, tls: Some((span, kind)) })
}

/// An error with its causes.
fn chain(error: &io::Error) -> String {
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
