//! Epochs of a conversation: the part that a model reads, and its weight.
//!
//! A compaction begins a new epoch; messages never change. The weight of an epoch is counted as messages arrive, so
//! that a turn does not pay for earlier turns.

use std::collections::VecDeque;

use crate::Timestamp;
use crate::id::SessionId;

/// Turns of an epoch whose weights are known separately; earlier ones have one sum. This exceeds the queue of a
/// session, so that a turn in flight is always among them.
pub const WEIGHED_TURNS_MAX: usize = 128;
/// The longest summary that is kept.
pub const SUMMARY_BYTES_MAX: usize = 64 * 1024;

/// Why an epoch began. Codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// The oldest turns are left out.
    Sliding,
    /// The model summarized the turns.
    Summarize,
    /// The model wrote everything that a successor needs, and nothing older is read.
    Handoff,
}

impl Strategy {
    pub const ALL: [Strategy; 3] = [Strategy::Sliding, Strategy::Summarize, Strategy::Handoff];

    pub fn word(self) -> &'static str {
        match self {
            Strategy::Sliding => "sliding",
            Strategy::Summarize => "summarize",
            Strategy::Handoff => "handoff",
        }
    }

    pub fn code(self) -> i64 {
        match self {
            Strategy::Sliding => 1,
            Strategy::Summarize => 2,
            Strategy::Handoff => 3,
        }
    }

    pub fn from_code(code: i64) -> Option<Strategy> {
        Strategy::ALL.into_iter().find(|strategy| strategy.code() == code)
    }
}

/// A recorded compaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochRow {
    pub session: SessionId,
    /// From 2: the first epoch of a session is not recorded.
    pub number: u32,
    /// The number of the turn that began it.
    pub turn: u32,
    /// The first turn whose messages a model reads.
    pub from_turn: u32,
    pub strategy: Strategy,
    pub summary: Summary,
    pub at: Timestamp,
}

/// The text before the messages of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Summary {
    Nothing,
    Text(String),
    /// The summary of the epoch before it.
    Kept,
}

impl Summary {
    /// Its length, if the summary of the epoch before has the length `before`.
    fn bytes(&self, before: u64) -> u64 {
        match self {
            Summary::Nothing => 0,
            Summary::Text(text) => text.len() as u64,
            Summary::Kept => before,
        }
    }
}

/// The current epoch of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Epoch {
    pub number: u32,
    /// The highest number so far.
    pub newest: u32,
    pub from_turn: u32,
    pub summary_bytes: u64,
    /// The sum of the turns from `from_turn` on that are not in `turns`.
    older: u64,
    /// The first turn of `turns`.
    first: u32,
    turns: VecDeque<u64>,
}

/// What a runtime reads about the epoch in which a turn starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochWeight {
    pub number: u32,
    pub from_turn: u32,
    /// Two for every earlier turn, and the one that opens this turn.
    pub messages: u64,
    /// All messages with their calls and results, and the summary.
    pub bytes: u64,
    /// The newest turns separately, this one last.
    pub turns: Vec<u64>,
}

impl Default for Epoch {
    fn default() -> Self {
        Epoch {
            number: 1,
            newest: 1,
            from_turn: 1,
            summary_bytes: 0,
            older: 0,
            first: 1,
            turns: VecDeque::new(),
        }
    }
}

impl Epoch {
    /// A recorded epoch, before any of its messages is counted.
    pub fn recorded(row: &EpochRow, newest: u32) -> Epoch {
        Epoch {
            number: row.number,
            newest: newest.max(row.number),
            from_turn: row.from_turn,
            summary_bytes: row.summary.bytes(0),
            first: row.from_turn,
            ..Epoch::default()
        }
    }

    /// Counts a message of a turn.
    pub fn add(&mut self, turn: u32, bytes: u64) {
        if turn < self.from_turn {
            return;
        }
        let Some(at) = turn.checked_sub(self.first) else {
            self.older += bytes;
            return;
        };
        // Every turn has a message, so gaps are never wide.
        while self.turns.len() <= at as usize {
            self.turns.push_back(0);
        }
        self.turns[at as usize] += bytes;
        while self.turns.len() > WEIGHED_TURNS_MAX {
            self.older += self.turns.pop_front().unwrap_or(0);
            self.first += 1;
        }
    }

