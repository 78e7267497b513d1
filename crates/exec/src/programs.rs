//! Programs in `bin/`: written once under the name of their content, never overwritten, and run from a descriptor of a file that
//! was checked.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::read::ZlibDecoder;
use lodge_link::FileIdentity;
use sha2::{Digest, Sha256};
use tokio::process::Command;

use crate::error::HostError;
use crate::system::move_above_targets;

/// Bytes of the digest that go into a name: enough that no two programs ever share one.
const DIGEST_BYTES: usize = 12;
/// What is read of a program at a time while it is checked.
const PIECE: usize = 64 * 1024;

/// A program, and the digest that names it.
#[derive(Debug, Clone, Copy)]
pub struct ProgramImage {
    contents: ProgramContents,
    len: u64,
    sha256: [u8; 32],
}

#[derive(Debug, Clone, Copy)]
enum ProgramContents {
    Plain(&'static [u8]),
    /// A zlib stream in this program's own file.
    Embedded(&'static [u8]),
}

impl ProgramImage {
    /// A program that is embedded in this one as a zlib stream. Length and SHA-256 are of the program itself and computed when this
    /// one was built: starting and staying alive need none of its bytes in memory.
    ///
    /// # Safety
    /// `zlib` must come from `include_bytes!`: its pages are given back, and read again from this program's file.
    pub const unsafe fn embedded(zlib: &'static [u8], len: u64, sha256: &[u8; 32]) -> ProgramImage {
        ProgramImage { contents: ProgramContents::Embedded(zlib), len, sha256: *sha256 }
    }
}

impl From<&'static [u8]> for ProgramImage {
    fn from(bytes: &'static [u8]) -> ProgramImage {
        ProgramImage {
            contents: ProgramContents::Plain(bytes),
            len: bytes.len() as u64,
            sha256: Sha256::digest(bytes).into(),
        }
    }
}

/// A program that gets its place in `bin` when it is needed first.
#[derive(Debug)]
pub struct StoredProgram {
    path: PathBuf,
    program: ProgramImage,
    /// Its file, once it was checked. Locked while it is written, so that it is written once.
    checked: Mutex<Option<CheckedFile>>,
}

/// A file whose contents were checked, and its identity at that time.
#[derive(Debug, Clone)]
struct CheckedFile {
    file: Arc<OwnedFd>,
    identity: FileIdentity,
}

/// A file in `bin` that has exactly the bytes of its program, and that no other user can change.
#[derive(Debug, Clone)]
pub struct VerifiedProgram<'s> {
    path: &'s Path,
    file: Arc<OwnedFd>,
    identity: FileIdentity,
}

impl VerifiedProgram<'_> {
    /// A command that runs this very file, also when its name leads to another by then. It is listed under its path.
    pub fn command(&self) -> Command {
        let mut command = Command::new(format!("/proc/self/fd/{}", self.file.as_raw_fd()));
        command.arg0(self.path);
        command
    }

    pub fn path(&self) -> &Path {
        self.path
    }

    /// The file that was checked, so that no other is bound by its name.
    pub fn identity(&self) -> FileIdentity {
        self.identity
    }
}

impl StoredProgram {
    pub(crate) fn new(bin: &Path, name: &str, program: ProgramImage) -> Result<StoredProgram, HostError> {
        if !lodge_link::is_valid_id(name) {
            return Err(HostError::BadName { name: name.to_owned() });
        }
        let hex: String = program.sha256[..DIGEST_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        let path = bin.join(format!("{name}-{hex}"));
        Ok(StoredProgram { path, program, checked: Mutex::new(None) })
    }

    /// Its file, checked. What another program was put in place of is written again.
    pub fn verified(&self) -> Result<VerifiedProgram<'_>, HostError> {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let known = checked.as_ref().filter(|known| known.is_at(&self.path)).cloned();
        let known = match known {
            Some(known) => known,
            None => self.check_or_write()?,
        };
        let CheckedFile { file, identity } = checked.insert(known).clone();
        Ok(VerifiedProgram { path: &self.path, file, identity })
    }

