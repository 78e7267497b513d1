//! Agents that start themselves again: after a failure that may pass, with doubling pauses, until somebody stops them.

use lodge_core::agent::{AgentEvent, AgentState, FailReason};
use lodge_core::record::{AgentRow, Retry};
use lodge_core::retry::{self, Backoff};
use lodge_core::{AgentId, Timestamp};

use super::Pauses;
use crate::{Effect, Engine, Timer};

impl Engine {
    /// The pause is over, unless somebody decided otherwise meanwhile.
    pub(crate) fn retry_due(&mut self, id: &AgentId, run: u32) {
        if self.current(id, run).is_some_and(|agent| agent.row.retry.at.is_some()) {
            self.start_again(id);
        }
    }

    /// Somebody changed the providers: whoever waits for one need not wait longer.
    pub(crate) fn providers_changed(&mut self) {
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

    /// Starts an agent whose failure may have passed. Its count of failures goes on.
    pub(crate) fn start_again(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let Ok(next) = agent.row.state.next(AgentEvent::RetryDue) else { return };
        agent.row.incarnation += 1;
        self.set_state(id, next, None);
        self.fetch(id);
    }

    /// After memory was rebuilt: a new daemon tries at once, the same one waits for what is left of the pause.
    pub(crate) fn take_up_retry(&mut self, id: &AgentId, pauses: Pauses) {
        let cap_ms = u64::try_from(self.host.settings.backoff.cap.as_millis()).unwrap_or(u64::MAX);
        let Some(row) = self.agents.get(id).map(|agent| &agent.row) else { return };
        let Some(at) = row.retry.at else { return };
        match pauses {
            Pauses::Skip => self.start_again(id),
            Pauses::Keep => {
                // The clock may have been set meanwhile.
                let delay_ms = u64::try_from(at.ms() - self.step.now.ms()).unwrap_or(0).min(cap_ms);
                self.step.act(Effect::Timer(Timer::Retry { agent: id.clone(), run: row.runs, delay_ms }));
            }
        }
    }
}

/// How a row that is about to be in this state counts its failures.
pub(crate) fn counted(row: &AgentRow, next: AgentState, backoff: Backoff, now: Timestamp) -> Retry {
    match next {
        AgentState::Failed(reason) if reason.passes_by_itself() => {
            let failures = row.retry.failures.saturating_add(1);
            let delay_ms = i64::try_from(retry::restart(failures, backoff)).unwrap_or(i64::MAX);
            Retry { failures, at: Some(now.plus_ms(delay_ms)) }
        }
        AgentState::Pulling | AgentState::Starting => Retry { at: None, ..row.retry },
        AgentState::Ready
        | AgentState::Stopped
        | AgentState::Failed(_)
        | AgentState::Removing
        | AgentState::Removed => Retry::default(),
    }
}
