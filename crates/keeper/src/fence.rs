//! The outer fence: namespaces, a fresh `/proc`, masks over the host, and what is bound back.
//!
//! Owns: everything that changes what the sandbox can see. Never: what its processes may do with it
//! (see `confine`). A layer that cannot be had is noted, and the keeper goes on without it; a bind that was
//! asked for read-only and is not ends the start.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lodge_link::{Bind, KeeperSpec};

use crate::bounds::Bounds;
use crate::counters;
use crate::devices;
use crate::group::Groups;
use crate::layers::Layers;
use crate::masks;
use crate::network::Net;
use crate::read_only;
use crate::sys;

/// Which namespaces this process is about to have, or has, of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Namespaces {
    Own,
    Host,
}

/// The fence as far as it could be built.
#[derive(Debug)]
pub(crate) struct Fence {
    pub(crate) layers: Layers,
    pub(crate) namespaces: Namespaces,
    /// Whether pids in `/proc` are the pids that signals go by.
    pub(crate) proc_is_ours: bool,
    /// The sandbox's cgroup, where execs can be held by it.
    pub(crate) groups: Option<Groups>,
    pub(crate) net: Net,
    pub(crate) bounds: Bounds,
}

/// Failpoints that do not kill: the keeper behaves as on a host that has no such thing.
pub(crate) const NO_NAMESPACES: &str = "keeper.no_namespaces";
pub(crate) const NO_CGROUP: &str = "keeper.no_cgroup";
const NO_PROC: &str = "keeper.no_proc";

/// Whether a test wants this keeper to do without `what`. Several are joined by `+`.
pub(crate) fn tests_without(spec: &KeeperSpec, what: &str) -> bool {
    spec.failpoint.split('+').any(|point| point == what)
}

const SHARED_MEMORY: &str = "/dev/shm";
/// How large that is where memory has no limit.
const SHARED_MEMORY_BYTES: u64 = 64 * 1024 * 1024;

/// A bind whose source was opened before anything was hidden.
struct Opened {
    bind: Bind,
    source: OwnedFd,
}

/// Moves this process's children into namespaces of their own.
///
/// Fails only where going on would be worse: with a user namespace entered and no user mapped.
pub(crate) fn unshare(spec: &KeeperSpec, layers: &mut Layers) -> io::Result<Namespaces> {
    if tests_without(spec, NO_NAMESPACES) {
        ["pidns", "mountns"].iter().for_each(|name| layers.missing(name, "a test does without"));
        return Ok(Namespaces::Host);
    }
    let mut flags = libc::CLONE_NEWNS | libc::CLONE_NEWPID;
    let is_root = sys::is_root();
    if !is_root {
        flags |= libc::CLONE_NEWUSER;
    }
    // SAFETY: these cannot fail and touch no memory.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: no memory is passed.
    if let Err(error) = sys::check(unsafe { libc::unshare(flags) }) {
        for name in ["pidns", "mountns"] {
            layers.missing(name, format!("cannot make namespaces: {error}"));
        }
        return Ok(Namespaces::Host);
    }
    if !is_root {
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
        layers.holds("userns");
        layers.note("user_counters", counters::bound_namespace());
    }
    layers.holds("pidns");
    layers.holds("mountns");
    // By itself, as kernels can be built without: what processes share goes on in the host's then.
    // SAFETY: no memory is passed.
    layers.note("ipcns", sys::check(unsafe { libc::unshare(libc::CLONE_NEWIPC) }).map(drop));
    Ok(Namespaces::Own)
}