    /// Its path, which leads to a file that was checked.
    pub fn path(&self) -> Result<&Path, HostError> {
        Ok(self.verified()?.path)
    }

    fn check_or_write(&self) -> Result<CheckedFile, HostError> {
        let not_stored = |cause| HostError::StoreProgram { path: self.path.clone(), cause };
        // One that is not there, not ours or not what it should be is replaced: its name says what has to be in it.
        if let Ok(file) = self.open() {
            return Ok(file);
        }
        let bin = self.path.parent().unwrap_or(Path::new("/"));
        match self.program.contents {
            ProgramContents::Plain(mut bytes) => write(bin, &self.path, &mut bytes).map_err(not_stored)?,
            ProgramContents::Embedded(zlib) => {
                // More than it should be is found by the check that follows, and does not fill the disk before it.
                let mut bytes = ZlibDecoder::new(zlib).take(self.program.len + 1);
                write(bin, &self.path, &mut bytes).map_err(not_stored)?;
                release_pages(zlib);
            }
        }
        self.open().map_err(not_stored)
    }

    /// Opens the file, and checks that it is this program and that no other user can change it.
    fn open(&self) -> io::Result<CheckedFile> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = File::options().read(true).custom_flags(flags).open(&self.path)?;
        let meta = file.metadata()?;
        let is_ours = meta.is_file()
            && meta.uid() == rustix::process::geteuid().as_raw()
            && meta.mode() & 0o022 == 0
            && meta.len() == self.program.len;
        let identity = FileIdentity::of(&meta);
        let is_program = is_ours && sha256_of(&mut file)? == self.program.sha256;
        // Nor was it changed while it was read.
        if !is_program || FileIdentity::of(&file.metadata()?) != identity {
            return Err(io::Error::other("it is not the program that was stored"));
        }
        Ok(CheckedFile { file: Arc::new(move_above_targets(file.into())?), identity })
    }
}

impl CheckedFile {
    /// Whether the path still leads to that unchanged file.
    fn is_at(&self, path: &Path) -> bool {
        path.symlink_metadata().is_ok_and(|named| FileIdentity::of(&named) == self.identity)
    }
}

fn sha256_of(file: &mut File) -> io::Result<[u8; 32]> {
    let (mut hasher, mut piece) = (Sha256::new(), vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hasher.finalize().into()),
            read => hasher.update(&piece[..read]),
        }
    }
}

/// Gives the pages of an embedded program back to the kernel; a later use reads them from the file again.
fn release_pages(bytes: &'static [u8]) {
    const PAGE: usize = 4096;
    let from = bytes.as_ptr().align_offset(PAGE);
    let whole = bytes.len().saturating_sub(from) / PAGE * PAGE;
    let Some(pages) = bytes.get(from..from + whole) else { return };
    // SAFETY: whole pages within a constant of this program, as `ProgramImage::embedded` demands: mapped from its file,
    // read-only and never changed, so what is dropped comes back equal.
    let given = unsafe { libc::madvise(pages.as_ptr().cast_mut().cast(), pages.len(), libc::MADV_DONTNEED) };
    // A kernel that refuses keeps them; nothing depends on it.
    debug_assert!(given == 0 || pages.is_empty());
}

