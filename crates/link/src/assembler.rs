//! Frames out of a stream of bytes.

use crate::frame::{FrameError, LEN_BYTES, RawFrame};

/// Puts received bytes together to frames. What is incomplete when the peer dies is dropped with it.
#[derive(Debug, Default)]
pub struct Assembler {
    bytes: Vec<u8>,
    taken: usize,
}

/// Room that an assembler keeps for the next frames.
const KEPT_BYTES: usize = 1024;

impl Assembler {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame, if there is one.
    pub fn next_frame(&mut self, len_max: usize) -> Result<Option<RawFrame<'_>>, FrameError> {
        let rest = &self.bytes[self.taken..];
        let Some((head, rest)) = rest.split_first_chunk::<LEN_BYTES>() else {
            self.compact();
            return Ok(None);
        };
        let len = u32::from_le_bytes(*head);
        let whole = len as usize;
        if whole > len_max || whole == 0 {
            return Err(FrameError { len, len_max });
        }
        if rest.len() < whole {
            self.compact();
            return Ok(None);
        }
        let at = self.taken + LEN_BYTES;
        self.taken = at + whole;
        Ok(Some(RawFrame { kind: self.bytes[at], payload: &self.bytes[at + 1..at + whole] }))
    }

    fn compact(&mut self) {
        self.bytes.drain(..self.taken);
        self.taken = 0;
        // Links are many and mostly silent: what a long frame needed is not kept.
        if self.bytes.is_empty() && self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
    }
}
