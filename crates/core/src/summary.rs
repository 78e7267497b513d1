//! Turns and sessions as answers show them: their rows, with the facts of other rows that belong to the same answer.
//!
//! The store reads them; the engine builds them from memory.

use crate::park::ParkReason;
use crate::quarantine::QuarantineRow;
use crate::record::{SessionRow, StepRow, TurnRow};
use crate::{Timestamp, TurnId};

#[derive(Debug, Clone)]
pub struct TurnDetail {
    pub row: TurnRow,
    pub steps: Vec<StepRow>,
    pub text: String,
    /// Whether `text` is incomplete: the turn ended early, or the text may still grow.
    pub partial: bool,
    /// Only for a turn that waits.
    pub wait_reasons: Option<WaitReasons>,
    pub extras: TurnExtras,
}

/// Facts of a turn that only some answers show.
#[derive(Debug, Clone, Default)]
pub struct TurnExtras {
    /// The user's message; in a listing its beginning.
    pub message: Option<String>,
    /// The newest event before the turn's first one.
    pub since: Option<u64>,
}

/// Why a turn waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitReasons {
    pub agent_ready: bool,
    /// Its agent has a pending update.
    pub updating: bool,
    /// An earlier turn of its session has not ended.
    pub earlier: bool,
    /// The quarantined work that it waits for: its own, or that of an earlier turn of its session.
    pub quarantine: Option<QuarantineRow>,
    /// What it waits for, apart from all of these.
    pub park: Option<ParkReason>,
}

impl WaitReasons {
    /// The reason for the wait, in one word.
    pub fn waits_for(&self, turn: &TurnId) -> &'static str {
        let WaitReasons { agent_ready, updating, earlier, quarantine, park } = self;
        if quarantine.as_ref().is_some_and(|row| row.work.subject == turn.as_str()) {
            return "quarantine";
        }
        match (agent_ready, updating, earlier) {
            (false, true | false, true | false) => "agent",
            (true, true, true | false) => "update",
            (true, false, true) => "session",
            (true, false, false) => match park {
                Some(ParkReason::Provider(wait)) if wait.is_held() => "provider",
                Some(ParkReason::Provider(_)) | None => "slot",
            },
        }
    }
}

#[derive(Debug, Clone)]
pub struct SessionSummary {
    pub row: SessionRow,
    /// The beginning of its first message.
    pub title: Option<String>,
    /// Turns on its path.
    pub turns: u32,
    pub last_active: Timestamp,
    /// The number of its current epoch.
    pub epoch: u32,
    pub agent_name: String,
    pub agent_removed: bool,
    pub live: LiveTurns,
    /// The quarantined work of its turns.
    pub quarantine: Vec<QuarantineRow>,
}

/// The open turns of a session, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveTurns {
    pub running: Option<TurnId>,
    pub queued: Vec<TurnId>,
    /// When the newest of them was accepted.
    pub newest: Option<Timestamp>,
}

impl LiveTurns {
    pub fn is_empty(&self) -> bool {
        self.running.is_none() && self.queued.is_empty()
    }

    pub fn all(&self) -> impl Iterator<Item = &TurnId> + Clone {
        self.running.iter().chain(&self.queued)
    }
}
