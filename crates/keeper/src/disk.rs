//! How full the agent's part of the disk is, as far as it has to be known.
//!
//! The file system reports free space at once. The root is counted only when the free space has shrunk by what the
//! sandbox had left, or when the last count is old. A tool that starts on a full disk cannot write, but it can free
//! space.

use std::ffi::CString;
use std::io;
use std::time::{Duration, Instant};

use lodge_link::{ExecKind, LimitHit, Resource, StartExec};

use crate::keep::Keeper;
use crate::measure::{ENTRY_BYTES, RootMeasurement};
use crate::sys;

/// How old a count may be while tools run: this many times its own duration, within these bounds. Others may free as
/// much as the sandbox uses, so free space alone is not enough.
const COUNT_AGAIN_FACTOR: u32 = 50;
const COUNT_AGAIN_MIN: Duration = Duration::from_secs(1);
const COUNT_AGAIN_MAX: Duration = Duration::from_secs(30);
/// The shortest time between two counts, and the factor of the last count's duration.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_FACTOR: u32 = 4;
/// Failed counts in a row after which a running program is assumed to prevent them.
const FAILURES_MAX: u32 = 3;
/// Most tools that wait for a count.
const WAITING_MAX: usize = 64;
/// How much more may be there than when a tool began that cannot write: output that is kept comes by itself.
const FULL_GROWS_MAX: u64 = 1 << 20;

/// What is known of the root.
#[derive(Debug, Default)]
pub(crate) struct RootDisk {
    counted: Option<DiskCount>,
    under_way: Option<(RootMeasurement, FreeSpace, Instant)>,
    not_before: Option<Instant>,
    failures: u32,
    /// Tools that are started once it is known whether there is room.
    waiting: Vec<StartExec>,
}

/// A count, and what was free when it began.
#[derive(Debug, Clone, Copy)]
struct DiskCount {
    used: u64,
    free: FreeSpace,
    at: Instant,
    took: Duration,
}

/// What a file system has left.
#[derive(Debug, Clone, Copy)]
struct FreeSpace {
    bytes: u64,
    files: u64,
}

impl FreeSpace {
    fn of(root: &CString) -> io::Result<FreeSpace> {
        let stat = sys::statfs(root)?;
        Ok(FreeSpace { bytes: stat.f_bfree.saturating_mul(stat.f_bsize.max(0) as u64), files: stat.f_ffree })
    }

    /// Space that was used since then, by any process.
    fn taken_until(self, now: FreeSpace) -> u64 {
        let files = self.files.saturating_sub(now.files).saturating_mul(ENTRY_BYTES);
        self.bytes.saturating_sub(now.bytes).max(files)
    }
}

/// Whether a tool may write files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteSpace {
    Left,
    /// So much was used when it began.
    Full {
        used: u64,
    },
}

/// The disk verdict at the start of a tool.
pub(crate) enum DiskVerdict {
    Known(WriteSpace),
    /// It begins by itself, as soon as it is known.
    Wait,
}

impl WriteSpace {
    /// What the result of a tool says that began like this.
    pub(crate) fn note(self, limit: Option<u64>) -> String {
        let used = match (self, limit) {
            (WriteSpace::Left, _) | (WriteSpace::Full { .. }, None) => return String::new(),
            (WriteSpace::Full { used: u64::MAX }, Some(_)) => "they cannot be counted".to_owned(),
            (WriteSpace::Full { used }, Some(limit)) => format!("{used} bytes of {limit} are used"),
        };
        format!(
            "no room is left for the agent's files ({used}), so this ran without being able to write any. \
             Remove what is not needed. "
        )
    }

    /// Whether a tool that began like this may be the reason that so much is used now.
    pub(crate) fn may_have_taken(self, used_now: u64) -> bool {
        match self {
            WriteSpace::Left => true,
            WriteSpace::Full { used } => used_now > used.saturating_add(FULL_GROWS_MAX),
        }
    }
}

impl Keeper {
    /// Looks at how much is free, and has the root counted if that could be too little.
    pub(crate) fn check_disk(&mut self, now: Instant) {
        let Some(limit) = self.confined.bounds.limits.disk_bytes else { return };
        self.receive_count(now);
        let Some(free) = self.free() else { return };
        let is_awaited = !self.disk.waiting.is_empty();
        let must_count = self.disk.counted.is_none_or(|count| {
            let at_most = count.used.saturating_add(count.free.taken_until(free));
            let again_after = (count.took * COUNT_AGAIN_FACTOR).clamp(COUNT_AGAIN_MIN, COUNT_AGAIN_MAX);
            is_awaited || at_most > limit || now > count.at + again_after
        });
        if must_count {
            self.count(free, now);
        }
    }