impl Fence {
    /// Builds the fence from inside the namespaces.
    pub(crate) fn build(
        spec: &KeeperSpec,
        namespaces: Namespaces,
        layers: Layers,
        net: Net,
    ) -> io::Result<Fence> {
        let mut fence =
            Fence { layers, namespaces, proc_is_ours: false, groups: None, net, bounds: Bounds::default() };
        match namespaces {
            Namespaces::Own => fence.mounts(spec)?,
            Namespaces::Host => {
                fence.proc_is_ours = true;
                let what = "needs a mount namespace";
                ["proc", "masks", "devices"].iter().for_each(|name| fence.layers.missing(name, what));
                // SAFETY: no memory is passed.
                let reaps = sys::check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) });
                fence.layers.note("subreaper", reaps.map(drop));
            }
        }
        fence.group(spec);
        Ok(fence)
    }

    fn mounts(&mut self, spec: &KeeperSpec) -> io::Result<()> {
        let private = mount(None, c"/", None, libc::MS_REC | libc::MS_PRIVATE, None);
        if let Err(error) = private {
            self.layers.missing("proc", format!("mounts stay shared: {error}"));
            self.layers.missing("masks", format!("mounts stay shared: {error}"));
            return Ok(());
        }
        let opened = self.open_binds(spec)?;
        let temporary = open_temporary(&spec.root);
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let fresh = if tests_without(spec, NO_PROC) {
            Err(io::Error::other("a test does without"))
        } else {
            mount(Some(c"proc"), c"/proc", Some(c"proc"), flags, None)
        };
        self.proc_is_ours = self.layers.note("proc", fresh);

        let mut masked = Vec::new();
        let mut refused = None;
        for mask in masks::to_hide(&spec.state_dir) {
            let hidden = if masks::is_temporary(&mask) {
                give_temporary(&mask, temporary.as_ref())
            } else {
                // Beneath a directory that was just replaced there is nothing yet to lay it over.
                let over = deepest(&masked, &mask).map(|above| make_target(above, &mask, true));
                over.transpose().and_then(|_| hide(&mask))
            };
            match hidden {
                Ok(()) => masked.push(mask),
                Err(error) => refused = Some(format!("{}: {error}", mask.display())),
            }
        }
        match refused {
            None => self.layers.holds("masks"),
            Some(why) => self.layers.missing("masks", why),
        }
        self.bind_back(spec, opened, &masked)?;
        self.layers.note("devices", devices::replace());
        self.share_memory(spec);
        for mask in masked.iter().filter(|mask| !masks::is_temporary(mask)) {
            // Read-only is a bonus: without it, what is written there stays in the sandbox's own memory.
            if let Err(error) = read_only::remount(&sys::c_string(mask.as_os_str())?) {
                self.layers.missing("masks_read_only", format!("{}: {error}", mask.display()));
            }
        }
        Ok(())
    }

    /// Gives the sandbox shared memory of its own, so that it neither sees nor fills that of the host. Less than what
    /// it may use, so that filling it leaves something for its processes.
    fn share_memory(&mut self, spec: &KeeperSpec) {
        if !Path::new(SHARED_MEMORY).is_dir() {
            return;
        }
        let size = spec.limits.memory_bytes.map_or(SHARED_MEMORY_BYTES, |bytes| (bytes / 2).max(4096));
        let options = format!("mode=1777,size={size},nr_inodes=64k");
        let mounted = sys::c_string(OsStr::new(&options)).and_then(|options| {
            let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
            let target = sys::c_string(OsStr::new(SHARED_MEMORY))?;
            mount(Some(c"tmpfs"), &target, Some(c"tmpfs"), flags, Some(&options))
        });
        self.layers.note("shared_memory", mounted);
    }

    /// Sources are opened in the new mount namespace, before the masks hide them.
    fn open_binds(&mut self, spec: &KeeperSpec) -> io::Result<Vec<Opened>> {
        let root = Bind { source: spec.root.clone(), target: spec.root.clone(), read_only: false };
        let source = sys::open_path(root.source.as_os_str())?;
        let mut opened = vec![Opened { bind: root, source }];
        for bind in spec.binds.iter().cloned().chain(masks::resolver(self.net.resolver.as_deref())) {
            match sys::open_path(bind.source.as_os_str()) {
                Ok(source) => {
                    check_itself(&bind.source, &source)?;
                    opened.push(Opened { bind, source });
                }
                Err(error) => {
                    self.layers.missing("bind", format!("{}: {error}", bind.source.display()));
                }
            }
        }
        Ok(opened)
    }

    fn bind_back(&mut self, spec: &KeeperSpec, opened: Vec<Opened>, masked: &[PathBuf]) -> io::Result<()> {
        for (index, Opened { bind, source }) in opened.into_iter().enumerate() {
            let is_root = index == 0;
            let hiding = deepest(masked, &bind.target);
            if bind.source == bind.target && hiding.is_none() && !bind.read_only {
                continue;
            }
            // What lies beneath the agent's root is the agent's: no link of its making is followed.
            let is_agents = !is_root && bind.target.starts_with(&spec.root);
            let base = if is_agents { Some(spec.root.as_path()) } else { hiding };
            match bind_one(&bind, &source, base) {
                Ok(()) => close_other_way(&bind, &source, masked)?,
                Err(NotBound::Writable(error)) => return Err(not_read_only(&bind, &error)),
                // The host's own path is there without the bind, and nothing keeps it from being written.
                Err(NotBound::Absent(error))
                    if bind.read_only && bind.source == bind.target && hiding.is_none() =>
                {
                    return Err(not_read_only(&bind, &error));
                }
                Err(NotBound::Absent(error)) if is_root => return Err(error),
                Err(NotBound::Absent(error)) => {
                    self.layers.missing("bind", format!("{}: {error}", bind.target.display()));
                }
            }
        }
        Ok(())
    }
}

/// Refuses a source that leads elsewhere. Its path was the real one when it was checked; since then whoever may write
/// above it can have put a link there.
fn check_itself(path: &Path, source: &OwnedFd) -> io::Result<()> {
    let real = std::fs::read_link(OsStr::from_bytes(fd_path(source).to_bytes()))?;
    if real == path {
        return Ok(());
    }
    // The path last: it may be longer than what is told of a failure.
    Err(io::Error::other(format!("a link leads elsewhere now, so nothing is bound from {}", path.display())))
}

