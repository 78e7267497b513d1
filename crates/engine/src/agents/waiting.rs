//! Callers that wait until an agent's sandbox is gone. Each is answered once.

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::record::AgentRow;

use super::{Agent, EndWaiter};
use crate::batch::Step;
use crate::{AgentAnswer, AgentSnapshot, Answer, Caller, Engine, Refusal, RenderedAnswer};

impl Engine {
    /// Makes a caller wait until the agent is `then`. If the daemon dies before, a resent request gets the same answer
    /// and decides nothing.
    pub(crate) fn answer_when_done(&mut self, caller: Caller, id: &AgentId, then: AgentState) {
        let seq = self.seq;
        let Some(agent) = self.agents.get_mut(id) else { return };
        let row = AgentRow { state: then, ..agent.row.clone() };
        let (at_work, quarantine, in_force) = (false, Vec::new(), None);
        let run = row.runs;
        let answer = AgentSnapshot { row, at_work, quarantine, in_force };
        let answer = Answer::Agent(AgentAnswer::Agent(Box::new(answer)));
        let key = caller.request.clone();
        agent.stopping.push(EndWaiter { caller, run, seq, answer: answer.clone() });
        if let Some(key) = key {
            self.record_answer(key, &answer);
        }
    }

    /// Answers the callers that wait for the end of this run.
    pub(crate) fn answer_end_waiters(&mut self, id: &AgentId, run: u32) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let told: Vec<EndWaiter> = agent.stopping.extract_if(.., |waiting| waiting.run <= run).collect();
        for EndWaiter { caller, answer, .. } in told {
            self.reply(caller, answer);
        }
    }

    /// Answers a repeated request to end an agent. If an earlier daemon died before the end, the end is ordered again
    /// and awaited.
    pub(crate) fn answer_again(&mut self, caller: Caller, id: Option<&AgentId>, answer: RenderedAnswer) {
        let caller = match self.join_waiting(caller) {
            Ok(()) => return,
            Err(caller) => caller,
        };
        let (seq, answer) = (self.seq, Answer::Rendered(answer));
        let Some(agent) = id.and_then(|id| self.agents.get_mut(id)) else {
            return self.step.answer(caller.ticket, answer);
        };
        match agent.row.state {
            AgentState::Stopped | AgentState::Removing => {
                let AgentRow { id, runs: run, .. } = agent.row.clone();
                agent.stopping.push(EndWaiter { caller, run, seq, answer });
                self.down(&id);
                self.clear_due(&id);
            }
            AgentState::Pulling
            | AgentState::Starting
            | AgentState::Ready
            | AgentState::Failed(_)
            | AgentState::Removed => self.step.answer(caller.ticket, answer),
        }
    }

    /// Makes a repeated request wait together with the first one.
    fn join_waiting(&mut self, caller: Caller) -> Result<(), Caller> {
        let Some(key) = &caller.request else { return Err(caller) };
        let same = |waiting: &&EndWaiter| waiting.caller.request.as_ref() == Some(key);
        let joined = self.agents.values_mut().find_map(|agent| {
            let EndWaiter { run, seq, answer, .. } = agent.stopping.iter().find(same)?;
            let (run, seq, answer) = (*run, *seq, answer.clone());
            Some((agent, run, seq, answer))
        });
        let Some((agent, run, seq, answer)) = joined else { return Err(caller) };
        agent.stopping.push(EndWaiter { caller, run, seq, answer });
        Ok(())
    }
}

/// Refuses the callers that wait for the end of this run.
pub(crate) fn refuse(step: &mut Step, agent: &mut Agent, run: u32, refusal: &Refusal) {
    for waiting in agent.stopping.extract_if(.., |waiting| waiting.run <= run) {
        step.refuse(waiting.caller.ticket, refusal.clone());
    }
    step.mark_urgent();
}