    /// Continues in an epoch that begins now.
    pub fn begin(&mut self, row: &EpochRow) {
        if self.first <= row.from_turn {
            self.older = 0;
        }
        while self.first < row.from_turn {
            self.turns.pop_front();
            self.first += 1;
        }
        (self.number, self.newest) = (row.number, self.newest.max(row.number));
        self.from_turn = row.from_turn;
        self.summary_bytes = row.summary.bytes(self.summary_bytes);
    }

    /// The epoch whose summary precedes the messages: this one, if it has one.
    pub fn summary(&self) -> Option<u32> {
        (self.summary_bytes > 0).then_some(self.number)
    }

    /// What a model reads with turn `number`.
    pub fn weight(&self, number: u32) -> EpochWeight {
        let counted = number.saturating_add(1).saturating_sub(self.first) as usize;
        let turns: Vec<u64> = self.turns.iter().take(counted).copied().collect();
        EpochWeight {
            number: self.number,
            from_turn: self.from_turn,
            messages: u64::from(number.saturating_sub(self.from_turn)) * 2 + 1,
            bytes: self.summary_bytes + self.older + turns.iter().sum::<u64>(),
            turns,
        }
    }

    /// How much is read from turn `from` up to turn `number`, with the summary. None: a part of it belongs to an
    /// earlier epoch and is not counted here.
    pub fn read_bytes(&self, from: u32, number: u32) -> Option<u64> {
        if from < self.from_turn {
            return None;
        }
        let (skipped, counted) =
            (from.saturating_sub(self.first), number.saturating_add(1).saturating_sub(self.first));
        let newest = self.turns.iter().take(counted as usize).skip(skipped as usize).sum::<u64>();
        let older = if from < self.first { self.older } else { 0 };
        Some(self.summary_bytes + older + newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(number: u32, from_turn: u32, summary: &str) -> EpochRow {
        EpochRow {
            session: "s".parse().unwrap(),
            number,
            turn: from_turn,
            from_turn,
            strategy: Strategy::Summarize,
            summary: Summary::Text(summary.to_owned()),
            at: Timestamp::from_ms(0),
        }
    }

    #[test]
    fn a_turn_weighs_what_came_before_it_and_nothing_that_waits_behind_it() {
        let mut epoch = Epoch::default();
        for (turn, bytes) in [(1, 10), (1, 5), (2, 7), (3, 100)] {
            epoch.add(turn, bytes);
        }
        let weight = epoch.weight(2);
        assert_eq!((weight.messages, weight.bytes, weight.turns), (3, 22, vec![15, 7]));
        epoch.begin(&row(2, 2, "four"));
        let weight = epoch.weight(3);
        assert_eq!((weight.number, weight.from_turn, weight.messages), (2, 2, 3));
        assert_eq!((weight.bytes, weight.turns), (4 + 107, vec![7, 100]));
        epoch.add(1, 1_000);
        assert_eq!(epoch.weight(3).bytes, 111, "what is not read weighs nothing");
        assert_eq!((epoch.read_bytes(2, 3), epoch.read_bytes(3, 3)), (Some(111), Some(104)));
        assert_eq!((epoch.read_bytes(2, 2), epoch.read_bytes(1, 3)), (Some(11), None));
    }

    #[test]
    fn a_long_epoch_is_counted_to_the_last_byte_in_bounded_room() {
        let mut epoch = Epoch::default();
        for turn in 1..=1_000 {
            epoch.add(turn, 3);
        }
        assert_eq!(epoch.turns.len(), WEIGHED_TURNS_MAX);
        assert_eq!(epoch.weight(1_000).bytes, 3_000);
        assert_eq!((epoch.read_bytes(1, 1_000), epoch.read_bytes(999, 1_000)), (Some(3_000), Some(6)));
        epoch.begin(&row(2, 990, ""));
        assert_eq!(epoch.weight(1_000).bytes, 33);
    }

    #[test]
    fn an_epoch_that_is_counted_again_from_its_messages_is_the_same() {
        let mut epoch = Epoch::default();
        for turn in 1..=200 {
            epoch.add(turn, u64::from(turn));
        }
        epoch.begin(&row(2, 150, "a summary"));
        let mut again = Epoch::recorded(&row(2, 150, "a summary"), 2);
        for turn in 150..=200 {
            again.add(turn, u64::from(turn));
        }
        assert_eq!(epoch, again);
    }
}
