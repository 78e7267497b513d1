//! Jobs: programs that run beside the conversation and outlive whoever asked for them.
//!
//! Here is what goes in and out. `held` is what is remembered and who is next, `submit` how a job begins, `ends` how it ends,
//! `found` what becomes of it when keepers, agents and daemons come and go, `tools` what models ask, `notes` what sessions
//! are told.

mod ends;
mod found;
mod held;
mod notes;
pub mod refusal;
mod submit;
mod tools;

use std::collections::BTreeMap;

use lodge_core::job::{JobState, JobStream};
use lodge_core::{AgentId, Cause, JobId, SessionId, TurnId};

pub(crate) use self::ends::Which;
pub(crate) use self::held::Jobs;
pub use self::refusal::JobRefusal;
use crate::{Engine, ExecHow};

#[derive(Debug)]
pub enum JobCommand {
    Submit(Box<NewJob>),
    Cancel { id: JobId },
}

/// A job that somebody wants, as the edge read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    pub agent: AgentId,
    pub session: Option<SessionId>,
    pub work: JobWork,
}

/// What a job is to run, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobWork {
    pub bin: String,
    pub args: Vec<String>,
    pub stdin: Vec<u8>,
    /// 0: as long as it takes.
    pub timeout_ms: u64,
    pub priority: i32,
    /// Most bytes that are kept of each stream; 0: as many as the daemon's settings say.
    pub output_bytes: u64,
    pub labels: BTreeMap<String, String>,
}

/// What a model wants of jobs. Its session's alone are there for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobWish {
    Submit(JobWork),
    List {
        status: Option<JobState>,
        limit: u32,
    },
    Status {
        job: JobId,
    },
    /// Until it ended. Interrupting the turn cancels it.
    Wait {
        job: JobId,
    },
    /// Until it ended. Interrupting the turn leaves it running.
    Watch {
        job: JobId,
    },
    Cancel {
        job: JobId,
    },
}

/// The call of a turn that wishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallRef {
    pub turn: TurnId,
    pub step: u32,
    pub call: String,
}

/// What was observed of jobs.
#[derive(Debug)]
pub enum JobSeen {
    /// How much it has written by now, told now and then.
    Output {
        job: JobId,
        stdout: u64,
        stderr: u64,
    },
    Ended {
        job: JobId,
        end: JobEnd,
    },
    /// Its output is in the archive, all of it.
    Archived {
        job: JobId,
    },
    /// Jobs that a keeper which was just connected knows of: those that run, and those that do not any more.
    Found {
        agent: AgentId,
        running: Vec<JobId>,
        ended: Vec<JobId>,
    },
    /// What a model asked to read, in answer to [`JobEffect::Read`].
    Read {
        asked: ToolCallRef,
        answer: Read,
    },
    /// Their time is over, by the retention that was set.
    Expired {
        jobs: Vec<JobId>,
        what: Expiry,
    },
}

/// What a model is told of jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    pub text: String,
    /// There is nothing of that kind for it.
    pub error: bool,
    /// Jobs whose end it tells.
    pub told: Vec<JobId>,
}

/// What goes of an old job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expiry {
    Output,
    All,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEnd {
    pub how: ExecHow,
    pub cause: Option<Cause>,
    /// Why it was not started or is lost, or what else there is to say.
    pub detail: Option<String>,
    pub stdout: JobStream,
    pub stderr: JobStream,
}

/// Something to do about a job outside of its sandbox. All may be asked for twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEffect {
    /// Move all of its output into the archive, and say so.
    Archive { job: JobId },
    /// Read for a model, and say what was found. A job of another session is not there.
    ///
    /// `List` and `Status`: as it stands. `Wait` and `Watch`: its outcome; it has ended, or is not there.
    /// `Cancel`: why it cannot be cancelled, as it has ended or is not there. `Submit` is never read.
    Read { asked: ToolCallRef, agent: AgentId, session: SessionId, wish: JobWish },
}

impl Engine {
    pub(crate) fn job_seen(&mut self, seen: JobSeen) {
        match seen {
            JobSeen::Output { job, stdout, stderr } => self.job_wrote(&job, stdout, stderr),
            JobSeen::Ended { job, end } => self.job_ended(&job, end),
            JobSeen::Archived { job } => self.job_archived(&job),
            JobSeen::Found { agent, running, ended } => self.jobs_found(&agent, running, ended),
            JobSeen::Read { asked, answer } => self.job_read(&asked, answer),
            JobSeen::Expired { jobs, what } => self.jobs_expired(jobs, what),
        }
    }
}
