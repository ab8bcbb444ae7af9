//! Compiles the XDP program wrapped for the bench, and the programs that tag links and lose packets; all are embedded.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), String> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?);
    let sources = here.join("../xdp");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let programs = [
        ("benches/bench.bpf.c", "bench.bpf.o"),
        ("benches/yardstick.bpf.c", "yardstick.bpf.o"),
        ("src/loss.bpf.c", "loss.bpf.o"),
        ("src/tag.bpf.c", "tag.bpf.o"),
    ];
    for (own, object) in programs {
        let own = here.join(own);
        println!("cargo::rerun-if-changed={}", own.display());
        let status = Command::new(sources.join("build"))
            .arg(own)
            .arg(out.join(object))
            .status()
            .map_err(|error| format!("l4/xdp/build: {error}"))?;
        if !status.success() {
            return Err("l4/xdp/build failed; its output says why".to_owned());
        }
    }
    Ok(())
}
