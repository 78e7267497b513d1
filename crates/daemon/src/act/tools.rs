//! An agent's tool calls: requested from its keeper, settled by the ledger, reported to the engine with captured output.

use std::time::Duration;

use lodge_core::ExecId;
use lodge_core::ledger::{self, LedgerDecision, RepeatSafety, UnknownOutcome};
use lodge_core::limits::{
    EXEC_ARGS_MAX, KEPT_BYTES_MAX, KEPT_FILES_MAX, KEPT_SHARE, RESULT_HEAD_BYTES, RESULT_TAIL_BYTES,
};
use lodge_core::record::ExecRequest;
use lodge_exec::{
    CapturedStream, Evidence, ExecKind, ExecState, ExecStream, ExitRecord, KeepRules, KeeperCommand,
    Resource, StartExec,
};

use tokio::time::Instant;

use super::actor::{Actor, Sandbox};
use super::events::split_running;
use super::{result, root};
use crate::chain;
use crate::crash;
use crate::limits;
use lodge_engine::{ExecEnd, Observation, TurnObservation};

/// How long the output of a tool may stay unreadable because the daemon is short of descriptors, and the pause between reads.
const READ_WITHIN: Duration = Duration::from_secs(30);
const READ_PAUSE: Duration = Duration::from_millis(100);

impl Actor {
    pub(super) async fn start_exec(
        &mut self,
        exec: ExecId,
        request: ExecRequest,
        repeat: RepeatSafety,
        resumed: bool,
    ) {
        let Some(up) = &mut self.up else { return };
        if request.args.len() > EXEC_ARGS_MAX {
            let why = format!("it has {} arguments; {EXEC_ARGS_MAX} is the most", request.args.len());
            return self.report_exec_end(&exec, result::refused_exec_end(&why)).await;
        }
        let start = StartExec {
            exec: exec.to_string(),
            kind: ExecKind::Tool,
            argv: up.layout.tool_argv(&request.bin, &request.args),
            env: root::environment(&up.layout, &up.plan, &up.image),
            cwd: up.layout.workspace(),
            stdin: request.stdin.clone(),
            output_cap: limits::output_bytes(up.plan.settings.limits),
            timeout_ms: request.timeout_ms,
            output_max: limits::output_bytes(up.plan.settings.limits),
            job_head: 0,
            job_segment: 0,
            keep_free: 0,
        };
        let other_boot = request.boot != self.context.executor.boot_id();
        up.open.insert(exec.clone(), (request, repeat));
        let evidence = || self.context.executor.evidence(self.sandbox.as_str(), exec.as_str());
        if resumed && other_boot && matches!(evidence(), Evidence::NoClaim) {
            // The machine was restarted since the intent, so a missing claim does not prove that the tool never ran.
            if ledger::decide_unknown_outcome(UnknownOutcome::OtherBoot, repeat) == LedgerDecision::Unknown {
                return self.report_lost_tool(&exec).await;
            }
        }
        self.send(KeeperCommand::Start(start)).await;
    }

    pub(super) async fn tool_exited(&mut self, exec: &ExecId, record: &ExitRecord) {
        let Some(up) = &mut self.up else { return };
        let Some((request, _)) = up.open.remove(exec) else { return };
        crash::point("before_outcome");
        let (stdout, stderr) = self.captured(exec).await;
        let mut end = result::exec_end(record, &stdout, &stderr, |stream| self.kept_path(exec, stream));
        if request.boot != self.context.executor.boot_id() {
            // The record has a digest. Output files are not flushed and may have holes.
            end.text.push_str(result::OTHER_BOOT);
        }
        self.report_exec_end(exec, end).await;
    }

    pub(super) async fn tool_refused(&mut self, exec: &ExecId, why: &str) {
        let Some(up) = &mut self.up else { return };
        if up.open.remove(exec).is_some() {
            self.report_exec_end(exec, result::refused_exec_end(why)).await;
        }
    }

    /// Settles a tool call that a dead keeper claimed and that has no exit record.
    pub(super) async fn tool_lost(&mut self, exec: &ExecId) {
        let Some(up) = &mut self.up else { return };
        let Some((request, repeat)) = up.open.get(exec).cloned() else { return };
        match ledger::decide_unknown_outcome(UnknownOutcome::ClaimedOnly, repeat) {
            LedgerDecision::Rerun => {
                self.send(KeeperCommand::Forget { exec: exec.to_string() }).await;
                self.start_exec(exec.clone(), request, repeat, false).await;
            }
            LedgerDecision::Unknown => self.report_lost_tool(exec).await,
        }
    }

