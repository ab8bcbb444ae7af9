//! Targets that the tool starts itself: a command line, until it accepts connections, to its end.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How long a target may take to accept, and to end.
const START_MAX: Duration = Duration::from_secs(30);
const END_MAX: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// A running target; ends with SIGTERM, and SIGKILL when that does not do, on drop.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

/// Waits a little; nobody sends.
fn pause() {
    let (_sender, receiver) = mpsc::channel::<()>();
    match receiver.recv_timeout(LOOK) {
        Ok(()) | Err(_) => {}
    }
}

impl Process {
    /// Starts `command` in a shell and waits until `addr` accepts.
    ///
    /// # Errors
    /// The command, and why it does not serve.
    pub(crate) fn start(command: &str, addr: SocketAddr) -> Result<Self, String> {
        if TcpStream::connect_timeout(&addr, LOOK).is_ok() {
            return Err(format!("--start {command}: something listens on {addr} already"));
        }
        let child = Command::new("/bin/sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| format!("--start {command}: {error}"))?;
        let mut this = Self { child };
        let until = Instant::now() + START_MAX;
        while TcpStream::connect_timeout(&addr, LOOK).is_err() {
            if let Ok(Some(status)) = this.child.try_wait() {
                return Err(format!("--start {command}: ended with {status} before it listened on {addr}"));
            }
            if Instant::now() > until {
                return Err(format!("--start {command}: does not listen on {addr} after {START_MAX:?}"));
            }
            pause();
        }
        Ok(this)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        let asked = pid.is_some_and(|pid| kill_process(pid, Signal::TERM).is_ok());
        let until = Instant::now() + if asked { END_MAX } else { Duration::ZERO };
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            pause();
        }
        // It is gone, or about to be.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
