//! Retries of failed starts: after a temporary failure, with exponential backoff, until an operator stops the agent.

use lodge_core::agent::{AgentEvent, AgentState, FailReason};
use lodge_core::record::{AgentRow, StartRetry};
use lodge_core::retry::{self, Backoff};
use lodge_core::{AgentId, Timestamp};

use super::RetryPauses;
use crate::{AgentEffect, Effect, Engine};

impl Engine {
    /// The pause is over. It has no effect if another decision replaced it.
    pub(crate) fn retry_due(&mut self, id: &AgentId, run: u32) {
        if self.current(id, run).is_some_and(|agent| agent.row.retry.at.is_some()) {
            self.start_again(id);
        }
    }

    /// The providers changed. Agents and turns that wait for a provider retry now.
    pub(crate) fn providers_changed(&mut self) {
        self.providers_due();
        let waits =
            |row: &AgentRow| row.state == AgentState::Failed(FailReason::Model) && row.retry.at.is_some();
        let waiting: Vec<AgentId> = self
            .agents
            .values()
            .filter(|agent| waits(&agent.row))
            .map(|agent| agent.row.id.clone())
            .collect();
        for id in waiting {
            self.start_again(&id);
        }
    }

    /// Starts an agent whose failure may be gone. Its count of failures continues.
    pub(crate) fn start_again(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::RetryDue) else { return };
        agent.row.incarnation += 1;
        self.set_state(id, next, None);
        self.fetch(id);
    }

    /// After memory was rebuilt: a new daemon retries at once, and the same daemon waits for the rest of the pause.
    pub(crate) fn resume_retry(&mut self, id: &AgentId, pauses: RetryPauses) {
        let cap_ms = u64::try_from(self.host.settings.backoff.cap.as_millis()).unwrap_or(u64::MAX);
        let Some(row) = self.agents.get(id).map(|agent| &agent.row) else { return };
        let Some(at) = row.retry.at else { return };
        match pauses {
            RetryPauses::Skip => self.start_again(id),
            RetryPauses::Keep => {
                // The clock may have been set meanwhile.
                let delay_ms = u64::try_from(at.ms() - self.step.now.ms()).unwrap_or(0).min(cap_ms);
                self.step.act(Effect::Agent(AgentEffect::RetryTimer {
                    agent: id.clone(),
                    run: row.runs,
                    delay_ms,
                }));
            }
        }
    }
}

/// The retry state of a row that moves to this state.
pub(crate) fn counted(row: &AgentRow, next: AgentState, backoff: Backoff, now: Timestamp) -> StartRetry {
    match next {
        AgentState::Failed(reason) if reason.passes_by_itself() => {
            let failures = row.retry.failures.saturating_add(1);
            let delay_ms = i64::try_from(retry::restart(failures, backoff)).unwrap_or(i64::MAX);
            StartRetry { failures, at: Some(now.plus_ms(delay_ms)) }
        }
        AgentState::Pulling | AgentState::Starting => StartRetry { at: None, ..row.retry },
        AgentState::Ready
        | AgentState::Stopped
        | AgentState::Failed(_)
        | AgentState::Removing
        | AgentState::Removed => StartRetry::default(),
    }
}
