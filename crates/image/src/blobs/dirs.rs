//! The directories of the store. Once they are open, files are only accessed through them, and no link is followed.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, fchmod, fstat, fsync, mkdirat, openat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Only the owner may look here.
const PRIVATE: Mode = Mode::RWXU;
/// What is in these is bound into sandboxes, where others read it.
const READABLE: Mode = PRIVATE.union(Mode::from_raw_mode(0o055));

#[derive(Debug)]
pub(super) struct BlobDirs {
    pub(super) blobs: OwnedFd,
    pub(super) partial: OwnedFd,
    pub(super) programs: OwnedFd,
    /// What is not whole yet.
    temp: OwnedFd,
}

impl BlobDirs {
    pub(super) fn open(dir: &Path) -> io::Result<BlobDirs> {
        let top = own_dir(CWD, dir, PRIVATE)?;
        if let Some(above) = dir.parent().filter(|above| !above.as_os_str().is_empty()) {
            File::open(above)?.sync_all()?;
        }
        let kinds = own_dir(&top, "blobs", PRIVATE)?;
        let dirs = BlobDirs {
            blobs: own_dir(&kinds, "sha256", PRIVATE)?,
            partial: own_dir(&top, "partial", PRIVATE)?,
            programs: own_dir(&top, "programs", READABLE)?,
            temp: own_dir(&top, "temp", PRIVATE)?,
        };
        fsync(&kinds)?;
        fsync(&top)?;
        // A process that was killed after it renamed a blob had not reported it yet; from now on we report it.
        fsync(&dirs.blobs)?;
        for name in names(&dirs.temp)? {
            remove(&dirs.temp, name.as_c_str())?;
        }
        Ok(dirs)
    }

    /// The directory of what belongs to one owner.
    pub(super) fn programs_of(&self, owner: &str) -> io::Result<OwnedFd> {
        if stat(&self.programs, owner)?.is_some_and(|found| !is_dir(&found)) {
            remove(&self.programs, owner)?;
        }
        let dir = own_dir(&self.programs, owner, READABLE)?;
        fsync(&self.programs)?;
        Ok(dir)
    }

    /// A new file that `fill` writes, durably at its place afterwards; what was there before is replaced at once.
    pub(super) fn place<E: From<io::Error>>(
        self: &Arc<Self>,
        to: &OwnedFd,
        name: &str,
        mode: Mode,
        fill: impl FnOnce(&mut File) -> Result<(), E>,
    ) -> Result<(), E> {
        let (temp, mut file) = TempName::new(self)?;
        fill(&mut file)?;
        seal(&file, mode)?;
        temp.move_to(to, name)?;
        Ok(flush(to)?)
    }
}

/// The name of a new file that has no place yet. The file goes with it.
#[derive(Debug)]
pub(super) struct TempName {
    dirs: Arc<BlobDirs>,
    name: String,
}

impl TempName {
    pub(super) fn new(dirs: &Arc<BlobDirs>) -> io::Result<(TempName, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&dirs.temp, name.as_str(), flags, Mode::RUSR | Mode::WUSR)?;
        Ok((TempName { dirs: Arc::clone(dirs), name }, file.into()))
    }

    /// Gives a file that was sealed its place. That lasts once the directory is flushed.
    pub(super) fn move_to(self, to: &OwnedFd, name: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dirs.temp, self.name.as_str(), to, name)?)
    }
}

impl Drop for TempName {
    fn drop(&mut self) {
        // No name is used twice, so a file that was moved is no longer here.
        if remove(&self.dirs.temp, self.name.as_str()).is_err() {
            // Leftover files are removed when the store is opened next. The first error is the one to report.
        }
    }
}

/// Makes a complete file durable and read-only.
pub(super) fn seal(file: &File, mode: Mode) -> io::Result<()> {
    // The mode is set apart from creation, where the umask could narrow it.
    fchmod(file, mode)?;
    file.sync_all()
}

/// Makes the names in a directory last.
pub(super) fn flush(dir: &OwnedFd) -> io::Result<()> {
    Ok(fsync(dir)?)
}

/// Moves a whole file to its place, durably.
pub(super) fn settle(
    file: &File,
    from: &OwnedFd,
    old: &str,
    to: &OwnedFd,
    new: &str,
    mode: Mode,
) -> io::Result<()> {
    seal(file, mode)?;
    rustix::fs::renameat(from, old, to, new)?;
    flush(to)
}

/// A real directory of our own; it is made when there is none, and refused when it is anything else.
fn own_dir<P: rustix::path::Arg + Copy>(above: impl AsFd, name: P, mode: Mode) -> io::Result<OwnedFd> {
    match mkdirat(&above, name, mode) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(&above, name, flags, Mode::empty())?;
    let found = fstat(&dir)?;
    if found.st_uid != geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "this directory belongs to another user",
        ));
    }
    if Mode::from_raw_mode(found.st_mode) != mode {
        fchmod(&dir, mode)?;
    }
    Ok(dir)
}

/// Opens a regular file; `None` if it does not exist. Any other kind of file is an error.
pub(super) fn open(dir: &OwnedFd, name: &str) -> io::Result<Option<(File, Stat)>> {
    // Without NONBLOCK a pipe of that name would block until a writer appears.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO) => return Err(no_file()),
        Err(error) => return Err(error.into()),
    };
    let found = fstat(&file)?;
    if is_file(&found) { Ok(Some((file, found))) } else { Err(no_file()) }
}

fn no_file() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "something that is no file has a file's name")
}

pub(super) fn stat<P: rustix::path::Arg>(dir: &OwnedFd, name: P) -> io::Result<Option<Stat>> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

pub(super) fn is_file(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode).is_file()
}

pub(super) fn is_dir(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode).is_dir()
}

/// Removes anything but a directory. What is not there is removed already.
pub(super) fn remove<P: rustix::path::Arg>(dir: &OwnedFd, name: P) -> io::Result<()> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes a directory with the files in it. Returns their bytes.
pub(super) fn remove_dir(above: &OwnedFd, name: &str) -> io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(above, name, flags, Mode::empty())?;
    let mut bytes = 0;
    for file in names(&dir)? {
        bytes += stat(&dir, file.as_c_str())?.map_or(0, |found| found.st_size.unsigned_abs());
        remove(&dir, file.as_c_str())?;
    }
    unlinkat(above, name, AtFlags::REMOVEDIR)?;
    Ok(bytes)
}

/// The names of everything in a directory.
pub(super) fn names(dir: &OwnedFd) -> io::Result<Vec<std::ffi::CString>> {
    let is_dots = |name: &CStr| matches!(name.to_bytes(), b"." | b"..");
    let entries = Dir::read_from(dir)?.map(|entry| entry.map(|entry| entry.file_name().to_owned()));
    Ok(entries.filter(|name| !name.as_ref().is_ok_and(|name| is_dots(name))).collect::<Result<_, _>>()?)
}