    async fn report_lost_tool(&mut self, exec: &ExecId) {
        if let Some(up) = &mut self.up {
            up.open.remove(exec);
        }
        let (stdout, stderr) = self.captured(exec).await;
        let end = result::lost_exec_end(&stdout, &stderr, |stream| self.kept_path(exec, stream));
        self.report_exec_end(exec, end).await;
    }

    async fn captured(&self, exec: &ExecId) -> (CapturedStream, CapturedStream) {
        let empty = || CapturedStream { head: Vec::new(), tail: Vec::new(), total: 0 };
        if self.up.is_none() {
            return (empty(), empty());
        }
        (self.read_stream(exec, ExecStream::Stdout).await, self.read_stream(exec, ExecStream::Stderr).await)
    }

    /// What was captured of a stream. A daemon that is short of descriptors waits a while: the result is stored once.
    async fn read_stream(&self, exec: &ExecId, stream: ExecStream) -> CapturedStream {
        let until = Instant::now() + READ_WITHIN;
        loop {
            let (id, head, tail) = (exec.as_str(), RESULT_HEAD_BYTES, RESULT_TAIL_BYTES);
            match self.context.executor.read_output(self.sandbox.as_str(), id, stream, head, tail) {
                Ok(captured) => return captured,
                Err(error) if error.is_shortage() && Instant::now() < until => {
                    tokio::time::sleep(READ_PAUSE).await;
                }
                Err(error) => {
                    tracing::warn!(event = "exec.output_unreadable", %exec, error = chain(&error));
                    let head = b"[its output could not be read]".to_vec();
                    return CapturedStream { total: head.len() as u64, head, tail: Vec::new() };
                }
            }
        }
    }

    /// Removes the directory of an exec whose outcome is stored. Output that was too long for the result is kept.
    pub(super) async fn forget_exec(&mut self, exec: &ExecId) {
        let Some(up) = &self.up else { return };
        crash::point("before_keeping");
        let (sandbox, rules) = (self.sandbox.as_str(), keep_rules(up));
        if let Err(error) = self.context.executor.keep_output(sandbox, exec.as_str(), &rules).await {
            tracing::warn!(event = "exec.output_not_kept", agent = %self.agent, %exec, error = chain(&error));
            // The directory has the only copy. The next link reports the exec, and it is forgotten then.
            return;
        }
        crash::point("after_keeping");
        self.send(KeeperCommand::Forget { exec: exec.to_string() }).await;
    }

    /// The path of a kept stream, as the agent sees it.
    fn kept_path(&self, exec: &ExecId, stream: ExecStream) -> String {
        let Some(up) = &self.up else { return String::new() };
        keep_rules(up).path(up.layout.root(), exec.as_str(), stream).display().to_string()
    }

    async fn report_exec_end(&self, exec: &ExecId, end: ExecEnd) {
        // Neither the model nor a reader of the conversation may see a provider's key.
        let end = ExecEnd { text: self.context.models.redactor().redact(end.text), ..end };
        self.context.report(Observation::Turn(TurnObservation::ExecEnded { exec: exec.clone(), end })).await;
    }

    /// Reports the tool calls that a newly connected keeper knows.
    pub(super) async fn report_found_tools(&self, tools: Vec<(ExecId, ExecState)>) {
        let (running, ended) = split_running(tools);
        if !running.is_empty() || !ended.is_empty() {
            let agent = self.agent.clone();
            self.context
                .report(Observation::Turn(TurnObservation::ExecsFound { agent, running, ended }))
                .await;
        }
    }
}

/// Streams that fit into a result are not kept. The others take at most a share of the agent's disk.
fn keep_rules(up: &Sandbox) -> KeepRules<'_> {
    let disk = up.living.limits.iter().find(|limit| limit.resource == Resource::Disk);
    KeepRules {
        root: &up.root,
        uid: up.plan.uid,
        more_than: (RESULT_HEAD_BYTES + RESULT_TAIL_BYTES) as u64,
        files_max: KEPT_FILES_MAX,
        bytes_max: disk.map_or(KEPT_BYTES_MAX, |disk| (disk.limit / KEPT_SHARE).min(KEPT_BYTES_MAX)),
    }
}
