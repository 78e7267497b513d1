//! The disk usage of an agent: counted by a child process, so that a million files block nothing.
//!
//! Owns: the walk through the agent's root and through the output of its execs. It follows no link, leaves the mount for
//! none beneath it, and counts a file once, however many names it has. What was removed and is still in use is counted
//! in `removed`.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

use lodge_link::EXEC_DIR;

use crate::binds::fd_path;
use crate::confine;
use crate::fence::Namespaces;
use crate::removed;
use crate::sys;

/// Least that an entry counts: names and empty files fill a disk, too.
pub(crate) const ENTRY_BYTES: u64 = 4096;
/// Most directories within each other. What is deeper cannot be measured, and counts as if it filled everything.
const DEPTH_MAX: usize = 512;
/// How long one may count.
const WITHIN: Duration = Duration::from_secs(60);
/// What an owner needs to see what a directory holds.
const OWNER_LOOKS: libc::mode_t = 0o500;
/// Runs at the lowest priority.
const NICENESS: libc::c_int = 19;

/// The name of the counting process.
const COUNTER_NAME: &CStr = c"keeper-counts";

/// A running count.
#[derive(Debug)]
pub(crate) struct RootMeasurement {
    pid: i32,
    pub(crate) answer: OwnedFd,
    pub(crate) until: Instant,
}

/// What one entry of a directory is.
struct DirEntryStat {
    is_dir: bool,
    bytes: u64,
    mount: u64,
}

/// An open directory that is read entry by entry.
struct DirReader {
    stream: *mut libc::DIR,
    /// How it was closed to its owner, and is again afterwards.
    closed: Option<libc::mode_t>,
}

impl RootMeasurement {
    /// Begins to count in a child: the root, and what `dir`, the keeper's own, has of execs.
    pub(crate) fn begin(
        root: &Path,
        dir: &OwnedFd,
        namespaces: Namespaces,
        now: Instant,
    ) -> io::Result<RootMeasurement> {
        let (answer, theirs) = sys::pipe()?;
        sys::set_nonblocking(answer.as_fd())?;
        let pid = sys::fork()?;
        if pid == 0 {
            // SAFETY: the name is a C string, and no other memory is passed; a priority that cannot be lowered is
            // unchanged.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
                libc::prctl(libc::PR_SET_NAME, COUNTER_NAME.as_ptr());
                libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS);
            }
            let used = confine::drop_raisable().and_then(|()| used_bytes(root, namespaces));
            let used = used.and_then(|used| Ok(used.saturating_add(output_bytes(dir)?)));
            let bytes = used.unwrap_or(u64::MAX);
            // The reader may be gone. Either way nothing is left to do.
            let told = sys::write(theirs.as_fd(), &bytes.to_le_bytes());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(told.is_err())) }
        }
        Ok(RootMeasurement { pid, answer, until: now + WITHIN })
    }

    /// The answer, if there is one by now. An error is all that will come.
    pub(crate) fn answer(&self) -> io::Result<Option<u64>> {
        let mut bytes = [0; 8];
        match sys::read(self.answer.as_fd(), &mut bytes) {
            Ok(8) => Ok(Some(u64::from_le_bytes(bytes))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Ok(_) => Err(io::Error::other("the one who counts was killed")),
            Err(error) => Err(error),
        }
    }

    /// Ends a count that takes too long. It is collected like every other child.
    pub(crate) fn give_up(&self) {
        if sys::is_child(self.pid) && sys::kill(self.pid, libc::SIGKILL).is_err() {}
    }
}

/// All that the root holds on disk.
fn used_bytes(root: &Path, namespaces: Namespaces) -> io::Result<u64> {
    let root = sys::c_string(root.as_os_str())?;
    let top = enter(libc::AT_FDCWD, &root)?.ok_or(io::ErrorKind::NotFound)?;
    let device = sys::stat(sys::numbered(top.fd()))?.st_dev;
    let own = stat_entry(top.fd(), c"")?;
    let named = walk(top, own.mount)?.saturating_add(own.bytes);
    Ok(match namespaces {
        Namespaces::Own => named.saturating_add(removed::bytes(device)),
        // Whose the others are is not known.
        Namespaces::Host => named,
    })
}