/// What is read-only at its target is so at the host's own path as well, where the sandbox sees that.
fn close_other_way(bind: &Bind, source: &OwnedFd, masked: &[PathBuf]) -> io::Result<()> {
    let is_hidden = masked.iter().any(|mask| bind.source.starts_with(mask));
    if !bind.read_only || bind.source == bind.target || is_hidden {
        return Ok(());
    }
    let own = Bind { source: bind.source.clone(), target: bind.source.clone(), read_only: true };
    bind_one(&own, source, None).map_err(|error| match error {
        NotBound::Absent(error) | NotBound::Writable(error) => not_read_only(&own, &error),
    })
}

/// Why a bind is not what was asked for.
enum NotBound {
    /// It is not there.
    Absent(io::Error),
    /// It was there, but not read-only.
    Writable(io::Error),
}

impl From<io::Error> for NotBound {
    fn from(error: io::Error) -> NotBound {
        NotBound::Absent(error)
    }
}

fn not_read_only(bind: &Bind, error: &io::Error) -> io::Error {
    // The path last: it may be longer than what is told of a failure.
    io::Error::other(format!("a bind cannot be made read-only ({error}): {}", bind.target.display()))
}

fn bind_one(bind: &Bind, source: &OwnedFd, base: Option<&Path>) -> Result<(), NotBound> {
    let is_dir = sys::stat(source.as_raw_fd())?.st_mode & libc::S_IFMT == libc::S_IFDIR;
    let target = match base {
        Some(base) => make_target(base, &bind.target, is_dir)?,
        // On the host's own ground nothing is created.
        None => sys::open_path(bind.target.as_os_str())?,
    };
    let from = fd_path(source);
    mount(Some(&from), &fd_path(&target), None, libc::MS_BIND | libc::MS_REC, None)?;
    if bind.read_only {
        // By its path, because the descriptor refers to what the mount now covers.
        if let Err(error) = read_only::make_tree(&bind.target) {
            unmount(&bind.target);
            return Err(NotBound::Writable(error));
        }
    }
    Ok(())
}

/// Takes a bind away. What stays of it goes with the namespace, as a sandbox without it does not start.
fn unmount(target: &Path) {
    if let Ok(path) = sys::c_string(target.as_os_str()) {
        // SAFETY: the path is a C string that outlives the call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

/// Makes the way from `base` to `target`, without following a link on it.
fn make_target(base: &Path, target: &Path, is_dir: bool) -> io::Result<OwnedFd> {
    let mut at = sys::open_path(base.as_os_str())?;
    let way = target.strip_prefix(base).map_err(io::Error::other)?;
    let mut parts = way.iter().peekable();
    while let Some(part) = parts.next() {
        let name = sys::c_string(part)?;
        if is_dir || parts.peek().is_some() {
            ignore_existing(sys::mkdir_at(at.as_raw_fd(), &name, 0o755))?;
            at = sys::open_at(at.as_raw_fd(), &name, libc::O_PATH | libc::O_NOFOLLOW | libc::O_DIRECTORY, 0)?;
        } else {
            let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
            ignore_existing(sys::open_at(at.as_raw_fd(), &name, flags, 0o644).map(drop))?;
            at = sys::open_at(at.as_raw_fd(), &name, libc::O_PATH | libc::O_NOFOLLOW, 0)?;
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

/// The part of the agent's root that it uses for a while.
fn open_temporary(root: &Path) -> Option<OwnedFd> {
    let path = sys::c_string(root.join("tmp").as_os_str()).ok()?;
    sys::open_at(libc::AT_FDCWD, &path, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0).ok()
}

/// Lays the sandbox's own directory over one that all of the host share, or an empty one where there is none.
fn give_temporary(path: &Path, own: Option<&OwnedFd>) -> io::Result<()> {
    let target = sys::c_string(path.as_os_str())?;
    if let Some(own) = own
        && mount(Some(&fd_path(own)), &target, None, libc::MS_BIND, None).is_ok()
    {
        return Ok(());
    }
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    let options = c"mode=1777,size=64m,nr_inodes=64k";
    mount(Some(c"tmpfs"), &target, Some(c"tmpfs"), flags, Some(options))
}

/// Of those masks that a path lies beneath, the one that was laid last.
fn deepest<'a>(masks: &'a [PathBuf], path: &Path) -> Option<&'a Path> {
    let above = masks.iter().map(PathBuf::as_path).filter(|mask| path.starts_with(mask));
    above.max_by_key(|mask| mask.as_os_str().len())
}

/// Lays an empty directory over `path` that everybody may pass through.
fn hide(path: &Path) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let options = c"mode=0755,size=1m,nr_inodes=4k";
    mount(Some(c"tmpfs"), &sys::c_string(path.as_os_str())?, Some(c"tmpfs"), flags, Some(options))
}

pub(crate) fn mount(
    source: Option<&CStr>,
    target: &CStr,
    kind: Option<&CStr>,
    flags: libc::c_ulong,
    options: Option<&CStr>,
) -> io::Result<()> {
    let or_null = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: every pointer is null or a C string that outlives the call.
    sys::check(unsafe {
        libc::mount(or_null(source), target.as_ptr(), or_null(kind), flags, or_null(options).cast())
    })
    .map(drop)
}

/// Whether a path names the root of all.
pub(crate) fn is_top(path: &Path) -> bool {
    path.as_os_str() == OsStr::from_bytes(b"/")
}
