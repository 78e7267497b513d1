//! The runtime's lines, in and out, and the bytes that feed any exec's stdin.
//!
//! Owns: cutting a stream into lines and queueing bytes for a slow reader, both with bounds.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use lodge_link::limits::RUNTIME_LINE_MAX;

use crate::sys;

/// Most bytes that wait for a runtime which does not read.
pub(crate) const FEED_MAX: usize = 2 * RUNTIME_LINE_MAX;
/// Buffers above this are given back once they are empty.
const KEEP_CAPACITY: usize = 16 * 1024;

/// A line grew beyond [`RUNTIME_LINE_MAX`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LineTooLong;

/// Bytes of a stream, cut into lines.
#[derive(Debug, Default)]
pub(crate) struct LineSplitter {
    partial: Vec<u8>,
}

impl LineSplitter {
    /// Takes in bytes and hands out each line that they complete, without its newline.
    pub(crate) fn push(&mut self, mut bytes: &[u8], mut line: impl FnMut(&[u8])) -> Result<(), LineTooLong> {
        while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
            let (head, rest) = (&bytes[..end], &bytes[end + 1..]);
            if self.partial.is_empty() {
                line(head);
            } else {
                self.partial.extend_from_slice(head);
                line(&self.partial);
                self.partial.clear();
                self.partial.shrink_to(KEEP_CAPACITY);
            }
            bytes = rest;
        }
        self.partial.extend_from_slice(bytes);
        if self.partial.len() > RUNTIME_LINE_MAX { Err(LineTooLong) } else { Ok(()) }
    }
}

/// What happens to a stdin once everything queued was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhenEmpty {
    Close,
    StayOpen,
}

/// Bytes on their way into a pipe.
#[derive(Debug)]
pub(crate) struct PipeFeed {
    pipe: Option<OwnedFd>,
    queued: Vec<u8>,
    written: usize,
    when_empty: WhenEmpty,
}

impl PipeFeed {
    pub(crate) fn new(pipe: OwnedFd, bytes: Vec<u8>, when_empty: WhenEmpty) -> PipeFeed {
        let mut feed = PipeFeed { pipe: Some(pipe), queued: bytes, written: 0, when_empty };
        feed.pump();
        feed
    }

    /// The pipe, while there is something to write to it.
    pub(crate) fn waiting(&self) -> Option<&OwnedFd> {
        self.pipe.as_ref().filter(|_| self.written < self.queued.len())
    }

    /// Queues one line. False: the reader is so far behind that it must be taken for dead.
    pub(crate) fn line(&mut self, line: &[u8]) -> bool {
        if self.pipe.is_none() {
            return true;
        }
        if self.queued.len() - self.written + line.len() > FEED_MAX {
            return false;
        }
        self.queued.extend_from_slice(line);
        self.queued.push(b'\n');
        self.pump();
        true
    }

    /// Writes what the pipe takes.
    pub(crate) fn pump(&mut self) {
        while let Some(pipe) = &self.pipe {
            let rest = &self.queued[self.written..];
            if rest.is_empty() {
                self.queued = Vec::new();
                self.written = 0;
                if self.when_empty == WhenEmpty::Close {
                    self.pipe = None;
                }
                return;
            }
            match sys::write(pipe.as_fd(), rest) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.compact(),
                // The reader closed the pipe, which is allowed.
                Err(_) => {
                    self.pipe = None;
                    self.queued = Vec::new();
                    self.written = 0;
                }
            }
        }
    }

    fn compact(&mut self) {
        if self.written > KEEP_CAPACITY {
            self.queued.drain(..self.written);
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_the_same_however_the_stream_is_cut() {
        let stream = b"one\n\ntwo and more\nthree";
        for step in 1..=stream.len() {
            let (mut lines, mut got) = (LineSplitter::default(), Vec::new());
            for chunk in stream.chunks(step) {
                lines.push(chunk, |line| got.push(line.to_vec())).unwrap();
            }
            assert_eq!(got, [b"one".to_vec(), b"".to_vec(), b"two and more".to_vec()], "step {step}");
            assert_eq!(lines.partial, b"three");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = LineSplitter::default();
        let chunk = vec![b'x'; RUNTIME_LINE_MAX];
        assert_eq!(lines.push(&chunk, |_| ()), Ok(()));
        assert_eq!(lines.push(b"x", |_| ()), Err(LineTooLong));
    }

    #[test]
    fn a_reader_that_never_reads_is_noticed_and_one_that_left_is_not_fed() {
        // Other tests fork, and what they fork has every descriptor for a moment.
        assert!(sys::passes_in_child(feed_readers));
    }

    fn feed_readers() {
        let (reader, writer) = sys::pipe().unwrap();
        sys::set_nonblocking(writer.as_fd()).unwrap();
        let mut feed = PipeFeed::new(writer, Vec::new(), WhenEmpty::StayOpen);
        let line = vec![b'x'; RUNTIME_LINE_MAX];
        assert!(feed.line(&line) && feed.line(&line));
        assert!(!feed.line(&line));
        assert!(feed.waiting().is_some());
        drop(reader);
        feed.pump();
        assert!(feed.waiting().is_none() && feed.line(&line));
    }
}
