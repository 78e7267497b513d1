//! Standalone sandboxes and their execs, as far as they are stored here: everything but the output of execs.

use lodge_core::job::JobStreamBytes;
use lodge_core::sandbox::{
    ExecFailReason, SandboxExecProgress, SandboxExecRow, SandboxExecState, SandboxFact, SandboxFailReason,
    SandboxFailure, SandboxRow, SandboxState, SandboxWrite,
};
use lodge_core::{Cause, ExecId, SandboxId, Timestamp};
use prost::Message;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::snapshot::SqliteSnapshot;
use crate::reads::{ExecFilter, Result, SandboxFilter, SandboxReads};
use crate::sqlite::codes::{EXEC_OVER, SANDBOX_DELETED, SANDBOX_RESTS, sql};
use crate::sqlite::rows;

/// Everything but the stdin, which may be long and is read when an exec starts.
const EXEC_COLUMNS: &str = "id, sandbox, state, created_at, finished_at, exit_code, signal, cause, reason, error, cancel, \
    stdout_seen, stdout_kept, stderr_seen, stderr_kept, request";
/// Matches that a search for a prefix returns.
const MATCHES_MAX: u32 = 5;

/// Sandboxes that are live or have an open exec, and those in `remembered`; ordered by id.
pub(crate) fn live(c: &Connection, remembered: &[SandboxId]) -> rusqlite::Result<Vec<SandboxRow>> {
    let mut ids: Vec<String> = c
        .prepare(sql!("SELECT id FROM sandboxes INDEXED BY sandboxes_live WHERE state < ", SANDBOX_RESTS))?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let open: Vec<String> = c
        .prepare(sql!("SELECT DISTINCT sandbox FROM execs INDEXED BY execs_open WHERE state < ", EXEC_OVER))?
        .query_map([], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    ids.extend(open);
    ids.extend(remembered.iter().map(SandboxId::to_string));
    ids.sort();
    ids.dedup();
    let rows = ids.iter().filter_map(|id| one(c, id).transpose());
    rows.collect()
}

pub(crate) fn open_execs(c: &Connection) -> rusqlite::Result<Vec<SandboxExecRow>> {
    c.prepare(&format!(
        "SELECT {EXEC_COLUMNS} FROM execs INDEXED BY execs_open WHERE state < {EXEC_OVER} ORDER BY id"
    ))?
    .query_map([], exec_row)?
    .collect()
}

pub(crate) fn apply(tx: &Connection, write: &SandboxWrite) -> rusqlite::Result<()> {
    match write {
        SandboxWrite::New(row) => insert(tx, row),
        SandboxWrite::Progress(row) => update(tx, row),
        SandboxWrite::NewExec { row, stdin } => insert_exec(tx, row, stdin),
        SandboxWrite::ExecProgress { id, progress } => update_exec(tx, id, progress),
    }
}

fn insert(tx: &Connection, row: &SandboxRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO sandboxes (id, state, incarnation, uid, created_at, changed_at, record) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        row.id.as_str(),
        row.state.code(),
        row.incarnation,
        row.uid,
        row.created_at.ms(),
        row.changed_at.ms(),
        row.record.encode_to_vec(),
    ])?;
    for (key, value) in &row.record.labels {
        tx.prepare_cached("INSERT INTO sandbox_labels (key, value, sandbox) VALUES (?1, ?2, ?3)")?
            .execute(params![key, value, row.id.as_str()])?;
    }
    Ok(())
}

fn update(tx: &Connection, row: &SandboxRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "UPDATE sandboxes SET state = ?2, incarnation = ?3, changed_at = ?4, ready_at = ?5, deleted_at = ?6, \
         failure = ?7, detail = ?8 WHERE id = ?1",
    )?
    .execute(params![
        row.id.as_str(),
        row.state.code(),
        row.incarnation,
        row.changed_at.ms(),
        row.ready_at.map(Timestamp::ms),
        row.deleted_at.map(Timestamp::ms),
        row.failure.as_ref().map(|failure| failure.reason.code()),
        row.failure.as_ref().map(|failure| &failure.detail),
    ])?;
    Ok(())
}

fn insert_exec(tx: &Connection, row: &SandboxExecRow, stdin: &[u8]) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO execs (id, sandbox, state, created_at, request, stdin) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        row.id.as_str(),
        row.sandbox.as_str(),
        row.progress.state.code(),
        row.created_at.ms(),
        row.request.encode_to_vec(),
        stdin,
    ])?;
    Ok(())
}

