//! Ends an agent's presence on the host: its sandbox, its open turns, its files.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::record::FailureRecord;
use lodge_core::turn::TurnEvent;
use lodge_core::{AgentId, TurnId};

use super::refusal::AgentRefusal;
use super::waiting::refuse;
use crate::Engine;

/// How the open turns of an agent continue after its process is gone.
#[derive(Debug)]
pub(crate) enum OpenTurnsFate {
    /// The turns wait in the ledger until their agent is ready again. Running ones release its slot.
    Park,
    Interrupt,
    Fail(FailureRecord),
}

impl Engine {
    /// Reports the reason to the waiting callers. A repeated request tries again.
    ///
    /// If no one requested the end, the agent is not revived beside a sandbox that still runs.
    pub(crate) fn agent_not_down(&mut self, id: &AgentId, run: u32, detail: String) {
        if let Some(agent) = self.current(id, run)
            && let Ok(next) = agent.row.state.next(AgentEvent::Exited { clean: false })
            && next != agent.row.state
        {
            self.set_state(id, next, Some(detail.clone()));
            self.settle_open_turns(id, &OpenTurnsFate::Park);
        }
        let Some(agent) = self.agents.get_mut(id) else { return };
        let refusal = AgentRefusal::NotEnded { name: agent.row.name.clone(), cause: detail };
        refuse(&mut self.step, agent, run, &refusal.into());
    }

    /// The sandbox is gone. Answers the callers that wait for this.
    pub(crate) fn agent_down(&mut self, id: &AgentId, run: u32) {
        if self.current(id, run).is_some_and(|agent| !agent.row.state.takes_turns()) {
            self.settle_jobs(id);
        }
        if self.agents.get(id).is_some_and(|agent| agent.row.state != AgentState::Removing) {
            self.answer_end_waiters(id, run);
        }
    }

    pub(crate) fn agent_cleared(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Cleared) else { return };
        let run = agent.row.runs;
        self.answer_end_waiters(id, run);
        self.set_state(id, next, None);
        self.sessions_over(id);
        self.forget_pull(id);
        if let Some(agent) = self.agents.remove(id) {
            self.names.remove(agent.row.name.as_str());
            self.release_images(agent.row.images().map(str::to_owned).collect());
        }
        self.streams.remove(id.as_str());
    }

    /// Reports the reason to the waiting callers. A repeated request tries again.
    pub(crate) fn agent_not_cleared(&mut self, id: &AgentId, detail: String) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let (name, run) = (agent.row.name.clone(), agent.row.runs);
        let refusal = AgentRefusal::NotCleared { name, cause: detail };
        refuse(&mut self.step, agent, run, &refusal.into());
    }

    /// Ends every live turn of an agent that is going away, or parks them.
    pub(crate) fn settle_open_turns(&mut self, id: &AgentId, how: &OpenTurnsFate) {
        let mut live: Vec<(bool, u32, TurnId)> = self
            .turns
            .values()
            .filter(|turn| turn.row.agent == *id)
            .map(|turn| (!turn.is_running(), turn.row.number, turn.row.id.clone()))
            .collect();
        // Waiting turns end first, and the last turn of every session before the others, so that the end of one never
        // starts another.
        live.sort_by(|a, b| b.cmp(a));
        for (_, _, turn) in live {
            match how {
                OpenTurnsFate::Park => self.park(&turn),
                OpenTurnsFate::Interrupt => self.interrupt(&turn),
                OpenTurnsFate::Fail(failure) => self.fail_turn(&turn, failure.clone()),
            }
        }
    }

    /// Parks a running turn. Results in flight are recorded when they arrive, and no new step starts.
    pub(crate) fn park(&mut self, id: &TurnId) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let Ok(next) = turn.row.state.next(TurnEvent::Parked) else { return };
        turn.row.state = next;
        let agent = turn.row.agent.clone();
        self.write_turn(id);
        self.release_running_turn(&agent);
    }
}
