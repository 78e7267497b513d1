//! Lineages: decides about work whose process died, was killed, or does not answer.
//!
//! A process is proven dead before its lineage is orphaned, so that a revival never meets the old one.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::event::{
    AgentLiveness, EventBody, LineageAsk, LineageEnded, LineageOrphaned, LineageReaped, LineageRevived,
};
use lodge_core::limits::LIVED_WELL_MS;
use lodge_core::lineage::{EndReason, LineageEvent, LineageState, Policy};
use lodge_core::liveness::Liveness;
use lodge_core::record::{AgentWrite, LineageRow};
use lodge_core::retry::{self, RetryDecision};
use lodge_core::{AgentId, LineageId, Timestamp};

use super::ends::OpenTurnsFate;
use super::refusal::{AgentFault, LineageRefusal};
use crate::jobs::CancelScope;
use crate::{
    AgentAnswer, AgentComponent, AgentEffect, Caller, Effect, Engine, LineageResolution, LineageSnapshot,
    Refusal, SandboxEffect,
};

impl Engine {
    /// The runtime or the whole sandbox ended unexpectedly. The lineage's policy decides.
    pub(crate) fn agent_died(&mut self, id: &AgentId, run: u32, part: AgentComponent, detail: String) {
        let (daemon, backoff, now) = (self.host.settings.policy, self.host.settings.backoff, self.step.now);
        let Some(agent) = self.current(id, run) else { return };
        if agent.row.state.next(AgentEvent::Died).is_err() {
            return;
        }
        // The signal of a process that was killed for its silence is not interesting.
        let detail = match (agent.liveness, part) {
            (Liveness::Crashed, AgentComponent::Runtime) => {
                "the runtime gave no sign of life and was ended".to_owned()
            }
            (Liveness::Crashed, AgentComponent::Sandbox)
            | (Liveness::Active | Liveness::Stale, AgentComponent::Runtime | AgentComponent::Sandbox) => {
                detail
            }
        };
        let lived_well = agent.row.state == AgentState::Ready
            && agent.row.started_at.is_some_and(|at| now.ms() - at.ms() > LIVED_WELL_MS);
        if lived_well {
            agent.lineage.deaths = 0;
        }
        agent.lineage.deaths += 1;
        agent.lineage.detail = Some(detail.clone());
        if part == AgentComponent::Sandbox {
            agent.row.incarnation += 1;
        }
        let (policy, deaths) = (agent.row.spec.policy(daemon), agent.lineage.deaths);
        if part == AgentComponent::Sandbox {
            self.jobs.orphan(id);
        }
        self.move_lineage(id, LineageEvent::Died);
        match policy {
            Policy::Revive => match retry::revival(deaths, backoff) {
                RetryDecision::After { delay_ms } => self.revive_after(id, delay_ms),
                RetryDecision::GiveUp => {
                    self.move_lineage(id, LineageEvent::Exhausted);
                    // The work is not lost: turns and jobs wait, and a start continues them.
                    let detail = format!("{detail}; it died {deaths} times in a row");
                    self.agent_lost(id, detail, OpenTurnsFate::Park);
                }
            },
            Policy::Reap => {
                self.move_lineage(id, LineageEvent::Reaped);
                self.agent_lost(id, detail, OpenTurnsFate::Interrupt);
            }
            Policy::Ask => {
                self.move_lineage(id, LineageEvent::Asked);
                self.agent_lost(id, detail, OpenTurnsFate::Park);
            }
        }
    }

