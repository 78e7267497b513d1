//! Directories and programs of the host in a sandbox's own root: read-only, at their own paths.
//!
//! An overlay shows a directory, not a bind. A read-only bind leaves its sockets and FIFOs usable, because a connection
//! to a socket does not write to the mount. Through an overlay neither has a peer.
//!
//! Owns: those mounts, and the layer `host_programs`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use lodge_link::Bind;

use crate::binds::{self, BindFailure, bind_one, fd_path, make_target, unmount, within};
use crate::layers::Layers;
use crate::masked;
use crate::mounts::{beneath, host_forbids, mount};
use crate::read_only;
use crate::sys;

/// More entries of one directory than these are not shown one by one.
const PARTS_MAX: usize = 1024;

/// Whether overlays are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Overlays {
    Tried,
    /// A test does without: as on a kernel that has none.
    Absent,
}

/// Shows each tree in `root`. `empty` is a directory that nothing can be put into: an overlay needs two.
///
/// A tree that cannot be shown is a missing layer: its programs are not found. One that can only be bound is
/// read-only, and its sockets stay reachable.
pub(crate) fn show(
    root: &Path,
    trees: &[PathBuf],
    empty: &OwnedFd,
    overlays: Overlays,
    layers: &mut Layers,
) -> io::Result<()> {
    let mountinfo = if trees.is_empty() { Vec::new() } else { std::fs::read("/proc/self/mountinfo")? };
    // A path of mounts on top of each other is listed as often.
    let mut mounts: Vec<PathBuf> = trees.iter().flat_map(|tree| beneath(&mountinfo, tree)).collect();
    mounts.sort();
    mounts.dedup();
    let mut showing = HostTreeMounts { root, empty, mounts, overlays, bound: None, layers };
    for tree in trees {
        showing.show(tree)?;
    }
    match showing.bound {
        None => layers.holds("host_programs"),
        Some(why) => {
            layers.missing("host_programs", format!("read-only, but sockets in it can be reached: {why}"));
        }
    }
    Ok(())
}

/// What is shown, while it is.
struct HostTreeMounts<'s> {
    root: &'s Path,
    empty: &'s OwnedFd,
    /// The host's mounts in all trees, sorted.
    mounts: Vec<PathBuf>,
    overlays: Overlays,
    /// What could only be bound, and why.
    bound: Option<String>,
    layers: &'s mut Layers,
}

impl HostTreeMounts<'_> {
    /// Shows a directory with all that is mounted in it, or a file.
    fn show(&mut self, path: &Path) -> io::Result<()> {
        match self.try_show(path) {
            Ok(()) => Ok(()),
            Err(BindFailure::Absent(error)) if binds::is_absent(&error) => {
                self.layers.missing("bind", format!("{}: {error}", path.display()));
                Ok(())
            }
            Err(BindFailure::Absent(error) | BindFailure::Writable(error)) => Err(error),
        }
    }

    fn try_show(&mut self, path: &Path) -> Result<(), BindFailure> {
        let source = sys::open_path(path.as_os_str())?;
        binds::check_itself(path, &source)?;
        let target = within(self.root, path);
        let read_only = Bind::read_only(path.to_owned(), target.clone());
        match sys::stat(source.as_fd())?.st_mode & libc::S_IFMT {
            libc::S_IFDIR => {
                let place = make_target(self.root, &target, true)?;
                match overlay(&source, self.empty, &place, self.overlays) {
                    Ok(()) => Ok(self.show_mounts(path)?),
                    Err(error) if !cannot_overlay(&error) => Err(error.into()),
                    // Of a directory with mounts in it, an ordinary user may have an overlay of each part.
                    Err(error) => match self.nested(path).is_empty() || !self.show_parts(path, &target)? {
                        false => Ok(()),
                        true => {
                            bind_one(&read_only, &source, Some(self.root))?;
                            self.bound = Some(format!("{}: {error}", path.display()));
                            Ok(())
                        }
                    },
                }
            }
            libc::S_IFREG => bind_one(&read_only, &source, Some(self.root)),
            _other => Err(io::Error::other("it is neither a directory nor a file").into()),
        }
    }

    /// The highest mounts below a directory.
    fn nested(&self, path: &Path) -> Vec<PathBuf> {
        let mut nested: Vec<PathBuf> = Vec::new();
        // Sorted, a directory comes before everything beneath it.
        for mount in self.mounts.iter().filter(|mount| *mount != path && mount.starts_with(path)) {
            if !nested.iter().any(|above| mount.starts_with(above)) {
                nested.push(mount.clone());
            }
        }
        nested
    }

    /// Shows what is mounted in a directory that is shown: an overlay does not have it.
    fn show_mounts(&mut self, path: &Path) -> io::Result<()> {
        self.nested(path).iter().try_for_each(|mount| self.show(mount))
    }

    /// Shows every directory, file and link of a directory by itself, and nothing else of it. Says whether it did.
    fn show_parts(&mut self, path: &Path, target: &Path) -> io::Result<bool> {
        let mut parts = Vec::new();
        for entry in std::fs::read_dir(path)?.take(PARTS_MAX + 1) {
            let entry = entry?;
            parts.push((entry.path(), entry.file_type()?));
        }
        if parts.len() > PARTS_MAX {
            return Ok(false);
        }
        masked::hide(target)?;
        let shown = parts.into_iter().try_for_each(|(part, kind)| {
            if kind.is_symlink() {
                std::os::unix::fs::symlink(std::fs::read_link(&part)?, within(self.root, &part))
            } else if kind.is_dir() || kind.is_file() {
                self.show(&part)
            } else {
                Ok(())
            }
        });
        let shown = shown.and_then(|()| read_only::remount(&sys::c_string(target.as_os_str())?));
        shown.inspect_err(|_| unmount(target)).map(|()| true)
    }
}

