//! Execs in one standalone sandbox: start, kill, forget, and their state when no keeper runs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use lodge_core::ExecId;
use lodge_core::job::JobStreamBytes;
use lodge_core::sandbox::{ExecFailReason, SandboxExecRow};
use lodge_engine::{ExecOrder, ExecOutcome, SandboxExecEnd, StandaloneObservation};
use lodge_exec::{Evidence, ExecKind, ExitOutcome, ExitRecord, KeeperCommand, StartExec};
use tokio::time::Instant;

use super::super::actor::GRACE;
use super::{ConnectedSandbox, StandaloneTask};
use crate::chain;
use crate::compute::ComputeError;
use crate::crash;
use crate::limits;

/// The pause before an exec is read again.
const UNREAD_PAUSE: Duration = Duration::from_secs(1);

/// Orders to start execs that could not be read from the store.
#[derive(Debug, Default)]
pub(super) struct UnreadExecs {
    /// Whether the order was a repeated one.
    execs: BTreeMap<ExecId, bool>,
    /// When the orders are repeated.
    pub(super) next: Option<Instant>,
}

impl UnreadExecs {
    pub(super) fn is_empty(&self) -> bool {
        self.execs.is_empty()
    }
}

impl StandaloneTask {
    pub(super) async fn apply_exec_order(&mut self, order: ExecOrder) {
        match order {
            ExecOrder::Start { exec, resumed } => self.start_exec(exec, resumed).await,
            ExecOrder::Kill { exec } => self.kill_exec(exec).await,
            ExecOrder::Forget { exec } => self.forget_exec(exec).await,
        }
    }

    /// Asks the keeper to start an exec or to report its state. Without a keeper, the engine asks again when there is one.
    async fn start_exec(&mut self, exec: ExecId, resumed: bool) {
        if self.up.is_none() {
            return;
        }
        let id = exec.clone();
        let read = self.context.read_few(move |store| store.exec_to_start(&id)).await;
        let (row, stdin) = match read {
            Ok(Some(found)) if found.0.progress.state.is_open() => found,
            // It ended after this order was made, and its claim may be gone: the keeper would run it again.
            Ok(Some(_) | None) => return,
            Err(error) => return self.postpone_exec(exec, resumed, &error),
        };
        // A cancel that arrived before the start.
        if row.progress.cancel.is_some() {
            return self.kill_exec(exec).await;
        }
        let other_boot = row.request.boot != self.context.executor.boot_id();
        let evidence = || self.context.executor.evidence(self.sandbox.as_str(), exec.as_str());
        if resumed && other_boot && matches!(evidence(), Evidence::NoClaim) {
            // The machine was restarted since the intent, so a missing claim does not prove that it never ran.
            let why = "the machine was restarted while it ran, and nothing of it is left";
            return self.exec_lost(exec, why).await;
        }
        let Some(up) = &self.up else { return };
        let keep_free = self.context.config.settings().job_keep_free;
        let start = start_of(up, &row, stdin, keep_free);
        crash::point("before_exec_start");
        self.send(KeeperCommand::Start(start)).await;
        crash::point("after_exec_start");
    }

    fn postpone_exec(&mut self, exec: ExecId, resumed: bool, error: &ComputeError) {
        tracing::warn!(event = "exec.start_postponed", sandbox = %self.sandbox, %exec, error = chain(error));
        self.unread.execs.insert(exec, resumed);
        self.unread.next.get_or_insert_with(|| Instant::now() + UNREAD_PAUSE);
    }

    /// Repeats the orders whose execs could not be read.
    pub(super) async fn start_unread_execs(&mut self) {
        if self.unread.next.is_none_or(|next| Instant::now() < next) {
            return;
        }
        for (exec, resumed) in std::mem::take(&mut self.unread).execs {
            self.start_exec(exec, resumed).await;
        }
    }

    /// Asks the keeper to kill an exec or to report its end. Without a keeper, its files show how it ended.
    async fn kill_exec(&mut self, exec: ExecId) {
        self.unread.execs.remove(&exec);
        if self.up.is_some() {
            let grace_ms = u32::try_from(GRACE.as_millis()).unwrap_or(u32::MAX);
            return self.send(KeeperCommand::Kill { exec: exec.to_string(), grace_ms }).await;
        }
        // A live keeper is asked again when the daemon connects to it.
        if self.dialing.is_some() || self.keeper().is_held() {
            return;
        }
        match self.context.executor.evidence(self.sandbox.as_str(), exec.as_str()) {
            Evidence::Exited(record) => self.exec_exited(exec, &record).await,
            Evidence::NoClaim => {
                self.exec_refused(exec, "its sandbox ended before it could start".to_owned(), false).await;
            }
            Evidence::Claimed => self.exec_lost(exec, "its sandbox died while it ran").await,
            Evidence::Unreadable(error) => {
                let why = format!("what it left could not be read: {}", chain(&error));
                self.exec_lost(exec, &why).await;
            }
        }
    }

