//! Compaction: a new epoch of a session. A summary is recorded before anything is read by it, a window that slides no later
//! than the answer.
//!
//! The messages stay as they are. An epoch begins before the first model call of a turn, so that a conversation is never
//! changed in the middle of one. The call that writes a summary is a step of that turn, step 0, and like any other: safe
//! to repeat until its text is stored, and never made again after that.

use lodge_core::TurnId;
use lodge_core::epoch::{Epoch, EpochRow, SUMMARY_BYTES_MAX, Strategy, Summary};
use lodge_core::event::SessionCompacted;
use lodge_core::record::{FailureRecord, SessionWrite, StepKind};
use lodge_core::retry::{self, Again};
use lodge_core::turn::StepState;

use super::messages::{AskId, RuntimeAnswer};
use super::state::{Compaction, Phase, Turn};
use crate::{
    Effect, Engine, ModelAnswer, ModelEffect, ModelFailure, ModelOrder, Purpose, SandboxEffect, failure,
};

/// The step under which a summary is written, before the first model call of its turn.
pub(crate) const SUMMARY_STEP: u32 = 0;

/// What a runtime asks for.
#[derive(Debug)]
pub(crate) struct CompactAsk {
    pub turn: TurnId,
    pub from_turn: u32,
    pub strategy: Strategy,
}

/// What becomes of it.
#[derive(Debug)]
enum Verdict {
    /// It is under way: the same question again.
    Waits,
    /// There is an epoch that does as well.
    Settled,
    Refused(FailureRecord),
    Begins,
}

impl Engine {
    pub(crate) fn ask_compact(&mut self, waiter: AskId, wanted: &CompactAsk) {
        let Some(turn) = self.turns.get_mut(&wanted.turn) else { return };
        let Some(session) = self.sessions.get(&turn.row.session) else { return };
        let (agent, from_turn) = (turn.row.agent.clone(), session.epoch.from_turn);
        let answer = match verdict(turn, &session.epoch, wanted) {
            Verdict::Waits => {
                if let Phase::Summary(compaction) = &mut turn.phase {
                    compaction.waiter = waiter;
                }
                return;
            }
            Verdict::Begins => match wanted.strategy {
                Strategy::Sliding => {
                    let begun = Begun { strategy: Strategy::Sliding, from_turn: wanted.from_turn, why: None };
                    return self.begin_epoch(&wanted.turn, waiter, begun, Summary::Nothing);
                }
                Strategy::Summarize | Strategy::Handoff => {
                    return self.ask_summary(waiter, wanted);
                }
            },
            Verdict::Settled => Ok(RuntimeAnswer::Compacted { from_turn }),
            Verdict::Refused(failure) => Err(failure),
        };
        self.in_sandbox(&agent, SandboxEffect::Answer { id: waiter, answer });
        self.step.hurry();
    }

    fn ask_summary(&mut self, waiter: AskId, wanted: &CompactAsk) {
        let id = &wanted.turn;
        let Some(turn) = self.turns.get_mut(id) else { return };
        // One that an earlier daemon asked for and did not hear of.
        let attempt = turn.next_attempt(SUMMARY_STEP, turn.summary.as_ref());
        let (from_turn, strategy) = (wanted.from_turn, wanted.strategy);
        turn.phase = Phase::Summary(Compaction { attempt, failures: 0, waiter, from_turn, strategy });
        if turn.summary.is_some() {
            self.repeat_summary(id, attempt);
        } else {
            let row = self.intend_model(id, (SUMMARY_STEP, attempt));
            if let Some(turn) = self.turns.get_mut(id) {
                turn.summary = Some(row);
            }
        }
        self.call_summary(id, 0);
    }

    fn repeat_summary(&mut self, id: &TurnId, attempt: u32) {
        if let Some(row) = self.turns.get_mut(id).and_then(|turn| turn.summary.as_mut()) {
            row.attempt = attempt;
        }
        self.restart_event(id, (SUMMARY_STEP, attempt));
    }

