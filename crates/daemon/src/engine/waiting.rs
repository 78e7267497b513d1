//! Callers that wait until an agent's sandbox is gone: each hears of the end it asked for, once.

use lodge_core::agent::AgentState;
use lodge_core::record::AgentRow;
use lodge_core::{AgentId, Timestamp};
use lodge_proto::ErrorBody;
use serde_json::Value;

use super::state::{Agent, Waiting};
use super::{Batch, Caller, Engine, Out};
use crate::view;

impl Engine {
    /// Lets a caller wait for the end of what was decided, when the agent will be `then`. Should the daemon die before,
    /// a resend of the request is told the same, and decides nothing again.
    pub(super) fn answer_when_done(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        id: &AgentId,
        then: AgentState,
        now: Timestamp,
    ) {
        let seq = self.seq;
        let Some(agent) = self.agents.get_mut(id) else { return };
        let row = AgentRow { state: then, ..agent.row.clone() };
        let answer = view::json(&view::agent(&row, false, None));
        let key = caller.request.clone();
        agent.stopping.push(Waiting { caller, run: row.runs, seq, answer: answer.clone() });
        if let Some(key) = key {
            self.record_answer(batch, key, &answer, now);
        }
    }

    /// Tells everybody who waits for the end of this run that it came.
    pub(super) fn tell_waiting(&mut self, batch: &mut Batch, id: &AgentId, run: u32, now: Timestamp) {
        let Some(agent) = self.agents.get_mut(id) else { return };
        let told: Vec<Waiting> = agent.stopping.extract_if(.., |waiting| waiting.run <= run).collect();
        for Waiting { caller, answer, .. } in told {
            self.reply(batch, caller, answer, now);
        }
    }

    /// Answers a request that was decided before. An earlier daemon may have died before what was decided had come about:
    /// then it is seen to, and waited for.
    pub(super) fn answer_again(&mut self, batch: &mut Batch, caller: Caller, answer: Value) {
        let caller = match self.join_waiting(caller) {
            Ok(()) => return,
            Err(caller) => caller,
        };
        let seq = self.seq;
        let id = answer["id"].as_str().and_then(|id| id.parse::<AgentId>().ok());
        let Some(agent) = id.as_ref().and_then(|id| self.agents.get_mut(id)) else {
            return batch.after.push(Out::Reply { ticket: caller.ticket, reply: Ok(answer) });
        };
        match agent.row.state {
            AgentState::Stopped | AgentState::Removing => {
                let AgentRow { id, runs: run, .. } = agent.row.clone();
                agent.stopping.push(Waiting { caller, run, seq, answer });
                self.down(batch, &id);
                self.clear_due(batch, &id);
            }
            AgentState::Pulling
            | AgentState::Starting
            | AgentState::Ready
            | AgentState::Failed(_)
            | AgentState::Removed => {
                batch.after.push(Out::Reply { ticket: caller.ticket, reply: Ok(answer) });
            }
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
pub(super) fn refuse(batch: &mut Batch, agent: &mut Agent, run: u32, refusal: &ErrorBody) {
    for waiting in agent.stopping.extract_if(.., |waiting| waiting.run <= run) {
        batch.after.push(Out::Reply { ticket: waiting.caller.ticket, reply: Err(refusal.clone()) });
    }
    batch.urgent = true;
}
