//! The provider of models: slow, talkative, fallible, and counting.

use lodge_core::TurnId;
use lodge_core::record::{CallRecord, FailureRecord, Role, Usage};
use lodge_core::turn::StepState;
use lodge_engine::{Again, Misfit, ModelAnswer, ModelFailure, ModelOrder, Purpose, Seen, TurnSeen};

use crate::laws;
use crate::strict::request_is_strict;
use crate::world::{SimEvent, SimWorld};

/// One call that the daemon makes.
#[derive(Debug)]
pub struct SimModelCall {
    order: ModelOrder,
    /// What is still to come, the last first; `None` until the provider was asked.
    rest: Option<Vec<SimModelPart>>,
    offset: u64,
}

#[derive(Debug)]
enum SimModelPart {
    Text(String),
    Answer(ModelAnswer),
    Failure(ModelFailure),
}

impl SimWorld {
    pub fn call_model(&mut self, order: ModelOrder) {
        let call = self.serial();
        let (life, delay) = (self.life, order.delay_ms);
        let Some(daemon) = &mut self.daemon else { return };
        daemon.models.insert(order.turn.clone(), call);
        daemon.calls.insert(call, SimModelCall { order, rest: None, offset: 0 });
        self.after(delay, SimEvent::ModelGoes { life, call });
    }

    pub fn cancel_model(&mut self, turn: &TurnId) {
        let Some(daemon) = &mut self.daemon else { return };
        if let Some(call) = daemon.models.remove(turn) {
            daemon.calls.remove(&call);
            self.asked.remove(turn);
        }
    }

    /// The call is made, or its next piece arrives.
    pub fn run_model_call(&mut self, id: u64) {
        let Some(daemon) = &mut self.daemon else { return };
        let Some(mut call) = daemon.calls.remove(&id) else { return };
        let life = daemon.life;
        let computed = call.order.turn.clone();
        if self.swallow(&computed) {
            return;
        }
        let pause = self.rng.delay(self.plan.model_ms);
        let (turn, step, attempt) = (call.order.turn.clone(), call.order.step, call.order.attempt);
        let piece = match &mut call.rest {
            None => {
                call.rest = Some(match call.order.purpose {
                    Purpose::Step => {
                        self.check_request(&call.order);
                        self.step_pieces(&call.order.turn)
                    }
                    Purpose::Summary { .. } => {
                        self.check_summary(&call.order);
                        self.summary_pieces()
                    }
                });
                None
            }
            Some(rest) => rest.pop(),
        };
        let end = match piece {
            None => None,
            Some(SimModelPart::Text(text)) => {
                let offset = call.offset;
                call.offset += text.len() as u64;
                self.tell(Seen::Turn(TurnSeen::ModelText {
                    turn: turn.clone(),
                    step,
                    attempt,
                    offset,
                    text,
                }));
                None
            }
            Some(SimModelPart::Answer(answer)) => {
                Some(Seen::Turn(TurnSeen::ModelAnswered { turn: turn.clone(), step, attempt, answer }))
            }
            Some(SimModelPart::Failure(failure)) => {
                Some(Seen::Turn(TurnSeen::ModelFailed { turn: turn.clone(), step, attempt, failure }))
            }
        };
        let Some(daemon) = &mut self.daemon else { return };
        match end {
            None => {
                daemon.calls.insert(id, call);
                self.after(pause, SimEvent::ModelGoes { life, call: id });
            }
            Some(seen) => {
                daemon.models.remove(&turn);
                self.asked.remove(&turn);
                self.tell(seen);
            }
        }
    }

    /// The next step of a turn. An answer that has to fit a schema may not; one that asks for tools is none yet.
    fn step_pieces(&mut self, turn: &TurnId) -> Vec<SimModelPart> {
        let mut pieces = self.answer_pieces(Some(turn));
        let misfits =
            self.disk.turn(turn).is_some_and(laws::wants_schema) && self.rng.chance(self.plan.misfits);
        if let Some(SimModelPart::Answer(answer)) = pieces.first_mut()
            && answer.calls.is_empty()
            && misfits
        {
            let why = "it is no JSON".to_owned();
            answer.misfit = Some(Misfit { why, again: Again::Later });
            self.tally.misfits += 1;
        }
        pieces
    }

