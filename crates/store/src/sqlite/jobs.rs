//! Jobs, as far as they are stored here: everything but their output. `job_list` finds them.

use lodge_core::job::{JobProgress, JobRow, JobState, JobStream, JobWrite};
use lodge_core::{Cause, JobId, Timestamp};
use prost::Message;
use rusqlite::{Connection, Row, params};

use crate::sqlite::codes::JOB_OVER;
use crate::sqlite::rows;

/// Everything but the stdin, which may be long and is read when a job starts.
pub(crate) const COLUMNS: &str = "j.id, j.agent, j.session, j.state, j.priority, j.created_at, j.started_at, j.finished_at, \
    j.exit_code, j.signal, j.cause, j.error, j.cancel, j.boot, j.stdout_seen, j.stdout_kept, j.stderr_seen, \
    j.stderr_kept, j.archived, j.told, j.output_removed, j.request";

/// Where these stand in a row. Looked for by their names, each among all the others, they were a sixteenth of the instructions
/// that the daemon itself spends on a small job.
#[derive(Debug, Clone, Copy)]
enum Column {
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

/// What of jobs an engine holds in memory: those that wait or run, are not archived, or whose session has not heard of
/// their end.
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
        // Nobody reads the stdin of a job that is over, and up to a mebibyte of it would stay stored.
        progress.state.is_open(),
    ])?;
    Ok(())
}

/// A job from a row that begins with [`COLUMNS`].
pub(crate) fn job(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let stream = |seen: Column, kept: Column| -> rusqlite::Result<JobStream> {
        let (seen, kept): (i64, i64) = (row.get(seen as usize)?, row.get(kept as usize)?);
        Ok(JobStream { seen: seen.cast_unsigned(), kept: kept.cast_unsigned() })
    };
    let (state, cause): (i64, Option<i64>) =
        (row.get(Column::State as usize)?, row.get(Column::Cause as usize)?);
    let unknown = |column: Column, code: i64| rows::unknown(row, column as usize, code);
    Ok(JobRow {
        id: rows::id(row, Column::Id as usize)?,
        agent: rows::id(row, Column::Agent as usize)?,
        session: rows::optional_id(row, Column::Session as usize)?,
        priority: row.get(Column::Priority as usize)?,
        created_at: rows::time(row, Column::CreatedAt as usize)?,
        request: rows::message(row, Column::Request as usize)?,
        progress: JobProgress {
            state: JobState::from_code(state).ok_or_else(|| unknown(Column::State, state))?,
            cancel: row.get(Column::Cancel as usize)?,
            boot: row.get(Column::Boot as usize)?,
            started_at: rows::optional_time(row, Column::StartedAt as usize)?,
            finished_at: rows::optional_time(row, Column::FinishedAt as usize)?,
            exit_code: row.get(Column::ExitCode as usize)?,
            signal: row.get(Column::Signal as usize)?,
            cause: cause
                .map(|code| Cause::from_code(code).ok_or_else(|| unknown(Column::Cause, code)))
                .transpose()?,
            error: row.get(Column::Error as usize)?,
            stdout: stream(Column::StdoutSeen, Column::StdoutKept)?,
            stderr: stream(Column::StderrSeen, Column::StderrKept)?,
        },
        archived: row.get(Column::Archived as usize)?,
        told: row.get(Column::Told as usize)?,
        output_removed: row.get(Column::OutputRemoved as usize)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `CreatedAt` as `created_at`.
    fn name(column: Column) -> String {
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
            Column::Id,
            Column::Agent,
            Column::Session,
            Column::State,
            Column::Priority,
            Column::CreatedAt,
            Column::StartedAt,
            Column::FinishedAt,
            Column::ExitCode,
            Column::Signal,
            Column::Cause,
            Column::Error,
            Column::Cancel,
            Column::Boot,
            Column::StdoutSeen,
            Column::StdoutKept,
            Column::StderrSeen,
            Column::StderrKept,
            Column::Archived,
            Column::Told,
            Column::OutputRemoved,
            Column::Request,
        ];
        let stand: Vec<&str> =
            COLUMNS.split(',').map(|column| column.trim().trim_start_matches("j.")).collect();
        assert_eq!(stand.len(), all.len());
        for column in all {
            assert_eq!(stand[column as usize], name(column));
        }
    }
}
