//! The examples under docs/examples load without errors or warnings.

use std::fs;
use std::path::{Path, PathBuf};

use super::{CERTIFICATE, PRIVATE_KEY, Set, loaded};
use crate::load;

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples").join(name)
}

fn read_tree(root: &Path, directory: &Path, into: &mut Set) {
    for entry in fs::read_dir(directory).expect("an example's directory") {
        let path = entry.expect("a directory entry").path();
        if path.is_dir() {
            read_tree(root, &path, into);
        } else {
            let relative = path.strip_prefix(root).expect("below the root");
            let name = relative.to_str().expect("an ASCII path").to_owned();
            into.insert(name, fs::read(&path).expect("an example's file"));
        }
    }
}

#[test]
fn the_minimal_example_loads_from_its_directory() {
    let loaded = load(&example("minimal")).expect("no errors");
    assert_eq!(loaded.warnings, []);
    let resources = &loaded.resources;
    assert_eq!((resources.listeners.len(), resources.routes.len(), resources.clusters.len()), (1, 1, 1));
    assert_eq!(resources.version, loaded.digest[..16]);
    let lines: usize = ["platform/listeners.yaml", "services/hello/service.yaml"]
        .iter()
        .map(|file| fs::read_to_string(example("minimal").join(file)).expect("a file").lines().count())
        .sum();
    assert!(lines <= 10, "the smallest useful config has grown to {lines} lines");
}

/// The certificates are made by a script, because private keys are not committed; here stand-ins take their place.
#[test]
fn the_gateway_example_loads() {
    let mut files = Set::new();
    read_tree(&example("gateway"), &example("gateway"), &mut files);
    for (path, text) in
        [("tls/www.pem", CERTIFICATE), ("tls/www.key", PRIVATE_KEY), ("tls/partner-ca.pem", CERTIFICATE)]
    {
        files.insert(path.to_owned(), text.as_bytes().to_vec());
    }
    let loaded = loaded(files);
    assert_eq!(loaded.warnings, []);
    let resources = &loaded.resources;
    assert_eq!((resources.listeners.len(), resources.routes.len(), resources.clusters.len()), (3, 3, 5));
    assert_eq!(resources.secrets.len(), 2, "a certificate that two listeners share is there once");
    let place = loaded.sources.get("route:orders/create").expect("a source");
    assert_eq!((place.file.as_str(), place.key.as_str()), ("services/orders/service.yaml", "routes[0]"));
    assert_eq!(place.line, 19);
}