    /// What the provider will say, the last first.
    fn answer_pieces(&mut self, turn: Option<&TurnId>) -> Vec<SimModelPart> {
        let mut pieces = Vec::new();
        let mut whole = String::new();
        for _ in 0..self.rng.below(4) {
            // Letters of several bytes, so that offsets are of bytes and cuts are not anywhere.
            let text =
                (*self.rng.pick(&["a word ", "ein Wort, größer ", "言葉 ", "…"]).unwrap_or(&"")).to_owned();
            whole.push_str(&text);
            if self.rng.chance(700) {
                pieces.push(SimModelPart::Text(text));
            } else {
                // The rest was shown and not stored before the end.
                break;
            }
        }
        let end = if self.rng.chance(self.plan.model_fails) {
            let retryable = self.rng.chance(800);
            let after_ms = if self.rng.chance(200) { Some(self.rng.below(10_000)) } else { None };
            let record = FailureRecord {
                code: "model.failed".into(),
                message: "it does not answer".into(),
                hint: None,
            };
            SimModelPart::Failure(ModelFailure { record, retryable, after_ms })
        } else {
            let calls = if self.rng.chance(self.plan.tools) { self.tool_calls(turn) } else { Vec::new() };
            let (input_tokens, output_tokens) = (self.rng.below(100), self.rng.below(100));
            let usage = Usage { input_tokens, output_tokens, ..Usage::default() };
            SimModelPart::Answer(ModelAnswer { text: whole, calls, usage, reasoning: None, misfit: None })
        };
        pieces.push(end);
        pieces.reverse();
        pieces
    }

    /// A summary, one that says nothing, or a failure.
    fn summary_pieces(&mut self) -> Vec<SimModelPart> {
        let mut pieces = self.answer_pieces(None);
        // Nobody is shown the text of a summary.
        pieces.truncate(1);
        for piece in &mut pieces {
            if let SimModelPart::Answer(answer) = piece {
                answer.calls.clear();
                answer.misfit = None;
            }
        }
        pieces
    }

    /// A stored summary is never asked for again, and none is asked for in the middle of a turn.
    fn check_summary(&mut self, order: &ModelOrder) {
        self.tally.model_requests += 1;
        let turn = &order.turn;
        self.trace.say(self.now, || format!("the provider is asked for a summary: {turn}"));
        if self.asked.insert(turn.clone(), self.life).is_some() {
            self.fail(format!("{turn} has two model calls at a time"));
        }
        let Some(kept) = self.disk.turn(turn) else {
            return self.fail(format!("a summary is asked for by {turn}, which is not on disk"));
        };
        if kept.messages.iter().any(|message| message.role == Role::Assistant) {
            self.fail(format!("{turn} has an answer, and its conversation is compacted"));
        } else if kept.steps.iter().any(|step| step.step == 0 && step.state == StepState::Done) {
            self.fail(format!("{turn} has a summary, and it is asked for again"));
        }
    }

    fn tool_calls(&mut self, turn: Option<&TurnId>) -> Vec<CallRecord> {
        let count = self.rng.between(1, 4);
        let mut calls = Vec::new();
        for at in 0..count {
            let name = *self.rng.pick(&["sh", "sh", "date", "date", "nope"]).unwrap_or(&"sh");
            let arguments = if self.rng.chance(900) { "{}" } else { "not json" };
            let (name, arguments) = match turn.filter(|_| self.rng.chance(self.plan.job_tools)) {
                Some(turn) => self.job_call(turn),
                None => (name, arguments.to_owned()),
            };
            // The same ids in every answer: some models do that.
            let at = if self.rng.chance(self.plan.twins) { 0 } else { at };
            calls.push(CallRecord { id: format!("c{at}"), name: name.into(), arguments });
        }
        calls
    }

    /// A stored answer is never asked for again, one call of a turn is made at a time, and what the model reads is
    /// whole: every call has its result.
    fn check_request(&mut self, order: &ModelOrder) {
        self.tally.model_requests += 1;
        let (turn, step) = (&order.turn, order.step);
        self.trace
            .say(self.now, || format!("the provider is asked: {turn} step {step} attempt {}", order.attempt));
        if self.asked.insert(turn.clone(), self.life).is_some() {
            self.fail(format!("{turn} has two model calls at a time"));
        }
        let Some(kept) = self.disk.turn(turn) else {
            return self.fail(format!("a model is asked about {turn}, which is not on disk"));
        };
        let answers: Vec<u32> = kept
            .messages
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .map(|message| message.step)
            .collect();
        if answers.contains(&step) {
            self.fail(format!("{turn} has an answer for step {step}, and it is asked for again"));
        } else if answers.len() != step as usize - 1 {
            self.fail(format!("{turn} asks for step {step}, and has {} answers on disk", answers.len()));
        } else if let Some(call) = laws::open_calls(kept).first() {
            self.fail(format!("{turn} asks for step {step}, and its call {call} has no result on disk"));
        } else if let Err(broken) = request_is_strict(&self.disk, order) {
            self.fail(broken);
        }
    }
}
