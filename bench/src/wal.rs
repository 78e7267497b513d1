//! Commits and pages, counted from outside: in the write-ahead log itself.

use std::fs;
use std::path::{Path, PathBuf};

use lodge_testkit::lodge::Lodge;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// What a write-ahead log holds since it was last restarted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wal {
    /// Changes with every restart of the log.
    salt: u64,
    pub(crate) commits: u64,
    pub(crate) pages: u64,
    pub(crate) page_kb: f64,
}

impl Wal {
    pub(crate) fn path(lodge: &Lodge) -> PathBuf {
        lodge.home().join("daemon.db-wal")
    }

    pub(crate) fn bytes(lodge: &Lodge) -> u64 {
        fs::metadata(Wal::path(lodge)).map_or(0, |meta| meta.len())
    }

    pub(crate) fn read(path: &Path) -> Option<Wal> {
        let bytes = fs::read(path).ok()?;
        let word = |at: usize| Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let pair = |at: usize| Some((u64::from(word(at)?) << 32) | u64::from(word(at + 4)?));
        let page = usize::try_from(word(8)?).ok()?;
        let mut wal = Wal { salt: pair(16)?, commits: 0, pages: 0, page_kb: page as f64 / 1024.0 };
        let mut at = HEADER;
        // Frames of an earlier round carry another salt.
        while pair(at + 8) == Some(wal.salt) && bytes.len() >= at + FRAME_HEADER + page {
            wal.pages += 1;
            wal.commits += u64::from(word(at + 4)? > 0);
            at += FRAME_HEADER + page;
        }
        Some(wal)
    }

    /// What was added since `earlier`, unless the log was restarted in between.
    pub(crate) fn since(&self, earlier: &Wal) -> Option<(u64, u64)> {
        (self.salt == earlier.salt).then(|| (self.commits - earlier.commits, self.pages - earlier.pages))
    }
}
