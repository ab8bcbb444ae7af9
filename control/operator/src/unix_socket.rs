//! Unix sockets that only this user may connect to, put in place without a moment of wider permissions.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// What to do when somebody listens at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    Refuse,
    /// It is the predecessor, which has been talked to.
    Replace,
}

/// Listens at `path`, mode 0600. A socket file that nobody listens on is replaced; the path is never without a
/// socket in between.
///
/// # Errors
/// `AddrInUse` when somebody listens there, `AlreadyExists` when the path is no socket, else what the system says.
pub fn listen(path: &Path, live: Live) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path is there and is no socket"));
        }
        Ok(_) if live == Live::Refuse && UnixStream::connect(path).is_ok() => {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let fresh = beside(path);
    remove(&fresh)?;
    let listener = UnixListener::bind(&fresh)?;
    let placed = std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&fresh, path));
    if let Err(error) = placed {
        remove(&fresh)?;
        return Err(error);
    }
    Ok(listener)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    PathBuf::from(name)
}

/// Removes a socket file; one that is not there is fine.
///
/// # Errors
/// What the system says.
pub fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fresh directory, removed at the end.
    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("shard-unix-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&path).expect("the temporary directory is writable");
            Self(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            assert!(std::fs::remove_dir_all(&self.0).is_ok() || std::thread::panicking());
        }
    }

    #[test]
    fn a_stale_file_is_replaced_and_a_live_socket_is_not_stolen() {
        let dir = Dir::new("live");
        let path = dir.0.join("s");
        let first = listen(&path, Live::Refuse).expect("nobody is there");
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = listen(&path, Live::Refuse).expect_err("somebody listens");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        UnixStream::connect(&path).expect("the live one is untouched");
        drop(first);
        let second = listen(&path, Live::Refuse).expect("the file is stale");
        let third = listen(&path, Live::Replace).expect("asked to replace");
        let _client = UnixStream::connect(&path).expect("somebody listens");
        third.accept().expect("the newest one gets the client");
        drop(second);
        assert_eq!(std::fs::read_dir(&dir.0).expect("a directory").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_file_is_not_overwritten() {
        let dir = Dir::new("file");
        let path = dir.0.join("precious");
        std::fs::write(&path, "data").expect("writable");
        for live in [Live::Refuse, Live::Replace] {
            let error = listen(&path, live).expect_err("no socket");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(std::fs::read(&path).expect("still there"), b"data");
    }
}
