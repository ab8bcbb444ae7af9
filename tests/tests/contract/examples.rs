//! Every directory under docs/examples, as it is written there, is served by the product.

use std::path::Path;
use std::process::Command;

use tests::dir::TempDir;

use crate::{compiled, examples_dir};

/// A copy of an example, with the certificates and keys that its own script makes.
pub(crate) fn prepared(example: &Path) -> TempDir {
    let dir = TempDir::new("example");
    copy(example, dir.path());
    for script in ["make-certs.sh", "make-keys.sh"].map(|name| dir.path().join(name)) {
        if !script.is_file() {
            continue;
        }
        let made = Command::new("sh").arg(&script).output().expect("a shell");
        assert!(made.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&made.stderr));
    }
    dir
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a writable folder");
    for entry in std::fs::read_dir(from).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        let target = to.join(path.file_name().expect("entries have names"));
        // Certificates and keys that somebody made in the work tree are not part of the example.
        if path.is_dir() && !path.ends_with("tls") && !path.ends_with("keys") {
            copy(&path, &target);
        } else if path.is_file() {
            std::fs::copy(&path, &target).expect("a copy");
        }
    }
}

#[test]
fn every_example_compiles() {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(examples_dir()).expect("docs/examples") {
        let path = entry.expect("a readable entry").path();
        // The L4 tier's is for another daemon, below.
        if path.is_dir() && !path.ends_with("l4") {
            let snapshot = compiled(prepared(&path).path());
            assert!(!snapshot.listeners.is_empty(), "{}", path.display());
            names.push(path.file_name().expect("a name").to_string_lossy().into_owned());
        }
    }
    names.sort();
    assert_eq!(names, ["gateway", "minimal", "tcp"], "the examples that the docs speak of");
}

#[test]
fn the_l4_example_is_good() {
    let dir = prepared(&examples_dir().join("l4"));
    let loaded = control_config::load_l4(&dir.path().join("l4.yaml")).expect("no errors");
    assert_eq!(loaded.warnings, []);
    assert_eq!((loaded.config.vips.len(), loaded.config.owners.owners().len()), (2, 3));
}
