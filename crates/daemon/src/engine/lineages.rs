//! Lineages: what becomes of work whose process died, was killed, or does not answer.
//!
//! A process is proven dead before its lineage is orphaned, so that a revival never meets the old one.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::limits::LIVED_WELL_MS;
use lodge_core::lineage::{EndReason, LineageEvent, LineageState, Policy};
use lodge_core::liveness::Liveness;
use lodge_core::record::{LineageRow, Write};
use lodge_core::retry::{self, Again};
use lodge_core::{AgentId, EventData, EventKind, LineageId, Timestamp};
use lodge_proto::ErrorBody;

use super::ends::BreakOff;
use super::jobs::Which;
use super::{Batch, Caller, Effect, Engine, Part, Refusal, Settlement, failure};
use crate::view;

impl Engine {
    /// The runtime ended, or the whole sandbox, and nobody asked for that: the lineage's policy decides.
    pub(super) fn agent_died(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        part: Part,
        detail: String,
        now: Timestamp,
    ) {
        let (daemon, backoff) = (self.host.settings.policy, self.host.settings.backoff);
        let Some(agent) = self.current(id, run) else { return };
        if agent.row.state.next(AgentEvent::Died).is_err() {
            return;
        }
        // By which signal is no news of one that was killed for its silence.
        let detail = match (agent.liveness, part) {
            (Liveness::Crashed, Part::Runtime) => "the runtime gave no sign of life and was ended".to_owned(),
            (Liveness::Crashed, Part::Sandbox)
            | (Liveness::Active | Liveness::Stale, Part::Runtime | Part::Sandbox) => detail,
        };
        let lived_well = agent.row.state == AgentState::Ready
            && agent.row.started_at.is_some_and(|at| now.ms() - at.ms() > LIVED_WELL_MS);
        if lived_well {
            agent.lineage.deaths = 0;
        }
        agent.lineage.deaths += 1;
        agent.lineage.detail = Some(detail.clone());
        if part == Part::Sandbox {
            agent.row.incarnation += 1;
        }
        let (policy, deaths) = (agent.row.spec.policy(daemon), agent.lineage.deaths);
        if part == Part::Sandbox {
            self.jobs.orphan(id);
        }
        self.move_lineage(batch, id, LineageEvent::Died, now);
        match policy {
            Policy::Revive => match retry::revival(deaths, backoff) {
                Again::After { delay_ms } => self.revive_after(batch, id, delay_ms, now),
                Again::GiveUp => {
                    self.move_lineage(batch, id, LineageEvent::Exhausted, now);
                    // Its work is not lost: turns and jobs wait, and a start goes on with them.
                    let detail = format!("{detail}; it died {deaths} times in a row");
                    self.agent_lost(batch, id, detail, BreakOff::Park, now);
                }
            },
            Policy::Reap => {
                self.move_lineage(batch, id, LineageEvent::Reaped, now);
                self.agent_lost(batch, id, detail, BreakOff::Interrupt, now);
            }
            Policy::Ask => {
                self.move_lineage(batch, id, LineageEvent::Asked, now);
                self.agent_lost(batch, id, detail, BreakOff::Park, now);
            }
        }
    }

