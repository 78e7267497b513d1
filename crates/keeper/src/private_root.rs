//! The sandbox's own root: the agent's directory becomes `/`.
//!
//! It is built at the directory's own path, out of mounts that only this namespace has, and then the keeper pivots into
//! it. Every source has to be opened, and `/proc` mounted, before the host's root is let go of.
//!
//! Owns: the mounts in that root, and the layer `private_root`. Never: the fallback when it fails.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use lodge_link::{Bind, KeeperSpec, PrivateRoot};

use crate::binds::{self, BindFailure, OpenBind, bind_one, fd_path, make_target, unmount, within};
use crate::devices;
use crate::fence::{self, NO_PROC, tests_without};
use crate::group::SandboxCgroup;
use crate::host_trees::{self, Overlays};
use crate::layers::Layers;
use crate::masked;
use crate::mounts::{clone_dir, host_forbids, mount, of_controllers, pivot};
use crate::network::GateHandle;
use crate::read_only;
use crate::sys;

/// A failpoint that does not kill: the keeper behaves as on a host where no root can be built.
const NO_PRIVATE_ROOT: &str = "keeper.no_private_root";
/// The same for a disk that is full while the root is built.
const NO_ROOM: &str = "keeper.no_room";
/// What programs read to learn how many processors there are.
const PROCESSORS: &str = "/sys/devices/system/cpu";
const CGROUPS: &str = "/sys/fs/cgroup";
/// A file that every cgroup of version 1 has. It says nothing but 0.
const EVIDENCE: &str = "cgroup.clone_children";
/// Where the copy of the host's `/etc` is bound if it cannot be read beneath the agent's own, and the way from there.
const HOST_ETC: &str = "opt/lodge/etc";
const TO_HOST_ETC: &str = "../opt/lodge/etc";
/// A failpoint that does not kill: the keeper behaves as on a host without overlays.
const NO_OVERLAY: &str = "keeper.no_overlay";

/// A root that was built and is not entered yet.
pub(crate) struct BuiltRoot {
    root: PathBuf,
    /// Whether its `/proc` shows the sandbox's own processes.
    pub(crate) proc_is_ours: bool,
}

/// Why there is no root.
pub(crate) enum RootBuildError {
    /// This host cannot have one. What was mounted is gone again.
    Impossible(io::Error),
    /// The sandbox must not start at all.
    Refused(io::Error),
}

impl RootBuildError {
    /// For the failure of a mount call.
    fn by_mount(error: io::Error) -> RootBuildError {
        if host_forbids(&error) { RootBuildError::Impossible(error) } else { RootBuildError::Refused(error) }
    }
}

/// What is no mount call can be done on every host.
impl From<io::Error> for RootBuildError {
    fn from(error: io::Error) -> RootBuildError {
        RootBuildError::Refused(error)
    }
}

/// Builds the root of the sandbox at the path of the agent's directory. Nothing sees it before [`BuiltRoot::enter`].
pub(crate) fn build(
    spec: &KeeperSpec,
    plan: &PrivateRoot,
    opened: &[OpenBind],
    gate: Option<&GateHandle>,
    layers: &mut Layers,
) -> Result<BuiltRoot, RootBuildError> {
    if tests_without(spec, NO_PRIVATE_ROOT) {
        return Err(RootBuildError::Impossible(io::Error::other("a test does without")));
    }
    bind_itself(&spec.root)?;
    let mut noted = Layers::default();
    let proc_is_ours = mount_system(spec, plan, gate, &mut noted).inspect_err(|_| unmount(&spec.root))?;
    if let (true, Some(gate)) = (proc_is_ours, gate) {
        masked::hide_process(&spec.root.join("proc"), gate.pid)?;
    }
    let etc = plan.host_etc.as_deref().map(|host_etc| mount_etc(spec, host_etc)).transpose()?;
    binds::bind_into(&spec.root, opened, &mut noted)?;
    binds::bind_into(&spec.root, etc.flatten().as_slice(), &mut noted)?;
    layers.list.append(&mut noted.list);
    Ok(BuiltRoot { root: spec.root.clone(), proc_is_ours })
}

/// A mount of the agent's directory: a root has to be one.
fn bind_itself(root: &Path) -> Result<(), RootBuildError> {
    let source = sys::open_path(root.as_os_str())?;
    binds::check_itself(root, &source)?;
    let place = fd_path(&source);
    mount(Some(&place), &place, None, libc::MS_BIND | libc::MS_REC, None)
        .map_err(RootBuildError::by_mount)?;
    // An additional barrier: programs inside could not create a device anyway, or gain rights by a set-id program.
    drop(read_only::without_devices(root));
    Ok(())
}

