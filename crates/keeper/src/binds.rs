//! Paths of the host that are bound into the sandbox.
//!
//! Owns: opening their sources before anything is hidden, and binding them without following a link that the sandbox
//! made. A read-only bind that cannot be made read-only aborts the start.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lodge_link::{Bind, BindOwner, FileIdentity};
use rustix::mount::UnmountFlags;

use crate::layers::Layers;
use crate::mounts::{attach, host_forbids, mount};
use crate::owner_map::{MountAccess, OwnerMaps};
use crate::read_only;
use crate::sys;

/// A bind whose source was opened before anything was hidden.
pub(crate) struct OpenBind {
    pub(crate) bind: Bind,
    pub(crate) source: OwnedFd,
    /// A mount of the source with its owner mapped, attached nowhere yet.
    mapped: Option<OwnedFd>,
}

impl OpenBind {
    pub(crate) fn new(bind: Bind, source: OwnedFd) -> OpenBind {
        OpenBind { bind, source, mapped: None }
    }

    /// As [`bind_one`], to the target of `inside`, and with the owner mapped where that is prepared.
    pub(crate) fn bind_to(&self, inside: &Bind, base: Option<&Path>) -> Result<(), BindFailure> {
        match &self.mapped {
            Some(tree) => Ok(attach(tree, &open_target(inside, &self.source, base)?)?),
            None => bind_one(inside, &self.source, base),
        }
    }
}

/// Why a bind failed.
pub(crate) enum BindFailure {
    /// It is not there.
    Absent(io::Error),
    /// It was there, but not read-only.
    Writable(io::Error),
}

impl From<io::Error> for BindFailure {
    fn from(error: io::Error) -> BindFailure {
        BindFailure::Absent(error)
    }
}

/// Whether this is how a path fails that is not there, or not for us. Any other failure ends the start: what it would
/// leave out may be what keeps a part of the root from being changed.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    host_forbids(error)
        || matches!(
            errno,
            None | Some(libc::ENOENT | libc::ENOTDIR | libc::EACCES | libc::ELOOP | libc::ENAMETOOLONG)
        )
}

/// Opens the sources of binds in the new mount namespace. One that is not there is a missing layer.
pub(crate) fn open(binds: impl Iterator<Item = Bind>, layers: &mut Layers) -> io::Result<Vec<OpenBind>> {
    let mut opened = Vec::new();
    for bind in binds {
        match sys::open_path(bind.source.as_os_str()) {
            Ok(source) => {
                check_itself(&bind.source, &source)?;
                check_identity(&bind, &source)?;
                check_owner(&bind, &source)?;
                opened.push(OpenBind::new(bind, source));
            }
            Err(error) if is_absent(&error) => {
                layers.missing("bind", format!("{}: {error}", bind.source.display()));
            }
            Err(error) => return Err(not_bound(&bind, &error)),
        }
    }
    Ok(opened)
}

/// Prepares the mounts of those whose owner appears as the sandbox's user `uid`. One that cannot be prepared ends the
/// start: as a plain bind it would show a directory that the sandbox cannot use.
pub(crate) fn map_owners(opened: &mut [OpenBind], uid: u32, layers: &mut Layers) -> io::Result<()> {
    let mut maps = OwnerMaps::new(uid);
    for open in opened.iter_mut() {
        let Some(owner) = open.bind.owner else { continue };
        let access = if open.bind.read_only { MountAccess::ReadOnly } else { MountAccess::Writable };
        let tree = maps.clone_mapped(open.source.as_fd(), owner, access);
        open.mapped = Some(tree.map_err(|error| not_mapped(&open.bind, &error))?);
    }
    if opened.iter().any(|open| open.mapped.is_some()) {
        layers.holds("mount_owner");
    }
    Ok(())
}

/// Binds the opened sources into a root that is being built. Each target is inside it, regardless of its path.
pub(crate) fn bind_into(root: &Path, opened: &[OpenBind], layers: &mut Layers) -> io::Result<()> {
    for open in opened {
        let bind = &open.bind;
        let target =
            if bind.target.starts_with(root) { bind.target.clone() } else { within(root, &bind.target) };
        let inside = Bind { target, ..bind.clone() };
        match open.bind_to(&inside, Some(root)) {
            Ok(()) => {}
            Err(BindFailure::Writable(error)) => return Err(not_read_only(bind, &error)),
            Err(BindFailure::Absent(error)) if !is_absent(&error) => return Err(not_bound(bind, &error)),
            Err(BindFailure::Absent(error)) => {
                layers.missing("bind", format!("{}: {error}", bind.target.display()));
            }
        }
    }
    Ok(())
}

/// Where a path of the sandbox lies on the host while its root is being built.
pub(crate) fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Refuses a source that leads elsewhere. Its path was the real one when it was checked; since then a link may have
/// been put above it.
pub(crate) fn check_itself(path: &Path, source: &OwnedFd) -> io::Result<()> {
    let real = std::fs::read_link(OsStr::from_bytes(fd_path(source).to_bytes()))?;
    if real == path {
        return Ok(());
    }
    // The path last: it may be longer than the reported failure.
    Err(io::Error::other(format!("a link leads elsewhere now, so nothing is bound from {}", path.display())))
}

