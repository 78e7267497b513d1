//! The end of what an agent has on the host: its sandbox, its open turns, its files.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::record::FailureRecord;
use lodge_core::turn::TurnEvent;
use lodge_core::{AgentId, Timestamp, TurnId};
use lodge_proto::ErrorBody;

use super::waiting::refuse;
use super::{Batch, Effect, Engine};

/// What becomes of the open turns of an agent whose process is gone.
#[derive(Debug)]
pub(super) enum BreakOff {
    /// They wait in the ledger until their agent is ready again, and those that ran give its slot back.
    Park,
    Interrupt,
    Fail(FailureRecord),
}

impl Engine {
    /// Whoever asked hears why; asking again tries again.
    ///
    /// One that nobody asked to end, and that cannot be ended, is not revived beside itself.
    pub(super) fn agent_not_down(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        detail: String,
        now: Timestamp,
    ) {
        if let Some(agent) = self.current(id, run)
            && let Ok(next) = agent.row.state.next(AgentEvent::Exited { clean: false })
            && next != agent.row.state
        {
            self.set_state(batch, id, next, Some(detail.clone()), now);
            self.break_off_turns(batch, id, &BreakOff::Park, now);
        }
        let Some(agent) = self.agents.get_mut(id) else { return };
        let name = &agent.row.name;
        let refusal = ErrorBody::new("agent.not_ended", format!("agent `{name}` could not be ended"))
            .because(&detail)
            .hint(format!("look at its process with `lodge agent inspect {name}`, then ask again"));
        refuse(batch, agent, run, &refusal);
    }

    /// The sandbox is gone: whoever asked for that hears of it.
    pub(super) fn agent_down(&mut self, batch: &mut Batch, id: &AgentId, run: u32, now: Timestamp) {
        if self.current(id, run).is_some_and(|agent| !agent.row.state.takes_turns()) {
            self.settle_jobs(batch, id);
        }
        if self.agents.get(id).is_some_and(|agent| agent.row.state != AgentState::Removing) {
            self.tell_waiting(batch, id, run, now);
        }
    }

    pub(super) fn agent_cleared(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Cleared) else { return };
        let run = agent.row.runs;
        self.tell_waiting(batch, id, run, now);
        self.set_state(batch, id, next, None, now);
        self.sessions_over(batch, id);
        self.forget_pull(batch, id);
        if let Some(agent) = self.agents.remove(id) {
            self.names.remove(&agent.row.name);
            self.images_left(batch, agent.row.images().map(str::to_owned).collect());
        }
        self.streams.remove(id.as_str());
    }

    /// Whoever asked hears why; asking again tries again.
    pub(super) fn agent_not_cleared(&mut self, batch: &mut Batch, id: &AgentId, detail: &str) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let name = agent.row.name.clone();
        let refusal =
            ErrorBody::new("agent.not_cleared", format!("the files of agent `{name}` could not be removed"))
                .because(detail)
                .hint(format!("mend that, then run `lodge rm {name}` again"));
        let run = agent.row.runs;
        refuse(batch, agent, run, &refusal);
    }

    /// Has the sandbox ended that the agent has now.
    pub(super) fn down(&mut self, batch: &mut Batch, id: &AgentId) {
        let Some(agent) = self.agents.get(id) else { return };
        let (sandbox, run) = (agent.row.sandbox.clone(), agent.row.runs);
        batch.act(Effect::Down { agent: id.clone(), sandbox, run });
    }

    /// Ends every live turn of an agent that is going away, or lets them wait.
    pub(super) fn break_off_turns(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        how: &BreakOff,
        now: Timestamp,
    ) {
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
                BreakOff::Park => self.park(batch, &turn, now),
                BreakOff::Interrupt => self.interrupt(batch, &turn, now),
                BreakOff::Fail(failure) => self.fail_turn(batch, &turn, failure.clone(), now),
            }
        }
    }

    /// Lets a running turn wait. What is in flight of it is recorded when it comes; nothing new is begun.
    pub(super) fn park(&mut self, batch: &mut Batch, id: &TurnId, now: Timestamp) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let Ok(next) = turn.row.state.next(TurnEvent::Parked) else { return };
        turn.row.state = next;
        let agent = turn.row.agent.clone();
        self.write_turn(batch, id);
        self.turn_rests(batch, &agent, now);
    }
}
