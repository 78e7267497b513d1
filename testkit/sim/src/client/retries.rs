//! Turns that continue others: their plans, and which turns they are.

use lodge_core::TurnId;
use lodge_core::record::{Role, SessionFact, StepKind, TurnWrite, Write};
use lodge_core::turn::TurnState;
use lodge_engine::{Batch, Command, Input, SessionOperation};
use lodge_proto::ErrorBody;

use super::requests::refusal;
use crate::plan::SimMutation;
use crate::world::SimWorld;

impl SimWorld {
    /// The plan of a retry, as the API makes it.
    pub(super) fn retry(&self, fact: &SessionFact, turn: &TurnId) -> Result<SessionOperation, ErrorBody> {
        let kept = self.disk.turn(turn).ok_or_else(|| refusal("turn.not_found"))?;
        match kept.row.state {
            TurnState::Failed | TurnState::Interrupted => {}
            TurnState::Queued | TurnState::Running | TurnState::Waiting => return Err(refusal("turn.open")),
            TurnState::Done => return Err(refusal("turn.done")),
        }
        if kept.row.place.dropped > 0 || kept.row.session != fact.row.id {
            return Err(refusal("turn.inactive"));
        }
        if kept.row.number != fact.turns {
            return Err(refusal("turn.not_last"));
        }
        let mut plan = self.disk.retry_plan(&fact.row.id, turn).ok_or_else(|| refusal("turn.not_found"))?;
        if self.mutation == SimMutation::LostResults {
            plan.messages.retain(|message| message.role != Role::Tool);
        }
        Ok(SessionOperation::Retry(Box::new(plan)))
    }

    /// Remembers which turns are to be continued.
    pub fn watch_retries(&mut self, inputs: &[Input]) {
        for input in inputs {
            let Input::Api { command: Command::Session(change), .. } = input else { continue };
            match &change.what {
                SessionOperation::Retry(again) => {
                    self.clients.retrying.insert(again.turn.id.clone());
                }
                SessionOperation::Regenerate(again) => {
                    self.clients.regenerating.insert(again.turn.clone());
                }
                SessionOperation::Rewind(_)
                | SessionOperation::Activate { .. }
                | SessionOperation::Fork { .. }
                | SessionOperation::Delete => {}
            }
        }
    }

    /// Remembers which new turns continue others. A turn that callers also regenerate is left out: what replaces it may be
    /// either.
    pub fn watch_new_turns(&mut self, batch: &Batch) {
        for write in &batch.writes {
            let Write::Turn(TurnWrite::New(row)) = write else { continue };
            let Some(old) = &row.place.replaces else { continue };
            if self.clients.retrying.contains(old) && !self.clients.regenerating.contains(old) {
                self.clients.continuations.insert(row.id.clone());
                self.tally.continued += 1;
            }
        }
    }

    /// The turn in which a call of a continuation had its effect before, if it had.
    pub fn ran_before(&self, turn: &TurnId, step: u32, call: Option<&str>) -> Option<TurnId> {
        let mut newest = turn.clone();
        while self.clients.continuations.contains(&newest) {
            let old = self.disk.turn(&newest)?.row.place.replaces.clone()?;
            // A copy has the steps of its original.
            let ran = self.disk.turn(&old).and_then(|kept| kept.row.place.origin.clone()).unwrap_or(old);
            let steps = self.disk.turn(&ran).map(|kept| kept.steps.as_slice()).unwrap_or_default();
            let same = steps
                .iter()
                .find(|row| row.kind() == StepKind::Tool && row.step == step && row.call.as_deref() == call);
            if let Some(row) = same
                && self.clients.effects.contains_key(&(ran.clone(), step, row.ordinal))
            {
                return Some(ran);
            }
            newest = ran;
        }
        None
    }
}
