//! Commands and observations about turns, and orders for model calls.

use lodge_core::epoch::Strategy;
use lodge_core::record::{CallRecord, FailureRecord, ReasoningRecord, SessionFact, StepRow, Usage};
use lodge_core::turn::StepState;
use lodge_core::{AgentId, Cause, ExecId, SessionId, TurnId};
use serde_json::Value;

use crate::AutoRetry;
use crate::jobs::JobToolRequest;

#[derive(Debug)]
pub enum TurnCommand {
    Send(Box<NewTurn>),
    Interrupt { id: TurnId },
}

#[derive(Debug)]
pub struct NewTurn {
    pub agent: AgentId,
    pub session: SessionChoice,
    pub sender: Option<String>,
    pub text: String,
    /// The JSON schema that the answer must match.
    pub schema: Option<String>,
}

#[derive(Debug)]
pub enum SessionChoice {
    /// A new one with a generated id.
    Fresh,
    /// This one. `fact` is the store's state of it; the engine's own memory takes precedence.
    Named { id: SessionId, fact: Option<SessionFact> },
}

/// Observations about a turn: requests of its runtime, and results of its model calls and tools.
#[derive(Debug)]
pub enum TurnObservation {
    /// The runtime will not run a turn.
    Refused {
        agent: AgentId,
        turn: TurnId,
        why: String,
    },
    Asked {
        agent: AgentId,
        id: RuntimeCallId,
        ask: RuntimeCall,
    },
    /// Tool calls that a newly connected keeper knows: running ones and ended ones.
    ExecsFound {
        agent: AgentId,
        running: Vec<ExecId>,
        ended: Vec<ExecId>,
    },
    ExecEnded {
        exec: ExecId,
        end: ExecEnd,
    },
    ModelText {
        turn: TurnId,
        step: u32,
        attempt: u32,
        offset: u64,
        text: String,
    },
    ModelAnswered {
        turn: TurnId,
        step: u32,
        attempt: u32,
        answer: ModelAnswer,
    },
    ModelFailed {
        turn: TurnId,
        step: u32,
        attempt: u32,
        failure: ModelFailure,
    },
    /// The pause before the next attempt at a provider is over.
    ProviderDue {
        provider: String,
        wake: u64,
    },
}

/// A runtime's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeCall {
    Model {
        turn: TurnId,
        step: u32,
        context: String,
        from_turn: u32,
    },
    Exec {
        turn: TurnId,
        step: u32,
        call: String,
        bin: String,
        args: Vec<String>,
        stdin: Vec<u8>,
        /// 0: no limit.
        timeout_ms: u64,
    },
    /// From `from_turn` on, as a new epoch of the turn's session.
    Compact {
        turn: TurnId,
        from_turn: u32,
        strategy: Strategy,
    },
    /// A tool result that needed no program.
    Answer {
        turn: TurnId,
        step: u32,
        call: String,
        text: String,
        error: bool,
    },
    Finish {
        turn: TurnId,
        code: String,
        message: String,
    },
    /// One of the six tools for jobs.
    Job {
        turn: TurnId,
        step: u32,
        call: String,
        wish: JobToolRequest,
    },
}

impl RuntimeCall {
    pub fn turn(&self) -> &TurnId {
        match self {
            RuntimeCall::Model { turn, .. }
            | RuntimeCall::Exec { turn, .. }
            | RuntimeCall::Compact { turn, .. }
            | RuntimeCall::Answer { turn, .. }
            | RuntimeCall::Finish { turn, .. }
            | RuntimeCall::Job { turn, .. } => turn,
        }
    }
}

/// The id of a runtime's request. Opaque: the answer repeats it as the runtime wrote it.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeCallId(pub Value);

/// An answer to a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuntimeAnswer {
    /// The request is done, and there is no more to report.
    Done,
    /// The model's answer is stored. `finished` ends the turn.
    Model { finished: bool, calls: Vec<CallRecord> },
    /// The result of a tool call is stored.
    Call(CallOutcome),
    /// The first turn that the model reads from now on.
    Compacted { from_turn: u32 },
}

/// How a tool call ended. The text of its result is not part of it: only the model reads that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallOutcome {
    pub state: StepState,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub cause: Option<Cause>,
    /// Distinguishes one result from another.
    pub digest: Option<ResultDigest>,
    /// The size of stdout and stderr. Only programs have it.
    pub output: Option<OutputBytes>,
}

/// The first bytes of the SHA-256 of a result.
pub type ResultDigest = [u8; 8];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputBytes {
    pub stdout: u64,
    pub stderr: u64,
}

impl CallOutcome {
    pub(crate) fn of_step(step: &StepRow) -> Self {
        CallOutcome {
            state: step.state,
            exit_code: step.exit_code,
            signal: step.signal,
            cause: step.cause,
            digest: None,
            output: None,
        }
    }
}

/// How the program of a tool call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecEnd {
    pub how: ExecOutcome,
    /// The limit that it hit.
    pub cause: Option<Cause>,
    /// The text for the model.
    pub text: String,
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecOutcome {
    Exited {
        code: i32,
    },
    Killed {
        signal: i32,
    },
    NotStarted,
    /// The outcome is unknown.
    Lost,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAnswer {
    pub text: String,
    pub calls: Vec<CallRecord>,
    pub usage: Usage,
    pub reasoning: Option<ReasoningRecord>,
    /// Why the answer does not match the requested schema.
    pub misfit: Option<AnswerMismatch>,
}

/// An answer that does not match its schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerMismatch {
    pub why: String,
    /// Whether another answer may match: not if the check itself was given up.
    pub again: AutoRetry,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFailure {
    pub record: FailureRecord,
    pub retry: CallRetry,
}

/// Whether and how a failed model call is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallRetry {
    /// It would fail in the same way.
    Never,
    /// The daemon could not make the call.
    Own,
    /// The provider may answer later.
    Provider {
        /// The pause that it asked for.
        after_ms: Option<u64>,
        /// How long after the first failure the step is tried.
        retry_for_ms: u64,
    },
}

/// Work on the model calls of turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelEffect {
    Call(Box<ModelOrder>),
    Cancel {
        turn: TurnId,
    },
    /// Report `ProviderDue` after the pause.
    ProviderTimer {
        provider: String,
        wake: u64,
        delay_ms: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelOrder {
    pub agent: AgentId,
    pub model: String,
    pub session: SessionId,
    pub turn: TurnId,
    pub number: u32,
    pub step: u32,
    pub attempt: u32,
    pub from_turn: u32,
    pub context: String,
    /// The epoch whose summary precedes the messages.
    pub summary: Option<u32>,
    /// The newest message that the call must read: the call is made once that message is recorded.
    pub message: u64,
    /// The size of the conversation, if it is known.
    pub bytes: Option<u64>,
    pub purpose: Purpose,
    pub delay_ms: u64,
}

/// The purpose of a model call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The next step of a turn.
    Step,
    /// Summarize the turns up to this one. The text is not an answer to the user.
    Summary { upto: u32, strategy: Strategy },
}
