//! Cgroups: one for the sandbox, one in it for each exec, and the kernel's own way to kill all that is in one.
//!
//! Owns: the sandbox's cgroup and the layer `kill`. Nothing that runs inside can leave its cgroup: the
//! directories belong to root, or the mounts that show them are read-only.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use lodge_link::{Grouping, KeeperSpec, descriptors};

use crate::bounds::number;
use crate::fence::{self, Fence, FileView, Namespaces};
use crate::read_only;
use crate::sys;

const PROCS: &CStr = c"cgroup.procs";
const KILL: &CStr = c"cgroup.kill";
const EVENTS: &CStr = c"cgroup.events";
const CPU: &CStr = c"cpu.stat";
/// Longest list of processes that is read at once.
const PIDS_BYTES_MAX: u64 = 1024 * 1024;
const EVENTS_BYTES_MAX: usize = 256;
const CPU_BYTES_MAX: u64 = 4096;
/// Empty cgroups that wait for the next exec. Each has a descriptor open.
const SPARES_MAX: usize = 4;
/// The most processes of one exec whose descriptors are open at once.
const PIDFDS_MAX: usize = 256;

/// The sandbox's cgroup. A lock on it, inherited with it, says that it is in use.
#[derive(Debug)]
pub(crate) struct SandboxCgroup {
    pub(crate) dir: OwnedFd,
    pub(crate) parent: OwnedFd,
    name: CString,
    /// Where the host has it.
    path: Option<PathBuf>,
    /// Cgroups of execs of which nothing is left. To create one and to remove it costs more than to start a small program.
    spares: RefCell<Vec<ExecCgroup>>,
}

/// The cgroup of one exec.
#[derive(Debug)]
pub(crate) struct ExecCgroup {
    pub(crate) dir: OwnedFd,
    name: CString,
    /// What earlier execs used of processors in it.
    cpu_before_us: u64,
    /// Kernels compare the kills of a cgroup with those of the forking process's own one, also for a child that is started
    /// elsewhere: in a cgroup that was ever killed, such a child is killed at once.
    was_killed: Cell<bool>,
}

impl Fence {
    /// Takes over the cgroup that the keeper was given, if it can be relied on, and notes how execs are killed.
    pub(crate) fn group(&mut self, spec: &KeeperSpec) {
        let taken = match &spec.grouping {
            Grouping::Cgroup { .. } if fence::tests_without(spec, fence::NO_CGROUP) => {
                Err("a test does without".to_owned())
            }
            Grouping::Cgroup { name } => self.take_groups(name).map_err(|error| error.to_string()),
            Grouping::None { why } => Err(why.clone()),
        };
        match taken {
            Ok(groups) => {
                self.groups = Some(groups);
                self.layers.holds("kill");
            }
            Err(why) => {
                let by = match (self.proc_is_ours, self.namespaces) {
                    (true, Namespaces::Own) => "by walking the processes",
                    (true, Namespaces::Host) => {
                        "by walking the processes, which two deaths at once outlive: the keeper's and a guardian's"
                    }
                    (false, Namespaces::Own | Namespaces::Host) => {
                        "by process groups alone, as there is no /proc of the sandbox's own"
                    }
                };
                self.layers.missing("kill", format!("{by}; no cgroup: {why}"));
            }
        }
    }

    /// Limits the names of cgroups that the sandbox sees to those below its own.
    pub(crate) fn unshare_cgroups(&self) -> io::Result<()> {
        // The kernel may refuse to start a process in a cgroup that is not below the namespace's.
        if let Some(groups) = &self.groups
            && !groups.is_below_own()?
        {
            return Err(io::Error::other("the sandbox's cgroup is not below its keeper's"));
        }
        // SAFETY: no memory is passed.
        sys::check(unsafe { libc::unshare(libc::CLONE_NEWCGROUP) }).map(drop)
    }

    fn take_groups(&self, name: &str) -> io::Result<SandboxCgroup> {
        let groups = SandboxCgroup {
            dir: sys::inherit(descriptors::CGROUP)?,
            parent: sys::open_at(
                sys::numbered(descriptors::CGROUP),
                c"..",
                libc::O_RDONLY | libc::O_DIRECTORY,
                0,
            )?,
            name: CString::new(name)?,
            path: std::fs::read_link(format!("/proc/self/fd/{}", descriptors::CGROUP)).ok(),
            spares: RefCell::default(),
        };
        // Kernels before 5.14 have no such file.
        open(&groups.dir, KILL, libc::O_WRONLY)?;
        if sys::is_root() {
            // Everything inside has another user, to whom the directories do not belong.
            return Ok(groups);
        }
        match self.namespaces {
            // Only its own is shown in there, and that read-only.
            Namespaces::Own if self.view == FileView::Private => Ok(groups),
            Namespaces::Own if self.layers.has("masks") => read_only::cgroups().map(|()| groups),
            Namespaces::Own => Err(io::Error::other("its mounts cannot be made read-only")),
            Namespaces::Host => Err(io::Error::other("it needs a mount namespace")),
        }
    }
}

impl SandboxCgroup {
    /// Where the host has the sandbox's cgroup.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    /// Whether this process is in the cgroup right above.
    fn is_below_own(&self) -> io::Result<bool> {
        let mut list = String::new();
        File::from(open(&self.parent, PROCS, libc::O_RDONLY)?)
            .take(PIDS_BYTES_MAX)
            .read_to_string(&mut list)?;
        let own = std::process::id().to_string();
        Ok(list.lines().any(|line| line == own))
    }

