//! How a job ends: by itself or by a cancel. Then its output is archived and its files are removed.

use lodge_core::agent::AgentState;
use lodge_core::event::{EventBody, JobCancelled, JobFinished};
use lodge_core::job::{JobEvent, JobProgress, JobRow, JobState, JobStreamBytes, JobWrite};
use lodge_core::limits::JOBS_UNTOLD_MAX;
use lodge_core::{AgentId, Cause, JobId, Timestamp};

use super::JobAnswer;
use super::refusal::JobRefusal;
use super::submit::JobEventFields;
use super::{Expiry, JobEffect, JobEnd};
use crate::agents::Agent;
use crate::agents::refusal::AgentRefusal;
use crate::{Answer, Caller, Effect, Engine, ExecOutcome, JobOrder, Refusal, RunningJobs, SandboxEffect};

/// Which jobs of an agent are cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelScope {
    /// Running jobs. Pending jobs wait for the next sandbox.
    Running,
    /// Running jobs whose sandbox lives. A job that died with its sandbox was not cancelled.
    Alive,
    All,
}

impl Engine {
    pub(crate) fn cancel_job(&mut self, caller: Caller, id: &JobId) -> Result<(), Refusal> {
        let Some(row) = self.cancel(id, "cancelled on request") else {
            return Err(JobRefusal::NotRunning { job: id.clone() }.into());
        };
        let name = self.agents.get(&row.agent).map(|agent| agent.row.name.as_str()).unwrap_or_default();
        let agent_name = name.to_owned();
        self.reply(caller, Answer::Job(Box::new(JobAnswer { row, agent_name })));
        Ok(())
    }

    /// A pending job ends at once. The end of a running job is awaited, and the cancel is recorded. Returns the row,
    /// unless the job had ended before.
    pub(crate) fn cancel(&mut self, id: &JobId, why: &str) -> Option<JobRow> {
        let row = self.jobs.open(id)?;
        let (agent, progress) = (row.agent.clone(), row.progress.clone());
        match progress.state {
            JobState::Pending => self.end_unstarted(id, JobEvent::Cancelled, why.to_owned()),
            JobState::Running => {
                if progress.cancel.is_none() {
                    let progress = JobProgress { cancel: Some(why.to_owned()), ..progress };
                    self.set_progress(id, progress);
                }
                self.job_in_sandbox(&agent, JobOrder::Kill { job: id.clone() });
                self.jobs.get(id).cloned()
            }
            JobState::Done | JobState::Error | JobState::Cancelled => None,
        }
    }

    /// The end of a job that was never started: it has no output.
    pub(crate) fn end_unstarted(&mut self, id: &JobId, event: JobEvent, why: String) -> Option<JobRow> {
        let progress = self.jobs.open(id)?.progress.clone();
        let state = progress.state.next(event).ok()?;
        let progress = JobProgress { state, error: Some(why), finished_at: Some(self.step.now), ..progress };
        self.record_job_end(id, JobOutcome { progress, note: None });
        let ended = self.jobs.get(id).cloned();
        self.archived(id);
        ended
    }

    /// Cancels the jobs of an agent whose sandbox is about to end, or that will not work again.
    pub(crate) fn cancel_jobs(&mut self, agent: &AgentId, which: CancelScope, why: &str) {
        match which {
            CancelScope::Running | CancelScope::Alive => {}
            CancelScope::All => self.cancel_pending(agent, why),
        }
        let running = match which {
            CancelScope::Running | CancelScope::All => self.jobs.in_state(agent, JobState::Running),
            CancelScope::Alive => self.jobs.alive(agent),
        };
        for id in running {
            self.cancel(&id, why);
        }
    }

    pub(crate) fn cancel_pending(&mut self, agent: &AgentId, why: &str) {
        for id in self.jobs.in_state(agent, JobState::Pending) {
            self.cancel(&id, why);
        }
    }

