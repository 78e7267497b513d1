//! Tool calls: the intent is durable before the program starts, the outcome before anything depends on it.

use lodge_core::event::{TurnStepStarted, TurnToolResult};
use lodge_core::limits::PREVIEW_BYTES_MAX;
use lodge_core::record::{
    CallRecord, ExecRequest, MessageBody, Role, StepKind, StepRow, StepTarget, TurnWrite,
};
use lodge_core::turn::{StepEvent, StepState};
use lodge_core::{AgentId, ExecId, IdSource, StepId, Timestamp, TurnId};
use sha2::{Digest, Sha256};

use super::messages::{CallOutcome, OutputBytes, ResultDigest, RuntimeAnswer, RuntimeCallId};
use super::refusal::RuntimeCallRefusal;
use super::state::{Phase, ToolCallState};
use crate::{Engine, ExecEnd, ExecOutcome, SandboxEffect};

/// A program that the runtime wants to run.
#[derive(Debug)]
pub(crate) struct ToolExecRequest {
    pub turn: TurnId,
    pub step: u32,
    pub call: String,
    pub bin: String,
    pub args: Vec<String>,
    pub stdin: Vec<u8>,
    pub timeout_ms: u64,
}

/// A tool call that starts.
#[derive(Debug)]
pub(crate) struct ToolStart<'a> {
    pub turn: &'a TurnId,
    pub step: u32,
    pub call: &'a str,
    pub name: &'a str,
}

impl Engine {
    pub(crate) fn request_exec(&mut self, id: RuntimeCallId, wanted: &ToolExecRequest) {
        self.step.mark_urgent();
        let Some(turn) = self.turns.get(&wanted.turn) else { return };
        let agent = turn.row.agent.clone();
        let tool = self
            .agents
            .get(&agent)
            .and_then(|agent| agent.row.spec.tools.iter().find(|tool| tool.name == wanted.bin));
        let Some(safe) = tool.map(|tool| tool.safe) else {
            let refusal = RuntimeCallRefusal::BinNotDeclared { bin: wanted.bin.clone() };
            return self.refuse_runtime_call(&agent, id, refusal);
        };
        let (ids, boot) = (&mut self.ids, self.host.boot.clone());
        let Some((ordinal, call)) = open_call(self.turns.get_mut(&wanted.turn), wanted.step, &wanted.call)
        else {
            let refusal = RuntimeCallRefusal::NoSuchCall { call: wanted.call.clone() };
            return self.refuse_runtime_call(&agent, id, refusal);
        };
        if let Some(result) = call.result.clone() {
            self.in_sandbox(&agent, SandboxEffect::Answer { id, answer: Ok(result) });
            return;
        }
        call.waiter = Some(id);
        if call.step.is_some() {
            // Repeated after a reconnect: the exec runs.
            return;
        }
        let exec = ExecId::new(ids, self.step.now);
        let request = ExecRequest {
            bin: wanted.bin.clone(),
            args: wanted.args.clone(),
            stdin: wanted.stdin.clone(),
            boot,
            timeout_ms: wanted.timeout_ms,
        };
        let row = StepRow {
            name: wanted.bin.clone(),
            target: StepTarget::Program { exec: exec.clone(), request: request.clone() },
            ended_at: None,
            ..call_step(ids, (&wanted.turn, wanted.step, ordinal), call, StepState::Intent, self.step.now)
        };
        call.step = Some(row.clone());
        self.execs.insert(exec.clone(), wanted.turn.clone());
        self.step.write(TurnWrite::Step(row));
        let ToolExecRequest { turn, step, call, bin, .. } = wanted;
        self.tool_started(&ToolStart { turn, step: *step, call, name: bin });
        self.in_sandbox(&agent, SandboxEffect::StartExec { exec, request, safe, resumed: false });
    }

    pub(crate) fn tool_started(&mut self, started: &ToolStart<'_>) {
        let &ToolStart { step, call, name, .. } = started;
        self.turn_event(started.turn, |session, turn| TurnStepStarted {
            session,
            turn,
            step,
            kind: StepKind::Tool.word().to_owned(),
            name: name.to_owned(),
            attempt: None,
            call: Some(call.to_owned()),
        });
    }

    /// After a reconnect: requests every call whose intent is recorded and whose outcome is not. The keeper knows each
    /// id, so a repeated request starts nothing twice.
    pub(crate) fn resume_execs(&mut self, id: &TurnId) {
        let Some(turn) = self.turns.get(id) else { return };
        let Phase::Tools { calls } = &turn.phase else { return };
        let Some(agent) = self.agents.get(&turn.row.agent) else { return };
        for call in calls.iter().filter(|call| call.result.is_none()) {
            let Some(step) = &call.step else { continue };
            let StepTarget::Program { exec, request } = &step.target else { continue };
            let safe = agent.row.spec.tools.iter().any(|tool| tool.name == request.bin && tool.safe);
            let (exec, request) = (exec.clone(), request.clone());
            let start = SandboxEffect::StartExec { exec, request, safe, resumed: true };
            self.step.act(agent.in_sandbox(start));
        }
        self.resume_waits(id);
    }

