//! Making a mount read-only, together with everything that is mounted beneath it.
//!
//! Owns: the two ways to do so. Never: what follows when neither works.

use std::ffi::{CStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::fence::mount;
use crate::sys;

/// As the kernel's `mount_attr`.
#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

const AT_RECURSIVE: libc::c_uint = 0x8000;
const MOUNT_ATTR_RDONLY: u64 = 1;

/// Makes the mount at `path` and all that are beneath it read-only, or says why not all of them are.
pub(crate) fn make_tree(path: &Path) -> io::Result<()> {
    match set_tree(&sys::c_string(path.as_os_str())?) {
        Ok(()) => Ok(()),
        // Before Linux 5.12 there is no such call, and some containers forbid those that they do not know.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => walk_tree(path),
        Err(error) => Err(error),
    }
}

/// Makes every mount that shows cgroups of the second version read-only.
pub(crate) fn cgroups() -> io::Result<()> {
    for mount in of_kind(&std::fs::read("/proc/self/mountinfo")?, b"cgroup2") {
        remount(&sys::c_string(mount.as_os_str())?)?;
    }
    Ok(())
}

/// Mount points of a kind of file system, from the text of a `mountinfo`.
fn of_kind(mountinfo: &[u8], kind: &[u8]) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let mounts = lines.filter(|line| {
        // Any number of fields stands before the dash, and the kind after it.
        let mut words = line.split(|byte| *byte == b' ').skip_while(|word| *word != b"-");
        words.nth(1) == Some(kind)
    });
    mounts.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped).collect()
}

/// All at once, by the kernel.
fn set_tree(path: &CStr) -> io::Result<()> {
    let attr = MountAttr { set: MOUNT_ATTR_RDONLY, clear: 0, propagation: 0, userns_fd: 0 };
    let (at, size) = (libc::AT_FDCWD, size_of::<MountAttr>());
    // SAFETY: the path is a C string, and `attr` is as long as is announced; both outlive the call.
    sys::check_long(unsafe {
        libc::syscall(libc::SYS_mount_setattr, at, path.as_ptr(), AT_RECURSIVE, &attr, size)
    })
    .map(drop)
}

/// One by one. What another mount covers cannot be reached, so it does not matter that it is missed.
fn walk_tree(path: &Path) -> io::Result<()> {
    let top = path.canonicalize()?;
    let mounts = beneath(&std::fs::read("/proc/self/mountinfo")?, &top);
    if !mounts.contains(&top) {
        return Err(io::Error::other("it is not among the mounts"));
    }
    for mount in mounts {
        let named = |cause| io::Error::other(format!("{}: {cause}", mount.display()));
        remount(&sys::c_string(mount.as_os_str())?).map_err(named)?;
    }
    Ok(())
}

/// Mount points at and beneath `top`, from the text of a `mountinfo`.
fn beneath(mountinfo: &[u8], top: &Path) -> Vec<PathBuf> {
    let lines = mountinfo.split(|byte| *byte == b'\n');
    let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescaped);
    points.filter(|point| point.starts_with(top)).collect()
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

/// Makes one mount read-only and leaves those beneath it as they are.
pub(crate) fn remount(path: &CStr) -> io::Result<()> {
    // SAFETY: `statvfs` is plain data, for which zeroes are a valid value; both outlive the call.
    let now = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        sys::check(libc::statvfs(path.as_ptr(), &mut stat))?;
        stat.f_flag
    };
    // A user namespace may not drop these flags from a mount that it did not make.
    let keep =
        now & (libc::ST_NOSUID | libc::ST_NODEV | libc::ST_NOEXEC | libc::ST_NOATIME | libc::ST_NODIRATIME);
    let relative = if now & libc::ST_RELATIME != 0 { libc::MS_RELATIME } else { 0 };
    let flags = libc::MS_REMOUNT | libc::MS_BIND | libc::MS_RDONLY | keep | relative;
    mount(None, path, None, flags, None)
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Runs `seen` in a child with a mount namespace of its own, and says whether it all held.
    fn in_mount_namespace(seen: impl FnOnce() -> io::Result<bool>) -> Option<bool> {
        // SAFETY: the child only makes system calls and ends without returning.
        unsafe {
            match libc::fork() {
                0 => {
                    if libc::unshare(libc::CLONE_NEWNS) != 0 {
                        libc::_exit(2);
                    }
                    let private = mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None);
                    libc::_exit(i32::from(!private.and_then(|()| seen()).unwrap_or(false)))
                }
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    assert!(libc::WIFEXITED(status));
                    match libc::WEXITSTATUS(status) {
                        2 => None,
                        code => Some(code == 0),
                    }
                }
            }
        }
    }

    #[test]
    fn both_ways_reach_a_mount_beneath() {
        for (name, make) in [("set", make_tree as fn(&Path) -> io::Result<()>), ("walk", walk_tree)] {
            let top = std::env::temp_dir().join(format!("keeper-ro-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&top).unwrap();
            let held = in_mount_namespace(|| {
                let (outer, inner) = (sys::c_string(top.as_os_str())?, top.join("in"));
                mount(Some(c"tmpfs"), &outer, Some(c"tmpfs"), 0, None)?;
                std::fs::create_dir(&inner)?;
                mount(Some(c"tmpfs"), &sys::c_string(inner.as_os_str())?, Some(c"tmpfs"), 0, None)?;
                std::fs::write(inner.join("before"), "")?;
                make(&top)?;
                let refused = |path: PathBuf| {
                    std::fs::write(path, "").is_err_and(|error| error.raw_os_error() == Some(libc::EROFS))
                };
                Ok(refused(top.join("x")) && refused(inner.join("x")))
            });
            std::fs::remove_dir(&top).unwrap();
            // Without the right to mount there is nothing to see here; the tests of `exec` cover that user.
            assert_ne!(held, Some(false), "{name}");
        }
    }
}
