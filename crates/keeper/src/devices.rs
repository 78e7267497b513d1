//! The sandbox's own `/dev`: the few devices that programs need, and terminals that are made inside.
//!
//! The host's `/dev` has disks, keyboards and people's terminals, and on many hosts the daemon's user can open them.
//! Owns: that mount. Never: the fallback when it fails.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::mount::UnmountFlags;

use crate::binds::fd_path;
use crate::mounts::mount;
use crate::read_only;
use crate::sys;

const DEVICES: &str = "/dev";
/// They carry no data that programs could share. A host may lack one.
const NODES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// What is mounted there has room of its own.
const PLACES: [&str; 2] = ["pts", "shm"];

/// Makes a `/dev` at `place`, all of it or nothing.
pub(crate) fn make(place: &Path) -> io::Result<()> {
    let sources = NODES.map(|name| {
        let source = sys::open_path(Path::new(DEVICES).join(name).as_os_str());
        source.map(|source| (place.join(name), source))
    });
    match std::fs::create_dir(place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let target = sys::c_string(place.as_os_str())?;
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
    mount(Some(c"tmpfs"), &target, Some(c"tmpfs"), flags, Some(c"mode=0755,size=64k,nr_inodes=64"))?;
    let filled = sources.into_iter().flatten().try_for_each(|(path, source)| bind(&path, &source));
    match filled.and_then(|()| fill_dev(place)).and_then(|()| read_only::remount(&target)) {
        Ok(()) => Ok(()),
        Err(error) => {
            rustix::mount::unmount(&target, UnmountFlags::DETACH)?;
            Err(error)
        }
    }
}

fn bind(path: &Path, source: &OwnedFd) -> io::Result<()> {
    std::fs::File::create_new(path)?;
    let place = sys::c_string(path.as_os_str())?;
    mount(Some(&fd_path(source)), &place, None, libc::MS_BIND, None)?;
    // A device can be written to all the same, but its times and attributes, which are the host's, cannot be changed.
    read_only::remount(&place)
}

fn fill_dev(place: &Path) -> io::Result<()> {
    for (name, to) in LINKS {
        std::os::unix::fs::symlink(to, place.join(name))?;
    }
    for name in PLACES {
        std::fs::create_dir(place.join(name))?;
    }
    // The host has a limited number of terminals: one sandbox must not use them all.
    let options = c"newinstance,ptmxmode=0666,mode=0620,max=256";
    let (flags, terminals) =
        (libc::MS_NOSUID | libc::MS_NOEXEC, sys::c_string(place.join("pts").as_os_str())?);
    mount(Some(c"devpts"), &terminals, Some(c"devpts"), flags, Some(options))
}
