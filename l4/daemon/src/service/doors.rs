//! What the daemon waits at: signals, the control socket, the metrics address.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::args::Options;
use crate::ended::StartError;
use crate::oplog;
use crate::unix_socket::{self, Live};

/// All of them, none of which blocks.
#[derive(Debug)]
pub(super) struct Doors {
    /// Readable when a signal says to end.
    pub(super) ends: UnixStream,
    /// Readable when a signal says to load the file again.
    pub(super) hangups: UnixStream,
    pub(super) control: UnixListener,
    pub(super) metrics: Option<TcpListener>,
}

impl Doors {
    /// Opens them.
    ///
    /// # Errors
    /// Which one cannot be had.
    pub(super) fn open(options: &Options) -> Result<Self, StartError> {
        Ok(Self {
            control: listen_control(&options.control)?,
            metrics: options.metrics.map(listen_metrics).transpose()?,
            ends: signal_pipe(&[SIGTERM, SIGINT])?,
            hangups: signal_pipe(&[SIGHUP])?,
        })
    }
}

fn listen_control(path: &Path) -> Result<UnixListener, StartError> {
    let listener = unix_socket::listen(path, Live::Refuse).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| {
        StartError::Address(format!("--control {}: it cannot be listened on", path.display()), error)
    })
}

fn listen_metrics(address: SocketAddr) -> Result<TcpListener, StartError> {
    let listener = TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        oplog::info(&format!("metrics on {}", listener.local_addr()?));
        Ok(listener)
    });
    listener
        .map_err(|error| StartError::Address(format!("--metrics {address}: it cannot be listened on"), error))
}

/// A socket that becomes readable when one of the signals comes.
fn signal_pipe(signals: &[i32]) -> Result<UnixStream, StartError> {
    let failed = |error| StartError::System("signals cannot be watched", error);
    let (read, write) = UnixStream::pair().map_err(failed)?;
    read.set_nonblocking(true).map_err(failed)?;
    for signal in signals {
        let write = write.try_clone().map_err(failed)?;
        signal_hook::low_level::pipe::register(*signal, write).map_err(failed)?;
    }
    Ok(read)
}

/// Takes what a signal wrote.
pub(super) fn take(mut signals: &UnixStream) -> io::Result<()> {
    let mut bytes = [0; 64];
    match io::Read::read(&mut signals, &mut bytes) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}
