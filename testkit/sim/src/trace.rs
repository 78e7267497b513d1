//! The last lines of a run's history. Lines are kept only on request: a failed run is repeated from its seed with the trace
//! enabled.

use std::collections::VecDeque;

#[derive(Debug)]
pub struct SimTrace {
    keep: usize,
    lines: VecDeque<String>,
    /// The hash of all lines, including dropped ones.
    hash: u64,
}

/// FNV-1a: the same on every machine and in every release.
const HASH_SEED: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_PRIME: u64 = 0x0000_0100_0000_01b3;

impl SimTrace {
    pub fn new(keep: usize) -> Self {
        SimTrace { keep, lines: VecDeque::new(), hash: HASH_SEED }
    }

    pub fn trace_line(&mut self, now: u64, what: impl FnOnce() -> String) {
        if self.keep == 0 {
            return;
        }
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        let line = format!("{now:>9} ms  {}", what());
        for byte in line.bytes().chain([b'\n']) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(HASH_PRIME);
        }
        self.lines.push_back(line);
    }

    /// Distinguishes this history from any other, if lines are kept at all.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
