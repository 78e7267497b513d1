//! Unpacked programs of tools. Each is unpacked once from verified layers and checked again before each start.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lodge_exec::FileIdentity;
use lodge_image::oci::{BinImage, BinPlatform, Platform, StreamError, extract_program};
use lodge_image::{BlobError, Blobs, Digest, Hasher, Pins};

use super::ImageError;

/// Free disk space is checked each time this many bytes were unpacked: a layer does not state its unpacked size.
const SPACE_CHECK_BYTES: u64 = 16 << 20;

/// An unpacked program that matches its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub path: PathBuf,
    pub digest: Digest,
}

/// Cached digests of unpacked programs, until a collection removes some of them.
#[derive(Debug, Default)]
pub(crate) struct UnpackedPrograms {
    /// The digest of a file, valid while its identity is the same.
    seen: Mutex<HashMap<PathBuf, (FileIdentity, Digest)>>,
    /// The digest of the program in the layers, by the digest of the platform's manifest.
    expected: Mutex<HashMap<Digest, Digest>>,
}

impl UnpackedPrograms {
    /// Unpacks and checks the program of a tool for this host. Slow, because it reads layers. `room` says whether this many bytes
    /// may be written.
    pub(crate) fn unpack(
        &self,
        blobs: &Blobs,
        pins: &Pins,
        bin: &BinImage,
        room: &dyn Fn(u64) -> bool,
    ) -> Result<Program, ImageError> {
        let platform = choose(bin, &Platform::here())?;
        let mut make = |file: &mut File| -> Result<(), ImageError> {
            let mut to = SpaceCheckedWriter { to: file, room, written: 0, next_check: 0 };
            let digest = copy_program(blobs, bin, platform, &mut to)?;
            self.expected().insert(platform.digest, digest);
            Ok(())
        };
        let mut place = || blobs.derived(pins, &platform.digest, &bin.name, &mut make);
        let path = place()?;
        let digest = self.expected_digest(blobs, bin, platform)?;
        if self.digest_of(&path).is_ok_and(|found| found == digest) {
            return Ok(Program { path, digest });
        }
        // The file was changed. Processes that run it still have the old file.
        tracing::warn!(event = "program.changed", path = %path.display());
        std::fs::remove_file(&path).map_err(|cause| unreadable(&path, cause))?;
        let path = place()?;
        match self.digest_of(&path) {
            Ok(found) if found == digest => Ok(Program { path, digest }),
            Ok(_) => Err(changed(&path)),
            Err(cause) => Err(unreadable(&path, cause)),
        }
    }

    /// Refuses a program that does not match its recorded digest. Returns the identity of the checked file.
    pub(crate) fn check(&self, path: &Path, digest: &str) -> Result<FileIdentity, ImageError> {
        match self.read(path) {
            Ok((identity, found)) if found.to_string() == digest => Ok(identity),
            Ok(_) => Err(changed(path)),
            Err(cause) => Err(unreadable(path, cause)),
        }
    }

    /// The digest of the program in its verified layers.
    fn expected_digest(
        &self,
        blobs: &Blobs,
        bin: &BinImage,
        platform: &BinPlatform,
    ) -> Result<Digest, ImageError> {
        if let Some(digest) = self.expected().get(&platform.digest) {
            return Ok(*digest);
        }
        let digest = copy_program(blobs, bin, platform, &mut io::sink())?;
        self.expected().insert(platform.digest, digest);
        Ok(digest)
    }

    /// Clears the cache after programs were removed. The rest is checked again on use.
    pub(crate) fn forget(&self) {
        self.seen().clear();
        self.expected().clear();
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<PathBuf, (FileIdentity, Digest)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn expected(&self) -> MutexGuard<'_, HashMap<Digest, Digest>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn digest_of(&self, path: &Path) -> io::Result<Digest> {
        self.read(path).map(|(_, digest)| digest)
    }

    /// The identity and digest of a file. The contents are read only if the identity changed.
    fn read(&self, path: &Path) -> io::Result<(FileIdentity, Digest)> {
        let mut file = File::open(path)?;
        let identity = FileIdentity::of(&file.metadata()?);
        let known = self.seen().get(path).copied();
        if let Some((before, digest)) = known
            && before == identity
        {
            return Ok((identity, digest));
        }
        let digest = Digest::of_rest(&mut file)?;
        if FileIdentity::of(&file.metadata()?) != identity {
            return Err(io::Error::other("it was changed while it was read"));
        }
        self.seen().insert(path.to_owned(), (identity, digest));
        Ok((identity, digest))
    }
}

/// The program for `host`: an exact match, or else a compatible one.
fn choose<'b>(bin: &'b BinImage, host: &Platform) -> Result<&'b BinPlatform, ImageError> {
    bin.choose(host).ok_or_else(|| ImageError::NoPlatform {
        tool: bin.name.clone(),
        host: host.clone(),
        made_for: bin.platforms.iter().map(|found| found.platform.to_string()).collect(),
    })
}

/// Copies the program out of its layers and verifies them meanwhile. The written file is valid only if this succeeds.
fn copy_program(
    blobs: &Blobs,
    bin: &BinImage,
    platform: &BinPlatform,
    to: &mut dyn Write,
) -> Result<Digest, ImageError> {
    let mut hashing = HashingWriter { to, hasher: Hasher::default() };
    let copied = extract_program(blobs, &platform.layers, &platform.path, &mut hashing);
    copied.map_err(|error| match error {
        StreamError::Bad(error) => error.into(),
        StreamError::Blob(error) => error.into(),
        StreamError::Io { cause } => not_unpacked(&bin.name, cause),
    })?;
    Ok(hashing.hasher.finish())
}

/// Writes to a file while the disk has space to spare.
struct SpaceCheckedWriter<'w> {
    to: &'w mut File,
    room: &'w dyn Fn(u64) -> bool,
    written: u64,
    next_check: u64,
}

impl Write for SpaceCheckedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written >= self.next_check {
            self.next_check = self.written + SPACE_CHECK_BYTES;
            if !(self.room)(SPACE_CHECK_BYTES) {
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        let wrote = self.to.write(bytes)?;
        self.written += wrote as u64;
        Ok(wrote)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

struct HashingWriter<'w> {
    to: &'w mut dyn Write,
    hasher: Hasher,
}

impl Write for HashingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wrote = self.to.write(bytes)?;
        self.hasher.update(&bytes[..wrote]);
        Ok(wrote)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The error for a program that could not be written.
fn not_unpacked(tool: &str, cause: io::Error) -> ImageError {
    let cause = BlobError::Io { path: PathBuf::new(), cause };
    if cause.is_full() {
        let why = format!("the program of the tool `{tool}` unpacks to more than can be spared");
        return ImageError::NoRoom { why };
    }
    ImageError::NotUnpacked { tool: tool.to_owned(), cause: Arc::new(cause) }
}

fn changed(path: &Path) -> ImageError {
    ImageError::ProgramChanged { path: path.to_owned() }
}

fn unreadable(path: &Path, cause: io::Error) -> ImageError {
    ImageError::ProgramUnreadable { path: path.to_owned(), cause: Arc::new(cause) }
}
