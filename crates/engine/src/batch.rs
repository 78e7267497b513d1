//! The result of one step of the engine, and the step in progress.

use lodge_core::record::{EventRow, Write};
use lodge_core::{AgentId, ExecId, SandboxId, Timestamp};

use crate::{AgentEffect, Answer, Effect, ModelEffect, ModelOrder, Refusal, Ticket};

/// Something that leaves the daemon once the batch is on disk.
#[derive(Debug)]
pub enum BatchOutput {
    Reply { ticket: Ticket, reply: Result<Answer, Refusal> },
    Act(Effect),
}

/// The decisions of one step.
#[derive(Debug, Default)]
pub struct Batch {
    pub writes: Vec<Write>,
    /// Whether a caller waits for these writes. Other writes join the next commit.
    pub urgent: bool,
    /// Effects that may precede the commit: model calls and lookups.
    pub early: Vec<Effect>,
    /// Effects that wait for the commit, in this order.
    pub after: Vec<BatchOutput>,
}

impl Batch {
    pub fn events(&self) -> impl Iterator<Item = &EventRow> {
        self.writes.iter().filter_map(Write::event)
    }

    /// How many answers to requests the batch records.
    pub fn requests(&self) -> usize {
        self.writes.iter().filter(|write| write.request().is_some()).count()
    }
}

/// An effect that may precede its commit, because repeating it after a crash is harmless. Nothing else leaves before its
/// commit.
#[derive(Debug)]
pub(crate) enum EarlyEffect {
    CallModel(Box<ModelOrder>),
    LookUp { agent: AgentId, ask: u64 },
    LookUpSandbox { ask: u64, sandbox: SandboxId, exec: Option<ExecId> },
}

impl From<EarlyEffect> for Effect {
    fn from(effect: EarlyEffect) -> Effect {
        match effect {
            EarlyEffect::CallModel(order) => Effect::Model(ModelEffect::Call(order)),
            EarlyEffect::LookUp { agent, ask } => Effect::Agent(AgentEffect::LookUp { agent, ask }),
            EarlyEffect::LookUpSandbox { ask, sandbox, exec } => Effect::LookUpSandbox { ask, sandbox, exec },
        }
    }
}

/// The current step: its time and its decisions so far. Empty between steps.
#[derive(Debug)]
pub(crate) struct Step {
    pub now: Timestamp,
    batch: Batch,
}

impl Step {
    pub(crate) fn at(now: Timestamp) -> Step {
        Step { now, batch: Batch::default() }
    }

    /// Ends the step and returns its decisions.
    pub(crate) fn take(&mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }

    /// Records a write that a caller waits for.
    pub(crate) fn write(&mut self, write: impl Into<Write>) {
        self.batch.writes.push(write.into());
        self.batch.urgent = true;
    }

    /// Records a write with the next commit, without forcing one.
    pub(crate) fn write_with_next_commit(&mut self, write: impl Into<Write>) {
        self.batch.writes.push(write.into());
    }

    /// Orders an effect after the commit.
    pub(crate) fn act(&mut self, effect: Effect) {
        self.batch.after.push(BatchOutput::Act(effect));
    }

    /// Orders an effect at once.
    pub(crate) fn act_early(&mut self, effect: EarlyEffect) {
        self.batch.early.push(effect.into());
    }

    /// Marks the step as one that a caller waits for.
    pub(crate) fn mark_urgent(&mut self) {
        self.batch.urgent = true;
    }

    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.batch.after.push(BatchOutput::Reply { ticket, reply: Ok(answer) });
    }

    pub(crate) fn refuse(&mut self, ticket: Ticket, refusal: Refusal) {
        self.batch.after.push(BatchOutput::Reply { ticket, reply: Err(refusal) });
    }

    pub(crate) fn writes(&self) -> &[Write] {
        &self.batch.writes
    }
}
