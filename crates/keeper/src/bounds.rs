//! The limits of the sandbox as far as the kernel holds them: cgroups where there are any, rlimits where not.
//!
//! Owns: entering and leaving cgroups of the first version, what is written to either kind, the counters that show a
//! limit that was hit, and the rlimits of each exec. Never: the reaction to a limit (see `watch`).

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use lodge_link::{CONTROLLERS_FILE, Controllers, EnforcedLimit, ExecKind, KeeperSpec, Limits, Resource};

use crate::confine::ExecUser;
use crate::disk::WriteSpace;
use crate::fence::{self, Fence, Namespaces};
use crate::group::SandboxCgroup;
use crate::launch;
use crate::sys;

/// A failpoint that does not kill: the keeper behaves as on a host without controllers.
const NO_CONTROLLERS: &str = "keeper.no_controllers";
/// Longest file of counters that is read.
const COUNTERS_MAX: usize = 4096;
/// Tasks of the keeper's own, beside those that were allowed to the sandbox: its three threads and the gate.
const OWN_TASKS: u64 = 4;
/// How much of an rlimit on data is left to a program beyond what the sandbox may use: what programs reserve and never
/// touch is not what is limited, and the watch sees what they touch.
const DATA_ROOM_BYTES: u64 = 1 << 30;
/// Between the signal that a program may handle and the one that it may not.
const CPU_ROOM_S: u64 = 5;

/// The sandbox's limits and what holds them.
#[derive(Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) limits: Limits,
    memory: Option<CgroupLimit>,
    pids: Option<CgroupLimit>,
    /// Whether the time of an exec's dead processes is known by its cgroup.
    counts_cpu: bool,
    entered: Vec<LegacyCgroup>,
    users: RlimitScope,
}

/// Whose processes an rlimit counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum RlimitScope {
    /// Those of the sandbox alone.
    Own,
    /// Those of the sandbox, with its keeper and guardians.
    Namespace,
    /// Everything of that user on the host: a number for the sandbox would mean nothing.
    #[default]
    Host,
}

/// Whether the keeper sees the processes of its sandbox, so that it can add up what they use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProcessView {
    Seen,
    Hidden,
}

/// A limit in a cgroup, and the number of times that it was hit.
#[derive(Debug)]
struct CgroupLimit {
    file: File,
    key: &'static str,
    by: &'static str,
}

/// A cgroup of the first version that this process is in.
#[derive(Debug)]
struct LegacyCgroup {
    parent: OwnedFd,
    /// The parent's list of processes, open for the way back.
    back: File,
    name: CString,
}

/// The rlimits of one exec.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExecRlimits {
    data: Option<u64>,
    processes: Option<u64>,
    file: Option<u64>,
    cpu_s: Option<u64>,
    refused_writes: RefusedWrites,
}

/// What a program gets when it writes beyond its limit.
#[derive(Debug, Clone, Copy)]
enum RefusedWrites {
    Signal,
    /// A refused write must not kill a runtime, whose log is a file, or a program that removes files.
    Error,
}

impl ExecRlimits {
    /// In a child, before it becomes its program.
    pub(crate) fn apply(&self) -> io::Result<()> {
        let same = [
            (libc::RLIMIT_DATA, self.data),
            (libc::RLIMIT_NPROC, self.processes),
            (libc::RLIMIT_FSIZE, self.file),
        ];
        for (which, most) in same {
            most.map_or(Ok(()), |most| sys::set_rlimit(which, most, most))?;
        }
        match self.refused_writes {
            RefusedWrites::Signal => {}
            // SAFETY: no memory is passed.
            RefusedWrites::Error => unsafe {
                libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            },
        }
        let seconds =
            |seconds: u64| sys::set_rlimit(libc::RLIMIT_CPU, seconds, seconds.saturating_add(CPU_ROOM_S));
        self.cpu_s.map_or(Ok(()), seconds)
    }
}

