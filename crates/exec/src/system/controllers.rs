//! Cgroups of version 1: one for each controller of this host, to enforce a sandbox's limits.
//!
//! Owns: their paths. They have the name of the sandbox's other cgroup and are removed like it: a process that gets
//! the lock of an empty one may remove it. The keeper is in them, so none is removed while it is alive.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use lodge_link::Controllers;

use super::cgroup::{CgroupRemoval, family, is_delegated, is_gone, make_locked, open_locked};

const CGROUP1_MAGIC: u64 = 0x0027_E0EB;

/// The controllers that limits need, and where this process is in their hierarchies.
#[derive(Debug, Default)]
pub(crate) struct ControllerDirs {
    memory: Option<PathBuf>,
    pids: Option<PathBuf>,
}

/// New cgroups, locked.
#[derive(Debug, Default)]
pub(crate) struct LockedControllers {
    pub(crate) controllers: Controllers,
    locks: Vec<OwnedFd>,
}

impl ControllerDirs {
    /// Where others may be made. Those of the first version are root's.
    pub(crate) fn find() -> ControllerDirs {
        let is_ruled = Path::new("/run/systemd/system").is_dir();
        if !rustix::process::geteuid().is_root() {
            return ControllerDirs::default();
        }
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (mountinfo, own) = (read("/proc/self/mountinfo"), read("/proc/self/cgroup"));
        // Where systemd rules the tree, a part of it may be used only if it was given away.
        let usable = |place: &PathBuf| !is_ruled || place.ancestors().any(is_delegated);
        let find = |controller| own_place(&mountinfo, &own, controller).filter(usable);
        ControllerDirs { memory: find("memory"), pids: find("pids") }
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.memory.iter().chain(&self.pids)
    }

    /// Makes one for each controller. A controller without one is done without.
    pub(crate) fn make(&self, name: &str) -> LockedControllers {
        let mut held = LockedControllers::default();
        let mut make = |place: &Option<PathBuf>| {
            let path = place.as_ref()?.join(name);
            let lock = make_locked(&path).ok().flatten()?;
            held.locks.push(lock);
            Some(path)
        };
        let (memory, pids) = (make(&self.memory), make(&self.pids));
        held.controllers = Controllers { memory, pids };
        held
    }

    /// Directories with matching names, in use or not.
    pub(crate) fn named(&self, is_named: impl Fn(&Path) -> bool) -> io::Result<Vec<PathBuf>> {
        let mut named = Vec::new();
        for place in self.all() {
            for entry in family(place)? {
                let path = entry?.path();
                if is_named(&path) {
                    named.push(path);
                }
            }
        }
        Ok(named)
    }

    /// Removes the leftovers of killed keepers.
    pub(crate) fn sweep(&self) {
        for place in self.all() {
            let Ok(entries) = family(place) else { continue };
            for path in entries.flatten().map(|entry| entry.path()) {
                // One that is in use is not removed, and one that cannot be is tried again by the next host.
                if end(&path).is_err() {}
            }
        }
    }
}

impl Drop for LockedControllers {
    fn drop(&mut self) {
        self.locks.clear();
        let made = [self.controllers.memory.take(), self.controllers.pids.take()];
        // One that a keeper is in stays. What cannot be removed now goes with the next launch or the sandbox.
        for path in made.into_iter().flatten() {
            if end(&path).is_err() {}
        }
    }
}

/// Removes one in which nothing is left.
pub(crate) fn end(path: &Path) -> io::Result<CgroupRemoval> {
    let Some(_dir) = open_locked(path)? else {
        return Ok(if path.try_exists()? { CgroupRemoval::InUse } else { CgroupRemoval::Gone });
    };
    match fs::remove_dir(path) {
        Ok(()) => Ok(CgroupRemoval::Gone),
        Err(error) if is_gone(&error) => Ok(CgroupRemoval::Gone),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(CgroupRemoval::Dying),
        Err(error) => Err(error),
    }
}

/// Whether this is a place where cgroups of the first version are.
pub(crate) fn is_cgroup1(path: &Path) -> io::Result<bool> {
    match rustix::fs::statfs(path) {
        Ok(stat) => Ok(u64::try_from(stat.f_type).is_ok_and(|kind| kind == CGROUP1_MAGIC)),
        Err(rustix::io::Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn own_place(mountinfo: &str, own: &str, controller: &str) -> Option<PathBuf> {
    let is_it = |list: &str| list.split(',').any(|name| name == controller);
    let own = own.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        is_it(controllers).then_some(path)
    })?;
    let mut mounts = mountinfo.lines().filter_map(|line| {
        let mut after = line.split(' ').skip_while(|word| *word != "-").skip(1);
        let (kind, _, options) = (after.next()?, after.next()?, after.next()?);
        let mut words = line.split(' ').skip(3);
        (kind == "cgroup" && is_it(options)).then(|| Some((words.next()?, words.next()?)))?
    });
    // A mount may show a part of the tree; what is not beneath it cannot be reached through it.
    mounts.find_map(|(root, point)| {
        let beneath = Path::new(own).strip_prefix(root).ok()?;
        (!point.contains('\\')).then(|| Path::new(point).join(beneath))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_controllers_own_cgroup_is_found_and_those_of_others_are_not() {
        let mountinfo = "31 24 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
            32 24 0:28 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
            33 24 0:29 /docker /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
            34 24 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n";
        let own = "4:memory:/a/b\n3:pids:/docker/c\n2:cpu,cpuacct:/\n0::/x\n";
        let place = |controller| own_place(mountinfo, own, controller);
        assert_eq!(place("memory"), Some("/sys/fs/cgroup/memory/a/b".into()));
        assert_eq!(place("pids"), Some("/sys/fs/cgroup/pids/c".into()));
        assert_eq!(place("cpuacct"), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(place("freezer"), None);
        assert_eq!(own_place(mountinfo, "4:memory:/a\n3:pids:/elsewhere\n", "pids"), None);
    }
}
