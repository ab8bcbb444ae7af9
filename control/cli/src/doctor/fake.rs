//! A directory that looks like a machine's `/proc` and `/sys`, for the tests of the checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::finding::Finding;
use super::host::{Host, Unread};

/// Removed again when dropped.
pub(super) struct FakeRoot(PathBuf);

impl FakeRoot {
    /// A root with these files; parents are made, a later entry replaces an earlier one.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("shardctl-doctor-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = Self(std::env::temp_dir().join(name));
        fs::create_dir_all(&root.0).expect("a temporary directory");
        for (path, text) in files {
            let place = root.place(path);
            fs::write(place, text).expect("a file of the fake root");
        }
        root
    }

    /// A symbolic link at `path`.
    pub(super) fn link(&self, path: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.place(path)).expect("a link of the fake root");
        // What the link points to exists, so that paths through it can be followed.
        if let Some(parent) = self.place(path).parent() {
            fs::create_dir_all(parent.join(target)).expect("the link's target");
        }
    }

    pub(super) fn host(&self) -> Host {
        Host::below(&self.0)
    }

    fn place(&self, path: &str) -> PathBuf {
        let place = self.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().unwrap_or(Path::new("/"))).expect("a directory of the fake root");
        place
    }
}

impl Drop for FakeRoot {
    fn drop(&mut self) {
        // A failure leaves a directory in the temporary folder and must not hide the test's own.
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The finding with this id.
pub(super) fn find<'a>(findings: &'a [Finding], id: &str) -> &'a Finding {
    findings.iter().find(|f| f.id == id).unwrap_or_else(|| panic!("no finding {id}"))
}

/// An ethtool that is not there.
pub(super) fn no_tool(_flag: &str, _interface: &str) -> Result<String, Unread> {
    Err(Unread::Failed("no tool in this test".to_owned()))
}