fn write(bin: &Path, path: &Path, bytes: &mut dyn Read) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let unique = format!(".new-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let temporary = bin.join(unique);
    let written = (|| {
        let mut file = File::options().write(true).create_new(true).mode(0o700).open(&temporary)?;
        io::copy(bytes, &mut file)?;
        // The mode is set apart from creation, where the umask could narrow it.
        file.set_permissions(fs::Permissions::from_mode(0o755))?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(bin)?.sync_all()
    })();
    if written.is_err() && fs::remove_file(&temporary).is_err() {
        // A leftover temporary file only costs space. The first error is the one to report.
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
            let stored = StoredProgram::new(dir.path(), "keeper", bytes.into()).unwrap();
            stored.path().unwrap().to_owned()
        };
        drop(StoredProgram::new(dir.path(), "keeper", b"none".as_slice().into()).unwrap());
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
    fn an_embedded_program_is_unpacked_and_one_that_is_not_what_was_embedded_is_not_used() {
        use std::io::Write;
        let mut zlib = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        zlib.write_all(b"a program").unwrap();
        let zlib: &'static [u8] = zlib.finish().unwrap().leak();
        let embedded = |zlib, len| {
            let sha256: [u8; 32] = Sha256::digest(b"a program").into();
            ProgramImage { contents: ProgramContents::Embedded(zlib), len, sha256 }
        };
        for wrong in [embedded(zlib, 8), embedded(zlib, 10), embedded(&zlib[..zlib.len() - 6], 9)] {
            let dir = tempfile::tempdir().unwrap();
            let stored = StoredProgram::new(dir.path(), "keeper", wrong).unwrap();
            assert_eq!(stored.verified().unwrap_err().code(), "host.program_not_stored");
        }
        let dir = tempfile::tempdir().unwrap();
        let stored = StoredProgram::new(dir.path(), "keeper", embedded(zlib, 9)).unwrap();
        assert_eq!(fs::read(stored.path().unwrap()).unwrap(), b"a program");
    }

    #[test]
    fn a_file_in_the_place_of_a_program_is_replaced_before_anything_runs() {
        let dir = tempfile::tempdir().unwrap();
        let program: ProgramImage = b"one".as_slice().into();
        let stored = || StoredProgram::new(dir.path(), "keeper", program).unwrap();
        let path = stored().path().unwrap().to_owned();
        let is_whole = |stored: &StoredProgram| {
            let verified = stored.verified().unwrap();
            let meta = path.symlink_metadata().unwrap();
            let open = rustix::fs::fstat(&verified.file).unwrap();
            assert!(meta.is_file() && meta.mode() & 0o777 == 0o755 && open.st_ino == meta.ino());
            assert_eq!(fs::read(&path).unwrap(), b"one");
        };
        // Of the same length, also after this daemon has used it; a link; writable; a directory's place is an error.
        let used = stored();
        is_whole(&used);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"two").unwrap();
        is_whole(&stored());
        is_whole(&used);
        fs::write(&path, b"six").unwrap();
        is_whole(&used);
        fs::remove_file(&path).unwrap();
        fs::write(dir.path().join("other"), b"one").unwrap();
        std::os::unix::fs::symlink("other", &path).unwrap();
        is_whole(&stored());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        is_whole(&stored());
        fs::remove_file(&path).unwrap();
        is_whole(&used);
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(stored().verified().unwrap_err().code(), "host.program_not_stored");
    }

    #[test]
    fn a_program_of_another_user_is_replaced() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let stored = || StoredProgram::new(dir.path(), "keeper", b"one".as_slice().into()).unwrap();
        let path = stored().path().unwrap().to_owned();
        std::os::unix::fs::chown(&path, Some(54_321), None).unwrap();
        stored().verified().unwrap();
        assert_eq!(path.metadata().unwrap().uid(), 0);
    }

    #[tokio::test]
    async fn a_program_runs_from_its_descriptor_and_not_from_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let echo: &'static [u8] = Box::leak(fs::read("/bin/echo").unwrap().into_boxed_slice());
        let stored = StoredProgram::new(dir.path(), "echo", echo.into()).unwrap();
        let verified = stored.verified().unwrap();
        fs::write(dir.path().join("new"), b"swapped").unwrap();
        fs::rename(dir.path().join("new"), verified.path()).unwrap();
        let output = verified.command().arg("ran").output().await.unwrap();
        assert_eq!(output.stdout, b"ran\n");
    }

    #[test]
    fn a_name_that_is_a_path_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let refused = StoredProgram::new(dir.path(), "../keeper", b"one".as_slice().into()).unwrap_err();
        assert_eq!(refused.code(), "host.bad_program_name");
    }
}
