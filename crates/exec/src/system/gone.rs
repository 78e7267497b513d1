//! Checks whether processes of a sandbox live, and ends what a keeper left.
//!
//! Owns: the proof that a process tree is gone. Only a confirmed absence counts: a process that cannot be checked
//! counts as alive, since nothing may be revived on a guess.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use lodge_link::{CGROUP_FILE, CONTROLLERS_FILE, GUARDIANS_FILE, PID_FILE, is_valid_id, limits};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::unix::AsyncFd;

use super::SystemExecutor;
use super::cgroup::{self, CgroupRemoval};
use super::controllers;
use super::evidence;
use crate::error::SandboxReadError;

/// First and longest pause between two looks at what nothing notifies about.
const PAUSE_FIRST: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Longest text that names a process.
const PROCESS_LEN_MAX: usize = 64;
/// Most processes that are looked at for one of them.
const PROCESSES_LOOKED_AT: usize = 1024;
/// Longest path of a cgroup.
const CGROUP_PATH_MAX: usize = 4096;
/// Longest list of those that hold limits.
const CONTROLLERS_MAX: usize = 4 * CGROUP_PATH_MAX;

/// What there is of a sandbox's processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SandboxProcesses {
    Gone,
    Lives,
}

impl SystemExecutor {
    /// Returns when the sandbox has no keeper, and no process of its tree is left. What a dead keeper left in its cgroup
    /// is killed for that.
    pub(super) async fn gone(&self, sandbox: &str) {
        let mut pause = PAUSE_FIRST;
        // An error may pass, as that of too many open files does. The caller has set the bound.
        while !matches!(self.tree(sandbox).await, Ok(SandboxProcesses::Gone)) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn tree(&self, sandbox: &str) -> io::Result<SandboxProcesses> {
        // The keeper is pid 1 of its namespace: it counts as dead only when all of the namespace is, and it
        // gives up its lock before that.
        if let Some(pidfd) = self.keeper_pidfd(sandbox)? {
            watch(pidfd)?.readable().await?.retain_ready();
        }
        if self.is_locked(sandbox) {
            self.wake_guardians(sandbox)?;
            return Ok(SandboxProcesses::Lives);
        }
        Ok(match self.end_cgroups(sandbox)? {
            CgroupRemoval::Gone => SandboxProcesses::Gone,
            CgroupRemoval::Dying | CgroupRemoval::InUse => SandboxProcesses::Lives,
        })
    }

    /// Ends what dead keepers of the sandbox left in cgroups: without a pid namespace, the kernel does not.
    ///
    /// Covers the cgroup that the last keeper recorded, and unused ones with the sandbox's name.
    pub(crate) fn end_cgroups(&self, sandbox: &str) -> io::Result<CgroupRemoval> {
        if !is_valid_id(sandbox) {
            return Ok(CgroupRemoval::Gone);
        }
        let mut ending = CgroupRemoval::Gone;
        for path in self.cgroup_of(sandbox)?.into_iter().chain(self.cgroups.named(sandbox)?) {
            match cgroup::end(&path)? {
                CgroupRemoval::Gone => {}
                left @ (CgroupRemoval::Dying | CgroupRemoval::InUse) => ending = left,
            }
        }
        for path in self.controllers_of(sandbox)?.into_iter().chain(self.cgroups.legacy_named(sandbox)?) {
            match controllers::end(&path)? {
                CgroupRemoval::Gone => {}
                left @ (CgroupRemoval::Dying | CgroupRemoval::InUse) => ending = left,
            }
        }
        Ok(ending)
    }

    /// Whether a dead keeper left processes, as far as cgroups show. This only checks.
    pub(super) fn has_processes_left(&self, sandbox: &str) -> bool {
        let lives = || -> io::Result<bool> {
            for path in self.cgroup_of(sandbox)?.into_iter().chain(self.cgroups.named(sandbox)?) {
                if cgroup::is_populated(&path)? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        is_valid_id(sandbox) && lives().unwrap_or(true)
    }

    /// The cgroup that the last keeper of a sandbox wrote down.
    fn cgroup_of(&self, sandbox: &str) -> io::Result<Option<PathBuf>> {
        let Some(text) = self.written(sandbox, CGROUP_FILE, "name of the cgroup", CGROUP_PATH_MAX)? else {
            return Ok(None);
        };
        let path = PathBuf::from(OsString::from_vec(text));
        Ok(self.cgroups.is_of(&path, sandbox)?.then_some(path))
    }

    /// Those of the first version that the last keeper of a sandbox wrote down.
    fn controllers_of(&self, sandbox: &str) -> io::Result<Vec<PathBuf>> {
        let what = "names of the cgroups of limits";
        let text = self.written(sandbox, CONTROLLERS_FILE, what, CONTROLLERS_MAX)?.unwrap_or_default();
        let mut found = Vec::new();
        for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let path = PathBuf::from(OsString::from_vec(line.to_vec()));
            if self.cgroups.is_legacy_of(&path, sandbox)? {
                found.push(path);
            }
        }
        Ok(found)
    }

    /// Kills a keeper that has its lock and does not answer, and everything in its namespace.
    ///
    /// By the process that it wrote down, and only if that is still the same one. False: there is no such process.
    pub(super) fn kill_recorded(&self, sandbox: &str) -> io::Result<bool> {
        if !is_valid_id(sandbox) {
            return Ok(false);
        }
        let Some(pidfd) = self.keeper_pidfd(sandbox)?.filter(|_| self.is_locked(sandbox)) else {
            return Ok(false);
        };
        rustix::process::pidfd_send_signal(&pidfd, Signal::KILL)?;
        Ok(true)
    }

    /// The process that the keeper wrote down, if it is still the same one.
    fn keeper_pidfd(&self, sandbox: &str) -> io::Result<Option<OwnedFd>> {
        if !is_valid_id(sandbox) {
            return Ok(None);
        }
        let text = self.written(sandbox, PID_FILE, "name of the keeper's process", PROCESS_LEN_MAX)?;
        // A crash of the machine can leave a torn file. Then no process of it lives.
        text.as_deref().map_or(Ok(None), open_process)
    }

    /// Resumes stopped guardians: they have their keeper's lock until everything that it left is ended.
    pub(crate) fn wake_guardians(&self, sandbox: &str) -> io::Result<()> {
        let what = "list of guardians";
        let text = self.written(sandbox, GUARDIANS_FILE, what, limits::GUARDIANS_MAX)?.unwrap_or_default();
        for line in text.split(|byte| *byte == b'\n') {
            if let Some(pidfd) = open_process(line)? {
                match rustix::process::pidfd_send_signal(&pidfd, Signal::CONT) {
                    Ok(()) | Err(Errno::SRCH) => {}
                    Err(errno) => return Err(errno.into()),
                }
            }
        }
        Ok(())
    }

    /// A small file that a keeper wrote, if there is one.
    fn written(
        &self,
        sandbox: &str,
        name: &str,
        what: &'static str,
        len_max: usize,
    ) -> io::Result<Option<Vec<u8>>> {
        match evidence::read_small(&self.run.join(sandbox), name.as_ref(), what, len_max) {
            Ok(text) => Ok(Some(text)),
            Err(SandboxReadError::Absent { .. }) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

/// The process on this host that a sandbox numbers so, among the descendants of its keeper.
pub(super) fn process_of(keeper: u32, numbered: u32) -> Option<u32> {
    let mut found = vec![keeper];
    let mut at = 0;
    while at < found.len().min(PROCESSES_LOOKED_AT) {
        let pid = found[at];
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ns = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        if pid != keeper && ns.and_then(|pids| pids.split_whitespace().last()?.parse().ok()) == Some(numbered)
        {
            return Some(pid);
        }
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        found.extend(children.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
        at += 1;
    }
    None
}

pub(super) fn watch(pidfd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` stays open, and the same, for as long as the registration owns it.
    let watched = unsafe { AsyncFd::register_with_interest(pidfd, tokio::io::Interest::READABLE) };
    watched.map_err(io::Error::from)
}

/// The process that `<pid> <start>` names, if it is still the same one.
fn open_process(text: &[u8]) -> io::Result<Option<OwnedFd>> {
    let Some((pid, start)) = named_process(text) else { return Ok(None) };
    let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        // The last two: the number is that of a thread now.
        Err(Errno::SRCH | Errno::INVAL | Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    Ok((start_time(pid)? == Some(start)).then_some(pidfd))
}

fn named_process(text: &[u8]) -> Option<(Pid, u64)> {
    let mut words = std::str::from_utf8(text).ok()?.split_whitespace();
    let pid = Pid::from_raw(words.next()?.parse().ok().filter(|pid| *pid > 0)?)?;
    Some((pid, words.next()?.parse().ok()?))
}

/// When a process started, in ticks since boot: with its pid, this names it. None: there is no such process.
fn start_time(pid: Pid) -> io::Result<Option<u64>> {
    let Some(stat) = stat(pid)? else { return Ok(None) };
    let start = stat.split_ascii_whitespace().nth(19).and_then(|start| start.parse().ok());
    start.map(Some).ok_or_else(|| io::Error::other("/proc tells no start time"))
}

/// Whether a process is over: there is none of this number, or it only waits to be collected. What cannot be looked at
/// counts as living.
pub fn is_over(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    match pid.map(stat) {
        Some(Ok(Some(stat))) => stat.trim_start().starts_with(['Z', 'X']),
        Some(Ok(None)) | None => true,
        Some(Err(_)) => false,
    }
}

/// The process's fields in `/proc`, from its state on. None: no such process exists.
fn stat(pid: Pid) -> io::Result<Option<String>> {
    match fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
        // The name before it may hold anything.
        Ok(stat) => Ok(Some(stat.rsplit(')').next().unwrap_or_default().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}
