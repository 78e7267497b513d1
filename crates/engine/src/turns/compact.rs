//! Compaction: a new epoch of a session, recorded before its runtime hears of it.
//!
//! The messages stay as they are. An epoch begins before the first model call of a turn, so that a conversation is never
//! changed in the middle of one. The call that writes a summary is a step of that turn, step 0, and like any other: safe
//! to repeat until its text is stored, and never made again after that.

use lodge_core::TurnId;
use lodge_core::epoch::{Epoch, EpochRow, SUMMARY_BYTES_MAX, Strategy, Summary};
use lodge_core::event::SessionCompacted;
use lodge_core::record::{FailureRecord, SessionWrite, StepKind};
use lodge_core::turn::StepState;

use super::messages::{RuntimeAnswer, RuntimeCallId};
use super::outages::AfterFailure;
use super::refusal::{RuntimeCallRefusal, TurnFault};
use super::state::{Compaction, Phase, Turn};
use crate::batch::EarlyEffect;
use crate::{CallRetry, Engine, ModelAnswer, ModelFailure, ModelOrder, Purpose, SandboxEffect};

/// The step under which a summary is written, before the first model call of its turn.
pub(crate) const SUMMARY_STEP: u32 = 0;

/// A runtime's request for compaction.
#[derive(Debug)]
pub(crate) struct CompactionRequest {
    pub turn: TurnId,
    pub from_turn: u32,
    pub strategy: Strategy,
}

/// How a request for compaction is decided.
#[derive(Debug)]
enum CompactionVerdict {
    /// The compaction runs already: the request was repeated.
    Waits,
    /// An existing epoch is sufficient.
    Settled,
    Refused(RuntimeCallRefusal),
    Begins,
}

impl Engine {
    pub(crate) fn request_compaction(&mut self, waiter: RuntimeCallId, wanted: &CompactionRequest) {
        let Some(turn) = self.turns.get_mut(&wanted.turn) else { return };
        let Some(session) = self.sessions.get(&turn.row.session) else { return };
        let (agent, from_turn) = (turn.row.agent.clone(), session.epoch.from_turn);
        let answer = match verdict(turn, &session.epoch, wanted) {
            CompactionVerdict::Waits => {
                if let Phase::Summary(compaction) = &mut turn.phase {
                    compaction.waiter = waiter;
                }
                return;
            }
            CompactionVerdict::Begins => match wanted.strategy {
                Strategy::Sliding => {
                    let begun =
                        EpochStart { strategy: Strategy::Sliding, from_turn: wanted.from_turn, why: None };
                    return self.begin_epoch(&wanted.turn, waiter, begun, Summary::Nothing);
                }
                Strategy::Summarize | Strategy::Handoff => {
                    return self.request_summary(waiter, wanted);
                }
            },
            CompactionVerdict::Settled => Ok(RuntimeAnswer::Compacted { from_turn }),
            CompactionVerdict::Refused(refusal) => Err(refusal),
        };
        self.in_sandbox(&agent, SandboxEffect::Answer { id: waiter, answer });
        self.step.mark_urgent();
    }

    fn request_summary(&mut self, waiter: RuntimeCallId, wanted: &CompactionRequest) {
        let id = &wanted.turn;
        if !self.may_call(id) {
            return;
        }
        let Some(turn) = self.turns.get_mut(id) else { return };
        // A summary that an earlier daemon requested and has no answer to.
        let attempt = turn.next_attempt(SUMMARY_STEP, turn.summary.as_ref().map(|row| row.attempt));
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
        self.step.act_early(EarlyEffect::CallModel(Box::new(ModelOrder {
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
        })));
    }

    pub(crate) fn summary_answered(&mut self, id: &TurnId, attempt: u32, answer: &ModelAnswer) {
        let Some(text) = summary_of(&answer.text) else {
            let record = TurnFault::NoSummary.record();
            let failed = ModelFailure { record, retry: CallRetry::Never };
            self.charge_summary(id, attempt, answer);
            return self.summary_failed(id, attempt, failed);
        };
        self.charge_summary(id, attempt, answer);
        let Some(compaction) = self.end_summary(id, attempt, StepState::Done) else { return };
        self.provider_answers(id);
        self.forget_wait(id);
        let number = self.turns.get(id).map_or(0, |turn| turn.row.number);
        let from_turn = first_read(&compaction, number);
        let begun = EpochStart { strategy: compaction.strategy, from_turn, why: None };
        self.begin_epoch(id, compaction.waiter, begun, Summary::Text(text));
    }