    fn call_summary(&mut self, id: &TurnId, delay_ms: u64) {
        let model = self.model_of(id);
        let Some(turn) = self.turns.get(id) else { return };
        let Phase::Summary(compaction) = &turn.phase else { return };
        let Some(session) = self.sessions.get(&turn.row.session) else { return };
        let strategy = compaction.strategy;
        let upto = first_read(compaction, turn.row.number) - 1;
        self.step.act_early(Effect::Model(ModelEffect::Call(Box::new(ModelOrder {
            agent: turn.row.agent.clone(),
            model,
            session: turn.row.session.clone(),
            turn: id.clone(),
            number: turn.row.number,
            step: SUMMARY_STEP,
            attempt: compaction.attempt,
            from_turn: session.epoch.from_turn,
            context: String::new(),
            summary: session.epoch.summary(),
            message: session.messages,
            bytes: session.epoch.read_bytes(session.epoch.from_turn, upto),
            purpose: Purpose::Summary { upto, strategy },
            delay_ms,
        }))));
    }

    pub(crate) fn summary_answered(&mut self, id: &TurnId, attempt: u32, answer: &ModelAnswer) {
        let Some(text) = summary_of(&answer.text) else {
            let record = failure("model.no_summary", "the model wrote no summary");
            let failed = ModelFailure { record, retryable: false, after_ms: None };
            self.pay(id, attempt, answer);
            return self.summary_failed(id, attempt, failed);
        };
        self.pay(id, attempt, answer);
        let Some(compaction) = self.end_summary(id, attempt, StepState::Done) else { return };
        let number = self.turns.get(id).map_or(0, |turn| turn.row.number);
        let from_turn = first_read(&compaction, number);
        let begun = Begun { strategy: compaction.strategy, from_turn, why: None };
        self.begin_epoch(id, compaction.waiter, begun, Summary::Text(text));
    }

    pub(crate) fn summary_failed(&mut self, id: &TurnId, attempt: u32, failed: ModelFailure) {
        let Some(compaction) = self.compaction(id, attempt) else { return };
        compaction.failures += 1;
        match retry::model(compaction.failures, failed.retryable, failed.after_ms) {
            Again::After { delay_ms } => {
                compaction.attempt = attempt + 1;
                self.repeat_summary(id, attempt + 1);
                self.call_summary(id, delay_ms);
            }
            Again::GiveUp => {
                let ended = self.end_summary(id, attempt, StepState::Failed);
                let Some(Compaction { waiter, from_turn, .. }) = ended else { return };
                // What was written down of older turns still stands.
                let begun = Begun { strategy: Strategy::Sliding, from_turn, why: Some(failed.record) };
                self.begin_epoch(id, waiter, begun, Summary::Kept);
            }
        }
    }

    /// What the summary cost is the turn's cost.
    fn pay(&mut self, id: &TurnId, attempt: u32, answer: &ModelAnswer) {
        if self.compaction(id, attempt).is_none() {
            return;
        }
        if let Some(turn) = self.turns.get_mut(id) {
            turn.row.usage += answer.usage;
        }
        self.write_turn(id);
    }

    /// The compaction that waits for this very attempt.
    fn compaction(&mut self, id: &TurnId, attempt: u32) -> Option<&mut Compaction> {
        match &mut self.turns.get_mut(id)?.phase {
            Phase::Summary(compaction) if compaction.attempt == attempt => Some(compaction),
            Phase::Summary(_) | Phase::Thinking | Phase::Model { .. } | Phase::Tools { .. } => None,
        }
    }

    fn end_summary(&mut self, id: &TurnId, attempt: u32, state: StepState) -> Option<Compaction> {
        self.compaction(id, attempt)?;
        let turn = self.turns.get_mut(id)?;
        let Phase::Summary(compaction) = std::mem::replace(&mut turn.phase, Phase::Thinking) else {
            return None;
        };
        self.close_summary(id, state);
        Some(compaction)
    }