    /// The runtime ran out of memory. A new one would fail in the same way, so its turns fail and the agent waits for
    /// an operator.
    pub(crate) fn agent_out_of_memory(&mut self, id: &AgentId, run: u32, detail: String) {
        let Some(agent) = self.current(id, run) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::OutOfMemory) else { return };
        let how = OpenTurnsFate::Fail(AgentFault::OutOfMemory { detail: detail.clone() }.record());
        let why = format!("its agent ended: {detail}");
        self.set_state(id, next, Some(detail));
        self.cancel_jobs(id, CancelScope::All, &why);
        self.settle_open_turns(id, &how);
        self.down(id);
    }

    /// The runtime exited. With code 0 the agent is stopped. With another code it failed, and a new runtime starts,
    /// unless the runtime never was ready: that would fail again.
    pub(crate) fn agent_exited(&mut self, id: &AgentId, run: u32, code: i32, detail: String) {
        let Some(agent) = self.current(id, run) else { return };
        let first_try = agent.row.state == AgentState::Starting && agent.lineage.deaths == 0;
        if code == 0 || first_try {
            self.agent_failed(id, run, AgentEvent::Exited { clean: code == 0 }, detail);
        } else {
            self.agent_died(id, run, AgentComponent::Runtime, detail);
        }
    }

    /// Starts a new process, at once or after a pause. Turns wait in the ledger, and tools keep running.
    fn revive_after(&mut self, id: &AgentId, delay_ms: u64) {
        let Some(agent) = self.agents.get(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Died) else { return };
        let run = agent.row.runs;
        self.set_state(id, next, None);
        if delay_ms == 0 {
            self.revive(id);
        } else {
            self.step.act(Effect::Agent(AgentEffect::RevivalTimer { agent: id.clone(), run, delay_ms }));
        }
    }

    /// Waits for the revival again: the end of its pause may have been decided and not recorded.
    pub(crate) fn pause_again(&mut self, id: &AgentId) {
        let backoff = self.host.settings.backoff;
        let Some(agent) = self.agents.get(id) else { return };
        match retry::revival(agent.lineage.deaths, backoff) {
            RetryDecision::After { delay_ms } if delay_ms > 0 => {
                self.step.act(Effect::Agent(AgentEffect::RevivalTimer {
                    agent: id.clone(),
                    run: agent.row.runs,
                    delay_ms,
                }));
            }
            RetryDecision::After { .. } | RetryDecision::GiveUp => self.revive(id),
        }
    }

    /// The pause is over. It has no effect if another decision replaced it.
    pub(crate) fn revival_due(&mut self, id: &AgentId, run: u32) {
        if self.current(id, run).is_some_and(|agent| agent.lineage.state == LineageState::Orphaned) {
            self.revive(id);
        }
    }

    pub(crate) fn revive(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        agent.lineage.revivals += 1;
        self.move_lineage(id, LineageEvent::Revived);
        self.fetch(id);
    }

    /// The lineage is not revived. The agent has failed until an operator acts, and its sandbox is ended.
    fn agent_lost(&mut self, id: &AgentId, detail: String, how: OpenTurnsFate) {
        let Some(agent) = self.agents.get(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Exited { clean: false }) else { return };
        let why = format!("its agent died: {detail}");
        self.set_state(id, next, Some(detail));
        match how {
            OpenTurnsFate::Park => {}
            OpenTurnsFate::Interrupt | OpenTurnsFate::Fail(_) => self.cancel_pending(id, &why),
        }
        self.cancel_jobs(id, CancelScope::Alive, &why);
        self.settle_open_turns(id, &how);
        self.down(id);
    }

    /// A working process was silent for a while, or answers again.
    pub(crate) fn agent_silent(&mut self, id: &AgentId, run: u32, level: Liveness, part: AgentComponent) {
        if self.current(id, run).is_none() {
            return;
        }
        self.set_liveness(id, level);
        // Its death is observed like any other, and decides what comes next.
        match (level, part) {
            (Liveness::Active | Liveness::Stale, AgentComponent::Runtime | AgentComponent::Sandbox) => {}
            (Liveness::Crashed, AgentComponent::Runtime) => {
                self.in_sandbox(id, SandboxEffect::KillRuntime { run })
            }
            (Liveness::Crashed, AgentComponent::Sandbox) => self.in_sandbox(id, SandboxEffect::Kill { run }),
        }
    }

    pub(crate) fn set_liveness(&mut self, id: &AgentId, level: Liveness) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        if agent.liveness == level {
            return;
        }
        agent.liveness = level;
        self.step.mark_urgent();
        self.agent_event(id, |name| AgentLiveness { name, status: level.word().to_owned() });
    }

    /// Resolves a lineage that waits for an operator.
    pub(crate) fn settle_lineage(
        &mut self,
        caller: Caller,
        settlement: LineageResolution,
    ) -> Result<(), Refusal> {
        let LineageResolution { agent: id, lineage, policy, last_turn } = settlement;
        let found = self.agents.get_mut(&id).filter(|agent| agent.lineage.id == lineage);
        let Some(agent) = found else { return Err(LineageRefusal::settled(&lineage, "over").into()) };
        if agent.lineage.state != LineageState::AskPending {
            return Err(LineageRefusal::settled(&lineage, agent.lineage.state.word()).into());
        }
        match policy {
            Policy::Revive => {
                let Ok(next) = agent.row.state.next(AgentEvent::StartAsked) else {
                    return Err(LineageRefusal::settled(&lineage, agent.row.state.word()).into());
                };
                agent.lineage.deaths = 0;
                agent.row.incarnation += 1;
                self.set_state(&id, next, None);
                self.revive(&id);
            }
            Policy::Reap => {
                self.move_lineage(&id, LineageEvent::Reaped);
                self.cancel_pending(&id, "the work of its agent was dropped");
                self.settle_open_turns(&id, &OpenTurnsFate::Interrupt);
            }
            Policy::Ask => return Err(LineageRefusal::settled(&lineage, "asked about already").into()),
        }
        if let Some(agent) = self.agents.get(&id) {
            let policy = agent.row.spec.policy(self.host.settings.policy);
            let (row, agent_name) = (agent.lineage.clone(), agent.row.name.clone());
            let answer = LineageSnapshot { row, agent_name, policy, last_turn };
            self.reply(caller, AgentAnswer::Lineage(Box::new(answer)));
        }
        Ok(())
    }

    /// A start continues the current lineage, or opens a new one if the current lineage has ended.
    pub(crate) fn open_lineage(&mut self, id: &AgentId) {
        let Engine { agents, ids, .. } = self;
        let Some(agent) = agents.get_mut(id) else { return };
        if agent.lineage.state.is_over() {
            agent.row.lineage = LineageId::new(ids, self.step.now);
            agent.lineage = new_lineage(agent.row.lineage.clone(), id.clone(), self.step.now);
        } else if agent.lineage.deaths == 0 {
            return;
        }
        agent.lineage.deaths = 0;
        self.step.write(AgentWrite::Lineage(agent.lineage.clone()));
    }

    /// A turn finished, so the deaths before it no longer count. An ended lineage is unchanged: a model call from
    /// before its end can still finish a turn.
    pub(crate) fn lineage_progressed(&mut self, id: &AgentId) {
        let counts = |lineage: &LineageRow| lineage.deaths > 0 && !lineage.state.is_over();
        let Some(agent) = self.agents.get_mut(id).filter(|agent| counts(&agent.lineage)) else { return };
        agent.lineage.deaths = 0;
        self.step.write(AgentWrite::Lineage(agent.lineage.clone()));
    }

    /// Moves a lineage, records the change and appends its event. A transition that the table refuses changes nothing.
    pub(crate) fn move_lineage(&mut self, id: &AgentId, event: LineageEvent) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let was = agent.lineage.state;
        let Ok(next) = was.next(event) else { return };
        agent.lineage.state = next;
        agent.lineage.ended_at = next.is_over().then_some(self.step.now);
        if was == next {
            return;
        }
        let (attempt, detail) = (agent.lineage.deaths, agent.lineage.detail.clone());
        self.step.write(AgentWrite::Lineage(agent.lineage.clone()));
        let lineage = agent.lineage.id.to_string();
        if next == LineageState::Active && event == LineageEvent::Stopped {
            return;
        }
        self.agent_event(id, |name| match next {
            LineageState::Active => EventBody::from(LineageRevived { name, lineage, attempt }),
            LineageState::Orphaned => LineageOrphaned { name, lineage, detail }.into(),
            LineageState::AskPending => LineageAsk { name, lineage, detail }.into(),
            LineageState::Reaped => LineageReaped { name, lineage, detail }.into(),
            LineageState::Ended(reason) => {
                let detail = detail.filter(|_| reason == EndReason::Exhausted);
                LineageEnded { name, lineage, reason: reason.word().to_owned(), detail }.into()
            }
        });
    }
}

pub(crate) fn new_lineage(id: LineageId, agent: AgentId, now: Timestamp) -> LineageRow {
    LineageRow {
        id,
        agent,
        state: LineageState::Active,
        revivals: 0,
        deaths: 0,
        detail: None,
        created_at: now,
        ended_at: None,
    }
}
