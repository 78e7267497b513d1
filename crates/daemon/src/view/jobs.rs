//! Jobs, as clients see them.

use lodge_core::job::{JobRow, JobStreamBytes};
use lodge_core::{Cause, SessionId, Timestamp};
use lodge_engine::JobRefusal;
use lodge_proto::{ErrorBody, JobView};

pub fn job(row: &JobRow, agent_name: &str) -> JobView {
    let JobRow { id, agent, session, priority, created_at, request, progress, .. } = row;
    let not_kept = |stream: JobStreamBytes| stream.seen.saturating_sub(stream.kept);
    let dropped_bytes = not_kept(progress.stdout) + not_kept(progress.stderr);
    let over = !progress.state.is_open();
    JobView {
        id: id.to_string(),
        agent: agent.to_string(),
        agent_name: agent_name.to_owned(),
        session: session.as_ref().map(SessionId::to_string),
        bin: request.bin.clone(),
        args: request.args.clone(),
        status: progress.state.word().to_owned(),
        exit_code: progress.exit_code,
        signal: progress.signal,
        cause: progress.cause.map(|cause| Cause::word(cause).to_owned()),
        error: progress.error.clone(),
        priority: *priority,
        timeout_ms: Some(request.timeout_ms).filter(|timeout_ms| *timeout_ms > 0),
        created_at: created_at.to_string(),
        started_at: progress.started_at.as_ref().map(Timestamp::to_string),
        finished_at: progress.finished_at.as_ref().map(Timestamp::to_string),
        stdout_bytes: progress.stdout.seen,
        stderr_bytes: progress.stderr.seen,
        // For a running job its files show what was dropped; after its end, its row does.
        truncated: over && (dropped_bytes > 0 || row.output_removed),
        dropped_bytes: if over { dropped_bytes } else { 0 },
        output_removed: row.output_removed,
        cancelling: !over && progress.cancel.is_some(),
        labels: row.labels(),
    }
}

/// The refusal for an unknown job.
pub fn no_job(given: &str) -> ErrorBody {
    super::refused(JobRefusal::NotFound { given: given.to_owned() })
}
