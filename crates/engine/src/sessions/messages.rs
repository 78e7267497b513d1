//! Changes of sessions, as the API plans them.

use lodge_core::record::SessionFact;
use lodge_core::session::{ForkPlan, PathPlan};
use lodge_core::{SessionId, TurnId};

/// A change of a session, and what it is decided on.
#[derive(Debug)]
pub struct SessionChange {
    /// As the store had it when the rest was read.
    pub fact: SessionFact,
    /// For the answer: its agent, which may be removed.
    pub agent_name: String,
    pub agent_removed: bool,
    pub what: SessionWhat,
}

#[derive(Debug)]
pub enum SessionWhat {
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
    Regenerate(Box<TurnAgain>),
    Delete,
}

/// A turn that shall be done again.
#[derive(Debug)]
pub struct TurnAgain {
    pub turn: TurnId,
    pub text: String,
    pub schema: Option<String>,
    /// What the model was told before it.
    pub note: Option<String>,
    /// The path without it.
    pub plan: PathPlan,
}
