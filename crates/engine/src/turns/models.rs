//! Model calls: a call is safe to repeat until its answer is stored. A stored answer is never requested again.

use lodge_core::epoch::Epoch;
use lodge_core::event::{TurnStepFinished, TurnStepRestarted, TurnStepStarted, TurnText, TurnToolCall};
use lodge_core::record::{CallRecord, MessageBody, Role, StepKind, StepRow, StepTarget, TurnWrite};
use lodge_core::turn::{StepEvent, StepState, TurnEvent};
use lodge_core::{StepId, Timestamp, TurnId};

use super::compact::SUMMARY_STEP;
use super::messages::RuntimeAnswer;
use super::outages::AfterFailure;
use super::refusal::RuntimeCallRefusal;
use super::state::CutCall;
use super::state::{ModelCallRequest, Phase, ToolCallState};
use crate::batch::EarlyEffect;
use crate::{Effect, Engine, ModelAnswer, ModelEffect, ModelFailure, ModelOrder, Purpose, SandboxEffect};

/// Bytes of text in one event.
const TEXT_EVENT_BYTES_MAX: usize = 256 << 10;

/// A text in pieces of at most `bytes_max` bytes, or one character.
pub fn pieces(mut text: &str, bytes_max: usize) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let first = text.chars().next()?.len_utf8();
        let (piece, rest) = text.split_at(text.floor_char_boundary(bytes_max).max(first));
        text = rest;
        Some(piece)
    })
}

/// Step and attempt.
type ModelAttempt = (u32, u32);