    /// The runtime had no memory left. A new one would only run into the same, so its turns have failed and it waits for
    /// an operator.
    pub(super) fn agent_out_of_memory(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        detail: String,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::OutOfMemory) else { return };
        let mut failed = failure("agent.oom", &detail);
        failed.hint = Some("raise `LIMIT memory`, then `lodge start` the agent".to_owned());
        let how = BreakOff::Fail(failed);
        let why = format!("its agent ended: {detail}");
        self.set_state(batch, id, next, Some(detail), now);
        self.cancel_jobs(batch, id, Which::All, &why, now);
        self.break_off_turns(batch, id, &how, now);
        self.down(batch, id);
    }

    /// The runtime took its leave. With 0 it is stopped; with another code it failed, and a new one is tried unless it
    /// never got ready: that would only fail again.
    pub(super) fn agent_exited(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        code: i32,
        detail: String,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let first_try = agent.row.state == AgentState::Starting && agent.lineage.deaths == 0;
        if code == 0 || first_try {
            self.agent_failed(batch, id, run, AgentEvent::Exited { clean: code == 0 }, detail, now);
        } else {
            self.agent_died(batch, id, run, Part::Runtime, detail, now);
        }
    }

    /// Lets a new process take over, at once or after a pause. Turns wait in the ledger, and tools go on.
    fn revive_after(&mut self, batch: &mut Batch, id: &AgentId, delay_ms: u64, now: Timestamp) {
        let Some(agent) = self.agents.get(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Died) else { return };
        let run = agent.row.runs;
        self.set_state(batch, id, next, None, now);
        if delay_ms == 0 {
            self.revive(batch, id, now);
        } else {
            batch.act(Effect::ReviveLater { agent: id.clone(), run, delay_ms });
        }
    }

    /// Waits once more for a revival: that its pause was over may have been decided and not recorded.
    pub(super) fn pause_again(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let backoff = self.host.settings.backoff;
        let Some(agent) = self.agents.get(id) else { return };
        match retry::revival(agent.lineage.deaths, backoff) {
            Again::After { delay_ms } if delay_ms > 0 => {
                batch.act(Effect::ReviveLater { agent: id.clone(), run: agent.row.runs, delay_ms });
            }
            Again::After { .. } | Again::GiveUp => self.revive(batch, id, now),
        }
    }

    /// The pause is over, unless somebody decided otherwise meanwhile.
    pub(super) fn revival_due(&mut self, batch: &mut Batch, id: &AgentId, run: u32, now: Timestamp) {
        if self.current(id, run).is_some_and(|agent| agent.lineage.state == LineageState::Orphaned) {
            self.revive(batch, id, now);
        }
    }

    pub(super) fn revive(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        agent.lineage.revivals += 1;
        self.move_lineage(batch, id, LineageEvent::Revived, now);
        self.fetch(batch, id, now);
    }

    /// Nobody takes over: the agent has failed until an operator acts, and its sandbox is ended.
    fn agent_lost(&mut self, batch: &mut Batch, id: &AgentId, detail: String, how: BreakOff, now: Timestamp) {
        let Some(agent) = self.agents.get(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::Exited { clean: false }) else { return };
        let why = format!("its agent died: {detail}");
        self.set_state(batch, id, next, Some(detail), now);
        match how {
            BreakOff::Park => {}
            BreakOff::Interrupt | BreakOff::Fail(_) => self.cancel_pending(batch, id, &why, now),
        }
        self.cancel_jobs(batch, id, Which::Alive, &why, now);
        self.break_off_turns(batch, id, &how, now);
        self.down(batch, id);
    }

    /// A process that works gave no sign of life for a while, or gives one again.
    pub(super) fn agent_silent(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        level: Liveness,
        part: Part,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let sandbox = agent.row.sandbox.clone();
        self.set_liveness(batch, id, level, now);
        // Its death is observed like any other, and decides what comes next.
        match (level, part) {
            (Liveness::Active | Liveness::Stale, Part::Runtime | Part::Sandbox) => {}
            (Liveness::Crashed, Part::Runtime) => batch.act(Effect::KillRuntime { agent: id.clone(), run }),
            (Liveness::Crashed, Part::Sandbox) => {
                batch.act(Effect::KillSandbox { agent: id.clone(), sandbox, run });
            }
        }
    }

    pub(super) fn set_liveness(&mut self, batch: &mut Batch, id: &AgentId, level: Liveness, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        if agent.liveness == level {
            return;
        }
        agent.liveness = level;
        batch.urgent = true;
        let data = EventData { status: Some(level.word().to_owned()), ..EventData::default() };
        self.agent_event(batch, id, EventKind::AgentLiveness, data, now);
    }

    /// An operator decides about a lineage that waits for one.
    pub(super) fn settle_lineage(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        settlement: Settlement,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let Settlement { agent: id, lineage, policy, last_turn } = settlement;
        let found = self.agents.get_mut(&id).filter(|agent| agent.lineage.id == lineage);
        let Some(agent) = found else { return Err(settled(&lineage, "over")) };
        if agent.lineage.state != LineageState::AskPending {
            return Err(settled(&lineage, agent.lineage.state.word()));
        }
        match policy {
            Policy::Revive => {
                let Ok(next) = agent.row.state.next(AgentEvent::StartAsked) else {
                    return Err(settled(&lineage, agent.row.state.word()));
                };
                agent.lineage.deaths = 0;
                agent.row.incarnation += 1;
                self.set_state(batch, &id, next, None, now);
                self.revive(batch, &id, now);
            }
            Policy::Reap => {
                self.move_lineage(batch, &id, LineageEvent::Reaped, now);
                self.cancel_pending(batch, &id, "the work of its agent was dropped", now);
                self.break_off_turns(batch, &id, &BreakOff::Interrupt, now);
            }
            Policy::Ask => return Err(settled(&lineage, "asked about already")),
        }
        if let Some(agent) = self.agents.get(&id) {
            let policy = agent.row.spec.policy(self.host.settings.policy);
            let answer = view::json(&view::lineage(&agent.lineage, &agent.row.name, policy, last_turn));
            self.reply(batch, caller, answer, now);
        }
        Ok(())
    }

    /// A start goes on with the lineage there is, or begins another when that one is over.
    pub(super) fn open_lineage(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Engine { agents, ids, .. } = self;
        let Some(agent) = agents.get_mut(id) else { return };
        if agent.lineage.state.is_over() {
            agent.row.lineage = LineageId::new(ids, now);
            agent.lineage = new_lineage(agent.row.lineage.clone(), id.clone(), now);
        } else if agent.lineage.deaths == 0 {
            return;
        }
        agent.lineage.deaths = 0;
        batch.write(Write::Lineage(agent.lineage.clone()));
    }

    /// A turn was finished: whatever killed earlier processes does not any more. A lineage that is over stays as it is:
    /// an answer that was asked for before can still finish a turn.
    pub(super) fn lineage_progressed(&mut self, batch: &mut Batch, id: &AgentId) {
        let counts = |lineage: &LineageRow| lineage.deaths > 0 && !lineage.state.is_over();
        let Some(agent) = self.agents.get_mut(id).filter(|agent| counts(&agent.lineage)) else { return };
        agent.lineage.deaths = 0;
        batch.write(Write::Lineage(agent.lineage.clone()));
    }

    /// Moves a lineage, records it and says so. What the table refuses changes nothing.
    pub(super) fn move_lineage(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        event: LineageEvent,
        now: Timestamp,
    ) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let was = agent.lineage.state;
        let Ok(next) = was.next(event) else { return };
        agent.lineage.state = next;
        agent.lineage.ended_at = next.is_over().then_some(now);
        if was == next {
            return;
        }
        let (attempt, detail) = (agent.lineage.deaths, agent.lineage.detail.clone());
        batch.write(Write::Lineage(agent.lineage.clone()));
        let data = EventData { lineage: Some(agent.lineage.id.as_str().to_owned()), ..EventData::default() };
        let (kind, data) = match next {
            LineageState::Active if event == LineageEvent::Stopped => return,
            LineageState::Active => (EventKind::LineageRevived, EventData { attempt: Some(attempt), ..data }),
            LineageState::Orphaned => (EventKind::LineageOrphaned, EventData { detail, ..data }),
            LineageState::AskPending => (EventKind::LineageAsk, EventData { detail, ..data }),
            LineageState::Reaped => (EventKind::LineageReaped, EventData { detail, ..data }),
            LineageState::Ended(reason) => {
                let detail = detail.filter(|_| reason == EndReason::Exhausted);
                (
                    EventKind::LineageEnded,
                    EventData { reason: Some(reason.word().to_owned()), detail, ..data },
                )
            }
        };
        self.agent_event(batch, id, kind, data, now);
    }
}

pub(super) fn new_lineage(id: LineageId, agent: AgentId, now: Timestamp) -> LineageRow {
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

/// The refusal of whatever would pass over a question that an operator has to answer.
pub(super) fn ask_pending(lineage: &LineageRow, name: &str) -> Refusal {
    let id = &lineage.id;
    Box::new(
        ErrorBody::new("lineage.ask_pending", format!("the work of agent `{name}` waits for your decision"))
            .because(lineage.detail.clone().unwrap_or_default())
            .hint(format!("`lodge lineage resolve {id} --revive` goes on with it, `--reap` drops it")),
    )
}

fn settled(lineage: &LineageId, word: &str) -> Refusal {
    Box::new(
        ErrorBody::new("lineage.settled", format!("lineage {lineage} is {word}: there is nothing to settle"))
            .hint("`lodge lineage ls` shows which lineages wait for a decision"),
    )
}
