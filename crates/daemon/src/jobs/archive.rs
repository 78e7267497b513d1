//! The archive's thread: whatever waits is archived in rounds, with one flush each.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use lodge_core::JobId;
use lodge_store::GivenBack;

use super::archiver::{ArchivedOutput, Archiver, Batch, Left, NotArchived, Placed, Task, Want};
use super::queue::Work;
use super::{Layout, retention};
use crate::crash::{self, Mutation};
use crate::shell::Shell;
use lodge_engine::jobs::JobSeen;
use lodge_engine::{Effect, JobOrder, SandboxEffect, Seen};

/// How far behind everything else this thread stands when somebody waits for a core: output that is not archived yet is
/// safe in its files, and whoever writes it there, or waits for a commit, goes first.
const NICE: i32 = 10;

/// Runs until the daemon ends. Without room it waits and goes on; when the archive fails otherwise output stays where it
/// is, and nobody else is the worse for it.
pub fn run(shell: &Arc<Shell>) {
    // On Linux a thread's own. Without it the archive is as quick as everybody else.
    if let Err(errno) = rustix::process::nice(NICE) {
        tracing::debug!(event = "archive.not_behind", error = %errno);
    }
    let mut thread = Thread {
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

struct Thread<'a> {
    shell: &'a Arc<Shell>,
    archiver: Archiver,
    /// Of the jobs that are not archived.
    places: HashMap<JobId, Placed>,
    said: LoggedTrouble,
}

/// What was said about not archiving since it last went well: the same is not said again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LoggedTrouble {
    Nothing,
    Full,
    Failed,
}

impl Thread<'_> {
    fn work(&mut self, work: &Work) -> Result<(), NotArchived> {
        match work {
            Work::Archive(jobs) => self.archive(jobs),
            Work::Remove(jobs) => {
                self.archiver.remove(jobs)?;
                self.shell.jobs.queue.removed();
                Ok(())
            }
            Work::GiveBack => {
                if self.archiver.give_back()? == GivenBack::All {
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
        self.archiver.settle()?;
        Ok(self.shell.room.spares(2 * bytes + self.archiver.pending_bytes()?))
    }

    fn archive(&mut self, jobs: &[(JobId, Want)]) -> Result<(), NotArchived> {
        let (mut tasks, mut unknown) = (Vec::new(), Vec::new());
        for (job, want) in jobs {
            match self.placed(job)? {
                Some(placed) => tasks.push(Task { job: job.clone(), placed, want: *want }),
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
            self.shell.tell_blocking(Seen::Job(JobSeen::Archived { job }));
        }
        retention::archive_grew(self.shell, batch.bytes());
        Ok(())
    }

    /// The deliberate bug.
    fn forget_too_early(&self, batch: &Batch) {
        let done = |part: &&ArchivedOutput| part.task.want == Want::All && part.left == Left::Nothing;
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

    /// Where a job's files are. None: there is no such job any more.
    fn placed(&mut self, job: &JobId) -> Result<Option<Placed>, NotArchived> {
        if let Some(placed) = self.places.get(job) {
            return Ok(Some(placed.clone()));
        }
        let unread = |error: lodge_store::ReadError| NotArchived::Failed { why: crate::chain(&error) };
        let Some(found) = self.shell.reader.here(|store| store.job_summary(job)).map_err(unread)? else {
            return Ok(None);
        };
        let placed = Placed { sandbox: found.sandbox.to_string(), head: Layout::of(&found.row).head };
        self.places.insert(job.clone(), placed.clone());
        Ok(Some(placed))
    }

    /// Says why nothing was archived, once. True: nothing will be any more.
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
                    .broke("output.db takes nothing any more", "check the disk and restart the daemon");
                true
            }
        }
    }
}
