//! How an agent comes up: started, adopted, ready, or failed to.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::event::{AgentWorking, LineageAdopted};
use lodge_core::lineage::LineageState;
use lodge_core::liveness::Liveness;
use lodge_core::{AgentId, TurnId};

use super::ends::BreakOff;
use crate::jobs::Which;
use crate::{Again, Engine, Lack, Part, Up};

/// What becomes of pauses before a start when memory is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pauses {
    /// A daemon that starts makes its own beginning.
    Skip,
    /// The same daemon goes on: nothing is tried more often than it should be.
    Keep,
}

impl Engine {
    /// After a start of the daemon: whatever should live is adopted or brought up, the rest is brought down.
    pub(crate) fn adopt_all(&mut self, pauses: Pauses) {
        self.step.hurry();
        let ids: Vec<AgentId> = self.agents.keys().cloned().collect();
        for id in ids {
            let Some(agent) = self.agents.get(&id) else { continue };
            match agent.row.state {
                AgentState::Pulling if agent.lineage.state == LineageState::Orphaned => match pauses {
                    Pauses::Skip => self.revive(&id),
                    Pauses::Keep => self.pause_again(&id),
                },
                AgentState::Pulling => self.fetch(&id),
                AgentState::Starting | AgentState::Ready => {
                    self.up(&id, Up::Adopt);
                }
                AgentState::Removing => {
                    self.down(&id);
                    self.clear_due(&id);
                }
                AgentState::Failed(_) => self.take_up_retry(&id, pauses),
                // Nothing of them should live; the host reports what does.
                AgentState::Stopped | AgentState::Removed => {}
            }
        }
        // There may be more slots than there were, and whoever came first is still the first.
        self.hand_out_slots();
        self.adopt_jobs();
    }

    /// Everything that it needs is in the store.
    pub(crate) fn image_ready(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::ImageReady) else { return };
        agent.row.runs += 1;
        self.set_state(id, next, None);
        self.up(id, Up::Start);
    }

    pub(crate) fn runtime_ready(&mut self, id: &AgentId, run: u32, adopted: bool, running: &[TurnId]) {
        let now = self.step.now;
        let Some(agent) = self.current(id, run) else { return };
        let (was, incarnation) = (agent.row.state, agent.row.incarnation);
        let Ok(next) = was.next(AgentEvent::ProbeAnswered) else { return };
        if was != next {
            agent.row.started_at = Some(now);
            self.set_state(id, next, None);
            if self.is_at_work(id) {
                // Turns that an earlier process had go on, and jobs did.
                self.agent_event(id, |name| AgentWorking { name });
            }
        }
        if adopted {
            self.agent_event(id, |name| LineageAdopted { name, incarnation });
        }
        self.set_liveness(id, Liveness::Active);
        self.step.hurry();
        self.resume_jobs(id);
        self.resume_turns(id, running);
        self.hand_out_jobs();
    }

    pub(crate) fn agent_failed(&mut self, id: &AgentId, run: u32, event: AgentEvent, detail: String) {
        let Some(agent) = self.current(id, run) else { return };
        let Ok(next) = agent.row.state.next(event) else { return };
        self.fail(id, next, detail, Again::Later);
    }

    /// Nothing of it goes on, and it is tried again as its failure and `again` have it.
    pub(crate) fn fail(&mut self, id: &AgentId, next: AgentState, detail: String, again: Again) {
        let why = format!("its agent ended: {detail}");
        self.set_state_and_retry(id, next, Some(detail), again);
        self.cancel_jobs(id, Which::Alive, &why);
        self.break_off_turns(id, &BreakOff::Park);
        self.down(id);
    }

    /// Something that an agent needs before anything of it can be started is not there.
    pub(crate) fn agent_lacks(&mut self, id: &AgentId, run: u32, lack: Lack, detail: String) {
        let event = match lack {
            Lack::Image => AgentEvent::ImageFailed,
            Lack::Model => AgentEvent::ModelUnknown,
            Lack::Config => AgentEvent::ConfigUnset,
        };
        self.agent_failed(id, run, event, detail);
    }

    /// One that was to start has failed to. If it had work, or died before, that is one more death: whatever was in the
    /// way may be gone at the next try. One that was ready and cannot be reached is left alone, for an operator.
    pub(crate) fn agent_not_started(&mut self, id: &AgentId, run: u32, detail: String) {
        let Some(agent) = self.current(id, run) else { return };
        let has_work = agent.running > 0 || agent.lineage.deaths > 0;
        match agent.row.state {
            AgentState::Starting if has_work => {
                self.agent_died(id, run, Part::Runtime, detail);
            }
            AgentState::Ready => {
                if let Ok(next) = AgentState::Ready.next(AgentEvent::SpawnFailed) {
                    self.set_state(id, next, Some(detail));
                    self.break_off_turns(id, &BreakOff::Park);
                }
            }
            AgentState::Starting
            | AgentState::Pulling
            | AgentState::Stopped
            | AgentState::Failed(_)
            | AgentState::Removing
            | AgentState::Removed => {
                self.agent_failed(id, run, AgentEvent::SpawnFailed, detail);
            }
        }
    }
}
