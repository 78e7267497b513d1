//! Jobs, as far as they are stored here: everything but their output. `job_list` finds them.

use lodge_core::job::{JobProgress, JobRow, JobState, JobStreamBytes, JobWrite};
use lodge_core::{Cause, JobId, Timestamp};
use prost::Message;
use rusqlite::{Connection, Row, params};

use crate::sqlite::codes::JOB_OVER;
use crate::sqlite::rows;

/// Everything but the stdin, which may be long and is read when a job starts.
pub(crate) const COLUMNS: &str = "j.id, j.agent, j.session, j.state, j.priority, j.created_at, j.started_at, j.finished_at, \
    j.exit_code, j.signal, j.cause, j.error, j.cancel, j.boot, j.stdout_seen, j.stdout_kept, j.stderr_seen, \
    j.stderr_kept, j.archived, j.told, j.output_removed, j.request";

/// The positions of these columns in a row. Lookups by name were a sixteenth of the instructions that the daemon spends
/// on a small job.
#[derive(Debug, Clone, Copy)]
enum JobColumn {
    Id,
    Agent,
    Session,
    State,
    Priority,
    CreatedAt,
    StartedAt,
    FinishedAt,
    ExitCode,
    Signal,
    Cause,
    Error,
    Cancel,
    Boot,
    StdoutSeen,
    StdoutKept,
    StderrSeen,
    StderrKept,
    Archived,
    Told,
    OutputRemoved,
    Request,
}

/// The jobs that an engine has in memory: pending, running, not archived, or not reported to their session.
pub(crate) fn unsettled(c: &Connection) -> rusqlite::Result<Vec<JobRow>> {
    c.prepare(&format!(
        "SELECT {COLUMNS} FROM jobs AS j INDEXED BY jobs_unsettled \
         WHERE state < {JOB_OVER} OR archived = 0 OR (told = 0 AND session IS NOT NULL) ORDER BY id"
    ))?
    .query_map([], job)?
    .collect()
}

pub(crate) fn apply(tx: &Connection, write: &JobWrite) -> rusqlite::Result<()> {
    match write {
        JobWrite::New { row, stdin } => insert(tx, row, stdin),
        JobWrite::Progress { id, progress } => update(tx, id, progress),
        JobWrite::Archived { id } => set(tx, "UPDATE jobs SET archived = 1 WHERE id = ?1", id),
        JobWrite::Told { id } => set(tx, "UPDATE jobs SET told = 1 WHERE id = ?1", id),
        JobWrite::OutputRemoved { id } => set(tx, "UPDATE jobs SET output_removed = 1 WHERE id = ?1", id),
        JobWrite::Gone { id } => {
            set(tx, "DELETE FROM job_labels WHERE job = ?1", id)?;
            set(tx, "DELETE FROM jobs WHERE id = ?1", id)
        }
    }
}

fn set(tx: &Connection, sql: &str, id: &JobId) -> rusqlite::Result<()> {
    tx.prepare_cached(sql)?.execute([id.as_str()])?;
    Ok(())
}

fn insert(tx: &Connection, row: &JobRow, stdin: &[u8]) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO jobs (id, agent, session, state, priority, created_at, request, stdin) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![
        row.id.as_str(),
        row.agent.as_str(),
        row.session.as_ref().map(lodge_core::SessionId::as_str),
        row.progress.state.code(),
        row.priority,
        row.created_at.ms(),
        row.request.encode_to_vec(),
        stdin,
    ])?;
    // The session's label is the session: a listing finds it there.
    for (key, value) in &row.request.labels {
        tx.prepare_cached("INSERT INTO job_labels (key, value, job) VALUES (?1, ?2, ?3)")?
            .execute(params![key, value, row.id.as_str()])?;
    }
    Ok(())
}

