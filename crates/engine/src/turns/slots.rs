//! Slots: of how many agents turns run at the same time. An agent has one exactly while a turn of its runs. One whose turns all
//! wait for jobs gives it to whoever could use it, and its turns wait for a slot like others when a job has ended.
//!
//! Who waits is not recorded apart: it follows from turns and agents, so that a restart finds the same order.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::agent::AgentState;
use lodge_core::event::AgentReady;
use lodge_core::limits::AGENT_TURNS_MAX;
use lodge_core::summary::Around;
use lodge_core::{AgentId, SessionId, TurnId};

use super::Turn;
use crate::agents::Agent;
use crate::{Engine, SandboxEffect, Settings};

impl Engine {
    /// The settings of the daemon changed. What runs goes on, also when that is more than should from now on.
    pub(crate) fn configured(&mut self, settings: Settings) {
        self.host.settings = settings;
        self.hand_out_slots();
        self.hand_out_jobs();
    }

    /// Whether a turn of this agent may start now.
    pub(crate) fn may_work(&self, agent: &Agent) -> bool {
        let has_slot = agent.running > 0 || self.working < self.host.settings.max_concurrent;
        has_slot && self.could_work(agent)
    }

    /// Whether a turn of this agent might start, if it had a slot.
    fn could_work(&self, agent: &Agent) -> bool {
        // One that is to become another first finishes what runs. A job may run for days: nobody waits for that.
        let stays = agent.row.next.is_none() || self.jobs.running_of(&agent.row.id) > 0;
        agent.row.state == AgentState::Ready && stays && agent.running < AGENT_TURNS_MAX
    }

    /// What stands around a turn that waits, as the store would tell it.
    pub(crate) fn around(&self, turn: &Turn) -> Option<Around> {
        let agent = self.agents.get(&turn.row.agent).filter(|_| !turn.is_running())?;
        Some(Around {
            agent_ready: agent.row.state == AgentState::Ready,
            updating: agent.row.next.is_some(),
            earlier: !self.is_first(turn),
            quarantine: self.quarantine_before(turn).cloned(),
        })
    }

    /// Whether something of an agent is in flight: a turn, or a job.
    pub(crate) fn is_at_work(&self, id: &AgentId) -> bool {
        self.jobs.running_of(id) > 0 || self.agents.get(id).is_some_and(|agent| agent.running > 0)
    }

    /// Says that an agent is ready if nothing of it is in flight any more.
    pub(crate) fn at_rest(&mut self, id: &AgentId) {
        let is_ready = self.agents.get(id).is_some_and(|agent| agent.row.state == AgentState::Ready);
        if is_ready && !self.is_at_work(id) {
            self.agent_event(id, |name| AgentReady { name });
        }
    }

    /// Counts a turn that runs. True: nothing else of its agent is in flight.
    pub(crate) fn turn_runs(&mut self, id: &AgentId) -> bool {
        let is_first = !self.is_at_work(id);
        let Some(agent) = self.agents.get_mut(id) else { return false };
        agent.running += 1;
        self.working += usize::from(agent.running == 1);
        is_first
    }

    /// A turn that ran does not any more. After the last one its agent becomes what it is to become, and whoever waits
    /// longest has its slot.
    pub(crate) fn turn_rests(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        agent.running -= 1;
        if agent.running > 0 {
            return;
        }
        self.working -= 1;
        self.update_due(id);
        // Told before anybody else works, so that whoever reads along never counts too many.
        if self.longest_waiting().as_ref() != Some(id) {
            self.at_rest(id);
        }
        self.hand_out_slots();
    }

    /// First come, first served, by agent: the one with the oldest turn that could start.
    pub(crate) fn hand_out_slots(&mut self) {
        while self.working < self.host.settings.max_concurrent {
            let Some(agent) = self.longest_waiting() else { return };
            let before = self.working;
            self.start_waiting(&agent);
            if self.working == before {
                return;
            }
        }
    }

    /// Whoever only waits for jobs comes last.
    fn longest_waiting(&self) -> Option<AgentId> {
        if self.working >= self.host.settings.max_concurrent {
            return None;
        }
        let oldest = self.idle().min_by_key(|turn| (self.is_asleep(turn), turn.place()));
        oldest.map(|turn| turn.row.agent.clone())
    }

    /// The turns that could go on if their agents, which have none, had slots.
    fn idle(&self) -> impl Iterator<Item = &Turn> {
        self.turns.values().filter(|turn| {
            let agent = self.agents.get(&turn.row.agent);
            !turn.is_running()
                && agent.is_some_and(|agent| agent.running == 0 && self.could_work(agent))
                && self.is_first(turn)
                && !self.is_quarantined(&turn.row.id)
        })
    }

    /// While every slot is taken and somebody could use one: takes it from an agent that only waits for jobs.
    pub(crate) fn yield_slots(&mut self) {
        let is_full = |engine: &Self| engine.working >= engine.host.settings.max_concurrent;
        // Nobody gives twice: who has a slot again has it for another turn of its own.
        let mut gave = BTreeSet::new();
        while is_full(self)
            && self.jobs.has_open()
            && self.idle().any(|turn| !self.is_asleep(turn))
            && let Some(agent) = self.sleeper(&gave)
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

    /// An agent with a slot, all of whose turns that run wait for jobs. One that is to become another finishes first.
    fn sleeper(&self, but: &BTreeSet<AgentId>) -> Option<AgentId> {
        let mut asleep: BTreeMap<&AgentId, usize> = BTreeMap::new();
        for turn in self.turns.values().filter(|turn| turn.is_running() && self.is_asleep(turn)) {
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

    /// Starts whatever of an agent can be started, the oldest first, and last of all what only waits for jobs.
    pub(crate) fn start_waiting(&mut self, id: &AgentId) {
        let waits = |turn: &&Turn| turn.row.agent == *id && !turn.is_running();
        let mut waiting: Vec<&Turn> = self.turns.values().filter(waits).collect();
        waiting.sort_by_key(|turn| (self.is_asleep(turn), turn.place()));
        let sessions: Vec<SessionId> = waiting.iter().map(|turn| turn.row.session.clone()).collect();
        for session in sessions {
            self.start_next(&session);
        }
    }
}
