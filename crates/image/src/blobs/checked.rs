use std::fs::File;
use std::io::{self, Read};

use super::{BlobError, Blobs};
use crate::{Digest, Hasher};

/// A blob that is verified while it is read. A mismatch with its digest is an error at its end, so the contents are
/// trusted only after a complete read.
#[derive(Debug)]
pub struct CheckedBlob {
    blobs: Blobs,
    digest: Digest,
    size: u64,
    file: File,
    hasher: Hasher,
    len: u64,
}

impl CheckedBlob {
    pub(super) fn open(blobs: &Blobs, digest: &Digest) -> Result<CheckedBlob, BlobError> {
        let (file, size) = blobs.open_blob(digest)?;
        let (blobs, digest) = (blobs.clone(), *digest);
        Ok(CheckedBlob { blobs, digest, size, file, hasher: Hasher::default(), len: 0 })
    }

    /// Bytes of the whole blob.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads what is left, so that it is checked.
    pub fn drain(&mut self) -> Result<(), BlobError> {
        let read = io::copy(self, &mut io::sink()).map(drop);
        read.map_err(|cause| cause.downcast().unwrap_or_else(|cause| self.blobs.failed(&self.digest, cause)))
    }
}

impl Read for CheckedBlob {
    fn read(&mut self, piece: &mut [u8]) -> io::Result<usize> {
        let got = self.file.read(piece)?;
        self.hasher.update(&piece[..got]);
        self.len += got as u64;
        if got == 0
            && !piece.is_empty()
            && (self.len, self.hasher.clone().finish()) != (self.size, self.digest)
        {
            self.blobs.mark_damaged(&self.file);
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                BlobError::Damaged { digest: self.digest },
            ));
        }
        Ok(got)
    }
}
