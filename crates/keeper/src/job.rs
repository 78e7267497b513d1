//! The output of a job or of a command: both streams in turn, the order of their writes, and the reports about it.
//!
//! Owns: the file `order`, how often the daemon gets a report, and that a nearly full disk is not filled.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use lodge_link::{KeeperEvent, ORDER_FILE, OrderMarks, StreamKind};

use crate::captured::{MOVES_MAX, PipeFlow, SplicePipes, StreamCapture};
use crate::execs::{self, RunningExec};
use crate::keep::Keeper;
use crate::peers::{DaemonPeer, OUT_SOFT_MAX};
use crate::sys;

/// Time between two reports about output that is being written.
const TELL_EVERY: Duration = Duration::from_millis(50);
/// How long the start of a job may stay untold.
const STARTED_WITHIN: Duration = Duration::from_millis(50);
/// How much is kept between two looks at the disk.
const LOOK_EVERY_BYTES: u64 = 1 << 20;

/// What a job has beyond its streams.
#[derive(Debug)]
pub(crate) struct JobCapture {
    dir: Rc<OwnedFd>,
    marks: OrderMarks,
    order: OrderFile,
    keep_free: u64,
    /// How much was seen when the disk is looked at next.
    look_at: u64,
    told_at: Option<Instant>,
    /// When the next report to the daemon is due.
    pub(crate) tell_at: Option<Instant>,
}

/// The file of the marks.
#[derive(Debug)]
enum OrderFile {
    /// Only one stream spoke so far.
    Unmade,
    Open(File),
    /// It cannot be written: a mark without those before it would say something else.
    Over,
}

impl JobCapture {
    pub(crate) fn new(dir: Rc<OwnedFd>, keep_free: u64) -> JobCapture {
        JobCapture {
            dir,
            marks: OrderMarks::default(),
            order: OrderFile::Unmade,
            keep_free,
            look_at: 0,
            told_at: None,
            tell_at: None,
        }
    }

    /// For streams that are never merged.
    pub(crate) fn without_order(dir: Rc<OwnedFd>, keep_free: u64) -> JobCapture {
        JobCapture { order: OrderFile::Over, ..JobCapture::new(dir, keep_free) }
    }

    fn mark_order(&mut self, who: StreamKind, len: u64) {
        let Some(mark) = self.marks.record_bytes(who, len) else { return };
        if matches!(self.order, OrderFile::Unmade) {
            let made = execs::create_output(&self.dir, ORDER_FILE);
            self.order = made.map_or(OrderFile::Over, |file| OrderFile::Open(file.into()));
        }
        match &mut self.order {
            OrderFile::Open(file) => {
                if file.write_all(&mark).is_err() {
                    self.order = OrderFile::Over;
                }
            }
            OrderFile::Unmade | OrderFile::Over => {}
        }
    }

    /// Why nothing more may be kept, if it is time to look and so.
    fn check_disk(&mut self, seen: u64) -> Option<io::Error> {
        if self.keep_free == 0 || seen < self.look_at {
            return None;
        }
        self.look_at = seen + LOOK_EVERY_BYTES;
        // A disk that cannot be looked at is not known to be full.
        let free = sys::free_bytes(self.dir.as_fd()).ok()?;
        let why = || format!("the disk has {free} bytes left, where {} are to stay free", self.keep_free);
        (free < self.keep_free).then(|| io::Error::other(why()))
    }
}

