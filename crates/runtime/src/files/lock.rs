//! One change of a file at a time: a model may request several at once, and each reads the file before it replaces it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::{FileError, open_file};

/// Other calls hold a lock for milliseconds. Another program may hold one for as long as it likes.
const LOCK_WITHIN: Duration = Duration::from_secs(10);
const POLL_EVERY: Duration = Duration::from_millis(5);

/// A file that no other call changes until this is dropped. On a file system without locks it is only open.
#[derive(Debug)]
pub(super) struct LockedFile(pub(super) File);

impl LockedFile {
    /// Opens a file for reading.
    pub(super) fn open(path: &Path) -> Result<LockedFile, FileError> {
        LockedFile::lock(path, || open_file(path))
    }

    /// Opens the file that will be replaced. None if there is none, or nothing that could be.
    pub(super) fn open_old(path: &Path) -> Result<Option<LockedFile>, FileError> {
        if !path.metadata().is_ok_and(|found| found.is_file()) {
            return Ok(None);
        }
        let failed = |cause| FileError::Io { what: "write", path: path.to_owned(), cause };
        LockedFile::lock(path, || OpenOptions::new().write(true).open(path).map_err(failed)).map(Some)
    }

    fn lock(path: &Path, open: impl Fn() -> Result<File, FileError>) -> Result<LockedFile, FileError> {
        let until = Instant::now() + LOCK_WITHIN;
        loop {
            let file = open()?;
            match file.try_lock() {
                // The call that had the lock has put another file in its place.
                Ok(()) if is_replaced(path, &file) => continue,
                Ok(()) => return Ok(LockedFile(file)),
                Err(TryLockError::WouldBlock) if Instant::now() >= until => {
                    return Err(FileError::InUse { path: path.to_owned() });
                }
                Err(TryLockError::WouldBlock) => thread::sleep(POLL_EVERY),
                Err(TryLockError::Error(_)) => return Ok(LockedFile(file)),
            }
        }
    }
}

fn is_replaced(path: &Path, file: &File) -> bool {
    let identity = |found: io::Result<std::fs::Metadata>| found.ok().map(|found| (found.dev(), found.ino()));
    identity(path.metadata()) != identity(file.metadata())
}
