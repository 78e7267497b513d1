//! Refusals of requests about turns, by callers and by runtimes, and why turns fail.

use lodge_core::TurnId;
use lodge_core::limits::MESSAGE_BYTES_MAX;
use lodge_core::record::FailureRecord;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TurnRefusal {
    #[error("the message is empty")]
    Empty,
    #[error("the message has {bytes} bytes; {MESSAGE_BYTES_MAX} is the most")]
    TooLarge { bytes: usize },
    #[error("turn {turn} is over")]
    Over { turn: TurnId },
}

impl TurnRefusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            TurnRefusal::Empty => "turn.empty",
            TurnRefusal::TooLarge { .. } => "turn.too_large",
            TurnRefusal::Over { .. } => "turn.over",
        }
    }

    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            TurnRefusal::TooLarge { .. } => {
                Some("put large material into the agent's workspace and name the file".to_owned())
            }
            TurnRefusal::Over { turn } => Some(format!("`lodge turn show {turn}` shows how it ended")),
            TurnRefusal::Empty => Some("write a text with at least one visible character".to_owned()),
        }
    }
}

/// Why a request of a runtime is refused, by the engine or before the engine sees it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeCallRefusal {
    #[error("that turn is over")]
    TurnGone,
    /// The turn failed meanwhile.
    #[error("the model gave no answer")]
    NoAnswer,
    /// The turn failed meanwhile.
    #[error("no answer fitted the schema")]
    NoFittingAnswer,
    #[error("tool calls of the last answer have no result yet")]
    OpenCalls,
    #[error("the conversation is being compacted")]
    Compacting,
    #[error("the next model call of this turn is step {expected}")]
    WrongStep { expected: u32 },
    #[error("a conversation is compacted before the first model call of a turn")]
    CompactionTooLate,
    #[error("turn {number} cannot be left out of its own context")]
    BadWindow { number: u32 },
    #[error("the last answer has no call `{call}`")]
    NoSuchCall { call: String },
    #[error("this agent has no tool `{bin}`")]
    BinNotDeclared { bin: String },
    /// It names no method, or its params do not fit.
    #[error("{why}")]
    BadRequest { why: String },
    #[error("the answer does not fit into a line")]
    AnswerTooLarge,
}

impl RuntimeCallRefusal {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            RuntimeCallRefusal::TurnGone => "turn.gone",
            RuntimeCallRefusal::NoAnswer | RuntimeCallRefusal::NoFittingAnswer => "turn.failed",
            RuntimeCallRefusal::OpenCalls => "turn.open_calls",
            RuntimeCallRefusal::Compacting
            | RuntimeCallRefusal::WrongStep { .. }
            | RuntimeCallRefusal::CompactionTooLate => "turn.wrong_step",
            RuntimeCallRefusal::BadWindow { .. } => "turn.bad_window",
            RuntimeCallRefusal::NoSuchCall { .. } => "turn.no_such_call",
            RuntimeCallRefusal::BinNotDeclared { .. } => "bin.not_declared",
            RuntimeCallRefusal::BadRequest { .. } => "runtime.bad_request",
            RuntimeCallRefusal::AnswerTooLarge => "turn.answer_too_large",
        }
    }
}

/// Why a turn fails, or goes on without what it wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TurnFault {
    #[error("{why}")]
    RuntimeRefused { why: String },
    /// The runtime ended it, for a reason of its own.
    #[error("{message}")]
    EndedByRuntime { code: String, message: String },
    #[error("the answer could not be checked against the schema: {why}")]
    SchemaNotChecked { why: String },
    #[error("{misfits} answers did not fit the schema; the last one: {why}")]
    SchemaMismatch { misfits: usize, why: String },
    #[error("the model wrote no summary")]
    NoSummary,
}

impl TurnFault {
    pub(crate) fn code(&self) -> &str {
        match self {
            TurnFault::RuntimeRefused { .. } => "runtime.refused",
            TurnFault::EndedByRuntime { code, .. } => code,
            TurnFault::SchemaNotChecked { .. } => "turn.schema_not_checked",
            TurnFault::SchemaMismatch { .. } => "turn.schema_mismatch",
            TurnFault::NoSummary => "model.no_summary",
        }
    }

    fn hint(&self) -> Option<&'static str> {
        match self {
            TurnFault::SchemaNotChecked { .. } | TurnFault::SchemaMismatch { .. } => {
                Some("`lodge session show` has the answers; a simpler schema may help")
            }
            TurnFault::RuntimeRefused { .. } | TurnFault::EndedByRuntime { .. } | TurnFault::NoSummary => {
                None
            }
        }
    }

    /// As it is stored with the turn.
    pub(crate) fn record(&self) -> FailureRecord {
        FailureRecord {
            code: self.code().to_owned(),
            message: self.to_string(),
            hint: self.hint().map(str::to_owned),
        }
    }
}
