//! What the kernel says of processes: CPU, memory, bytes written, who started whom.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Of `/proc/<pid>/stat`; the same on every architecture that Lodge is built for.
const TICKS_A_SECOND: u64 = 100;

/// The processes of one daemon.
#[derive(Debug, Clone)]
pub(crate) struct DaemonProcesses {
    pub(crate) daemon: u32,
    /// With the guardians that stand between them and their runtimes where there are no cgroups.
    pub(crate) keepers: Vec<u32>,
    pub(crate) runtimes: Vec<u32>,
}

impl DaemonProcesses {
    pub(crate) fn of(daemon: u32, keepers: &[i32]) -> DaemonProcesses {
        let mut keepers: Vec<u32> = keepers.iter().map(|pid| pid.cast_unsigned()).collect();
        let below = |above: &[u32]| -> Vec<u32> {
            all().filter(|pid| parent(*pid).is_some_and(|parent| above.contains(&parent))).collect()
        };
        let (mut runtimes, guardians): (Vec<u32>, Vec<u32>) =
            below(&keepers).into_iter().partition(|pid| is_runtime(*pid));
        runtimes.extend(below(&guardians).into_iter().filter(|pid| is_runtime(*pid)));
        keepers.extend(guardians);
        DaemonProcesses { daemon, keepers, runtimes }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.daemon).chain(self.keepers.iter().copied()).chain(self.runtimes.iter().copied())
    }

    /// Coarse: for spans in which much runs.
    pub(crate) fn cpu_ms(&self) -> f64 {
        self.all().map(cpu_ms).sum()
    }

    pub(crate) fn threads_ns(&self) -> HashMap<String, u64> {
        self.all().flat_map(threads_ns).collect()
    }
}

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The fields after the name, which may itself hold spaces and brackets.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(text.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

/// How many files a process has open.
pub(crate) fn open_files(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

fn is_runtime(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    // The second one is where the release before this one has it.
    ["/opt/lodge/runtime\0", "/usr/local/bin/runtime\0"].iter().any(|runtime| line.contains(runtime))
}

/// Ends a process as `kill -9` does.
pub(crate) fn kill9(pid: u32) {
    // SAFETY: sending a signal touches no memory; the pid is of a process that this run's daemon started.
    let sent = unsafe { libc::kill(pid.cast_signed(), libc::SIGKILL) };
    assert_eq!(sent, 0, "process {pid} could not be killed");
}

/// Time on a CPU so far, in the kernel's coarse ticks, with the threads that ended.
pub(crate) fn cpu_ms(pid: u32) -> f64 {
    let ticks = stat(pid).map_or(0, |fields| {
        let field = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        field(11) + field(12)
    });
    (ticks * 1_000 / TICKS_A_SECOND) as f64
}

/// Time on a CPU so far, exact, of every thread there is: for spans in which hardly anything runs.
pub(crate) fn threads_ns(pid: u32) -> HashMap<String, u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let ns = text.split_whitespace().next()?.parse().ok()?;
            Some((thread.file_name().to_string_lossy().into_owned(), ns))
        })
        .collect()
}

/// The memory of a process, with shared pages divided among their users. `None` if the kernel does not show it: keepers
/// and runtimes are not dumpable, so only root can read it.
pub(crate) fn pss_kb(pid: u32) -> Option<u64> {
    rollup(pid, "Pss:")
}

/// The part of it that no file holds, which the kernel cannot take back.
pub(crate) fn anonymous_kb(pid: u32) -> Option<u64> {
    rollup(pid, "Anonymous:")
}

/// The size of the program that it runs.
pub(crate) fn program_kb(pid: u32) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{pid}/exe")).ok()?.len() / 1024)
}

fn rollup(pid: u32, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes this process caused to be sent to disk.
pub(crate) fn written(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
}

pub(crate) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

pub(crate) fn is_root() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_whitespace().nth(1) == Some("0")
}

/// The kind of file system under a directory.
pub(crate) fn file_system(dir: &Path) -> String {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let found = mounts.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (at, kind) = (words.next()?, words.next()?);
        dir.starts_with(at).then_some((at.len(), kind))
    });
    found.max_by_key(|(depth, _)| *depth).map_or("an unknown file system", |(_, kind)| kind).to_owned()
}