    /// Ends execs that no call waits for, and forgets settled ones, in place of an earlier daemon that died before it
    /// could.
    pub(crate) fn execs_found(&mut self, agent: &AgentId, running: Vec<ExecId>, ended: Vec<ExecId>) {
        let Some(owner) = self.agents.get(agent) else { return };
        let over = |exec: &ExecId| !self.execs.contains_key(exec);
        for exec in running.into_iter().filter(over) {
            self.step.act(owner.in_sandbox(SandboxEffect::KillExec { exec }));
        }
        for exec in ended.into_iter().filter(over) {
            self.step.act(owner.in_sandbox(SandboxEffect::ForgetExec { exec }));
        }
        self.step.mark_urgent();
    }

    pub(crate) fn exec_ended(&mut self, exec: &ExecId, end: ExecEnd) {
        // The exec has ended already, or its turn has.
        let Some(id) = self.execs.remove(exec) else { return };
        let Some(turn) = self.turns.get_mut(&id) else { return };
        let agent = turn.row.agent.clone();
        let Phase::Tools { calls } = &mut turn.phase else { return };
        let is_it =
            |call: &&mut ToolCallState| call.step.as_ref().and_then(|step| step.target.exec()) == Some(exec);
        let Some(call) = calls.iter_mut().find(is_it) else { return };
        let Some(step) = &mut call.step else { return };
        let (event, code, signal) = match end.how {
            ExecOutcome::Exited { code } => (StepEvent::Succeeded, Some(code), None),
            ExecOutcome::Killed { signal } => (StepEvent::Succeeded, None, Some(signal)),
            ExecOutcome::NotStarted => (StepEvent::Failed, None, None),
            ExecOutcome::Lost => (StepEvent::Lost, None, None),
        };
        let Ok(state) = step.state.next(event) else { return };
        (step.state, step.exit_code, step.signal, step.ended_at) = (state, code, signal, Some(self.step.now));
        step.cause = end.cause;
        let (row, record, waiter) = (step.clone(), call.record.clone(), call.waiter.take());
        let result = RuntimeAnswer::Call(CallOutcome {
            // Without the id of the exec, which is the only difference.
            digest: Some(digest(&end.text.replace(exec.as_str(), ""))),
            output: Some(OutputBytes { stdout: end.stdout_bytes, stderr: end.stderr_bytes }),
            ..CallOutcome::of_step(&row)
        });
        call.result = Some(result.clone());
        self.step.write(TurnWrite::StepState {
            turn: id.clone(),
            step: row.step,
            ordinal: row.ordinal,
            state,
            attempt: row.attempt,
            exit_code: code,
            signal,
            cause: end.cause,
            ended_at: Some(self.step.now),
        });
        let bytes = end.stdout_bytes + end.stderr_bytes;
        self.tool_result(&id, &row, &record.id, bytes, end.text);
        // First, so that the kept output is where the result says.
        self.in_sandbox(&agent, SandboxEffect::ForgetExec { exec: exec.clone() });
        if let Some(waiter) = waiter {
            self.in_sandbox(&agent, SandboxEffect::Answer { id: waiter, answer: Ok(result) });
        }
    }

    /// Stores the result of a call for the model, and reports it.
    pub(crate) fn tool_result(&mut self, id: &TurnId, row: &StepRow, call: &str, bytes: u64, text: String) {
        let failed = row.state != StepState::Done
            || row.cause.is_some()
            || row.signal.is_some()
            || row.exit_code.is_some_and(|code| code != 0);
        let body = MessageBody { text, call: Some(call.to_owned()), failed, ..MessageBody::default() };
        self.store_result(id, row, bytes, body);
    }

    fn store_result(&mut self, id: &TurnId, row: &StepRow, bytes: u64, body: MessageBody) {
        let (call, preview) = (body.call.clone().unwrap_or_default(), preview(&body.text));
        self.message(id, Role::Tool, body);
        self.turn_event(id, |session, turn| TurnToolResult {
            session,
            turn,
            step: row.step,
            call,
            name: row.name.clone(),
            status: row.state.word().to_owned(),
            exit_code: row.exit_code,
            signal: row.signal,
            cause: row.cause.map(|cause| cause.word().to_owned()),
            bytes,
            preview,
        });
        self.step_finished(id, row.step, StepKind::Tool, row.state);
    }

