//! Compiles the XDP program wrapped for the bench; the object is embedded into the bench.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), String> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?);
    let sources = here.join("../xdp");
    println!("cargo::rerun-if-changed={}", sources.display());
    let own = here.join("benches/bench.bpf.c");
    println!("cargo::rerun-if-changed={}", own.display());
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let status = Command::new(sources.join("build"))
        .arg(own)
        .arg(out.join("bench.bpf.o"))
        .status()
        .map_err(|error| format!("l4/xdp/build: {error}"))?;
    if status.success() { Ok(()) } else { Err("l4/xdp/build failed; its output says why".to_owned()) }
}
