//! How a job ends: by itself, or because somebody wants it to; then its output is archived, and its files go.

use lodge_core::agent::AgentState;
use lodge_core::job::{JobEvent, JobProgress, JobRow, JobState, JobStream, JobWrite};
use lodge_core::limits::JOBS_UNTOLD_MAX;
use lodge_core::record::Write;
use lodge_core::{AgentId, Cause, EventData, EventKind, JobId, Timestamp};
use lodge_proto::ErrorBody;

use super::{Expiry, JobEffect, JobEnd};
use crate::engine::{Batch, Caller, Effect, Engine, ExecHow, Refusal, RunningJobs};
use crate::{limits, view};

/// Which jobs of an agent are cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Which {
    /// Those that run: the others wait for whatever comes after.
    Running,
    /// Of those that run, the ones whose sandbox lives. What died with its sandbox nobody cancelled.
    Alive,
    All,
}

impl Engine {
    pub(in crate::engine) fn cancel_job(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        id: &JobId,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let Some(row) = self.cancel(batch, id, "cancelled on request", now) else {
            return Err(not_running(id));
        };
        let name = self.agents.get(&row.agent).map(|agent| agent.row.name.as_str()).unwrap_or_default();
        let answer = view::json(&view::job(&row, name));
        self.reply(batch, caller, answer, now);
        Ok(())
    }

    /// One that waits is over at once; of one that runs the end is awaited, and that somebody wanted it is kept. Returns
    /// how it stands then, unless it was over before.
    pub(in crate::engine) fn cancel(
        &mut self,
        batch: &mut Batch,
        id: &JobId,
        why: &str,
        now: Timestamp,
    ) -> Option<JobRow> {
        let row = self.jobs.open(id)?;
        let (agent, progress) = (row.agent.clone(), row.progress.clone());
        match progress.state {
            JobState::Pending => self.end_unstarted(batch, id, JobEvent::Cancelled, why.to_owned(), now),
            JobState::Running => {
                if progress.cancel.is_none() {
                    let progress = JobProgress { cancel: Some(why.to_owned()), ..progress };
                    self.set_progress(batch, id, progress);
                }
                batch.act(Effect::Job { agent, what: JobEffect::Kill { job: id.clone() } });
                self.jobs.get(id).cloned()
            }
            JobState::Done | JobState::Error | JobState::Cancelled => None,
        }
    }

    /// The end of a job that was never started: there is no output of it, and never will be.
    pub(super) fn end_unstarted(
        &mut self,
        batch: &mut Batch,
        id: &JobId,
        event: JobEvent,
        why: String,
        now: Timestamp,
    ) -> Option<JobRow> {
        let progress = self.jobs.open(id)?.progress.clone();
        let state = progress.state.next(event).ok()?;
        let progress = JobProgress { state, error: Some(why), finished_at: Some(now), ..progress };
        self.job_over(batch, id, Outcome { progress, note: None }, now);
        let ended = self.jobs.get(id).cloned();
        self.archived(batch, id);
        ended
    }

    /// Cancels the jobs of an agent whose sandbox is about to go, or that is not to work any more.
    pub(in crate::engine) fn cancel_jobs(
        &mut self,
        batch: &mut Batch,
        agent: &AgentId,
        which: Which,
        why: &str,
        now: Timestamp,
    ) {
        match which {
            Which::Running | Which::Alive => {}
            Which::All => self.cancel_pending(batch, agent, why, now),
        }
        let running = match which {
            Which::Running | Which::All => self.jobs.in_state(agent, JobState::Running),
            Which::Alive => self.jobs.alive(agent),
        };
        for id in running {
            self.cancel(batch, &id, why, now);
        }
    }

    pub(in crate::engine) fn cancel_pending(
        &mut self,
        batch: &mut Batch,
        agent: &AgentId,
        why: &str,
        now: Timestamp,
    ) {
        for id in self.jobs.in_state(agent, JobState::Pending) {
            self.cancel(batch, &id, why, now);
        }
    }

