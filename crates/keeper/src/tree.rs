//! Which processes there are, and which of them belong together.
//!
//! Owns: walking `/proc` and signalling what was found there. Never: trusting a pid alone; a process is
//! a pid and its start time, rechecked through a pidfd before each signal. A group has nothing but its number,
//! so groups are signalled only where every number is the sandbox's own.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;

use crate::fence::Namespaces;
use crate::sys;

/// Most rounds of killing processes that forked meanwhile, before other work continues.
const CHASES_MAX: usize = 16;

/// One process, at the moment it was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// In clock ticks since boot.
    pub(crate) start: u64,
    pub(crate) is_zombie: bool,
}

/// Looks at one process.
pub(crate) fn process(pid: i32) -> Option<Process> {
    parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// `pid (name) state ppid pgrp session …`; the name may contain anything, so the last `)` counts.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut words = rest.split_ascii_whitespace();
    let state = words.next()?;
    let mut number = || words.next()?.parse().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    let start = words.nth(15)?.parse().ok()?;
    Some(Process { pid, parent, group, session, start, is_zombie: state == "Z" || state == "X" })
}

/// Every process that `/proc` showed at one moment, by its parent.
#[derive(Debug)]
pub(crate) struct ProcessTree {
    seen: HashSet<i32>,
    children: HashMap<i32, Vec<Process>>,
}

impl ProcessTree {
    /// Looks at all of them once, which costs the more the more there are: once in a turn is often enough.
    pub(crate) fn now() -> ProcessTree {
        ProcessTree::of(pids().filter_map(process))
    }

    fn of(all: impl Iterator<Item = Process>) -> ProcessTree {
        let mut walk = ProcessTree { seen: HashSet::new(), children: HashMap::new() };
        for process in all {
            walk.seen.insert(process.pid);
            walk.children.entry(process.parent).or_default().push(process);
        }
        walk
    }

    /// Kills what descends from `ancestor`, and chases what that forked since the look around.
    ///
    /// Returns how many there were, of whom some may be missed that fork and go in no time.
    pub(crate) fn kill_descendants(
        &self,
        ancestor: i32,
        without: ExcludedProcesses<'_>,
        reach: PidUse,
    ) -> usize {
        let found = self.descendants_but(ancestor, without);
        let killed = kill_all(&found, reach);
        if killed > 0 {
            let held: &[i32] = match without {
                ExcludedProcesses::Children(_) => &[],
                ExcludedProcesses::Themselves(pids) => pids,
            };
            let found = found.iter().map(|process| process.pid);
            let mut family: HashSet<i32> = found.chain([ancestor]).chain(held.iter().copied()).collect();
            let mut seen = self.seen.clone();
            for _ in 0..CHASES_MAX {
                if kill_new_children(&mut seen, &mut family) == 0 {
                    break;
                }
            }
        }
        killed
    }

    /// Everything that descends from `ancestor`, without it.
    pub(crate) fn descendants(&self, ancestor: i32) -> Vec<Process> {
        self.descendants_but(ancestor, ExcludedProcesses::Children(&[]))
    }

    /// As [`ProcessTree::descendants`], without some.
    pub(crate) fn descendants_but(&self, ancestor: i32, without: ExcludedProcesses<'_>) -> Vec<Process> {
        let mut found: Vec<Process> = Vec::new();
        let mut seen = HashSet::from([ancestor]);
        let mut parents = vec![ancestor];
        while let Some(parent) = parents.pop() {
            for child in self.children.get(&parent).into_iter().flatten() {
                // The processes were not looked at all at once, so a pid may have come back in between.
                if !seen.insert(child.pid) {
                    continue;
                }
                match without {
                    ExcludedProcesses::Children(pids) if parent == ancestor && pids.contains(&child.pid) => {
                        continue;
                    }
                    ExcludedProcesses::Themselves(pids) if pids.contains(&child.pid) => {}
                    ExcludedProcesses::Children(_) | ExcludedProcesses::Themselves(_) => found.push(*child),
                }
                parents.push(child.pid);
            }
        }
        found
    }
}

/// Every pid that `/proc` shows.
fn pids() -> impl Iterator<Item = i32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Kills each unseen process whose parent is one of the family. Only few are checked, so they die shortly after they
/// were born.
fn kill_new_children(seen: &mut HashSet<i32>, family: &mut HashSet<i32>) -> usize {
    let mut hit = 0;
    for new in pids().filter(|pid| seen.insert(*pid)).filter_map(process) {
        if family.contains(&new.parent) {
            family.insert(new.pid);
            // One that is gone already has left a successor, which is chased next.
            drop(signal(&new, libc::SIGKILL));
            hit += 1;
        }
    }
    hit
}