    /// A result that needed no program: the runtime wrote it.
    pub(crate) fn tool_answered(
        &mut self,
        id: RuntimeCallId,
        turn: &TurnId,
        step: u32,
        call: &str,
        text: String,
        error: bool,
    ) {
        self.step.mark_urgent();
        let ids = &mut self.ids;
        let Some(agent) = self.turns.get(turn).map(|turn| turn.row.agent.clone()) else { return };
        let Some((ordinal, open)) = open_call(self.turns.get_mut(turn), step, call) else {
            let refusal = RuntimeCallRefusal::NoSuchCall { call: call.to_owned() };
            return self.refuse_runtime_call(&agent, id, refusal);
        };
        if open.result.is_none() && open.step.is_none() {
            let state = if error { StepState::Failed } else { StepState::Done };
            let row = call_step(ids, (turn, step, ordinal), open, state, self.step.now);
            open.step = Some(row.clone());
            open.result = Some(RuntimeAnswer::Done);
            self.step.write(TurnWrite::Step(row.clone()));
            let bytes = text.len() as u64;
            self.tool_result(turn, &row, call, bytes, text);
        }
        self.in_sandbox(&agent, SandboxEffect::Answer { id, answer: Ok(RuntimeAnswer::Done) });
    }

    /// Ends the calls in flight of a turn that is ending, and pairs each with a result.
    pub(crate) fn cut_calls(
        &mut self,
        id: &TurnId,
        agent: &AgentId,
        calls: Vec<ToolCallState>,
        state: StepState,
    ) {
        for call in calls.into_iter().filter(|call| call.result.is_none()) {
            let text = "[the turn ended before this call had a result]".to_owned();
            match call.step {
                Some(mut row) => {
                    match &row.target {
                        StepTarget::Program { exec, .. } => {
                            self.execs.remove(exec);
                            self.in_sandbox(agent, SandboxEffect::KillExec { exec: exec.clone() });
                        }
                        StepTarget::Job(wait) if state == StepState::Interrupted => self.wait_cut(wait),
                        StepTarget::Job(_) | StepTarget::ModelCall | StepTarget::Answered => {}
                    }
                    row.state = state;
                    self.step.write(TurnWrite::StepState {
                        turn: id.clone(),
                        step: row.step,
                        ordinal: row.ordinal,
                        state,
                        attempt: row.attempt,
                        exit_code: None,
                        signal: None,
                        cause: None,
                        ended_at: Some(self.step.now),
                    });
                    let (call, failed, cut) = (Some(call.record.id), true, true);
                    let body = MessageBody { text, call, failed, cut, ..MessageBody::default() };
                    self.store_result(id, &row, 0, body);
                }
                None => self.untried(id, call.record, state, text),
            }
        }
    }
}

impl Engine {
    /// The result of a call that the runtime never requested.
    fn untried(&mut self, id: &TurnId, call: CallRecord, state: StepState, text: String) {
        let (step, preview) = (self.turns.get(id).map_or(0, |turn| turn.step), preview(&text));
        let CallRecord { id: call, name, .. } = call;
        let (answers, failed, cut) = (Some(call.clone()), true, true);
        let body = MessageBody { text, call: answers, failed, cut, ..MessageBody::default() };
        self.message(id, Role::Tool, body);
        self.turn_event(id, |session, turn| TurnToolResult {
            session,
            turn,
            step,
            call,
            name,
            status: state.word().to_owned(),
            exit_code: None,
            signal: None,
            cause: None,
            bytes: 0,
            preview,
        });
    }
}

/// The step of a call, at this position of an answer. Without a program, it ends at once.
pub(crate) fn call_step(
    ids: &mut IdSource,
    (turn, step, ordinal): (&TurnId, u32, u32),
    call: &ToolCallState,
    state: StepState,
    now: Timestamp,
) -> StepRow {
    StepRow {
        id: StepId::new(ids, now),
        turn: turn.clone(),
        step,
        ordinal,
        target: StepTarget::Answered,
        name: call.record.name.clone(),
        state,
        attempt: 1,
        call: Some(call.record.id.clone()),
        exit_code: None,
        signal: None,
        cause: None,
        started_at: now,
        ended_at: Some(now),
    }
}

/// The named call of the newest answer, with its position.
pub(crate) fn open_call<'t>(
    turn: Option<&'t mut super::state::Turn>,
    step: u32,
    call: &str,
) -> Option<(u32, &'t mut ToolCallState)> {
    let turn = turn?;
    if turn.step != step {
        return None;
    }
    let Phase::Tools { calls } = &mut turn.phase else { return None };
    let at = calls.iter().position(|open| open.record.id == call)?;
    Some((u32::try_from(at).ok()? + 1, &mut calls[at]))
}

/// Distinguishes one result from another for a runtime, which never reads them.
pub(crate) fn digest(text: &str) -> ResultDigest {
    let digest = Sha256::digest(text.as_bytes());
    let mut first = ResultDigest::default();
    first.copy_from_slice(&digest[..size_of::<ResultDigest>()]);
    first
}

fn preview(text: &str) -> String {
    let mut end = text.len().min(PREVIEW_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
