//! What the engine remembers of a session.

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
    /// It was deleted: remembered for those who read of it before.
    pub gone: bool,
    /// What a model reads of it.
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

    /// Whether somebody read of it what it is: every turn adds a message, and every other change is a cut.
    pub(crate) fn is(&self, fact: &SessionFact) -> bool {
        let SessionFact { row, turns, messages, cuts, tip, epoch: _ } = fact;
        self.row == *row
            && (self.turns, self.messages, self.cuts) == (*turns, *messages, *cuts)
            && self.tip == *tip
    }
}