    /// Refuses a request that would end running jobs, if the caller does not allow that.
    pub(crate) fn refuse_if_jobs_run(&self, id: &AgentId, jobs: RunningJobs) -> Result<(), Refusal> {
        let running = self.jobs.running_of(id);
        match jobs {
            RunningJobs::Refuse if running > 0 => {
                let name = self.agents.get(id).map(|agent| agent.row.name.as_str()).unwrap_or_default();
                Err(AgentRefusal::JobsRunning { name: name.to_owned(), running }.into())
            }
            RunningJobs::Refuse | RunningJobs::Cancel => Ok(()),
        }
    }

    pub(crate) fn job_ended(&mut self, id: &JobId, end: JobEnd) {
        // The job has ended already, or is no longer in memory.
        let Some(row) = self.jobs.get(id) else { return };
        let Some(outcome) = outcome(row, &end, self.step.now) else { return };
        let (agent, ran) = (row.agent.clone(), row.progress.state == JobState::Running);
        self.record_job_end(id, outcome);
        if is_empty(&end) {
            self.archived(id);
            self.job_in_sandbox(&agent, JobOrder::Forget { job: id.clone() });
            self.clear_due(&agent);
        } else {
            self.step.act(Effect::Job(JobEffect::Archive { job: id.clone() }));
        }
        self.update_due(&agent);
        self.start_pending_jobs();
        if ran {
            self.mark_ready_if_idle(&agent);
        }
    }

    /// Records how a job ended, and answers the callers that wait for it.
    fn record_job_end(&mut self, id: &JobId, outcome: JobOutcome) {
        let JobOutcome { progress, note } = outcome;
        let cancelled = match progress.state {
            JobState::Cancelled => true,
            JobState::Done | JobState::Error => false,
            JobState::Pending | JobState::Running => return,
        };
        let ended = JobEndFields {
            status: progress.state.word().to_owned(),
            exit_code: progress.exit_code,
            signal: progress.signal,
            cause: progress.cause.map(|cause| cause.word().to_owned()),
            detail: progress.error.clone().or(note),
            stdout_bytes: progress.stdout.seen,
            stderr_bytes: progress.stderr.seen,
        };
        self.set_progress(id, progress);
        self.job_event(id, |of| ended.event(of, cancelled));
        self.answer_waits(id);
        // Bounds the memory for sessions that never continue.
        while self.jobs.unreported() > JOBS_UNTOLD_MAX
            && let Some(oldest) = self.jobs.oldest_unreported()
        {
            self.mark_job_reported(&oldest);
        }
    }

    pub(crate) fn job_archived(&mut self, id: &JobId) {
        let ended = |row: &&JobRow| !row.progress.state.is_open() && !row.archived;
        let Some(agent) = self.jobs.get(id).filter(ended).map(|row| row.agent.clone()) else { return };
        self.archived(id);
        self.job_in_sandbox(&agent, JobOrder::Forget { job: id.clone() });
        self.clear_due(&agent);
        self.start_pending_jobs();
    }

    /// The output is only in the archive. This write forces no commit: a restart finds it out again.
    fn archived(&mut self, id: &JobId) {
        self.step.write_with_next_commit(JobWrite::Archived { id: id.clone() });
        self.jobs.change(id, |row| row.archived = true);
    }

    /// Orders the removal of an agent's files, once they contain no output of its jobs.
    pub(crate) fn clear_due(&mut self, id: &AgentId) {
        let is_removing = |agent: &Agent| agent.row.state == AgentState::Removing;
        if self.agents.get(id).is_some_and(is_removing) && !self.jobs.has_files(id) {
            self.in_sandbox(id, SandboxEffect::Clear);
            self.step.mark_urgent();
        }
    }

