//! Slots limit how many agents run turns at the same time. An agent has a slot exactly while one of its turns runs. An
//! agent whose turns all wait for jobs gives it to an agent that can use it. When a job has ended, its turns wait for a
//! slot like others.
//!
//! The order of waiting agents is not recorded: it follows from turns and agents, so a restart finds the same order.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::agent::AgentState;
use lodge_core::event::AgentReady;
use lodge_core::limits::AGENT_TURNS_MAX;
use lodge_core::summary::WaitReasons;
use lodge_core::{AgentId, SessionId, TurnId};

use super::Turn;
use crate::agents::Agent;
use crate::{Engine, SandboxEffect, Settings};

impl Engine {
    /// The settings changed. Running work continues, even if it exceeds the new limits.
    pub(crate) fn configured(&mut self, settings: Settings) {
        self.host.settings = settings;
        self.assign_slots();
        self.start_pending_jobs();
    }

    /// Whether a turn of this agent may start now.
    pub(crate) fn may_work(&self, agent: &Agent) -> bool {
        let has_slot = agent.running > 0 || self.working < self.host.settings.max_concurrent;
        has_slot && self.could_work(agent)
    }

    /// Whether a turn of this agent might start, if it had a slot.
    fn could_work(&self, agent: &Agent) -> bool {
        // An agent with a pending update first finishes its running turns. A job may run for days, so turns do not wait
        // for it.
        let stays = agent.row.next.is_none() || self.jobs.running_of(&agent.row.id) > 0;
        agent.row.state == AgentState::Ready && stays && agent.running < AGENT_TURNS_MAX
    }

    /// Whether a waiting turn could continue, if its agent had a slot and its provider answered.
    pub(crate) fn could_resume(&self, turn: &Turn) -> bool {
        let agent = self.agents.get(&turn.row.agent);
        agent.is_some_and(|agent| self.could_work(agent))
            && self.is_first(turn)
            && !self.is_quarantined(&turn.row.id)
    }

    /// Why a turn waits, as the store would report it.
    pub(crate) fn wait_reasons(&self, turn: &Turn) -> Option<WaitReasons> {
        let agent = self.agents.get(&turn.row.agent).filter(|_| !turn.is_running())?;
        Some(WaitReasons {
            agent_ready: agent.row.state == AgentState::Ready,
            updating: agent.row.next.is_some(),
            earlier: !self.is_first(turn),
            quarantine: self.quarantine_before(turn).cloned(),
            park: turn.row.park.clone(),
        })
    }

    /// Whether an agent has work in flight: a turn, or a job.
    pub(crate) fn is_at_work(&self, id: &AgentId) -> bool {
        self.jobs.running_of(id) > 0 || self.agents.get(id).is_some_and(|agent| agent.running > 0)
    }

    /// Records that an agent is ready if it has no work in flight.
    pub(crate) fn mark_ready_if_idle(&mut self, id: &AgentId) {
        let is_ready = self.agents.get(id).is_some_and(|agent| agent.row.state == AgentState::Ready);
        if is_ready && !self.is_at_work(id) {
            self.agent_event(id, |name| AgentReady { name });
        }
    }

    /// Counts a running turn. True: the agent has no other work in flight.
    pub(crate) fn count_running_turn(&mut self, id: &AgentId) -> bool {
        let is_first = !self.is_at_work(id);
        let Some(agent) = self.agents.get_mut(id) else { return false };
        agent.running += 1;
        self.working += usize::from(agent.running == 1);
        is_first
    }

    /// A turn stopped running. After the last one, a pending update is applied, and the slot goes to the agent that has
    /// waited longest.
    pub(crate) fn release_running_turn(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        agent.running -= 1;
        if agent.running > 0 {
            return;
        }
        self.working -= 1;
        self.update_due(id);
        // Reported before another agent works, so that a reader of events never counts too many.
        if self.longest_waiting().as_ref() != Some(id) {
            self.mark_ready_if_idle(id);
        }
        self.assign_slots();
    }

