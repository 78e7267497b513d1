//! Turns, with their steps and their text.

use lodge_core::summary::TurnDetail;
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, SessionId, TurnId};

use super::{Result, TurnScope};

/// Which turns a listing has.
#[derive(Debug, Clone, Default)]
pub struct TurnFilter {
    pub agent: Option<AgentId>,
    /// Without one, turns that a fork copied are left out.
    pub session: Option<SessionId>,
    /// None: any state.
    pub state: Option<TurnState>,
    pub which: TurnScope,
}

/// A page of turns.
#[derive(Debug)]
pub struct TurnPage {
    pub turns: Vec<TurnDetail>,
    /// Whether there may be more.
    pub more: bool,
}

pub trait TurnReads {
    /// With its message, and the place of its events.
    fn turn(&self, id: &TurnId) -> Result<Option<TurnDetail>>;
    /// The turns of an agent, or of all, with this id prefix, at most [`ID_MATCHES_MAX`](super::ID_MATCHES_MAX).
    fn find_turns(&self, given: &str, agent: Option<&AgentId>) -> Result<Vec<TurnId>>;
    /// Turns before another one, newest first, each with the beginning of its message.
    fn newest_turns(&self, filter: &TurnFilter, before: Option<&TurnId>, limit: u32) -> Result<TurnPage>;
    /// Whether any turn of the agent waits or runs.
    fn has_live_turn(&self, agent: &AgentId) -> Result<bool>;
    /// Turns that wait or run; of one agent, one session, or all.
    fn live_turns(
        &self,
        agent: Option<&AgentId>,
        session: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<TurnDetail>>;
}
