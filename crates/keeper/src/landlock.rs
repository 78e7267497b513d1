//! Landlock by its system calls: read and execute everywhere, write in few places, signal only the sandbox.
//!
//! Entered once by the keeper, so that all execs of a sandbox share one domain: they may signal each
//! other and nothing outside.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use crate::layers::Layers;
use crate::sys;

const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;
const FILE_RIGHTS: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
const SCOPE_SIGNAL: u64 = 1 << 1;

const CREATE_VERSION: u32 = 1;
const RULE_PATH_BENEATH: u32 = 1;

#[repr(C)]
struct RulesetAttr {
    handled_fs: u64,
    handled_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed: u64,
    parent: RawFd,
}

/// Enters the domain. `writable` are the places to write in; those that do not exist are left out.
pub(crate) fn enter(writable: &[&Path], keeper_dir: &OwnedFd, layers: &mut Layers) {
    let abi = match abi() {
        Ok(abi) => abi,
        Err(error) => {
            layers.missing("landlock", error.to_string());
            layers.missing("landlock_signals", "needs landlock");
            return;
        }
    };
    if layers.note("landlock", restrict(abi, writable, keeper_dir)) && abi >= 6 {
        layers.holds("landlock_signals");
    } else {
        layers.missing("landlock_signals", format!("needs landlock 6, this kernel has {abi}"));
    }
}

fn abi() -> io::Result<i64> {
    let none: *const RulesetAttr = std::ptr::null();
    // SAFETY: asking for the version takes a null pointer and no size.
    sys::check_long(unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, CREATE_VERSION) })
}

/// All rights on files that this version of the kernel can handle.
fn handled(abi: i64) -> u64 {
    let bits = match abi {
        ..=1 => 13,
        2 => 14,
        3..=4 => 15,
        5.. => 16,
    };
    (1 << bits) - 1
}

fn restrict(abi: i64, writable: &[&Path], keeper_dir: &OwnedFd) -> io::Result<()> {
    let handled = handled(abi);
    let scoped = if abi >= 6 { SCOPE_SIGNAL } else { 0 };
    let attr = RulesetAttr { handled_fs: handled, handled_net: 0, scoped };
    let size: usize = match abi {
        ..=3 => 8,
        4..=5 => 16,
        6.. => size_of::<RulesetAttr>(),
    };
    // SAFETY: `attr` outlives the call and is at least `size` bytes long; the result is a new descriptor.
    let ruleset = unsafe {
        let fd = sys::check_long(libc::syscall(libc::SYS_landlock_create_ruleset, &attr, size, 0u32))?;
        OwnedFd::from_raw_fd(fd as RawFd)
    };
    let top = sys::open_path(Path::new("/").as_os_str())?;
    allow(&ruleset, &top, EXECUTE | READ_FILE | READ_DIR)?;
    // The keeper writes here; its execs cannot reach the place, which lies behind a mask.
    allow(&ruleset, keeper_dir, handled)?;
    for path in writable {
        match sys::open_path(path.as_os_str()) {
            Ok(place) => allow(&ruleset, &place, handled)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    // SAFETY: no memory is passed.
    sys::check_long(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) })
        .map(drop)
}

fn allow(ruleset: &OwnedFd, place: &OwnedFd, rights: u64) -> io::Result<()> {
    let is_dir = sys::stat(place.as_raw_fd())?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let allowed = if is_dir { rights } else { rights & FILE_RIGHTS };
    let rule = PathBeneath { allowed, parent: place.as_raw_fd() };
    let (fd, kind) = (ruleset.as_raw_fd(), RULE_PATH_BENEATH);
    // SAFETY: `rule` has the layout that this kind of rule asks for and outlives the call.
    sys::check_long(unsafe { libc::syscall(libc::SYS_landlock_add_rule, fd, kind, &rule, 0u32) }).map(drop)
}
