//! Builds the programs that live in sandboxes and puts them where the daemon embeds them, so that a plain
//! `cargo build` gives a working daemon.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use sha2::{Digest, Sha256};

fn main() {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it"));
    let crates = manifest.parent().expect("crates/daemon has a parent");
    for watched in ["keeper", "runtime", "runtime-messages", "link"] {
        println!("cargo::rerun-if-changed={}", crates.join(watched).display());
    }
    println!("cargo::rerun-if-changed={}", crates.join("../Cargo.lock").display());
    for program in ["keeper", "runtime"] {
        let built = build(&manifest, &out, program);
        let bytes = std::fs::read(&built).expect("the built program is there");
        let put = |end: &str, contents: &[u8]| {
            std::fs::write(out.join(format!("{program}.{end}")), contents).expect("OUT_DIR is writable");
        };
        // Computed here, so that a start need not read the embedded programs.
        put("sha256", &Sha256::digest(&bytes));
        put("len", format!("{}_u64", bytes.len()).as_bytes());
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
        zlib.write_all(&bytes).expect("a Vec grows");
        put("zlib", &zlib.finish().expect("a Vec grows"));
    }
}

/// Statically linked and not position-independent: it runs in an empty root, and many copies share their pages.
fn build(manifest: &Path, out: &Path, program: &str) -> PathBuf {
    let cargo = std::env::var("CARGO").expect("cargo sets it");
    // A directory of its own, or this would wait for the build it is part of. Shared by all profiles.
    let target_dir =
        out.ancestors().nth(4).expect("OUT_DIR lies below the target directory").join("embedded");
    let triple = std::env::var("TARGET").expect("cargo sets it");
    let status = Command::new(cargo)
        .current_dir(manifest)
        .args(["build", "--locked", "--profile", "embedded", "--package", &format!("lodge-{program}")])
        .args(["--bin", program, "--target", &triple])
        .arg("--target-dir")
        .arg(&target_dir)
        // Only for the target: proc macros cannot be linked statically.
        .env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static\u{1f}-Crelocation-model=static")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_BUILD_RUSTFLAGS")
        .status()
        .expect("cargo runs");
    assert!(status.success(), "building {program} failed");
    target_dir.join(triple).join("embedded").join(program)
}