/// Moves what both streams of a job have, a little of each by turns, so that their order is known as well as it can be.
pub(crate) fn pump(
    job: &mut JobCapture,
    stdout: &mut StreamCapture,
    stderr: &mut StreamCapture,
    ways: &SplicePipes,
) -> PipeFlow {
    for _ in 0..MOVES_MAX {
        if let Some(why) = job.check_disk(stdout.counted.seen + stderr.counted.seen) {
            stderr.stop_keeping(io::Error::other(why.to_string()));
            stdout.stop_keeping(why);
            job.order = OrderFile::Over;
            job.keep_free = 0;
        }
        let mut shift = |who: StreamKind, stream: &mut StreamCapture| {
            let before = stream.counted.seen;
            let flow = stream.shift(ways);
            if stream.counted.seen > before {
                job.mark_order(who, stream.counted.seen - before);
            }
            flow
        };
        match (shift(StreamKind::Stdout, stdout), shift(StreamKind::Stderr, stderr)) {
            (PipeFlow::Ended, PipeFlow::Ended) => return PipeFlow::Ended,
            (PipeFlow::More, _) | (_, PipeFlow::More) => {}
            (PipeFlow::Dry, PipeFlow::Dry | PipeFlow::Ended) | (PipeFlow::Ended, PipeFlow::Dry) => {
                return PipeFlow::Dry;
            }
        }
    }
    PipeFlow::More
}

impl Keeper {
    /// Moves a job's output, and has it reported to the daemon.
    pub(crate) fn pump_job(&mut self, serial: u64) -> PipeFlow {
        let ways = self.ways.clone();
        let Some(one) = self.running.iter_mut().find(|one| one.serial == serial) else {
            return PipeFlow::Ended;
        };
        let Some(job) = &mut one.job else { return PipeFlow::Ended };
        let before = one.stdout.counted.seen + one.stderr.counted.seen;
        let flow = pump(job, &mut one.stdout, &mut one.stderr, &ways);
        if one.stdout.counted.seen + one.stderr.counted.seen > before {
            let now = Instant::now();
            let due = job.told_at.map_or(now, |at| (at + TELL_EVERY).max(now));
            job.tell_at.get_or_insert(due);
            self.check_output(serial);
            self.report_outputs(now);
        }
        flow
    }

    /// Reports output that is due. Without a daemon, the files have it.
    pub(crate) fn report_outputs(&mut self, now: Instant) {
        let behind = self.daemon.as_ref().map(DaemonPeer::behind);
        let is_due =
            |one: &&mut RunningExec| one.job.as_ref().and_then(|job| job.tell_at).is_some_and(|at| at <= now);
        let mut events = Vec::new();
        for one in self.running.iter_mut().filter(is_due) {
            let Some(job) = &mut one.job else { continue };
            match behind {
                // The next report is sent when the daemon has read the last one.
                Some(behind) if behind > OUT_SOFT_MAX => {}
                Some(_) => {
                    (job.told_at, job.tell_at) = (Some(now), None);
                    let (stdout, stderr) = (one.stdout.counted.seen, one.stderr.counted.seen);
                    let (exec, kind) = (one.id.clone(), one.kind);
                    events.push(KeeperEvent::Output { exec, kind, stdout, stderr });
                }
                None => job.tell_at = None,
            }
        }
        events.iter().for_each(|event| self.report(event));
    }

    /// Tells that a job runs, together with the next event if that comes soon: the daemon does nothing about it, and a small
    /// job is over by then.
    pub(crate) fn report_started(&mut self, event: &KeeperEvent) {
        if let Some(daemon) = &mut self.daemon {
            daemon.delay(event, Instant::now() + STARTED_WITHIN);
        }
    }

    /// Tells what was delayed for as long as it may be.
    pub(crate) fn tell_delayed(&mut self, now: Instant) {
        let Some(daemon) = &mut self.daemon else { return };
        if daemon.delayed_until().is_some_and(|until| until <= now) {
            daemon.queue_delayed();
            if daemon.write().is_err() {
                self.drop_daemon();
            }
        }
    }

    /// When the next report is due, if a daemon is connected. The loop wakes when the daemon has read.
    pub(crate) fn report_at(&self) -> Option<Instant> {
        let hears = self.daemon.as_ref().is_some_and(|daemon| daemon.behind() <= OUT_SOFT_MAX);
        let due = self.running.iter().filter_map(|one| one.job.as_ref()?.tell_at).min();
        due.filter(|_| hears)
    }
}