fn update_exec(tx: &Connection, id: &ExecId, progress: &SandboxExecProgress) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "UPDATE execs SET state = ?2, finished_at = ?3, exit_code = ?4, signal = ?5, cause = ?6, reason = ?7, \
         error = ?8, cancel = ?9, stdout_seen = ?10, stdout_kept = ?11, stderr_seen = ?12, stderr_kept = ?13, \
         stdin = iif(?14, stdin, x'') WHERE id = ?1",
    )?
    .execute(params![
        id.as_str(),
        progress.state.code(),
        progress.finished_at.map(Timestamp::ms),
        progress.exit_code,
        progress.signal,
        progress.cause.map(Cause::code),
        progress.reason.map(ExecFailReason::code),
        progress.error,
        progress.cancel,
        progress.stdout.seen.cast_signed(),
        progress.stdout.kept.cast_signed(),
        progress.stderr.seen.cast_signed(),
        progress.stderr.kept.cast_signed(),
        // The stdin of an exec that is over has no reader, and can take up to a mebibyte.
        progress.state.is_open(),
    ])?;
    Ok(())
}

impl SandboxReads for SqliteSnapshot<'_> {
    fn sandboxes(&self, filter: SandboxFilter<'_>, limit: u32) -> Result<Vec<SandboxRow>> {
        self.with(|c| {
            let mut statement = "SELECT * FROM sandboxes AS s WHERE 1".to_owned();
            let mut values: Vec<Value> = Vec::new();
            if let Some(before) = filter.before {
                values.push(before.to_string().into());
                statement.push_str(" AND number < (SELECT number FROM sandboxes WHERE id = ?)");
            }
            if !filter.states.is_empty() {
                let codes: Vec<String> =
                    filter.states.iter().map(|state| state.code().to_string()).collect();
                statement.push_str(&format!(" AND state IN ({})", codes.join(", ")));
            }
            for (key, value) in filter.labels {
                values.extend([key.clone().into(), value.clone().into()]);
                statement.push_str(
                    " AND EXISTS (SELECT 1 FROM sandbox_labels AS l WHERE l.key = ? AND l.value = ? AND l.sandbox = s.id)",
                );
            }
            values.push(i64::from(limit).into());
            statement.push_str(" ORDER BY number DESC LIMIT ?");
            c.prepare(&statement)?.query_map(params_from_iter(values), sandbox_row)?.collect()
        })
    }

    fn sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRow>> {
        self.with(|c| one(c, id.as_str()))
    }

    fn sandbox_fact(&self, id: &SandboxId) -> Result<Option<SandboxFact>> {
        self.with(|c| {
            let Some(row) = one(c, id.as_str())? else { return Ok(None) };
            let head: i64 = c
                .prepare_cached("SELECT coalesce(max(stream_seq), 0) FROM events WHERE stream = ?1")?
                .query_row([id.as_str()], |row| row.get(0))?;
            Ok(Some(SandboxFact { row, head: head.cast_unsigned() }))
        })
    }

    fn find_sandbox(&self, given: &str) -> Result<Vec<SandboxId>> {
        self.with(|c| {
            find(c, "SELECT id FROM sandboxes WHERE id >= ?1 AND id < ?1 || '{' ORDER BY id LIMIT ?2", given)
        })
    }

    fn sandbox_states(&self) -> Result<Vec<(SandboxId, SandboxState)>> {
        self.with(|c| {
            c.prepare_cached(sql!("SELECT id, state FROM sandboxes WHERE state != ", SANDBOX_DELETED))?
                .query_map([], |row| Ok((rows::id(row, "id")?, state(row)?)))?
                .collect()
        })
    }

    fn execs(&self, filter: ExecFilter<'_>, limit: u32) -> Result<Vec<SandboxExecRow>> {
        self.with(|c| {
            let mut statement = format!("SELECT {EXEC_COLUMNS} FROM execs WHERE 1");
            let mut values: Vec<Value> = Vec::new();
            if let Some(before) = filter.before {
                values.push(before.to_string().into());
                statement.push_str(" AND number < (SELECT number FROM execs WHERE id = ?)");
            }
            if let Some(sandbox) = filter.sandbox {
                values.push(sandbox.to_string().into());
                statement.push_str(" AND sandbox = ?");
            }
            if let Some(state) = filter.state {
                values.push(state.code().into());
                statement.push_str(" AND state = ?");
            }
            values.push(i64::from(limit).into());
            statement.push_str(" ORDER BY number DESC LIMIT ?");
            c.prepare(&statement)?.query_map(params_from_iter(values), exec_row)?.collect()
        })
    }

    fn exec(&self, id: &ExecId) -> Result<Option<SandboxExecRow>> {
        self.with(|c| {
            c.prepare_cached(&format!("SELECT {EXEC_COLUMNS} FROM execs WHERE id = ?1"))?
                .query_row([id.as_str()], exec_row)
                .optional()
        })
    }

    fn find_exec(&self, given: &str) -> Result<Vec<ExecId>> {
        self.with(|c| {
            find(c, "SELECT id FROM execs WHERE id >= ?1 AND id < ?1 || '{' ORDER BY id LIMIT ?2", given)
        })
    }

    fn exec_to_start(&self, id: &ExecId) -> Result<Option<(SandboxExecRow, Vec<u8>)>> {
        self.with(|c| {
            c.prepare_cached(&format!("SELECT {EXEC_COLUMNS}, stdin FROM execs WHERE id = ?1"))?
                .query_row([id.as_str()], |row| Ok((exec_row(row)?, row.get("stdin")?)))
                .optional()
        })
    }

    fn has_open_exec(&self, sandbox: &SandboxId) -> Result<bool> {
        self.with(|c| {
            c.prepare_cached(sql!(
                "SELECT EXISTS (SELECT 1 FROM execs INDEXED BY execs_open WHERE sandbox = ?1 AND state < ",
                EXEC_OVER,
                ")"
            ))?
            .query_row([sandbox.as_str()], |row| row.get(0))
        })
    }
}

