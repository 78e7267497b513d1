//! Answers that do not match the requested schema.
//!
//! They are stored, and the turn's next step repeats the request with the reason. After a few mismatches the turn
//! fails.

use lodge_core::TurnId;
use lodge_core::limits::MISFITS_MAX;
use lodge_core::record::{MessageBody, Role};

use super::Phase;
use super::messages::RuntimeAnswer;
use crate::{AnswerMismatch, AutoRetry, Engine, SandboxEffect, failure};

impl Engine {
    pub(crate) fn answer_misfits(&mut self, id: &TurnId, misfit: &AnswerMismatch) {
        let AnswerMismatch { why, again } = misfit;
        let Some(turn) = self.turns.get_mut(id) else { return };
        turn.misfits += 1;
        let (misfits, agent) = (turn.misfits, turn.row.agent.clone());
        let before = std::mem::replace(&mut turn.phase, Phase::Tools { calls: Vec::new() });
        let Phase::Model { wish, .. } = before else { return };
        self.step.mark_urgent();
        let refused = match again {
            AutoRetry::Never => Some(failure(
                "turn.schema_not_checked",
                &format!("the answer could not be checked against the schema: {why}"),
            )),
            AutoRetry::Later if misfits >= MISFITS_MAX => Some(failure(
                "turn.schema_mismatch",
                &format!("{misfits} answers did not fit the schema; the last one: {why}"),
            )),
            AutoRetry::Later => None,
        };
        if let Some(mut refused) = refused {
            refused.hint = Some("`lodge session show` has the answers; a simpler schema may help".to_owned());
            self.fail_turn(id, refused);
            let over = failure("turn.failed", "no answer fitted the schema");
            return self.in_sandbox(&agent, SandboxEffect::Answer { id: wish.id, answer: Err(over) });
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
