//! The previous release's daemon, for tests that go on with its work and for benchmarks beside it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const LODGED: &[u8] = include_bytes!("../fixtures/golden/lodged.tar.gz");

/// Unpacks a gzipped tar into a directory that is there.
pub fn unpack(archive: &[u8], into: &Path, options: &[&str]) {
    let mut tar = Command::new("tar")
        .args(["-xz", "-C"])
        .arg(into)
        .args(options)
        .stdin(Stdio::piped())
        .spawn()
        .expect("tar runs");
    tar.stdin.take().expect("a pipe").write_all(archive).expect("tar reads");
    assert!(tar.wait().expect("tar ends").success());
}

/// Puts the previous release's `lodged`, which carries its keeper and its runtime, into a directory.
pub fn previous_lodged(dir: &Path) -> PathBuf {
    unpack(LODGED, dir, &[]);
    dir.join("lodged")
}
