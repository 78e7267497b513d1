//! Jobs: listed, found, and which of their files and outputs are still needed.

use std::collections::BTreeMap;

use lodge_core::job::{JobRow, JobState};
use lodge_core::{AgentId, JobId, SandboxId, SessionId, Timestamp};

use super::Result;

/// A job, and what its agent is called, which may be removed.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSummary {
    pub row: JobRow,
    pub agent_name: String,
    /// Where it runs, while it does.
    pub sandbox: SandboxId,
}

/// Jobs, the newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPage {
    pub jobs: Vec<JobSummary>,
    /// The id before which the next page begins, also of a page that is not full: looking for more took long enough. None:
    /// there is nothing more.
    pub next: Option<String>,
}

/// Which jobs a listing is about: those for which all of this holds.
#[derive(Debug, Clone, Copy)]
pub struct JobFilter<'a> {
    pub agent: Option<&'a AgentId>,
    pub session: Option<&'a SessionId>,
    pub states: &'a [JobState],
    pub labels: &'a BTreeMap<String, String>,
    /// Older than the one with this id.
    pub before: Option<&'a str>,
}

/// Jobs of an agent that are not over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenJobs {
    pub pending: u64,
    pub running: u64,
}

/// What is to become of a job's archived output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFate {
    Kept,
    /// Recorded as removed, or of a job that is not recorded.
    Gone,
}

pub trait JobReads {
    /// A page, with at most so many.
    fn jobs(&self, filter: JobFilter<'_>, limit: u32) -> Result<JobPage>;
    /// The newest, of as many pages as that takes.
    fn newest_jobs(&self, filter: JobFilter<'_>, wanted: u32) -> Result<Vec<JobSummary>>;
    fn job_summary(&self, id: &JobId) -> Result<Option<JobSummary>>;
    /// The session that a job belongs to, if it belongs to one.
    fn job_session(&self, id: &JobId) -> Result<Option<SessionId>>;
    /// A job and what it is given on its stdin: all that is needed to start it.
    fn job_to_start(&self, id: &JobId) -> Result<Option<(JobRow, Vec<u8>)>>;
    /// The jobs of an agent, or of all, whose id is this one or begins so, a few at most.
    fn find_job(&self, given: &str, agent: Option<&AgentId>) -> Result<Vec<JobId>>;
    fn open_jobs(&self, agent: &AgentId) -> Result<OpenJobs>;
    fn open_jobs_of_session(&self, session: &SessionId) -> Result<u64>;
}

pub trait JobUpkeepReads {
    /// Whether a job of an agent has output that is not in the archive, or may get some.
    fn has_unarchived_job(&self, agent: &AgentId) -> Result<bool>;
    fn output_fate(&self, id: &JobId) -> Result<OutputFate>;
    /// Whether a job ended and all of its output is in the archive.
    fn is_archived(&self, id: &JobId) -> Result<bool>;
    /// The oldest jobs of an agent without whose output no more than `bytes_max` of it are left in the archive.
    fn outputs_beyond(&self, agent: &AgentId, bytes_max: u64) -> Result<Vec<JobId>>;
    /// A page of the jobs that ended before a time and are archived, in the order of their ids.
    fn jobs_ended_before(&self, time: Timestamp, after: Option<&JobId>, limit: u32) -> Result<Vec<JobId>>;
}
