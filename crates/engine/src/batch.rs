//! What one step of the engine decides, and the step while it is made.

use lodge_core::Timestamp;
use lodge_core::record::{EventRow, Write};

use crate::{Answer, Effect, Refusal, Ticket};

/// Something that leaves the daemon once the batch is on disk.
#[derive(Debug)]
pub enum Out {
    Reply { ticket: Ticket, reply: Result<Answer, Refusal> },
    Act(Effect),
}

/// What one step decided.
#[derive(Debug, Default)]
pub struct Batch {
    pub writes: Vec<Write>,
    /// Whether somebody waits for these writes. Others ride on the next commit.
    pub urgent: bool,
    /// May be done before the commit: repeating them after a crash does no harm.
    pub early: Vec<Effect>,
    /// Must wait for the commit, in this order.
    pub after: Vec<Out>,
}

impl Batch {
    pub fn events(&self) -> impl Iterator<Item = &EventRow> {
        self.writes.iter().filter_map(Write::event)
    }

    /// How many answers to requests are recorded with it.
    pub fn requests(&self) -> usize {
        self.writes.iter().filter(|write| write.request().is_some()).count()
    }
}

/// The step that the engine is making: its time, and what was decided so far. Empty between steps.
#[derive(Debug)]
pub(crate) struct Step {
    pub now: Timestamp,
    batch: Batch,
}

impl Step {
    pub(crate) fn at(now: Timestamp) -> Step {
        Step { now, batch: Batch::default() }
    }

    /// Ends the step and hands out what it decided.
    pub(crate) fn take(&mut self) -> Batch {
        std::mem::take(&mut self.batch)
    }

    /// Records something that somebody waits for.
    pub(crate) fn write(&mut self, write: impl Into<Write>) {
        self.batch.writes.push(write.into());
        self.batch.urgent = true;
    }

    /// Records something with the next commit, and forces none.
    pub(crate) fn ride(&mut self, write: impl Into<Write>) {
        self.batch.writes.push(write.into());
    }

    /// Does something after the commit.
    pub(crate) fn act(&mut self, effect: Effect) {
        self.batch.after.push(Out::Act(effect));
    }

    /// Does something at once: repeating it after a crash does no harm.
    pub(crate) fn act_early(&mut self, effect: Effect) {
        self.batch.early.push(effect);
    }

    /// Somebody waits for this step.
    pub(crate) fn hurry(&mut self) {
        self.batch.urgent = true;
    }

    pub(crate) fn answer(&mut self, ticket: Ticket, answer: Answer) {
        self.batch.after.push(Out::Reply { ticket, reply: Ok(answer) });
    }

    pub(crate) fn refuse(&mut self, ticket: Ticket, refusal: Refusal) {
        self.batch.after.push(Out::Reply { ticket, reply: Err(refusal) });
    }

    pub(crate) fn writes(&self) -> &[Write] {
        &self.batch.writes
    }
}
