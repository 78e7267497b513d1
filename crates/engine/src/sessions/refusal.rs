//! Refusals of requests about sessions.

use lodge_core::SessionId;
use lodge_core::limits::{FORK_BYTES_MAX, SESSION_QUEUE_MAX};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionRefusal {
    #[error("no session `{given}`")]
    NotFound { given: String },
    /// `owner` is the agent's name, or its id where the name is not known.
    #[error("session `{session}` belongs to the agent `{owner}`")]
    OtherAgent { session: SessionId, owner: String },
    #[error("there is a session `{session}` already")]
    Exists { session: SessionId },
    #[error("{SESSION_QUEUE_MAX} turns wait in session `{session}`")]
    QueueFull { session: SessionId },
    #[error("{turns} turns of session `{session}` wait or run")]
    Busy { session: SessionId, turns: usize },
    #[error("session `{session}` changed while it was read")]
    Changed { session: SessionId },
    #[error("up to there the conversation has {bytes} bytes; {FORK_BYTES_MAX} is the most")]
    TooLarge { bytes: u64 },
}

impl SessionRefusal {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            SessionRefusal::NotFound { .. } => "session.not_found",
            SessionRefusal::OtherAgent { .. } => "session.other_agent",
            SessionRefusal::Exists { .. } => "session.exists",
            SessionRefusal::QueueFull { .. } => "session.queue_full",
            SessionRefusal::Busy { .. } => "session.busy",
            SessionRefusal::Changed { .. } => "session.changed",
            SessionRefusal::TooLarge { .. } => "session.too_large",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            SessionRefusal::NotFound { .. } => "`lodge session ls` lists all sessions".to_owned(),
            SessionRefusal::OtherAgent { session, owner } => {
                format!(
                    "name that agent (`lodge prompt {owner} -s {session} …`), or choose another session id"
                )
            }
            SessionRefusal::Exists { .. } => "choose another id".to_owned(),
            SessionRefusal::QueueFull { session } => {
                format!(
                    "send it again when one of them is over; `lodge session show {session}` has the queue"
                )
            }
            SessionRefusal::Busy { session, .. } => {
                format!(
                    "try again when they have ended; `lodge turn attach --session {session}` shows the one that runs, \
                     `lodge turn interrupt --session {session}` ends it"
                )
            }
            SessionRefusal::Changed { .. } => "try again".to_owned(),
            SessionRefusal::TooLarge { .. } => "fork it at an earlier turn".to_owned(),
        }
    }
}
