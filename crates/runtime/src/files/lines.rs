//! Reads lines of any length in little memory.

use std::borrow::Cow;
use std::io::{self, BufRead};

/// What is kept of one line.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// One line without its line break. `bytes` is its whole length, of which `kept` may be the beginning.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) kept: Vec<u8>,
    pub(super) bytes: u64,
}

impl Line {
    /// Reads the next line into this one. False at the end.
    pub(super) fn read(&mut self, from: &mut impl BufRead) -> io::Result<bool> {
        self.kept.clear();
        self.bytes = 0;
        let mut any = false;
        loop {
            let chunk = from.fill_buf()?;
            if chunk.is_empty() {
                return Ok(any);
            }
            any = true;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let line = &chunk[..end.unwrap_or(chunk.len())];
            let room = LINE_BYTES_MAX - self.kept.len();
            self.kept.extend_from_slice(&line[..line.len().min(room)]);
            self.bytes += line.len() as u64;
            let used = line.len() + usize::from(end.is_some());
            from.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// What is kept of it, without the carriage return of a DOS file.
    pub(super) fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.kept.strip_suffix(b"\r").unwrap_or(&self.kept))
    }

    /// The line for a model, at most `chars_max` characters of it.
    pub(super) fn shown(&self, chars_max: usize) -> String {
        let text = self.text();
        let mut shown: String = text.chars().take(chars_max).collect();
        if shown.len() < text.len() || self.bytes > self.kept.len() as u64 {
            shown.push_str(&format!("… [cut: the line has {} bytes]", self.bytes));
        }
        shown
    }
}