impl Fence {
    /// Lets the kernel hold what it can of the limits, and notes what it does not. The kind of users comes later.
    pub(crate) fn bound(&mut self, spec: &KeeperSpec) {
        let none = Controllers::default();
        let is_without = fence::tests_without(spec, NO_CONTROLLERS);
        let given = if is_without { &none } else { &spec.controllers };
        let mut bounds = Bounds { limits: spec.limits, ..Bounds::default() };
        let groups = self.groups.as_ref().filter(|_| !is_without);
        let memory = bounds.hold_memory(given.memory.as_deref(), groups);
        self.layers.note("limit_memory", memory);
        let pids = bounds.hold_pids(given.pids.as_deref(), groups);
        self.layers.note("limit_pids", pids);
        bounds.counts_cpu = self.groups.is_some();
        self.layers.note(
            "limit_cpu_time",
            if bounds.counts_cpu { Ok(()) } else { Err(instead("no cgroup", "rlimits and watching")) },
        );
        self.bounds = bounds;
    }
}

/// Records the cgroups of the sandbox, for the daemon that cleans up after a killed keeper.
pub(crate) fn record(dir: &OwnedFd, controllers: &Controllers) -> io::Result<()> {
    let paths = [&controllers.memory, &controllers.pids].into_iter().flatten();
    let paths: Vec<&[u8]> = paths.map(|path| path.as_os_str().as_bytes()).collect();
    launch::put_file(dir, CONTROLLERS_FILE, c"controllers.new", &paths.join(&b'\n'))
}

impl Bounds {
    fn hold_memory(&mut self, legacy: Option<&Path>, groups: Option<&SandboxCgroup>) -> io::Result<()> {
        let limit = self.limits.memory_bytes;
        let held = match (legacy, groups) {
            (Some(path), _) => LegacyCgroup::enter(path, |dir| {
                if let Some(limit) = limit {
                    let limit = limit.to_string();
                    put(dir, c"memory.limit_in_bytes", &limit)?;
                    // Without an account of swap there is no such file.
                    ignore_absent(put(dir, c"memory.memsw.limit_in_bytes", &limit))?;
                }
                CgroupLimit::open(dir, c"memory.oom_control", "oom_kill", "cgroup (memory, version 1)")
            })
            .map(|(entered, counted)| {
                self.entered.push(entered);
                counted
            }),
            (None, Some(groups)) => {
                CgroupLimit::open(&groups.dir, c"memory.events", "oom_kill", "cgroup (memory)").and_then(
                    |counted| {
                        if let Some(limit) = limit {
                            put(&groups.dir, c"memory.max", &limit.to_string())?;
                            ignore_absent(put(&groups.dir, c"memory.swap.max", "0"))?;
                        }
                        Ok(counted)
                    },
                )
            }
            (None, None) => Err(io::Error::other("no cgroup")),
        };
        self.memory = Some(held.map_err(|error| instead(error, "rlimits and watching"))?);
        Ok(())
    }

    fn hold_pids(&mut self, legacy: Option<&Path>, groups: Option<&SandboxCgroup>) -> io::Result<()> {
        let limit = self.limits.pids;
        let held = match (legacy, groups) {
            (Some(path), _) => LegacyCgroup::enter(path, |dir| {
                if let Some(limit) = limit {
                    put(dir, c"pids.max", &limit.saturating_add(OWN_TASKS).to_string())?;
                }
                CgroupLimit::open(dir, c"pids.events", "max", "cgroup (pids, version 1)")
            })
            .map(|(entered, counted)| {
                self.entered.push(entered);
                counted
            }),
            (None, Some(groups)) => CgroupLimit::open(&groups.dir, c"pids.events", "max", "cgroup (pids)")
                .and_then(|counted| {
                    if let Some(limit) = limit {
                        put(&groups.dir, c"pids.max", &limit.to_string())?;
                    }
                    Ok(counted)
                }),
            (None, None) => Err(io::Error::other("no cgroup")),
        };
        self.pids = Some(held.map_err(|error| instead(error, "rlimits and watching"))?);
        Ok(())
    }

