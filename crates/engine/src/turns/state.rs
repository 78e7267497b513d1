//! The engine's memory of a turn.

use lodge_core::epoch::Strategy;
use lodge_core::record::{CallRecord, LiveTurn, StepKind, StepRow, TurnRow};
use lodge_core::turn::{StepState, TurnState};
use lodge_core::{Timestamp, TurnId};

use super::compact::SUMMARY_STEP;
use super::messages::{CallOutcome, RuntimeAnswer, RuntimeCallId};

/// The runtime's request, which waits for an answer.
#[derive(Debug, Clone)]
pub(crate) struct ModelCallRequest {
    pub id: RuntimeCallId,
    pub context: String,
    pub from_turn: u32,
}

/// The phase of a running turn.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The runtime decides the next request.
    Thinking,
    /// The model writes the text before the messages of the next epoch.
    Summary(Compaction),
    /// A model call is in flight.
    ///
    /// `attempt` also counts calls that a crash of the daemon interrupted. `failures` counts those that the daemon could not
    /// make. `shown` is the recorded part of its text.
    Model { attempt: u32, failures: u32, wish: ModelCallRequest, shown: String },
    /// The newest answer contains tool calls.
    Tools { calls: Vec<ToolCallState> },
}

/// A new epoch in preparation.
#[derive(Debug)]
pub(crate) struct Compaction {
    /// As in [`Phase::Model`].
    pub attempt: u32,
    pub failures: u32,
    pub waiter: RuntimeCallId,
    /// The first turn that is read without a summary.
    pub from_turn: u32,
    pub strategy: Strategy,
}

/// One tool call of the newest answer.
#[derive(Debug)]
pub(crate) struct ToolCallState {
    pub record: CallRecord,
    /// Its intent, once the runtime requested it.
    pub step: Option<StepRow>,
    pub waiter: Option<RuntimeCallId>,
    /// The answer to the runtime, once the result is stored.
    pub result: Option<RuntimeAnswer>,
}

/// A model call that ended without an answer.
#[derive(Debug)]
pub(crate) struct CutCall {
    /// Its step and attempt.
    pub at: (u32, u32),
    /// The part of its text that people saw. Empty if an earlier daemon made the call.
    pub shown: String,
}

#[derive(Debug)]
pub(crate) struct Turn {
    pub row: TurnRow,
    /// The newest model step's number; 0 before the first.
    pub step: u32,
    pub phase: Phase,
    /// A model step whose intent is recorded and that has no call in flight: an earlier daemon made the call, or it failed
    /// and is made again.
    pub cut: Option<CutCall>,
    /// The step that writes a summary before the first model call, once it is recorded.
    pub summary: Option<StepRow>,
    /// A model call that was made and may not be recorded, as step and attempt: its answer may still arrive, and must
    /// not count for another call.
    pub spent: Option<(u32, u32)>,
    /// Answers that did not match the schema.
    pub misfits: usize,
    /// The newest event when the turn arrived, which orders turns of the same time; 0 for a turn of an earlier daemon.
    pub came: u64,
    /// The note before its user's message, until the turn starts.
    pub note: Option<String>,
}

impl Turn {
    pub(crate) fn new(row: TurnRow) -> Self {
        let phase = Phase::Thinking;
        Turn { row, step: 0, phase, cut: None, summary: None, spent: None, misfits: 0, came: 0, note: None }
    }

    /// The order of starts: a turn starts after all turns with a smaller value.
    pub(crate) fn place(&self) -> (Timestamp, u64, &TurnId) {
        (self.row.created_at, self.came, &self.row.id)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.row.state == TurnState::Running
    }

    /// Rebuilds a turn from its ledger.
    pub(crate) fn from_live(live: LiveTurn) -> Self {
        // A model step of a live turn has failed only if its stored answer did not match.
        let is_call = |step: &&StepRow| step.kind() == StepKind::Model && step.step != SUMMARY_STEP;
        let of_model = |state| move |step: &&StepRow| is_call(step) && step.state == state;
        let newest =
            |state| live.steps.iter().filter(of_model(state)).map(|step| step.step).max().unwrap_or(0);
        let (newest_fit, newest_misfit) = (newest(StepState::Done), newest(StepState::Failed));
        let newest_done = newest_fit.max(newest_misfit);
        let misfits = live.steps.iter().filter(of_model(StepState::Failed)).count();
        let cut = live.steps.iter().find(of_model(StepState::Intent));
        let cut = cut.map(|row| CutCall { at: (row.step, row.attempt), shown: String::new() });
        let summary = live.steps.iter().find(|step| step.step == SUMMARY_STEP).cloned();
        let calls: Vec<ToolCallState> = live
            .calls
            .iter()
            .map(|record| {
                let step = live
                    .steps
                    .iter()
                    .find(|step| step.step == newest_done && step.call.as_deref() == Some(&record.id))
                    .cloned();
                let answered = live.answered.contains(&record.id);
                let result = answered.then(|| {
                    let outcome = step.as_ref().map(CallOutcome::of_step);
                    outcome.map_or(RuntimeAnswer::Done, RuntimeAnswer::Call)
                });
                ToolCallState { record: record.clone(), step, waiter: None, result }
            })
            .collect();
        let answered = newest_misfit > newest_fit || !calls.is_empty();
        let phase = if answered { Phase::Tools { calls } } else { Phase::Thinking };
        let (step, note) = (newest_done, live.note);
        Turn { row: live.row, step, phase, cut, summary, spent: None, misfits, came: 0, note }
    }

    /// The newest model call that was made for it.
    pub(crate) fn newest_call(&self) -> Option<(u32, u32)> {
        match &self.phase {
            Phase::Model { attempt, .. } => Some((self.step, *attempt)),
            Phase::Summary(compaction) => Some((SUMMARY_STEP, compaction.attempt)),
            Phase::Thinking | Phase::Tools { .. } => self.spent,
        }
    }

    /// The attempt number of a call for a step, given the last recorded one.
    pub(crate) fn next_attempt(&self, step: u32, recorded: Option<u32>) -> u32 {
        let spent = self.spent.filter(|(spent, _)| *spent == step).map_or(0, |(_, attempt)| attempt);
        recorded.unwrap_or(0).max(spent) + 1
    }

    /// The number of the next model call, and the calls of the newest answer that still lack a result.
    pub(crate) fn resume_point(&self) -> (u32, Vec<CallRecord>) {
        match &self.phase {
            Phase::Thinking | Phase::Summary(_) => (self.step + 1, Vec::new()),
            Phase::Model { .. } => (self.step, Vec::new()),
            Phase::Tools { calls } => {
                let open = calls
                    .iter()
                    .filter(|call| call.result.is_none())
                    .map(|call| call.record.clone())
                    .collect();
                (self.step + 1, open)
            }
        }
    }
}