fn find<T: std::str::FromStr>(c: &Connection, statement: &str, given: &str) -> rusqlite::Result<Vec<T>> {
    let ids = c
        .prepare_cached(statement)?
        .query_map(params![given, MATCHES_MAX], |row| row.get(0))?
        .collect::<rusqlite::Result<Vec<String>>>()?;
    Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
}

fn one(c: &Connection, id: &str) -> rusqlite::Result<Option<SandboxRow>> {
    c.prepare_cached("SELECT * FROM sandboxes WHERE id = ?1")?.query_row([id], sandbox_row).optional()
}

fn state(row: &Row<'_>) -> rusqlite::Result<SandboxState> {
    let code: i64 = row.get("state")?;
    SandboxState::from_code(code).ok_or_else(|| rows::unknown(row, "state", code))
}

/// A code that is absent, or that a table of `core` has.
fn coded<T>(row: &Row<'_>, column: &str, of: impl Fn(i64) -> Option<T>) -> rusqlite::Result<Option<T>> {
    let code: Option<i64> = row.get(column)?;
    code.map(|code| of(code).ok_or_else(|| rows::unknown(row, column, code))).transpose()
}

fn sandbox_row(row: &Row<'_>) -> rusqlite::Result<SandboxRow> {
    let reason = coded(row, "failure", SandboxFailReason::from_code)?;
    let detail: Option<String> = row.get("detail")?;
    Ok(SandboxRow {
        id: rows::id(row, "id")?,
        state: state(row)?,
        incarnation: row.get("incarnation")?,
        uid: row.get("uid")?,
        created_at: rows::time(row, "created_at")?,
        changed_at: rows::time(row, "changed_at")?,
        ready_at: rows::optional_time(row, "ready_at")?,
        deleted_at: rows::optional_time(row, "deleted_at")?,
        failure: reason.map(|reason| SandboxFailure { reason, detail: detail.unwrap_or_default() }),
        record: rows::message(row, "record")?,
    })
}

fn exec_row(row: &Row<'_>) -> rusqlite::Result<SandboxExecRow> {
    let code: i64 = row.get("state")?;
    Ok(SandboxExecRow {
        id: rows::id(row, "id")?,
        sandbox: rows::id(row, "sandbox")?,
        created_at: rows::time(row, "created_at")?,
        request: rows::message(row, "request")?,
        progress: SandboxExecProgress {
            state: SandboxExecState::from_code(code).ok_or_else(|| rows::unknown(row, "state", code))?,
            cancel: row.get("cancel")?,
            finished_at: rows::optional_time(row, "finished_at")?,
            exit_code: row.get("exit_code")?,
            signal: row.get("signal")?,
            cause: coded(row, "cause", Cause::from_code)?,
            reason: coded(row, "reason", ExecFailReason::from_code)?,
            error: row.get("error")?,
            stdout: JobStreamBytes {
                seen: rows::unsigned(row, "stdout_seen")?,
                kept: rows::unsigned(row, "stdout_kept")?,
            },
            stderr: JobStreamBytes {
                seen: rows::unsigned(row, "stderr_seen")?,
                kept: rows::unsigned(row, "stderr_kept")?,
            },
        },
    })
}
