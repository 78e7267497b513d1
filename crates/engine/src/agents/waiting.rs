//! Callers that wait until an agent's sandbox is gone: each hears of the end it asked for, once.

use lodge_core::AgentId;
use lodge_core::agent::AgentState;
use lodge_core::record::AgentRow;

use super::{Agent, Waiting};
use crate::answer::{AgentAnswer, Rendered};
use crate::batch::Step;
use crate::{Answer, Caller, Engine, Refusal};

impl Engine {
    /// Lets a caller wait for the end of what was decided, when the agent will be `then`. Should the daemon die before,
    /// a resend of the request is told the same, and decides nothing again.
    pub(crate) fn answer_when_done(&mut self, caller: Caller, id: &AgentId, then: AgentState) {
        let seq = self.seq;
        let Some(agent) = self.agents.get_mut(id) else { return };
        let row = AgentRow { state: then, ..agent.row.clone() };
        let (at_work, quarantine, in_force) = (false, Vec::new(), None);
        let run = row.runs;
        let answer = Answer::Agent(Box::new(AgentAnswer { row, at_work, quarantine, in_force }));
        let key = caller.request.clone();
        agent.stopping.push(Waiting { caller, run, seq, answer: answer.clone() });
        if let Some(key) = key {
            self.record_answer(key, &answer);
        }
    }

    /// Tells everybody who waits for the end of this run that it came.
    pub(crate) fn tell_waiting(&mut self, id: &AgentId, run: u32) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let told: Vec<Waiting> = agent.stopping.extract_if(.., |waiting| waiting.run <= run).collect();
        for Waiting { caller, answer, .. } in told {
            self.reply(caller, answer);
        }
    }

    /// Answers a request to end an agent that was decided before. An earlier daemon may have died before the end came:
    /// then it is brought about, and waited for.
    pub(crate) fn answer_again(&mut self, caller: Caller, id: Option<&AgentId>, answer: Rendered) {
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
                agent.stopping.push(Waiting { caller, run, seq, answer });
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

    /// Lets a request that is sent again wait with the first, if that waits.
    fn join_waiting(&mut self, caller: Caller) -> Result<(), Caller> {
        let Some(key) = &caller.request else { return Err(caller) };
        let same = |waiting: &&Waiting| waiting.caller.request.as_ref() == Some(key);
        let joined = self.agents.values_mut().find_map(|agent| {
            let Waiting { run, seq, answer, .. } = agent.stopping.iter().find(same)?;
            let (run, seq, answer) = (*run, *seq, answer.clone());
            Some((agent, run, seq, answer))
        });
        let Some((agent, run, seq, answer)) = joined else { return Err(caller) };
        agent.stopping.push(Waiting { caller, run, seq, answer });
        Ok(())
    }
}

/// Tells everybody who waits for the end of this run that it did not come.
pub(crate) fn refuse(step: &mut Step, agent: &mut Agent, run: u32, refusal: &Refusal) {
    for waiting in agent.stopping.extract_if(.., |waiting| waiting.run <= run) {
        step.refuse(waiting.caller.ticket, refusal.clone());
    }
    step.hurry();
}
