//! Compiles the XDP program (l4/xdp/build does it, with clang); the object is embedded into the crate.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), String> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?);
    let sources = here.join("../xdp");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let status = Command::new(sources.join("build"))
        .arg(sources.join("shard_l4.bpf.c"))
        .arg(out.join("shard_l4.bpf.o"))
        .status()
        .map_err(|error| format!("l4/xdp/build: {error}"))?;
    if status.success() { Ok(()) } else { Err("l4/xdp/build failed; its output says why".to_owned()) }
}
