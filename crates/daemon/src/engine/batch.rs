//! What one step of the engine decided.

use lodge_core::record::{EventRow, Write};
use lodge_proto::ErrorBody;
use serde_json::Value;

use super::{Effect, Ticket};

/// Something that leaves the daemon once the batch is on disk.
#[derive(Debug)]
pub enum Out {
    Reply { ticket: Ticket, reply: Result<Value, ErrorBody> },
    Act(Effect),
}

/// What one step decided.
#[derive(Debug, Default)]
pub struct Batch {
    pub writes: Vec<Write>,
    /// Whether somebody waits for these writes. Others ride on the next commit.
    pub urgent: bool,
    /// May be done before the commit: repeating them after a crash does no harm.
    pub now: Vec<Effect>,
    /// Must wait for the commit, in this order.
    pub after: Vec<Out>,
}

impl Batch {
    pub fn events(&self) -> impl Iterator<Item = &EventRow> {
        self.writes.iter().filter_map(|write| match write {
            Write::Event(event) => Some(event),
            Write::Image(_)
            | Write::ImageRef(_)
            | Write::ImageRefGone { .. }
            | Write::ImageGone { .. }
            | Write::Agent(_)
            | Write::AgentState { .. }
            | Write::AgentSpec { .. }
            | Write::Lineage(_)
            | Write::Session(_)
            | Write::SessionPath(_)
            | Write::SessionFork(_)
            | Write::SessionDeleted { .. }
            | Write::Turn(_)
            | Write::TurnState { .. }
            | Write::Step(_)
            | Write::StepState { .. }
            | Write::Epoch(_)
            | Write::Message(_)
            | Write::Note { .. }
            | Write::Request(_)
            | Write::Token(_)
            | Write::Job(_)
            | Write::Quarantined(_)
            | Write::Released { .. } => None,
        })
    }

    /// How many answers to requests are recorded with it.
    pub fn requests(&self) -> usize {
        self.writes.iter().filter(|write| matches!(write, Write::Request(_))).count()
    }

    pub(crate) fn write(&mut self, write: Write) {
        self.writes.push(write);
        self.urgent = true;
    }

    pub(crate) fn act(&mut self, effect: Effect) {
        self.after.push(Out::Act(effect));
    }
}
