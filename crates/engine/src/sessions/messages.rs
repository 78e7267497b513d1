//! Changes of sessions, as the API plans them, and answers.

use lodge_core::epoch::EpochRow;
use lodge_core::record::{MessageRow, SessionFact, StepRow, TurnRow};
use lodge_core::session::{ForkPlan, PathPlan};
use lodge_core::summary::SessionSummary;
use lodge_core::{SessionId, TurnId};

/// A change of a session, and the state that it is based on.
#[derive(Debug)]
pub struct SessionChange {
    /// The store's state when the rest was read.
    pub fact: SessionFact,
    /// For the answer: its agent, which may be removed.
    pub agent_name: String,
    pub agent_removed: bool,
    pub what: SessionOperation,
}

#[derive(Debug)]
pub enum SessionOperation {
    Rewind(PathPlan),
    /// Make the branch of a turn the path.
    Activate {
        turn: TurnId,
        plan: PathPlan,
    },
    Fork {
        /// None: a new id.
        to: Option<SessionId>,
        plan: ForkPlan,
    },
    Regenerate(Box<TurnRegeneration>),
    Retry(Box<TurnContinuation>),
    Delete,
}

/// A turn to continue: the last of the path, which failed or was interrupted.
#[derive(Debug)]
pub struct TurnContinuation {
    pub turn: TurnRow,
    /// Of a copy: those of its original; none, if that was deleted.
    pub steps: Vec<StepRow>,
    /// In order, the user's first.
    pub messages: Vec<MessageRow>,
    /// The epoch that began in it.
    pub epoch: Option<EpochRow>,
    /// The path without it.
    pub plan: PathPlan,
}

/// A turn to regenerate.
#[derive(Debug)]
pub struct TurnRegeneration {
    pub turn: TurnId,
    pub text: String,
    pub schema: Option<String>,
    /// The note that preceded it.
    pub note: Option<String>,
    /// The path without it.
    pub plan: PathPlan,
}

#[derive(Debug, Clone)]
pub enum SessionAnswer {
    Session(Box<SessionSummary>),
    Deleted(SessionId),
}