/// Refuses a file that is not the one that was checked, or was changed since. What is bound is this descriptor: the name
/// is not looked up again.
fn check_identity(bind: &Bind, source: &OwnedFd) -> io::Result<()> {
    let Some(checked) = bind.checked else { return Ok(()) };
    let found = sys::stat(source.as_fd())?;
    let changed_at = (found.st_ctime, found.st_ctime_nsec.cast_signed());
    let (dev, ino, size) = (found.st_dev, found.st_ino, found.st_size.cast_unsigned());
    if checked == (FileIdentity { dev, ino, size, changed_at }) {
        return Ok(());
    }
    let path = bind.source.display();
    Err(io::Error::other(format!(
        "a program was replaced after it was checked; start the agent again: {path}"
    )))
}

/// Refuses a path that belongs to others than when it was mounted: their rights were not what was asked for.
fn check_owner(bind: &Bind, source: &OwnedFd) -> io::Result<()> {
    let Some(owner) = bind.owner else { return Ok(()) };
    let found = sys::stat(source.as_fd())?;
    let now = BindOwner { uid: found.st_uid, gid: owner.gid.map(|_| found.st_gid) };
    if now == owner {
        return Ok(());
    }
    let words = |owner: BindOwner| match owner.gid {
        Some(gid) => format!("{}:{gid}", owner.uid),
        None => owner.uid.to_string(),
    };
    Err(io::Error::other(format!(
        "the owner of a mounted path was {} and is {} now; mount it again with `lodge agent update -v`: {}",
        words(owner),
        words(now),
        bind.source.display(),
    )))
}

fn not_mapped(bind: &Bind, error: &io::Error) -> io::Error {
    let why = match error.raw_os_error() {
        Some(libc::EINVAL | libc::EPERM | libc::ENOSYS) => {
            "its file system, or one that is mounted in it, cannot map owners"
        }
        Some(_) | None => "the mount of it failed",
    };
    let path = bind.source.display();
    io::Error::other(format!("the agent cannot get the rights of the owner, because {why} ({error}): {path}"))
}

pub(crate) fn not_read_only(bind: &Bind, error: &io::Error) -> io::Error {
    // The path last: it may be longer than the reported failure.
    io::Error::other(format!("a bind cannot be made read-only ({error}): {}", bind.target.display()))
}

pub(crate) fn not_bound(bind: &Bind, error: &io::Error) -> io::Error {
    io::Error::other(format!("a bind cannot be made ({error}): {}", bind.target.display()))
}

/// Opens the mount point of a bind.
fn open_target(bind: &Bind, source: &OwnedFd, base: Option<&Path>) -> io::Result<OwnedFd> {
    let is_dir = sys::stat(source.as_fd())?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    match base {
        Some(base) => make_target(base, &bind.target, is_dir),
        // On the host's own ground nothing is created.
        None => sys::open_path(bind.target.as_os_str()),
    }
}

pub(crate) fn bind_one(bind: &Bind, source: &OwnedFd, base: Option<&Path>) -> Result<(), BindFailure> {
    let target = open_target(bind, source, base)?;
    let from = fd_path(source);
    mount(Some(&from), &fd_path(&target), None, libc::MS_BIND | libc::MS_REC, None)?;
    if bind.read_only {
        // By its path, because the descriptor refers to what the mount now covers.
        if let Err(error) = read_only::make_tree(&bind.target) {
            unmount(&bind.target);
            return Err(BindFailure::Writable(error));
        }
    }
    Ok(())
}

/// Takes a mount away with all that is mounted beneath it. What stays of it goes with the namespace.
pub(crate) fn unmount(target: &Path) {
    let unmounted = sys::c_string(target.as_os_str())
        .and_then(|path| Ok(rustix::mount::unmount(&path, UnmountFlags::DETACH)?));
    if unmounted.is_err() {}
}

/// Makes the way from `base` to `target`, without following a link on it.
pub(crate) fn make_target(base: &Path, target: &Path, is_dir: bool) -> io::Result<OwnedFd> {
    let mut at = sys::open_path(base.as_os_str())?;
    let way = target.strip_prefix(base).map_err(io::Error::other)?;
    let mut parts = way.iter().peekable();
    while let Some(part) = parts.next() {
        let name = sys::c_string(part)?;
        if is_dir || parts.peek().is_some() {
            ignore_existing(sys::mkdir_at(at.as_fd(), &name, 0o755))?;
            at = sys::open_at(at.as_fd(), &name, libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY, 0)?;
        } else {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
            ignore_existing(sys::open_at(at.as_fd(), &name, flags, 0o644).map(drop))?;
            at = sys::open_at(at.as_fd(), &name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
        }
    }
    Ok(at)
}

fn ignore_existing(made: io::Result<()>) -> io::Result<()> {
    match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

pub(crate) fn fd_path(fd: &OwnedFd) -> std::ffi::CString {
    std::ffi::CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default()
}
