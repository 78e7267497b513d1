//! What a turn asks for next.
//!
//! Owns: the running turns and every request that was not answered yet. Never: I/O; requests are collected here and
//! sent by `serve`.

use std::collections::BTreeSet;

use lodge_runtime_messages::{
    AnswerBody, AnswerCall, CompactReply, ContextCompactRequest, ErrorReply, ExecReply, ExecRunRequest,
    FinishStatus, JobListRequest, JobSubmitRequest, ModelStreamReply, ModelStreamRequest, OneJobRequest,
    RuntimeRequest, ToolAnswerRequest, TurnEndCode, TurnFinishRequest, TurnRunRequest,
};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::jobs::{self, JobTool};
use crate::memory::Memory;
use crate::rounds::{CallRounds, ROUNDS_ALIKE_MAX};
use crate::tool::{self, CALLS_A_STEP_MAX, CallRefusal};

/// Turns of one agent at the same time, each of another session.
pub(crate) const TURNS_MAX: usize = 1024;

/// What the latest `initialize` settled for every turn.
#[derive(Debug)]
pub(crate) struct TurnDefaults {
    pub(crate) context: String,
    pub(crate) iterations_max: u64,
    pub(crate) memory: Memory,
    pub(crate) tool_timeout_ms: u64,
    pub(crate) tools: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Turns {
    plan: TurnDefaults,
    running: Vec<OpenTurn>,
    /// In the order of asking, which is the order of sending and of sending again.
    unanswered: Vec<UnansweredRequest>,
}

#[derive(Debug)]
struct OpenTurn {
    id: String,
    /// The first turn that the model reads.
    from_turn: u32,
    /// The number of the next model call.
    step: u32,
    rounds: CallRounds,
}

#[derive(Debug)]
struct UnansweredRequest {
    id: String,
    request: RuntimeRequest,
    sent: SendState,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum SendState {
    Yes,
    NotYet,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TurnStart {
    Fresh,
    AlreadyRunning,
    Busy,
}

/// What an answer did to its turn.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AnswerEffect {
    /// No request waits for it: its turn was interrupted, or it was answered before.
    Ignored,
    Continued,
    Finished {
        turn: String,
    },
    /// The daemon had ended the turn already.
    Dropped {
        turn: String,
        end: TurnEndCode,
    },
    /// The runtime ended the turn, and the daemon knows.
    Failed {
        turn: String,
        code: String,
    },
}

impl Turns {
    pub(crate) fn new(plan: TurnDefaults) -> Self {
        Turns { plan, running: Vec::new(), unanswered: Vec::new() }
    }

    /// Follows a new plan, and marks every unanswered request to be sent again under its old id.
    ///
    /// Returns how many those are.
    pub(crate) fn resume_under(&mut self, plan: TurnDefaults) -> usize {
        self.plan = plan;
        for asked in &mut self.unanswered {
            asked.sent = SendState::NotYet;
            // The new daemon knows contexts only from the `initialize` it sent.
            if let RuntimeRequest::ModelStream(request) = &mut asked.request {
                request.context.clone_from(&self.plan.context);
            }
        }
        self.unanswered.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.running.iter().map(|turn| turn.id.as_str())
    }

    pub(crate) fn count(&self) -> usize {
        self.running.len()
    }

    /// Writes the requests that are not sent yet, in order.
    pub(crate) fn send(&mut self, mut write: impl FnMut(&str, &RuntimeRequest)) {
        for asked in self.unanswered.iter_mut().filter(|asked| asked.sent == SendState::NotYet) {
            write(&asked.id, &asked.request);
            asked.sent = SendState::Yes;
        }
    }

    /// Starts a turn, or continues one of an earlier process. A turn that runs already is unchanged.
    pub(crate) fn run(&mut self, params: TurnRunRequest) -> TurnStart {
        if self.running.iter().any(|turn| turn.id == params.turn) {
            return TurnStart::AlreadyRunning;
        }
        if self.running.len() >= TURNS_MAX {
            return TurnStart::Busy;
        }
        let TurnRunRequest { turn, number, step, calls, epoch, session: _ } = params;
        let from_turn = epoch.from_turn;
        self.running.push(OpenTurn { id: turn.clone(), from_turn, step, rounds: CallRounds::default() });
        // Only before the first model call: a conversation is not changed in the middle of a turn.
        if step == 1
            && let Some(from_turn) = self.plan.memory.cut(number, &epoch)
        {
            let strategy = self.plan.memory.strategy;
            let request = ContextCompactRequest { turn, from_turn, strategy };
            self.ask(RuntimeRequest::ContextCompact(request));
            return TurnStart::Fresh;
        }
        self.call_tools(&turn, step.saturating_sub(1), calls);
        // The other calls of that answer were another process's business.
        if let Some(running) = self.turn(&turn) {
            running.rounds = CallRounds::default();
        }
        self.go_on(&turn);
        TurnStart::Fresh
    }

