//! What processes use: read from `/proc` while something runs, where no cgroup counts it.
//!
//! Owns: reading. Never: trusting that a process that was read is still there.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use crate::bounds::number;

/// Most descriptors that are checked for unmapped memory.
const DESCRIPTORS_MAX: usize = 16 * 1024;
/// How the kernel names a file that lies in memory alone.
const MEMORY_FILE: &[u8] = b"/memfd:";

/// What one process uses, or several together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Of the process and of those that it waited for.
    pub(crate) cpu_us: u64,
    pub(crate) tasks: u64,
    /// What is in memory of it, with what it shares.
    pub(crate) rss_bytes: u64,
}

/// Every process that `/proc` showed at one moment.
#[derive(Debug, Default)]
pub(crate) struct Loads {
    all: HashMap<i32, Load>,
    children: HashMap<i32, Vec<i32>>,
}

/// How the kernel counts.
#[derive(Debug, Clone, Copy)]
struct Units {
    tick_us: u64,
    page_bytes: u64,
}

impl Units {
    fn here() -> Units {
        // SAFETY: neither call touches memory.
        let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
        Units { tick_us: 1_000_000 / ticks.max(1) as u64, page_bytes: page.max(1) as u64 }
    }
}

impl Loads {
    pub(crate) fn now() -> Loads {
        let units = Units::here();
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let mut loads = Loads::default();
        for pid in pids {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            if let Some((parent, load)) = parse(&stat, units) {
                loads.all.insert(pid, load);
                loads.children.entry(parent).or_default().push(pid);
            }
        }
        loads
    }

    /// Everything that descends from `ancestor`, without it.
    pub(crate) fn below(&self, ancestor: i32) -> Vec<i32> {
        let (mut found, mut at) = (vec![ancestor], 0);
        // A process is listed under one parent, so nothing is found twice, unless it is its own ancestor by a pid
        // that came back; there are no more than were read.
        while at < found.len() && found.len() <= self.all.len() + 1 {
            found.extend(self.children.get(&found[at]).into_iter().flatten());
            at += 1;
        }
        found.remove(0);
        found
    }

    pub(crate) fn of(&self, pid: i32) -> Load {
        self.all.get(&pid).copied().unwrap_or_default()
    }

    pub(crate) fn sum(&self, pids: &[i32]) -> Load {
        pids.iter().map(|pid| self.of(*pid)).fold(Load::default(), |sum, one| Load {
            cpu_us: sum.cpu_us + one.cpu_us,
            tasks: sum.tasks + one.tasks,
            rss_bytes: sum.rss_bytes + one.rss_bytes,
        })
    }
}

/// `pid (name) state ppid …`; the name may contain anything, so the last `)` counts.
fn parse(stat: &str, units: Units) -> Option<(i32, Load)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let words: Vec<&str> = rest.split_ascii_whitespace().collect();
    let at = |index: usize| words.get(index)?.parse::<u64>().ok();
    let parent = words.get(1)?.parse().ok()?;
    let ticks = at(11)? + at(12)? + at(13)? + at(14)?;
    let load = Load { cpu_us: ticks * units.tick_us, tasks: at(17)?, rss_bytes: at(21)? * units.page_bytes };
    Some((parent, load))
}

/// What is in memory because of one process: its share of what it has mapped. Files do not count, as the kernel can
/// take them back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) own_bytes: u64,
    pub(crate) shared_bytes: u64,
}

impl Share {
    /// None: the process is gone, or does not let itself be looked at.
    pub(crate) fn of(pid: i32) -> Option<Share> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let bytes = |key: &str| number(&text, key).map(|kilobytes| kilobytes * 1024);
        match (bytes("Pss_Anon"), bytes("Pss_Shmem")) {
            (Some(own_bytes), Some(shared_bytes)) => Some(Share { own_bytes, shared_bytes }),
            // Before Linux 5.4 there is but the sum.
            (Some(_), None) | (None, Some(_) | None) => {
                Some(Share { own_bytes: bytes("Pss")?, shared_bytes: 0 })
            }
        }
    }
}

