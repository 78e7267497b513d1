//! The outer fence: namespaces, and a root of the sandbox's own or masks over the host's.
//!
//! Owns: everything that changes what the sandbox can see. Never: what its processes may do with it (see `confine`). A
//! layer that this host does not allow is noted, and the keeper continues without it. A temporary failure (a full disk,
//! too many open files) aborts the start, and so does a read-only bind that is not read-only.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lodge_link::{Bind, KeeperSpec};
use rustix::process::{getegid, geteuid};

use crate::binds;
use crate::bounds::Bounds;
use crate::counters;
use crate::group::SandboxCgroup;
use crate::layers::Layers;
use crate::mounts::{host_forbids, host_forbids_namespaces, make_private, mount};
use crate::network::SandboxNetwork;
use crate::private_root::{self, BuiltRoot, RootBuildError};
use crate::supplementary;
use crate::sys;

/// Which namespaces this process is about to have, or has, of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespaces {
    Own,
    Host,
}

/// Which tree of files the sandbox sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileView {
    /// One of its own: the agent's directory is `/`.
    Private,
    /// The host's, with parts of it hidden as far as that was possible.
    Host,
}

/// The fence as far as it could be built.
#[derive(Debug)]
pub(crate) struct Fence {
    pub(crate) layers: Layers,
    pub(crate) namespaces: Namespaces,
    pub(crate) view: FileView,
    /// Whether pids in `/proc` are the pids that signals go by.
    pub(crate) proc_is_ours: bool,
    /// The sandbox's cgroup, if execs can have cgroups in it.
    pub(crate) groups: Option<SandboxCgroup>,
    pub(crate) net: SandboxNetwork,
    pub(crate) bounds: Bounds,
}

/// Failpoints that do not kill: the keeper behaves as on a host that has no such thing.
pub(crate) const NO_NAMESPACES: &str = "keeper.no_namespaces";
pub(crate) const NO_CGROUP: &str = "keeper.no_cgroup";
pub(crate) const NO_PROC: &str = "keeper.no_proc";

/// Whether a test wants this keeper to do without `what`. Several are joined by `+`.
pub(crate) fn tests_without(spec: &KeeperSpec, what: &str) -> bool {
    spec.failpoint.split('+').any(|point| point == what)
}

/// How large shared memory is where memory has no limit.
const SHARED_MEMORY_BYTES: u64 = 64 * 1024 * 1024;

/// Moves this process's children into namespaces of their own.
///
/// Fails where this host allows them and has none to spare, and with a user namespace entered and no user mapped.
pub(crate) fn unshare(spec: &KeeperSpec, layers: &mut Layers) -> io::Result<Namespaces> {
    let names = ["pidns", "mountns"];
    let is_root = sys::is_root();
    if tests_without(spec, NO_NAMESPACES) {
        names.iter().for_each(|name| layers.missing(name, "a test does without"));
        supplementary::note_kept(layers);
        return Ok(Namespaces::Host);
    }
    let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    if !is_root {
        flags |= libc::CLONE_NEWUSER;
    }
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    // Only a process that stays outside may map more than one group.
    let mapper = if is_root { None } else { supplementary::GroupMapper::begin(uid, gid) };
    // SAFETY: no memory is passed.
    if let Err(error) = sys::check(unsafe { libc::unshare(flags) }) {
        if !host_forbids_namespaces(&error) {
            return Err(refused("namespaces", &error));
        }
        names.iter().for_each(|name| layers.missing(name, format!("cannot make namespaces: {error}")));
        supplementary::note_kept(layers);
        return Ok(Namespaces::Host);
    }
    if is_root {
        // Each exec becomes a user of its own, and of no group but that.
        layers.holds("groups");
    } else {
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        supplementary::map(mapper, gid, layers)?;
        layers.holds("userns");
        layers.note("user_counters", counters::bound_namespace());
    }
    names.iter().for_each(|name| layers.holds(name));
    // Separately, because kernels can be built without them. Then the host's namespaces stay in use.
    for (name, flag) in [("ipcns", libc::CLONE_NEWIPC), ("utsns", libc::CLONE_NEWUTS)] {
        // SAFETY: no memory is passed.
        let apart = sys::check(unsafe { libc::unshare(flag) }).map(drop);
        match apart {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENOMEM)) => {
                return Err(refused("namespaces", &error));
            }
            apart => layers.note(name, apart),
        };
    }
    Ok(Namespaces::Own)
}

