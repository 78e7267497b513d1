//! What the engine remembers of everything live.

use std::collections::VecDeque;

use lodge_core::TurnId;
use lodge_core::liveness::Liveness;
use lodge_core::record::{
    AgentRow, CallRecord, LineageRow, LiveTurn, SessionFact, SessionRow, StepKind, StepRow, TurnRow,
};
use lodge_core::turn::{StepState, TurnState};
use serde_json::Value;

use super::Caller;

/// A caller that waits until an agent's sandbox is gone.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub caller: Caller,
    /// The agent's run when it asked: the end of an earlier one is not what it waits for.
    pub run: u32,
    /// The newest event when that was decided: a store that does not have it lost the decision.
    pub seq: u64,
    /// What it is told then, and what its request has as answer from now on.
    pub answer: Value,
}

#[derive(Debug)]
pub(crate) struct Agent {
    pub row: AgentRow,
    pub stopping: Vec<Waiting>,
    /// Turns that run now.
    pub running: usize,
    pub lineage: LineageRow,
    pub liveness: Liveness,
}

impl Agent {
    pub(crate) fn new(row: AgentRow, lineage: LineageRow) -> Self {
        Agent { row, stopping: Vec::new(), running: 0, lineage, liveness: Liveness::Active }
    }
}

#[derive(Debug)]
pub(crate) struct Session {
    pub row: SessionRow,
    pub turns: u32,
    pub messages: u64,
    /// Live turns in order; only the first may run.
    pub live: VecDeque<TurnId>,
}

impl Session {
    pub(crate) fn new(row: SessionRow) -> Self {
        Session { row, turns: 0, messages: 0, live: VecDeque::new() }
    }

    pub(crate) fn from_fact(fact: &SessionFact) -> Self {
        Session { row: fact.row.clone(), turns: fact.turns, messages: fact.messages, live: VecDeque::new() }
    }
}

/// What the runtime asked for and waits to hear of.
#[derive(Debug, Clone)]
pub(crate) struct Wish {
    pub id: Value,
    pub context: String,
    pub from_turn: u32,
}

/// Where a running turn stands.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The runtime has the word.
    Thinking,
    /// A model call is in flight.
    ///
    /// `attempt` also counts calls that a crash of the daemon cut; only `failures` use up the model's tries.
    Model { attempt: u32, failures: u32, wish: Wish, stored: u64 },
    /// The newest answer asked for tools.
    Tools { calls: Vec<Call> },
}

/// One tool call of the newest answer.
#[derive(Debug)]
pub(crate) struct Call {
    pub record: CallRecord,
    /// Its intent, once the runtime asked for it.
    pub step: Option<StepRow>,
    pub waiter: Option<Value>,
    /// What the runtime is told, once the result is stored.
    pub result: Option<Value>,
}

#[derive(Debug)]
pub(crate) struct Turn {
    pub row: TurnRow,
    /// The newest model step's number; 0 before the first.
    pub step: u32,
    pub phase: Phase,
    /// A model step whose intent was recorded by an earlier daemon and whose answer was not.
    pub cut: Option<StepRow>,
}

impl Turn {
    pub(crate) fn new(row: TurnRow) -> Self {
        Turn { row, step: 0, phase: Phase::Thinking, cut: None }
    }

    pub(crate) fn is_running(&self) -> bool {
        match self.row.state {
            TurnState::Running | TurnState::Waiting => true,
            TurnState::Queued | TurnState::Done | TurnState::Interrupted | TurnState::Failed => false,
        }
    }

    /// Rebuilds a turn from its ledger.
    pub(crate) fn from_live(live: LiveTurn) -> Self {
        let newest_done = live
            .steps
            .iter()
            .filter(|step| step.kind == StepKind::Model && step.state == StepState::Done)
            .map(|step| step.step)
            .max()
            .unwrap_or(0);
        let cut = live
            .steps
            .iter()
            .find(|step| step.kind == StepKind::Model && step.state == StepState::Intent)
            .cloned();
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
                let result = answered.then(|| super::execs::result_of(step.as_ref()));
                Call { record: record.clone(), step, waiter: None, result }
            })
            .collect();
        let phase = if calls.is_empty() { Phase::Thinking } else { Phase::Tools { calls } };
        Turn { row: live.row, step: newest_done, phase, cut }
    }

    /// The number of the next model call, and the calls of the newest answer that still lack a result.
    pub(crate) fn resume_point(&self) -> (u32, Vec<CallRecord>) {
        match &self.phase {
            Phase::Thinking => (self.step + 1, Vec::new()),
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