    /// An empty cgroup for an exec: one of an earlier exec, which keeps its name, or a new one. `serial` distinguishes a
    /// new one from one of the same id that is not empty yet.
    pub(crate) fn make(&self, exec: &str, serial: u64) -> io::Result<ExecCgroup> {
        if let Some(spare) = self.spares.borrow_mut().pop() {
            return Ok(spare);
        }
        let name = CString::new(format!("{exec}.{serial}"))?;
        sys::mkdir_at(self.dir.as_fd(), &name, 0o755)?;
        let opened =
            sys::open_at(self.dir.as_fd(), &name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0);
        match opened {
            Ok(dir) => Ok(ExecCgroup { dir, name, cpu_before_us: 0, was_killed: Cell::new(false) }),
            Err(error) => {
                sys::unlink_at(self.dir.as_fd(), &name, libc::AT_REMOVEDIR)?;
                Err(error)
            }
        }
    }

    /// Kills everything in the sandbox, including processes that it forks in the meantime.
    pub(crate) fn kill(&self) -> io::Result<()> {
        kill(&self.dir)
    }

    /// Removes the cgroup of an exec. False: something still lives in it.
    pub(crate) fn remove(&self, group: &ExecCgroup) -> bool {
        match sys::unlink_at(self.dir.as_fd(), &group.name, libc::AT_REMOVEDIR) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    /// Keeps the cgroup of an exec for a later one, or removes it. Nothing lives in it, and only the keeper puts anything
    /// there.
    pub(crate) fn give_back(&self, group: ExecCgroup) {
        let mut spares = self.spares.borrow_mut();
        if spares.len() < SPARES_MAX && !group.was_killed.get() {
            spares.push(group);
        } else {
            // One that cannot be removed goes with the sandbox.
            self.remove(&group);
        }
    }

    /// Removes the sandbox's own cgroup, once those of its execs are gone.
    pub(crate) fn remove_all(&self) -> io::Result<()> {
        for spare in self.spares.take() {
            self.remove(&spare);
        }
        sys::unlink_at(self.parent.as_fd(), &self.name, libc::AT_REMOVEDIR)
    }
}

impl ExecCgroup {
    pub(crate) fn is_empty(&self) -> bool {
        let mut events = [0; EVENTS_BYTES_MAX];
        // The kernel gives all of it at once.
        let read = open(&self.dir, EVENTS, libc::O_RDONLY).and_then(|fd| sys::read(fd.as_fd(), &mut events));
        match read {
            Ok(len) => events[..len].split(|byte| *byte == b'\n').any(|line| line == b"populated 0"),
            // It was removed, before the file was opened or after.
            Err(error) => matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENOENT)),
        }
    }

    /// Kills everything in it, including processes that it forks in the meantime.
    pub(crate) fn kill(&self) -> io::Result<()> {
        self.was_killed.set(true);
        kill(&self.dir)
    }

    /// Signals each process in it.
    pub(crate) fn signal(&self, signal: i32) -> io::Result<()> {
        let mut waiting = self.pids()?;
        while !waiting.is_empty() {
            let targets = open_some(&mut waiting)?;
            // One that is listed again is still here, so the pid was not given to a process elsewhere.
            let still: HashSet<i32> = self.pids()?.into_iter().collect();
            for (_, pidfd) in targets.iter().filter(|(pid, _)| still.contains(pid)) {
                // One that ended in the meantime is what was wanted.
                if sys::pidfd_send_signal(pidfd.as_fd(), signal).is_err() {}
            }
        }
        Ok(())
    }

    /// Counts from here on what is used of processors.
    pub(crate) fn reset_cpu(&mut self) {
        self.cpu_before_us = self.all_cpu_us();
    }

    /// What everything in it has used of processors since that was reset, also what is dead by now.
    pub(crate) fn cpu_us(&self) -> u64 {
        self.all_cpu_us().saturating_sub(self.cpu_before_us)
    }

    fn all_cpu_us(&self) -> u64 {
        let mut text = String::new();
        let read = open(&self.dir, CPU, libc::O_RDONLY)
            .and_then(|fd| File::from(fd).take(CPU_BYTES_MAX).read_to_string(&mut text));
        // A removed cgroup has no usage.
        read.ok().and_then(|_| number(&text, "usage_usec")).unwrap_or(0)
    }

    pub(crate) fn pids(&self) -> io::Result<Vec<i32>> {
        let mut list = String::new();
        let file = File::from(open(&self.dir, PROCS, libc::O_RDONLY)?);
        file.take(PIDS_BYTES_MAX).read_to_string(&mut list)?;
        // A number without its end may be the beginning of another.
        let whole = list.rsplit_once('\n').map_or("", |(whole, _)| whole);
        Ok(whole.lines().filter_map(|line| line.parse().ok()).filter(|pid| *pid > 0).collect())
    }
}

/// Opens as many of these processes as there are descriptors for, up to a bound.
fn open_some(waiting: &mut Vec<i32>) -> io::Result<Vec<(i32, OwnedFd)>> {
    let mut opened = Vec::new();
    while opened.len() < PIDFDS_MAX
        && let Some(pid) = waiting.pop()
    {
        match sys::pidfd_open(pid) {
            Ok(pidfd) => opened.push((pid, pidfd)),
            Err(error) if error.raw_os_error() != Some(libc::EMFILE) => {}
            Err(error) if opened.is_empty() => return Err(error),
            Err(_) => {
                waiting.push(pid);
                break;
            }
        }
    }
    Ok(opened)
}

fn open(dir: &OwnedFd, name: &CStr, flags: i32) -> io::Result<OwnedFd> {
    sys::open_at(dir.as_fd(), name, flags, 0)
}

fn kill(dir: &OwnedFd) -> io::Result<()> {
    File::from(open(dir, KILL, libc::O_WRONLY)?).write_all(b"1")
}
