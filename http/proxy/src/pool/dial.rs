//! A new connection to an endpoint: TCP, then TLS where the cluster asks for it, within one time limit.

use std::future::poll_fn;
use std::io;
use std::task::Poll;
use std::time::Duration;

use core_runtime::clock;
use core_runtime::net::{ConnectError, TcpStream};
use core_runtime::timer::Deadline;
use tls::Session;

use super::{Endpoint, Settings};
use crate::reason::Reason;
use crate::snapshot::ServerName;
use crate::transport::Transport;

/// Connects, and says how long it took.
///
/// # Errors
/// The reason, by cause: refused, unreachable, too slow, or TLS failed.
pub(super) async fn dial(settings: &Settings, endpoint: &Endpoint) -> Result<(Transport, Duration), Reason> {
    let started = clock::now();
    let config = settings.config();
    let tcp = TcpStream::connect(endpoint.address, config.connect_timeout).await.map_err(connect_reason)?;
    let Some(context) = &config.tls else {
        return Ok((Transport::Plain(tcp), clock::now().saturating_sub(started)));
    };
    let address;
    let name = match (&config.server_name, &endpoint.hostname) {
        (ServerName::Fixed(name), _) | (ServerName::Endpoint, Some(name)) => name,
        (ServerName::Endpoint, None) => {
            address = endpoint.address.ip().to_string();
            &address
        }
    };
    let session = Session::client(context, name).map_err(|_unusable_name| Reason::UpstreamTlsFailed)?;
    let mut transport = Transport::tls(tcp, session);
    let deadline = Deadline::new();
    deadline.set(started + config.connect_timeout);
    poll_fn(|cx| {
        if let Poll::Ready(result) = transport.poll_handshake(cx) {
            return Poll::Ready(result.map_err(|_failed| Reason::UpstreamTlsFailed));
        }
        deadline.poll_expired(cx).map(|()| Err(Reason::UpstreamConnectTimeout))
    })
    .await?;
    Ok((transport, clock::now().saturating_sub(started)))
}

fn connect_reason(error: ConnectError) -> Reason {
    match error {
        ConnectError::TimedOut => Reason::UpstreamConnectTimeout,
        ConnectError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Reason::UpstreamConnectRefused
        }
        ConnectError::Io(_) => Reason::UpstreamConnectFailed,
    }
}
