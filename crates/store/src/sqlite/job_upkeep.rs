//! Reads that decide which files and outputs of jobs are still needed.

use lodge_core::{AgentId, JobId, Timestamp};
use rusqlite::{OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use crate::reads::{JobUpkeepReads, OutputFate, Result};
use crate::sqlite::codes::{JOB_OVER, sql};
impl JobUpkeepReads for SqliteSnapshot<'_> {
    fn has_unarchived_job(&self, agent: &AgentId) -> Result<bool> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM jobs INDEXED BY jobs_unsettled WHERE archived = 0 AND agent = ?1)",
            )?
            .query_row([agent.as_str()], |row| row.get(0))
        })
    }

    fn output_fate(&self, id: &JobId) -> Result<OutputFate> {
        self.with(|c| {
            let removed: Option<bool> = c
                .prepare_cached("SELECT output_removed FROM jobs WHERE id = ?1")?
                .query_row([id.as_str()], |row| row.get(0))
                .optional()?;
            Ok(if removed == Some(false) { OutputFate::Kept } else { OutputFate::Gone })
        })
    }

    fn is_archived(&self, id: &JobId) -> Result<bool> {
        self.with(|c| {
            c.prepare_cached(sql!(
                "SELECT EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND state >= ",
                JOB_OVER,
                " AND archived = 1)"
            ))?
            .query_row([id.as_str()], |row| row.get(0))
        })
    }

    fn outputs_beyond(&self, agent: &AgentId, bytes_max: u64) -> Result<Vec<JobId>> {
        let bytes_max = i64::try_from(bytes_max).unwrap_or(i64::MAX);
        self.with(|c| {
            let ids = c
                .prepare_cached(
                    sql!("SELECT id FROM (SELECT id, sum(stdout_kept + stderr_kept) OVER (ORDER BY id DESC) AS total FROM jobs \
                     WHERE agent = ?1 AND state >= ", JOB_OVER, " AND archived = 1 AND output_removed = 0 \
                     AND stdout_kept + stderr_kept > 0) WHERE total > ?2 ORDER BY id"),
                )?
                .query_map(params![agent.as_str(), bytes_max], |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<String>>>()?;
            Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
        })
    }

    fn jobs_ended_before(&self, time: Timestamp, after: Option<&JobId>, limit: u32) -> Result<Vec<JobId>> {
        // A job that ended before was created before, so newer jobs are skipped.
        let (from, newest) = (after.map_or("", JobId::as_str), JobId::earliest_at(time));
        self.with(|c| {
            let ids = c
                .prepare_cached(sql!(
                    "SELECT id FROM jobs WHERE id > ?1 AND id < ?2 AND finished_at < ?3 AND state >= ",
                    JOB_OVER,
                    " AND archived = 1 \
                     ORDER BY id LIMIT ?4"
                ))?
                .query_map(params![from, newest.as_str(), time.ms(), limit], |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<String>>>()?;
            Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
        })
    }
}
