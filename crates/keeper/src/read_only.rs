//! Making a mount read-only, together with everything that is mounted beneath it, and other attributes of mounts.
//!
//! Owns: the two ways to do so. Never: what follows when neither works.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use crate::mounts::{beneath, mount, of_kind};
use crate::owner_map::MountAccess;
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
const MOUNT_ATTR_NOSUID: u64 = 1 << 1;
const MOUNT_ATTR_NODEV: u64 = 1 << 2;
const MOUNT_ATTR_IDMAP: u64 = 1 << 20;

/// Makes the mount at `path` and all that are beneath it read-only, or says why not all of them are.
pub(crate) fn make_tree(path: &Path) -> io::Result<()> {
    match set(&sys::c_string(path.as_os_str())?, MOUNT_ATTR_RDONLY, AT_RECURSIVE) {
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

/// Lets the mount at `path` alone give no device and no other user. It stays as it is on kernels without that call.
pub(crate) fn without_devices(path: &Path) -> io::Result<()> {
    set(&sys::c_string(path.as_os_str())?, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, 0)
}

/// Maps the ids of a mount that is attached nowhere, and of all that are beneath it, as the user namespace says.
/// They give no device and no other user.
pub(crate) fn map_tree(
    tree: BorrowedFd<'_>,
    namespace: BorrowedFd<'_>,
    access: MountAccess,
) -> io::Result<()> {
    let read_only = match access {
        MountAccess::ReadOnly => MOUNT_ATTR_RDONLY,
        MountAccess::Writable => 0,
    };
    let set = MOUNT_ATTR_IDMAP | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | read_only;
    let userns_fd = namespace.as_raw_fd().cast_unsigned().into();
    let attr = MountAttr { set, clear: 0, propagation: 0, userns_fd };
    set_attributes(tree.as_raw_fd(), c"", &attr, libc::AT_EMPTY_PATH.cast_unsigned() | AT_RECURSIVE)
}

/// All at once, by the kernel.
fn set(path: &CStr, attributes: u64, flags: libc::c_uint) -> io::Result<()> {
    let attr = MountAttr { set: attributes, clear: 0, propagation: 0, userns_fd: 0 };
    set_attributes(libc::AT_FDCWD, path, &attr, flags)
}

fn set_attributes(at: RawFd, path: &CStr, attr: &MountAttr, flags: libc::c_uint) -> io::Result<()> {
    let size = size_of::<MountAttr>();
    // SAFETY: the path is a C string, and `attr` is as long as is announced; both outlive the call.
    sys::check_long(unsafe { libc::syscall(libc::SYS_mount_setattr, at, path.as_ptr(), flags, attr, size) })
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
    use std::path::PathBuf;

    use super::*;

    /// Runs `seen` in a child with its own mount namespace, and returns whether all assertions passed.
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
