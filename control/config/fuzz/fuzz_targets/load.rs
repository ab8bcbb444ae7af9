//! Any bytes as a config: no panic, errors that name a file, and the same version for the same input.
//!
//! The input is one `shard.yaml`, or, with lines of `--- path` between them, a set of files.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;

const SEPARATOR: &[u8] = b"\n--- ";

fn files_of(input: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut rest = input;
    let mut path = "shard.yaml".to_owned();
    while let Some(at) = rest.windows(SEPARATOR.len()).position(|w| w == SEPARATOR) {
        files.insert(path, rest[..at].to_vec());
        let after = &rest[at + SEPARATOR.len()..];
        let end = after.iter().position(|b| *b == b'\n').unwrap_or(after.len());
        path = String::from_utf8_lossy(&after[..end]).into_owned();
        rest = after.get(end + 1..).unwrap_or(&[]);
    }
    files.insert(path, rest.to_vec());
    // A set begins with a separator, so that its first part is empty and no `shard.yaml`.
    if files.get("shard.yaml").is_some_and(Vec::is_empty) {
        files.remove("shard.yaml");
    }
    files
}

fuzz_target!(|input: &[u8]| {
    let files = files_of(input);
    match (control_config::load_files(files.clone()), control_config::load_files(files)) {
        (Ok(first), Ok(second)) => {
            assert_eq!(first.digest, second.digest);
            assert_eq!(first.resources, second.resources);
        }
        (Err(first), Err(second)) => {
            assert!(!first.is_empty() && first.iter().all(|e| !e.file.is_empty() && !e.fix.is_empty()));
            assert_eq!(first, second);
        }
        _ => unreachable!("the same input both loads and fails"),
    }
});
