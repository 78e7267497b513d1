//! What the engine remembers of a turn.

use lodge_core::epoch::Strategy;
use lodge_core::record::{CallRecord, LiveTurn, StepKind, StepRow, TurnRow};
use lodge_core::turn::{StepState, TurnState};
use lodge_core::{Timestamp, TurnId};

use super::compact::SUMMARY_STEP;
use super::messages::{AskId, CallOutcome, RuntimeAnswer};

/// What the runtime asked for and waits to hear of.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub id: AskId,
    pub context: String,
    pub from_turn: u32,
}

/// Where a running turn stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The runtime has the word.
    Thinking,
    /// The model writes what will stand before the messages of the next epoch.
    Summary(Compaction),
    /// A model call is in flight.
    ///
    /// `attempt` also counts calls that a crash of the daemon cut; only `failures` use up the model's tries.
    /// `shown` is what of its text is recorded.
    Model { attempt: u32, failures: u32, wish: Wish, shown: String },
    /// The newest answer asked for tools.
    Tools { calls: Vec<Call> },
}

/// A new epoch that is in the making.
#[derive(Debug)]
pub(crate) struct Compaction {
    /// As in [`Phase::Model`].
    pub attempt: u32,
    pub failures: u32,
    pub waiter: AskId,
    /// The first turn that is read, should there be no summary.
    pub from_turn: u32,
    pub strategy: Strategy,
}

/// One tool call of the newest answer.
#[derive(Debug)]
pub(crate) struct Call {
    pub record: CallRecord,
    /// Its intent, once the runtime asked for it.
    pub step: Option<StepRow>,
    pub waiter: Option<AskId>,
    /// The answer to the runtime, once the result is stored.
    pub result: Option<RuntimeAnswer>,
}

#[derive(Debug)]
pub(crate) struct Turn {
    pub row: TurnRow,
    /// The newest model step's number; 0 before the first.
    pub step: u32,
    pub phase: Phase,
    /// A model step whose intent was recorded by an earlier daemon and whose answer was not.
    pub cut: Option<StepRow>,
    /// The step that writes a summary before the first model call, once it is recorded.
    pub summary: Option<StepRow>,
    /// A model call that was made and may not have been recorded, as step and attempt: its answer may still come, and is
    /// not the answer to another one.
    pub spent: Option<(u32, u32)>,
    /// Answers that did not fit the schema.
    pub misfits: usize,
    /// The newest event when it came, which tells apart what came at the same time; 0 for one of an earlier daemon.
    pub came: u64,
    /// What it is told before its user's message, until it begins.
    pub note: Option<String>,
}

impl Turn {
    pub(crate) fn new(row: TurnRow) -> Self {
        let phase = Phase::Thinking;
        Turn { row, step: 0, phase, cut: None, summary: None, spent: None, misfits: 0, came: 0, note: None }
    }

    /// Before others with a smaller one it does not start.
    pub(crate) fn place(&self) -> (Timestamp, u64, &TurnId) {
        (self.row.created_at, self.came, &self.row.id)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.row.state == TurnState::Running
    }

    /// Rebuilds a turn from its ledger.
    pub(crate) fn from_live(live: LiveTurn) -> Self {
        // A model step of a live turn has failed only if its answer, which is stored, did not fit.
        let is_call = |step: &&StepRow| step.kind() == StepKind::Model && step.step != SUMMARY_STEP;
        let of_model = |state| move |step: &&StepRow| is_call(step) && step.state == state;
        let newest =
            |state| live.steps.iter().filter(of_model(state)).map(|step| step.step).max().unwrap_or(0);
        let (newest_fit, newest_misfit) = (newest(StepState::Done), newest(StepState::Failed));
        let newest_done = newest_fit.max(newest_misfit);
        let misfits = live.steps.iter().filter(of_model(StepState::Failed)).count();
        let cut = live.steps.iter().find(of_model(StepState::Intent)).cloned();
        let summary = live.steps.iter().find(|step| step.step == SUMMARY_STEP).cloned();
        let calls: Vec<Call> = live
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
                Call { record: record.clone(), step, waiter: None, result }
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

    /// The attempt that a call for a step is, when `recorded` is the last one that is recorded.
    pub(crate) fn next_attempt(&self, step: u32, recorded: Option<&StepRow>) -> u32 {
        let spent = self.spent.filter(|(spent, _)| *spent == step).map_or(0, |(_, attempt)| attempt);
        recorded.map_or(0, |row| row.attempt).max(spent) + 1
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