    /// The refusal of whatever would end jobs that run, if that is not wanted.
    pub(in crate::engine) fn spare_jobs(&self, id: &AgentId, jobs: RunningJobs) -> Result<(), Refusal> {
        let running = self.jobs.running_of(id);
        match jobs {
            RunningJobs::Refuse if running > 0 => {
                let name = self.agents.get(id).map(|agent| agent.row.name.as_str()).unwrap_or_default();
                Err(Box::new(
                    ErrorBody::new(
                        "agent.jobs_running",
                        format!("agent `{name}` has running jobs: {running}"),
                    )
                    .hint("ask again when they are over, or with `jobs` `cancel` to cancel them"),
                ))
            }
            RunningJobs::Refuse | RunningJobs::Cancel => Ok(()),
        }
    }

    pub(super) fn job_ended(&mut self, batch: &mut Batch, id: &JobId, end: JobEnd, now: Timestamp) {
        // One that is over, or not known any more, ended before.
        let Some(row) = self.jobs.get(id) else { return };
        let Some(outcome) = outcome(row, &end, now) else { return };
        let (agent, ran) = (row.agent.clone(), row.progress.state == JobState::Running);
        self.job_over(batch, id, outcome, now);
        if is_empty(&end) {
            self.archived(batch, id);
            batch.act(Effect::Job { agent: agent.clone(), what: JobEffect::Forget { job: id.clone() } });
            self.clear_due(batch, &agent);
        } else {
            batch.act(Effect::Job { agent: agent.clone(), what: JobEffect::Archive { job: id.clone() } });
        }
        self.update_due(batch, &agent, now);
        self.hand_out_jobs(batch, now);
        if ran {
            self.at_rest(batch, &agent, now);
        }
    }

    /// Records how a job ended, and tells those who wait for that.
    fn job_over(&mut self, batch: &mut Batch, id: &JobId, outcome: Outcome, now: Timestamp) {
        let Outcome { progress, note } = outcome;
        let kind = match progress.state {
            JobState::Cancelled => EventKind::JobCancelled,
            JobState::Done | JobState::Error => EventKind::JobFinished,
            JobState::Pending | JobState::Running => return,
        };
        let data = EventData {
            status: Some(progress.state.word().to_owned()),
            exit_code: progress.exit_code,
            signal: progress.signal,
            cause: progress.cause.map(|cause| cause.word().to_owned()),
            detail: progress.error.clone().or(note),
            stdout_bytes: Some(progress.stdout.seen),
            stderr_bytes: Some(progress.stderr.seen),
            ..EventData::default()
        };
        self.set_progress(batch, id, progress);
        self.job_event(batch, id, kind, data, now);
        self.answer_waits(batch, id, now);
        // Sessions that nobody goes on with cost bounded memory.
        while self.jobs.untold() > JOBS_UNTOLD_MAX
            && let Some(oldest) = self.jobs.oldest_untold()
        {
            self.tell_job(batch, &oldest);
        }
    }

    pub(super) fn job_archived(&mut self, batch: &mut Batch, id: &JobId, now: Timestamp) {
        let ended = |row: &&JobRow| !row.progress.state.is_open() && !row.archived;
        let Some(agent) = self.jobs.get(id).filter(ended).map(|row| row.agent.clone()) else { return };
        self.archived(batch, id);
        batch.act(Effect::Job { agent: agent.clone(), what: JobEffect::Forget { job: id.clone() } });
        self.clear_due(batch, &agent);
        self.hand_out_jobs(batch, now);
    }

    /// Its output is in the archive and nowhere else. Nobody waits for that to be recorded: it can be found out again.
    fn archived(&mut self, batch: &mut Batch, id: &JobId) {
        batch.writes.push(Write::Job(JobWrite::Archived { id: id.clone() }));
        self.jobs.change(id, |row| row.archived = true);
    }