/// Mounts `/proc`, `/dev` and what programs of the host need. Says whether `/proc` is the sandbox's own.
fn mount_system(
    spec: &KeeperSpec,
    plan: &PrivateRoot,
    gate: Option<&GateHandle>,
    layers: &mut Layers,
) -> Result<bool, RootBuildError> {
    let root = &spec.root;
    if tests_without(spec, NO_ROOM) {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC).into());
    }
    let place = make_target(root, &root.join("proc"), true)?;
    if !is_empty(&place)? {
        return Err(io::Error::other("the agent's directory has something in the place of /proc").into());
    }
    // Once covered, nothing can be put there.
    host_trees::show(root, &plan.host_trees, &place, overlays(spec), layers)
        .map_err(RootBuildError::by_mount)?;
    if plan.host_trees.iter().any(|tree| spec.state_dir.starts_with(tree)) {
        // The daemon's own files are never shown, wherever they are.
        let state = within(root, &spec.state_dir);
        masked::hide(&state).map_err(RootBuildError::by_mount)?;
        read_only::remount(&sys::c_string(state.as_os_str())?).map_err(RootBuildError::by_mount)?;
    }
    let is_ours = mount_proc(spec, gate, &place, layers)?;
    // No link of the agent's making is followed.
    drop(make_target(root, &root.join("dev"), true)?);
    devices::make(&root.join("dev")).map_err(RootBuildError::by_mount)?;
    layers.holds("devices");
    fence::share_memory(spec, &root.join("dev/shm"), layers);
    Ok(is_ours)
}

/// Mounts `/proc` at `place`, and says whether it is the sandbox's own.
fn mount_proc(
    spec: &KeeperSpec,
    gate: Option<&GateHandle>,
    place: &OwnedFd,
    layers: &mut Layers,
) -> Result<bool, RootBuildError> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let fresh = if tests_without(spec, NO_PROC) {
        Err(io::Error::from_raw_os_error(libc::EPERM))
    } else {
        mount(Some(c"proc"), &fd_path(place), Some(c"proc"), flags, gate.and_then(GateHandle::proc_options))
    };
    match fresh {
        Ok(()) => {
            layers.holds("proc");
            Ok(true)
        }
        // Where something covers a part of the host's, as in containers, a fresh one is refused.
        Err(error) if host_forbids(&error) => {
            layers.missing("proc", error.to_string());
            let bound = mount(Some(c"/proc"), &fd_path(place), None, libc::MS_BIND | libc::MS_REC, None);
            bound.map_err(RootBuildError::by_mount)?;
            Ok(false)
        }
        Err(error) => Err(RootBuildError::Refused(error)),
    }
}

