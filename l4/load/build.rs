//! Compiles l4/xdp for the BPF target with clang; the object is embedded into the crate.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() -> Result<(), String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../xdp");
    println!("cargo::rerun-if-changed={}", sources.display());
    println!("cargo::rerun-if-env-changed=BPF_CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let chosen = env::var("BPF_CLANG").ok();
    let candidates = chosen.as_deref().map_or(vec!["clang-19", "clang"], |chosen| vec![chosen]);
    let compiler = candidates
        .iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
        .ok_or_else(|| {
            format!(
                "no BPF compiler: none of {candidates:?} runs; install the Debian packages clang-19, libbpf-dev and \
                 linux-libc-dev, or name a clang of version 14 or newer in BPF_CLANG"
            )
        })?;
    // Debian keeps asm/ headers in a folder of the host's architecture; on others the flag names nothing.
    let output = Command::new(compiler)
        .args(["-O2", "-g", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3", "-D__x86_64__"])
        .arg("-I/usr/include/x86_64-linux-gnu")
        .arg("-c")
        .arg(sources.join("shard_l4.bpf.c"))
        .arg("-o")
        .arg(out.join("shard_l4.bpf.o"))
        .output()
        .map_err(|error| format!("{compiler}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{compiler} refuses l4/xdp (bpf/bpf_helpers.h comes with the package libbpf-dev):\n{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(())
}
