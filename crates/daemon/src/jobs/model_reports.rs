//! Reports about jobs to a model.

use std::collections::BTreeMap;
use std::sync::Arc;

use lodge_core::job::{JobRow, JobState};
use lodge_core::limits::{RESULT_HEAD_BYTES, RESULT_TAIL_BYTES};
use lodge_core::{JobId, Timestamp};
use lodge_exec::StreamKind;
use lodge_store::{JobFilter, JobSummary};
use serde_json::{Value, json};

use super::read::JobOutputSource;
use super::written;
use crate::act::ports::JobOwner;
use crate::chain;
use crate::excerpt::both_ends;
use crate::shell::Shell;
use crate::view;
use lodge_engine::jobs::{JobReport, JobToolRequest};

/// Answers a wish to read. Others' jobs are not there for it.
pub async fn answer(shell: Arc<Shell>, owner: JobOwner, wish: JobToolRequest) -> JobReport {
    let read = tokio::task::spawn_blocking(move || {
        let read = read(&shell, &owner, &wish);
        JobReport { text: shell.providers().redactor().redact(read.text), ..read }
    })
    .await;
    read.unwrap_or_else(|error| failed(error.to_string()))
}

fn read(shell: &Shell, owner: &JobOwner, wish: &JobToolRequest) -> JobReport {
    match wish {
        JobToolRequest::List { status, limit } => list(shell, owner, *status, *limit),
        JobToolRequest::Status { job } | JobToolRequest::Wait { job } => one(shell, owner, job, status),
        JobToolRequest::Cancel { job } => one(shell, owner, job, |_, row| cancelled(row)),
        JobToolRequest::Watch { job } => one(shell, owner, job, |shell, row| {
            let output = JobOutputSource::of(shell, row).map_err(view::for_model)?;
            text(&output, row, StreamKind::Stdout)
        }),
        // Nothing is read for it.
        JobToolRequest::Submit(_) => failed("a job that is submitted has nothing to be read".to_owned()),
    }
}

fn one(
    shell: &Shell,
    owner: &JobOwner,
    job: &JobId,
    words: impl FnOnce(&Shell, &JobRow) -> Result<String, String>,
) -> JobReport {
    let is_theirs = |row: &JobRow| row.agent == owner.agent && row.session.as_ref() == Some(&owner.session);
    let row = match shell.reader.here(|store| store.job_summary(job)) {
        Ok(Some(found)) if is_theirs(&found.row) => found.row,
        Ok(Some(_) | None) => return failed(format!("async job not found: {job}")),
        Err(error) => return failed(chain(&error)),
    };
    match words(shell, &row) {
        Ok(text) => {
            let over = !row.progress.state.is_open();
            JobReport { text, error: false, told: if over { vec![row.id] } else { Vec::new() } }
        }
        Err(why) => failed(why),
    }
}

/// The job was cancelled by this request under a daemon that died before its answer, or had ended before.
fn cancelled(row: &JobRow) -> Result<String, String> {
    match row.progress.state {
        JobState::Cancelled => Ok(json!({"job_id": row.id.as_str(), "status": "cancelled"}).to_string()),
        JobState::Pending | JobState::Running | JobState::Done | JobState::Error => {
            Err(format!("async job not currently running: {} is {}", row.id, row.progress.state.word()))
        }
    }
}

fn status(shell: &Shell, row: &JobRow) -> Result<String, String> {
    let output = JobOutputSource::of(shell, row).map_err(view::for_model)?;
    let progress = &row.progress;
    let mut told = json!({
        "job_id": row.id.as_str(),
        "status": progress.state.word(),
        "exit_code": progress.exit_code,
        "signal": progress.signal,
        "stdout": text(&output, row, StreamKind::Stdout)?,
        "stderr": text(&output, row, StreamKind::Stderr)?,
        "error": progress.error,
    });
    if let Some(cause) = progress.cause {
        told["cause"] = Value::from(cause.word());
    }
    Ok(told.to_string())
}

fn list(shell: &Shell, owner: &JobOwner, status: Option<JobState>, limit: u32) -> JobReport {
    let (labels, states) = (BTreeMap::new(), status.into_iter().collect::<Vec<_>>());
    let filter = JobFilter {
        agent: Some(&owner.agent),
        session: Some(&owner.session),
        states: &states,
        labels: &labels,
        before: None,
    };
    match shell.reader.here(|store| store.newest_jobs(filter, limit)) {
        Ok(jobs) => {
            let jobs: Vec<Value> = jobs.iter().map(|job| line(shell, job)).collect();
            JobReport { text: Value::from(jobs).to_string(), error: false, told: Vec::new() }
        }
        Err(error) => failed(chain(&error)),
    }
}

fn line(shell: &Shell, found: &JobSummary) -> Value {
    let row = &found.row;
    let (request, progress) = (&row.request, &row.progress);
    let over = (progress.stdout.seen, progress.stderr.seen);
    let (stdout, stderr) =
        written(shell, found).map_or(over, |written| (written.stdout.end, written.stderr.end));
    json!({
        "job_id": row.id.as_str(),
        "bin": request.bin,
        "args": request.args,
        "status": progress.state.word(),
        "exit_code": progress.exit_code,
        "signal": progress.signal,
        "error": progress.error,
        "created_at": row.created_at.to_string(),
        "started_at": progress.started_at.as_ref().map(Timestamp::to_string),
        "finished_at": progress.finished_at.as_ref().map(Timestamp::to_string),
        "stdout_bytes": stdout,
        "stderr_bytes": stderr,
        "labels": row.labels(),
    })
}

/// Both ends of a stream, as of any tool.
fn text(output: &JobOutputSource<'_>, row: &JobRow, who: StreamKind) -> Result<String, String> {
    let known = output.known().map_err(view::for_model)?;
    let seen = match who {
        StreamKind::Stdout => known.stdout,
        StreamKind::Stderr => known.stderr,
    };
    if row.output_removed {
        return Ok(format!("[{seen} bytes were written; they were removed, as the retention says]"));
    }
    let head = upto(output, who, 0, RESULT_HEAD_BYTES, HolePolicy::Ends)?;
    let tail_from = seen.saturating_sub(RESULT_TAIL_BYTES as u64).max(head.len() as u64);
    let tail_len = usize::try_from(seen - tail_from).unwrap_or(usize::MAX);
    let tail = upto(output, who, tail_from, tail_len, HolePolicy::Passed)?;
    Ok(both_ends(&head, &tail, seen, ""))
}

/// What to do where bytes were not kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HolePolicy {
    Ends,
    Passed,
}

/// What is kept of a stream from an offset on, up to a length.
fn upto(
    output: &JobOutputSource<'_>,
    who: StreamKind,
    offset: u64,
    len_max: usize,
    hole: HolePolicy,
) -> Result<Vec<u8>, String> {
    let (mut bytes, mut at, upto) = (Vec::new(), offset, offset.saturating_add(len_max as u64));
    while at < upto {
        let len = usize::try_from(upto - at).unwrap_or(usize::MAX);
        let piece = output.stream(who, at, len).map_err(view::for_model)?;
        let is_over = piece.bytes.is_empty() || piece.offset >= upto;
        if is_over || (hole == HolePolicy::Ends && piece.offset > at) {
            break;
        }
        at = piece.offset + piece.bytes.len() as u64;
        bytes.extend_from_slice(&piece.bytes);
    }
    Ok(bytes)
}

fn failed(why: String) -> JobReport {
    JobReport { text: why, error: true, told: Vec::new() }
}
