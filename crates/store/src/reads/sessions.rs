//! Sessions: listings, and everything that a change needs.

use lodge_core::epoch::EpochRow;
use lodge_core::record::{MessageBody, MessageRow, SessionFact, StepRow, TurnRow, Usage};
use lodge_core::session::{ForkPlan, PathPlan};
use lodge_core::summary::SessionSummary;
use lodge_core::{AgentId, SessionId, Timestamp, TurnId};

use super::Result;

/// The session before which a page of a listing continues. The newest session comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionCursor {
    pub last_active: Timestamp,
    pub id: String,
}

/// The state of a session that a change is based on.
#[derive(Debug, Clone)]
pub struct SessionBase {
    pub fact: SessionFact,
    pub agent_name: String,
    pub agent_removed: bool,
}

/// Selects a turn of a session.
#[derive(Debug, Clone)]
pub enum TurnSelector {
    /// The last one of the path.
    Last,
    /// By its position in the path.
    Number(u32),
    Id(TurnId),
}

/// Why a turn cannot be selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnSelectionError {
    /// The session has no such turn.
    Unknown,
    /// It is not on the path.
    Inactive,
    /// More turns than one change may touch.
    TooMany,
}

/// A turn to regenerate.
#[derive(Debug, Clone)]
pub struct TurnRepeat {
    pub turn: TurnId,
    /// The user's message.
    pub body: MessageBody,
    /// The path without it.
    pub plan: PathPlan,
}

/// What a turn left that another one may continue.
#[derive(Debug, Clone)]
pub struct TurnRemains {
    pub turn: TurnRow,
    /// Of a copy: those of its original; none, if that was deleted.
    pub steps: Vec<StepRow>,
    pub messages: Vec<MessageRow>,
    /// The epoch that began in it.
    pub epoch: Option<EpochRow>,
    /// The path without it.
    pub plan: PathPlan,
}

pub trait SessionReads {
    /// The session with this id, or else those whose id begins with it: at most
    /// [`ID_MATCHES_MAX`](super::ID_MATCHES_MAX).
    fn find_sessions(&self, given: &str) -> Result<Vec<SessionId>>;
    fn session_fact(&self, id: &SessionId) -> Result<Option<SessionFact>>;
    /// The newest session of an agent with a sender.
    fn session_of(&self, agent: &AgentId, sender: &str) -> Result<Option<SessionFact>>;
    /// What the turns of a session used, on its path or not.
    fn session_usage(&self, id: &SessionId) -> Result<Usage>;
    fn session_count(&self, agent: &AgentId) -> Result<u64>;
    /// Sessions, most recently used first.
    fn sessions(
        &self,
        agent: Option<&AgentId>,
        before: Option<&SessionCursor>,
        limit: u32,
    ) -> Result<Vec<SessionSummary>>;
    fn session(&self, id: &SessionId) -> Result<Option<SessionSummary>>;
    /// How many turns of a session are not on its path.
    fn inactive_turns(&self, id: &SessionId) -> Result<u64>;
    fn session_base(&self, id: &SessionId) -> Result<Option<SessionBase>>;
    /// The path of a session after a rewind to a turn; to number 0 it is empty.
    fn rewind_plan(
        &self,
        id: &SessionId,
        pick: &TurnSelector,
    ) -> Result<Option<(SessionBase, std::result::Result<PathPlan, TurnSelectionError>)>>;
    /// The path of a session with a turn, those before it, and those that followed it when it left the path.
    fn branch_plan(
        &self,
        id: &SessionId,
        turn: &TurnId,
    ) -> Result<Option<(SessionBase, std::result::Result<PathPlan, TurnSelectionError>)>>;
    /// The part of this session that a fork would copy.
    fn fork_plan(
        &self,
        id: &SessionId,
        pick: &TurnSelector,
    ) -> Result<Option<(SessionBase, std::result::Result<ForkPlan, TurnSelectionError>)>>;
    /// A turn and its message, for regeneration.
    fn repeat_plan(
        &self,
        id: &SessionId,
        pick: &TurnSelector,
    ) -> Result<Option<(SessionBase, std::result::Result<TurnRepeat, TurnSelectionError>)>>;
    /// A turn of the path, for its continuation.
    fn retry_plan(
        &self,
        id: &SessionId,
        turn: &TurnId,
    ) -> Result<Option<(SessionBase, std::result::Result<TurnRemains, TurnSelectionError>)>>;
}
