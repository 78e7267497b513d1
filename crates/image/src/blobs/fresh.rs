use std::fs::File;
use std::io::{self, Write};

use super::dirs::{self, TempName};
use super::{BLOB, BlobError, Blobs, Pins};
use crate::{Digest, Hasher};

/// A blob that is being made here, and has no digest before its end. Nothing is left of one that is dropped.
///
/// What goes wrong with writing is a [`BlobError`] within the error.
#[derive(Debug)]
pub struct NewBlob<'p> {
    blobs: Blobs,
    pins: &'p Pins,
    temp: TempName,
    file: File,
    hasher: Hasher,
    len: u64,
}

impl<'p> NewBlob<'p> {
    pub(super) fn new(blobs: &Blobs, pins: &'p Pins) -> Result<NewBlob<'p>, BlobError> {
        let (temp, file) = TempName::new(&blobs.dirs).map_err(|cause| failed(blobs, cause))?;
        Ok(NewBlob { blobs: blobs.clone(), pins, temp, file, hasher: Hasher::default(), len: 0 })
    }

    /// Makes what was written a blob, durably, and pins it; a damaged one is replaced. Returns its digest and its size.
    pub fn finish(self) -> Result<(Digest, u64), BlobError> {
        let NewBlob { blobs, pins, temp, file, hasher, len } = self;
        let digest = hasher.finish();
        pins.keep(&digest);
        dirs::seal(&file, BLOB).map_err(|cause| failed(&blobs, cause))?;
        blobs.name_all([(digest, temp)])?;
        Ok((digest, len))
    }
}

impl Write for NewBlob<'_> {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        let wrote = self.file.write_all(piece);
        wrote.map_err(|cause| io::Error::other(failed(&self.blobs, cause)))?;
        self.hasher.update(piece);
        self.len += piece.len() as u64;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn failed(blobs: &Blobs, cause: io::Error) -> BlobError {
    BlobError::Io { path: blobs.dir.join("temp"), cause }
}
