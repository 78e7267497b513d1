//! The order of writes to the two streams of a job: the file `order` in its directory.
//!
//! Lengths of alternating runs, starting with stdout, each as a LEB128 number. A run is recorded when the other
//! stream is written to, so the last run is missing: the lengths of the streams give it.

use crate::limits::ORDER_BYTES_MAX;

/// Longest number, in bytes.
pub const RUN_BYTES_MAX: usize = 10;

/// Which of a job's streams spoke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamKind {
    Stdout,
    Stderr,
}

impl StreamKind {
    pub fn other(self) -> StreamKind {
        match self {
            StreamKind::Stdout => StreamKind::Stderr,
            StreamKind::Stderr => StreamKind::Stdout,
        }
    }
}

/// Marks on their way to the file.
#[derive(Debug)]
pub struct OrderMarks {
    turn: StreamKind,
    run: u64,
    written: usize,
}

impl Default for OrderMarks {
    fn default() -> OrderMarks {
        OrderMarks { turn: StreamKind::Stdout, run: 0, written: 0 }
    }
}

impl OrderMarks {
    /// Takes note of bytes that came, and returns what has to be appended to the file, which mostly is nothing.
    pub fn record_bytes(&mut self, who: StreamKind, len: u64) -> Option<Vec<u8>> {
        if who == self.turn {
            self.run = self.run.saturating_add(len);
            return None;
        }
        let mut bytes = Vec::with_capacity(RUN_BYTES_MAX);
        append_run(self.run, &mut bytes);
        (self.turn, self.run) = (who, len);
        // Without its successor a mark says the wrong thing, so that none follows the first that has no room.
        if self.written + bytes.len() > ORDER_BYTES_MAX {
            self.written = ORDER_BYTES_MAX;
            return None;
        }
        self.written += bytes.len();
        Some(bytes)
    }
}

pub fn append_run(mut run: u64, out: &mut Vec<u8>) {
    while run >= 0x80 {
        out.push((run & 0x7f) as u8 | 0x80);
        run >>= 7;
    }
    out.push(run as u8);
}

/// The runs of a file of marks, with whose each is. A number without its end is none.
#[derive(Debug, Clone)]
pub struct OrderRuns<'a> {
    bytes: &'a [u8],
    turn: StreamKind,
}

impl<'a> OrderRuns<'a> {
    pub fn new(bytes: &'a [u8]) -> OrderRuns<'a> {
        OrderRuns { bytes, turn: StreamKind::Stdout }
    }

    /// Whose turn it is after the last run that was returned.
    pub fn turn(&self) -> StreamKind {
        self.turn
    }
}

impl Iterator for OrderRuns<'_> {
    type Item = (StreamKind, u64);

    fn next(&mut self) -> Option<(StreamKind, u64)> {
        let len = self.bytes.iter().position(|byte| byte & 0x80 == 0)? + 1;
        if len > RUN_BYTES_MAX {
            self.bytes = &[];
            return None;
        }
        let (number, rest) = self.bytes.split_at(len);
        self.bytes = rest;
        let run = number.iter().rev().fold(0_u64, |run, byte| (run << 7) | u64::from(byte & 0x7f));
        let who = self.turn;
        self.turn = who.other();
        Some((who, run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(spoken: &[(StreamKind, u64)]) -> Vec<u8> {
        let mut marks = OrderMarks::default();
        spoken.iter().filter_map(|(who, len)| marks.record_bytes(*who, *len)).flatten().collect()
    }

    #[test]
    fn runs_come_back_but_for_the_last_one() {
        use StreamKind::{Stderr, Stdout};
        let spoken =
            [(Stdout, 1), (Stdout, 126), (Stderr, 128), (Stdout, u64::MAX), (Stderr, 0), (Stdout, 5)];
        let bytes = marks(&spoken);
        let mut runs = OrderRuns::new(&bytes);
        let got: Vec<_> = runs.by_ref().collect();
        assert_eq!(got, [(Stdout, 127), (Stderr, 128), (Stdout, u64::MAX), (Stderr, 0)]);
        assert_eq!(runs.turn(), Stdout);
    }

    #[test]
    fn stderr_that_speaks_first_follows_an_empty_run() {
        assert_eq!(marks(&[(StreamKind::Stderr, 3)]), [0]);
        assert_eq!(marks(&[(StreamKind::Stdout, 3)]), []);
    }

    #[test]
    fn half_a_number_and_one_that_is_too_long_are_no_runs() {
        let bytes = marks(&[(StreamKind::Stdout, 1000), (StreamKind::Stderr, 1)]);
        assert_eq!(OrderRuns::new(&bytes[..1]).count(), 0);
        assert_eq!(OrderRuns::new(&[0xff; 64]).count(), 0);
        let mut long = vec![0x80; RUN_BYTES_MAX];
        long.push(0);
        assert_eq!(OrderRuns::new(&long).count(), 0);
    }

    #[test]
    fn marks_end_where_their_room_does() {
        let mut marks = OrderMarks::default();
        let (mut who, mut len) = (StreamKind::Stderr, 0);
        for _ in 0..2 * ORDER_BYTES_MAX {
            len += marks.record_bytes(who, 200).map_or(0, |bytes| bytes.len());
            who = who.other();
        }
        assert!(len <= ORDER_BYTES_MAX && len + RUN_BYTES_MAX > ORDER_BYTES_MAX, "{len}");
        assert_eq!(marks.record_bytes(who, 1), None);
    }
}