/// What this process and those that it waited for had written to disks.
pub(crate) fn written_bytes(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
    number(&text, "write_bytes").unwrap_or(0)
}

/// What lies in shared memory of the sandbox that no process has to map: segments, and files in `/dev/shm`.
pub(crate) fn shared_memory_bytes() -> u64 {
    let segments = std::fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    // The fifteenth column is what of a segment is in memory.
    let resident =
        segments.lines().skip(1).filter_map(|line| line.split_whitespace().nth(14)?.parse::<u64>().ok());
    let files = crate::sys::statfs(c"/dev/shm").map_or(0, |stat| {
        stat.f_blocks.saturating_sub(stat.f_bfree).saturating_mul(stat.f_bsize.max(0) as u64)
    });
    resident.sum::<u64>() + files
}

/// What lies in files of memory that these processes have open, be they mapped or not.
pub(crate) fn memory_files_bytes<'a>(pids: impl Iterator<Item = &'a i32>) -> u64 {
    let descriptors =
        pids.flat_map(|pid| std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten());
    let mut seen = HashSet::new();
    let mut bytes = 0_u64;
    for descriptor in descriptors.take(DESCRIPTORS_MAX) {
        let path = descriptor.path();
        let name = std::fs::read_link(&path).unwrap_or_default();
        if !name.as_os_str().as_bytes().starts_with(MEMORY_FILE) {
            continue;
        }
        // One that is closed by now holds nothing.
        let Ok(meta) = std::fs::metadata(&path) else { continue };
        if seen.insert((meta.dev(), meta.ino())) {
            bytes = bytes.saturating_add(meta.blocks().saturating_mul(512));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: Units = Units { tick_us: 10_000, page_bytes: 4096 };

    #[test]
    fn a_process_is_read_whatever_it_is_called() {
        let stat = "7 (a) S 1 2 (b)) R 3 4 5 0 -1 0 0 0 0 0 1 2 3 4 20 0 6 0 4242 0 9 0";
        let load = Load { cpu_us: 100_000, tasks: 6, rss_bytes: 9 * 4096 };
        assert_eq!(parse(stat, UNITS), Some((3, load)));
        assert_eq!(parse("7 (a", UNITS), None);
    }

    #[test]
    fn descendants_are_found_once_also_when_pids_lead_in_circles() {
        let mut loads = Loads::default();
        for (pid, parent) in [(2, 1), (3, 2), (4, 3), (9, 8)] {
            loads.all.insert(pid, Load { tasks: 1, ..Load::default() });
            loads.children.entry(parent).or_default().push(pid);
        }
        let mut below = loads.below(1);
        below.sort_unstable();
        assert_eq!(below, [2, 3, 4]);
        assert_eq!(loads.sum(&below).tasks, 3);
        loads.children.entry(4).or_default().push(2);
        assert!(loads.below(2).len() <= loads.all.len() + 1);
    }

    #[test]
    fn a_file_of_memory_counts_once_by_what_is_in_it() {
        let file = rustix::fs::memfd_create(c"counted", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(file);
        let again = file.try_clone().unwrap();
        let own = [std::process::id().cast_signed()];
        file.set_len(1 << 40).unwrap();
        let before = memory_files_bytes(own.iter());
        std::io::Write::write_all(&mut file, &vec![1; 1 << 20]).unwrap();
        let after = memory_files_bytes(own.iter());
        drop((file, again));
        assert_eq!(after - before, 1 << 20);
    }

    #[test]
    fn this_process_uses_something() {
        let own = std::process::id().cast_signed();
        let load = Loads::now().of(own);
        assert!(load.tasks > 0 && load.rss_bytes > 0, "{load:?}");
        assert!(Share::of(own).is_some_and(|share| share.own_bytes > 0));
    }
}
