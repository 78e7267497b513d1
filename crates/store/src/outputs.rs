//! The interface of the archive of job output: one writer, any number of readers.
//!
//! Owns: the bytes of every stream, in chunks that are written once and in order. Never: which jobs exist (see
//! [`JobReads`](crate::JobReads)). The archive is apart from the store of state, so that a flood of output delays no commit.

use std::path::PathBuf;

use lodge_core::JobId;

use crate::write::Committed;

/// Most jobs in one page of a listing.
pub const OUTPUT_PAGE_MAX: u32 = 1_000;

type StoreCause = Box<dyn std::error::Error + Send + Sync>;

/// Which bytes of a job. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OutputStream {
    Stdout,
    Stderr,
    /// In which order the two came: see the keeper's order marks.
    Order,
}

impl OutputStream {
    pub const ALL: [OutputStream; 3] = [OutputStream::Stdout, OutputStream::Stderr, OutputStream::Order];

    pub(crate) fn code(self) -> i64 {
        match self {
            OutputStream::Stdout => 1,
            OutputStream::Stderr => 2,
            OutputStream::Order => 3,
        }
    }
}

/// Bytes on their way into the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputChunk {
    pub job: JobId,
    pub stream: OutputStream,
    /// Of the first byte, in everything that was written to the stream.
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// Up to where each stream of a job is archived: the offset after the last byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputEnds {
    pub stdout: u64,
    pub stderr: u64,
    pub order: u64,
}

impl OutputEnds {
    pub fn of(self, stream: OutputStream) -> u64 {
        match stream {
            OutputStream::Stdout => self.stdout,
            OutputStream::Stderr => self.stderr,
            OutputStream::Order => self.order,
        }
    }
}

/// Whether the file could still become smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShrinkState {
    All,
    /// Ask again.
    Some,
}

#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// Rolled back: it may be tried again when there is room.
    #[error("there is no room in the archive of job output")]
    Full {
        #[source]
        cause: StoreCause,
    },
    #[error("the archive of job output {} is damaged", path.display())]
    Corrupt {
        path: PathBuf,
        #[source]
        cause: StoreCause,
    },
    /// A write failed and left the disk in doubt: nothing more is written until the store is opened again.
    #[error("the archive of job output {} cannot be written", path.display())]
    InDoubt { path: PathBuf },
    #[error("the archive of job output {} could not be used", path.display())]
    Unusable {
        path: PathBuf,
        #[source]
        cause: StoreCause,
    },
}

impl OutputError {
    /// Stable, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            OutputError::Full { .. } => "archive.full",
            OutputError::Corrupt { .. } => "archive.damaged",
            OutputError::InDoubt { .. } => "archive.in_doubt",
            OutputError::Unusable { .. } => "archive.unusable",
        }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            OutputError::Full { .. } => "make room on the disk; what was not archived stays in its files",
            OutputError::Corrupt { .. } => {
                "restart the daemon: a damaged archive is moved aside and a new one is created"
            }
            OutputError::InDoubt { .. } | OutputError::Unusable { .. } => {
                "check the disk and restart the daemon; what was not archived stays in its files"
            }
        }
    }
}

/// Bytes of a stream, without a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputPiece {
    /// The offset of the first byte: the requested one, or the next one that was kept.
    pub offset: u64,
    /// Empty: nothing at or after that offset is archived.
    pub bytes: Vec<u8>,
}

/// Writes the archive. There is one at a time.
pub trait OutputWriter: std::fmt::Debug + Send {
    /// Writes chunks, all of them or, with an error, the first of them; returns when they are on disk.
    ///
    /// What is archived already is not written again: a chunk that begins before the end of its stream gives what it
    /// has beyond it. Nothing is ever written before that end.
    fn append(&mut self, chunks: &[OutputChunk]) -> Result<Committed<()>, OutputError>;

    /// Removes the output of these jobs. A repeated call continues after an interruption.
    fn remove(&mut self, jobs: &[JobId]) -> Result<(), OutputError>;

    /// Returns a part of the removed space to the file system. The caller repeats it until the result says that all is
    /// returned.
    fn shrink(&mut self) -> Result<ShrinkState, OutputError>;

    /// Bytes by which the archive may still grow on disk although nothing more is appended.
    fn pending_bytes(&mut self) -> Result<u64, OutputError>;

    /// Brings the archive to its final size on disk, unless a reader is active.
    fn settle(&mut self) -> Result<(), OutputError>;

    /// Gives back memory that only saves time.
    fn rest(&self);

    /// Lets the archive grow no further, as a full disk would; for tests.
    #[doc(hidden)]
    fn limit_pages(&mut self, pages: u32);
}

/// Reads the archive, on any number of threads.
pub trait OutputReads: std::fmt::Debug + Send + Sync {
    /// Up to where each stream of a job is archived. Nothing at all: zeros.
    fn archived(&self, job: &JobId) -> Result<OutputEnds, OutputError>;

    /// At most `len_max` bytes from `offset` on, or from the first archived one after it. Ends at a hole.
    fn read(
        &self,
        job: &JobId,
        stream: OutputStream,
        offset: u64,
        len_max: usize,
    ) -> Result<OutputPiece, OutputError>;

    /// How many bytes of a job are archived.
    fn bytes(&self, job: &JobId) -> Result<u64, OutputError>;

    /// How much space the archive uses: the outputs, and the little that keeps them in order.
    fn total_bytes(&self) -> Result<u64, OutputError>;

    /// A page of the jobs of which something is archived, in the order of their ids; at most [`OUTPUT_PAGE_MAX`].
    fn jobs(&self, after: Option<&JobId>, limit: u32) -> Result<Vec<JobId>, OutputError>;

    /// The archive's own check of everything in it.
    fn integrity(&self) -> Result<String, OutputError>;

    /// Gives back memory that only saves time.
    fn rest(&self);
}
