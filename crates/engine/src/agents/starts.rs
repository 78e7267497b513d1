//! The start of an agent: started, adopted, ready, or failed.

use lodge_core::agent::{AgentEvent, AgentState};
use lodge_core::event::{AgentWorking, LineageAdopted};
use lodge_core::lineage::LineageState;
use lodge_core::liveness::Liveness;
use lodge_core::{AgentId, TurnId};

use super::ends::OpenTurnsFate;
use crate::jobs::CancelScope;
use crate::{AgentComponent, AutoRetry, Engine, StartMode, StartRequirement};

/// Whether pauses before a start survive a rebuild of the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RetryPauses {
    /// A daemon that starts retries at once.
    Skip,
    /// The same daemon continues. Retries keep their schedule.
    Keep,
}

impl Engine {
    /// After the daemon starts: adopts or starts every sandbox that should run, and ends the others.
    pub(crate) fn adopt_all(&mut self, pauses: RetryPauses) {
        self.step.mark_urgent();
        let ids: Vec<AgentId> = self.agents.keys().cloned().collect();
        for id in ids {
            let Some(agent) = self.agents.get(&id) else { continue };
            match agent.row.state {
                AgentState::Pulling if agent.lineage.state == LineageState::Orphaned => match pauses {
                    RetryPauses::Skip => self.revive(&id),
                    RetryPauses::Keep => self.pause_again(&id),
                },
                AgentState::Pulling => self.fetch(&id),
                AgentState::Starting | AgentState::Ready => {
                    self.up(&id, StartMode::Adopt);
                }
                AgentState::Removing => {
                    self.down(&id);
                    self.clear_due(&id);
                }
                AgentState::Failed(_) => self.resume_retry(&id, pauses),
                // These agents should have no processes; the host reports those that live.
                AgentState::Stopped | AgentState::Removed => {}
            }
        }
        // The number of slots may have grown. Agents keep their order.
        self.assign_slots();
        self.adopt_jobs();
        self.adopt_standalones();
    }

    /// Everything that it needs is in the store.
    pub(crate) fn image_ready(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::ImageReady) else { return };
        agent.row.runs += 1;
        self.set_state(id, next, None);
        self.up(id, StartMode::Start);
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
                // Turns of an earlier process continue; jobs never stopped.
                self.agent_event(id, |name| AgentWorking { name });
            }
        }
        if adopted {
            self.agent_event(id, |name| LineageAdopted { name, incarnation });
        }
        self.set_liveness(id, Liveness::Active);
        self.step.mark_urgent();
        self.resume_jobs(id);
        self.resume_turns(id, running);
        self.start_pending_jobs();
    }

    pub(crate) fn agent_failed(&mut self, id: &AgentId, run: u32, event: AgentEvent, detail: String) {
        let Some(agent) = self.current(id, run) else { return };
        let Ok(next) = agent.row.state.next(event) else { return };
        self.fail(id, next, detail, AutoRetry::Later);
    }

    /// Ends the agent's work, and schedules a retry according to the failure and `again`.
    pub(crate) fn fail(&mut self, id: &AgentId, next: AgentState, detail: String, again: AutoRetry) {
        let why = format!("its agent ended: {detail}");
        self.set_state_and_retry(id, next, Some(detail), again);
        self.cancel_jobs(id, CancelScope::Alive, &why);
        self.settle_open_turns(id, &OpenTurnsFate::Park);
        self.down(id);
    }

    /// A requirement for the start of an agent is missing.
    pub(crate) fn agent_lacks(&mut self, id: &AgentId, run: u32, lack: StartRequirement, detail: String) {
        let event = match lack {
            StartRequirement::Image => AgentEvent::ImageFailed,
            StartRequirement::Model => AgentEvent::ModelUnknown,
            StartRequirement::Config => AgentEvent::ConfigUnset,
        };
        self.agent_failed(id, run, event, detail);
    }

    /// A start failed. If the agent had work or died before, this counts as one more death, because the next attempt
    /// may succeed. An agent that was ready and cannot be reached is left to an operator.
    pub(crate) fn agent_not_started(&mut self, id: &AgentId, run: u32, detail: String) {
        let Some(agent) = self.current(id, run) else { return };
        let has_work = agent.running > 0 || agent.lineage.deaths > 0;
        match agent.row.state {
            AgentState::Starting if has_work => {
                self.agent_died(id, run, AgentComponent::Runtime, detail);
            }
            AgentState::Ready => {
                if let Ok(next) = AgentState::Ready.next(AgentEvent::SpawnFailed) {
                    self.set_state(id, next, Some(detail));
                    self.settle_open_turns(id, &OpenTurnsFate::Park);
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