    fn free(&self) -> Option<FreeSpace> {
        let root = sys::c_string(self.confined.root.as_os_str()).ok()?;
        FreeSpace::of(&root).ok()
    }

    fn count(&mut self, free: FreeSpace, now: Instant) {
        if self.disk.under_way.is_some() || self.disk.not_before.is_some_and(|at| now < at) {
            return;
        }
        match RootMeasurement::begin(&self.confined.root, &self.dir, self.confined.namespaces, now) {
            Ok(measuring) => self.disk.under_way = Some((measuring, free, now)),
            // No process is available. There may be one at the next check.
            Err(_) => self.disk.not_before = Some(now + PAUSE),
        }
    }

    /// Reads the result of the counting process, if there is one.
    pub(crate) fn receive_count(&mut self, now: Instant) {
        let Some((measuring, free, began)) = &self.disk.under_way else { return };
        let used = match measuring.answer() {
            Ok(None) if now < measuring.until => return,
            Ok(None) => {
                measuring.give_up();
                None
            }
            Ok(used) => used,
            Err(_) => None,
        };
        let (free, took) = (*free, now.saturating_duration_since(*began));
        self.disk.under_way = None;
        self.disk.not_before = Some(now + PAUSE.max(took * PAUSE_FACTOR));
        match used {
            Some(used) => {
                self.disk.failures = 0;
                self.disk.counted = Some(DiskCount { used, free, at: now, took });
                self.settle_disk(used);
            }
            None => {
                self.disk.failures += 1;
                if self.disk.failures >= FAILURES_MAX {
                    self.disk.failures = 0;
                    self.log.write_line("the root cannot be measured, so writes are refused");
                    self.disk.counted = Some(DiskCount { used: u64::MAX, free, at: now, took });
                    self.settle_disk(u64::MAX);
                }
            }
        }
    }

    fn settle_disk(&mut self, used: u64) {
        let Some(limit) = self.confined.bounds.limits.disk_bytes else { return };
        let cause = LimitHit { resource: Resource::Disk, limit, used };
        if used > limit {
            self.end_writers(cause);
        }
        for start in std::mem::take(&mut self.disk.waiting) {
            // The sandbox may have begun to end, or filled with others, while this one waited.
            match self.refusal(&start) {
                Some(why) => self.refuse(start.exec, start.kind, why),
                None if used >= limit => self.begin(start, WriteSpace::Full { used }),
                None => self.begin(start, WriteSpace::Left),
            }
        }
    }

    /// Whether there is room for what a tool may write. A tool that has to wait begins by itself.
    pub(crate) fn room(&mut self, start: &StartExec, now: Instant) -> DiskVerdict {
        let Some(limit) = self.confined.bounds.limits.disk_bytes else {
            return DiskVerdict::Known(WriteSpace::Left);
        };
        let Some(DiskCount { used, .. }) = self.disk.counted.filter(|count| count.used >= limit) else {
            return DiskVerdict::Known(WriteSpace::Left);
        };
        if start.kind == ExecKind::Runtime || self.shelf.is_claimed(&start.exec) {
            return DiskVerdict::Known(WriteSpace::Left);
        }
        if self.disk.waiting.len() < WAITING_MAX
            && let Some(free) = self.free()
        {
            // Space may be free again.
            self.disk.not_before = None;
            self.count(free, now);
        }
        if self.disk.under_way.is_none() || self.disk.waiting.len() >= WAITING_MAX {
            return DiskVerdict::Known(WriteSpace::Full { used });
        }
        self.disk.waiting.retain(|waiting| waiting.exec != start.exec);
        self.disk.waiting.push(start.clone());
        self.watch_from(now);
        DiskVerdict::Wait
    }

    /// Drops a tool that waits.
    pub(crate) fn stop_waiting(&mut self, exec: &str) {
        self.disk.waiting.retain(|waiting| waiting.exec != exec);
    }

    /// Whether a count runs, which may have to be aborted, or is awaited, which may have to be repeated.
    pub(crate) fn is_counting(&self) -> bool {
        self.disk.under_way.is_some() || !self.disk.waiting.is_empty()
    }

    /// The descriptor on which the result of the counting process arrives.
    pub(crate) fn count_answer(&self) -> Option<&std::os::fd::OwnedFd> {
        self.disk.under_way.as_ref().map(|(measuring, ..)| &measuring.answer)
    }
}
