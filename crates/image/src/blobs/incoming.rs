//! A blob that is being received.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, chmodat, openat};

use super::dirs::{self, settle};
use super::{BLOB, BlobError, BlobState, Blobs, PIECE};
use crate::{Digest, Hasher};

/// A blob that is being received. Its bytes so far stay when this is dropped, so that it can be gone on with; of one that
/// has none nothing stays.
#[derive(Debug)]
pub struct IncomingBlob {
    blobs: Blobs,
    digest: Digest,
    size: u64,
    file: File,
    /// Of the bytes that are there.
    hasher: Hasher,
    len: u64,
    _turn: ReceiveClaim,
}

/// The right to be the one who receives a digest.
#[derive(Debug)]
struct ReceiveClaim {
    shared: Arc<BlobState>,
    digest: Digest,
}

impl Drop for ReceiveClaim {
    fn drop(&mut self) {
        self.shared.lock_pins().receiving.remove(&self.digest);
        self.shared.freed.notify_waiters();
    }
}

impl Drop for IncomingBlob {
    fn drop(&mut self) {
        if self.len == 0 && dirs::remove(&self.blobs.dirs.partial, self.digest.hex().as_str()).is_err() {
            // An empty file is harmless, and is removed with stale transfers.
        }
    }
}

impl IncomingBlob {
    /// Reads all that is there, so it takes its time.
    pub(super) fn open(blobs: &Blobs, digest: &Digest, size: u64) -> Result<IncomingBlob, BlobError> {
        if !blobs.shared.lock_pins().receiving.insert(*digest) {
            return Err(BlobError::Busy { digest: *digest });
        }
        let turn = ReceiveClaim { shared: Arc::clone(&blobs.shared), digest: *digest };
        let name = digest.hex();
        let failed = |cause| blobs.partial_failed(digest, cause);
        let partial = &blobs.dirs.partial;
        match dirs::stat(partial, name.as_str()).map_err(failed)? {
            None => {}
            // A process that was killed at the very end had already made it a read-only blob.
            Some(found) if dirs::is_file(&found) => {
                chmodat(partial, name.as_str(), Mode::RUSR | Mode::WUSR, AtFlags::empty())
                    .map_err(|cause| failed(cause.into()))?;
            }
            Some(_) => dirs::remove(partial, name.as_str()).map_err(failed)?,
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(partial, name.as_str(), flags, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|cause| failed(cause.into()))?);
        let (blobs, digest) = (blobs.clone(), *digest);
        let mut incoming =
            IncomingBlob { blobs, digest, size, file, hasher: Hasher::default(), len: 0, _turn: turn };
        incoming.resume()?;
        Ok(incoming)
    }

    fn resume(&mut self) -> Result<(), BlobError> {
        let there = self.file.metadata().map_err(|cause| self.failed(cause))?.len();
        if there > self.size {
            return self.restart();
        }
        let mut piece = vec![0; PIECE];
        while self.len < there {
            let got = self.file.read(&mut piece).map_err(|cause| self.failed(cause))?;
            if got == 0 {
                break;
            }
            self.hasher.update(&piece[..got]);
            self.len += got as u64;
        }
        Ok(())
    }

    fn failed(&self, cause: std::io::Error) -> BlobError {
        self.blobs.partial_failed(&self.digest, cause)
    }

    /// Bytes that are there already.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next bytes. When this fails, what `len` counts is there and nothing else.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<(), BlobError> {
        if bytes.len() as u64 > self.size - self.len {
            return Err(BlobError::TooLarge { size: self.size });
        }
        while !bytes.is_empty() {
            let wrote = match self.file.write_at(bytes, self.len) {
                Ok(0) => return Err(self.failed(std::io::ErrorKind::WriteZero.into())),
                Ok(wrote) => wrote,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(cause) => return Err(self.failed(cause)),
            };
            self.hasher.update(&bytes[..wrote]);
            self.len += wrote as u64;
            bytes = &bytes[wrote..];
        }
        Ok(())
    }

    /// Drops the received bytes.
    pub fn restart(&mut self) -> Result<(), BlobError> {
        self.file.set_len(0).map_err(|cause| self.failed(cause))?;
        self.hasher = Hasher::default();
        self.len = 0;
        Ok(())
    }

    /// Verifies the received bytes and turns them into a durable blob; a damaged blob is replaced. Wrong contents are
    /// dropped, and short ones stay.
    pub fn finish(mut self) -> Result<(), BlobError> {
        let (digest, len, size) = (self.digest, self.len, self.size);
        if len != size {
            return Err(BlobError::Short { digest, len, size });
        }
        let found = std::mem::take(&mut self.hasher).finish();
        if found != digest {
            self.restart()?;
            return Err(BlobError::Wrong { wanted: digest, found });
        }
        if let Err(cause) = self.file.sync_all() {
            // What could not be written once is in memory as if it had been: it must come again.
            self.restart()?;
            return Err(self.failed(cause));
        }
        let (dirs, name) = (&self.blobs.dirs, digest.hex());
        settle(&self.file, &dirs.partial, &name, &dirs.blobs, &name, BLOB)
            .map_err(|cause| self.blobs.failed(&digest, cause))
    }
}
