//! The contract between the crates that make a config and the one that serves it: what `control-config` accepts,
//! `http-proxy` compiles, and both mean the same by it. The only tests here that look inside the product; the
//! end-to-end tests know nothing of it.
#![expect(clippy::tests_outside_test_module, reason = "this whole crate is a test target")]
#![expect(clippy::panic, reason = "helpers fail the test that called them")]

mod balance;
mod examples;
mod names;
mod shardctl;
mod wide;

use std::path::{Path, PathBuf};

use http_proxy::snapshot::{Host, Snapshot, StatRegistry, compile_for};

/// Loads a config directory and compiles it as a core would get it, without one complaint of either side.
#[track_caller]
fn compiled(dir: &Path) -> Snapshot {
    let loaded = control_config::load(dir).unwrap_or_else(|errors| panic!("{}: {errors:#?}", dir.display()));
    assert_eq!(loaded.warnings, [], "{}", dir.display());
    let roots = std::fs::read("/etc/ssl/certs/ca-certificates.crt").ok();
    let host = Host { system_roots_pem: roots.as_deref(), ..Host::default() };
    let mut stats = StatRegistry::default();
    match compile_for(&loaded.resources, &host, &mut stats) {
        Ok(snapshot) => snapshot,
        Err(nacks) => {
            let lines: Vec<String> = nacks.iter().map(ToString::to_string).collect();
            panic!("{}: loads but does not compile:\n{}", dir.display(), lines.join("\n"));
        }
    }
}

/// docs/examples of the work tree.
fn examples_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/examples")
}
