//! The end of what an agent has on the host: its sandbox, its open turns, its files.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::record::FailureRecord;
use lodge_core::turn::TurnEvent;
use lodge_core::{AgentId, TurnId};

use super::refusal::AgentRefusal;
use super::waiting::refuse;
use crate::Engine;

/// What becomes of the open turns of an agent whose process is gone.
#[derive(Debug)]
pub(crate) enum BreakOff {
    /// They wait in the ledger until their agent is ready again, and those that ran give its slot back.
    Park,
    Interrupt,
    Fail(FailureRecord),
}

impl Engine {
    /// Whoever asked hears why; asking again tries again.
    ///
    /// One that nobody asked to end, and that cannot be ended, is not revived beside itself.
    pub(crate) fn agent_not_down(&mut self, id: &AgentId, run: u32, detail: String) {
        if let Some(agent) = self.current(id, run)
            && let Ok(next) = agent.row.state.next(AgentEvent::Exited { clean: false })
            && next != agent.row.state
        {
            self.set_state(id, next, Some(detail.clone()));
            self.break_off_turns(id, &BreakOff::Park);
        }
        let Some(agent) = self.agents.get_mut(id) else { return };
        let refusal = AgentRefusal::NotEnded { name: agent.row.name.clone(), cause: detail };
        refuse(&mut self.step, agent, run, &refusal.into());
    }

    /// The sandbox is gone: whoever asked for that hears of it.
    pub(crate) fn agent_down(&mut self, id: &AgentId, run: u32) {
        if self.current(id, run).is_some_and(|agent| !agent.row.state.takes_turns()) {
            self.settle_jobs(id);
        }
        if self.agents.get(id).is_some_and(|agent| agent.row.state != AgentState::Removing) {
            self.tell_waiting(id, run);
        }
    }

    pub(crate) fn agent_cleared(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Cleared) else { return };
        let run = agent.row.runs;
        self.tell_waiting(id, run);
        self.set_state(id, next, None);
        self.sessions_over(id);
        self.forget_pull(id);
        if let Some(agent) = self.agents.remove(id) {
            self.names.remove(&agent.row.name);
            self.images_left(agent.row.images().map(str::to_owned).collect());
        }
        self.streams.remove(id.as_str());
    }

    /// Whoever asked hears why; asking again tries again.
    pub(crate) fn agent_not_cleared(&mut self, id: &AgentId, detail: String) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let (name, run) = (agent.row.name.clone(), agent.row.runs);
        let refusal = AgentRefusal::NotCleared { name, cause: detail };
        refuse(&mut self.step, agent, run, &refusal.into());
    }

    /// Ends every live turn of an agent that is going away, or lets them wait.
    pub(crate) fn break_off_turns(&mut self, id: &AgentId, how: &BreakOff) {
        let mut live: Vec<(bool, u32, TurnId)> = self
            .turns
            .values()
            .filter(|turn| turn.row.agent == *id)
            .map(|turn| (!turn.is_running(), turn.row.number, turn.row.id.clone()))
            .collect();
        // Those that wait go first, and the last of every session, so that ending one never starts another.
        live.sort_by(|a, b| b.cmp(a));
        for (_, _, turn) in live {
            match how {
                BreakOff::Park => self.park(&turn),
                BreakOff::Interrupt => self.interrupt(&turn),
                BreakOff::Fail(failure) => self.fail_turn(&turn, failure.clone()),
            }
        }
    }

    /// Lets a running turn wait. What is in flight of it is recorded when it comes; nothing new is begun.
    pub(crate) fn park(&mut self, id: &TurnId) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let Ok(next) = turn.row.state.next(TurnEvent::Parked) else { return };
        turn.row.state = next;
        let agent = turn.row.agent.clone();
        self.write_turn(id);
        self.turn_rests(&agent);
    }
}
