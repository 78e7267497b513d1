//! Answers that do not match the requested schema.
//!
//! They are stored, and the turn's next step repeats the request with the reason. After a few mismatches the turn
//! fails.

use lodge_core::TurnId;
use lodge_core::limits::MISFITS_MAX;
use lodge_core::record::{MessageBody, Role};

use super::Phase;
use super::messages::RuntimeAnswer;
use super::refusal::{RuntimeCallRefusal, TurnFault};
use crate::{AnswerMismatch, AutoRetry, Engine, SandboxEffect};

impl Engine {
    pub(crate) fn answer_misfits(&mut self, id: &TurnId, misfit: &AnswerMismatch) {
        let AnswerMismatch { why, again } = misfit;
        let Some(turn) = self.turns.get_mut(id) else { return };
        turn.misfits += 1;
        let (misfits, agent) = (turn.misfits, turn.row.agent.clone());
        let before = std::mem::replace(&mut turn.phase, Phase::Tools { calls: Vec::new() });
        let Phase::Model { wish, .. } = before else { return };
        self.step.mark_urgent();
        let fault = match again {
            AutoRetry::Never => Some(TurnFault::SchemaNotChecked { why: why.clone() }),
            AutoRetry::Later if misfits >= MISFITS_MAX => {
                Some(TurnFault::SchemaMismatch { misfits, why: why.clone() })
            }
            AutoRetry::Later => None,
        };
        if let Some(fault) = fault {
            self.fail_turn(id, fault.record());
            let answer = Err(RuntimeCallRefusal::NoFittingAnswer);
            return self.in_sandbox(&agent, SandboxEffect::Answer { id: wish.id, answer });
        }
        let text = format!(
            "Your answer does not fit the JSON schema: {why}\nAnswer again, with JSON that fits it and nothing else."
        );
        self.message(id, Role::User, MessageBody { text, ..MessageBody::default() });
        self.write_turn(id);
        let answer = Ok(RuntimeAnswer::Model { finished: false, calls: Vec::new() });
        self.in_sandbox(&agent, SandboxEffect::Answer { id: wish.id, answer });
    }
}
