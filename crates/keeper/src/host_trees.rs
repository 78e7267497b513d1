//! Directories and programs of the host in a sandbox's own root: read-only, at their own paths.
//!
//! A directory is shown by an overlay and not by a bind. A read-only bind leaves its sockets and FIFOs open, because
//! connecting to a socket does not write to the mount. Through an overlay nobody listens at either.
//!
//! Owns: those mounts, and the layer `host_programs`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use lodge_link::Bind;

use crate::binds::{self, NotBound, bind_one, fd_path, make_target, within};
use crate::layers::Layers;
use crate::mounts::{beneath, host_forbids, mount};
use crate::sys;

/// Shows each tree in `root`. `empty` is a directory that nothing can be put into: an overlay needs two.
///
/// A tree that cannot be shown is a missing layer: its programs are not found. One that can only be bound is
/// read-only, and its sockets stay reachable.
pub(crate) fn show(root: &Path, trees: &[PathBuf], empty: &OwnedFd, layers: &mut Layers) -> io::Result<()> {
    let mountinfo = if trees.is_empty() { Vec::new() } else { std::fs::read("/proc/self/mountinfo")? };
    let mut bound = None;
    for tree in trees {
        // A path of mounts on top of each other is listed as often.
        let mut points = beneath(&mountinfo, tree);
        points.push(tree.clone());
        points.sort();
        points.dedup();
        for point in points {
            match show_one(root, &point, empty) {
                Ok(Shown::Overlay | Shown::File) => {}
                Ok(Shown::Bound(why)) => bound = Some(format!("{}: {why}", point.display())),
                Err(NotBound::Writable(error)) => return Err(error),
                Err(NotBound::Absent(error)) if !binds::is_absent(&error) => return Err(error),
                Err(NotBound::Absent(error)) => {
                    layers.missing("bind", format!("{}: {error}", point.display()));
                }
            }
        }
    }
    match bound {
        None => layers.holds("host_programs"),
        Some(why) => {
            layers.missing("host_programs", format!("read-only, but sockets in it can be reached: {why}"));
        }
    }
    Ok(())
}

enum Shown {
    Overlay,
    /// One file, which is neither a socket nor a FIFO.
    File,
    /// By a bind, because this host does not allow the overlay.
    Bound(io::Error),
}

fn show_one(root: &Path, path: &Path, empty: &OwnedFd) -> Result<Shown, NotBound> {
    let source = sys::open_path(path.as_os_str())?;
    binds::check_itself(path, &source)?;
    let target = within(root, path);
    let read_only = Bind { source: path.to_owned(), target: target.clone(), read_only: true, checked: None };
    match sys::stat(source.as_raw_fd())?.st_mode & libc::S_IFMT {
        libc::S_IFDIR => {
            let place = make_target(root, &target, true)?;
            match overlay(&source, empty, &place) {
                Ok(()) => Ok(Shown::Overlay),
                Err(error) if cannot_overlay(&error) => {
                    bind_one(&read_only, &source, Some(root)).map(|()| Shown::Bound(error))
                }
                Err(error) => Err(error.into()),
            }
        }
        libc::S_IFREG => bind_one(&read_only, &source, Some(root)).map(|()| Shown::File),
        _other => Err(io::Error::other("it is neither a directory nor a file").into()),
    }
}

/// Whether this host, or the file system of that directory, never has an overlay. A file system is no matter of who asks.
fn cannot_overlay(error: &io::Error) -> bool {
    host_forbids(error)
        || matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV | libc::EOPNOTSUPP))
}

/// Shows one directory read-only, and beneath it another.
pub(crate) fn overlay(upper: &OwnedFd, lower: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    // By descriptors, because a colon or a comma in a path would mean something else here.
    let (upper, lower) = (upper.as_raw_fd(), lower.as_raw_fd());
    let options = CString::new(format!("lowerdir=/proc/self/fd/{upper}:/proc/self/fd/{lower}"))?;
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
    mount(Some(c"overlay"), &fd_path(target), Some(c"overlay"), flags, Some(&options))
}
