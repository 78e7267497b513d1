//! The mount calls themselves.
//!
//! Owns: the unsafe part of changing the mount namespace, and reading what is mounted. Never: what to mount where.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::sys;

pub(crate) fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> io::Result<()> {
    let or_null = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or a C string that outlives the call.
    sys::check(unsafe {
        libc::mount(or_null(source), target.as_ptr(), or_null(kind), flags, or_null(options).cast())
    })
    .map(drop)
}

/// Whether a call that mounts or makes namespaces failed because this host does not allow it.
///
/// Every other failure can pass (a full disk, too many open files), so it is no reason for a weaker fence. Root may
/// mount everywhere, unless it is confined itself: by a container (`EPERM`) or by AppArmor (`EACCES`).
pub(crate) fn host_forbids(error: &io::Error) -> bool {
    is_forbidden(error.raw_os_error(), sys::is_root())
}

fn is_forbidden(errno: Option<i32>, is_root: bool) -> bool {
    match errno {
        Some(libc::EPERM | libc::EACCES) => true,
        Some(libc::ENOSYS | libc::EINVAL | libc::ENODEV) => !is_root,
        Some(_) | None => false,
    }
}

/// As [`host_forbids`], for `unshare`: a host that allows no namespaces at all says that there are too many.
pub(crate) fn host_forbids_namespaces(error: &io::Error) -> bool {
    let allows_none = |kind: &str| {
        let max = std::fs::read_to_string(format!("/proc/sys/user/max_{kind}_namespaces"));
        max.is_ok_and(|max| max.trim() == "0")
    };
    let is_full = error.raw_os_error() == Some(libc::ENOSPC);
    host_forbids(error) || (is_full && ["user", "mnt", "pid"].into_iter().any(allows_none))
}

/// Keeps what is mounted from now on from the host, and what the host mounts from here.
pub(crate) fn make_private() -> io::Result<()> {
    mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None)
}

/// Makes the mount at `path` the root of this mount namespace, and lets go of the old one.
pub(crate) fn pivot(path: &Path) -> io::Result<()> {
    std::env::set_current_dir(path)?;
    rustix::process::pivot_root(c".", c".")?;
    // The old root lies over the new one at the same place.
    rustix::mount::unmount(c".", rustix::mount::UnmountFlags::DETACH)?;
    std::env::set_current_dir("/")
}

/// A mount of its own of an open directory, attached nowhere: `..` from its top leads nowhere else.
pub(crate) fn clone_dir(dir: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    use rustix::mount::{OpenTreeFlags as Flags, open_tree};
    let flags =
        Flags::OPEN_TREE_CLONE | Flags::AT_RECURSIVE | Flags::OPEN_TREE_CLOEXEC | Flags::AT_EMPTY_PATH;
    let tree = open_tree(dir, c"", flags)?;
    // The one above can only be referred to, not read.
    sys::open_at(tree.as_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)
}

/// Attaches a mount that is attached nowhere, without looking up a name.
pub(crate) fn attach(tree: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    use rustix::mount::{MoveMountFlags as Flags, move_mount};
    let flags = Flags::MOVE_MOUNT_F_EMPTY_PATH | Flags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(tree, c"", target, c"", flags)?)
}

/// Mount points at and beneath `top`, from the text of a `mountinfo`.
pub(crate) fn beneath(mountinfo: &[u8], top: &Path) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped);
    points.filter(|point| point.starts_with(top)).collect()
}

/// Mount points of a kind of file system, from the text of a `mountinfo`.
pub(crate) fn of_kind(mountinfo: &[u8], kind: &[u8]) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let mounts = lines.filter(|line| {
        // The number of fields before the dash varies, and the kind follows it.
        let mut words = line.split(|byte| *byte == b' ').skip_while(|word| *word != b"-");
        words.nth(1) == Some(kind)
    });
    mounts.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped).collect()
}

/// Mount points of cgroups of version 1 that have one of these controllers, from the text of a `mountinfo`.
pub(crate) fn of_controllers(mountinfo: &[u8], controllers: &[&[u8]]) -> Vec<PathBuf> {
    let has =
        |options: &[u8]| options.split(|byte| *byte == b',').any(|option| controllers.contains(&option));
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let mounts = lines.filter(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip_while(|word| *word != b"-").skip(1);
        words.next() == Some(b"cgroup") && words.nth(1).is_some_and(has)
    });
    mounts.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped).collect()
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescaped(text: &[u8]) -> PathBuf {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

/// Enters a user and a mount namespace: mounts that were there before are locked in it.
#[cfg(test)]
pub(crate) fn enter_own() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: no memory is passed.
    sys::check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) })?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    make_private()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_host_never_allows_is_a_reason_for_a_weaker_fence() {
        for errno in [libc::ENOSYS, libc::EINVAL, libc::ENODEV] {
            assert!(is_forbidden(Some(errno), false) && !is_forbidden(Some(errno), true), "{errno}");
        }
        for errno in [libc::EPERM, libc::EACCES] {
            assert!(is_forbidden(Some(errno), false) && is_forbidden(Some(errno), true), "{errno}");
        }
        for errno in [libc::ENOSPC, libc::EDQUOT, libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOENT] {
            assert!(!is_forbidden(Some(errno), false) && !is_forbidden(Some(errno), true), "{errno}");
        }
        assert!(!is_forbidden(None, false));
    }

    #[test]
    fn mounts_beneath_a_place_are_found_whatever_their_names() {
        let mountinfo = b"1 0 8:1 / / rw - ext4 /dev/vda rw\n\
            2 1 0:5 / /a rw,relatime - tmpfs none rw\n\
            3 2 0:6 / /a/with\\040blank\\134 rw - tmpfs none rw\n\
            4 1 0:7 / /ab rw - tmpfs none rw\n\
            broken\n";
        let found = beneath(mountinfo, Path::new("/a"));
        assert_eq!(found, [PathBuf::from("/a"), PathBuf::from("/a/with blank\\")]);
        assert_eq!(of_kind(mountinfo, b"ext4"), [PathBuf::from("/")]);
        assert_eq!(unescaped(b"/x\\9\\04"), PathBuf::from("/x\\9\\04"));
    }
}
