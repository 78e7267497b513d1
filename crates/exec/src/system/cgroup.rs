//! Cgroups of sandboxes, from the host's side: created before a keeper starts, emptied when it is dead.
//!
//! Owns: their paths and names, `lodge-<state directory>-<sandbox>.<launch>` below the cgroup of this process. A lock
//! on the directory, which the keeper inherits, marks it as in use. A cgroup without a lock and without processes may
//! be removed by any daemon. The cgroups of version 1 that enforce its limits are in `controllers`; where this tree
//! has controllers, it enforces the limits itself.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use lodge_link::is_valid_id;
use rustix::fs::{FlockOperation, Mode, OFlags};
use sha2::{Digest, Sha256};

use super::controllers::{self, ControllerDirs, LockedControllers};

const FAMILY: &str = "lodge-";
const CGROUP2_MAGIC: u64 = 0x6367_7270;
/// Bytes of the digest of a state directory's path that go into names.
const DIGEST_BYTES: usize = 6;
/// Most names that are tried for one cgroup.
const NAMES_MAX: usize = 16;
/// Most neighbours that are looked at for being left over.
const NEIGHBOURS_MAX: usize = 65_536;

/// Where this host's sandboxes get their cgroups.
#[derive(Debug)]
pub(crate) struct Cgroups {
    place: Result<PathBuf, String>,
    legacy: ControllerDirs,
    prefix: String,
    swept: Once,
}

/// A new cgroup, locked. It is removed again when this is dropped, unless a keeper has it by then.
#[derive(Debug)]
pub(crate) struct NewCgroup {
    dir: Option<OwnedFd>,
    pub(crate) name: String,
    path: PathBuf,
}

/// How far the end of a cgroup is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CgroupRemoval {
    Gone,
    /// What is in it was killed and is not gone yet.
    Dying,
    /// A living keeper holds it.
    InUse,
}

impl Cgroups {
    pub(crate) fn of(state_dir: &Path) -> Cgroups {
        let digest = Sha256::digest(state_dir.as_os_str().as_encoded_bytes());
        let hex: String = digest.iter().take(DIGEST_BYTES).map(|byte| format!("{byte:02x}")).collect();
        let prefix = format!("{FAMILY}{hex}-");
        Cgroups { place: place(), legacy: ControllerDirs::find(), prefix, swept: Once::new() }
    }

    /// Makes those of the first version for one launch of a sandbox's keeper, as far as there can be any.
    pub(crate) fn make_legacy(&self, sandbox: &str) -> LockedControllers {
        self.legacy.make(&self.next_name(sandbox))
    }

    fn next_name(&self, sandbox: &str) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let launch = NEXT.fetch_add(1, Ordering::Relaxed);
        format!("{}{sandbox}.{}-{launch}", self.prefix, std::process::id())
    }

    /// Makes a cgroup for one launch of a sandbox's keeper, or says why there can be none.
    pub(crate) fn make(&self, sandbox: &str) -> Result<NewCgroup, String> {
        self.swept.call_once(|| {
            self.place.iter().for_each(|place| sweep(place));
            self.legacy.sweep();
        });
        let place = self.place.as_ref().map_err(String::clone)?;
        for _ in 0..NAMES_MAX {
            let name = self.next_name(sandbox);
            let path = place.join(&name);
            match make_locked(&path) {
                Ok(Some(dir)) => return usable(NewCgroup { dir: Some(dir), name, path }),
                Ok(None) => {}
                Err(error) => return Err(format!("{}: {error}", place.display())),
            }
        }
        Err("no name is free".to_owned())
    }

    /// Whether this path, which a keeper wrote down, can be that of one of its sandbox's cgroups.
    pub(crate) fn is_of(&self, path: &Path, sandbox: &str) -> io::Result<bool> {
        let is_named = path.file_name().is_some_and(|name| self.names(name, sandbox));
        match path.parent() {
            Some(parent) if path.is_absolute() && is_named => is_cgroup2(parent),
            Some(_) | None => Ok(false),
        }
    }

    /// As [`Cgroups::is_of`], for those of the first version.
    pub(crate) fn is_legacy_of(&self, path: &Path, sandbox: &str) -> io::Result<bool> {
        let is_named = path.file_name().is_some_and(|name| self.names(name, sandbox));
        match path.parent() {
            Some(parent) if path.is_absolute() && is_named => controllers::is_cgroup1(parent),
            Some(_) | None => Ok(false),
        }
    }

    /// As [`Cgroups::named`], for those of the first version.
    pub(crate) fn legacy_named(&self, sandbox: &str) -> io::Result<Vec<PathBuf>> {
        self.legacy.named(|path| path.file_name().is_some_and(|name| self.names(name, sandbox)))
    }

    /// Cgroups with a sandbox's name, in use or not.
    pub(crate) fn named(&self, sandbox: &str) -> io::Result<Vec<PathBuf>> {
        let Ok(place) = &self.place else { return Ok(Vec::new()) };
        let mut named = Vec::new();
        for entry in family(place)? {
            let entry = entry?;
            if self.names(&entry.file_name(), sandbox) {
                named.push(entry.path());
            }
        }
        Ok(named)
    }

    fn names(&self, name: &OsStr, sandbox: &str) -> bool {
        let launch = name
            .to_str()
            .and_then(|name| name.strip_prefix(&self.prefix)?.strip_prefix(sandbox)?.strip_prefix('.'));
        launch.is_some_and(is_valid_id)
    }
}