    /// Has the files of an agent removed that is being removed, once nothing of its jobs is in them.
    pub(in crate::engine) fn clear_due(&mut self, batch: &mut Batch, id: &AgentId) {
        let Some(agent) = self.agents.get(id).filter(|agent| agent.row.state == AgentState::Removing) else {
            return;
        };
        if !self.jobs.has_files(id) {
            let sandbox = agent.row.sandbox.clone();
            batch.act(Effect::Clear { agent: id.clone(), sandbox });
            batch.urgent = true;
        }
    }

    /// The retention's word. What is open or not archived is not old.
    pub(super) fn jobs_expired(&mut self, batch: &mut Batch, jobs: Vec<JobId>, what: Expiry) {
        let in_use = |row: &JobRow| row.progress.state.is_open() || !row.archived;
        let jobs: Vec<JobId> = jobs.into_iter().filter(|id| !self.jobs.get(id).is_some_and(in_use)).collect();
        for id in &jobs {
            match what {
                Expiry::Output => {
                    batch.writes.push(Write::Job(JobWrite::OutputRemoved { id: id.clone() }));
                    self.jobs.change(id, |row| row.output_removed = true);
                }
                Expiry::All => {
                    batch.writes.push(Write::Job(JobWrite::Gone { id: id.clone() }));
                    self.jobs.forget(id);
                }
            }
        }
        if !jobs.is_empty() {
            batch.act(Effect::RemoveOutput { jobs });
        }
    }
}

/// How a job stands after its end.
struct Outcome {
    progress: JobProgress,
    /// What else there is to say of it.
    note: Option<String>,
}

/// None: it does not run.
fn outcome(row: &JobRow, end: &JobEnd, now: Timestamp) -> Option<Outcome> {
    let JobEnd { how, cause, detail, stdout, stderr } = end;
    let timed_out = *cause == Some(Cause::Timeout);
    // Whoever wanted it to end knows that it was killed.
    let (event, error) = match (&row.progress.cancel, how) {
        (Some(why), _) => (JobEvent::Cancelled, Some(why.clone())),
        (None, ExecHow::Exited { .. } | ExecHow::Killed { .. }) if timed_out => {
            (JobEvent::Failed, Some(format!("timed out after {}", limits::span(row.request.timeout_ms))))
        }
        (None, ExecHow::Exited { .. } | ExecHow::Killed { .. }) => (JobEvent::Ended, None),
        (None, ExecHow::NotStarted) => {
            (JobEvent::Failed, Some(detail.clone().unwrap_or_else(|| "it could not be started".to_owned())))
        }
        (None, ExecHow::Lost) => {
            let how = detail.as_deref().unwrap_or("nobody knows how it ended");
            (JobEvent::Failed, Some(format!("lost: {how}")))
        }
    };
    let state = row.progress.state.next(event).ok()?;
    if row.progress.state != JobState::Running {
        return None;
    }
    let (exit_code, signal) = match (state, how) {
        (JobState::Done, ExecHow::Exited { code }) => (Some(*code), None),
        (JobState::Done | JobState::Error, ExecHow::Killed { signal }) => (None, Some(*signal)),
        (
            JobState::Pending | JobState::Running | JobState::Done | JobState::Error | JobState::Cancelled,
            ExecHow::Exited { .. } | ExecHow::Killed { .. } | ExecHow::NotStarted | ExecHow::Lost,
        ) => (None, None),
    };
    let progress = JobProgress {
        state,
        finished_at: Some(now),
        exit_code,
        signal,
        cause: *cause,
        error,
        stdout: *stdout,
        stderr: *stderr,
        ..row.progress.clone()
    };
    Some(Outcome { progress, note: detail.clone() })
}

/// Whether it is known that there is nothing to archive.
fn is_empty(end: &JobEnd) -> bool {
    let nothing = JobStream::default();
    let known = match end.how {
        ExecHow::Exited { .. } | ExecHow::Killed { .. } | ExecHow::NotStarted => true,
        ExecHow::Lost => false,
    };
    known && end.stdout == nothing && end.stderr == nothing
}

fn not_running(id: &JobId) -> Refusal {
    Box::new(
        ErrorBody::new("job.not_running", "async job not currently running")
            .hint(format!("`lodge jobs inspect {id}` shows how it ended")),
    )
}