    pub(crate) fn set_users(&mut self, user: ExecUser, namespaces: Namespaces) {
        self.users = match (user, namespaces) {
            (ExecUser::Own(_), Namespaces::Own | Namespaces::Host) => RlimitScope::Own,
            (ExecUser::Keeper, Namespaces::Own) => RlimitScope::Namespace,
            (ExecUser::Keeper, Namespaces::Host) => RlimitScope::Host,
        };
    }

    /// How often the kernel killed for lack of memory. None: the kernel does not count, so the keeper has to watch.
    pub(crate) fn oom_kills(&self) -> Option<u64> {
        self.memory.as_ref().map(CgroupLimit::read)
    }

    /// Whether the kernel counts those kills.
    pub(crate) fn counts_oom_kills(&self) -> bool {
        self.memory.is_some()
    }

    /// How often the kernel refused a process. None: as above.
    pub(crate) fn refused_forks(&self) -> Option<u64> {
        self.pids.as_ref().map(CgroupLimit::read)
    }

    /// What holds for an exec where no cgroup does. `guardians` live beside it.
    pub(crate) fn rlimits(&self, kind: ExecKind, space: WriteSpace, guardians: u64) -> ExecRlimits {
        let data = self.limits.memory_bytes.filter(|_| self.memory.is_none());
        let pids = self.limits.pids.filter(|_| self.pids.is_none());
        ExecRlimits {
            data: data.map(|bytes| bytes.saturating_add(bytes.max(DATA_ROOM_BYTES))),
            processes: pids.and_then(|pids| match self.users {
                RlimitScope::Own => Some(pids),
                RlimitScope::Namespace => Some(pids.saturating_add(OWN_TASKS + guardians)),
                RlimitScope::Host => None,
            }),
            file: self.limits.disk_bytes.map(|bytes| match space {
                WriteSpace::Left => bytes,
                WriteSpace::Full { .. } => 0,
            }),
            cpu_s: match (kind, self.limits.cpu_ms) {
                // The watch comes first; this holds should it not.
                (ExecKind::Tool | ExecKind::Job | ExecKind::Command, Some(cpu_ms)) => {
                    Some(cpu_ms.div_ceil(1000).saturating_add(1))
                }
                (ExecKind::Tool | ExecKind::Job | ExecKind::Command | ExecKind::Runtime, _) => None,
            },
            refused_writes: match (kind, space) {
                (ExecKind::Tool | ExecKind::Job | ExecKind::Command, WriteSpace::Left) => {
                    RefusedWrites::Signal
                }
                (ExecKind::Runtime, _)
                | (ExecKind::Tool | ExecKind::Job | ExecKind::Command, WriteSpace::Full { .. }) => {
                    RefusedWrites::Error
                }
            },
        }
    }

    /// Each limit, with what enforces it.
    pub(crate) fn in_force(&self, processes: ProcessView) -> Vec<EnforcedLimit> {
        let watching = |rlimit: &str| match processes {
            ProcessView::Seen => format!("{rlimit} and watching"),
            ProcessView::Hidden => rlimit.to_owned(),
        };
        let memory = self.memory.as_ref().map_or_else(|| watching("rlimit"), |held| held.by.to_owned());
        let pids = match (&self.pids, self.users) {
            (Some(held), _) => held.by.to_owned(),
            (None, RlimitScope::Own | RlimitScope::Namespace) => watching("rlimit"),
            (None, RlimitScope::Host) => "watching".to_owned(),
        };
        let cpu = if self.counts_cpu { "cgroup (cpu) and rlimit".to_owned() } else { watching("rlimit") };
        let all = [
            (Resource::Memory, self.limits.memory_bytes, memory),
            (Resource::Pids, self.limits.pids, pids),
            (Resource::CpuTime, self.limits.cpu_ms, cpu),
            (Resource::Disk, self.limits.disk_bytes, "rlimit and watching".to_owned()),
        ];
        all.into_iter()
            .filter_map(|(resource, limit, by)| Some(EnforcedLimit { resource, limit: limit?, by }))
            .collect()
    }

