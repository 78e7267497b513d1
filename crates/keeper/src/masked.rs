//! The host's tree with masks over it, for hosts where no root of the sandbox's own can be built.
//!
//! Owns: laying the masks, and what is bound back beneath them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use lodge_link::{Bind, KeeperSpec};

use crate::binds::{self, BindFailure, OpenBind, bind_one, fd_path, make_target, not_bound, not_read_only};
use crate::devices;
use crate::fence::{self, Fence, NO_PROC, tests_without};
use crate::masks;
use crate::mounts::{host_forbids, mount};
use crate::network::GateHandle;
use crate::read_only;
use crate::sys;

const DEVICES: &str = "/dev";
const SHARED_MEMORY: &str = "/dev/shm";

impl Fence {
    /// Hides parts of the host, and binds back what the sandbox is to see.
    pub(crate) fn mask(&mut self, spec: &KeeperSpec, opened: Vec<OpenBind>) -> io::Result<()> {
        let opened = self.all_opened(spec, opened)?;
        let temporary = open_temporary(&spec.root);
        let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
        let fresh = if tests_without(spec, NO_PROC) {
            Err(io::Error::other("a test does without"))
        } else {
            let options = self.net.gate.as_ref().and_then(GateHandle::proc_options);
            mount(Some(c"proc"), c"/proc", Some(c"proc"), flags, options)
        };
        self.proc_is_ours = self.layers.note("proc", fresh);
        if let (true, Some(gate)) = (self.proc_is_ours, &self.net.gate) {
            hide_process(Path::new("/proc"), gate.pid)?;
        }

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
                Err(error) if !host_forbids(&error) && error.kind() != io::ErrorKind::NotFound => {
                    return Err(fence::refused("masks over the host's directories", &error));
                }
                Err(error) => refused = Some(format!("{}: {error}", mask.display())),
            }
        }
        match refused {
            None => self.layers.holds("masks"),
            Some(why) => self.layers.missing("masks", why),
        }
        self.bind_back(spec, opened, &masked)?;
        self.layers.note("devices", devices::make(Path::new(DEVICES)));
        fence::share_memory(spec, Path::new(SHARED_MEMORY), &mut self.layers);
        for mask in masked.iter().filter(|mask| !masks::is_temporary(mask)) {
            // Read-only is a bonus: without it, what is written there stays in the sandbox's own memory.
            if let Err(error) = read_only::remount(&sys::c_string(mask.as_os_str())?) {
                self.layers.missing("masks_read_only", format!("{}: {error}", mask.display()));
            }
        }
        Ok(())
    }

    /// The agent's directory first, then the requested binds, what programs need, and the resolver.
    fn all_opened(&mut self, spec: &KeeperSpec, asked: Vec<OpenBind>) -> io::Result<Vec<OpenBind>> {
        let root = Bind { read_only: false, ..Bind::read_only(spec.root.clone(), spec.root.clone()) };
        let source = sys::open_path(root.source.as_os_str())?;
        let mut opened = vec![OpenBind::new(root, source)];
        // What Lodge wrote for the agent is not the agent's to change.
        let etc =
            spec.private_root.iter().filter(|plan| plan.host_etc.is_some()).map(|_| spec.root.join("etc"));
        let etc = etc.map(|etc| Bind::read_only(etc.clone(), etc));
        opened.extend(binds::open(etc, &mut self.layers)?);
        opened.extend(asked);
        let trees = spec.private_root.iter().flat_map(|plan| &plan.host_trees);
        let hidden = masks::to_hide(&spec.state_dir);
        let trees = trees.filter(|tree| hidden.iter().any(|mask| tree.starts_with(mask)));
        let trees = trees.map(|tree| Bind::read_only(tree.clone(), tree.clone()));
        opened.extend(binds::open(
            trees.chain(masks::resolver(self.net.resolver.as_deref())),
            &mut self.layers,
        )?);
        Ok(opened)
    }

    fn bind_back(&mut self, spec: &KeeperSpec, opened: Vec<OpenBind>, masked: &[PathBuf]) -> io::Result<()> {
        for (index, open) in opened.into_iter().enumerate() {
            let (bind, is_root) = (&open.bind, index == 0);
            let hiding = deepest(masked, &bind.target);
            if bind.source == bind.target && hiding.is_none() && !bind.read_only {
                continue;
            }
            // What lies beneath the agent's root is the agent's: no link of its making is followed.
            let is_agents = !is_root && bind.target.starts_with(&spec.root);
            let base = if is_agents { Some(spec.root.as_path()) } else { hiding };
            match open.bind_to(bind, base) {
                Ok(()) => close_other_way(bind, &open.source, masked)?,
                Err(BindFailure::Writable(error)) => return Err(not_read_only(bind, &error)),
                // The host's own path is there without the bind, and nothing keeps it from being written.
                Err(BindFailure::Absent(error))
                    if bind.read_only && bind.source == bind.target && hiding.is_none() =>
                {
                    return Err(not_read_only(bind, &error));
                }
                Err(BindFailure::Absent(error)) if is_root => return Err(error),
                Err(BindFailure::Absent(error)) if !binds::is_absent(&error) => {
                    return Err(not_bound(bind, &error));
                }
                Err(BindFailure::Absent(error)) => {
                    self.layers.missing("bind", format!("{}: {error}", bind.target.display()));
                }
            }
        }
        Ok(())
    }
}

/// What is read-only at its target is so at the host's own path as well, where the sandbox sees that.
fn close_other_way(bind: &Bind, source: &OwnedFd, masked: &[PathBuf]) -> io::Result<()> {
    let is_hidden = masked.iter().any(|mask| bind.source.starts_with(mask));
    if !bind.read_only || bind.source == bind.target || is_hidden {
        return Ok(());
    }
    let own = Bind { target: bind.source.clone(), ..bind.clone() };
    bind_one(&own, source, None).map_err(|error| match error {
        BindFailure::Absent(error) | BindFailure::Writable(error) => not_read_only(&own, &error),
    })
}

/// The part of the agent's root that it uses for a while.
fn open_temporary(root: &Path) -> Option<OwnedFd> {
    let path = sys::c_string(root.join("tmp").as_os_str()).ok()?;
    sys::open_at(rustix::fs::CWD, &path, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0).ok()
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

/// Hides a process of the host's network and mounts: `/proc` shows those to all users.
pub(crate) fn hide_process(proc: &Path, pid: i32) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC | libc::MS_RDONLY;
    let path = sys::c_string(proc.join(pid.to_string()).as_os_str())?;
    mount(Some(c"tmpfs"), &path, Some(c"tmpfs"), flags, Some(c"mode=0555,size=4k,nr_inodes=2"))
        .map_err(|error| io::Error::other(format!("the gate cannot be hidden: {error}")))
}

/// Mounts an empty directory over `path` that all users may traverse.
pub(crate) fn hide(path: &Path) -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    let options = c"mode=0755,size=1m,nr_inodes=4k";
    mount(Some(c"tmpfs"), &sys::c_string(path.as_os_str())?, Some(c"tmpfs"), flags, Some(options))
}