    /// Retention expired these jobs. Open jobs and jobs that are not archived never expire.
    pub(crate) fn jobs_expired(&mut self, jobs: Vec<JobId>, what: Expiry) {
        let in_use = |row: &JobRow| row.progress.state.is_open() || !row.archived;
        let jobs: Vec<JobId> = jobs.into_iter().filter(|id| !self.jobs.get(id).is_some_and(in_use)).collect();
        for id in &jobs {
            match what {
                Expiry::Output => {
                    self.step.write_with_next_commit(JobWrite::OutputRemoved { id: id.clone() });
                    self.jobs.change(id, |row| row.output_removed = true);
                }
                Expiry::All => {
                    self.step.write_with_next_commit(JobWrite::Gone { id: id.clone() });
                    self.jobs.forget(id);
                }
            }
        }
        if !jobs.is_empty() {
            self.step.act(Effect::Job(JobEffect::RemoveOutput { jobs }));
        }
    }
}

/// The fields of a job's end event.
struct JobEndFields {
    status: String,
    exit_code: Option<i32>,
    signal: Option<i32>,
    cause: Option<String>,
    detail: Option<String>,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

impl JobEndFields {
    fn event(self, of: JobEventFields, cancelled: bool) -> EventBody {
        let JobEventFields { job, session, turn, name } = of;
        let JobEndFields { status, exit_code, signal, cause, detail, stdout_bytes, stderr_bytes } = self;
        if cancelled {
            JobCancelled {
                job,
                session,
                turn,
                name,
                status,
                exit_code,
                signal,
                cause,
                detail,
                stdout_bytes,
                stderr_bytes,
            }
            .into()
        } else {
            JobFinished {
                job,
                session,
                turn,
                name,
                status,
                exit_code,
                signal,
                cause,
                detail,
                stdout_bytes,
                stderr_bytes,
            }
            .into()
        }
    }
}

/// The state of a job after its end.
struct JobOutcome {
    progress: JobProgress,
    /// Additional details.
    note: Option<String>,
}

/// None: it does not run.
fn outcome(row: &JobRow, end: &JobEnd, now: Timestamp) -> Option<JobOutcome> {
    let JobEnd { how, cause, detail, stdout, stderr } = end;
    let timed_out = *cause == Some(Cause::Timeout);
    // The caller that cancelled it knows that it was killed.
    let (event, error) = match (&row.progress.cancel, how) {
        (Some(why), _) => (JobEvent::Cancelled, Some(why.clone())),
        (None, ExecOutcome::Exited { .. } | ExecOutcome::Killed { .. }) if timed_out => (
            JobEvent::Failed,
            Some(format!("timed out after {}", lodge_core::limits::span(row.request.timeout_ms))),
        ),
        (None, ExecOutcome::Exited { .. } | ExecOutcome::Killed { .. }) => (JobEvent::Ended, None),
        (None, ExecOutcome::NotStarted) => {
            (JobEvent::Failed, Some(detail.clone().unwrap_or_else(|| "it could not be started".to_owned())))
        }
        (None, ExecOutcome::Lost) => {
            let how = detail.as_deref().unwrap_or("its outcome is unknown");
            (JobEvent::Failed, Some(format!("lost: {how}")))
        }
    };
    let state = row.progress.state.next(event).ok()?;
    if row.progress.state != JobState::Running {
        return None;
    }
    let (exit_code, signal) = match (state, how) {
        (JobState::Done, ExecOutcome::Exited { code }) => (Some(*code), None),
        (JobState::Done | JobState::Error, ExecOutcome::Killed { signal }) => (None, Some(*signal)),
        (
            JobState::Pending | JobState::Running | JobState::Done | JobState::Error | JobState::Cancelled,
            ExecOutcome::Exited { .. }
            | ExecOutcome::Killed { .. }
            | ExecOutcome::NotStarted
            | ExecOutcome::Lost,
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
    Some(JobOutcome { progress, note: detail.clone() })
}

/// Whether the job certainly has no output to archive.
fn is_empty(end: &JobEnd) -> bool {
    let nothing = JobStreamBytes::default();
    let known = match end.how {
        ExecOutcome::Exited { .. } | ExecOutcome::Killed { .. } | ExecOutcome::NotStarted => true,
        ExecOutcome::Lost => false,
    };
    known && end.stdout == nothing && end.stderr == nothing
}