/// Whether this host, or the file system of that directory, never supports overlays. This does not depend on the
/// caller.
pub(crate) fn cannot_overlay(error: &io::Error) -> bool {
    host_forbids(error)
        || matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENODEV | libc::EOPNOTSUPP))
}

/// Shows one directory read-only, and beneath it another.
pub(crate) fn overlay(
    upper: &OwnedFd,
    lower: &OwnedFd,
    target: &OwnedFd,
    overlays: Overlays,
) -> io::Result<()> {
    if overlays == Overlays::Absent {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    // By descriptors, because a colon or a comma in a path would mean something else here.
    let (upper, lower) = (upper.as_raw_fd(), lower.as_raw_fd());
    let options = CString::new(format!("lowerdir=/proc/self/fd/{upper}:/proc/self/fd/{lower}"))?;
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
    mount(Some(c"overlay"), &fd_path(target), Some(c"overlay"), flags, Some(&options))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use crate::mounts::enter_own;

    /// The view of a tree that contains a mount, for a process that has that mount locked.
    fn seen_with_a_locked_mount(base: &Path) -> io::Result<String> {
        let tree = base.join("tree");
        enter_own()?;
        let inner = sys::c_string(tree.join("local/mounted").as_os_str())?;
        mount(Some(c"tmpfs"), &inner, Some(c"tmpfs"), 0, None)?;
        std::fs::write(tree.join("local/mounted/word"), "mounted")?;
        enter_own()?;
        let (root, empty) = (base.join("root"), sys::open_path(base.join("empty").as_os_str())?);
        let mut layers = Layers::default();
        show(&root, std::slice::from_ref(&tree), &empty, Overlays::Tried, &mut layers)?;
        let shown = within(&root, &tree);
        let read =
            |path: &str| std::fs::read_to_string(shown.join(path)).unwrap_or_else(|error| error.to_string());
        let mut seen =
            [read("bin/word"), read("alone"), read("link"), read("local/word"), read("local/mounted/word")]
                .join(" ");
        for socket in ["socket", "bin/socket", "local/socket"] {
            if UnixStream::connect(tree.join(socket)).is_err() {
                seen.push_str(" NOT OPEN OUTSIDE");
            }
            if UnixStream::connect(shown.join(socket)).is_ok() {
                seen.push_str(&format!(" REACHED {socket}"));
            }
        }
        for file in ["bin/new", "new", "local/new", "local/mounted/new"] {
            if std::fs::write(shown.join(file), "").is_ok() {
                seen.push_str(&format!(" WROTE {file}"));
            }
        }
        if !layers.has("host_programs") {
            seen.push_str(&format!(" {layers:?}"));
        }
        Ok(seen)
    }

    #[test]
    fn of_a_tree_with_a_locked_mount_every_part_is_shown_and_no_socket_is_open() {
        let base = std::env::temp_dir().join(format!("keeper-trees-{}", std::process::id()));
        for dir in ["tree/bin", "tree/local/mounted", "root", "empty"] {
            std::fs::create_dir_all(base.join(dir)).unwrap();
        }
        let base = base.canonicalize().unwrap();
        for file in ["bin/word", "alone", "local/word"] {
            std::fs::write(base.join("tree").join(file), file).unwrap();
        }
        std::os::unix::fs::symlink("bin/word", base.join("tree/link")).unwrap();
        let listen = |socket: &str| UnixListener::bind(base.join("tree").join(socket)).unwrap();
        let listeners = ["socket", "bin/socket", "local/socket"].map(listen);
        let (ours, theirs) = sys::pipe().unwrap();
        // SAFETY: this child has one thread, and ends without returning.
        let status = unsafe {
            match libc::fork() {
                0 => {
                    let seen =
                        seen_with_a_locked_mount(&base).unwrap_or_else(|error| format!("failed: {error}"));
                    let written = sys::write(theirs.as_fd(), seen.as_bytes());
                    libc::_exit(i32::from(written.is_err()))
                }
                child => {
                    let mut status = 0;
                    assert_eq!(libc::waitpid(child, &mut status, 0), child);
                    status
                }
            }
        };
        drop((theirs, listeners));
        let mut seen = String::new();
        io::Read::read_to_string(&mut std::fs::File::from(ours), &mut seen).unwrap();
        std::fs::remove_dir_all(&base).unwrap();
        assert_eq!(status, 0);
        // Where this user may have no such namespaces there is no such root, either.
        if sys::passes_in_child(|| [enter_own(), enter_own()].into_iter().for_each(Result::unwrap)) {
            assert_eq!(seen, "bin/word alone bin/word local/word mounted");
        } else {
            assert!(seen.starts_with("failed: "), "{seen}");
        }
    }
}