    /// Where the keeper has to remove a directory at its end.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &OwnedFd> {
        self.entered.iter().map(|entered| &entered.parent)
    }

    /// Leaves its cgroups and removes them, once nothing else is in them.
    pub(crate) fn leave(&self) -> io::Result<()> {
        self.entered.iter().try_for_each(|entered| {
            (&entered.back).write_all(b"0")?;
            sys::unlink_at(entered.parent.as_fd(), &entered.name, libc::AT_REMOVEDIR)
        })
    }
}

impl LegacyCgroup {
    /// Enters a cgroup, once `prepare` has set its limits.
    fn enter(
        path: &Path,
        prepare: impl FnOnce(&OwnedFd) -> io::Result<CgroupLimit>,
    ) -> io::Result<(LegacyCgroup, CgroupLimit)> {
        let dir = sys::open_at(
            rustix::fs::CWD,
            &sys::c_string(path.as_os_str())?,
            libc::O_RDONLY | libc::O_DIRECTORY,
            0,
        )?;
        let parent = sys::open_at(dir.as_fd(), c"..", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
        let back = File::from(sys::open_at(parent.as_fd(), c"cgroup.procs", libc::O_WRONLY, 0)?);
        let name = path.file_name().ok_or_else(|| io::Error::other("it has no name"))?;
        let counted = prepare(&dir)?;
        move_into(&dir)?;
        Ok((LegacyCgroup { parent, back, name: sys::c_string(name)? }, counted))
    }
}

impl CgroupLimit {
    fn open(dir: &OwnedFd, name: &CStr, key: &'static str, by: &'static str) -> io::Result<CgroupLimit> {
        let file = File::from(sys::open_at(dir.as_fd(), name, libc::O_RDONLY, 0)?);
        Ok(CgroupLimit { file, key, by })
    }

    /// Also 0 if the counter is gone: then no limit can be reported.
    fn read(&self) -> u64 {
        let mut bytes = [0; COUNTERS_MAX];
        let len = self.file.read_at(&mut bytes, 0).unwrap_or(0);
        let text = std::str::from_utf8(&bytes[..len]).unwrap_or("");
        number(text, self.key).unwrap_or(0)
    }
}

/// The number on the line of `key`.
pub(crate) fn number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        (name.trim_end_matches(':') == key).then(|| value.split_whitespace().next()?.parse().ok())?
    })
}

/// Moves this process, which has no second thread yet. In cgroups of version 1 a thread that moves itself does not
/// wait, while a process waits until every processor has noticed, about 10 ms. Version 2 knows only processes.
fn move_into(dir: &OwnedFd) -> io::Result<()> {
    match put(dir, c"tasks", "0") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => put(dir, c"cgroup.procs", "0"),
        moved => moved,
    }
}

fn put(dir: &OwnedFd, name: &CStr, value: &str) -> io::Result<()> {
    File::from(sys::open_at(dir.as_fd(), name, libc::O_WRONLY, 0)?).write_all(value.as_bytes())
}

fn ignore_absent(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn instead(why: impl std::fmt::Display, by: &str) -> io::Error {
    io::Error::other(format!("by {by}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_found_by_its_key_and_by_nothing_like_it() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 12\n";
        assert_eq!(number(text, "oom_kill"), Some(12));
        assert_eq!(number("Pss:  7 kB\nPss_Anon:\t 5 kB\n", "Pss_Anon"), Some(5));
        assert_eq!(number(text, "oom"), None);
    }

    #[test]
    fn what_no_cgroup_holds_is_reported_as_watched() {
        let limits = Limits { memory_bytes: Some(5), pids: Some(6), cpu_ms: None, disk_bytes: Some(8) };
        let bounds = Bounds { limits, users: RlimitScope::Namespace, ..Bounds::default() };
        let told: Vec<(Resource, u64, String)> = bounds
            .in_force(ProcessView::Seen)
            .into_iter()
            .map(|one| (one.resource, one.limit, one.by))
            .collect();
        let by = || "rlimit and watching".to_owned();
        assert_eq!(told, [(Resource::Memory, 5, by()), (Resource::Pids, 6, by()), (Resource::Disk, 8, by())]);
    }
}