    /// Removes the claim and the record of an exec. With the sandbox they are removed anyway.
    async fn forget_exec(&mut self, exec: ExecId) {
        self.send(KeeperCommand::Forget { exec: exec.to_string() }).await;
    }

    pub(super) async fn exec_exited(&mut self, exec: ExecId, record: &ExitRecord) {
        crash::point("before_exec_end");
        let (how, reason, why) = match &record.ended {
            ExitOutcome::Code(code) => (ExecOutcome::Exited { code: *code }, None, None),
            ExitOutcome::Signal(signal) => (ExecOutcome::Killed { signal: *signal }, None, None),
            ExitOutcome::NotStarted { errno, why } => {
                (ExecOutcome::NotStarted, Some(reason_of(*errno)), Some(why.clone()))
            }
        };
        let note = Some(record.note.trim().to_owned()).filter(|note| !note.is_empty());
        let bytes = |count: lodge_exec::StreamCount| JobStreamBytes { seen: count.seen, kept: count.kept };
        let end = SandboxExecEnd {
            how,
            reason,
            cause: record.cause.as_ref().map(limits::recorded),
            detail: why.or(note),
            stdout: bytes(record.stdout),
            stderr: bytes(record.stderr),
        };
        self.report(StandaloneObservation::ExecEnded { exec, end }).await;
    }

    /// Reports an exec that was not started. If that is recorded, the record says more.
    pub(super) async fn exec_refused(&mut self, exec: ExecId, why: String, recorded: bool) {
        if recorded
            && let Evidence::Exited(record) =
                self.context.executor.evidence(self.sandbox.as_str(), exec.as_str())
        {
            return self.exec_exited(exec, &record).await;
        }
        let end = SandboxExecEnd {
            how: ExecOutcome::NotStarted,
            reason: Some(ExecFailReason::NotStarted),
            cause: None,
            detail: Some(why),
            stdout: JobStreamBytes::default(),
            stderr: JobStreamBytes::default(),
        };
        self.report(StandaloneObservation::ExecEnded { exec, end }).await;
    }

    /// Reports an exec whose outcome is unknown, with the output that was captured of it.
    pub(super) async fn exec_lost(&mut self, exec: ExecId, why: &str) {
        let (stdout, stderr) = self.context.sandbox_files.written(&self.sandbox, &exec);
        let bytes = |written: u64| JobStreamBytes { seen: written, kept: written };
        let end = SandboxExecEnd {
            how: ExecOutcome::Lost,
            reason: Some(ExecFailReason::Lost),
            cause: None,
            detail: Some(why.to_owned()),
            stdout: bytes(stdout),
            stderr: bytes(stderr),
        };
        self.report(StandaloneObservation::ExecEnded { exec, end }).await;
    }
}

fn start_of(up: &ConnectedSandbox, row: &SandboxExecRow, stdin: Vec<u8>, keep_free: u64) -> StartExec {
    let request = &row.request;
    StartExec {
        exec: row.id.to_string(),
        kind: ExecKind::Command,
        argv: request.command.iter().map(Into::into).collect(),
        env: environment(up, row),
        cwd: request.cwd.as_ref().map_or_else(|| up.layout.workspace(), |cwd| up.layout.path(cwd)),
        stdin,
        output_cap: request.output_bytes,
        timeout_ms: 0,
        output_max: limits::job_output_max(up.plan.settings.limits),
        job_head: 0,
        job_segment: 0,
        keep_free,
    }
}

/// The complete environment of an exec: its own variables override those of the sandbox.
fn environment(up: &ConnectedSandbox, row: &SandboxExecRow) -> Vec<(OsString, OsString)> {
    let mut env: BTreeMap<OsString, OsString> = up.layout.variables().into_iter().collect();
    env.insert("LANG".into(), "C.UTF-8".into());
    for (key, value) in up.plan.settings.env.iter().chain(&row.request.env) {
        env.insert(key.into(), value.into());
    }
    env.into_iter().collect()
}

/// Why the kernel did not start a program.
fn reason_of(errno: i32) -> ExecFailReason {
    match errno {
        libc::ENOENT => ExecFailReason::NotFound,
        libc::EACCES | libc::ENOEXEC | libc::EISDIR => ExecFailReason::NotExecutable,
        _other => ExecFailReason::NotStarted,
    }
}