fn walk(top: DirReader, mount: u64) -> io::Result<u64> {
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
        let entry = match stat_entry(dir, name) {
            Ok(entry) => entry,
            // Its owner closes it during the count, so it cannot be counted.
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

fn stat_entry(dir: RawFd, name: &CStr) -> io::Result<DirEntryStat> {
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
    // Before Linux 5.8 mounts have no id, and only those of other devices can be distinguished.
    let device = u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor);
    let mount = if found.stx_mask & libc::STATX_MNT_ID == 0 { device } else { found.stx_mnt_id };
    Ok(DirEntryStat { is_dir, bytes: found.stx_blocks.saturating_mul(512) / names, mount })
}

/// Opens a directory for reading, even if its owner may not read it at the moment. None: it is gone, or another user
/// owns it.
fn enter(dir: RawFd, name: &CStr) -> io::Result<Option<DirReader>> {
    match sys::open_at(sys::numbered(dir), name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0) {
        Ok(inner) if may_look_into(inner.as_raw_fd()) => DirReader::new(inner).map(Some),
        Err(error) if error.raw_os_error() != Some(libc::EACCES) => Ok(None),
        Ok(_) | Err(_) => enter_closed(dir, name),
    }
}

fn enter_closed(dir: RawFd, name: &CStr) -> io::Result<Option<DirReader>> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let Ok(path) = sys::open_at(sys::numbered(dir), name, flags, 0) else { return Ok(None) };
    let mode = sys::stat(path.as_fd())?.st_mode & 0o7777;
    // By the descriptor: its owner may replace the path by a link.
    let itself = fd_path(&path);
    // SAFETY: the path is a C string that outlives the call.
    let set = |mode: libc::mode_t| sys::check(unsafe { libc::chmod(itself.as_ptr(), mode) });
    if set(mode | OWNER_LOOKS).is_err() {
        return Ok(None);
    }
    let opened = sys::open_at(rustix::fs::CWD, &itself, libc::O_RDONLY | libc::O_DIRECTORY, 0);
    match opened.and_then(DirReader::new) {
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
    stat_entry(dir, c".").is_ok()
}

/// What lies in the files of execs: output that is not archived yet, and what is kept of tool calls.
fn output_bytes(dir: &OwnedFd) -> io::Result<u64> {
    let name = sys::c_string(OsStr::new(EXEC_DIR))?;
    let Some(top) = enter(dir.as_raw_fd(), &name)? else { return Ok(0) };
    let mount = stat_entry(top.fd(), c"")?.mount;
    walk(top, mount)
}

impl DirReader {
    fn new(dir: OwnedFd) -> io::Result<DirReader> {
        let fd = dir.into_raw_fd();
        // SAFETY: the descriptor is that of a directory, and the stream owns it from here on.
        let stream = unsafe { libc::fdopendir(fd) };
        if stream.is_null() {
            let error = io::Error::last_os_error();
            // SAFETY: no other code owns the descriptor.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            return Err(error);
        }
        Ok(DirReader { stream, closed: None })
    }

    fn fd(&self) -> RawFd {
        // SAFETY: the stream is open.
        unsafe { libc::dirfd(self.stream) }
    }

    fn next(&mut self) -> Option<&CStr> {
        // SAFETY: the stream is open, and the returned entry lives until the next call, which needs a new borrow.
        unsafe {
            let entry = libc::readdir64(self.stream);
            (!entry.is_null()).then(|| CStr::from_ptr((&raw const (*entry).d_name).cast()))
        }
    }
}

impl Drop for DirReader {
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
        let before = used_bytes(&dir, Namespaces::Host).unwrap();
        std::fs::hard_link(dir.join("a"), dir.join("b")).unwrap();
        std::os::unix::fs::symlink("/usr", dir.join("link")).unwrap();
        let after = used_bytes(&dir, Namespaces::Host).unwrap();
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
                let used = used_bytes(&dir, Namespaces::Host).unwrap();
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
    fn output_of_execs_counts_by_what_is_on_disk() {
        let dir = dir("output");
        let own = OwnedFd::from(std::fs::File::open(&dir).unwrap());
        assert_eq!(output_bytes(&own).unwrap(), 0, "nothing ran yet");
        let job = dir.join(EXEC_DIR).join("job");
        std::fs::create_dir_all(&job).unwrap();
        std::fs::write(job.join("stdout"), vec![1; 1 << 20]).unwrap();
        // What was archived and given back is a hole.
        std::fs::File::create(job.join("stderr")).unwrap().set_len(1 << 30).unwrap();
        let used = output_bytes(&own).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!((1 << 20..2 << 20).contains(&used), "{used}");
    }
}
