//! An agent's tool calls: asked of its keeper, settled by the ledger, told to the engine with what was captured.

use lodge_core::ExecId;
use lodge_core::ledger::{self, Doubt, Repeat, Settle};
use lodge_core::limits::{
    EXEC_ARGS_MAX, KEPT_BYTES_MAX, KEPT_FILES_MAX, KEPT_SHARE, RESULT_HEAD_BYTES, RESULT_TAIL_BYTES,
};
use lodge_core::record::ExecRequest;
use lodge_exec::{
    CapturedStream, Evidence, ExecKind, ExecState, ExecStream, ExitRecord, KeepRules, KeeperCommand,
    KnownExec, Resource, StartExec,
};

use super::actor::{Actor, RUNTIME_EXEC, Sandbox, runtime_exec};
use super::{result, root};
use crate::chain;
use crate::crash;
use crate::limits;
use lodge_engine::{AgentSeen, ExecEnd, Part, Seen, TurnSeen};

impl Actor {
    pub(super) async fn start_exec(
        &mut self,
        exec: &str,
        request: ExecRequest,
        repeat: Repeat,
        resumed: bool,
    ) {
        let Some(up) = &mut self.up else { return };
        if request.args.len() > EXEC_ARGS_MAX {
            let why = format!("it has {} arguments; {EXEC_ARGS_MAX} is the most", request.args.len());
            return self.tell_end(exec, result::refused(&why)).await;
        }
        let start = StartExec {
            exec: exec.to_owned(),
            kind: ExecKind::Tool,
            argv: up.layout.tool_argv(&request.bin, &request.args),
            env: root::environment(&up.layout, &up.row, &up.image),
            cwd: up.layout.workspace(),
            stdin: request.stdin.clone(),
            output_cap: limits::output_bytes(&up.row),
            timeout_ms: request.timeout_ms,
            output_max: limits::output_bytes(&up.row),
            job_head: 0,
            job_segment: 0,
            keep_free: 0,
        };
        let other_boot = request.boot != self.shell.host.boot_id();
        let sandbox = up.row.sandbox.as_str().to_owned();
        up.open.insert(exec.to_owned(), (request, repeat));
        if resumed && other_boot && matches!(self.shell.host.evidence(&sandbox, exec), Evidence::NoClaim) {
            // The machine was restarted since the intent: that nothing is there proves nothing.
            if ledger::settle(Doubt::OtherBoot, repeat) == Settle::Unknown {
                return self.tell_lost(exec).await;
            }
        }
        self.send(KeeperCommand::Start(start)).await;
    }

    pub(super) async fn exited(&mut self, exec: &str, record: &ExitRecord) {
        let Some(up) = &mut self.up else { return };
        if exec == runtime_exec(up.row.runs) {
            return self.runtime_ended(record).await;
        }
        if let Some((_, start)) = up.follows.take_if(|(earlier, _)| earlier == exec) {
            return self.start_runtime(start).await;
        }
        let Some((request, _)) = up.open.remove(exec) else { return };
        crash::point("before_outcome");
        let (stdout, stderr) = self.captured(exec);
        let mut end = result::ended(record, &stdout, &stderr, |stream| self.kept_path(exec, stream));
        if request.boot != self.shell.host.boot_id() {
            // The record proves itself; output files are not flushed, and may have holes.
            end.text.push_str(result::OTHER_BOOT);
        }
        self.tell_end(exec, end).await;
    }

    pub(super) async fn refused(&mut self, exec: &str, why: &str) {
        let Some(up) = &mut self.up else { return };
        if exec == runtime_exec(up.row.runs) {
            let (run, detail) = (up.row.runs, format!("the runtime could not be started: {why}"));
            return self.not_started(run, detail).await;
        }
        if up.open.remove(exec).is_some() {
            self.tell_end(exec, result::refused(why)).await;
        }
    }

    /// Claimed by a keeper that died, without an outcome.
    pub(super) async fn lost(&mut self, exec: &str) {
        let Some(up) = &mut self.up else { return };
        if exec == runtime_exec(up.row.runs) {
            let detail = "the runtime was lost with its sandbox".to_owned();
            let (agent, run) = (self.agent.clone(), up.row.runs);
            return self
                .shell
                .tell(Seen::Agent(AgentSeen::Died { agent, run, part: Part::Runtime, detail }))
                .await;
        }
        let Some((request, repeat)) = up.open.get(exec).cloned() else { return };
        match ledger::settle(Doubt::ClaimedOnly, repeat) {
            Settle::Rerun => {
                self.send(KeeperCommand::Forget { exec: exec.to_owned() }).await;
                self.start_exec(exec, request, repeat, false).await;
            }
            Settle::Unknown => self.tell_lost(exec).await,
        }
    }