/// Mounts the agent's `/etc`, read-only: its own files, and beneath them the copy of the host's. On a host without overlays
/// its own has links instead, and the copy is returned, to be bound where they lead.
fn mount_etc(spec: &KeeperSpec, host_etc: &Path) -> Result<Option<OpenBind>, RootBuildError> {
    let target = spec.root.join("etc");
    let own = make_target(&spec.root, &target, true)?;
    let copy = sys::open_path(host_etc.as_os_str())?;
    binds::check_itself(host_etc, &copy)?;
    match host_trees::overlay(&own, &copy, &own, overlays(spec)) {
        Ok(()) => return Ok(None),
        Err(error) if host_trees::cannot_overlay(&error) => {}
        Err(error) => return Err(RootBuildError::Refused(error)),
    }
    for entry in std::fs::read_dir(host_etc)? {
        let name = entry?.file_name();
        match std::os::unix::fs::symlink(Path::new(TO_HOST_ETC).join(&name), target.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    let place = spec.root.join(HOST_ETC);
    drop(make_target(&spec.root, &place, true)?);
    let read_only = |source: &Path, target: &Path| Bind::read_only(source.to_owned(), target.to_owned());
    bind_one(&read_only(&target, &target), &own, Some(&spec.root)).map_err(|error| match error {
        BindFailure::Writable(error) | BindFailure::Absent(error) => RootBuildError::Refused(error),
    })?;
    Ok(Some(OpenBind::new(read_only(host_etc, &place), copy)))
}

fn overlays(spec: &KeeperSpec) -> Overlays {
    if tests_without(spec, NO_OVERLAY) { Overlays::Absent } else { Overlays::Tried }
}

fn is_empty(place: &OwnedFd) -> io::Result<bool> {
    let dir = sys::open_at(place.as_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    Ok(sys::names(dir.as_fd())?.is_empty())
}

/// One file of every hierarchy that Java wants to find mounted before it believes any limit, each with its place. A
/// directory would show the cgroups of others.
fn evidence_of_controllers() -> Vec<(PathBuf, PathBuf)> {
    let mountinfo = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let points = of_controllers(&mountinfo, &[b"cpu", b"cpuacct", b"cpuset"]);
    let named = points.into_iter().filter_map(|point| {
        let name = point.file_name()?;
        Some((point.join(EVIDENCE), Path::new(CGROUPS).join(name).join(EVIDENCE)))
    });
    named.collect()
}

impl BuiltRoot {
    /// Shows the processors and the sandbox's own cgroups, if it has any. The cgroup namespace comes first: programs
    /// see its root as their cgroup.
    pub(crate) fn show_system(&self, spec: &KeeperSpec, groups: Option<&SandboxCgroup>, layers: &mut Layers) {
        let legacy = [("memory", &spec.controllers.memory), ("pids", &spec.controllers.pids)];
        let legacy: Vec<(&str, &Path)> =
            legacy.into_iter().filter_map(|(name, path)| Some((name, path.as_deref()?))).collect();
        let unified = groups.and_then(SandboxCgroup::path);
        let mut shown = vec![(PathBuf::from(PROCESSORS), PathBuf::from(PROCESSORS))];
        if let Some(path) = unified {
            let at =
                if legacy.is_empty() { PathBuf::from(CGROUPS) } else { Path::new(CGROUPS).join("unified") };
            shown.push((path, at));
        }
        shown.extend(legacy.iter().map(|(name, path)| (path.to_path_buf(), Path::new(CGROUPS).join(name))));
        if !legacy.is_empty() {
            shown.extend(evidence_of_controllers());
        }
        let show = |(source, at): &(PathBuf, PathBuf)| match self.show_read_only(source, at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|error| io::Error::other(format!("{}: {error}", at.display()))),
        };
        layers.note("system", self.show_all(|| shown.iter().try_for_each(show)));
    }

    /// Creates mount points for the shown directories, in a `/sys` that uses no disk space and is not writable.
    fn show_all(&self, show: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let system = self.root.join("sys");
        drop(make_target(&self.root, &system, true)?);
        masked::hide(&system)?;
        // A part of it would look like a machine without processors.
        show()
            .and_then(|()| read_only::remount(&sys::c_string(system.as_os_str())?))
            .inspect_err(|_| unmount(&system))
    }

    fn show_read_only(&self, source: &Path, at: &Path) -> io::Result<()> {
        let source = sys::open_path(source.as_os_str())?;
        let target = within(&self.root, at);
        let is_dir = sys::stat(source.as_fd())?.st_mode & libc::S_IFMT == libc::S_IFDIR;
        let place = make_target(&self.root, &target, is_dir)?;
        mount(Some(&fd_path(&source)), &fd_path(&place), None, libc::MS_BIND | libc::MS_REC, None)?;
        read_only::make_tree(&target).inspect_err(|_| unmount(&target))
    }

    /// Makes it the root of this namespace. From here on nothing of the host can be reached but what is mounted in it,
    /// and what is open.
    ///
    /// `dir` is the keeper's own directory. It is replaced by a mount of its own, so that no way leads out of it.
    pub(crate) fn enter(self, dir: &OwnedFd) -> io::Result<()> {
        let path = std::fs::read_link(OsStr::new(&format!("/proc/self/fd/{}", dir.as_raw_fd())))?;
        // The inherited one belongs to the host's mounts, of which nothing can be cloned here.
        let here = sys::open_path(path.as_os_str())?;
        let (own, found) = (sys::stat(dir.as_fd())?, sys::stat(here.as_fd())?);
        if (own.st_dev, own.st_ino) != (found.st_dev, found.st_ino) {
            return Err(io::Error::other(format!("another directory is at {}", path.display())));
        }
        let alone = clone_dir(here.as_fd())?;
        // SAFETY: both descriptors are open; the old one is replaced in place and stays owned.
        sys::check(unsafe { libc::dup3(alone.as_raw_fd(), dir.as_raw_fd(), libc::O_CLOEXEC) })?;
        drop(here);
        pivot(&self.root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::{beneath, enter_own};

    #[test]
    fn a_system_that_cannot_be_shown_leaves_no_empty_mount() {
        let root = std::env::temp_dir().join(format!("keeper-system-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let root = root.canonicalize().unwrap();
        let has_mounts = || !beneath(&std::fs::read("/proc/self/mountinfo").unwrap(), &root).is_empty();
        let built = BuiltRoot { root: root.clone(), proc_is_ours: false };
        let may_mount = sys::passes_in_child(|| enter_own().unwrap());
        let passes = sys::passes_in_child(std::panic::AssertUnwindSafe(|| {
            enter_own().unwrap();
            built.show_all(|| Ok(())).unwrap();
            assert!(has_mounts());
            unmount(&root.join("sys"));
            let shown = built.show_all(|| {
                std::fs::create_dir(root.join("sys/half"))?;
                Err(io::Error::from_raw_os_error(libc::ENOSPC))
            });
            assert_eq!(shown.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
            assert!(!has_mounts());
        }));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(passes, may_mount);
    }
}
