//! Refusals of requests about turns.

use lodge_core::TurnId;
use lodge_core::limits::MESSAGE_BYTES_MAX;

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
