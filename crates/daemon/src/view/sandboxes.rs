//! Standalone sandboxes and their execs, as clients see them.

use lodge_core::job::JobStreamBytes;
use lodge_core::record::LimitsRecord;
use lodge_core::sandbox::{ExecFailReason, SandboxExecRow, SandboxRow, SandboxState};
use lodge_core::{Cause, Timestamp};
use lodge_exec::{stderr_log, stdout_log};
use lodge_proto::{ExecView, LimitView, SandboxBinView, SandboxView};

use super::{LiveSandbox, images, mount};

pub fn sandbox(row: &SandboxRow, living: Option<&LiveSandbox>) -> SandboxView {
    let record = &row.record;
    let bins = record.tools.iter().map(|tool| SandboxBinView {
        name: tool.name.clone(),
        source: tool.source.clone(),
        path: tool.path.clone(),
    });
    let shown = |at: &Option<Timestamp>| at.as_ref().map(Timestamp::to_string);
    SandboxView {
        id: row.id.to_string(),
        status: row.state.word().to_owned(),
        stopping: row.state == SandboxState::Stopping,
        executor: record.executor.clone(),
        image: None,
        services: Vec::new(),
        error_code: row.failure.as_ref().map(|failure| failure.reason.word().to_owned()),
        error: row.failure.as_ref().map(|failure| failure.detail.clone()),
        created_at: row.created_at.to_string(),
        changed_at: row.changed_at.to_string(),
        ready_at: shown(&row.ready_at),
        deleted_at: shown(&row.deleted_at),
        labels: record.labels.clone(),
        env: record.env.clone(),
        bins: bins.collect(),
        mounts: record.mounts.iter().map(mount).collect(),
        network: images::network(record.network.clone()),
        limits: shown_limits(record.limits.unwrap_or_default(), living),
        isolation: living.map(|living| living.layers.clone()).unwrap_or_default(),
        pid: living.and_then(|living| living.pid),
        uid: row.uid,
    }
}

/// The limits of a sandbox. Without one of its own, the output of its execs has no limit but what is kept of it.
fn shown_limits(limits: LimitsRecord, living: Option<&LiveSandbox>) -> Vec<LimitView> {
    let mut all = crate::limits::view(limits, living.map(|living| living.limits.as_slice()));
    let asks_output = limits.output_bytes.is_some();
    all.retain(|limit| asks_output || limit.name != Cause::Output.word());
    all
}

/// The paths of its output are relative to the state directory, which a recorded answer must not name.
pub fn exec(row: &SandboxExecRow) -> ExecView {
    let (request, progress) = (&row.request, &row.progress);
    let is_cut = |stream: JobStreamBytes| stream.seen > stream.kept;
    let logs = format!("sandboxes/{}/logs", row.sandbox);
    ExecView {
        id: row.id.to_string(),
        sandbox: row.sandbox.to_string(),
        command: request.command.clone(),
        cwd: request.cwd.clone(),
        env: request.env.clone(),
        status: progress.state.word().to_owned(),
        exit_code: progress.exit_code,
        signal: progress.signal,
        cause: progress.cause.map(|cause| Cause::word(cause).to_owned()),
        error_code: progress.reason.map(|reason| ExecFailReason::word(reason).to_owned()),
        error: progress.error.clone(),
        cancelling: progress.state.is_open() && progress.cancel.is_some(),
        stdout_path: format!("{logs}/{}", stdout_log(row.id.as_str())),
        stderr_path: format!("{logs}/{}", stderr_log(row.id.as_str())),
        stdout_bytes: progress.stdout.seen,
        stderr_bytes: progress.stderr.seen,
        truncated: is_cut(progress.stdout) || is_cut(progress.stderr),
        started_at: row.created_at.to_string(),
        finished_at: progress.finished_at.as_ref().map(Timestamp::to_string),
    }
}
