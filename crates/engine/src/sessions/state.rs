//! The engine's memory of a session.

use std::collections::VecDeque;

use lodge_core::TurnId;
use lodge_core::epoch::Epoch;
use lodge_core::record::{SessionFact, SessionRow};

#[derive(Debug)]
pub(crate) struct Session {
    pub row: SessionRow,
    /// As in [`SessionFact`].
    pub turns: u32,
    pub messages: u64,
    pub cuts: u32,
    pub tip: Option<TurnId>,
    /// The session was deleted. It stays in memory for requests that read it before.
    pub gone: bool,
    /// The part that a model reads.
    pub epoch: Epoch,
    /// Live turns in order; only the first may run.
    pub live: VecDeque<TurnId>,
}

impl Session {
    pub(crate) fn new(row: SessionRow) -> Self {
        Session {
            row,
            turns: 0,
            messages: 0,
            cuts: 0,
            tip: None,
            gone: false,
            epoch: Epoch::default(),
            live: VecDeque::new(),
        }
    }

    pub(crate) fn from_fact(fact: &SessionFact) -> Self {
        Session {
            row: fact.row.clone(),
            turns: fact.turns,
            messages: fact.messages,
            cuts: fact.cuts,
            tip: fact.tip.clone(),
            gone: false,
            epoch: fact.epoch.clone(),
            live: VecDeque::new(),
        }
    }

    /// Whether `fact` is current: every turn adds a message, every compaction an epoch, and every other change is a cut.
    pub(crate) fn is(&self, fact: &SessionFact) -> bool {
        let SessionFact { row, turns, messages, cuts, tip, epoch } = fact;
        self.row == *row
            && (self.turns, self.messages, self.cuts) == (*turns, *messages, *cuts)
            && self.tip == *tip
            && self.epoch.newest == epoch.newest
    }
}