    /// Forgets a turn and its requests. Late answers are ignored.
    pub(crate) fn forget(&mut self, turn: &str) {
        self.running.retain(|running| running.id != turn);
        self.unanswered.retain(|asked| asked.request.turn() != turn);
        if self.running.is_empty() {
            (self.running, self.unanswered) = (Vec::new(), Vec::new());
        }
    }

    /// Takes the answer to request `id`. `line` is the whole message, as its shape depends on the request.
    pub(crate) fn answered(&mut self, id: &str, line: &[u8]) -> AnswerEffect {
        let Some(at) =
            self.unanswered.iter().position(|asked| asked.id == id && asked.sent == SendState::Yes)
        else {
            return AnswerEffect::Ignored;
        };
        match self.unanswered.remove(at).request {
            RuntimeRequest::ModelStream(request) => match outcome::<ModelStreamReply>(line) {
                Ok(reply) => self.model_answered(request.turn, request.step, reply),
                Err(failure) => self.fail(request.turn, request.step, failure),
            },
            RuntimeRequest::ExecRun(ExecRunRequest { turn, step, call, .. })
            | RuntimeRequest::JobSubmit(JobSubmitRequest { turn, step, call, .. })
            | RuntimeRequest::JobList(JobListRequest { turn, step, call, .. })
            | RuntimeRequest::JobStatus(OneJobRequest { turn, step, call, .. })
            | RuntimeRequest::JobCancel(OneJobRequest { turn, step, call, .. }) => {
                match outcome::<ExecReply>(line) {
                    Ok(reply) => self.call_answered(&turn, &call, reply.digest.as_deref()),
                    Err(failure) => self.fail(turn, step, failure),
                }
            }
            // Repeated waiting is no sign of a loop.
            RuntimeRequest::JobWait(request) | RuntimeRequest::JobWatch(request) => {
                match outcome::<IgnoredAny>(line) {
                    Ok(_) => self.call_answered(&request.turn, &request.call, None),
                    Err(failure) => self.fail(request.turn, request.step, failure),
                }
            }
            RuntimeRequest::ToolAnswer(request) => match outcome::<IgnoredAny>(line) {
                Ok(_) => self.call_answered(&request.turn, &request.call, Some(&request.text)),
                Err(failure) => self.fail(request.turn, request.step, failure),
            },
            RuntimeRequest::ContextCompact(ContextCompactRequest { turn, .. }) => {
                match outcome::<CompactReply>(line) {
                    Ok(reply) => {
                        if let Some(running) = self.turn(&turn) {
                            running.from_turn = reply.from_turn;
                        }
                        self.go_on(&turn);
                        AnswerEffect::Continued
                    }
                    Err(failure) => self.fail(turn, 0, failure),
                }
            }
            RuntimeRequest::TurnFinish(TurnFinishRequest { turn, code, .. }) => {
                self.forget(&turn);
                AnswerEffect::Failed { turn, code }
            }
        }
    }

    fn model_answered(&mut self, turn: String, step: u32, reply: ModelStreamReply) -> AnswerEffect {
        if reply.finished {
            self.forget(&turn);
            return AnswerEffect::Finished { turn };
        }
        if let Some(running) = self.turn(&turn) {
            running.step = step.saturating_add(1);
        }
        self.call_tools(&turn, step, reply.calls);
        self.go_on(&turn);
        AnswerEffect::Continued
    }

    fn call_tools(&mut self, turn: &str, step: u32, calls: Vec<AnswerCall>) {
        let mut seen = BTreeSet::new();
        for call in calls {
            // A result is stored by the id of its call, so the same id twice is one call.
            if !seen.insert(call.id.clone()) {
                continue;
            }
            if let Some(running) = self.turn(turn) {
                running.rounds.called(&call);
            }
            let wanted = if seen.len() <= CALLS_A_STEP_MAX {
                self.wanted(turn, step, &call)
            } else {
                Err(CallRefusal::TooMany.to_string())
            };
            self.ask(wanted.unwrap_or_else(|text| {
                let (turn, call) = (turn.to_owned(), call.id);
                RuntimeRequest::ToolAnswer(ToolAnswerRequest { turn, step, call, text, error: true })
            }));
        }
    }