    /// Ends the step of a summary that has no end yet.
    pub(crate) fn close_summary(&mut self, id: &TurnId, state: StepState) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let Some(row) = turn.summary.as_mut().filter(|row| row.state == StepState::Intent) else { return };
        row.state = state;
        let at = (SUMMARY_STEP, row.attempt);
        self.step_state(id, at, state, Some(self.step.now));
        self.step_finished(id, SUMMARY_STEP, StepKind::Model, state);
    }

    fn begin_epoch(&mut self, id: &TurnId, waiter: AskId, begun: Begun, summary: Summary) {
        let Some(turn) = self.turns.get(id) else { return };
        let Some(session) = self.sessions.get_mut(&turn.row.session) else { return };
        let Some(agent) = self.agents.get(&turn.row.agent) else { return };
        let Begun { strategy, from_turn, why } = begun;
        let row = EpochRow {
            session: turn.row.session.clone(),
            number: session.epoch.newest + 1,
            turn: turn.row.number,
            from_turn,
            strategy,
            summary,
            at: self.step.now,
        };
        session.epoch.begin(&row);
        let bytes = session.epoch.summary_bytes;
        let (code, message) = why.map(|why| (why.code, why.message)).unzip();
        let (epoch, kind) = (row.number.into(), strategy.word().to_owned());
        let answer = Ok(RuntimeAnswer::Compacted { from_turn });
        let answer = agent.in_sandbox(SandboxEffect::Answer { id: waiter, answer });
        // A window alone is chosen again at no cost. It rides, and is recorded no later than an answer that was read by it.
        if row.summary == Summary::Nothing {
            self.step.act_early(answer);
        } else {
            self.step.hurry();
            self.step.act(answer);
        }
        self.step.ride(SessionWrite::Epoch(row));
        self.turn_event(id, |session, turn| SessionCompacted {
            session,
            turn,
            epoch,
            from_turn,
            kind,
            bytes,
            code,
            message,
        });
    }
}

/// How an epoch came about.
#[derive(Debug)]
struct Begun {
    strategy: Strategy,
    from_turn: u32,
    /// The summary that could not be had.
    why: Option<FailureRecord>,
}

fn verdict(turn: &Turn, epoch: &Epoch, wanted: &CompactAsk) -> Verdict {
    let over = turn.summary.as_ref().is_some_and(|row| row.state != StepState::Intent);
    match &turn.phase {
        Phase::Summary(_) => Verdict::Waits,
        Phase::Thinking | Phase::Model { .. } | Phase::Tools { .. }
            if over || wanted.from_turn <= epoch.from_turn =>
        {
            Verdict::Settled
        }
        Phase::Thinking if turn.step == 0 && wanted.from_turn <= turn.row.number => Verdict::Begins,
        Phase::Thinking if turn.step == 0 => {
            let what = format!("turn {} cannot be left out of its own context", turn.row.number);
            Verdict::Refused(failure("turn.bad_window", &what))
        }
        Phase::Thinking | Phase::Model { .. } | Phase::Tools { .. } => {
            let what = "a conversation is compacted before the first model call of a turn";
            Verdict::Refused(failure("turn.wrong_step", what))
        }
    }
}

/// The first turn that is read after a summary.
fn first_read(compaction: &Compaction, number: u32) -> u32 {
    match compaction.strategy {
        Strategy::Handoff => number,
        Strategy::Sliding | Strategy::Summarize => compaction.from_turn,
    }
}

/// A summary within its bound; none when there is nothing in it.
fn summary_of(text: &str) -> Option<String> {
    let text = text.trim();
    let mut end = text.len().min(SUMMARY_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(text[..end].to_owned()).filter(|text| !text.is_empty())
}