    async fn tell_lost(&mut self, exec: &str) {
        if let Some(up) = &mut self.up {
            up.open.remove(exec);
        }
        let (stdout, stderr) = self.captured(exec);
        let end = result::lost(&stdout, &stderr, |stream| self.kept_path(exec, stream));
        self.tell_end(exec, end).await;
    }

    fn captured(&self, exec: &str) -> (CapturedStream, CapturedStream) {
        let empty = || CapturedStream { head: Vec::new(), tail: Vec::new(), total: 0 };
        let Some(up) = &self.up else { return (empty(), empty()) };
        let sandbox = up.row.sandbox.as_str();
        let read = |stream| {
            let read =
                self.shell.host.read_output(sandbox, exec, stream, RESULT_HEAD_BYTES, RESULT_TAIL_BYTES);
            read.unwrap_or_else(|error| {
                tracing::warn!(event = "exec.output_unreadable", exec, error = chain(&error));
                let head = b"[its output could not be read]".to_vec();
                CapturedStream { total: head.len() as u64, head, tail: Vec::new() }
            })
        };
        (read(ExecStream::Stdout), read(ExecStream::Stderr))
    }

    /// Its outcome is stored: its directory goes, and what of its output was too long to be told is kept.
    pub(super) async fn forget_exec(&mut self, exec: &str) {
        let Some(up) = &self.up else { return };
        crash::point("before_keeping");
        if let Err(error) = self.shell.host.keep_output(up.row.sandbox.as_str(), exec, &keeping(up)) {
            tracing::warn!(event = "exec.output_not_kept", agent = %self.agent, exec, error = chain(&error));
        }
        crash::point("after_keeping");
        self.send(KeeperCommand::Forget { exec: exec.to_owned() }).await;
    }

    /// Where a stream lies once its exec is forgotten, as the agent sees it.
    fn kept_path(&self, exec: &str, stream: ExecStream) -> String {
        let Some(up) = &self.up else { return String::new() };
        keeping(up).path(up.layout.root(), exec, stream).display().to_string()
    }

    async fn tell_end(&self, exec: &str, end: ExecEnd) {
        // A model does not need the key that it is called with, nor does who reads what it saw.
        let end = ExecEnd { text: self.shell.providers.redactor().redact(end.text), ..end };
        match exec.parse() {
            Ok(exec) => self.shell.tell(Seen::Turn(TurnSeen::ExecEnded { exec, end })).await,
            Err(error) => tracing::warn!(event = "exec.unknown", %error),
        }
    }
}

/// Streams that are told whole are not kept; the others take a part of the agent's disk at most.
fn keeping(up: &Sandbox) -> KeepRules<'_> {
    let disk = up.living.limits.iter().find(|limit| limit.resource == Resource::Disk);
    KeepRules {
        root: &up.root,
        uid: up.row.uid,
        more_than: (RESULT_HEAD_BYTES + RESULT_TAIL_BYTES) as u64,
        files_max: KEPT_FILES_MAX,
        bytes_max: disk.map_or(KEPT_BYTES_MAX, |disk| (disk.limit / KEPT_SHARE).min(KEPT_BYTES_MAX)),
    }
}

/// The tool calls that a keeper knows of: those that run, and those that do not any more. The runtime's own exec has no
/// id of this kind.
pub(super) fn known(execs: &[KnownExec]) -> (Vec<ExecId>, Vec<ExecId>) {
    let (mut running, mut over) = (Vec::new(), Vec::new());
    for known in execs {
        let Ok(exec) = known.exec.parse() else { continue };
        match &known.state {
            ExecState::Running { .. } => running.push(exec),
            ExecState::Exited(_) | ExecState::Lost => over.push(exec),
        }
    }
    (running, over)
}

/// The runtimes before this one that have ended, and the one that has not, which should not be.
pub(super) fn earlier_runtimes(execs: &[KnownExec], current: &str) -> (Vec<String>, Option<String>) {
    let (mut ended, mut alive) = (Vec::new(), None);
    for known in execs.iter().filter(|known| known.exec.starts_with(RUNTIME_EXEC) && known.exec != current) {
        match known.state {
            ExecState::Running { .. } => alive = Some(known.exec.clone()),
            ExecState::Exited(_) | ExecState::Lost => ended.push(known.exec.clone()),
        }
    }
    (ended, alive)
}
