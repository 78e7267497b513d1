//! Jobs: programs that run beside the conversation and outlive their caller.
//!
//! Commands, observations, effects and answers. `live` has the jobs in memory and their order, `submit` the start of a job,
//! `ends` its end, `found` restarts of keepers, agents and daemons, `tools` the requests of models, `notes` the reports
//! to sessions.

mod ends;
mod found;
mod live;
mod notes;
pub mod refusal;
mod submit;
mod tools;

use std::collections::BTreeMap;

use lodge_core::job::{JobRow, JobState, JobStreamBytes};
use lodge_core::{AgentId, Cause, JobId, SessionId, TurnId};

pub(crate) use self::ends::CancelScope;
pub(crate) use self::live::LiveJobs;
pub use self::refusal::JobRefusal;
use crate::{Engine, ExecOutcome};

#[derive(Debug)]
pub enum JobCommand {
    Submit(Box<NewJob>),
    Cancel { id: JobId },
}

/// A job to submit, as the API parsed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    pub agent: AgentId,
    pub session: Option<SessionId>,
    pub work: JobSpec,
}

/// The program of a job, and its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    pub bin: String,
    pub args: Vec<String>,
    pub stdin: Vec<u8>,
    /// 0: no limit.
    pub timeout_ms: u64,
    pub priority: i32,
    /// Most bytes that are kept of each stream; 0: the daemon's default.
    pub output_bytes: u64,
    pub labels: BTreeMap<String, String>,
}

/// A model's request about jobs. It can only see jobs of its session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobToolRequest {
    Submit(JobSpec),
    List {
        status: Option<JobState>,
        limit: u32,
    },
    Status {
        job: JobId,
    },
    /// Wait until it ends. Interrupting the turn cancels it.
    Wait {
        job: JobId,
    },
    /// Wait until it ends. Interrupting the turn leaves it running.
    Watch {
        job: JobId,
    },
    Cancel {
        job: JobId,
    },
}

/// The tool call of a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallRef {
    pub turn: TurnId,
    pub step: u32,
    pub call: String,
}

/// Observations about jobs.
#[derive(Debug)]
pub enum JobObservation {
    /// How much it has written so far, reported at intervals.
    Output {
        job: JobId,
        stdout: u64,
        stderr: u64,
    },
    Ended {
        job: JobId,
        end: JobEnd,
    },
    /// All of its output is in the archive.
    Archived {
        job: JobId,
    },
    /// Jobs that a newly connected keeper knows: running ones and ended ones.
    Found {
        agent: AgentId,
        running: Vec<JobId>,
        ended: Vec<JobId>,
    },
    /// The result of [`JobEffect::Read`].
    Read {
        asked: ToolCallRef,
        answer: JobReport,
    },
    /// Retention expired these jobs.
    Expired {
        jobs: Vec<JobId>,
        what: Expiry,
    },
}

/// A report about jobs to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobReport {
    pub text: String,
    /// The job does not exist for this session.
    pub error: bool,
    /// Jobs whose end the report contains.
    pub told: Vec<JobId>,
}

/// What retention removes of an old job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    Output,
    All,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    pub how: ExecOutcome,
    pub cause: Option<Cause>,
    /// Why it was not started or is lost, or additional details.
    pub detail: Option<String>,
    pub stdout: JobStreamBytes,
    pub stderr: JobStreamBytes,
}

/// Work about a job outside its sandbox. Every effect is idempotent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEffect {
    /// Move all of its output into the archive, and report that.
    Archive { job: JobId },
    /// Read jobs for a model, and report the result. A job of another session does not exist for it.
    ///
    /// `List` and `Status` read the current state. `Wait` and `Watch` read the outcome of a job that has ended or does
    /// not exist. `Cancel` reads why the job cannot be cancelled: it has ended or does not exist. `Submit` is never
    /// read.
    Read { asked: ToolCallRef, agent: AgentId, session: SessionId, wish: JobToolRequest },
    /// Remove the output of these jobs from the archive.
    RemoveOutput { jobs: Vec<JobId> },
}

#[derive(Debug, Clone)]
pub struct JobAnswer {
    pub row: JobRow,
    pub agent_name: String,
}

impl Engine {
    pub(crate) fn observe_job(&mut self, seen: JobObservation) {
        match seen {
            JobObservation::Output { job, stdout, stderr } => self.job_wrote(&job, stdout, stderr),
            JobObservation::Ended { job, end } => self.job_ended(&job, end),
            JobObservation::Archived { job } => self.job_archived(&job),
            JobObservation::Found { agent, running, ended } => self.jobs_found(&agent, running, ended),
            JobObservation::Read { asked, answer } => self.job_read(&asked, answer),
            JobObservation::Expired { jobs, what } => self.jobs_expired(jobs, what),
        }
    }
}
