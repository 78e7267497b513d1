//! The simulated provider of models. It is slow, streams text, fails at times, and counts calls.

use lodge_core::TurnId;
use lodge_core::record::{CallRecord, FailureRecord, Role};
use lodge_core::turn::StepState;
use lodge_engine::{CallRetry, ModelFailure, ModelOrder, Purpose};
use lodge_model::{CallAnswer, CallUsage, ModelRequest, StopReason, ToolCall};

use crate::laws;
use crate::strict::{asks_for_its_turn, reads_its_path, request_is_strict};
use crate::world::SimWorld;

/// One piece of a provider's response.
#[derive(Debug)]
pub enum ModelPiece {
    Text(String),
    Answer(CallAnswer),
    Failure(ModelFailure),
}

impl SimWorld {
    /// The provider gets a request. Returns the pieces of its response, in order. None: the request killed the daemon.
    pub fn model_gets_request(
        &mut self,
        order: &ModelOrder,
        request: &ModelRequest,
    ) -> Option<Vec<ModelPiece>> {
        if self.compute_call(&order.turn) {
            return None;
        }
        self.check_probe(&order.turn);
        Some(match order.purpose {
            Purpose::Step => {
                self.check_request(order, request);
                self.step_pieces(&order.turn)
            }
            Purpose::Summary { .. } => {
                self.check_summary(order);
                self.summary_pieces()
            }
        })
    }

    /// The next step of a turn. A final answer may fail to match its schema; one with tool calls is not final.
    fn step_pieces(&mut self, turn: &TurnId) -> Vec<ModelPiece> {
        let mut pieces = self.answer_pieces(Some(turn));
        let is_final =
            |piece: &ModelPiece| matches!(piece, ModelPiece::Answer(answer) if answer.calls.is_empty());
        if !self.disk.turn(turn).is_some_and(laws::wants_schema) || !pieces.last().is_some_and(is_final) {
            return pieces;
        }
        let text = if self.rng.chance(self.plan.misfits) {
            self.tally.misfits += 1;
            "a word that is no JSON".to_owned()
        } else {
            "{\"fits\": true}".to_owned()
        };
        if let Some(ModelPiece::Answer(mut answer)) = pieces.pop() {
            answer.text.clone_from(&text);
            pieces = vec![ModelPiece::Text(text), ModelPiece::Answer(answer)];
        }
        pieces
    }

    /// The pieces of an answer.
    fn answer_pieces(&mut self, turn: Option<&TurnId>) -> Vec<ModelPiece> {
        let mut pieces = Vec::new();
        let mut whole = String::new();
        let is_down = self.is_provider_down();
        let texts = if is_down { 0 } else { self.rng.below(4) };
        for _ in 0..texts {
            // Characters of several bytes, to find errors in byte offsets and in cuts.
            let text =
                (*self.rng.pick(&["a word ", "ein Wort, größer ", "言葉 ", "…"]).unwrap_or(&"")).to_owned();
            whole.push_str(&text);
            pieces.push(ModelPiece::Text(text));
        }
        let end = if is_down || self.rng.chance(self.plan.model_fails) {
            let is_retryable = is_down || self.rng.chance(800);
            let after_ms = if self.rng.chance(200) { Some(self.rng.below(10_000)) } else { None };
            let retry = match is_retryable {
                true => CallRetry::Provider { after_ms, retry_for_ms: self.plan.retry_for_ms },
                false => CallRetry::Never,
            };
            let record = FailureRecord {
                code: "model.failed".into(),
                message: "it does not answer".into(),
                hint: None,
            };
            ModelPiece::Failure(ModelFailure { record, retry })
        } else {
            let calls = if self.rng.chance(self.plan.tools) { self.tool_calls(turn) } else { Vec::new() };
            let stop = if calls.is_empty() { StopReason::End } else { StopReason::ToolCalls };
            let (input_tokens, output_tokens) = (self.rng.below(100), self.rng.below(100));
            let usage = CallUsage { input_tokens, output_tokens, ..CallUsage::default() };
            ModelPiece::Answer(CallAnswer { text: whole, calls, usage, stop, reasoning: None })
        };
        pieces.push(end);
        pieces
    }

    /// A summary, an empty summary, or a failure.
    fn summary_pieces(&mut self) -> Vec<ModelPiece> {
        let mut pieces = self.answer_pieces(None);
        for piece in &mut pieces {
            if let ModelPiece::Answer(answer) = piece {
                answer.calls.clear();
            }
        }
        pieces
    }

    /// A stored summary is never requested again, and none is requested within a turn.
    fn check_summary(&mut self, order: &ModelOrder) {
        self.tally.model_requests += 1;
        let turn = &order.turn;
        self.trace.trace_line(self.now, || format!("the provider is asked for a summary: {turn}"));
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

    fn tool_calls(&mut self, turn: Option<&TurnId>) -> Vec<ToolCall> {
        let count = self.rng.between(1, 4);
        let mut calls = Vec::new();
        for at in 0..count {
            let name = *self.rng.pick(&["sh", "sh", "date", "date", "nope"]).unwrap_or(&"sh");
            let arguments = if self.rng.chance(900) { "{}" } else { "not json" };
            let (name, arguments) = match turn.filter(|_| self.rng.chance(self.plan.job_tools)) {
                Some(turn) => self.job_call(turn),
                None => (name, arguments.to_owned()),
            };
            // Some models repeat the same ids in every answer.
            let at = if self.rng.chance(self.plan.twins) { 0 } else { at };
            let CallRecord { id, name, arguments } =
                CallRecord { id: format!("c{at}"), name: name.into(), arguments };
            calls.push(ToolCall { id, name, arguments });
        }
        calls
    }

    /// A stored answer is never requested again, a turn makes one call at a time, and every tool call that the model reads has
    /// its result.
    fn check_request(&mut self, order: &ModelOrder, request: &ModelRequest) {
        self.tally.model_requests += 1;
        let (turn, step) = (&order.turn, order.step);
        self.trace.trace_line(self.now, || {
            format!("the provider is asked: {turn} step {step} attempt {}", order.attempt)
        });
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
        } else if let Err(broken) = reads_its_path(&self.disk, order)
            .and_then(|()| request_is_strict(order, request))
            .and_then(|()| asks_for_its_turn(&self.disk, order, request))
        {
            self.fail(broken);
        }
    }
}