impl NewCgroup {
    /// The directory with its lock, to be given to a keeper.
    pub(crate) fn take_dir(&mut self) -> Option<OwnedFd> {
        self.dir.take()
    }
}

impl Drop for NewCgroup {
    fn drop(&mut self) {
        drop(self.dir.take());
        // One that a keeper holds stays. What cannot be removed now goes with the next launch or the sandbox.
        if end(&self.path).is_err() {}
    }
}

/// Kills what a dead keeper left in its cgroup, and removes that once it is empty.
pub(crate) fn end(path: &Path) -> io::Result<CgroupRemoval> {
    let Some(_dir) = open_locked(path)? else {
        return Ok(if path.try_exists()? { CgroupRemoval::InUse } else { CgroupRemoval::Gone });
    };
    if is_populated(path)? {
        let killed = fs::write(path.join("cgroup.kill"), "1");
        return killed
            .or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })
            .map(|()| CgroupRemoval::Dying);
    }
    match remove(path) {
        Ok(()) => Ok(CgroupRemoval::Gone),
        Err(error) if is_gone(&error) => Ok(CgroupRemoval::Gone),
        // Something was born in it, or is still on its way out.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(CgroupRemoval::Dying),
        Err(error) => Err(error),
    }
}

/// Whether a cgroup was removed, be it before or after its file was opened.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

/// The cgroup of this process, if others may be made in it.
fn place() -> Result<PathBuf, String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
    let place = own_place(&read("/proc/self/mountinfo")?, &read("/proc/self/cgroup")?);
    let place = place.ok_or("version 2 is not mounted")?;
    // Where systemd rules the tree, a part of it may be used only if it was given away.
    let is_ruled = Path::new("/run/systemd/system").is_dir();
    if rustix::process::geteuid().is_root() && is_ruled && !place.ancestors().any(is_delegated) {
        return Err("the daemon's own one is not delegated to it".to_owned());
    }
    Ok(parent_cgroup(&place).unwrap_or(place))
}

/// The cgroup that can delegate controllers. That cannot be one with processes, so it is the parent, if this process
/// was placed into a subgroup for this purpose (`DelegateSubgroup=`). Available controllers are requested.
fn parent_cgroup(place: &Path) -> Option<PathBuf> {
    let above = place.parent()?;
    let user = rustix::process::geteuid();
    let is_ours = if user.is_root() {
        above.ancestors().any(is_delegated)
    } else {
        above.metadata().is_ok_and(|meta| meta.uid() == user.as_raw())
    };
    if !is_ours {
        return None;
    }
    let read = |name: &str| fs::read_to_string(above.join(name)).ok();
    let has_controllers = read("cgroup.controllers")?.split_whitespace().any(|name| name == "memory");
    if !has_controllers || !read("cgroup.procs")?.is_empty() {
        return None;
    }
    for controller in ["+memory", "+pids"] {
        // One that cannot be given is done without, as the keeper finds.
        if fs::write(above.join("cgroup.subtree_control"), controller).is_err() {}
    }
    // Another place is only better if sandboxes are really limited there.
    read("cgroup.subtree_control")?.split_whitespace().any(|name| name == "memory").then(|| above.to_owned())
}

fn own_place(mountinfo: &str, own: &str) -> Option<PathBuf> {
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut mounts = mountinfo.lines().filter_map(|line| {
        let mut after = line.split(' ').skip_while(|word| *word != "-");
        let mut words = line.split(' ').skip(3);
        (after.nth(1) == Some("cgroup2")).then(|| Some((words.next()?, words.next()?)))?
    });
    // A mount may show a part of the tree; what is not beneath it cannot be reached through it.
    mounts.find_map(|(root, point)| {
        let beneath = Path::new(own).strip_prefix(root).ok()?;
        (!point.contains('\\')).then(|| Path::new(point).join(beneath))
    })
}

