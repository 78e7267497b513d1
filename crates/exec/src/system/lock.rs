//! The lock that shows whether a sandbox has a keeper.
//!
//! A check never takes the lock, so a starting keeper never mistakes it for another keeper.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

fn whole_file() -> libc::flock {
    // SAFETY: `flock` is plain data, for which zeroes are a valid value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Whether this file is locked.
pub(crate) fn is_held(file: &File) -> io::Result<bool> {
    let mut lock = whole_file();
    // SAFETY: `lock` outlives the call, which fills it in.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    if asked == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Takes the lock until the file is closed. False: another process has it.
pub(crate) fn try_take(file: &File) -> io::Result<bool> {
    let lock = whole_file();
    // SAFETY: `lock` outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        Some(_) | None => Err(error),
    }
}
