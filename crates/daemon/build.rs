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
    // The workspace's own manifest has the profile of the embedded programs.
    for watched in ["../Cargo.lock", "../Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", crates.join(watched).display());
    }
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
    // The release profile aborts on a panic. A build with debug information is for a debugger, which reads the tables.
    let is = |variable: &str, value: &str| std::env::var(variable).is_ok_and(|set| set == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("PROFILE", "release") && is("DEBUG", "false") {
        for argument in without_unwinding(&manifest) {
            println!("cargo::rustc-link-arg-bin=lodged={argument}");
        }
    }
}

/// Arguments for the linker of a program that aborts on a panic: a tenth of the program is tables that nothing reads.
fn without_unwinding(manifest: &Path) -> [String; 2] {
    let script = manifest.join("no-unwind.ld");
    println!("cargo::rerun-if-changed={}", script.display());
    [format!("-Wl,-T,{}", script.display()), "-Wl,--no-eh-frame-hdr".to_owned()]
}

/// Statically linked and not position-independent: it runs in an empty root, and many copies share their pages.
fn build(manifest: &Path, out: &Path, program: &str) -> PathBuf {
    let cargo = std::env::var("CARGO").expect("cargo sets it");
    // A directory of its own, or this would wait for the build it is part of. Shared by all profiles.
    let target_dir =
        out.ancestors().nth(4).expect("OUT_DIR lies below the target directory").join("embedded");
    let triple = std::env::var("TARGET").expect("cargo sets it");
    let mut flags = vec![
        "-Ctarget-feature=+crt-static".to_owned(),
        "-Crelocation-model=static".to_owned(),
        "-Cforce-unwind-tables=no".to_owned(),
    ];
    flags.extend(without_unwinding(manifest).map(|argument| format!("-Clink-arg={argument}")));
    let status = Command::new(cargo)
        .current_dir(manifest)
        .args(["build", "--locked", "--profile", "embedded", "--package", &format!("lodge-{program}")])
        .args(["--bin", program, "--target", &triple])
        .arg("--target-dir")
        .arg(&target_dir)
        // Only for the target: proc macros cannot be linked statically.
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_BUILD_RUSTFLAGS")
        .status()
        .expect("cargo runs");
    assert!(status.success(), "building {program} failed");
    target_dir.join(triple).join("embedded").join(program)
}
