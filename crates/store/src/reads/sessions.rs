//! Sessions: listings, and everything that a change of one is decided on.

use lodge_core::record::{MessageBody, SessionFact};
use lodge_core::session::{ForkPlan, PathPlan};
use lodge_core::summary::SessionSummary;
use lodge_core::{AgentId, SessionId, Timestamp, TurnId};

use super::Result;

/// Before which session a page of a listing goes on; the newest comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionPlace {
    pub last_active: Timestamp,
    pub id: String,
}

/// A session on which a change is decided.
#[derive(Debug, Clone)]
pub struct SessionBase {
    pub fact: SessionFact,
    pub agent_name: String,
    pub agent_removed: bool,
}

/// Which turn of a session is meant.
#[derive(Debug, Clone)]
pub enum TurnPick {
    /// The last one of the path.
    Last,
    /// By its place in the path.
    Number(u32),
    Id(TurnId),
}

/// Why a turn cannot be what was meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoTurn {
    /// The session has no such turn.
    Unknown,
    /// It is not on the path.
    Inactive,
    /// More turns than one change may touch.
    TooMany,
}

/// A turn that shall be done again.
#[derive(Debug, Clone)]
pub struct TurnRepeat {
    pub turn: TurnId,
    /// What was asked.
    pub body: MessageBody,
    /// The path without it.
    pub plan: PathPlan,
}

pub trait SessionReads {
    fn session_fact(&self, id: &SessionId) -> Result<Option<SessionFact>>;
    /// The newest session of an agent with a sender.
    fn session_of(&self, agent: &AgentId, sender: &str) -> Result<Option<SessionFact>>;
    fn session_count(&self, agent: &AgentId) -> Result<u64>;
    /// Sessions, those that somebody used last first.
    fn sessions(
        &self,
        agent: Option<&AgentId>,
        before: Option<&SessionPlace>,
        limit: u32,
    ) -> Result<Vec<SessionSummary>>;
    fn session(&self, id: &SessionId) -> Result<Option<SessionSummary>>;
    /// How many turns of a session are not on its path.
    fn inactive_turns(&self, id: &SessionId) -> Result<u64>;
    fn standing(&self, id: &SessionId) -> Result<Option<SessionBase>>;
    /// The path of a session after a rewind to a turn; to number 0 it is empty.
    fn rewind_plan(
        &self,
        id: &SessionId,
        pick: &TurnPick,
    ) -> Result<Option<(SessionBase, std::result::Result<PathPlan, NoTurn>)>>;
    /// The path of a session with a turn, those before it, and those that came after it when it was on the path last.
    fn branch_plan(
        &self,
        id: &SessionId,
        turn: &TurnId,
    ) -> Result<Option<(SessionBase, std::result::Result<PathPlan, NoTurn>)>>;
    /// What a new session would get of this one.
    fn fork_plan(
        &self,
        id: &SessionId,
        pick: &TurnPick,
    ) -> Result<Option<(SessionBase, std::result::Result<ForkPlan, NoTurn>)>>;
    /// A turn and what was asked in it, to be done again.
    fn repeat_plan(
        &self,
        id: &SessionId,
        pick: &TurnPick,
    ) -> Result<Option<(SessionBase, std::result::Result<TurnRepeat, NoTurn>)>>;
}
