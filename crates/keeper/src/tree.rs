//! Which processes there are, and which of them belong together.
//!
//! Owns: walking `/proc` and signalling what was found there. Never: trusting a pid alone; a process is
//! a pid and its start time, rechecked through a pidfd before each signal.

use std::io;
use std::os::fd::AsRawFd;

use crate::sys;

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

/// Looks at every process that `/proc` shows.
pub(crate) fn processes() -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(process).collect()
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

/// The processes of the exec whose main process is or was `main`: its group, its session, their
/// descendants, and whatever was found to belong to it before.
pub(crate) fn belonging(all: &[Process], main: i32, before: &[Process]) -> Vec<Process> {
    let was_here =
        |process: &Process| before.iter().any(|b| b.pid == process.pid && b.start == process.start);
    let roots = all.iter().filter(|process| {
        process.pid == main || process.group == main || process.session == main || was_here(process)
    });
    with_descendants(all, roots.copied().collect())
}

/// Everything that descends from `ancestor`, without it.
pub(crate) fn descendants(all: &[Process], ancestor: i32) -> Vec<Process> {
    let children = all.iter().filter(|process| process.parent == ancestor);
    with_descendants(all, children.copied().collect())
}

fn with_descendants(all: &[Process], mut found: Vec<Process>) -> Vec<Process> {
    let mut next = 0;
    while next < found.len() {
        let parent = found[next].pid;
        for process in all.iter().filter(|process| process.parent == parent) {
            if !found.iter().any(|known| known.pid == process.pid) {
                found.push(*process);
            }
        }
        next += 1;
    }
    found
}

/// Signals exactly this process, not one that took its pid since.
pub(crate) fn signal(target: &Process, signal: i32) -> io::Result<()> {
    let pidfd = sys::pidfd_open(target.pid)?;
    match process(target.pid) {
        Some(now) if now.start == target.start => sys::pidfd_send_signal(pidfd.as_raw_fd(), signal),
        Some(_) | None => Err(io::Error::from_raw_os_error(libc::ESRCH)),
    }
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

    #[test]
    fn an_exec_is_its_group_its_session_their_descendants_and_what_was_seen_before() {
        let all = [
            one(1, 0, 1, 1),
            one(10, 1, 10, 10),
            one(11, 10, 11, 10),
            one(12, 11, 12, 12),
            one(13, 1, 10, 10),
            one(14, 1, 14, 14),
            one(20, 1, 20, 20),
            one(21, 20, 20, 20),
        ];
        let pids = |found: Vec<Process>| {
            let mut pids: Vec<i32> = found.iter().map(|process| process.pid).collect();
            pids.sort_unstable();
            pids
        };
        assert_eq!(pids(belonging(&all, 10, &[])), [10, 11, 12, 13]);
        assert_eq!(pids(belonging(&all, 10, &[one(14, 12, 14, 14)])), [10, 11, 12, 13, 14]);
        assert_eq!(pids(descendants(&all, 20)), [21]);
    }
}
