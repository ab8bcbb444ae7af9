//! Files that are whole or not there: written beside their place under another name, then renamed.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes a file in one step for every reader; nothing is left behind on failure.
///
/// # Errors
/// The path and what went wrong.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), String> {
    let fault = |error: io::Error| format!("{}: not written: {error}", path.display());
    // A device such as /dev/full or /dev/stdout cannot be renamed over.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        let mut file = File::options().write(true).open(path).map_err(fault)?;
        return file.write_all(bytes).and_then(|()| file.flush()).map_err(fault);
    }
    let mut name = path.file_name().ok_or_else(|| format!("{}: not a file name", path.display()))?.to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = File::create(&part).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&part, path));
    renamed.map_err(|error| {
        // What could not be written may not even be there to be removed.
        drop(fs::remove_file(&part));
        fault(error)
    })
}

/// Complains before a run of a path that cannot be written after it.
///
/// # Errors
/// The path and why.
pub(crate) fn check_writable(path: &Path) -> Result<(), String> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    if path.is_dir() {
        return Err(format!("{}: is a directory; want a file name", path.display()));
    }
    match fs::metadata(&parent) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(format!("{}: {} is no directory", path.display(), parent.display())),
        Err(error) => Err(format!("{}: {}: {error}", path.display(), parent.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_whole_and_a_full_disk_leaves_none() {
        let folder = std::env::temp_dir().join(format!("shard-bench-files-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("a.json");
        write_whole(&path, b"one").expect("room");
        write_whole(&path, b"two").expect("room");
        assert_eq!(fs::read(&path).expect("there"), b"two");
        assert_eq!(fs::read_dir(&folder).expect("there").count(), 1, "no part is left");
        let full = write_whole(Path::new("/dev/full"), &[0; 100_000]).expect_err("a full disk");
        assert!(full.contains("/dev/full") && full.contains("space"), "{full}");
        assert!(check_writable(&folder).is_err() && check_writable(&folder.join("no/x")).is_err());
        assert!(check_writable(&path).is_ok());
        fs::remove_dir_all(&folder).expect("cleaned");
    }
}