pub(crate) fn is_delegated(path: &Path) -> bool {
    ["trusted.delegate", "user.delegate"].iter().any(|name| {
        let mut value = [0; 8];
        rustix::fs::getxattr(path, *name, &mut value).is_ok_and(|len| value[..len] == *b"1")
    })
}

fn is_cgroup2(path: &Path) -> io::Result<bool> {
    match rustix::fs::statfs(path) {
        Ok(stat) => Ok(u64::try_from(stat.f_type).is_ok_and(|kind| kind == CGROUP2_MAGIC)),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// None: another process created or removed this name first.
pub(crate) fn make_locked(path: &Path) -> io::Result<Option<OwnedFd>> {
    match fs::create_dir(path) {
        // Programs of the sandbox read their limits there, so the umask must not apply.
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        Err(error) => return Err(error),
    }
    open_locked(path)
}

/// None: the cgroup is gone, or another process has the lock.
pub(crate) fn open_locked(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(dir) => dir,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    }
    let opened = File::from(dir);
    let is_same = |other: fs::Metadata| opened.metadata().is_ok_and(|own| own.ino() == other.ino());
    Ok(path.symlink_metadata().is_ok_and(is_same).then(|| opened.into()))
}

/// Whether programs can be put into it and killed in it.
fn usable(made: NewCgroup) -> Result<NewCgroup, String> {
    let kind = fs::read_to_string(made.path.join("cgroup.type")).unwrap_or_default();
    let why = if !made.path.join("cgroup.kill").exists() {
        "this kernel cannot kill by it"
    } else if kind.trim() != "domain" {
        "the daemon's own one is threaded"
    } else {
        return Ok(made);
    };
    Err(why.to_owned())
}

pub(crate) fn is_populated(path: &Path) -> io::Result<bool> {
    match fs::read_to_string(path.join("cgroup.events")) {
        Ok(events) => Ok(events.lines().any(|line| line == "populated 1")),
        Err(error) if is_gone(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Removes a cgroup and those of the execs in it.
fn remove(path: &Path) -> io::Result<()> {
    let inner =
        fs::read_dir(path)?.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    for exec in inner {
        fs::remove_dir(exec.path()).or_else(|error| if is_gone(&error) { Ok(()) } else { Err(error) })?;
    }
    fs::remove_dir(path)
}

/// Removes cgroups that killed keepers left, of all state directories.
fn sweep(place: &Path) {
    // What cannot be listed cannot be swept either, and is tried again by the next host.
    let Ok(entries) = family(place) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        // One that is populated belongs to another state directory, whose daemon ends it.
        if let Ok(Some(_dir)) = open_locked(&path)
            && is_populated(&path).is_ok_and(|populated| !populated)
            && remove(&path).is_err()
        {}
    }
}

/// All cgroups of sandboxes, of all state directories.
pub(crate) fn family(place: &Path) -> io::Result<impl Iterator<Item = io::Result<fs::DirEntry>>> {
    let is_ours = |entry: &io::Result<fs::DirEntry>| match entry {
        Ok(entry) => entry.file_name().to_str().is_some_and(|name| name.starts_with(FAMILY)),
        Err(_) => true,
    };
    Ok(fs::read_dir(place)?.filter(is_ours).take(NEIGHBOURS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_cgroup_is_found_through_the_mount_that_shows_it() {
        let hybrid = "30 24 0:26 / /sys/fs/cgroup/systemd rw shared:1 - cgroup cgroup rw,name=systemd\n\
            31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let own = "1:name=systemd:/x\n0::/lodge.service\n";
        assert_eq!(own_place(hybrid, own), Some("/sys/fs/cgroup/unified/lodge.service".into()));
        let partial = "31 24 0:27 /docker/1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(own_place(partial, "0::/docker/1/a\n"), Some("/sys/fs/cgroup/a".into()));
        assert_eq!(own_place(partial, "0::/docker/12\n"), None);
        assert_eq!(own_place("", own), None);
    }

    #[test]
    fn only_the_name_of_a_sandboxs_own_cgroup_is_believed() {
        let cgroups = Cgroups {
            place: Err(String::new()),
            legacy: ControllerDirs::default(),
            prefix: "lodge-ab-".to_owned(),
            swept: Once::new(),
        };
        for path in ["/tmp/lodge-ab-box.1-2", "lodge-ab-box.1-2", "/sys/fs/cgroup/unified", "/", ""] {
            assert!(!cgroups.is_of(Path::new(path), "box").unwrap(), "{path}");
            assert!(!cgroups.is_legacy_of(Path::new(path), "box").unwrap(), "{path}");
        }
    }
}
