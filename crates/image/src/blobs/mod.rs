//! The content-addressed store.
//!
//! Owns: the files below one directory. A blob is present completely or not at all, even if processes are killed at
//! any time. Never: knows what is in a blob, or which of them are needed.
//!
//! Only one process at a time uses a store. All functions block on the disk.

mod checked;
mod collect;
mod dirs;
mod error;
mod fresh;
mod incoming;
mod pins;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use rustix::fs::{Mode, Stat, fchmod};

pub use self::checked::CheckedBlob;
pub use self::collect::CollectionTotals;
use self::dirs::{BlobDirs, TempName};
pub use self::error::{BlobError, NO_ROOM_HINT};
pub use self::fresh::NewBlob;
pub use self::incoming::IncomingBlob;
use self::pins::BlobState;
pub use self::pins::Pins;
use crate::agentfile::names;
use crate::oci::Blob;
use crate::{Digest, Hasher};

/// Bytes that are read at once.
const PIECE: usize = 256 << 10;
/// A blob is never changed.
const BLOB: Mode = Mode::RUSR;
/// A writable blob is one that was found to be damaged: it counts as missing, except for readers that have it open,
/// and the next transfer replaces it.
const DAMAGED: Mode = Mode::WUSR;
/// Programs run as the user of the sandbox.
const PROGRAM: Mode = Mode::from_raw_mode(0o555);

/// The store. Clones are the same store.
#[derive(Debug, Clone)]
pub struct Blobs {
    dir: PathBuf,
    dirs: Arc<BlobDirs>,
    shared: Arc<BlobState>,
}

impl Blobs {
    /// Opens the store below `dir`. The directory is created if it is missing, and refused if it is a link or belongs
    /// to another user.
    ///
    /// What a killed process left half done goes, but for transfers that can be gone on with.
    pub fn open(dir: &Path) -> Result<Blobs, BlobError> {
        let failed = |cause| BlobError::Io { path: dir.to_owned(), cause };
        let dirs = BlobDirs::open(dir).map_err(failed)?;
        collect::drop_stale_partials(&dirs, SystemTime::now()).map_err(failed)?;
        Ok(Blobs { dir: dir.to_owned(), dirs: Arc::new(dirs), shared: Arc::default() })
    }

    pub fn pins(&self) -> Pins {
        Pins::new(Arc::clone(&self.shared))
    }

    /// Puts bytes into the store, durably. Nothing is written when they are there; a damaged blob is replaced.
    pub fn put(&self, pins: &Pins, bytes: &[u8]) -> Result<Digest, BlobError> {
        let digest = Digest::of(bytes);
        let written = self.written(pins, &digest, bytes)?;
        self.name_all(written.map(|temp| (digest, temp)))?;
        Ok(digest)
    }