impl Fence {
    /// Builds the fence from inside the namespaces, and lets the kernel hold the limits of the sandbox. `dir` is the
    /// keeper's own directory.
    pub(crate) fn build(
        spec: &KeeperSpec,
        dir: &OwnedFd,
        namespaces: Namespaces,
        layers: Layers,
        net: SandboxNetwork,
    ) -> io::Result<Fence> {
        let mut fence = Fence {
            layers,
            namespaces,
            view: FileView::Host,
            proc_is_ours: false,
            groups: None,
            net,
            bounds: Bounds::default(),
        };
        let built = match namespaces {
            Namespaces::Own => fence.mounts(spec)?,
            Namespaces::Host => {
                fence.proc_is_ours = true;
                let what = "needs a mount namespace";
                ["private_root", "proc", "masks", "devices"]
                    .iter()
                    .for_each(|name| fence.layers.missing(name, what));
                // SAFETY: no memory is passed.
                let reaps = sys::check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) });
                fence.layers.note("subreaper", reaps.map(drop));
                None
            }
        };
        fence.group(spec);
        fence.bound(spec);
        if let Some(built) = built {
            fence.enter(spec, dir, built)?;
        }
        Ok(fence)
    }

    /// Builds a root of the sandbox's own, to be entered later, or lays masks over the host's.
    fn mounts(&mut self, spec: &KeeperSpec) -> io::Result<Option<BuiltRoot>> {
        if let Err(error) = make_private() {
            if !host_forbids(&error) {
                return Err(refused("mounts of its own", &error));
            }
            for name in ["private_root", "proc", "masks"] {
                self.layers.missing(name, format!("mounts stay shared: {error}"));
            }
            return Ok(None);
        }
        let mut opened = binds::open(spec.binds.iter().cloned(), &mut self.layers)?;
        // An ordinary user's sandbox has that user's rights anyway.
        if let Some(uid) = spec.uid.filter(|_| sys::is_root()) {
            let mapped = binds::map_owners(&mut opened, uid, &mut self.layers);
            mapped.map_err(|error| refused("a mount", &error))?;
        }
        let why = match &spec.private_root {
            Some(plan) => {
                self.name_host(&plan.hostname);
                let asked = opened.len();
                opened.extend(binds::open(self.own_resolver(spec).into_iter(), &mut self.layers)?);
                match private_root::build(spec, plan, &opened, self.net.gate.as_ref(), &mut self.layers) {
                    Ok(built) => {
                        (self.view, self.proc_is_ours) = (FileView::Private, built.proc_is_ours);
                        return Ok(Some(built));
                    }
                    Err(RootBuildError::Refused(error)) => return Err(refused("a root of its own", &error)),
                    Err(RootBuildError::Impossible(error)) => {
                        opened.truncate(asked);
                        error.to_string()
                    }
                }
            }
            None => "none is configured".to_owned(),
        };
        self.layers.missing("private_root", why);
        self.mask(spec, opened)?;
        Ok(None)
    }

    fn enter(&mut self, spec: &KeeperSpec, dir: &OwnedFd, built: BuiltRoot) -> io::Result<()> {
        let apart = self.unshare_cgroups();
        self.layers.note("cgroupns", apart);
        built.show_system(spec, self.groups.as_ref(), &mut self.layers);
        built.enter(dir)?;
        self.layers.holds("private_root");
        Ok(())
    }

    /// The resolver configuration, if it is not the one in the agent's directory.
    fn own_resolver(&self, spec: &KeeperSpec) -> Option<Bind> {
        let source = self.net.resolver.clone()?;
        Some(Bind::read_only(source, spec.root.join("etc/resolv.conf")))
    }

    fn name_host(&mut self, name: &str) {
        if !self.layers.has("utsns") {
            return;
        }
        if let Err(error) = rustix::system::sethostname(name.as_bytes()) {
            self.layers.missing("hostname", error.to_string());
        }
    }

    /// Where execs and the keeper find the agent's directory.
    pub(crate) fn root(&self, spec: &KeeperSpec) -> PathBuf {
        match self.view {
            FileView::Private => PathBuf::from("/"),
            FileView::Host => spec.root.clone(),
        }
    }

    /// Whether execs do not see the keeper's own directory.
    pub(crate) fn hides_keeper(&self) -> bool {
        self.view == FileView::Private || (self.namespaces == Namespaces::Own && self.layers.has("masks"))
    }
}

/// Why a sandbox does not start, and what to do about it.
pub(crate) fn refused(what: &str, error: &io::Error) -> io::Error {
    let step = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => "make room on the disk of the state directory",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (`ulimit -n`, LimitNOFILE=)",
        Some(libc::ENOMEM) => "free some memory",
        Some(_) | None => "remove the cause",
    };
    // The cause last: a path in it may be longer than the reported failure.
    io::Error::other(format!("it cannot have {what}; {step} and start the agent again: {error}"))
}

/// Gives the sandbox shared memory of its own, so that it neither sees nor fills that of the host. Less than what
/// it may use, so that filling it leaves something for its processes.
pub(crate) fn share_memory(spec: &KeeperSpec, place: &Path, layers: &mut Layers) {
    if !place.is_dir() {
        return;
    }
    let size = spec.limits.memory_bytes.map_or(SHARED_MEMORY_BYTES, |bytes| (bytes / 2).max(4096));
    let options = format!("mode=1777,size={size},nr_inodes=64k");
    let mounted = sys::c_string(OsStr::new(&options)).and_then(|options| {
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let target = sys::c_string(place.as_os_str())?;
        mount(Some(c"tmpfs"), &target, Some(c"tmpfs"), flags, Some(&options))
    });
    layers.note("shared_memory", mounted);
}

/// Whether a path names the root of all.
pub(crate) fn is_top(path: &Path) -> bool {
    path.as_os_str() == OsStr::from_bytes(b"/")
}
