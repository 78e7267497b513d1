//! An agent's tool calls: asked of its keeper, settled by the ledger, told to the engine with what was captured.

use lodge_core::ExecId;
use lodge_core::ledger::{self, Doubt, Repeat, Settle};
use lodge_core::limits::{
    EXEC_ARGS_MAX, KEPT_BYTES_MAX, KEPT_FILES_MAX, KEPT_SHARE, RESULT_HEAD_BYTES, RESULT_TAIL_BYTES,
};
use lodge_core::record::ExecRequest;
use lodge_exec::{
    CapturedStream, Evidence, ExecKind, ExecState, ExecStream, ExitRecord, KeepRules, KeeperCommand,
    Resource, StartExec,
};

use super::actor::{Actor, Sandbox};
use super::events::split_running;
use super::{result, root};
use crate::chain;
use crate::crash;
use crate::limits;
use lodge_engine::{ExecEnd, Seen, TurnSeen};

impl Actor {
    pub(super) async fn start_exec(
        &mut self,
        exec: ExecId,
        request: ExecRequest,
        repeat: Repeat,
        resumed: bool,
    ) {
        let Some(up) = &mut self.up else { return };
        if request.args.len() > EXEC_ARGS_MAX {
            let why = format!("it has {} arguments; {EXEC_ARGS_MAX} is the most", request.args.len());
            return self.tell_end(&exec, result::refused(&why)).await;
        }
        let start = StartExec {
            exec: exec.to_string(),
            kind: ExecKind::Tool,
            argv: up.layout.tool_argv(&request.bin, &request.args),
            env: root::environment(&up.layout, &up.plan, &up.image),
            cwd: up.layout.workspace(),
            stdin: request.stdin.clone(),
            output_cap: limits::output_bytes(&up.plan.spec),
            timeout_ms: request.timeout_ms,
            output_max: limits::output_bytes(&up.plan.spec),
            job_head: 0,
            job_segment: 0,
            keep_free: 0,
        };
        let other_boot = request.boot != self.shell.executor.boot_id();
        up.open.insert(exec.clone(), (request, repeat));
        let evidence = || self.shell.executor.evidence(self.sandbox.as_str(), exec.as_str());
        if resumed && other_boot && matches!(evidence(), Evidence::NoClaim) {
            // The machine was restarted since the intent: that nothing is there proves nothing.
            if ledger::settle(Doubt::OtherBoot, repeat) == Settle::Unknown {
                return self.tell_lost(&exec).await;
            }
        }
        self.send(KeeperCommand::Start(start)).await;
    }

    pub(super) async fn tool_exited(&mut self, exec: &ExecId, record: &ExitRecord) {
        let Some(up) = &mut self.up else { return };
        let Some((request, _)) = up.open.remove(exec) else { return };
        crash::point("before_outcome");
        let (stdout, stderr) = self.captured(exec);
        let mut end = result::ended(record, &stdout, &stderr, |stream| self.kept_path(exec, stream));
        if request.boot != self.shell.executor.boot_id() {
            // The record proves itself; output files are not flushed, and may have holes.
            end.text.push_str(result::OTHER_BOOT);
        }
        self.tell_end(exec, end).await;
    }

    pub(super) async fn tool_refused(&mut self, exec: &ExecId, why: &str) {
        let Some(up) = &mut self.up else { return };
        if up.open.remove(exec).is_some() {
            self.tell_end(exec, result::refused(why)).await;
        }
    }

    /// Claimed by a keeper that died, without an outcome.
    pub(super) async fn tool_lost(&mut self, exec: &ExecId) {
        let Some(up) = &mut self.up else { return };
        let Some((request, repeat)) = up.open.get(exec).cloned() else { return };
        match ledger::settle(Doubt::ClaimedOnly, repeat) {
            Settle::Rerun => {
                self.send(KeeperCommand::Forget { exec: exec.to_string() }).await;
                self.start_exec(exec.clone(), request, repeat, false).await;
            }
            Settle::Unknown => self.tell_lost(exec).await,
        }
    }

    async fn tell_lost(&mut self, exec: &ExecId) {
        if let Some(up) = &mut self.up {
            up.open.remove(exec);
        }
        let (stdout, stderr) = self.captured(exec);
        let end = result::lost(&stdout, &stderr, |stream| self.kept_path(exec, stream));
        self.tell_end(exec, end).await;
    }

    fn captured(&self, exec: &ExecId) -> (CapturedStream, CapturedStream) {
        let empty = || CapturedStream { head: Vec::new(), tail: Vec::new(), total: 0 };
        if self.up.is_none() {
            return (empty(), empty());
        }
        let read = |stream| {
            let (id, head, tail) = (exec.as_str(), RESULT_HEAD_BYTES, RESULT_TAIL_BYTES);
            let read = self.shell.executor.read_output(self.sandbox.as_str(), id, stream, head, tail);
            read.unwrap_or_else(|error| {
                tracing::warn!(event = "exec.output_unreadable", %exec, error = chain(&error));
                let head = b"[its output could not be read]".to_vec();
                CapturedStream { total: head.len() as u64, head, tail: Vec::new() }
            })
        };
        (read(ExecStream::Stdout), read(ExecStream::Stderr))
    }

    /// Its outcome is stored: its directory goes, and what of its output was too long to be told is kept.
    pub(super) async fn forget_exec(&mut self, exec: &ExecId) {
        let Some(up) = &self.up else { return };
        crash::point("before_keeping");
        let (sandbox, rules) = (self.sandbox.as_str(), keeping(up));
        if let Err(error) = self.shell.executor.keep_output(sandbox, exec.as_str(), &rules).await {
            tracing::warn!(event = "exec.output_not_kept", agent = %self.agent, %exec, error = chain(&error));
        }
        crash::point("after_keeping");
        self.send(KeeperCommand::Forget { exec: exec.to_string() }).await;
    }

    /// Where a stream lies once its exec is forgotten, as the agent sees it.
    fn kept_path(&self, exec: &ExecId, stream: ExecStream) -> String {
        let Some(up) = &self.up else { return String::new() };
        keeping(up).path(up.layout.root(), exec.as_str(), stream).display().to_string()
    }

    async fn tell_end(&self, exec: &ExecId, end: ExecEnd) {
        // A model does not need the key that it is called with, nor does who reads what it saw.
        let end = ExecEnd { text: self.shell.providers.redactor().redact(end.text), ..end };
        self.shell.tell(Seen::Turn(TurnSeen::ExecEnded { exec: exec.clone(), end })).await;
    }

    /// What a keeper that was just connected knows of tool calls.
    pub(super) async fn tools_found(&self, tools: Vec<(ExecId, ExecState)>) {
        let (running, ended) = split_running(tools);
        if !running.is_empty() || !ended.is_empty() {
            let agent = self.agent.clone();
            self.shell.tell(Seen::Turn(TurnSeen::ExecsFound { agent, running, ended })).await;
        }
    }
}

/// Streams that are told whole are not kept; the others take a part of the agent's disk at most.
fn keeping(up: &Sandbox) -> KeepRules<'_> {
    let disk = up.living.limits.iter().find(|limit| limit.resource == Resource::Disk);
    KeepRules {
        root: &up.root,
        uid: up.plan.uid,
        more_than: (RESULT_HEAD_BYTES + RESULT_TAIL_BYTES) as u64,
        files_max: KEPT_FILES_MAX,
        bytes_max: disk.map_or(KEPT_BYTES_MAX, |disk| (disk.limit / KEPT_SHARE).min(KEPT_BYTES_MAX)),
    }
}