    /// Puts blobs into the store, durably once this returns. None of them is there before all are written.
    pub fn put_all<'b>(
        &self,
        pins: &Pins,
        blobs: impl IntoIterator<Item = &'b Blob>,
    ) -> Result<(), BlobError> {
        let mut all = Vec::new();
        for blob in blobs {
            debug_assert_eq!(Digest::of(&blob.bytes), blob.digest);
            let written = self.written(pins, &blob.digest, &blob.bytes)?;
            all.extend(written.map(|temp| (blob.digest, temp)));
        }
        self.name_all(all)
    }

    /// Begins a blob whose digest is known once all of it was written.
    pub fn begin<'p>(&self, pins: &'p Pins) -> Result<NewBlob<'p>, BlobError> {
        NewBlob::new(self, pins)
    }

    /// Whether a blob of that size is there, and was not found to be damaged. It is pinned in any case.
    pub fn has(&self, pins: &Pins, digest: &Digest, size: u64) -> Result<bool, BlobError> {
        pins.keep(digest);
        let found = dirs::stat(&self.dirs.blobs, digest.hex());
        let found = found.map_err(|cause| self.failed(digest, cause))?;
        Ok(found.is_some_and(|found| {
            dirs::is_file(&found) && !is_marked(&found) && u64::try_from(found.st_size) == Ok(size)
        }))
    }

    /// Bytes of a blob of that size that have to come: none when it is there, and all but those of a transfer that can be
    /// gone on with. It is pinned in any case.
    pub fn missing_bytes(&self, pins: &Pins, digest: &Digest, size: u64) -> Result<u64, BlobError> {
        if self.has(pins, digest, size)? {
            return Ok(0);
        }
        let begun = dirs::stat(&self.dirs.partial, digest.hex());
        let begun = begun.map_err(|cause| self.partial_failed(digest, cause))?.filter(dirs::is_file);
        let begun = begun.map_or(0, |found| found.st_size.unsigned_abs());
        // If the partial file cannot be the start of it, the transfer starts again.
        Ok(size.checked_sub(begun).unwrap_or(size))
    }

    /// All of a blob, checked. `max` is what a reader can take.
    pub fn read(&self, digest: &Digest, max: u64) -> Result<Vec<u8>, BlobError> {
        let (mut file, size) = self.open_blob(digest)?;
        if size > max {
            return Err(BlobError::TooLong { digest: *digest, max });
        }
        let mut bytes = Vec::new();
        Read::by_ref(&mut file)
            .take(size.saturating_add(1))
            .read_to_end(&mut bytes)
            .map_err(|cause| self.failed(digest, cause))?;
        if Digest::of(&bytes) == *digest {
            return Ok(bytes);
        }
        self.mark_damaged(&file);
        Err(BlobError::Damaged { digest: *digest })
    }

    /// A blob to be read in pieces. The caller checks the digest of what it read.
    pub fn open_blob(&self, digest: &Digest) -> Result<(File, u64), BlobError> {
        match dirs::open(&self.dirs.blobs, &digest.hex()) {
            Ok(Some((file, found))) => Ok((file, found.st_size.unsigned_abs())),
            Ok(None) => Err(BlobError::Missing { digest: *digest }),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(BlobError::Damaged { digest: *digest })
            }
            Err(cause) => Err(self.failed(digest, cause)),
        }
    }

    /// A blob to be read in pieces, which are checked on the way.
    pub fn open_checked(&self, digest: &Digest) -> Result<CheckedBlob, BlobError> {
        CheckedBlob::open(self, digest)
    }

    /// Reads a blob to its end; one that is damaged is not there from now on for `has`.
    pub fn verify(&self, digest: &Digest) -> Result<(), BlobError> {
        let (mut file, _) = self.open_blob(digest)?;
        if Digest::of_rest(&mut file).map_err(|cause| self.failed(digest, cause))? == *digest {
            return Ok(());
        }
        self.mark_damaged(&file);
        Err(BlobError::Damaged { digest: *digest })
    }

    /// Begins to receive a blob, or resumes an interrupted transfer. One transfer at a time owns a blob: for others
    /// this is `Busy`, and `wait_until_free` waits for its end.
    ///
    /// Whether the blob is there already is not looked at.
    pub fn receive(&self, pins: &Pins, digest: &Digest, size: u64) -> Result<IncomingBlob, BlobError> {
        pins.keep(digest);
        IncomingBlob::open(self, digest, size)
    }

    /// Takes a blob from a stream at once, durably: all of it or nothing, also when it is there already.
    pub(crate) fn take<E: From<BlobError>>(
        &self,
        pins: &Pins,
        digest: &Digest,
        copy: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), BlobError>) -> Result<(), E>,
    ) -> Result<(), E> {
        pins.keep(digest);
        let failed = |cause| self.failed(digest, cause);
        let taken = self.dirs.place(&self.dirs.blobs, &digest.hex(), BLOB, |file| {
            let mut hasher = Hasher::default();
            let write = &mut |piece: &[u8]| {
                hasher.update(piece);
                file.write_all(piece).map_err(failed)
            };
            copy(write).map_err(MakeFileError::Made)?;
            match hasher.finish() {
                found if found == *digest => Ok(()),
                found => Err(MakeFileError::Made(BlobError::Wrong { wanted: *digest, found }.into())),
            }
        });
        taken.map_err(|error| error.into_error(failed))
    }

    /// Returns once no transfer receives this blob. It may then exist, or can be received, unless another transfer was
    /// faster.
    pub async fn wait_until_free(&self, digest: &Digest) {
        loop {
            let mut freed = std::pin::pin!(self.shared.freed.notified());
            // From here on, nothing that is freed is missed.
            freed.as_mut().enable();
            if !self.shared.lock_pins().receiving.contains(digest) {
                return;
            }
            freed.await;
        }
    }

    /// A file made from blobs, by a name of its own: made by `make` once, and collected with `owner`, which is pinned.
    ///
    /// All users can run the file, and none can write it. If `make` fails, nothing is left.
    pub fn derived<E: From<BlobError>>(
        &self,
        pins: &Pins,
        owner: &Digest,
        name: &str,
        make: &mut dyn FnMut(&mut File) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        if !names::path_name(name) {
            return Err(BlobError::Name { name: name.to_owned() }.into());
        }
        pins.keep(owner);
        let path = self.dir.join("programs").join(owner.hex()).join(name);
        let failed = |cause| BlobError::Io { path: path.clone(), cause };
        let dir = self.dirs.programs_of(&owner.hex()).map_err(failed)?;
        let found = dirs::stat(&dir, name).map_err(failed)?;
        if !found.is_some_and(|found| dirs::is_file(&found)) {
            let made = self.dirs.place(&dir, name, PROGRAM, |file| make(file).map_err(MakeFileError::Made));
            made.map_err(|error| error.into_error(failed))?;
        }
        Ok(path)
    }

    /// Writes a blob that has no name yet, unless it is there.
    fn written(&self, pins: &Pins, digest: &Digest, bytes: &[u8]) -> Result<Option<TempName>, BlobError> {
        pins.keep(digest);
        if self.holds(digest, bytes) {
            return Ok(None);
        }
        let write = || {
            let (temp, mut file) = TempName::new(&self.dirs)?;
            file.write_all(bytes)?;
            dirs::seal(&file, BLOB)?;
            Ok(Some(temp))
        };
        write().map_err(|cause| self.failed(digest, cause))
    }

    /// Gives blobs their names, durably.
    fn name_all(&self, written: impl IntoIterator<Item = (Digest, TempName)>) -> Result<(), BlobError> {
        for (digest, temp) in written {
            temp.move_to(&self.dirs.blobs, &digest.hex()).map_err(|cause| self.failed(&digest, cause))?;
        }
        // Also for an existing file: the process that renamed it may have been killed before this.
        let flushed = dirs::flush(&self.dirs.blobs);
        flushed.map_err(|cause| BlobError::Io { path: self.dir.join("blobs/sha256"), cause })
    }

    /// Whether exactly these bytes are there. What cannot be read is not.
    fn holds(&self, digest: &Digest, bytes: &[u8]) -> bool {
        let Ok(Some((mut file, found))) = dirs::open(&self.dirs.blobs, &digest.hex()) else { return false };
        if is_marked(&found) || u64::try_from(found.st_size) != Ok(bytes.len() as u64) {
            return false;
        }
        let mut piece = vec![0; PIECE.min(bytes.len())];
        bytes.chunks(PIECE).all(|wanted| {
            let piece = &mut piece[..wanted.len()];
            file.read_exact(piece).is_ok() && piece == wanted
        })
    }

    /// Marks the blob that this is. One that replaced it meanwhile is another file.
    fn mark_damaged(&self, file: &File) {
        if fchmod(file, BLOB | DAMAGED).is_err() {
            // If no mark can be set, the next reader finds the damage again.
        }
    }

    fn failed(&self, digest: &Digest, cause: io::Error) -> BlobError {
        BlobError::Io { path: self.dir.join("blobs/sha256").join(digest.hex()), cause }
    }

    fn partial_failed(&self, digest: &Digest, cause: io::Error) -> BlobError {
        BlobError::Io { path: self.dir.join("partial").join(digest.hex()), cause }
    }
}

fn is_marked(found: &Stat) -> bool {
    Mode::from_raw_mode(found.st_mode).contains(DAMAGED)
}

/// Why a file was not made.
enum MakeFileError<E> {
    Made(E),
    Io(io::Error),
}

impl<E: From<BlobError>> MakeFileError<E> {
    fn into_error(self, failed: impl FnOnce(io::Error) -> BlobError) -> E {
        match self {
            MakeFileError::Made(error) => error,
            MakeFileError::Io(cause) => failed(cause).into(),
        }
    }
}

impl<E> From<io::Error> for MakeFileError<E> {
    fn from(cause: io::Error) -> MakeFileError<E> {
        MakeFileError::Io(cause)
    }
}
