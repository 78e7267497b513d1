//! Slots: how many agents work at the same time. An agent has one exactly while a turn of its runs.
//!
//! Who waits is not recorded apart: it follows from turns and agents, so that a restart finds the same order.

use lodge_core::agent::AgentState;
use lodge_core::limits::AGENT_TURNS_MAX;
use lodge_core::{AgentId, EventData, EventKind, SessionId, Timestamp};
use lodge_store::Around;

use super::state::{Agent, Turn};
use super::{Batch, Engine, Settings};

impl Engine {
    /// The settings of the daemon changed. What runs goes on, also when that is more than should from now on.
    pub(super) fn configured(&mut self, batch: &mut Batch, settings: Settings, now: Timestamp) {
        self.host.settings = settings;
        self.hand_out_slots(batch, now);
        self.hand_out_jobs(batch, now);
    }

    /// Whether a turn of this agent may start now.
    pub(super) fn may_work(&self, agent: &Agent) -> bool {
        let has_slot = agent.running > 0 || self.working < self.host.settings.max_concurrent;
        // One that is to become another first finishes what runs. A job may run for days: nobody waits for that.
        let stays = agent.row.next.is_none() || self.jobs.running_of(&agent.row.id) > 0;
        agent.row.state == AgentState::Ready && stays && agent.running < AGENT_TURNS_MAX && has_slot
    }

    /// What stands around a turn that waits, as the store would tell it.
    pub(super) fn around(&self, turn: &Turn) -> Option<Around> {
        let agent = self.agents.get(&turn.row.agent).filter(|_| !turn.is_running())?;
        Some(Around {
            agent_ready: agent.row.state == AgentState::Ready,
            updating: agent.row.next.is_some(),
            earlier: !self.is_first(turn),
        })
    }

    /// Counts a turn that runs. True: it is the only one of its agent.
    pub(super) fn turn_runs(&mut self, id: &AgentId) -> bool {
        let Some(agent) = self.agents.get_mut(id) else { return false };
        agent.running += 1;
        let first = agent.running == 1;
        self.working += usize::from(first);
        first
    }

    /// A turn that ran does not any more. After the last one its agent becomes what it is to become, and whoever waits
    /// longest has its slot.
    pub(super) fn turn_rests(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        agent.running -= 1;
        if agent.running > 0 {
            return;
        }
        self.working -= 1;
        self.update_due(batch, id, now);
        let is_ready = self.agents.get(id).is_some_and(|agent| agent.row.state == AgentState::Ready);
        // Told before anybody else works, so that whoever reads along never counts too many.
        if is_ready && self.longest_waiting().as_ref() != Some(id) {
            self.agent_event(batch, id, EventKind::AgentReady, EventData::default(), now);
        }
        self.hand_out_slots(batch, now);
    }

    /// First come, first served, by agent: the one with the oldest turn that could start.
    pub(super) fn hand_out_slots(&mut self, batch: &mut Batch, now: Timestamp) {
        while self.working < self.host.settings.max_concurrent {
            let Some(agent) = self.longest_waiting() else { return };
            let before = self.working;
            self.start_waiting(batch, &agent, now);
            if self.working == before {
                return;
            }
        }
    }

    fn longest_waiting(&self) -> Option<AgentId> {
        let idle = |turn: &&Turn| {
            let agent = self.agents.get(&turn.row.agent);
            !turn.is_running()
                && agent.is_some_and(|agent| agent.running == 0 && self.may_work(agent))
                && self.is_first(turn)
        };
        let oldest = self.turns.values().filter(idle).min_by_key(|turn| turn.place());
        oldest.map(|turn| turn.row.agent.clone())
    }

    fn is_first(&self, turn: &Turn) -> bool {
        let session = self.sessions.get(&turn.row.session);
        session.and_then(|session| session.live.front()) == Some(&turn.row.id)
    }

    /// Starts whatever of an agent can be started, the oldest first.
    pub(super) fn start_waiting(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let waits = |turn: &&Turn| turn.row.agent == *id && !turn.is_running();
        let mut waiting: Vec<&Turn> = self.turns.values().filter(waits).collect();
        waiting.sort_by_key(|turn| turn.place());
        let sessions: Vec<SessionId> = waiting.iter().map(|turn| turn.row.session.clone()).collect();
        for session in sessions {
            self.start_next(batch, &session, now);
        }
    }
}
