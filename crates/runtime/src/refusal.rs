//! Why a request of the daemon is refused.
//!
//! Owns: the dotted codes, their numbers and their words. Never: how they become a line (see `lodge_runtime_messages`).

use lodge_runtime_messages::{ErrorReply, LINE_BYTES_MAX, PROTOCOL, REFUSED};

use crate::prompt::ContextError;

#[derive(Debug)]
pub(crate) enum Refusal {
    Parse,
    TooLong,
    InvalidRequest,
    UnknownMethod { method: String },
    InvalidParams { cause: String },
    NotInitialized,
    Busy { turns_max: usize },
    Protocol { asked: u64 },
    StaleEpoch { epoch: u64, known: u64 },
    Context(ContextError),
    ReplyTooLong,
}

impl Refusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Refusal::Parse => "rpc.parse",
            Refusal::TooLong => "rpc.too_long",
            Refusal::InvalidRequest => "rpc.invalid_request",
            Refusal::UnknownMethod { .. } => "rpc.unknown_method",
            Refusal::InvalidParams { .. } => "rpc.invalid_params",
            Refusal::NotInitialized => "runtime.not_initialized",
            Refusal::Busy { .. } => "runtime.busy",
            Refusal::Protocol { .. } => "protocol.unsupported",
            Refusal::StaleEpoch { .. } => "epoch.stale",
            Refusal::Context(error) => error.code(),
            Refusal::ReplyTooLong => "context.too_large",
        }
    }

    /// How the daemon is told.
    pub(crate) fn reply(&self) -> ErrorReply {
        ErrorReply::new(self.rpc_code(), self.to_string(), self.code())
    }

    fn rpc_code(&self) -> i32 {
        match self {
            Refusal::Parse | Refusal::TooLong => -32700,
            Refusal::InvalidRequest => -32600,
            Refusal::UnknownMethod { .. } => -32601,
            Refusal::InvalidParams { .. } => -32602,
            Refusal::NotInitialized
            | Refusal::Busy { .. }
            | Refusal::Protocol { .. }
            | Refusal::StaleEpoch { .. }
            | Refusal::Context(_)
            | Refusal::ReplyTooLong => REFUSED,
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Parse => f.write_str("the line is not a JSON object"),
            Refusal::TooLong => write!(f, "the line is longer than {} bytes", LINE_BYTES_MAX),
            Refusal::InvalidRequest => f.write_str("the message has neither a method nor an id"),
            Refusal::UnknownMethod { method } => write!(f, "there is no method `{method}`"),
            Refusal::InvalidParams { cause } => write!(f, "the params do not fit the method: {cause}"),
            Refusal::NotInitialized => f.write_str("`initialize` must come first"),
            Refusal::Busy { turns_max } => write!(f, "{turns_max} turns are running already"),
            Refusal::Protocol { asked } => {
                write!(f, "protocol {asked} is not spoken here, the oldest is {PROTOCOL}")
            }
            Refusal::StaleEpoch { epoch, known } => write!(f, "epoch {epoch} is older than {known}"),
            Refusal::Context(error) => error.fmt(f),
            Refusal::ReplyTooLong => f.write_str("context files and tools together do not fit one line"),
        }
    }
}
