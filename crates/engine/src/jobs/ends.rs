//! How a job ends: by itself, or because somebody wants it to; then its output is archived, and its files go.

use lodge_core::agent::AgentState;
use lodge_core::event::{EventBody, JobCancelled, JobFinished};
use lodge_core::job::{JobEvent, JobProgress, JobRow, JobState, JobStream, JobWrite};
use lodge_core::limits::JOBS_UNTOLD_MAX;
use lodge_core::{AgentId, Cause, JobId, Timestamp};

use super::refusal::JobRefusal;
use super::submit::JobRef;
use super::{Expiry, JobEffect, JobEnd};
use crate::agents::Agent;
use crate::agents::refusal::AgentRefusal;
use crate::answer::JobAnswer;
use crate::{Answer, Caller, Effect, Engine, ExecHow, JobOrder, Refusal, RunningJobs, SandboxEffect};

/// Which jobs of an agent are cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that run: the others wait for whatever comes after.
    Running,
    /// Of those that run, the ones whose sandbox lives. What died with its sandbox nobody cancelled.
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

    /// One that waits is over at once; of one that runs the end is awaited, and that somebody wanted it is kept. Returns
    /// how it stands then, unless it was over before.
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

    /// The end of a job that was never started: there is no output of it, and never will be.
    pub(crate) fn end_unstarted(&mut self, id: &JobId, event: JobEvent, why: String) -> Option<JobRow> {
        let progress = self.jobs.open(id)?.progress.clone();
        let state = progress.state.next(event).ok()?;
        let progress = JobProgress { state, error: Some(why), finished_at: Some(self.step.now), ..progress };
        self.job_over(id, JobOutcome { progress, note: None });
        let ended = self.jobs.get(id).cloned();
        self.archived(id);
        ended
    }

    /// Cancels the jobs of an agent whose sandbox is about to go, or that is not to work any more.
    pub(crate) fn cancel_jobs(&mut self, agent: &AgentId, which: Which, why: &str) {
        match which {
            Which::Running | Which::Alive => {}
            Which::All => self.cancel_pending(agent, why),
        }
        let running = match which {
            Which::Running | Which::All => self.jobs.in_state(agent, JobState::Running),
            Which::Alive => self.jobs.alive(agent),
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

    /// The refusal of whatever would end jobs that run, if that is not wanted.
    pub(crate) fn spare_jobs(&self, id: &AgentId, jobs: RunningJobs) -> Result<(), Refusal> {
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
        // One that is over, or not known any more, ended before.
        let Some(row) = self.jobs.get(id) else { return };
        let Some(outcome) = outcome(row, &end, self.step.now) else { return };
        let (agent, ran) = (row.agent.clone(), row.progress.state == JobState::Running);
        self.job_over(id, outcome);
        if is_empty(&end) {
            self.archived(id);
            self.job_in_sandbox(&agent, JobOrder::Forget { job: id.clone() });
            self.clear_due(&agent);
        } else {
            self.step.act(Effect::Job(JobEffect::Archive { job: id.clone() }));
        }
        self.update_due(&agent);
        self.hand_out_jobs();
        if ran {
            self.at_rest(&agent);
        }
    }

    /// Records how a job ended, and tells those who wait for that.
    fn job_over(&mut self, id: &JobId, outcome: JobOutcome) {
        let JobOutcome { progress, note } = outcome;
        let cancelled = match progress.state {
            JobState::Cancelled => true,
            JobState::Done | JobState::Error => false,
            JobState::Pending | JobState::Running => return,
        };
        let ended = EndOfJob {
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
        // Sessions that nobody goes on with cost bounded memory.
        while self.jobs.untold() > JOBS_UNTOLD_MAX
            && let Some(oldest) = self.jobs.oldest_untold()
        {
            self.tell_job(&oldest);
        }
    }

    pub(crate) fn job_archived(&mut self, id: &JobId) {
        let ended = |row: &&JobRow| !row.progress.state.is_open() && !row.archived;
        let Some(agent) = self.jobs.get(id).filter(ended).map(|row| row.agent.clone()) else { return };
        self.archived(id);
        self.job_in_sandbox(&agent, JobOrder::Forget { job: id.clone() });
        self.clear_due(&agent);
        self.hand_out_jobs();
    }

    /// Its output is in the archive and nowhere else. Nobody waits for that to be recorded: it can be found out again.
    fn archived(&mut self, id: &JobId) {
        self.step.ride(JobWrite::Archived { id: id.clone() });
        self.jobs.change(id, |row| row.archived = true);
    }

    /// Has the files of an agent removed that is being removed, once nothing of its jobs is in them.
    pub(crate) fn clear_due(&mut self, id: &AgentId) {
        let is_removing = |agent: &Agent| agent.row.state == AgentState::Removing;
        if self.agents.get(id).is_some_and(is_removing) && !self.jobs.has_files(id) {
            self.in_sandbox(id, SandboxEffect::Clear);
            self.step.hurry();
        }
    }

    /// The retention's word. What is open or not archived is not old.
    pub(crate) fn jobs_expired(&mut self, jobs: Vec<JobId>, what: Expiry) {
        let in_use = |row: &JobRow| row.progress.state.is_open() || !row.archived;
        let jobs: Vec<JobId> = jobs.into_iter().filter(|id| !self.jobs.get(id).is_some_and(in_use)).collect();
        for id in &jobs {
            match what {
                Expiry::Output => {
                    self.step.ride(JobWrite::OutputRemoved { id: id.clone() });
                    self.jobs.change(id, |row| row.output_removed = true);
                }
                Expiry::All => {
                    self.step.ride(JobWrite::Gone { id: id.clone() });
                    self.jobs.forget(id);
                }
            }
        }
        if !jobs.is_empty() {
            self.step.act(Effect::RemoveOutput { jobs });
        }
    }
}

/// What the event of its end says of a job.
struct EndOfJob {
    status: String,
    exit_code: Option<i32>,
    signal: Option<i32>,
    cause: Option<String>,
    detail: Option<String>,
    stdout_bytes: u64,
    stderr_bytes: u64,
}

impl EndOfJob {
    fn event(self, of: JobRef, cancelled: bool) -> EventBody {
        let JobRef { job, session, turn, name } = of;
        let EndOfJob { status, exit_code, signal, cause, detail, stdout_bytes, stderr_bytes } = self;
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

/// How a job stands after its end.
struct JobOutcome {
    progress: JobProgress,
    /// What else there is to say of it.
    note: Option<String>,
}

/// None: it does not run.
fn outcome(row: &JobRow, end: &JobEnd, now: Timestamp) -> Option<JobOutcome> {
    let JobEnd { how, cause, detail, stdout, stderr } = end;
    let timed_out = *cause == Some(Cause::Timeout);
    // Whoever wanted it to end knows that it was killed.
    let (event, error) = match (&row.progress.cancel, how) {
        (Some(why), _) => (JobEvent::Cancelled, Some(why.clone())),
        (None, ExecHow::Exited { .. } | ExecHow::Killed { .. }) if timed_out => (
            JobEvent::Failed,
            Some(format!("timed out after {}", lodge_core::limits::span(row.request.timeout_ms))),
        ),
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
    Some(JobOutcome { progress, note: detail.clone() })
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