fn update(tx: &Connection, id: &JobId, progress: &JobProgress) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "UPDATE jobs SET state = ?2, started_at = ?3, finished_at = ?4, exit_code = ?5, signal = ?6, cause = ?7, \
         error = ?8, cancel = ?9, boot = ?10, stdout_seen = ?11, stdout_kept = ?12, stderr_seen = ?13, \
         stderr_kept = ?14, stdin = iif(?15, stdin, x'') WHERE id = ?1",
    )?
    .execute(params![
        id.as_str(),
        progress.state.code(),
        progress.started_at.map(Timestamp::ms),
        progress.finished_at.map(Timestamp::ms),
        progress.exit_code,
        progress.signal,
        progress.cause.map(Cause::code),
        progress.error,
        progress.cancel,
        progress.boot,
        progress.stdout.seen.cast_signed(),
        progress.stdout.kept.cast_signed(),
        progress.stderr.seen.cast_signed(),
        progress.stderr.kept.cast_signed(),
        // The stdin of an ended job has no reader, and can take up to a mebibyte.
        progress.state.is_open(),
    ])?;
    Ok(())
}

/// A job from a row that begins with [`COLUMNS`].
pub(crate) fn job(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let stream = |seen: JobColumn, kept: JobColumn| -> rusqlite::Result<JobStreamBytes> {
        let (seen, kept): (i64, i64) = (row.get(seen as usize)?, row.get(kept as usize)?);
        Ok(JobStreamBytes { seen: seen.cast_unsigned(), kept: kept.cast_unsigned() })
    };
    let (state, cause): (i64, Option<i64>) =
        (row.get(JobColumn::State as usize)?, row.get(JobColumn::Cause as usize)?);
    let unknown = |column: JobColumn, code: i64| rows::unknown(row, column as usize, code);
    Ok(JobRow {
        id: rows::id(row, JobColumn::Id as usize)?,
        agent: rows::id(row, JobColumn::Agent as usize)?,
        session: rows::optional_id(row, JobColumn::Session as usize)?,
        priority: row.get(JobColumn::Priority as usize)?,
        created_at: rows::time(row, JobColumn::CreatedAt as usize)?,
        request: rows::message(row, JobColumn::Request as usize)?,
        progress: JobProgress {
            state: JobState::from_code(state).ok_or_else(|| unknown(JobColumn::State, state))?,
            cancel: row.get(JobColumn::Cancel as usize)?,
            boot: row.get(JobColumn::Boot as usize)?,
            started_at: rows::optional_time(row, JobColumn::StartedAt as usize)?,
            finished_at: rows::optional_time(row, JobColumn::FinishedAt as usize)?,
            exit_code: row.get(JobColumn::ExitCode as usize)?,
            signal: row.get(JobColumn::Signal as usize)?,
            cause: cause
                .map(|code| Cause::from_code(code).ok_or_else(|| unknown(JobColumn::Cause, code)))
                .transpose()?,
            error: row.get(JobColumn::Error as usize)?,
            stdout: stream(JobColumn::StdoutSeen, JobColumn::StdoutKept)?,
            stderr: stream(JobColumn::StderrSeen, JobColumn::StderrKept)?,
        },
        archived: row.get(JobColumn::Archived as usize)?,
        told: row.get(JobColumn::Told as usize)?,
        output_removed: row.get(JobColumn::OutputRemoved as usize)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `CreatedAt` as `created_at`.
    fn name(column: JobColumn) -> String {
        let mut name = String::new();
        for letter in format!("{column:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('_');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }

    #[test]
    fn every_column_is_read_where_it_stands() {
        let all = [
            JobColumn::Id,
            JobColumn::Agent,
            JobColumn::Session,
            JobColumn::State,
            JobColumn::Priority,
            JobColumn::CreatedAt,
            JobColumn::StartedAt,
            JobColumn::FinishedAt,
            JobColumn::ExitCode,
            JobColumn::Signal,
            JobColumn::Cause,
            JobColumn::Error,
            JobColumn::Cancel,
            JobColumn::Boot,
            JobColumn::StdoutSeen,
            JobColumn::StdoutKept,
            JobColumn::StderrSeen,
            JobColumn::StderrKept,
            JobColumn::Archived,
            JobColumn::Told,
            JobColumn::OutputRemoved,
            JobColumn::Request,
        ];
        let stand: Vec<&str> =
            COLUMNS.split(',').map(|column| column.trim().trim_start_matches("j.")).collect();
        assert_eq!(stand.len(), all.len());
        for column in all {
            assert_eq!(stand[column as usize], name(column));
        }
    }
}
