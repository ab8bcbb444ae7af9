//! Loading from a real directory: what lies on disk, links, permissions, versions.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use super::{base, shown, with_listener};
use crate::{load, load_files};

/// A directory that goes when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, files: &super::Set) -> Self {
        let root = std::env::temp_dir().join(format!("control-config-{name}-{}", std::process::id()));
        for (path, bytes) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a scratch directory");
            fs::write(path, bytes).expect("a scratch file");
        }
        fs::create_dir_all(&root).expect("a scratch directory");
        Self(root)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).expect("the scratch directory is ours");
    }
}

const TLS: &str = "tls:\n  certificates: [{ cert: tls/www.pem, key: tls/www.key }]\n";

#[test]
fn a_directory_and_memory_give_the_same_version() {
    let scratch = Scratch::new("same", &with_listener(TLS));
    let on_disk = load(scratch.path()).map_err(|e| shown(&e)).expect("no errors");
    let in_memory = load_files(with_listener(TLS)).map_err(|e| shown(&e)).expect("no errors");
    assert_eq!(on_disk.digest, in_memory.digest);
    assert_eq!(on_disk.resources, in_memory.resources);
    assert_eq!(on_disk.digest.len(), 64);
}

#[test]
fn any_byte_of_any_input_changes_the_version() {
    let first = load_files(with_listener(TLS)).expect("no errors");
    for path in ["platform/web.yaml", "services/shop/service.yaml", "tls/www.pem", "tls/www.key"] {
        let mut files = with_listener(TLS);
        files.get_mut(path).expect("a file").push(b'\n');
        assert_ne!(load_files(files).expect("no errors").digest, first.digest, "{path}");
    }
    let mut files = with_listener(TLS);
    files.insert("notes.txt".to_owned(), b"not an input".to_vec());
    assert_eq!(load_files(files).expect("no errors").digest, first.digest);
}

#[test]
fn a_missing_directory_is_one_error() {
    let errors = load(Path::new("/nonexistent/shard")).expect_err("no directory");
    assert_eq!(errors.len(), 1, "{}", shown(&errors));
    assert!(errors[0].message.contains("cannot be read"), "{}", errors[0]);
}

#[test]
fn an_empty_directory_says_what_to_create() {
    let scratch = Scratch::new("empty", &super::Set::new());
    let errors = load(scratch.path()).expect_err("nothing there");
    assert!(errors[0].fix.contains("platform/listeners.yaml"), "{}", errors[0]);
}

#[test]
fn links_are_followed_only_within_the_directory() {
    let inside = Scratch::new("inside", &with_listener(TLS));
    fs::rename(inside.path().join("tls"), inside.path().join("..data")).expect("rename");
    fs::create_dir(inside.path().join("tls")).expect("mkdir");
    for file in ["www.pem", "www.key"] {
        symlink(format!("../..data/{file}"), inside.path().join("tls").join(file)).expect("symlink");
    }
    assert!(load(inside.path()).is_ok(), "the layout of a mounted Kubernetes secret");

    let outside = Scratch::new("outside", &with_listener(TLS));
    fs::remove_file(outside.path().join("tls/www.key")).expect("rm");
    symlink("/etc/passwd", outside.path().join("tls/www.key")).expect("symlink");
    let errors = load(outside.path()).expect_err("a link out of the directory");
    assert!(errors.iter().any(|e| e.message.contains("outside the config directory")), "{}", shown(&errors));
}

#[test]
fn a_key_that_everyone_can_read_is_a_warning() {
    let scratch = Scratch::new("mode", &with_listener(TLS));
    let key = scratch.path().join("tls/www.key");
    for (mode, warnings) in [(0o644, 1), (0o640, 0), (0o600, 0)] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("chmod");
        let loaded = load(scratch.path()).map_err(|e| shown(&e)).expect("no errors");
        assert_eq!(loaded.warnings.len(), warnings, "{mode:o}: {}", shown(&loaded.warnings));
    }
}

#[test]
fn a_huge_or_special_file_is_not_read() {
    let scratch = Scratch::new("huge", &base());
    fs::write(scratch.path().join("platform/big.yaml"), vec![b'#'; 5 << 20]).expect("write");
    let errors = load(scratch.path()).expect_err("too large");
    assert!(errors[0].message.contains("larger than 4 MiB"), "{}", errors[0]);

    let scratch = Scratch::new("special", &base());
    fs::create_dir(scratch.path().join("platform/dir.yaml")).expect("mkdir");
    let errors = load(scratch.path()).expect_err("a directory");
    assert!(errors[0].message.contains("no regular file"), "{}", errors[0]);
}
