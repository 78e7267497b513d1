//! Why a request is refused: a stable code, what is wrong, and the next step.
//!
//! Each aggregate has its own refusals; the API turns all of them into its error shape.

use lodge_core::limits::LIVE_TURNS_MAX;

pub use crate::agents::refusal::{AgentRefusal, LineageRefusal};
pub use crate::images::refusal::{ImageOrigin, ImageRefusal};
pub use crate::jobs::refusal::JobRefusal;
pub use crate::quarantine::WorkRefusal;
pub use crate::sandboxes::standalone::refusal::{ExecRefusal, SandboxRefusal};
pub use crate::sessions::refusal::SessionRefusal;
pub use crate::tokens::TokenRefusal;
pub use crate::turns::refusal::{RuntimeCallRefusal, TurnRefusal};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error(transparent)]
    Agent(#[from] AgentRefusal),
    #[error(transparent)]
    Lineage(#[from] LineageRefusal),
    #[error(transparent)]
    Turn(#[from] TurnRefusal),
    #[error(transparent)]
    Session(#[from] SessionRefusal),
    #[error(transparent)]
    Job(#[from] JobRefusal),
    #[error(transparent)]
    Sandbox(#[from] SandboxRefusal),
    #[error(transparent)]
    Exec(#[from] ExecRefusal),
    #[error(transparent)]
    Image(#[from] ImageRefusal),
    #[error(transparent)]
    Token(#[from] TokenRefusal),
    #[error(transparent)]
    Work(#[from] WorkRefusal),
    #[error("the request_id `{request_id}` was used with other parameters")]
    RequestReused { request_id: String },
    #[error("{LIVE_TURNS_MAX} turns are in flight")]
    Busy,
    #[error("its agent is at rest, and could not be read from the store in time")]
    Unread,
    #[error("the disk is full: this was not done, and nothing can be recorded")]
    NotRecorded,
}

impl Refusal {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            Refusal::Agent(refusal) => refusal.code(),
            Refusal::Lineage(refusal) => refusal.code(),
            Refusal::Turn(refusal) => refusal.code(),
            Refusal::Session(refusal) => refusal.code(),
            Refusal::Job(refusal) => refusal.code(),
            Refusal::Sandbox(refusal) => refusal.code(),
            Refusal::Exec(refusal) => refusal.code(),
            Refusal::Image(refusal) => refusal.code(),
            Refusal::Token(refusal) => refusal.code(),
            Refusal::Work(refusal) => refusal.code(),
            Refusal::RequestReused { .. } => "request.reused",
            Refusal::Busy | Refusal::Unread => "daemon.busy",
            Refusal::NotRecorded => "daemon.disk_full",
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            Refusal::Agent(refusal) => Some(refusal.hint()),
            Refusal::Lineage(refusal) => Some(refusal.hint()),
            Refusal::Turn(refusal) => refusal.hint(),
            Refusal::Session(refusal) => Some(refusal.hint()),
            Refusal::Job(refusal) => Some(refusal.hint()),
            Refusal::Sandbox(refusal) => Some(refusal.hint()),
            Refusal::Exec(refusal) => Some(refusal.hint()),
            Refusal::Image(refusal) => Some(refusal.hint()),
            Refusal::Token(refusal) => Some(refusal.hint()),
            Refusal::Work(refusal) => Some(refusal.hint()),
            Refusal::RequestReused { .. } => Some("choose a new request_id for a new request".to_owned()),
            Refusal::Busy | Refusal::Unread => Some("send it again in a moment".to_owned()),
            Refusal::NotRecorded => Some(
                "free space on the state directory's file system; the daemon then continues automatically; try again".to_owned(),
            ),
        }
    }

    /// The underlying cause, if another component is to blame.
    pub fn cause(&self) -> Option<&str> {
        match self {
            Refusal::Agent(refusal) => refusal.cause(),
            Refusal::Lineage(refusal) => refusal.cause(),
            Refusal::Turn(_)
            | Refusal::Session(_)
            | Refusal::Job(_)
            | Refusal::Sandbox(_)
            | Refusal::Exec(_)
            | Refusal::Image(_)
            | Refusal::Token(_)
            | Refusal::Work(_)
            | Refusal::RequestReused { .. }
            | Refusal::Busy
            | Refusal::Unread => None,
            Refusal::NotRecorded => Some("a commit failed for lack of room, also with the daemon's reserve"),
        }
    }

    /// As a model reads it in the result of its call.
    pub fn for_model(&self) -> String {
        match self.hint() {
            Some(hint) => format!("{self}\n{hint}"),
            None => self.to_string(),
        }
    }
}
