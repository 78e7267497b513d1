//! Turns, with their steps and their text.

use lodge_core::summary::TurnDetail;
use lodge_core::{AgentId, SessionId, TurnId};

use super::Result;

pub trait TurnReads {
    fn turn(&self, id: &TurnId) -> Result<Option<TurnDetail>>;
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
