//! How an agent comes up: started, adopted, ready, or failed to.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::lineage::LineageState;
use lodge_core::liveness::Liveness;
use lodge_core::{AgentId, EventData, EventKind, Timestamp, TurnId};

use super::ends::BreakOff;
use super::jobs::Which;
use super::{Again, Batch, Effect, Engine, Lack, Part, Up};

/// What becomes of pauses before a start when memory is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pauses {
    /// A daemon that starts makes its own beginning.
    Skip,
    /// The same daemon goes on: nothing is tried more often than it should be.
    Keep,
}

impl Engine {
    /// After a start of the daemon: whatever should live is adopted or brought up, the rest is brought down.
    pub(super) fn adopt_all(&mut self, batch: &mut Batch, pauses: Pauses, now: Timestamp) {
        batch.urgent = true;
        let ids: Vec<AgentId> = self.agents.keys().cloned().collect();
        for id in ids {
            let Some(agent) = self.agents.get(&id) else { continue };
            match agent.row.state {
                AgentState::Pulling if agent.lineage.state == LineageState::Orphaned => match pauses {
                    Pauses::Skip => self.revive(batch, &id, now),
                    Pauses::Keep => self.pause_again(batch, &id, now),
                },
                AgentState::Pulling => self.fetch(batch, &id, now),
                AgentState::Starting | AgentState::Ready => {
                    batch.act(Effect::Up { row: Box::new(agent.row.clone()), how: Up::Adopt })
                }
                AgentState::Removing => {
                    self.down(batch, &id);
                    self.clear_due(batch, &id);
                }
                AgentState::Failed(_) => self.take_up_retry(batch, &id, pauses, now),
                // Nothing of them should live; the host reports what does.
                AgentState::Stopped | AgentState::Removed => {}
            }
        }
        // There may be more slots than there were, and whoever came first is still the first.
        self.hand_out_slots(batch, now);
        self.adopt_jobs(batch, now);
    }

    /// Everything that it needs is in the store.
    pub(super) fn image_ready(&mut self, batch: &mut Batch, id: &AgentId, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::ImageReady) else { return };
        agent.row.runs += 1;
        self.set_state(batch, id, next, None, now);
        if let Some(agent) = self.agents.get(id) {
            batch.act(Effect::Up { row: Box::new(agent.row.clone()), how: Up::Start });
        }
    }

    pub(super) fn runtime_ready(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        adopted: bool,
        running: &[TurnId],
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let (was, incarnation) = (agent.row.state, agent.row.incarnation);
        let Ok(next) = was.next(AgentEvent::ProbeAnswered) else { return };
        if was != next {
            agent.row.started_at = Some(now);
            self.set_state(batch, id, next, None, now);
            if self.is_at_work(id) {
                // Turns that an earlier process had go on, and jobs did.
                self.agent_event(batch, id, EventKind::AgentWorking, EventData::default(), now);
            }
        }
        if adopted {
            let data = EventData { incarnation: Some(incarnation), ..EventData::default() };
            self.agent_event(batch, id, EventKind::LineageAdopted, data, now);
        }
        self.set_liveness(batch, id, Liveness::Active, now);
        batch.urgent = true;
        self.resume_jobs(batch, id);
        self.resume_turns(batch, id, running, now);
        self.hand_out_jobs(batch, now);
    }

    pub(super) fn agent_failed(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        event: AgentEvent,
        detail: String,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let Ok(next) = agent.row.state.next(event) else { return };
        self.fail(batch, id, next, detail, Again::Later, now);
    }

    /// Nothing of it goes on, and it is tried again as its failure and `again` have it.
    pub(super) fn fail(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        next: AgentState,
        detail: String,
        again: Again,
        now: Timestamp,
    ) {
        let why = format!("its agent ended: {detail}");
        self.set_state_and_retry(batch, id, next, Some(detail), again, now);
        self.cancel_jobs(batch, id, Which::Alive, &why, now);
        self.break_off_turns(batch, id, &BreakOff::Park, now);
        self.down(batch, id);
    }

    /// Something that an agent needs before anything of it can be started is not there.
    pub(super) fn agent_lacks(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        lack: Lack,
        detail: String,
        now: Timestamp,
    ) {
        let event = match lack {
            Lack::Image => AgentEvent::ImageFailed,
            Lack::Model => AgentEvent::ModelUnknown,
            Lack::Config => AgentEvent::ConfigUnset,
        };
        self.agent_failed(batch, id, run, event, detail, now);
    }

    /// One that was to start has failed to. If it had work, or died before, that is one more death: whatever was in the
    /// way may be gone at the next try. One that was ready and cannot be reached is left alone, for an operator.
    pub(super) fn agent_not_started(
        &mut self,
        batch: &mut Batch,
        id: &AgentId,
        run: u32,
        detail: String,
        now: Timestamp,
    ) {
        let Some(agent) = self.current(id, run) else { return };
        let has_work = agent.running > 0 || agent.lineage.deaths > 0;
        match agent.row.state {
            AgentState::Starting if has_work => {
                self.agent_died(batch, id, run, Part::Runtime, detail, now);
            }
            AgentState::Ready => {
                if let Ok(next) = AgentState::Ready.next(AgentEvent::SpawnFailed) {
                    self.set_state(batch, id, next, Some(detail), now);
                    self.break_off_turns(batch, id, &BreakOff::Park, now);
                }
            }
            AgentState::Starting
            | AgentState::Pulling
            | AgentState::Stopped
            | AgentState::Failed(_)
            | AgentState::Removing
            | AgentState::Removed => {
                self.agent_failed(batch, id, run, AgentEvent::SpawnFailed, detail, now);
            }
        }
    }
}
