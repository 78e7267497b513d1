//! Moves one stream of a tool or a job from its pipe to its file.
//!
//! Owns: the pipe's end, the target and the counts. Bytes go through `splice`, so a flood of output costs the keeper
//! neither memory nor copies.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

use lodge_link::StreamCount;

use crate::parts::StreamFiles;
use crate::sys;

/// Most bytes moved by one call.
const MOVE_MAX: usize = 1024 * 1024;
/// Most calls before other descriptors get their turn.
pub(crate) const MOVES_MAX: usize = 16;
/// Most bytes that are moved through this process, where the kernel cannot.
const COPY_MAX: usize = 4096;

/// Whether there may be more to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PipeFlow {
    /// The pipe is empty for now.
    Dry,
    /// There is more than one turn's worth.
    More,
    Ended,
}

/// Where a stream goes.
#[derive(Debug)]
pub(crate) enum StreamTarget {
    /// It is counted and thrown away.
    Nowhere,
    /// Its first bytes, as many as the cap says.
    File { file: File, cap: u64 },
    /// Both ends of it.
    Parts(StreamFiles),
}

/// What happens to the next bytes of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextBytes {
    Drop,
    /// They fit into this open file.
    Into {
        file: RawFd,
        room: u64,
    },
    /// They begin a file, which is made once there is a byte for it.
    Begin {
        room: u64,
    },
}

/// What all streams share on their way.
///
/// While the kernel writes the bytes of a pipe to a file, it blocks writers of that pipe. Between two pipes it only
/// moves pages. So a program continues while its output is on the way to the disk.
#[derive(Debug)]
pub(crate) struct SplicePipes {
    null: File,
    /// A pipe that is empty between two moves.
    from: OwnedFd,
    into: OwnedFd,
}

impl SplicePipes {
    pub(crate) fn open() -> io::Result<Rc<SplicePipes>> {
        let (from, into) = sys::pipe()?;
        sys::set_nonblocking(from.as_fd())?;
        Ok(Rc::new(SplicePipes { null: File::options().write(true).open("/dev/null")?, from, into }))
    }

    fn clear(&self) {
        while sys::splice(self.from.as_fd(), self.null.as_fd(), MOVE_MAX).is_ok_and(|moved| moved > 0) {}
    }
}

/// A stream on its way into files.
#[derive(Debug)]
pub(crate) struct StreamCapture {
    pub(crate) pipe: Option<OwnedFd>,
    place: StreamTarget,
    pub(crate) counted: StreamCount,
    /// Why the rest is not kept, if that is not for the cap.
    pub(crate) trouble: Option<io::Error>,
}

impl StreamCapture {
    pub(crate) fn new(pipe: Option<OwnedFd>, place: StreamTarget) -> StreamCapture {
        StreamCapture { pipe, place, counted: StreamCount::default(), trouble: None }
    }

    /// Moves what is there. What is not kept is counted and thrown away.
    pub(crate) fn pump(&mut self, ways: &SplicePipes) -> PipeFlow {
        for _ in 0..MOVES_MAX {
            match self.shift(ways) {
                PipeFlow::More => {}
                other @ (PipeFlow::Dry | PipeFlow::Ended) => return other,
            }
        }
        PipeFlow::More
    }

    /// Moves once.
    pub(crate) fn shift(&mut self, ways: &SplicePipes) -> PipeFlow {
        let Some(pipe) = &self.pipe else { return PipeFlow::Ended };
        match self.next() {
            NextBytes::Begin { room } => match self.needless(pipe) {
                0 => self.copy(pipe.as_raw_fd(), at_most(room, COPY_MAX)),
                len => match sys::splice(pipe.as_fd(), ways.null.as_fd(), at_most(len, MOVE_MAX)) {
                    Ok(0) => self.ended(),
                    Ok(len) => self.skip(len as u64),
                    Err(error) => self.not_read(error),
                },
            },
            NextBytes::Into { file, room } => {
                match sys::splice(pipe.as_fd(), ways.into.as_fd(), at_most(room, MOVE_MAX)) {
                    Ok(0) => self.ended(),
                    Ok(len) => self.carry(ways, file, len),
                    Err(error) => self.not_read(error),
                }
            }
            NextBytes::Drop => match sys::splice(pipe.as_fd(), ways.null.as_fd(), MOVE_MAX) {
                Ok(0) => self.ended(),
                Ok(len) => self.count(len as u64, ByteFate::No),
                Err(error) => self.not_read(error),
            },
        }
    }