impl Engine {
    pub(crate) fn request_model(&mut self, id: &TurnId, step: u32, wish: ModelCallRequest) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let agent = turn.row.agent.clone();
        match &mut turn.phase {
            Phase::Model { wish: waiting, .. } if step == turn.step => {
                // The same request again, after a reconnect: one call, one answer.
                *waiting = wish;
                return;
            }
            Phase::Tools { calls } if step == turn.step => {
                let answer = model_answer(calls, false);
                self.in_sandbox(&agent, SandboxEffect::Answer { id: wish.id, answer: Ok(answer) });
                self.step.mark_urgent();
                return;
            }
            Phase::Tools { calls } if calls.iter().any(|call| call.result.is_none()) => {
                return self.refuse_runtime_call(&agent, wish.id, RuntimeCallRefusal::OpenCalls);
            }
            Phase::Summary(_) => {
                return self.refuse_runtime_call(&agent, wish.id, RuntimeCallRefusal::Compacting);
            }
            Phase::Thinking | Phase::Model { .. } | Phase::Tools { .. } => {}
        }
        // While a call is in flight there is no next one.
        let expected = match turn.phase {
            Phase::Model { .. } => turn.step,
            Phase::Thinking | Phase::Summary(_) | Phase::Tools { .. } => turn.step + 1,
        };
        if step != expected {
            return self.refuse_runtime_call(&agent, wish.id, RuntimeCallRefusal::WrongStep { expected });
        }
        if !self.may_call(id) {
            return;
        }
        let Some(turn) = self.turns.get_mut(id) else { return };
        let cut = turn.cut.take().map(|cut| cut.at).filter(|cut| cut.0 == step);
        turn.step = step;
        let attempt = turn.next_attempt(step, cut.map(|cut| cut.1));
        turn.phase = Phase::Model { attempt, failures: 0, wish, shown: String::new() };
        // The runtime calls the model, so it does without a summary that it requested before a crash.
        self.close_summary(id, StepState::Interrupted);
        match cut {
            Some(_) => self.restart_event(id, (step, attempt)),
            None => drop(self.intend_model(id, (step, attempt))),
        }
        self.call_model(id, attempt, 0);
    }

    /// Records the intent. It joins the next commit: no caller waits for it.
    pub(crate) fn intend_model(&mut self, id: &TurnId, (step, attempt): ModelAttempt) -> StepRow {
        let model = self.model_of(id);
        let row = StepRow {
            id: StepId::new(&mut self.ids, self.step.now),
            turn: id.clone(),
            step,
            ordinal: 0,
            target: StepTarget::ModelCall,
            name: model.clone(),
            state: StepState::Intent,
            attempt,
            call: None,
            exit_code: None,
            signal: None,
            cause: None,
            started_at: self.step.now,
            ended_at: None,
        };
        self.step.write_with_next_commit(TurnWrite::Step(row.clone()));
        self.turn_event(id, |session, turn| TurnStepStarted {
            session,
            turn,
            step,
            kind: StepKind::Model.word().to_owned(),
            name: model,
            attempt: Some(attempt),
            call: None,
        });
        row
    }

    pub(crate) fn restart_event(&mut self, id: &TurnId, (step, attempt): ModelAttempt) {
        self.step_state(id, (step, attempt), StepState::Intent, None);
        self.turn_event(id, |session, turn| TurnStepRestarted { session, turn, step, attempt });
    }

    fn call_model(&mut self, id: &TurnId, attempt: u32, delay_ms: u64) {
        let model = self.model_of(id);
        let Some(turn) = self.turns.get(id) else { return };
        let Phase::Model { wish, .. } = &turn.phase else { return };
        let session = self.sessions.get(&turn.row.session);
        let epoch = session.map(|session| &session.epoch);
        let read_from = epoch.filter(|epoch| epoch.from_turn == wish.from_turn);
        self.step.act_early(EarlyEffect::CallModel(Box::new(ModelOrder {
            agent: turn.row.agent.clone(),
            model,
            session: turn.row.session.clone(),
            turn: id.clone(),
            number: turn.row.number,
            step: turn.step,
            attempt,
            from_turn: wish.from_turn,
            context: wish.context.clone(),
            summary: read_from.and_then(Epoch::summary),
            message: session.map_or(turn.row.first_message, |session| session.messages),
            bytes: epoch.and_then(|epoch| epoch.read_bytes(wish.from_turn, turn.row.number)),
            purpose: Purpose::Step,
            delay_ms,
        })));
    }

    pub(crate) fn model_of(&self, id: &TurnId) -> String {
        let agent = self.turns.get(id).and_then(|turn| self.agents.get(&turn.row.agent));
        agent.map(|agent| agent.row.spec.model.clone()).unwrap_or_default()
    }

    /// Text that people have seen already becomes an event, and forces no commit.
    pub(crate) fn model_text(&mut self, id: &TurnId, at: ModelAttempt, offset: u64, text: String) {
        let Some(shown) = self.shown_text(id, at) else { return };
        // Only what continues the recorded text: anything else was recorded before.
        if offset != shown.len() as u64 || text.is_empty() {
            return;
        }
        shown.push_str(&text);
        self.text_event(id, at, offset, &text);
        // Turns that wait need not wait for the end of this answer.
        self.provider_answers(id);
    }

    fn shown_text(&mut self, id: &TurnId, (step, attempt): ModelAttempt) -> Option<&mut String> {
        let turn = self.turns.get_mut(id)?;
        if turn.step != step {
            return None;
        }
        match &mut turn.phase {
            Phase::Model { attempt: current, shown, .. } if *current == attempt => Some(shown),
            Phase::Model { .. } | Phase::Thinking | Phase::Summary(_) | Phase::Tools { .. } => None,
        }
    }

    /// An answer can be megabytes. Its events are bounded.
    fn text_event(&mut self, id: &TurnId, at: ModelAttempt, mut offset: u64, text: &str) {
        for piece in pieces(text, TEXT_EVENT_BYTES_MAX) {
            let (step, attempt) = at;
            let text = piece.to_owned();
            self.turn_event(id, |session, turn| TurnText { session, turn, step, attempt, offset, text });
            offset += piece.len() as u64;
        }
    }

    pub(crate) fn model_answered(&mut self, id: &TurnId, at: ModelAttempt, mut answer: ModelAnswer) {
        if at.0 == SUMMARY_STEP {
            return self.summary_answered(id, at.1, &answer);
        }
        make_call_ids_unique(&mut answer.calls);
        let Some(shown) = self.shown_text(id, at).map(|shown| shown.len()) else { return };
        self.provider_answers(id);
        self.forget_wait(id);
        let rest = answer.text.get(shown..).unwrap_or_default();
        if !rest.is_empty() {
            self.text_event(id, at, shown as u64, rest);
        }
        let ended = if answer.misfit.is_some() { StepState::Failed } else { StepState::Done };
        self.step_state(id, at, ended, Some(self.step.now));
        self.step_finished(id, at.0, StepKind::Model, ended);
        let body = MessageBody {
            text: answer.text,
            calls: answer.calls.clone(),
            reasoning: answer.reasoning,
            ..MessageBody::default()
        };
        self.message(id, Role::Assistant, body);
        if let Some(turn) = self.turns.get_mut(id) {
            turn.row.usage += answer.usage;
        }
        if let Some(misfit) = answer.misfit {
            return self.answer_misfits(id, &misfit);
        }
        for call in &answer.calls {
            let CallRecord { id: call, name, arguments } = call.clone();
            let step = at.0;
            self.turn_event(id, |session, turn| TurnToolCall { session, turn, step, call, name, arguments });
        }
        self.take_answer(id, answer.calls);
    }

    /// Moves the turn on: to its tools, or to its end.
    fn take_answer(&mut self, id: &TurnId, records: Vec<CallRecord>) {
        let Some(turn) = self.turns.get(id) else { return };
        let agent = turn.row.agent.clone();
        let calls: Vec<ToolCallState> = records
            .into_iter()
            .map(|record| ToolCallState { record, step: None, waiter: None, result: None })
            .collect();
        let over = calls.is_empty();
        let answer = model_answer(&calls, over);
        if !over {
            // Its cost is recorded with the answer; otherwise the end of the turn records it.
            self.write_turn(id);
        }
        let Some(turn) = self.turns.get_mut(id) else { return };
        let Phase::Model { wish, .. } = std::mem::replace(&mut turn.phase, Phase::Tools { calls }) else {
            return;
        };
        if over {
            self.end_turn(id, TurnEvent::Answered, None);
        }
        self.in_sandbox(&agent, SandboxEffect::Answer { id: wish.id, answer: Ok(answer) });
        self.step.mark_urgent();
    }

    pub(crate) fn model_failed(&mut self, id: &TurnId, at: ModelAttempt, failed: ModelFailure) {
        if at.0 == SUMMARY_STEP {
            return self.summary_failed(id, at.1, failed);
        }
        if self.shown_text(id, at).is_none() {
            return;
        }
        let next = at.1 + 1;
        let Some(turn) = self.turns.get_mut(id) else { return };
        let Phase::Model { failures, .. } = &mut turn.phase else { return };
        *failures += 1;
        let failures = *failures;
        match self.call_failed(id, failures, failed) {
            AfterFailure::Repeat { delay_ms } => {
                let Some(turn) = self.turns.get_mut(id) else { return };
                let Phase::Model { attempt, shown, .. } = &mut turn.phase else { return };
                *attempt = next;
                shown.clear();
                self.restart_event(id, (at.0, next));
                self.call_model(id, next, delay_ms);
            }
            AfterFailure::Wait => {}
            AfterFailure::GiveUp(record) => {
                let Some(turn) = self.turns.get(id) else { return };
                let Phase::Model { wish, .. } = &turn.phase else { return };
                let (agent, wish) = (turn.row.agent.clone(), wish.id.clone());
                self.fail_turn(id, record);
                let answer = Err(RuntimeCallRefusal::NoAnswer);
                self.in_sandbox(&agent, SandboxEffect::Answer { id: wish, answer });
            }
        }
    }

    /// Streamed text of an incomplete answer is part of the conversation.
    fn keep_partial(&mut self, id: &TurnId, text: String) {
        if !text.trim().is_empty() {
            let body = MessageBody { text, partial: true, ..MessageBody::default() };
            self.message(id, Role::Assistant, body);
        }
    }

    pub(crate) fn step_state(
        &mut self,
        id: &TurnId,
        at: ModelAttempt,
        state: StepState,
        ended: Option<Timestamp>,
    ) {
        self.step.write_with_next_commit(TurnWrite::StepState {
            turn: id.clone(),
            step: at.0,
            ordinal: 0,
            state,
            attempt: at.1,
            exit_code: None,
            signal: None,
            cause: None,
            ended_at: ended,
        });
    }

    pub(crate) fn step_finished(&mut self, id: &TurnId, step: u32, kind: StepKind, state: StepState) {
        let (kind, status) = (kind.word().to_owned(), state.word().to_owned());
        self.turn_event(id, |session, turn| TurnStepFinished { session, turn, step, kind, status });
    }

    /// Ends the steps in flight of a turn that is ending: the model call is cancelled, programs are killed.
    pub(crate) fn cut_steps(&mut self, id: &TurnId, event: StepEvent) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let agent = turn.row.agent.clone();
        let step = turn.step;
        let phase = std::mem::replace(&mut turn.phase, Phase::Thinking);
        let cut = turn.cut.take();
        let Ok(state) = StepState::Intent.next(event) else { return };
        self.close_summary(id, state);
        if let Some(CutCall { at, shown }) = cut {
            // The text is of the step that waited, not of the finished one before it.
            self.turns.get_mut(id).into_iter().for_each(|turn| turn.step = at.0);
            self.keep_partial(id, shown);
            self.step_state(id, at, state, Some(self.step.now));
            self.step_finished(id, at.0, StepKind::Model, state);
        }
        match phase {
            Phase::Thinking => {}
            Phase::Summary(_) => self.step.act(Effect::Model(ModelEffect::Cancel { turn: id.clone() })),
            Phase::Model { attempt, shown, .. } => {
                self.step.act(Effect::Model(ModelEffect::Cancel { turn: id.clone() }));
                self.keep_partial(id, shown);
                self.step_state(id, (step, attempt), state, Some(self.step.now));
                self.step_finished(id, step, StepKind::Model, state);
            }
            Phase::Tools { calls } => self.cut_calls(id, &agent, calls, state),
        }
    }
}

/// Some models give several calls the same id. Results are paired by id, so each call gets its own.
fn make_call_ids_unique(calls: &mut [CallRecord]) {
    for at in 1..calls.len() {
        let (before, rest) = calls.split_at_mut(at);
        let given = rest[0].id.clone();
        let mut copy = 1;
        while before.iter().any(|call| call.id == rest[0].id) {
            copy += 1;
            rest[0].id = format!("{given}.{copy}");
        }
    }
}

fn model_answer(calls: &[ToolCallState], finished: bool) -> RuntimeAnswer {
    RuntimeAnswer::Model { finished, calls: calls.iter().map(|call| call.record.clone()).collect() }
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn a_text_in_pieces_is_the_same_text() {
        for (text, bytes_max, expected) in [
            ("", 3, vec![]),
            ("abcdefg", 3, vec!["abc", "def", "g"]),
            ("aéß言", 2, vec!["a", "é", "ß", "言"]),
            ("言葉", 4, vec!["言", "葉"]),
            ("言", 1, vec!["言"]),
        ] {
            assert_eq!(pieces(text, bytes_max).collect::<Vec<_>>(), expected, "{text}");
        }
    }
}
