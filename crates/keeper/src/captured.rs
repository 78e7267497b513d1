//! One stream of a tool, moved from its pipe to a file.
//!
//! Owns: the pipe's end, the file, the cap and the counts. Bytes go through `splice`, so a flood of output
//! costs the keeper neither memory nor copies.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use lodge_link::Counted;

use crate::sys;

/// Most bytes moved by one call.
const MOVE_MAX: usize = 1024 * 1024;
/// Most calls before other descriptors get their turn.
const MOVES_MAX: usize = 16;

/// Whether there may be more to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flow {
    /// The pipe is empty for now.
    Dry,
    /// There is more than one turn's worth.
    More,
    Ended,
}

/// A stream on its way into a file.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) pipe: Option<OwnedFd>,
    file: Option<File>,
    pub(crate) counted: Counted,
    cap: u64,
    /// Why the file ends before the cap, if it does.
    pub(crate) trouble: Option<io::Error>,
}

impl Captured {
    pub(crate) fn new(pipe: Option<OwnedFd>, file: Option<OwnedFd>, cap: u64) -> Captured {
        let file = file.map(File::from);
        Captured { pipe, file, counted: Counted::default(), cap, trouble: None }
    }

    /// Moves what is there. Beyond the cap it is counted and thrown to `null`.
    pub(crate) fn pump(&mut self, null: RawFd) -> Flow {
        for _ in 0..MOVES_MAX {
            let Some(pipe) = &self.pipe else { return Flow::Ended };
            let room = self.cap.saturating_sub(self.counted.kept);
            let (to, len) = match &self.file {
                Some(file) if room > 0 => (file.as_raw_fd(), room.min(MOVE_MAX as u64) as usize),
                Some(_) | None => (null, MOVE_MAX),
            };
            let keeps = to != null;
            match sys::splice(pipe.as_fd(), to, len) {
                Ok(0) => {
                    self.pipe = None;
                    return Flow::Ended;
                }
                Ok(moved) => self.count(moved, keeps),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Flow::Dry,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => match self.copy(len, keeps) {
                    Flow::More => {}
                    other @ (Flow::Dry | Flow::Ended) => return other,
                },
                // A full disk ends the file, not the exec: what follows is counted and thrown away.
                Err(error) if keeps => self.give_up(error),
                Err(error) => {
                    self.give_up(error);
                    self.pipe = None;
                    return Flow::Ended;
                }
            }
        }
        Flow::More
    }

    /// For the few files that cannot be spliced to.
    fn copy(&mut self, len: usize, keeps: bool) -> Flow {
        let mut chunk = [0; 4096];
        let len = len.min(chunk.len());
        let Some(pipe) = &self.pipe else { return Flow::Ended };
        match sys::read(pipe.as_raw_fd(), &mut chunk[..len]) {
            Ok(0) => {
                self.pipe = None;
                Flow::Ended
            }
            Ok(read) => {
                let wrote = match &mut self.file {
                    Some(file) if keeps => file.write_all(&chunk[..read]),
                    Some(_) | None => Ok(()),
                };
                let kept = keeps && wrote.is_ok();
                self.count(read, kept);
                wrote.err().into_iter().for_each(|error| self.give_up(error));
                Flow::More
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Flow::Dry,
            Err(error) => {
                self.give_up(error);
                self.pipe = None;
                Flow::Ended
            }
        }
    }

    fn count(&mut self, moved: usize, kept: bool) {
        self.counted.seen += moved as u64;
        if kept {
            self.counted.kept += moved as u64;
        }
    }

    fn give_up(&mut self, error: io::Error) {
        self.file = None;
        self.trouble.get_or_insert(error);
    }
}
