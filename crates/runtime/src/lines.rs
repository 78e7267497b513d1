//! Whole lines in, whole lines out.
//!
//! Owns: the input buffer, its limit, and blocking on a pipe that may be in non-blocking mode. Never: what is
//! in a line.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use lodge_runtime_messages::LINE_BYTES_MAX;

/// What is kept for the next line while idle; anything larger is given back.
const BUFFER_KEPT_BYTES: usize = 4 * 1024;

const PIPE_BYTES: usize = 64 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum InputLine<'a> {
    Whole(&'a [u8]),
    /// Reported once, when the limit is passed; the rest of that line is skipped.
    TooLong,
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum ReadState {
    Some,
    /// End of input. A line without its newline is lost, as the other side never finished saying it.
    Closed,
}

#[derive(Debug)]
pub(crate) struct InputLines<R> {
    from: R,
    buffer: Vec<u8>,
    /// Where the next line begins in `buffer`.
    start: usize,
    /// Everything before this holds no newline that was not yet seen.
    searched: usize,
    skipping: bool,
}

impl<R: Read> InputLines<R> {
    pub(crate) fn new(from: R) -> Self {
        InputLines { from, buffer: Vec::new(), start: 0, searched: 0, skipping: false }
    }

    /// Waits for more input. To be called when `next_line` has nothing left.
    pub(crate) fn fill(&mut self, wait: impl Fn(&R) -> io::Result<()>) -> io::Result<ReadState> {
        let held = self.buffer.len();
        // A long line is read in pieces of what a pipe holds, a short one without room for that much.
        self.buffer.resize(held + held.clamp(BUFFER_KEPT_BYTES, PIPE_BYTES), 0);
        let read = loop {
            match self.from.read(&mut self.buffer[held..]) {
                Ok(read) => break Ok(read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(&self.from)?,
                Err(error) => break Err(error),
            }
        };
        self.buffer.truncate(held + *read.as_ref().unwrap_or(&0));
        Ok(if read? == 0 { ReadState::Closed } else { ReadState::Some })
    }

    pub(crate) fn next_line(&mut self) -> Option<InputLine<'_>> {
        loop {
            let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                return self.unfinished();
            };
            let (start, end) = (self.start, self.searched + at);
            self.start = end + 1;
            self.searched = end + 1;
            if std::mem::take(&mut self.skipping) {
                continue;
            }
            if end - start > LINE_BYTES_MAX {
                return Some(InputLine::TooLong);
            }
            return Some(InputLine::Whole(&self.buffer[start..end]));
        }
    }

    /// No newline in sight: keeps the beginning of a line within its limit, and gives back what is not needed.
    fn unfinished(&mut self) -> Option<InputLine<'_>> {
        let too_long = !self.skipping && self.buffer.len() - self.start > LINE_BYTES_MAX;
        self.skipping |= too_long;
        if self.skipping {
            self.buffer.clear();
        } else {
            self.buffer.drain(..self.start);
        }
        self.start = 0;
        self.searched = self.buffer.len();
        if self.buffer.is_empty() && self.buffer.capacity() > BUFFER_KEPT_BYTES {
            self.buffer = Vec::new();
        }
        too_long.then_some(InputLine::TooLong)
    }
}

/// Writes everything, however slowly the other side reads.
pub(crate) fn write_whole(to: &mut File, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_writable(to)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(crate) fn wait_readable(file: &File) -> io::Result<()> {
    wait(file, libc::POLLIN)
}

fn wait_writable(file: &File) -> io::Result<()> {
    wait(file, libc::POLLOUT)
}

fn wait(file: &File, events: libc::c_short) -> io::Result<()> {
    let mut watched = libc::pollfd { fd: file.as_raw_fd(), events, revents: 0 };
    // SAFETY: `watched` is one valid pollfd that lives through the call.
    if unsafe { libc::poll(&mut watched, 1, -1) } >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    fn all(input: &[u8]) -> Vec<String> {
        let mut lines = InputLines::new(input);
        let mut seen = Vec::new();
        loop {
            while let Some(line) = lines.next_line() {
                seen.push(match line {
                    InputLine::Whole(text) if text.len() < 100 => String::from_utf8_lossy(text).into_owned(),
                    InputLine::Whole(text) => format!("{} bytes", text.len()),
                    InputLine::TooLong => "too long".to_owned(),
                });
            }
            if lines.fill(|_| Ok(())).unwrap() == ReadState::Closed {
                return seen;
            }
        }
    }

    #[test]
    fn lines_arrive_whole_and_an_unfinished_one_does_not_arrive() {
        assert_eq!(all(b"one\n\ntwo\nthr"), ["one", "", "two"]);
    }

    #[test]
    fn a_line_at_the_limit_passes_and_one_beyond_is_reported_once() {
        let mut input = vec![b'x'; LINE_BYTES_MAX];
        input.extend(b"\nbetween\n");
        input.extend(vec![b'y'; LINE_BYTES_MAX + 1]);
        input.extend(b"\n");
        input.extend(vec![b'z'; 3 * LINE_BYTES_MAX]);
        input.extend(b"\nafter\n");
        let expected = [&format!("{LINE_BYTES_MAX} bytes"), "between", "too long", "too long", "after"];
        assert_eq!(all(&input), expected);
    }

    #[test]
    fn pipes_that_refuse_to_wait_are_waited_for() {
        let (reader, writer) = io::pipe().unwrap();
        let (reader, mut writer) = (File::from(OwnedFd::from(reader)), File::from(OwnedFd::from(writer)));
        for file in [&reader, &writer] {
            // SAFETY: sets a flag of a descriptor that is open.
            assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        }
        let long = vec![b'x'; 20 * PIPE_BYTES];
        let sender = std::thread::spawn(move || {
            write_whole(&mut writer, &long).unwrap();
            write_whole(&mut writer, b"\n").unwrap();
        });
        let mut lines = InputLines::new(reader);
        let mut bytes = Vec::new();
        while lines.fill(wait_readable).unwrap() == ReadState::Some {
            while let Some(InputLine::Whole(line)) = lines.next_line() {
                bytes.push(line.len());
            }
        }
        sender.join().unwrap();
        assert_eq!(bytes, [20 * PIPE_BYTES]);
    }

    #[test]
    fn a_large_line_leaves_no_large_buffer_behind() {
        let mut input = vec![b'x'; 1024 * 1024];
        input.push(b'\n');
        let mut lines = InputLines::new(input.as_slice());
        while lines.fill(|_| Ok(())).unwrap() == ReadState::Some {
            while lines.next_line().is_some() {}
        }
        assert!(lines.next_line().is_none());
        assert!(lines.buffer.capacity() <= BUFFER_KEPT_BYTES);
    }
}
