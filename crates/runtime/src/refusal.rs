//! Why a request of the daemon is refused.
//!
//! Owns: the dotted codes, their numbers and their words. Never: how they become a line (see `lodge_runtime_messages`).

use lodge_runtime_messages::{CONFIG_UNUSABLE, ErrorReply, LINE_BYTES_MAX, PROTOCOL, REFUSED};

use crate::config::UnusableConfigs;
use crate::prompt::ContextError;

#[derive(Debug)]
pub(crate) enum RuntimeRefusal {
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
    Configs(UnusableConfigs),
    ReplyTooLong,
}

impl RuntimeRefusal {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            RuntimeRefusal::Parse => "rpc.parse",
            RuntimeRefusal::TooLong => "rpc.too_long",
            RuntimeRefusal::InvalidRequest => "rpc.invalid_request",
            RuntimeRefusal::UnknownMethod { .. } => "rpc.unknown_method",
            RuntimeRefusal::InvalidParams { .. } => "rpc.invalid_params",
            RuntimeRefusal::NotInitialized => "runtime.not_initialized",
            RuntimeRefusal::Busy { .. } => "runtime.busy",
            RuntimeRefusal::Protocol { .. } => "protocol.unsupported",
            RuntimeRefusal::StaleEpoch { .. } => "epoch.stale",
            RuntimeRefusal::Context(error) => error.code(),
            RuntimeRefusal::Configs(_) => CONFIG_UNUSABLE,
            RuntimeRefusal::ReplyTooLong => "context.too_large",
        }
    }

    /// The refusal as a reply to the daemon.
    pub(crate) fn reply(&self) -> ErrorReply {
        ErrorReply::new(self.rpc_code(), self.to_string(), self.code())
    }

    fn rpc_code(&self) -> i32 {
        match self {
            RuntimeRefusal::Parse | RuntimeRefusal::TooLong => -32700,
            RuntimeRefusal::InvalidRequest => -32600,
            RuntimeRefusal::UnknownMethod { .. } => -32601,
            RuntimeRefusal::InvalidParams { .. } => -32602,
            RuntimeRefusal::NotInitialized
            | RuntimeRefusal::Busy { .. }
            | RuntimeRefusal::Protocol { .. }
            | RuntimeRefusal::StaleEpoch { .. }
            | RuntimeRefusal::Context(_)
            | RuntimeRefusal::Configs(_)
            | RuntimeRefusal::ReplyTooLong => REFUSED,
        }
    }
}

impl std::fmt::Display for RuntimeRefusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RuntimeRefusal::Parse => f.write_str("the line is not a JSON object"),
            RuntimeRefusal::TooLong => write!(f, "the line is longer than {} bytes", LINE_BYTES_MAX),
            RuntimeRefusal::InvalidRequest => f.write_str("the message has neither a method nor an id"),
            RuntimeRefusal::UnknownMethod { method } => write!(f, "there is no method `{method}`"),
            RuntimeRefusal::InvalidParams { cause } => write!(f, "the params do not fit the method: {cause}"),
            RuntimeRefusal::NotInitialized => f.write_str("`initialize` must come first"),
            RuntimeRefusal::Busy { turns_max } => write!(f, "{turns_max} turns are running already"),
            RuntimeRefusal::Protocol { asked } => {
                write!(f, "protocol {asked} is not spoken here, the oldest is {PROTOCOL}")
            }
            RuntimeRefusal::StaleEpoch { epoch, known } => write!(f, "epoch {epoch} is older than {known}"),
            RuntimeRefusal::Context(error) => error.fmt(f),
            RuntimeRefusal::Configs(unusable) => unusable.fmt(f),
            RuntimeRefusal::ReplyTooLong => {
                f.write_str("context files and tools together do not fit one line")
            }
        }
    }
}