/// Who is left out of the descendants of a process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ExcludedProcesses<'a> {
    /// These of its children, and what descends from those.
    Children(&'a [i32]),
    /// These, but not what descends from them.
    Themselves(&'a [i32]),
}

/// What may be named by a number alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PidUse {
    /// Process groups, since no number here belongs to a process outside of the sandbox. One is excluded: a program
    /// that was just forked may still be in the group of its parent.
    GroupsBut(i32),
    /// Nothing: a number may have gone to a stranger.
    Processes,
}

impl PidUse {
    pub(crate) fn within(namespaces: Namespaces, spared: i32) -> PidUse {
        match namespaces {
            Namespaces::Own => PidUse::GroupsBut(spared),
            Namespaces::Host => PidUse::Processes,
        }
    }
}

/// Signals exactly this process, not one that took its pid since.
pub(crate) fn signal(target: &Process, signal: i32) -> io::Result<()> {
    let pidfd = sys::pidfd_open(target.pid)?;
    match process(target.pid) {
        Some(now) if now.start == target.start => sys::pidfd_send_signal(pidfd.as_fd(), signal),
        Some(_) | None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
}

/// Kills these processes, and where that is in reach all who share their groups: a group is killed at once, and
/// what it forks meanwhile with it. An exec's groups are its own, as each exec has a session of its own.
///
/// Zombies are passed over. Returns how many were not.
fn kill_all(found: &[Process], reach: PidUse) -> usize {
    let living = || found.iter().filter(|process| !process.is_zombie);
    let groups: HashSet<i32> = match reach {
        PidUse::GroupsBut(spared) => {
            let groups = living().map(|process| process.group);
            groups.filter(|group| *group > 1 && *group != spared).collect()
        }
        PidUse::Processes => HashSet::new(),
    };
    // One that ended in the meantime is what was wanted.
    for group in groups {
        if sys::kill(-group, libc::SIGKILL).is_err() {}
    }
    // The youngest first: of those that fork and go, it is the one that has not forked yet.
    let mut targets: Vec<&Process> = living().collect();
    targets.sort_unstable_by_key(|process| Reverse((process.start, process.pid)));
    for process in &targets {
        if signal(process, libc::SIGKILL).is_err() {}
    }
    targets.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(pid: i32, parent: i32, group: i32, session: i32) -> Process {
        Process { pid, parent, group, session, start: 1, is_zombie: false }
    }

    #[test]
    fn a_name_full_of_brackets_does_not_confuse_the_parser() {
        let stat = "7 (a) S 9 (b)) Z 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let expected = Process { pid: 7, parent: 3, group: 4, session: 5, start: 4242, is_zombie: true };
        assert_eq!(parse(7, stat), Some(expected));
        assert_eq!(parse(7, "7 (a"), None);
    }

    fn pids(found: Vec<Process>) -> Vec<i32> {
        let mut pids: Vec<i32> = found.iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn descendants_are_found_through_any_number_of_generations() {
        let all = [
            one(1, 0, 1, 1),
            one(10, 1, 10, 10),
            one(11, 10, 11, 11),
            one(12, 11, 12, 12),
            one(20, 1, 20, 20),
            one(21, 20, 20, 20),
        ];
        let walk = ProcessTree::of(all.into_iter());
        assert_eq!(pids(walk.descendants(10)), [11, 12]);
        assert_eq!(pids(walk.descendants_but(1, ExcludedProcesses::Children(&[10]))), [20, 21]);
        assert_eq!(pids(walk.descendants_but(1, ExcludedProcesses::Themselves(&[10, 20]))), [11, 12, 21]);
    }

    #[test]
    fn pids_that_came_back_during_a_walk_do_not_lead_in_circles() {
        let walk =
            ProcessTree::of([one(10, 1, 10, 10), one(11, 10, 10, 10), one(10, 11, 10, 10)].into_iter());
        assert_eq!(pids(walk.descendants(1)), [10, 11]);
    }

    #[test]
    fn a_chain_as_long_as_the_host_has_pids_is_walked_in_a_moment() {
        let longest = 200_000;
        let walk = ProcessTree::of((2..longest).map(|pid| one(pid, pid - 1, pid, pid)));
        assert_eq!(walk.descendants(1).len(), longest as usize - 2);
    }
}
