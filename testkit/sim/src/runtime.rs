//! The agent loop of the runtime protocol: it sends requests, and sends open ones again after a new `initialize`.
//!
//! It reads and writes the real lines of the protocol.

use lodge_core::record::CallRecord;
use lodge_core::{SandboxId, TurnId};
use lodge_exec::{ExecName, KeeperEvent};
use lodge_runtime_messages::{
    AnswerCall, CompactReply, CompactStrategy, ContextCompactRequest, ErrorReply, ExecRunRequest,
    FinishStatus, InitializeReply, InitializeRequest, ModelParams, ModelStreamReply, ModelStreamRequest,
    OneJobRequest, PROTOCOL, REFUSED, RunningTurn, RuntimeName, RuntimeRequest, SystemPrompt,
    ToolAnswerRequest, ToolOffer, TurnFinishRequest, TurnInterruptRequest, TurnRunRequest, WindowSize,
    write_error, write_result, write_runtime_request,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::jobs::job_request;
use crate::machine::{SimExec, SimExit};
use crate::plan::SimMutation;
use crate::world::{SimEvent, SimWorld};

/// The most model calls in one turn.
const ITERATIONS_MAX: u32 = 20;
/// The id of the only system prompt of this world.
const CONTEXT: &str = "c";

/// A line to a runtime.
#[derive(Debug, Deserialize)]
struct DaemonLine {
    #[serde(default)]
    id: Value,
    method: Option<String>,
    #[serde(default)]
    params: Value,
    result: Option<Value>,
    error: Option<ErrorReply>,
}

#[derive(Debug, Default)]
pub struct SimRuntime {
    pub run: u32,
    epoch: u64,
    turns: Vec<SimTurn>,
    unanswered: Vec<RuntimeRequest>,
    /// Stopped: it reads no line until it wakes.
    pub hung: bool,
    unread: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct SimTurn {
    id: String,
    /// The first turn that its model reads.
    from_turn: u32,
    step: u32,
}

/// Lines that a runtime writes.
type Lines = Vec<Vec<u8>>;

impl SimWorld {
    pub fn runtime_starts(&mut self, id: &SandboxId, runtime: u32) {
        let run = self.serial();
        let Some(keeper) = self.machine.keeper(id) else { return };
        if keeper.runtime.is_some() {
            return self.fail(format!("{id} was to have two runtimes at once: run {runtime} is the second"));
        }
        let exec = ExecName::Runtime { run: runtime };
        keeper.running.insert(exec.clone(), SimExec { run, doomed: false });
        keeper.runtime = Some(SimRuntime { run: runtime, ..SimRuntime::default() });
        self.report_started(id, &exec, run);
    }

    /// The runtime's process ends. Its keeper lives and records the end.
    pub fn runtime_ends(&mut self, id: &SandboxId, ended: SimExit) {
        let Some(sandbox) = self.machine.sandboxes.get_mut(id) else { return };
        let Some(keeper) = &mut sandbox.keeper else { return };
        let Some(runtime) = keeper.runtime.take() else { return };
        let exec = ExecName::Runtime { run: runtime.run };
        keeper.running.remove(&exec);
        keeper.ended.insert(exec.clone());
        sandbox.shelf.insert(exec.clone(), Some(ended));
        self.trace_line(|| format!("the runtime of {id} ends: {ended:?}"));
        self.report_exit(id, &exec, ended);
    }

    /// A stopped process continues to read.
    pub fn runtime_wakes(&mut self, id: &SandboxId, serial: u64) {
        let keeper = self.machine.keeper(id).filter(|keeper| keeper.serial == serial);
        let Some(runtime) = keeper.and_then(|keeper| keeper.runtime.as_mut()) else { return };
        runtime.hung = false;
        for line in std::mem::take(&mut runtime.unread) {
            self.runtime_reads_line(id, line);
        }
    }

    pub fn runtime_reads_line(&mut self, id: &SandboxId, line: Vec<u8>) {
        let odd = self.rng.below(1_000);
        let resends = self.mutation != SimMutation::NoResend;
        let Some(runtime) = self.machine.keeper(id).and_then(|keeper| keeper.runtime.as_mut()) else {
            return;
        };
        if runtime.hung {
            runtime.unread.push(line);
            return;
        }
        // An empty line ends a partial line of an earlier daemon.
        if line.is_empty() {
            return;
        }
        let line: DaemonLine = match serde_json::from_slice(&line) {
            Ok(line) => line,
            Err(error) => return self.fail(format!("the daemon wrote a line that is no JSON: {error}")),
        };
        let mut lines = Lines::new();
        let refused = runtime.handle_line(line, odd, resends, &mut lines);
        match refused {
            Ok(Some(turn)) => self.note_refusal(id, &turn),
            Ok(None) => {}
            Err(error) => return self.fail(format!("the daemon wrote a line against the protocol: {error}")),
        }
        if !self.calm && self.rng.chance(self.plan.lies) {
            lines.extend(self.lie(id));
        }
        for one in lines {
            self.send_to_daemon(id, KeeperEvent::RuntimeLine(one));
        }
    }

    /// The runtime refuses to run a turn, which may be another agent's.
    fn note_refusal(&mut self, id: &SandboxId, turn: &str) {
        let Some(agent) = self.machine.sandboxes.get(id).map(|sandbox| sandbox.agent.clone()) else { return };
        let Ok(turn) = turn.parse::<TurnId>() else { return };
        if self.disk.turn(&turn).is_some_and(|kept| kept.row.agent == agent) {
            self.clients.refused.insert(turn);
        }
    }

    /// A false claim about any turn that a caller knows, possibly of another agent.
    fn lie(&mut self, id: &SandboxId) -> Option<Vec<u8>> {
        let known = self.rng.pick(&self.clients.turns)?.clone();
        // It may harm its own turn, which then need not end by itself.
        self.clients.harmed.insert(known.clone());
        let step = u32::try_from(self.rng.below(4)).unwrap_or(0);
        let call = format!("c{}", self.rng.below(5));
        let job = self.rng.pick(&self.clients.jobs).map(ToString::to_string);
        let turn = known.to_string();
        let request = match (self.rng.below(9), job) {
            (6, Some(job)) => RuntimeRequest::JobStatus(OneJobRequest { turn, step, call, job }),
            (7, Some(job)) => RuntimeRequest::JobCancel(OneJobRequest { turn, step, call, job }),
            (0, _) => {
                self.note_refusal(id, &turn);
                return Some(refusal(&turn, step));
            }
            (1, _) => model_request(turn, step, 1),
            (2, _) => RuntimeRequest::ExecRun(ExecRunRequest {
                turn,
                step,
                call,
                bin: "sh".to_owned(),
                args: Vec::new(),
                stdin: String::new(),
                timeout_ms: 0,
            }),
            (4, _) => RuntimeRequest::ContextCompact(ContextCompactRequest {
                turn,
                from_turn: step,
                strategy: CompactStrategy::Summarize,
            }),
            (3, _) => RuntimeRequest::ToolAnswer(ToolAnswerRequest {
                turn,
                step,
                call,
                text: "a lie".to_owned(),
                error: false,
            }),
            (8, _) => return Some(b"{\"id\":1,\"method\":\"no/such\",\"params\":{}}".to_vec()),
            (_, _) => finish(turn, "lie", "a lie"),
        };
        let mut line = Vec::new();
        write_runtime_request(&mut line, "lie", &request);
        Some(line)
    }

    /// Stops a runtime for a while.
    pub fn runtime_hangs(&mut self, id: &SandboxId) {
        let pause = self.rng.between(1_000, self.plan.hang_ms);
        let Some(keeper) = self.machine.keeper(id) else { return };
        let serial = keeper.serial;
        let Some(runtime) = &mut keeper.runtime else { return };
        runtime.hung = true;
        self.after(pause, SimEvent::RuntimeWakes { sandbox: id.clone(), keeper: serial });
    }
}

impl SimRuntime {
    /// Handles one line. Returns the turn that the runtime refuses to run.
    fn handle_line(
        &mut self,
        line: DaemonLine,
        odd: u64,
        resends: bool,
        lines: &mut Lines,
    ) -> Result<Option<String>, serde_json::Error> {
        match line.method.as_deref() {
            Some("initialize") => {
                self.initialize(&line.id, &serde_json::from_value(line.params)?, resends, lines);
            }
            Some("turn/run") => {
                let run: TurnRunRequest = serde_json::from_value(line.params)?;
                if odd < 3 {
                    lines.push(refusal(&run.turn, run.step));
                    return Ok(Some(run.turn));
                }
                self.run_turn(run, odd, lines);
                lines.push(acknowledgement(&line.id));
            }
            Some("turn/interrupt") => {
                let TurnInterruptRequest { turn } = serde_json::from_value(line.params)?;
                self.forget(&turn);
                lines.push(acknowledgement(&line.id));
            }
            Some("ping") => lines.push(acknowledgement(&line.id)),
            Some(_) => {}
            None => self.answered(line, odd, lines)?,
        }
        Ok(None)
    }

    fn initialize(&mut self, id: &Value, request: &InitializeRequest, resends: bool, lines: &mut Lines) {
        let mut line = Vec::new();
        if request.epoch < self.epoch {
            let stale = ErrorReply::new(REFUSED, "a newer daemon is connected".to_owned(), "epoch.stale");
            write_error(&mut line, id, &stale);
            return lines.push(line);
        }
        self.epoch = request.epoch;
        let tool = |name: &String| ToolOffer {
            name: name.clone(),
            description: String::new(),
            parameters: json!({"type": "object"}),
        };
        let reply = InitializeReply {
            protocol: PROTOCOL,
            runtime: RuntimeName::default(),
            context: SystemPrompt { id: CONTEXT.to_owned(), system: "You are simulated.".to_owned() },
            tools: request.tools.iter().map(|declared| tool(&declared.name)).collect(),
            params: ModelParams::default(),
            window: WindowSize::default(),
            turns: self.turns.iter().map(|turn| RunningTurn { turn: turn.id.clone() }).collect(),
        };
        write_result(&mut line, id, &reply);
        lines.push(line);
        if resends {
            lines.extend(self.unanswered.iter().map(request_line));
        }
    }

    fn run_turn(&mut self, run: TurnRunRequest, odd: u64, lines: &mut Lines) {
        let TurnRunRequest { turn, number, step, calls, epoch, .. } = run;
        if self.turns.iter().any(|known| known.id == turn) {
            return;
        }
        let from_turn = epoch.from_turn;
        self.turns.push(SimTurn { id: turn.clone(), from_turn, step });
        if step == 1 && number > from_turn && odd.is_multiple_of(3) {
            self.compact(&turn, from_turn + 1, number, odd, lines);
        } else {
            self.call_tools(&turn, step.saturating_sub(1), calls, odd, lines);
            self.continue_turn(&turn, lines);
        }
    }

    fn forget(&mut self, turn: &str) {
        self.turns.retain(|known| known.id != turn);
        self.unanswered.retain(|request| request.turn() != turn);
    }

    fn ask(&mut self, request: RuntimeRequest, lines: &mut Lines) {
        lines.push(request_line(&request));
        self.unanswered.push(request);
    }

    fn answered(&mut self, line: DaemonLine, odd: u64, lines: &mut Lines) -> Result<(), serde_json::Error> {
        let id = line.id.as_str();
        let Some(at) = self.unanswered.iter().position(|known| Some(known.id().as_str()) == id) else {
            return Ok(());
        };
        let request = self.unanswered.remove(at);
        let turn = request.turn().to_owned();
        if let RuntimeRequest::TurnFinish(_) = request {
            self.forget(&turn);
            return Ok(());
        }
        if let Some(error) = line.error {
            if error.turn_end().is_some() {
                self.forget(&turn);
                return Ok(());
            }
            self.unanswered.retain(|request| request.turn() != turn);
            let finish = finish(turn, error.dotted_code().unwrap_or_default(), &error.message);
            self.ask(finish, lines);
            return Ok(());
        }
        let result = line.result.unwrap_or_default();
        match request {
            RuntimeRequest::ModelStream(asked) => {
                let reply: ModelStreamReply = serde_json::from_value(result)?;
                if reply.finished {
                    self.forget(&turn);
                } else {
                    self.model_answered(&turn, asked.step, reply.calls, odd, lines);
                }
            }
            RuntimeRequest::ContextCompact(_) => {
                let reply: CompactReply = serde_json::from_value(result)?;
                if let Some(running) = self.turns.iter_mut().find(|known| known.id == turn) {
                    running.from_turn = reply.from_turn;
                }
                self.continue_turn(&turn, lines);
            }
            RuntimeRequest::ExecRun(_)
            | RuntimeRequest::JobSubmit(_)
            | RuntimeRequest::JobList(_)
            | RuntimeRequest::JobStatus(_)
            | RuntimeRequest::JobWait(_)
            | RuntimeRequest::JobWatch(_)
            | RuntimeRequest::JobCancel(_)
            | RuntimeRequest::ToolAnswer(_)
            | RuntimeRequest::TurnFinish(_) => self.continue_turn(&turn, lines),
        }
        Ok(())
    }

    fn model_answered(&mut self, turn: &str, step: u32, calls: Vec<AnswerCall>, odd: u64, lines: &mut Lines) {
        if let Some(running) = self.turns.iter_mut().find(|known| known.id == *turn) {
            running.step = step + 1;
        }
        self.call_tools(turn, step, calls, odd, lines);
        self.continue_turn(turn, lines);
    }

    fn call_tools(&mut self, turn: &str, step: u32, calls: Vec<AnswerCall>, odd: u64, lines: &mut Lines) {
        let calls: Vec<CallRecord> = calls.into_iter().map(record).collect();
        for (at, called) in calls.iter().enumerate() {
            // The same id twice is one call.
            if calls[..at].iter().any(|before| before.id == called.id) {
                continue;
            }
            let (turn, bin, call) = (turn.to_owned(), called.name.clone(), called.id.clone());
            // A faulty runtime requests a tool that its agent does not have.
            let knows = bin != "nope" || odd.is_multiple_of(50);
            let request = if let Some(request) = job_request(&turn, step, called) {
                request
            } else if called.arguments == "{}" && knows {
                RuntimeRequest::ExecRun(ExecRunRequest {
                    turn,
                    step,
                    call,
                    bin,
                    args: vec!["x".to_owned()],
                    stdin: String::new(),
                    timeout_ms: 600_000,
                })
            } else {
                let text = "not run".to_owned();
                RuntimeRequest::ToolAnswer(ToolAnswerRequest { turn, step, call, text, error: true })
            };
            self.ask(request, lines);
        }
    }

    /// Requests a new epoch that begins with one of these turns.
    fn compact(&mut self, turn: &str, from: u32, upto: u32, odd: u64, lines: &mut Lines) {
        let strategy = match odd % 5 {
            0 | 1 => CompactStrategy::Sliding,
            2 => CompactStrategy::Handoff,
            _ => CompactStrategy::Summarize,
        };
        let from_turn = from + u32::try_from(odd).unwrap_or(0) % (upto + 1 - from);
        let turn = turn.to_owned();
        let request = ContextCompactRequest { turn, from_turn, strategy };
        self.ask(RuntimeRequest::ContextCompact(request), lines);
    }

    /// Calls the model again when all requests of the turn are answered.
    fn continue_turn(&mut self, turn: &str, lines: &mut Lines) {
        if self.unanswered.iter().any(|request| request.turn() == turn) {
            return;
        }
        let Some(running) = self.turns.iter().find(|known| known.id == *turn) else { return };
        let (step, from_turn, turn) = (running.step, running.from_turn, turn.to_owned());
        let request = match step > ITERATIONS_MAX {
            true => finish(turn, "turn.max_iterations", "too many"),
            false => model_request(turn, step, from_turn),
        };
        self.ask(request, lines);
    }
}

fn model_request(turn: String, step: u32, from_turn: u32) -> RuntimeRequest {
    RuntimeRequest::ModelStream(ModelStreamRequest {
        turn,
        step,
        context: CONTEXT.to_owned(),
        from_turn,
        finish_if_no_tools: true,
    })
}

fn finish(turn: String, code: &str, message: &str) -> RuntimeRequest {
    RuntimeRequest::TurnFinish(TurnFinishRequest {
        turn,
        step: 0,
        status: FinishStatus::Failed,
        code: code.to_owned(),
        message: message.to_owned(),
    })
}

fn record(call: AnswerCall) -> CallRecord {
    let arguments = match call.arguments {
        Value::String(text) => text,
        other => other.to_string(),
    };
    CallRecord { id: call.id, name: call.name, arguments }
}

fn request_line(request: &RuntimeRequest) -> Vec<u8> {
    let mut line = Vec::new();
    write_runtime_request(&mut line, &request.id(), request);
    line
}

fn acknowledgement(id: &Value) -> Vec<u8> {
    let mut line = Vec::new();
    write_result(&mut line, id, &json!({}));
    line
}

/// The answer to the `turn/run` of that step.
fn refusal(turn: &str, step: u32) -> Vec<u8> {
    let mut line = Vec::new();
    let error = ErrorReply::new(REFUSED, "it does not want to".to_owned(), "runtime.refused");
    write_error(&mut line, &json!(format!("run:{turn}:{step}")), &error);
    line
}