    /// First come, first served, by agent: the one with the oldest turn that could start.
    pub(crate) fn assign_slots(&mut self) {
        while self.working < self.host.settings.max_concurrent {
            let Some(agent) = self.longest_waiting() else { return };
            let before = self.working;
            self.start_waiting(&agent);
            if self.working == before {
                return;
            }
        }
    }

    /// An agent that only waits for jobs comes last.
    fn longest_waiting(&self) -> Option<AgentId> {
        if self.working >= self.host.settings.max_concurrent {
            return None;
        }
        let oldest = self.idle().min_by_key(|turn| (self.waits_only_for_jobs(turn), turn.place()));
        oldest.map(|turn| turn.row.agent.clone())
    }

    /// The turns that could continue if their agents, which have no slot, had one.
    fn idle(&self) -> impl Iterator<Item = &Turn> {
        self.turns.values().filter(|turn| {
            let agent = self.agents.get(&turn.row.agent);
            !turn.is_running()
                && agent.is_some_and(|agent| agent.running == 0)
                && self.could_resume(turn)
                && !self.is_held(turn)
        })
    }

    /// While all slots are taken and another agent could use one: takes the slot of an agent that only waits for jobs.
    pub(crate) fn yield_slots(&mut self) {
        let is_full = |engine: &Self| engine.working >= engine.host.settings.max_concurrent;
        // An agent gives up its slot once: if it gets one again, that slot is for another turn.
        let mut gave = BTreeSet::new();
        while is_full(self)
            && self.jobs.has_open()
            && self.idle().any(|turn| !self.waits_only_for_jobs(turn))
            && let Some(agent) = self.find_agent_to_park(&gave)
        {
            gave.insert(agent.clone());
            let runs = |turn: &&Turn| turn.row.agent == agent && turn.is_running();
            let mut asleep: Vec<TurnId> =
                self.turns.values().filter(runs).map(|turn| turn.row.id.clone()).collect();
            asleep.sort();
            for turn in asleep {
                self.forget_waiters(&turn);
                self.in_sandbox(&agent, SandboxEffect::DropTurn { turn: turn.clone() });
                self.park(&turn);
            }
        }
    }

    /// An agent with a slot whose running turns all wait for jobs. An agent with a pending update finishes first.
    fn find_agent_to_park(&self, but: &BTreeSet<AgentId>) -> Option<AgentId> {
        let mut asleep: BTreeMap<&AgentId, usize> = BTreeMap::new();
        for turn in self.turns.values().filter(|turn| turn.is_running() && self.waits_only_for_jobs(turn)) {
            *asleep.entry(&turn.row.agent).or_default() += 1;
        }
        let sleeps = |(id, turns): &(&AgentId, usize)| {
            !but.contains(*id)
                && self.agents.get(*id).is_some_and(|agent| {
                    agent.running == *turns
                        && agent.row.next.is_none()
                        && agent.row.state == AgentState::Ready
                })
        };
        asleep.into_iter().find(sleeps).map(|(id, _)| id.clone())
    }

    fn is_first(&self, turn: &Turn) -> bool {
        let session = self.sessions.get(&turn.row.session);
        session.and_then(|session| session.live.front()) == Some(&turn.row.id)
    }

    /// Starts the turns of an agent that can start, oldest first. Turns that only wait for jobs come last.
    pub(crate) fn start_waiting(&mut self, id: &AgentId) {
        let waits = |turn: &&Turn| turn.row.agent == *id && !turn.is_running();
        let mut waiting: Vec<&Turn> = self.turns.values().filter(waits).collect();
        waiting.sort_by_key(|turn| (self.waits_only_for_jobs(turn), turn.place()));
        let sessions: Vec<SessionId> = waiting.iter().map(|turn| turn.row.session.clone()).collect();
        for session in sessions {
            self.start_next(&session);
        }
    }
}
