//! Jobs: listed, found, and which of their files and outputs are still needed.

use std::collections::BTreeMap;

use lodge_core::job::{JobRow, JobState};
use lodge_core::{AgentId, JobId, SandboxId, SessionId, Timestamp};

use super::Result;

/// A job, and the name of its agent, which may be removed.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSummary {
    pub row: JobRow,
    pub agent_name: String,
    /// Its sandbox, while it runs.
    pub sandbox: SandboxId,
}

/// Jobs, the newest first.
#[derive(Debug, Clone, PartialEq)]
pub struct JobPage {
    pub jobs: Vec<JobSummary>,
    /// The id before which the next page begins, even if this page is not full because the search took long. None: this
    /// is the last page.
    pub next: Option<String>,
}

/// The filter of a listing: all conditions must hold.
#[derive(Debug, Clone, Copy)]
pub struct JobFilter<'a> {
    pub agent: Option<&'a AgentId>,
    pub session: Option<&'a SessionId>,
    pub states: &'a [JobState],
    pub labels: &'a BTreeMap<String, String>,
    /// Older than the job with this id.
    pub before: Option<&'a str>,
}

/// Open jobs of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenJobs {
    pub pending: u64,
    pub running: u64,
}

/// Whether a job's archived output is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputFate {
    Kept,
    /// Recorded as removed, or of a job that is not recorded.
    Gone,
}

pub trait JobReads {
    /// A page of at most `limit` jobs.
    fn jobs(&self, filter: JobFilter<'_>, limit: u32) -> Result<JobPage>;
    /// The newest, of as many pages as that takes.
    fn newest_jobs(&self, filter: JobFilter<'_>, wanted: u32) -> Result<Vec<JobSummary>>;
    fn job_summary(&self, id: &JobId) -> Result<Option<JobSummary>>;
    /// The session that a job belongs to, if it belongs to one.
    fn job_session(&self, id: &JobId) -> Result<Option<SessionId>>;
    /// A job and its stdin: everything that its start needs.
    fn job_to_start(&self, id: &JobId) -> Result<Option<(JobRow, Vec<u8>)>>;
    /// The jobs of an agent, or of all, with this id prefix, at most [`ID_MATCHES_MAX`](super::ID_MATCHES_MAX).
    fn find_jobs(&self, given: &str, agent: Option<&AgentId>) -> Result<Vec<JobId>>;
    fn open_jobs(&self, agent: &AgentId) -> Result<OpenJobs>;
    fn open_jobs_of_session(&self, session: &SessionId) -> Result<u64>;
}

pub trait JobUpkeepReads {
    /// Whether a job of an agent has output that is not in the archive, or may get some.
    fn has_unarchived_job(&self, agent: &AgentId) -> Result<bool>;
    fn output_fate(&self, id: &JobId) -> Result<OutputFate>;
    /// Whether a job ended and all of its output is in the archive.
    fn is_archived(&self, id: &JobId) -> Result<bool>;
    /// The oldest jobs of an agent to remove so that at most `bytes_max` of its output are left in the archive.
    fn outputs_beyond(&self, agent: &AgentId, bytes_max: u64) -> Result<Vec<JobId>>;
    /// A page of the jobs that ended before a time and are archived, in the order of their ids.
    fn jobs_ended_before(&self, time: Timestamp, after: Option<&JobId>, limit: u32) -> Result<Vec<JobId>>;
}
