//! The output of jobs: where it lies, who waits for more of it, what is kept of it.
//!
//! A byte is in its job's files until it is in the archive (`output.db`), and then only there. Readers read both, so
//! that the move is invisible.

mod archive;
mod archiver;
mod db;
mod live;
mod merge;
mod model_reports;
mod queue;
mod read;
mod retention;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use lodge_core::event::EventBody;
use lodge_core::job::{JobRow, JobState};
use lodge_core::record::EventRow;
use lodge_core::{AgentId, ExecId, JobId};
use lodge_exec::JobTotals;
use lodge_store::JobSummary;
use tokio::sync::Notify;
use tokio::sync::watch::Receiver;

pub use archive::run as run_archive;
pub use model_reports::answer;
pub use read::{JobOutputError, OutputSelection, OutputSlice};
pub use retention::{run as run_retention, settled};
pub use watch::OutputProgress;

use crate::shell::Shell;

/// What the daemon keeps in mind of jobs beside the engine.
#[derive(Debug)]
pub struct Jobs {
    watches: watch::OutputWatches<JobId>,
    /// Execs in standalone sandboxes.
    execs: watch::OutputWatches<ExecId>,
    queue: queue::ArchiveQueue,
    db: Arc<db::ArchiveDb>,
    /// Requests a check of the retention limits.
    look: Notify,
    /// Bytes that were archived since the last check.
    grown: AtomicU64,
    /// Agents whose jobs were archived since the last check, and a signal that there are some.
    settled_agents: Mutex<BTreeSet<AgentId>>,
    settled: Notify,
}

/// How the streams of a job lie in its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobFileLayout {
    /// The beginning.
    pub head: u64,
    /// Each of the two parts of the end.
    pub segment: u64,
}

impl JobFileLayout {
    pub fn of(row: &JobRow) -> JobFileLayout {
        let segment = row.request.output_bytes / 8;
        JobFileLayout { head: row.request.output_bytes - 2 * segment, segment }
    }
}

/// The output so far of a running job. After its end, its row has the totals.
pub fn written(shell: &Shell, found: &JobSummary) -> Option<JobTotals> {
    match found.row.progress.state {
        JobState::Running => shell.executor.job_totals(found.sandbox.as_str(), found.row.id.as_str()).ok(),
        JobState::Pending | JobState::Done | JobState::Error | JobState::Cancelled => None,
    }
}

impl Jobs {
    pub fn new(dir: &Path) -> Jobs {
        Jobs {
            watches: watch::OutputWatches::default(),
            execs: watch::OutputWatches::default(),
            queue: queue::ArchiveQueue::default(),
            db: Arc::new(db::ArchiveDb::new(dir)),
            look: Notify::new(),
            grown: AtomicU64::new(0),
            settled_agents: Mutex::default(),
            settled: Notify::new(),
        }
    }

    /// A job of this agent is recorded as archived.
    fn settled_of(&self, agent: &AgentId) {
        let mut agents = self.settled_agents.lock().unwrap_or_else(PoisonError::into_inner);
        if agents.insert(agent.clone()) {
            self.settled.notify_one();
        }
    }

    fn take_settled(&self) -> BTreeSet<AgentId> {
        std::mem::take(&mut *self.settled_agents.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A job that runs wrote so much by now.
    pub fn wrote(&self, job: &JobId, stdout: u64, stderr: u64) {
        self.queue.wrote(job, stdout, stderr);
        self.watches.wrote(job, stdout, stderr);
    }

    /// Moves all output of an ended job into the archive, and reports it to the engine.
    pub fn archive(&self, job: &JobId) {
        self.queue.finish(job);
    }

    /// Removes the output of jobs from the archive.
    pub fn remove(&self, jobs: Vec<JobId>) {
        self.queue.remove(jobs);
    }

    /// Reports the ends that are on disk now to their waiters.
    pub fn recorded(&self, events: &[EventRow]) {
        let is_end =
            |event: &&EventRow| matches!(event.body, EventBody::JobFinished(_) | EventBody::JobCancelled(_));
        for job in events.iter().filter(is_end).filter_map(|event| event.body.job()?.parse().ok()) {
            self.watches.ended(&job);
        }
        for exec in events.iter().filter_map(|event| ended_exec(&event.body)) {
            self.execs.ended(&exec);
        }
    }

    /// An exec in a standalone sandbox has written this much.
    pub fn exec_wrote(&self, exec: &ExecId, stdout: u64, stderr: u64) {
        self.execs.wrote(exec, stdout, stderr);
    }

    /// The settings may be others.
    pub fn look_now(&self) {
        self.grown.store(0, Ordering::Relaxed);
        self.look.notify_one();
    }

    fn grew(&self, bytes: u64) -> u64 {
        self.grown.fetch_add(bytes, Ordering::Relaxed) + bytes
    }

    /// Gives back memory that only saves time.
    pub fn rest(&self) {
        self.db.rest();
    }

    /// What a person should know of the archive.
    pub fn warnings(&self) -> Vec<String> {
        self.db.trouble()
    }

    /// Ends the archive's thread. What it has not archived is found by the next daemon.
    pub fn stop(&self) {
        self.queue.stop();
    }
}

/// The exec whose end an event records.
fn ended_exec(body: &EventBody) -> Option<ExecId> {
    let exec = match body {
        EventBody::ExecFinished(ended) => &ended.exec,
        EventBody::ExecFailed(ended) => &ended.exec,
        EventBody::ExecCancelled(ended) => &ended.exec,
        _other => return None,
    };
    exec.parse().ok()
}

impl Shell {
    /// At most `len_max` bytes of a job's output from `offset` on, or from the first byte behind it that was kept.
    ///
    /// The row may be older than the output; followers read it again after each change.
    pub async fn job_read(
        self: &Arc<Self>,
        row: &JobRow,
        pick: OutputSelection,
        offset: u64,
        len_max: usize,
    ) -> Result<OutputSlice, JobOutputError> {
        let (shell, row) = (self.clone(), row.clone());
        let read =
            tokio::task::spawn_blocking(move || read::piece(&shell, &row, pick, offset, len_max)).await;
        read?
    }

    /// Changes whenever there is more output of the job, and when its end is recorded. A caller that subscribes first and
    /// then reads the row and the output misses nothing.
    pub fn job_changed(&self, job: &JobId) -> Receiver<OutputProgress> {
        self.jobs.watches.subscribe(job)
    }

    /// As [`Shell::job_changed`], for an exec in a standalone sandbox.
    pub fn exec_changed(&self, exec: &ExecId) -> Receiver<OutputProgress> {
        self.jobs.execs.subscribe(exec)
    }
}
