//! A bpffs of the test's own, on a folder that goes with it: what is pinned there ends with the test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A mounted bpffs.
#[derive(Debug)]
pub struct Pins(PathBuf);

impl Pins {
    /// Mounts one.
    ///
    /// # Panics
    ///
    /// When it cannot be mounted: the test fails.
    #[must_use]
    pub fn new() -> Self {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("l4-pins-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&folder).status();
        assert!(mounted.expect("mount runs").success(), "root may mount a bpffs");
        Self(folder)
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for Pins {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        if !unmounted.is_ok_and(|status| status.success()) || std::fs::remove_dir(&self.0).is_err() {
            crate::note(&format!("{} is left behind", self.0.display()));
        }
    }
}
