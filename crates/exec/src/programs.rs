//! Programs in `bin/`: written once under the name of their content, never overwritten.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::error::HostError;

/// Bytes of the digest that go into a name: enough that no two programs ever share one.
const DIGEST_BYTES: usize = 12;

/// A program's bytes, and the digest that names them.
#[derive(Debug, Clone, Copy)]
pub struct Program {
    bytes: &'static [u8],
    digest: [u8; DIGEST_BYTES],
    carried: bool,
}

impl Program {
    /// A program that this one carries as a constant, with its SHA-256 counted when this one was built: neither
    /// starting nor staying alive needs its bytes in memory.
    ///
    /// # Safety
    /// `bytes` must come from `include_bytes!`: their pages are given back, and read again from this program's file.
    pub const unsafe fn carried(bytes: &'static [u8], sha256: &[u8; 32]) -> Program {
        Program { carried: true, ..Program::known(bytes, sha256) }
    }

    const fn known(bytes: &'static [u8], sha256: &[u8; 32]) -> Program {
        let mut digest = [0; DIGEST_BYTES];
        let mut at = 0;
        while at < DIGEST_BYTES {
            digest[at] = sha256[at];
            at += 1;
        }
        Program { bytes, digest, carried: false }
    }
}

impl From<&'static [u8]> for Program {
    fn from(bytes: &'static [u8]) -> Program {
        Program::known(bytes, &Sha256::digest(bytes).into())
    }
}

/// A program that gets its place in `bin` when it is needed first.
#[derive(Debug)]
pub struct Stored {
    path: PathBuf,
    program: Program,
    /// Held while it is written, so that it is written once.
    is_there: Mutex<bool>,
}

impl Stored {
    pub(crate) fn new(bin: &Path, name: &str, program: Program) -> Result<Stored, HostError> {
        if !lodge_link::is_valid_id(name) {
            return Err(HostError::BadName { name: name.to_owned() });
        }
        let hex: String = program.digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = bin.join(format!("{name}-{hex}"));
        Ok(Stored { path, program, is_there: Mutex::new(false) })
    }

    /// Its path, once it is there.
    pub fn path(&self) -> Result<&Path, HostError> {
        let mut is_there = self.is_there.lock().unwrap_or_else(PoisonError::into_inner);
        let found = || self.path.symlink_metadata();
        if !*is_there
            && !found().is_ok_and(|meta| meta.is_file() && meta.len() == self.program.bytes.len() as u64)
        {
            let bin = self.path.parent().unwrap_or(Path::new("/"));
            write(bin, &self.path, self.program.bytes)
                .map_err(|cause| HostError::StoreProgram { path: self.path.clone(), cause })?;
            if self.program.carried {
                give_back(self.program.bytes);
            }
        }
        *is_there = true;
        Ok(&self.path)
    }
}

/// Gives the pages of a carried program back to the kernel; a later use reads them from the file again.
fn give_back(bytes: &'static [u8]) {
    const PAGE: usize = 4096;
    let from = bytes.as_ptr().align_offset(PAGE);
    let whole = bytes.len().saturating_sub(from) / PAGE * PAGE;
    let Some(pages) = bytes.get(from..from + whole) else { return };
    // SAFETY: whole pages within a constant of this program, as `Program::carried` demands: mapped from its file,
    // read-only and never changed, so what is dropped comes back equal.
    let given = unsafe { libc::madvise(pages.as_ptr().cast_mut().cast(), pages.len(), libc::MADV_DONTNEED) };
    // A kernel that refuses keeps them; nothing depends on it.
    debug_assert!(given == 0 || pages.is_empty());
}

fn write(bin: &Path, path: &Path, bytes: &[u8]) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = format!(".new-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let temporary = bin.join(unique);
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o700).open(&temporary)?;
        file.write_all(bytes)?;
        // The mode is set apart from creation, where the umask could narrow it.
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(bin)?.sync_all()
    })();
    if written.is_err() && fs::remove_file(&temporary).is_err() {
        // A stray temporary file costs room and nothing else; the first error is the one to tell.
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_program_is_written_once_when_it_is_needed_and_another_content_gets_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let put = |bytes: &'static [u8]| {
            let stored = Stored::new(dir.path(), "keeper", bytes.into()).unwrap();
            stored.path().unwrap().to_owned()
        };
        drop(Stored::new(dir.path(), "keeper", b"none".as_slice().into()).unwrap());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let first = put(b"one");
        let inode = first.metadata().unwrap().ino();
        assert_eq!(put(b"one"), first);
        assert_eq!(first.metadata().unwrap().ino(), inode);
        assert_eq!(first.metadata().unwrap().mode() & 0o777, 0o755);
        let second = put(b"two");
        assert_ne!(first, second);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_name_that_is_a_path_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = Stored::new(dir.path(), "../keeper", b"one".as_slice().into()).unwrap_err();
        assert_eq!(refused.code(), "host.bad_program_name");
    }
}
