//! Temporary directories, removed when dropped unless the test failed: then they stay, for a look.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A directory of its own below the system's temporary directory.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Makes an empty directory whose name starts with `shard-` and `name`.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("shard-{name}-{}-{serial}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary directory is writable");
        Self { path }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes `content` to `relative`, making the folders on the way, and returns the whole path. Whoever reads it at
    /// this moment gets the old file or the new one. Private keys (`*.key`) are for their owner only.
    pub fn write(&self, relative: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path.join(relative);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).expect("the temporary directory is writable");
        }
        let aside = path.with_added_extension("new");
        std::fs::write(&aside, content).expect("the temporary directory is writable");
        if path.extension().is_some_and(|extension| extension == "key") {
            let owner_only = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&aside, owner_only).expect("our own file");
        }
        std::fs::rename(&aside, &path).expect("the same directory");
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            crate::note(&format!("kept for a look: {}", self.path.display()));
        } else if let Err(error) = std::fs::remove_dir_all(&self.path) {
            crate::note(&format!("{}: not removed: {error}", self.path.display()));
        }
    }
}
