//! Real programs that tests drive: found or failed, never skipped, and ended by their process id when dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::dir::TempDir;
use crate::wait::{PATIENCE, wait_for};

/// Where Debian puts programs that are not on every user's path.
const SYSTEM_FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/bin", "/usr/local/bin"];

/// Path of the program `name`.
///
/// # Panics
/// When it is not installed: `./test` installs all that the tests need, so a missing one is a fault, not a reason
/// to skip.
#[must_use]
#[track_caller]
pub fn require_tool(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .chain(SYSTEM_FOLDERS.iter().map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|candidate| candidate.is_file());
    found.unwrap_or_else(|| {
        panic!("{name} is not installed: run ./test once, or install the packages in .ci/packages")
    })
}

/// A child process whose output goes to a file. Killed by its id when dropped.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command`; standard output and error go to `NAME.log` in `dir`.
    ///
    /// # Panics
    /// When the program cannot be started.
    #[track_caller]
    pub fn start(name: &str, dir: &TempDir, command: &mut Command) -> Self {
        let log = dir.path().join(format!("{name}.log"));
        let output = File::create(&log).expect("the temporary directory is writable");
        let errors = output.try_clone().expect("a descriptor is free");
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { name: name.to_owned(), child, log }
    }

    /// All that the process wrote so far.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Path of the log file.
    #[must_use]
    pub fn log_path(&self) -> &Path {
        &self.log
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When the process is gone.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id is positive");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{}: signal: {error}", self.name));
    }

    /// The exit status when the process has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our own child can be waited for")
    }

    /// Waits for the end of the process.
    ///
    /// # Panics
    /// When it still runs after `limit`.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("end of {}", self.name);
        wait_for(&what, limit, || self.status())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None))
            && let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop))
        {
            crate::note(&format!("{}: not ended: {error}", self.name));
        }
        if std::thread::panicking() {
            crate::note(&format!("--- {} said:\n{}---", self.name, self.log()));
        }
    }
}

/// Runs a program to its end and returns (succeeded, standard output, standard error).
///
/// # Panics
/// When it cannot be started or runs for longer than [`PATIENCE`] four times over.
#[track_caller]
pub fn run(program: &str, arguments: &[&str]) -> (bool, String, String) {
    let dir = TempDir::new("run");
    let errors = dir.path().join("errors");
    let output = dir.path().join("output");
    let create = |path: &Path| File::create(path).expect("the temporary directory is writable");
    let mut child = Command::new(require_tool(program))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(create(&output))
        .stderr(create(&errors))
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let status = wait_for(&format!("end of {program} {arguments:?}"), PATIENCE * 4, || {
        child.try_wait().expect("our own child can be waited for")
    });
    let text = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    (status.success(), text(&output), text(&errors))
}
