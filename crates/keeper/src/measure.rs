//! How much lies on disk in the agent's root: counted by a child, so that a million files stop nobody.
//!
//! Owns: the walk. It follows no link, leaves the root's own mount for none beneath it, and counts a file once, however
//! many names it has. What was removed and is still open counts, as it still fills the disk.

use std::collections::HashSet;
use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::fence::{Namespaces, fd_path};
use crate::sys;

/// Least that an entry counts: names and empty files fill a disk, too.
pub(crate) const ENTRY_BYTES: u64 = 4096;
/// Most directories within each other. What is deeper cannot be measured, and counts as if it filled everything.
const DEPTH_MAX: usize = 512;
/// How long one may count.
const WITHIN: Duration = Duration::from_secs(60);
/// What an owner needs to see what a directory holds.
const OWNER_LOOKS: libc::mode_t = 0o500;
/// Leaves the processor to whoever wants it.
const NICENESS: libc::c_int = 19;

/// A count under way.
#[derive(Debug)]
pub(crate) struct Measuring {
    pid: i32,
    pub(crate) answer: OwnedFd,
    pub(crate) until: Instant,
}

/// What one entry of a directory is.
struct Entry {
    is_dir: bool,
    bytes: u64,
    mount: u64,
}

/// An open directory that is read entry by entry.
struct Reading {
    stream: *mut libc::DIR,
    /// How it was closed to its owner, and is again afterwards.
    closed: Option<libc::mode_t>,
}

impl Measuring {
    /// Begins to count in a child.
    pub(crate) fn begin(root: &Path, namespaces: Namespaces, now: Instant) -> io::Result<Measuring> {
        let (answer, theirs) = sys::pipe()?;
        sys::set_nonblocking(answer.as_raw_fd())?;
        let pid = sys::fork()?;
        if pid == 0 {
            // SAFETY: no memory is passed; a priority that cannot be lowered is what it was.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
            }
            let bytes = used_bytes(root, namespaces).unwrap_or(u64::MAX);
            // Nobody may be left to hear it; either way there is nothing more to do.
            let told = sys::write(theirs.as_raw_fd(), &bytes.to_le_bytes());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(told.is_err())) }
        }
        Ok(Measuring { pid, answer, until: now + WITHIN })
    }

    /// The answer, if there is one by now. An error is all that will come.
    pub(crate) fn answer(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; 8];
        match sys::read(self.answer.as_raw_fd(), &mut bytes) {
            Ok(8) => Ok(Some(u64::from_le_bytes(bytes))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Ok(_) => Err(io::Error::other("the one who counts was killed")),
            Err(error) => Err(error),
        }
    }

    /// Ends one that takes too long. It is collected like everybody else.
    pub(crate) fn give_up(&self) {
        if sys::is_child(self.pid) && sys::kill(self.pid, libc::SIGKILL).is_err() {}
    }
}

/// All that the root holds on disk.
fn used_bytes(root: &Path, namespaces: Namespaces) -> io::Result<u64> {
    let root = sys::c_string(root.as_os_str())?;
    let top = enter(libc::AT_FDCWD, &root)?.ok_or(io::ErrorKind::NotFound)?;
    let device = sys::stat(top.fd())?.st_dev;
    let own = look(top.fd(), c"")?;
    let named = walk(top, own.mount)?.saturating_add(own.bytes);
    Ok(match namespaces {
        Namespaces::Own => named.saturating_add(removed_bytes(device)),
        // Whose the others are is not known.
        Namespaces::Host => named,
    })
}

fn walk(top: Reading, mount: u64) -> io::Result<u64> {
    let mut used = 0_u64;
    let mut open = vec![top];
    while let Some(reading) = open.last_mut() {
        let dir = reading.fd();
        let Some(name) = reading.next() else {
            open.pop();
            continue;
        };
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let entry = match look(dir, name) {
            Ok(entry) => entry,
            // Somebody closes it while it is counted, so it cannot be.
            Err(error) if !may_look_into(dir) => return Err(error),
            // One that is gone by now holds nothing.
            Err(_) => continue,
        };
        if entry.mount != mount {
            continue;
        }
        used = used.saturating_add(entry.bytes.max(ENTRY_BYTES));
        if entry.is_dir {
            let Some(inner) = enter(dir, name)? else { continue };
            if open.len() >= DEPTH_MAX {
                return Ok(u64::MAX);
            }
            open.push(inner);
        }
    }
    Ok(used)
}

fn look(dir: RawFd, name: &CStr) -> io::Result<Entry> {
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_NO_AUTOMOUNT;
    let mask = libc::STATX_TYPE | libc::STATX_NLINK | libc::STATX_BLOCKS | libc::STATX_MNT_ID;
    // SAFETY: `statx` is plain data, for which zeroes are a valid value, and outlives the call, as the name does.
    let found = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        sys::check(libc::statx(dir, name.as_ptr(), flags, mask, &mut found))?;
        found
    };
    let is_dir = u32::from(found.stx_mode) & libc::S_IFMT == libc::S_IFDIR;
    // Each of a file's names is found, so that together they count it once.
    let names = if is_dir { 1 } else { u64::from(found.stx_nlink).max(1) };
    // Before Linux 5.8 mounts have no number, and those of other devices alone are told apart.
    let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
    let mount = if found.stx_mask & libc::STATX_MNT_ID == 0 { device } else { found.stx_mnt_id };
    Ok(Entry { is_dir, bytes: found.stx_blocks.saturating_mul(512) / names, mount })
}

