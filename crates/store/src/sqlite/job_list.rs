//! Listing and finding jobs. Their stdin, which may be long, is not read for it, and neither is any output.

use lodge_core::job::{JobRow, JobState};
use lodge_core::{AgentId, JobId, SessionId};
use rusqlite::{Connection, OptionalExtension, Row};

use super::snapshot::SqliteSnapshot;
use crate::reads::{ID_MATCHES_MAX, JobFilter, JobPage, JobReads, JobSummary, OpenJobs, Result};
use crate::sqlite::codes::{JOB_OVER, sql};
use crate::sqlite::job_walk::walk;
use crate::sqlite::jobs::{COLUMNS, job};
use crate::sqlite::rows;

impl JobReads for SqliteSnapshot<'_> {
    fn jobs(&self, filter: JobFilter<'_>, limit: u32) -> Result<JobPage> {
        self.with(|c| {
            let found = walk(c, &filter, limit)?;
            let jobs = found.ids.iter().filter_map(|id| one(c, id).transpose());
            Ok(JobPage { jobs: jobs.collect::<rusqlite::Result<_>>()?, next: found.next })
        })
    }

    fn newest_jobs(&self, filter: JobFilter<'_>, wanted: u32) -> Result<Vec<JobSummary>> {
        let mut newest: Vec<JobSummary> = Vec::new();
        let mut next = filter.before.map(str::to_owned);
        loop {
            let missing = wanted.saturating_sub(u32::try_from(newest.len()).unwrap_or(u32::MAX));
            let page = self.jobs(JobFilter { before: next.as_deref(), ..filter }, missing)?;
            newest.extend(page.jobs);
            next = page.next;
            if next.is_none() || newest.len() >= wanted as usize {
                return Ok(newest);
            }
        }
    }

    fn job_summary(&self, id: &JobId) -> Result<Option<JobSummary>> {
        self.with(|c| one(c, id.as_str()))
    }

    fn job_session(&self, id: &JobId) -> Result<Option<SessionId>> {
        self.with(|c| {
            let found = c
                .prepare_cached("SELECT session FROM jobs WHERE id = ?1")?
                .query_row([id.as_str()], |row| rows::optional_id(row, "session"))
                .optional()?;
            Ok(found.flatten())
        })
    }

    fn job_to_start(&self, id: &JobId) -> Result<Option<(JobRow, Vec<u8>)>> {
        self.with(|c| {
            c.prepare_cached(&format!("SELECT {COLUMNS}, j.stdin FROM jobs AS j WHERE j.id = ?1"))?
                .query_row([id.as_str()], |row| Ok((job(row)?, row.get("stdin")?)))
                .optional()
        })
    }

    fn find_jobs(&self, given: &str, agent: Option<&AgentId>) -> Result<Vec<JobId>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT id FROM jobs WHERE id >= ?1 AND id < ?1 || '{' AND (?2 IS NULL OR agent = ?2) LIMIT ?3",
            )?
            .query_map((given, agent.map(AgentId::as_str), ID_MATCHES_MAX), |row| rows::id(row, "id"))?
            .collect()
        })
    }

    fn open_jobs(&self, agent: &AgentId) -> Result<OpenJobs> {
        self.with(|c| {
            let count = |state: JobState| of_agent(c, agent, state);
            Ok(OpenJobs { pending: count(JobState::Pending)?, running: count(JobState::Running)? })
        })
    }

    fn open_jobs_of_session(&self, session: &SessionId) -> Result<u64> {
        self.with(|c| {
            c.prepare_cached(sql!(
                "SELECT count(*) FROM jobs INDEXED BY jobs_session_state WHERE session = ?1 AND state < ",
                JOB_OVER
            ))?
            .query_row([session.as_str()], |row| row.get(0))
            .map(i64::cast_unsigned)
        })
    }
}

fn one(c: &Connection, id: &str) -> rusqlite::Result<Option<JobSummary>> {
    c.prepare_cached(&format!(
        "SELECT {COLUMNS}, a.name AS agent_name, a.sandbox AS sandbox FROM jobs AS j JOIN agents AS a ON a.id = j.agent \
         WHERE j.id = ?1"
    ))?
    .query_row([id], summary)
    .optional()
}

fn of_agent(c: &Connection, agent: &AgentId, state: JobState) -> rusqlite::Result<u64> {
    c.prepare_cached("SELECT count(*) FROM jobs INDEXED BY jobs_agent_state WHERE agent = ?1 AND state = ?2")?
        .query_row((agent.as_str(), state.code()), |row| row.get(0))
        .map(i64::cast_unsigned)
}

fn summary(row: &Row<'_>) -> rusqlite::Result<JobSummary> {
    Ok(JobSummary { row: job(row)?, agent_name: row.get("agent_name")?, sandbox: rows::id(row, "sandbox")? })
}
