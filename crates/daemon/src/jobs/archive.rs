//! The archive's thread: archives all waiting output in rounds, with one flush each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::JobId;
use lodge_store::ShrinkState;

use super::archiver::{
    ArchiveBatch, ArchiveRemainder, ArchiveRequest, ArchiveTask, ArchivedOutput, Archiver, JobOutputLayout,
    NotArchived,
};
use super::queue::ArchiverWork;
use super::{JobFileLayout, retention};
use crate::crash::{self, Mutation};
use crate::shell::Shell;
use lodge_engine::jobs::JobObservation;
use lodge_engine::{Effect, JobOrder, Observation, SandboxEffect};

/// The priority of this thread when cores are busy: output that is not archived yet is safe in its files, so the
/// writers of those files and commits go first.
const NICE: i32 = 10;

/// Runs until the daemon ends. On a full disk it waits and continues. After another failure output stays in its files,
/// and nothing else is affected.
pub fn run(shell: &Arc<Shell>) {
    // On Linux the priority is per thread. Without it the archive runs with normal priority.
    if let Err(errno) = rustix::process::nice(NICE) {
        tracing::debug!(event = "archive.not_behind", error = %errno);
    }
    let mut thread = ArchiveThread {
        archiver: Archiver::new(shell.executor.clone(), shell.jobs.db.clone()),
        places: HashMap::new(),
        said: LoggedTrouble::Nothing,
        shell,
    };
    while let Some(work) = shell.jobs.queue.next() {
        match thread.work(&work) {
            Ok(()) => {
                thread.said = LoggedTrouble::Nothing;
                if shell.jobs.queue.is_empty() {
                    thread.archiver.rest();
                }
            }
            Err(error) => {
                if thread.is_over(error) {
                    return;
                }
                shell.jobs.queue.failed(work);
            }
        }
    }
}

struct ArchiveThread<'a> {
    shell: &'a Arc<Shell>,
    archiver: Archiver,
    /// Of the jobs that are not archived.
    places: HashMap<JobId, JobOutputLayout>,
    said: LoggedTrouble,
}

/// The last logged reason for not archiving: the same reason is not logged twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoggedTrouble {
    Nothing,
    Full,
    Failed,
}

impl ArchiveThread<'_> {
    fn work(&mut self, work: &ArchiverWork) -> Result<(), NotArchived> {
        match work {
            ArchiverWork::Archive(jobs) => self.archive(jobs),
            ArchiverWork::Remove(jobs) => {
                self.archiver.remove(jobs)?;
                self.shell.jobs.queue.removed();
                Ok(())
            }
            ArchiverWork::GiveBack => {
                if self.archiver.shrink()? == ShrinkState::All {
                    self.shell.jobs.queue.gave_back();
                }
                Ok(())
            }
        }
    }

    /// Whether there is room for so much: once for the log of the archive, once for its pages, and for the pages of what
    /// earlier rounds left in the log.
    fn has_room(&mut self, bytes: u64) -> Result<bool, NotArchived> {
        if self.shell.room.spares(2 * bytes + self.archiver.pending_bytes()?) {
            return Ok(true);
        }
        self.archiver.checkpoint_now()?;
        Ok(self.shell.room.spares(2 * bytes + self.archiver.pending_bytes()?))
    }

    fn archive(&mut self, jobs: &[(JobId, ArchiveRequest)]) -> Result<(), NotArchived> {
        let (mut tasks, mut unknown) = (Vec::new(), Vec::new());
        for (job, want) in jobs {
            match self.placed(job)? {
                Some(placed) => tasks.push(ArchiveTask { job: job.clone(), placed, want: *want }),
                None => unknown.push(job.clone()),
            }
        }
        self.shell.jobs.queue.drop_jobs(&unknown);
        let batch = self.archiver.gather(tasks)?;
        // What lies in files can wait, what is committed cannot.
        if batch.bytes() > 0 && !self.has_room(batch.bytes() as u64)? {
            return Err(NotArchived::Full);
        }
        if crash::mutation() == Mutation::ForgetBeforeArchive {
            self.forget_too_early(&batch);
        }
        crash::point("before_archive");
        self.archiver.write(&batch)?;
        crash::point("after_archive");
        self.archiver.release(&batch);
        crash::point("after_release");
        for job in self.shell.jobs.queue.archived(&batch.parts) {
            self.places.remove(&job);
            self.shell.report_blocking(Observation::Job(JobObservation::Archived { job }));
        }
        retention::archive_grew(self.shell, batch.bytes());
        Ok(())
    }

    /// The deliberate bug.
    fn forget_too_early(&self, batch: &ArchiveBatch) {
        let done = |part: &&ArchivedOutput| {
            part.task.want == ArchiveRequest::All && part.left == ArchiveRemainder::Nothing
        };
        for ArchivedOutput { task, .. } in batch.parts.iter().filter(done) {
            if let Ok(Some(found)) = self.shell.reader.here(|store| store.job_summary(&task.job)) {
                let what = SandboxEffect::Job(JobOrder::Forget { job: found.row.id });
                let (sandbox, agent) = (found.sandbox, found.row.agent);
                self.shell.act(Effect::Sandbox { sandbox, agent, what });
            }
        }
        // As a slow disk would, so that the files are gone before the commit.
        std::thread::sleep(Duration::from_millis(50));
    }

    /// The place of a job's files. None: the job no longer exists.
    fn placed(&mut self, job: &JobId) -> Result<Option<JobOutputLayout>, NotArchived> {
        if let Some(placed) = self.places.get(job) {
            return Ok(Some(placed.clone()));
        }
        let unread = |error: lodge_store::ReadError| NotArchived::Failed { why: crate::chain(&error) };
        let Some(found) = self.shell.reader.here(|store| store.job_summary(job)).map_err(unread)? else {
            return Ok(None);
        };
        let placed =
            JobOutputLayout { sandbox: found.sandbox.to_string(), head: JobFileLayout::of(&found.row).head };
        self.places.insert(job.clone(), placed.clone());
        Ok(Some(placed))
    }

    /// Logs once why nothing was archived. True: archiving has ended.
    fn is_over(&mut self, error: NotArchived) -> bool {
        match error {
            NotArchived::Full => {
                if std::mem::replace(&mut self.said, LoggedTrouble::Full) != LoggedTrouble::Full {
                    tracing::warn!(
                        event = "archive.full",
                        "job output waits in its files until there is room"
                    );
                }
                false
            }
            NotArchived::Failed { why } => {
                if std::mem::replace(&mut self.said, LoggedTrouble::Failed) != LoggedTrouble::Failed {
                    tracing::error!(event = "archive.not_written", error = why);
                }
                false
            }
            NotArchived::Broken => {
                self.shell
                    .jobs
                    .db
                    .broke("output.db cannot be written", "check the disk and restart the daemon");
                true
            }
        }
    }
}
