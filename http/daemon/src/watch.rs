//! `--watch`: tells the main thread when the config directory has changed.
//!
//! Each second the directory is listed, and a change counts once two listings in a row are equal: an editor or a
//! checkout that is still writing is not read half-way. The listing holds what changes with a file's content
//! (inode, size, times), so a quiet directory costs a few system calls a file and no reading. Links are followed,
//! since a mounted directory is often changed by turning one link.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use crate::events::Event;

const INTERVAL: Duration = Duration::from_secs(1);
/// More than this is not listed; the config loader refuses such a directory anyway.
const FILES_MAX: usize = 100_000;
const DEPTH_MAX: usize = 16;

type Listing = BTreeMap<PathBuf, Print>;

/// Device, inode, size, modification and status change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print(u64, u64, u64, (i64, i64), (i64, i64));

/// Starts the thread.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn start(dir: PathBuf, events: SyncSender<Event>) -> io::Result<()> {
    let mut watched = Watched::new(&list(&dir));
    let watch = move || {
        loop {
            std::thread::park_timeout(INTERVAL);
            if watched.look(list(&dir)) && events.send(Event::ConfigChanged).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("watch".to_owned()).spawn(watch).map(drop)
}

#[derive(Debug)]
struct Watched {
    /// What was told last.
    told: Listing,
    /// What was seen last.
    seen: Listing,
}

impl Watched {
    fn new(now: &Listing) -> Self {
        Self { told: now.clone(), seen: now.clone() }
    }

    /// Whether there is a change that has come to rest.
    fn look(&mut self, now: Listing) -> bool {
        let is_at_rest = now == self.seen;
        self.seen = now;
        let is_news = is_at_rest && self.seen != self.told;
        if is_news {
            self.told.clone_from(&self.seen);
        }
        is_news
    }
}

fn list(dir: &Path) -> Listing {
    let mut listing = Listing::new();
    add(dir, 0, &mut listing);
    listing
}

/// What cannot be read is left out: if that is a change, the loader will say what is wrong.
fn add(dir: &Path, depth: usize, listing: &mut Listing) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let Ok(data) = std::fs::metadata(&path) else { continue };
        if listing.len() >= FILES_MAX {
            return;
        }
        if data.is_dir() {
            if depth < DEPTH_MAX {
                add(&path, depth + 1, listing);
            }
        } else {
            let (changed, status) = ((data.mtime(), data.mtime_nsec()), (data.ctime(), data.ctime_nsec()));
            listing.insert(path, Print(data.dev(), data.ino(), data.size(), changed, status));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(files: &[(&str, u64)]) -> Listing {
        files.iter().map(|(path, size)| (PathBuf::from(path), Print(1, 1, *size, (0, 0), (0, 0)))).collect()
    }

    #[test]
    fn a_change_is_told_once_and_only_at_rest() {
        let steps = [
            (listing(&[("a", 1)]), false, "nothing new"),
            (listing(&[("a", 2)]), false, "still moving"),
            (listing(&[("a", 2), ("b", 1)]), false, "still moving"),
            (listing(&[("a", 2), ("b", 1)]), true, "at rest"),
            (listing(&[("a", 2), ("b", 1)]), false, "told already"),
            (listing(&[("b", 1)]), false, "moving again"),
            (listing(&[("a", 2), ("b", 1)]), false, "and back"),
            (listing(&[("a", 2), ("b", 1)]), false, "at rest where it was"),
        ];
        let mut watched = Watched::new(&listing(&[("a", 1)]));
        for (now, news, why) in steps {
            assert_eq!(watched.look(now), news, "{why}");
        }
    }

    #[test]
    fn a_listing_sees_what_changes_content() {
        let dir = std::env::temp_dir().join(format!("shard-watch-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("one/deep")).expect("writable");
        std::fs::write(dir.join("one/deep/file"), "a").expect("writable");
        let mut last = list(&dir);
        assert_eq!(last.len(), 1);
        let changes: [&dyn Fn() -> io::Result<()>; 4] = [
            &|| std::fs::write(dir.join("one/deep/file"), "ab"),
            &|| std::fs::write(dir.join("two"), ""),
            &|| std::fs::rename(dir.join("two"), dir.join("one/deep/file")),
            &|| std::fs::remove_file(dir.join("one/deep/file")),
        ];
        for (at, change) in changes.iter().enumerate() {
            change().expect("writable");
            let now = list(&dir);
            assert_ne!(now, last, "change {at}");
            assert_eq!(list(&dir), now, "looking changes nothing");
            last = now;
        }
        std::fs::remove_dir_all(&dir).expect("removable");
        assert!(list(&dir).is_empty());
    }
}