    /// How many of the bytes that wait would go again before the last of them is written.
    fn needless(&self, pipe: &OwnedFd) -> u64 {
        match &self.place {
            // Where it cannot be known, all of it is written.
            StreamTarget::Parts(parts) => {
                sys::waiting(pipe.as_fd()).map_or(0, |waiting| parts.needless(waiting))
            }
            StreamTarget::Nowhere | StreamTarget::File { .. } => 0,
        }
    }

    fn skip(&mut self, len: u64) -> PipeFlow {
        self.counted.seen += len;
        if let StreamTarget::Parts(parts) = &mut self.place {
            parts.skip(len);
        }
        PipeFlow::More
    }

    /// Takes what is in the way to its file.
    fn carry(&mut self, ways: &SplicePipes, file: RawFd, len: usize) -> PipeFlow {
        let mut left = len;
        while left > 0 {
            let before = self.counted.seen;
            match sys::splice(ways.from.as_fd(), sys::numbered(file), left) {
                Ok(moved) => self.count(moved as u64, ByteFate::Yes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // For the few files that cannot be spliced to.
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    self.copy(ways.from.as_raw_fd(), left.min(COPY_MAX))
                }
                // A full disk ends the file, not the exec: what follows is counted and thrown away.
                Err(error) => self.stop_keeping(error),
            };
            let moved = (self.counted.seen - before) as usize;
            if moved == 0 {
                self.stop_keeping(io::ErrorKind::WriteZero.into());
            }
            left = left.saturating_sub(moved);
            if matches!(self.place, StreamTarget::Nowhere) {
                ways.clear();
                return self.count(left as u64, ByteFate::No);
            }
        }
        PipeFlow::More
    }

    /// Nothing that comes from here on is kept.
    pub(crate) fn stop_keeping(&mut self, why: io::Error) -> PipeFlow {
        self.place = StreamTarget::Nowhere;
        self.trouble.get_or_insert(why);
        PipeFlow::More
    }

    fn next(&self) -> NextBytes {
        match &self.place {
            StreamTarget::Nowhere => NextBytes::Drop,
            StreamTarget::File { file, cap } => match cap.saturating_sub(self.counted.kept) {
                0 => NextBytes::Drop,
                room => NextBytes::Into { file: file.as_raw_fd(), room },
            },
            StreamTarget::Parts(parts) => parts.next(),
        }
    }

    fn copy(&mut self, from: RawFd, len: usize) -> PipeFlow {
        let mut chunk = [0; COPY_MAX];
        match sys::read(sys::numbered(from), &mut chunk[..len]) {
            Ok(0) => self.ended(),
            Ok(read) => {
                let wrote = match &mut self.place {
                    StreamTarget::Nowhere => Ok(()),
                    StreamTarget::File { file, .. } => file.write_all(&chunk[..read]),
                    StreamTarget::Parts(parts) => parts.write(&chunk[..read]),
                };
                match wrote {
                    Ok(()) => self.count(read as u64, ByteFate::Yes),
                    Err(error) => {
                        self.stop_keeping(error);
                        self.count(read as u64, ByteFate::No)
                    }
                }
            }
            Err(error) => self.not_read(error),
        }
    }

    fn not_read(&mut self, error: io::Error) -> PipeFlow {
        match error.kind() {
            io::ErrorKind::WouldBlock => PipeFlow::Dry,
            io::ErrorKind::Interrupted => PipeFlow::More,
            _broken => {
                self.stop_keeping(error);
                self.ended()
            }
        }
    }

    fn ended(&mut self) -> PipeFlow {
        self.pipe = None;
        PipeFlow::Ended
    }

    fn count(&mut self, moved: u64, kept: ByteFate) -> PipeFlow {
        self.counted.seen += moved;
        match (&mut self.place, kept) {
            (StreamTarget::Nowhere, _) | (_, ByteFate::No) => {}
            (StreamTarget::File { .. }, ByteFate::Yes) => self.counted.kept += moved,
            (StreamTarget::Parts(parts), ByteFate::Yes) => self.counted.kept = parts.count_written(moved),
        }
        PipeFlow::More
    }
}

/// Whether bytes go to where they are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ByteFate {
    Yes,
    No,
}

fn at_most(room: u64, most: usize) -> usize {
    usize::try_from(room).map_or(most, |room| room.min(most))
}
