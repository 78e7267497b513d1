//! The last things that happened, in words. Nothing is written down unless somebody will read it: a run that fails is
//! run again from its seed with the pen out.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub struct SimTrace {
    keep: usize,
    lines: VecDeque<String>,
}

impl SimTrace {
    pub fn new(keep: usize) -> Self {
        SimTrace { keep, lines: VecDeque::new() }
    }

    pub fn say(&mut self, now: u64, what: impl FnOnce() -> String) {
        if self.keep == 0 {
            return;
        }
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        self.lines.push_back(format!("{now:>9} ms  {}", what()));
    }

    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}
