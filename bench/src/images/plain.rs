//! The least that storing contents by their digests can cost: hashing them once, writing them once, flushing them.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

/// Bytes that no packer makes smaller, other ones for each seed.
pub(crate) fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut noise = Vec::with_capacity(bytes + 8);
    while noise.len() < bytes {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        noise.extend_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    noise.truncate(bytes);
    noise
}

pub(crate) fn hashed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Duration {
    let from = Instant::now();
    for piece in pieces {
        std::hint::black_box(Sha256::digest(piece));
    }
    from.elapsed()
}

/// Each into a file of its own, which is flushed.
pub(crate) fn written<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Duration {
    let dir = tempfile::Builder::new().prefix("lodge-plain-").tempdir().expect("a temporary directory");
    flushed();
    let from = Instant::now();
    for (number, piece) in pieces.into_iter().enumerate() {
        let mut file = File::create(dir.path().join(number.to_string())).expect("a file");
        file.write_all(piece).expect("a written file");
        file.sync_all().expect("a flushed file");
    }
    File::open(dir.path()).and_then(|dir| dir.sync_all()).expect("a flushed directory");
    from.elapsed()
}

/// Waits until all writes are flushed, so that no program pays for another's writes.
pub(crate) fn flushed() {
    // SAFETY: it takes nothing and touches no memory.
    unsafe { libc::sync() };
}

/// Writes a file that a measurement reads.
pub(crate) fn put(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("a written file");
}
