//! Safe names for the system calls that the standard library does not have.
//!
//! Owns: the unsafe part of calling the kernel. Never: what to do about an error.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Too wide for the type that libc gives it.
const CLONE_INTO_CGROUP: u64 = 1 << 33;
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// Turns `-1` into the error that the kernel left.
pub(crate) fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// As [`check`], for raw system calls.
pub(crate) fn check_long(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A path as the kernel takes it.
pub(crate) fn c_string(text: &OsStr) -> io::Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// The descriptor that a call returned.
pub(crate) fn owned(fd: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: a successful call returned this descriptor, and nothing else owns it.
    check(fd).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn open_at(dir: RawFd, path: &CStr, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    // SAFETY: `path` is a valid C string for the whole call.
    owned(unsafe { libc::openat(dir, path.as_ptr(), flags | libc::O_CLOEXEC, mode) })
}

/// Opens a path to refer to it, without reading it.
pub(crate) fn open_path(path: &OsStr) -> io::Result<OwnedFd> {
    open_at(libc::AT_FDCWD, &c_string(path)?, libc::O_PATH, 0)
}

pub(crate) fn mkdir_at(dir: RawFd, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: `name` is a valid C string for the whole call.
    check(unsafe { libc::mkdirat(dir, name.as_ptr(), mode) }).map(drop)
}

pub(crate) fn unlink_at(dir: RawFd, name: &CStr, flags: i32) -> io::Result<()> {
    // SAFETY: `name` is a valid C string for the whole call.
    check(unsafe { libc::unlinkat(dir, name.as_ptr(), flags) }).map(drop)
}

pub(crate) fn rename_at(dir: RawFd, from: &CStr, to: &CStr) -> io::Result<()> {
    // SAFETY: both names are valid C strings for the whole call.
    check(unsafe { libc::renameat(dir, from.as_ptr(), dir, to.as_ptr()) }).map(drop)
}

/// As [`rename_at`], unless something has the new name.
pub(crate) fn rename_new(dir: RawFd, from: &CStr, to: &CStr) -> io::Result<()> {
    let flags = libc::RENAME_NOREPLACE;
    // SAFETY: both names are valid C strings for the whole call.
    let renamed = unsafe { libc::syscall(libc::SYS_renameat2, dir, from.as_ptr(), dir, to.as_ptr(), flags) };
    check_long(renamed).map(drop)
}

pub(crate) fn stat(fd: RawFd) -> io::Result<libc::stat> {
    // SAFETY: `stat` is plain data, for which zeroes are a valid value, and outlives the call.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstat(fd, &mut stat))?;
        Ok(stat)
    }
}

/// A pipe: the end to read from, the end to write to.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: the kernel writes two descriptors into the array, which nothing else owns.
    unsafe {
        check(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC))?;
        Ok((OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
    }
}

pub(crate) fn set_nonblocking(fd: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    unsafe {
        let flags = check(libc::fcntl(fd, libc::F_GETFL))?;
        check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// Takes over an inherited descriptor, which must be open.
pub(crate) fn inherit(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is checked to be open, and each inherited one is taken over once, at start.
    unsafe {
        check(libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Takes the exclusive lock on a file's description, which forked processes share.
pub(crate) fn try_lock(fd: RawFd) -> io::Result<bool> {
    // SAFETY: `flock` is plain data, for which zeroes are a valid value, and outlives the call.
    let taken = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        check(libc::fcntl(fd, libc::F_OFD_SETLK, &lock))
    };
    match taken {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn random(bytes: &mut [u8]) -> io::Result<()> {
    // SAFETY: the kernel writes at most the slice's length into it.
    let len = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if usize::try_from(len) == Ok(bytes.len()) { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(crate) fn read(fd: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the kernel writes at most the slice's length into it.
    let len = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the kernel reads at most the slice's length from it.
    let len = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Moves bytes from a pipe without copying them through this process. `Ok(0)` is the end of the pipe.
pub(crate) fn splice(pipe: BorrowedFd<'_>, to: RawFd, len: usize) -> io::Result<usize> {
    let flags = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK;
    let (none, from) = (std::ptr::null_mut(), pipe.as_raw_fd());
    // SAFETY: no offsets are passed, so no memory is touched.
    let moved = unsafe { libc::splice(from, none, to, none, len, flags) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

/// How many bytes wait in a pipe.
pub(crate) fn waiting(pipe: BorrowedFd<'_>) -> io::Result<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one integer, to `bytes`.
    check(unsafe { libc::ioctl(pipe.as_raw_fd(), libc::FIONREAD as _, &mut bytes) })?;
    Ok(u64::try_from(bytes).unwrap_or(0))
}

pub(crate) fn flags_of(fd: RawFd) -> io::Result<i32> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd, libc::F_GETFL) })
}

pub(crate) fn set_flags(fd: RawFd, flags: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) }).map(drop)
}

/// Becomes a user and a group of that number, and of no other.
pub(crate) fn become_user(uid: u32) -> io::Result<()> {
    // SAFETY: an empty list of groups is a null pointer and no length.
    unsafe {
        check(libc::setgroups(0, std::ptr::null()))?;
        check(libc::setresgid(uid, uid, uid))?;
        check(libc::setresuid(uid, uid, uid)).map(drop)
    }
}

pub(crate) fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check_long(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: the call returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

pub(crate) fn pidfd_send_signal(pidfd: RawFd, signal: i32) -> io::Result<()> {
    let info: *const libc::siginfo_t = std::ptr::null();
    // SAFETY: a null info asks the kernel to fill it in.
    check_long(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, info, 0) }).map(drop)
}

/// Signals the process group that this process leads or led. Needs Linux 6.9.
pub(crate) fn pidfd_signal_group(pidfd: RawFd, signal: i32) -> io::Result<()> {
    let info: *const libc::siginfo_t = std::ptr::null();
    let flags = PIDFD_SIGNAL_PROCESS_GROUP;
    // SAFETY: a null info asks the kernel to fill it in.
    check_long(unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd, signal, info, flags) }).map(drop)
}

/// Reads from a nonblocking pipe until `bytes` is full or the pipe ends, and returns how much there was.
///
/// Past the moment `until`, this is an error of the kind `TimedOut`.
pub(crate) fn read_until(fd: RawFd, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match read(fd, &mut bytes[filled..]) {
            Ok(0) => break,
            Ok(len) => filled += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                // Rounded up: waking a moment early would only mean to wait again.
                let left_ms = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
                match wait_readable(fd, left_ms) {
                    Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                    Ok(_) | Err(_) => {}
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Waits for one descriptor.
pub(crate) fn wait_readable(fd: RawFd, timeout_ms: i32) -> io::Result<bool> {
    let mut polled = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    // SAFETY: the array holds exactly the one entry that is announced.
    check(unsafe { libc::poll(polled.as_mut_ptr(), 1, timeout_ms) }).map(|ready| ready > 0)
}

pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Forks. For a process with one thread: its child may do anything that it may.
pub(crate) fn fork() -> io::Result<i32> {
    // SAFETY: no memory is passed; that there is one thread is the caller's promise.
    check(unsafe { libc::fork() })
}

/// As [`fork`], with the child in another cgroup from its first moment. Moving it there later would wait for
/// every processor.
pub(crate) fn fork_into(cgroup: RawFd) -> io::Result<i32> {
    // SAFETY: the structure is plain data, as long as is announced, and outlives the call. Without a stack
    // and without shared memory the child goes on with a copy of everything, as after a fork.
    let forked = unsafe {
        let mut args: libc::clone_args = std::mem::zeroed();
        args.flags = CLONE_INTO_CGROUP;
        args.exit_signal = libc::SIGCHLD as u64;
        args.cgroup = cgroup as u64;
        libc::syscall(libc::SYS_clone3, &args, size_of::<libc::clone_args>())
    };
    check_long(forked).map(|pid| pid as i32)
}

/// Whether this process is a child of ours that was not collected yet.
pub(crate) fn is_child(pid: i32) -> bool {
    // SAFETY: `siginfo_t` is plain data, for which zeroes are a valid value, and outlives the call.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        libc::waitid(libc::P_PID, pid.cast_unsigned(), &mut info, flags) == 0
    }
}

/// Lowers a limit of this process and of all that it starts. One that is lower already stays.
pub(crate) fn set_rlimit(which: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure is filled in, or read, and outlives both calls.
    unsafe {
        check(libc::getrlimit(which, &mut now))?;
        now = libc::rlimit { rlim_cur: now.rlim_cur.min(soft), rlim_max: now.rlim_max.min(hard) };
        check(libc::setrlimit(which, &now)).map(drop)
    }
}

pub(crate) fn statfs(path: &CStr) -> io::Result<libc::statfs> {
    // SAFETY: `statfs` is plain data, for which zeroes are a valid value, and outlives the call, as the path does.
    unsafe {
        let mut stat: libc::statfs = std::mem::zeroed();
        check(libc::statfs(path.as_ptr(), &mut stat))?;
        Ok(stat)
    }
}

/// What an ordinary user may still write to the file system that `dir` is on.
pub(crate) fn free_bytes(dir: RawFd) -> io::Result<u64> {
    // SAFETY: `statvfs` is plain data, for which zeroes are a valid value, and outlives the call.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        check(libc::fstatvfs(dir, &mut stat))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

/// The names in a directory, but for itself and its parent.
pub(crate) fn names(dir: RawFd) -> io::Result<Vec<CString>> {
    let listed = open_at(dir, c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut names = Vec::new();
    // SAFETY: the stream takes the descriptor over, unless it fails, and is closed once. An entry is valid until the next
    // one is read, and its name ends with a zero byte.
    unsafe {
        let stream = libc::fdopendir(listed.as_raw_fd());
        if stream.is_null() {
            return Err(io::Error::last_os_error());
        }
        std::mem::forget(listed);
        loop {
            *libc::__errno_location() = 0;
            let entry = libc::readdir64(stream);
            if entry.is_null() {
                let error = io::Error::last_os_error();
                libc::closedir(stream);
                return if error.raw_os_error() == Some(0) { Ok(names) } else { Err(error) };
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr());
            if name != c"." && name != c".." {
                names.push(name.to_owned());
            }
        }
    }
}

/// Names this process after the program that `path` leads to. The kernel keeps the first 15 bytes.
pub(crate) fn set_name(path: Option<&OsStr>) {
    let name = path.and_then(|path| std::path::Path::new(path).file_name());
    if let Some(Ok(name)) = name.map(c_string) {
        // SAFETY: `name` is a valid C string for the whole call. It cannot fail with one.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
    }
}

pub(crate) fn is_root() -> bool {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::geteuid() == 0 }
}

/// Milliseconds since 1970 by the host's clock.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Runs a part of a test in a process of its own, which may change its limits and its descriptors, and says whether it
/// came to its end.
#[cfg(test)]
pub(crate) fn passes_in_child(work: impl FnOnce() + std::panic::UnwindSafe) -> bool {
    let child = fork().unwrap();
    if child == 0 {
        // What other tests have open is nothing to this one.
        // SAFETY: this is the child, which uses none of these descriptors and of which nothing has to be kept.
        unsafe {
            libc::close_range(3, libc::c_uint::MAX, 0);
            let status = if std::panic::catch_unwind(work).is_ok() { 0 } else { 1 };
            libc::_exit(status)
        }
    }
    let mut status = 0;
    // SAFETY: the status outlives the call.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    (ended, status) == (child, 0)
}