    pub(crate) fn summary_failed(&mut self, id: &TurnId, attempt: u32, failed: ModelFailure) {
        let Some(compaction) = self.compaction(id, attempt) else { return };
        compaction.failures += 1;
        let failures = compaction.failures;
        match self.call_failed(id, failures, failed) {
            AfterFailure::Repeat { delay_ms } => {
                let Some(compaction) = self.compaction(id, attempt) else { return };
                compaction.attempt = attempt + 1;
                self.repeat_summary(id, attempt + 1);
                self.call_summary(id, delay_ms);
            }
            AfterFailure::Wait => {}
            AfterFailure::GiveUp(record) => {
                let ended = self.end_summary(id, attempt, StepState::Failed);
                let Some(Compaction { waiter, from_turn, .. }) = ended else { return };
                self.stop_waiting(id);
                // The summary of older turns is still valid.
                let begun = EpochStart { strategy: Strategy::Sliding, from_turn, why: Some(record) };
                self.begin_epoch(id, waiter, begun, Summary::Kept);
            }
        }
    }

    /// The cost of a summary counts for its turn.
    fn charge_summary(&mut self, id: &TurnId, attempt: u32, answer: &ModelAnswer) {
        if self.compaction(id, attempt).is_none() {
            return;
        }
        if let Some(turn) = self.turns.get_mut(id) {
            turn.row.usage += answer.usage;
        }
        self.write_turn(id);
    }

    /// The compaction that waits for exactly this attempt.
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

    /// Ends the open step of a summary.
    pub(crate) fn close_summary(&mut self, id: &TurnId, state: StepState) {
        let Some(turn) = self.turns.get_mut(id) else { return };
        let Some(row) = turn.summary.as_mut().filter(|row| row.state == StepState::Intent) else { return };
        row.state = state;
        let at = (SUMMARY_STEP, row.attempt);
        self.step_state(id, at, state, Some(self.step.now));
        self.step_finished(id, SUMMARY_STEP, StepKind::Model, state);
    }

    fn begin_epoch(&mut self, id: &TurnId, waiter: RuntimeCallId, begun: EpochStart, summary: Summary) {
        let Some(turn) = self.turns.get(id) else { return };
        let Some(session) = self.sessions.get_mut(&turn.row.session) else { return };
        let Some(agent) = self.agents.get(&turn.row.agent) else { return };
        let EpochStart { strategy, from_turn, why } = begun;
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
        // The runtime repeats its next request to a later daemon, which must know what that request is based on.
        self.step.act(answer);
        self.step.write(SessionWrite::Epoch(row));
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

/// Why an epoch begins.
#[derive(Debug)]
struct EpochStart {
    strategy: Strategy,
    from_turn: u32,
    /// The summary that failed.
    why: Option<FailureRecord>,
}

fn verdict(turn: &Turn, epoch: &Epoch, wanted: &CompactionRequest) -> CompactionVerdict {
    let over = turn.summary.as_ref().is_some_and(|row| row.state != StepState::Intent);
    match &turn.phase {
        Phase::Summary(_) => CompactionVerdict::Waits,
        Phase::Thinking | Phase::Model { .. } | Phase::Tools { .. }
            if over || wanted.from_turn <= epoch.from_turn =>
        {
            CompactionVerdict::Settled
        }
        Phase::Thinking if turn.step == 0 && wanted.from_turn <= turn.row.number => CompactionVerdict::Begins,
        Phase::Thinking if turn.step == 0 => {
            CompactionVerdict::Refused(RuntimeCallRefusal::BadWindow { number: turn.row.number })
        }
        Phase::Thinking | Phase::Model { .. } | Phase::Tools { .. } => {
            CompactionVerdict::Refused(RuntimeCallRefusal::CompactionTooLate)
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

/// A summary within its bound; none if it is empty.
fn summary_of(text: &str) -> Option<String> {
    let text = text.trim();
    let mut end = text.len().min(SUMMARY_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(text[..end].to_owned()).filter(|text| !text.is_empty())
}
