//! Programs of tools, unpacked: made once from layers that were checked, and looked at again before each start.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lodge_exec::FileIdentity;
use lodge_image::oci::{BinImage, BinPlatform, Platform, StreamError, extract_program};
use lodge_image::{BlobError, Blobs, Digest, Hasher, Pins};

use super::ImageError;

/// After so many bytes of a program it is looked at what the disk has left: a layer says nothing of what it unpacks to.
const LOOK_EVERY: u64 = 16 << 20;

/// A program that may be run: what its image says is at that path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub path: PathBuf,
    pub digest: Digest,
}

/// What is known of the unpacked programs, until some of them are removed.
#[derive(Debug, Default)]
pub(crate) struct Programs {
    /// What is in a file, as long as it looks the same.
    seen: Mutex<HashMap<PathBuf, (FileIdentity, Digest)>>,
    /// The program of a platform's manifest, as its layers have it.
    meant: Mutex<HashMap<Digest, Digest>>,
}

impl Programs {
    /// The program of a tool for this host, unpacked and checked. Reads layers, so it takes its time. `room` says whether
    /// so many bytes may be written.
    pub(crate) fn unpack(
        &self,
        blobs: &Blobs,
        pins: &Pins,
        bin: &BinImage,
        room: &dyn Fn(u64) -> bool,
    ) -> Result<Program, ImageError> {
        let platform = choose(bin, &Platform::here())?;
        let mut make = |file: &mut File| -> Result<(), ImageError> {
            let mut to = SpaceCheckedWriter { to: file, room, written: 0, look_at: 0 };
            let digest = copy_program(blobs, bin, platform, &mut to)?;
            self.meant().insert(platform.digest, digest);
            Ok(())
        };
        let mut place = || blobs.derived(pins, &platform.digest, &bin.name, &mut make);
        let path = place()?;
        let digest = self.meaning(blobs, bin, platform)?;
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

    /// Refuses a program that is not what it was when it was recorded. What it returns is the file that was checked.
    pub(crate) fn check(&self, path: &Path, digest: &str) -> Result<FileIdentity, ImageError> {
        match self.read(path) {
            Ok((identity, found)) if found.to_string() == digest => Ok(identity),
            Ok(_) => Err(changed(path)),
            Err(cause) => Err(unreadable(path, cause)),
        }
    }

    /// The digest that the program has in layers that are what their digests say.
    fn meaning(&self, blobs: &Blobs, bin: &BinImage, platform: &BinPlatform) -> Result<Digest, ImageError> {
        if let Some(digest) = self.meant().get(&platform.digest) {
            return Ok(*digest);
        }
        let digest = copy_program(blobs, bin, platform, &mut io::sink())?;
        self.meant().insert(platform.digest, digest);
        Ok(digest)
    }

    /// Forgets everything, when programs were removed: what there is still is looked at again.
    pub(crate) fn forget(&self) {
        self.seen().clear();
        self.meant().clear();
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<PathBuf, (FileIdentity, Digest)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn meant(&self) -> MutexGuard<'_, HashMap<Digest, Digest>> {
        self.meant.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn digest_of(&self, path: &Path) -> io::Result<Digest> {
        self.read(path).map(|(_, digest)| digest)
    }

    /// A file and the digest of its contents, which are read only when it is another than the last time.
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

/// The program for `host`: made for exactly that, or else for all that is like it.
fn choose<'b>(bin: &'b BinImage, host: &Platform) -> Result<&'b BinPlatform, ImageError> {
    bin.choose(host).ok_or_else(|| ImageError::NoPlatform {
        tool: bin.name.clone(),
        host: host.clone(),
        made_for: bin.platforms.iter().map(|found| found.platform.to_string()).collect(),
    })
}

/// Copies the program out of layers that are checked as they are read. What was written is believed only when this
/// succeeds.
fn copy_program(
    blobs: &Blobs,
    bin: &BinImage,
    platform: &BinPlatform,
    to: &mut dyn Write,
) -> Result<Digest, ImageError> {
    let mut hashing = Hashing { to, hasher: Hasher::default() };
    let copied = extract_program(blobs, &platform.layers, &platform.path, &mut hashing);
    copied.map_err(|error| match error {
        StreamError::Bad(error) => error.into(),
        StreamError::Blob(error) => error.into(),
        StreamError::Io { cause } => not_unpacked(&bin.name, cause),
    })?;
    Ok(hashing.hasher.finish())
}

/// What is written as long as the disk can spare it.
struct SpaceCheckedWriter<'w> {
    to: &'w mut File,
    room: &'w dyn Fn(u64) -> bool,
    written: u64,
    look_at: u64,
}

impl Write for SpaceCheckedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.written >= self.look_at {
            self.look_at = self.written + LOOK_EVERY;
            if !(self.room)(LOOK_EVERY) {
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

struct Hashing<'w> {
    to: &'w mut dyn Write,
    hasher: Hasher,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wrote = self.to.write(bytes)?;
        self.hasher.update(&bytes[..wrote]);
        Ok(wrote)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Why the program of a tool could not be written.
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