/// Opens a directory to be read, also one that its owner may not look into at the moment. None: it is gone, or somebody
/// else's.
fn enter(dir: RawFd, name: &CStr) -> io::Result<Option<Reading>> {
    match sys::open_at(dir, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0) {
        Ok(inner) if may_look_into(inner.as_raw_fd()) => Reading::new(inner).map(Some),
        Err(error) if error.raw_os_error() != Some(libc::EACCES) => Ok(None),
        Ok(_) | Err(_) => enter_closed(dir, name),
    }
}

fn enter_closed(dir: RawFd, name: &CStr) -> io::Result<Option<Reading>> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let Ok(path) = sys::open_at(dir, name, flags, 0) else { return Ok(None) };
    let mode = sys::stat(path.as_raw_fd())?.st_mode & 0o7777;
    // By the descriptor: its owner may put a link to something else in its place meanwhile.
    let itself = fd_path(&path);
    // SAFETY: the path is a C string that outlives the call.
    let set = |mode: libc::mode_t| sys::check(unsafe { libc::chmod(itself.as_ptr(), mode) });
    if set(mode | OWNER_LOOKS).is_err() {
        return Ok(None);
    }
    let opened = sys::open_at(libc::AT_FDCWD, &itself, libc::O_RDONLY | libc::O_DIRECTORY, 0);
    match opened.and_then(Reading::new) {
        Ok(mut reading) => {
            reading.closed = Some(mode);
            Ok(Some(reading))
        }
        Err(error) => {
            set(mode)?;
            Err(error)
        }
    }
}

/// One may be listed and yet not say what is in it.
fn may_look_into(dir: RawFd) -> bool {
    look(dir, c".").is_ok()
}

/// What no name leads to any more and processes still have open.
fn removed_bytes(device: u64) -> u64 {
    let own = std::process::id().to_string();
    let mut seen = HashSet::new();
    let mut used = 0_u64;
    let is_other = |name: &OsStr| name.as_bytes().iter().all(u8::is_ascii_digit) && name != own.as_str();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.filter(|entry| is_other(&entry.file_name())) {
        let files = std::fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        for file in files {
            let Ok(meta) = std::fs::metadata(file.path()) else { continue };
            if meta.is_file() && meta.nlink() == 0 && meta.dev() == device && seen.insert(meta.ino()) {
                used = used.saturating_add(meta.blocks().saturating_mul(512));
            }
        }
    }
    used
}

impl Reading {
    fn new(dir: OwnedFd) -> io::Result<Reading> {
        let fd = dir.into_raw_fd();
        // SAFETY: the descriptor is that of a directory, and the stream owns it from here on.
        let stream = unsafe { libc::fdopendir(fd) };
        if stream.is_null() {
            let error = io::Error::last_os_error();
            // SAFETY: nobody took the descriptor over.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            return Err(error);
        }
        Ok(Reading { stream, closed: None })
    }

    fn fd(&self) -> RawFd {
        // SAFETY: the stream is open.
        unsafe { libc::dirfd(self.stream) }
    }

    fn next(&mut self) -> Option<&CStr> {
        // SAFETY: the stream is open, and what is returned lives until the next call, which needs it borrowed anew.
        unsafe {
            let entry = libc::readdir64(self.stream);
            (!entry.is_null()).then(|| CStr::from_ptr((&raw const (*entry).d_name).cast()))
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // SAFETY: the stream is open, and closed here alone.
        unsafe {
            if let Some(mode) = self.closed {
                libc::fchmod(libc::dirfd(self.stream), mode);
            }
            libc::closedir(self.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn dir(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("keeper-measure-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn files_are_counted_once_however_many_names_they_have_and_links_not_at_all() {
        let dir = dir("names");
        std::fs::write(dir.join("a"), vec![1; 1 << 20]).unwrap();
        let before = used_bytes(&dir, Namespaces::Own).unwrap();
        std::fs::hard_link(dir.join("a"), dir.join("b")).unwrap();
        std::os::unix::fs::symlink("/usr", dir.join("link")).unwrap();
        let after = used_bytes(&dir, Namespaces::Own).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!((1 << 20..2 << 20).contains(&before), "{before}");
        assert!(after - before <= 2 * ENTRY_BYTES, "{before} {after}");
    }

    #[test]
    fn empty_files_and_closed_directories_count() {
        let dir = dir("empty");
        let closed = dir.join("closed");
        std::fs::create_dir(&closed).unwrap();
        for number in 0..100 {
            std::fs::write(closed.join(number.to_string()), "").unwrap();
        }
        let set = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let mode_of = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let counted: Vec<(u64, u32, u32)> = [(0o700, 0o000), (0o700, 0o400), (0o700, 0o100), (0o400, 0o200)]
            .map(|(outer, inner)| {
                set(&closed, inner);
                set(&dir, outer);
                let used = used_bytes(&dir, Namespaces::Own).unwrap();
                let outer = mode_of(&dir);
                set(&dir, 0o700);
                (used, outer, mode_of(&closed))
            })
            .to_vec();
        set(&closed, 0o700);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(counted.iter().all(|(used, ..)| *used >= 100 * ENTRY_BYTES), "{counted:?}");
        let modes: Vec<(u32, u32)> = counted.iter().map(|(_, outer, inner)| (*outer, *inner)).collect();
        assert_eq!(modes, [(0o700, 0o000), (0o700, 0o400), (0o700, 0o100), (0o400, 0o200)]);
    }

    #[test]
    fn what_was_removed_and_is_still_open_counts() {
        let dir = dir("removed");
        let path = dir.join("open");
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .stdin({
                std::fs::write(&path, vec![1; 1 << 20]).unwrap();
                std::fs::File::open(&path).unwrap()
            })
            .spawn()
            .unwrap();
        std::fs::remove_file(&path).unwrap();
        let used = used_bytes(&dir, Namespaces::Own).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(used >= 1 << 20, "{used}");
    }
}