    /// The request to the daemon for a call, or an error text for the model.
    fn wanted(&self, turn: &str, step: u32, call: &AnswerCall) -> Result<RuntimeRequest, String> {
        let programs = &self.plan.tools;
        // A program of the agent has its name for itself.
        if let Some(job_tool) = JobTool::named(&call.name).filter(|_| !programs.contains(&call.name)) {
            return jobs::ask(job_tool, programs, turn, step, call).map_err(|refused| refused.to_string());
        }
        let tool::Invocation { args, stdin } =
            tool::check(programs, call).map_err(|refused| refused.to_string())?;
        Ok(RuntimeRequest::ExecRun(ExecRunRequest {
            turn: turn.to_owned(),
            step,
            call: call.id.clone(),
            bin: call.name.clone(),
            args,
            stdin,
            timeout_ms: self.plan.tool_timeout_ms,
        }))
    }

    fn turn(&mut self, turn: &str) -> Option<&mut OpenTurn> {
        self.running.iter_mut().find(|running| running.id == turn)
    }

    fn call_answered(&mut self, turn: &str, call: &str, result: Option<&str>) -> AnswerEffect {
        if let Some(running) = self.turn(turn) {
            running.rounds.answered(call, result);
        }
        self.go_on(turn);
        AnswerEffect::Continued
    }

    /// Requests the next model step once every call of the turn is answered, within the limit of steps.
    fn go_on(&mut self, turn: &str) {
        if self.unanswered.iter().any(|asked| asked.request.turn() == turn) {
            return;
        }
        let iterations_max = self.plan.iterations_max;
        let context = self.plan.context.clone();
        let Some(running) = self.turn(turn) else { return };
        let (step, from_turn, stuck) = (running.step, running.from_turn, running.rounds.ended());
        let turn = turn.to_owned();
        self.ask(if let Some(tools) = stuck {
            let message = format!(
                "{} was called {ROUNDS_ALIKE_MAX} times in a row with the same arguments, and the result was the same",
                tools.iter().map(|tool| format!("`{tool}`")).collect::<Vec<_>>().join(", ")
            );
            finish(turn, step - 1, "turn.stuck", message)
        } else if u64::from(step) > iterations_max {
            let times =
                if iterations_max == 1 { "once".to_owned() } else { format!("{iterations_max} times") };
            let message = format!(
                "the model was asked {times} in this turn and still wants tools; \
                 CONFIG max-iterations sets how often it may be"
            );
            finish(turn, step - 1, "turn.max_iterations", message)
        } else {
            let finish_if_no_tools = true;
            RuntimeRequest::ModelStream(ModelStreamRequest {
                turn,
                step,
                context,
                from_turn,
                finish_if_no_tools,
            })
        });
    }

    /// Ends a turn whose request was answered with an error.
    fn fail(&mut self, turn: String, step: u32, failure: TurnFailure) -> AnswerEffect {
        match failure {
            TurnFailure::Ended(end) => {
                self.forget(&turn);
                AnswerEffect::Dropped { turn, end }
            }
            TurnFailure::Refused { code, message } => {
                self.unanswered.retain(|asked| asked.request.turn() != turn);
                self.ask(finish(turn, step, &code, message));
                AnswerEffect::Continued
            }
        }
    }

    fn ask(&mut self, request: RuntimeRequest) {
        self.unanswered.push(UnansweredRequest { id: request.id(), request, sent: SendState::NotYet });
    }
}

fn finish(turn: String, step: u32, code: &str, message: String) -> RuntimeRequest {
    let (status, code) = (FinishStatus::Failed, code.to_owned());
    RuntimeRequest::TurnFinish(TurnFinishRequest { turn, step, status, code, message })
}

/// Why a turn cannot go on.
enum TurnFailure {
    /// The daemon has ended it.
    Ended(TurnEndCode),
    Refused {
        code: String,
        message: String,
    },
}

fn outcome<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, TurnFailure> {
    let failed = |code: &str, message: String| Err(TurnFailure::Refused { code: code.to_owned(), message });
    match serde_json::from_slice::<AnswerBody<T>>(line) {
        Ok(AnswerBody { error: Some(error), .. }) => {
            if let Some(end) = error.turn_end() {
                return Err(TurnFailure::Ended(end));
            }
            failed(error.dotted_code().unwrap_or("runtime.refused"), words(&error))
        }
        Ok(AnswerBody { result: Some(result), error: None }) => Ok(result),
        Ok(AnswerBody { result: None, error: None }) => {
            failed("runtime.bad_answer", "the answer has neither a result nor an error".to_owned())
        }
        Err(cause) => failed("runtime.bad_answer", format!("the answer does not fit the request: {cause}")),
    }
}

fn words(error: &ErrorReply) -> String {
    if error.message.is_empty() { "the daemon gave no reason".to_owned() } else { error.message.clone() }
}
