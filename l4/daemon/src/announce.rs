//! Tells a BGP speaker which VIPs this box serves: files that it includes, replaced as a whole, and a command that
//! makes it read them.
//!
//! Invariants: a file holds either every VIP of its family or nothing; it is written only when that changes, and the
//! command runs only after a write. Whether the last attempt succeeded is known, so that it can be tried again.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use l4_steer::config::{Announce, Config};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A BGP speaker that takes longer to read its configuration has hung.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);

/// Whether the VIPs of this box attract packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Announced,
    Withdrawn,
}

/// Brings the files to what is wished; whether anything was written.
///
/// # Errors
/// What the file system says, or how the command failed; a later call tries again.
pub(crate) fn bring(config: &Config, wish: Wish) -> io::Result<bool> {
    let Some(announce) = &config.announce else { return Ok(false) };
    let mut undo = Vec::new();
    for (file, text) in contents(announce, config, wish) {
        let present = match fs::read_to_string(file) {
            Ok(present) => Some(present),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(named(file, &error)),
        };
        if present.as_ref() != Some(&text) {
            replace(file, &text).map_err(|error| named(file, &error))?;
            undo.push((file, present));
        }
    }
    if undo.is_empty() {
        return Ok(false);
    }
    if let Err(error) = run(&announce.command) {
        // What the speaker has not read must not look done, or nobody would try again.
        for (file, present) in undo {
            match present {
                Some(text) => replace(file, &text)?,
                None => fs::remove_file(file)?,
            }
        }
        return Err(error);
    }
    Ok(true)
}

/// Each file with what it must hold.
fn contents<'a>(announce: &'a Announce, config: &Config, wish: Wish) -> Vec<(&'a Path, String)> {
    let addresses: BTreeSet<IpAddr> = match wish {
        Wish::Announced => config.vips.iter().flat_map(|vip| vip.addresses.iter().copied()).collect(),
        Wish::Withdrawn => BTreeSet::new(),
    };
    let text = |of: fn(&IpAddr) -> bool, bits: u8| -> String {
        let lines = addresses.iter().filter(|address| of(address));
        lines
            .map(|address| format!("{}\n", announce.line.replace("{prefix}", &format!("{address}/{bits}"))))
            .collect()
    };
    let file4 = announce.file4.as_deref().map(|file| (file, text(IpAddr::is_ipv4, 32)));
    let file6 = announce.file6.as_deref().map(|file| (file, text(IpAddr::is_ipv6, 128)));
    file4.into_iter().chain(file6).collect()
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let mut beside = file.as_os_str().to_owned();
    beside.push(".new");
    let beside = PathBuf::from(beside);
    fs::write(&beside, text)?;
    fs::rename(&beside, file)
}

fn named(file: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", file.display()))
}

/// Runs a command and waits for it, but not for ever.
fn run(command: &[String]) -> io::Result<()> {
    let Some((program, arguments)) = command.split_first() else { return Ok(()) };
    let failed = |what: String| io::Error::other(format!("{}: {what}", command.join(" ")));
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let pid = Pid::from_child(&child);
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let timeout = Timespec::try_from(COMMAND_TIMEOUT).map_err(io::Error::other)?;
    let ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&timeout))?;
    if ended == 0 {
        child.kill()?;
        child.wait()?;
        return Err(failed(format!("not done after {COMMAND_TIMEOUT:?}")));
    }
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(failed(status.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::tests::{FILE, config};

    /// A fresh directory, removed at the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("shard-l4-announce-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).expect("the temporary directory is writable");
            Self(path)
        }

        fn config(&self, command: &str) -> Config {
            let path = self.0.display();
            config(&format!("{FILE}announce: {{ file4: {path}/4, file6: {path}/6, command: {command} }}\n"))
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.0.join(name)).expect("the file is there")
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            assert!(fs::remove_dir_all(&self.0).is_ok() || std::thread::panicking());
        }
    }

    #[test]
    fn files_hold_the_vips_while_announced() {
        let dir = Dir::new("files");
        let config = dir.config(&format!("[touch, {}/told]", dir.0.display()));
        assert!(bring(&config, Wish::Withdrawn).expect("written"), "a speaker wants the files to be there");
        assert_eq!((dir.read("4"), dir.read("6")), (String::new(), String::new()));
        assert!(bring(&config, Wish::Announced).expect("written"));
        assert_eq!(dir.read("4"), "route 192.0.2.1/32 blackhole;\nroute 192.0.2.9/32 blackhole;\n");
        assert_eq!(dir.read("6"), "route 2001:db8::1/128 blackhole;\n");
        assert_eq!(dir.read("told"), "");
        fs::remove_file(dir.0.join("told")).expect("it is there");
        assert!(!bring(&config, Wish::Announced).expect("nothing to do"));
        assert!(!dir.0.join("told").exists(), "nothing changed, so nobody is told");
        assert!(bring(&config, Wish::Withdrawn).expect("written"));
        assert_eq!(dir.read("4"), "");
    }

    #[test]
    fn a_failed_command_is_told_and_tried_again() {
        let dir = Dir::new("failed");
        for command in ["[\"false\"]", "[/nonexistent]"] {
            let config = dir.config(command);
            let error = bring(&config, Wish::Announced).expect_err("it fails").to_string();
            assert!(error.contains("false") || error.contains("/nonexistent"), "{error}");
            assert!(!dir.0.join("4").exists());
            bring(&config, Wish::Announced).expect_err("it is tried again");
        }
        assert!(bring(&dir.config("[\"true\"]"), Wish::Announced).expect("written"));
    }

    #[test]
    fn without_the_key_nothing_is_written() {
        assert!(!bring(&config(FILE), Wish::Announced).expect("nothing to do"));
    }
}
