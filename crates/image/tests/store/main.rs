//! The store of contents, tools and archives, tested from outside.
//!
//! Owns: the helpers every test uses. Never: reaches into the crate.

#![expect(clippy::disallowed_methods, reason = "a test owns its tasks by their handles")]

mod archives;
mod bins;
mod blobs;
mod full;
mod fuzz;
mod kill;
mod layers;
mod links;
mod races;
mod tars;

use std::fs;
use std::path::{Path, PathBuf};

use lodge_image::{Blobs, Digest};
use tempfile::TempDir;

/// Numbers that look like chance and are the same in every run.
pub(crate) struct StoreChoices(u64);

impl StoreChoices {
    pub(crate) fn new(seed: u64) -> StoreChoices {
        StoreChoices(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next().to_le_bytes()[0]).collect()
    }
}

pub(crate) struct TestStore {
    pub(crate) blobs: Blobs,
    dir: TempDir,
}

impl TestStore {
    pub(crate) fn new() -> TestStore {
        let dir = tempfile::tempdir().unwrap();
        TestStore { blobs: Blobs::open(&dir.path().join("registry")).unwrap(), dir }
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.dir.path().join("registry")
    }

    pub(crate) fn above(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, digest: &Digest) -> PathBuf {
        blob_path(&self.dir(), digest)
    }

    /// The same files, as the next process finds them.
    pub(crate) fn reopened(&self) -> Blobs {
        Blobs::open(&self.dir()).unwrap()
    }
}

pub(crate) fn blob_path(dir: &Path, digest: &Digest) -> PathBuf {
    dir.join("blobs/sha256").join(digest.hex())
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Every blob has the contents of its digest, and no transfer is open.
#[track_caller]
pub(crate) fn check_whole(dir: &Path) {
    for name in names(&dir.join("blobs/sha256")) {
        let found = Digest::of(&fs::read(dir.join("blobs/sha256").join(&name)).unwrap());
        assert_eq!(found.hex(), name);
    }
    assert_eq!(names(&dir.join("temp")), Vec::<String>::new());
}
