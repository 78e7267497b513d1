//! Reading output: from the archive, from the files, and both streams as one.

use lodge_core::JobId;
use lodge_core::job::JobRow;
use lodge_exec::{ExecStream, Executor, SandboxReadError, StreamKind, limits::ORDER_BYTES_MAX};
use lodge_store::{OutputError, OutputStream};
use tokio::task::JoinError;

use super::db::{ArchiveDb, ArchiveOpenError};
use super::merge::{OutputSpan, StreamEnds, merged};
use crate::chain;
use crate::shell::Shell;

/// Which output of a job is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputSelection {
    Stdout,
    Stderr,
    /// Both, in the order in which they were written.
    Merged,
}

impl OutputSelection {
    pub const ALL: [OutputSelection; 3] =
        [OutputSelection::Stdout, OutputSelection::Stderr, OutputSelection::Merged];

    pub fn word(self) -> &'static str {
        match self {
            OutputSelection::Stdout => "stdout",
            OutputSelection::Stderr => "stderr",
            OutputSelection::Merged => "merged",
        }
    }

    pub fn from_word(word: &str) -> Option<OutputSelection> {
        OutputSelection::ALL.into_iter().find(|pick| pick.word() == word)
    }
}

/// A part of a job's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSlice {
    /// Where `bytes` begin: bytes between the requested offset and this were not kept.
    pub offset: u64,
    pub bytes: Vec<u8>,
    /// There is nothing behind it, and never will be.
    pub end: bool,
}

pub(super) fn piece(
    shell: &Shell,
    row: &JobRow,
    pick: OutputSelection,
    offset: u64,
    len_max: usize,
) -> Result<OutputSlice, JobOutputError> {
    JobOutputSource::of(shell, row)?.piece(pick, offset, len_max)
}

/// The output of one job.
pub(super) struct JobOutputSource<'a> {
    pub(super) executor: &'a dyn Executor,
    pub(super) db: &'a ArchiveDb,
    pub(super) row: &'a JobRow,
    /// None: it is in the archive alone.
    pub(super) sandbox: Option<String>,
}

impl<'a> JobOutputSource<'a> {
    pub(super) fn of(shell: &'a Shell, row: &'a JobRow) -> Result<JobOutputSource<'a>, JobOutputError> {
        let sandbox = if row.archived {
            None
        } else {
            let found = shell.reader.here(|store| store.job_summary(&row.id));
            let found = found.map_err(|error| unreadable(row, chain(&error)))?;
            found.map(|found| found.sandbox.to_string())
        };
        Ok(JobOutputSource { executor: &*shell.executor, db: &shell.jobs.db, row, sandbox })
    }

    pub(super) fn piece(
        &self,
        pick: OutputSelection,
        offset: u64,
        len_max: usize,
    ) -> Result<OutputSlice, JobOutputError> {
        match pick {
            OutputSelection::Stdout => self.stream(StreamKind::Stdout, offset, len_max),
            OutputSelection::Stderr => self.stream(StreamKind::Stderr, offset, len_max),
            OutputSelection::Merged => {
                // In this order: marks that are read later may say more, which does no harm.
                let known = self.known()?;
                let order = self.order()?;
                merged(&order, known, offset, len_max, |who, at| self.stretch(who, at, len_max))
            }
        }
    }

    fn is_over(&self) -> bool {
        !self.row.progress.state.is_open()
    }

    /// The ends of both streams. For an ended job, its row has them.
    pub(super) fn known(&self) -> Result<StreamEnds, JobOutputError> {
        let (progress, over) = (&self.row.progress, self.is_over());
        let (mut stdout, mut stderr) = (progress.stdout.seen, progress.stderr.seen);
        if let (false, Some(sandbox)) = (over, &self.sandbox) {
            match self.executor.job_totals(sandbox, self.row.id.as_str()) {
                Ok(totals) => (stdout, stderr) = (totals.stdout.end, totals.stderr.end),
                Err(SandboxReadError::Absent { .. }) => {}
                Err(error) => return Err(unreadable(self.row, chain(&error))),
            }
        }
        Ok(StreamEnds { stdout, stderr, over })
    }

    pub(super) fn stream(
        &self,
        who: StreamKind,
        offset: u64,
        len_max: usize,
    ) -> Result<OutputSlice, JobOutputError> {
        let OutputSpan { offset: from, bytes } = self.stretch(who, offset, len_max)?;
        let seen = match who {
            StreamKind::Stdout => self.row.progress.stdout.seen,
            StreamKind::Stderr => self.row.progress.stderr.seen,
        };
        if !self.is_over() {
            return Ok(OutputSlice { offset: from, bytes, end: false });
        }
        // What was dropped at the very end has nothing behind it to begin with.
        let from = if bytes.is_empty() { seen.max(offset) } else { from };
        let end = bytes.is_empty() || from + bytes.len() as u64 >= seen;
        Ok(OutputSlice { offset: from, bytes, end })
    }

    /// Bytes from `offset` on, or from the first that is kept behind it, wherever they are.
    fn stretch(&self, who: StreamKind, offset: u64, len_max: usize) -> Result<OutputSpan, JobOutputError> {
        if self.row.output_removed {
            return Ok(OutputSpan { offset, bytes: Vec::new() });
        }
        let archived = self.archived(stream_of(who), offset, len_max)?;
        let has = |stretch: &OutputSpan| !stretch.bytes.is_empty();
        if has(&archived) && archived.offset == offset {
            return Ok(archived);
        }
        let Some(sandbox) = &self.sandbox else { return Ok(archived) };
        let stream = match who {
            StreamKind::Stdout => ExecStream::Stdout,
            StreamKind::Stderr => ExecStream::Stderr,
        };
        let in_files = match self.executor.job_read(sandbox, self.row.id.as_str(), stream, offset, len_max) {
            Ok(read) => OutputSpan { offset: read.offset, bytes: read.bytes },
            Err(SandboxReadError::Absent { .. }) => OutputSpan { offset, bytes: Vec::new() },
            Err(error) => return Err(unreadable(self.row, chain(&error))),
        };
        if has(&in_files) && in_files.offset == offset {
            return Ok(in_files);
        }
        // It may have moved between the two looks, and it moves one way.
        let archived = self.archived(stream_of(who), offset, len_max)?;
        Ok(match (has(&archived), has(&in_files)) {
            (true, true) if archived.offset <= in_files.offset => archived,
            (true, true) | (false, true) => in_files,
            (true, false) => archived,
            (false, false) => OutputSpan { offset, bytes: Vec::new() },
        })
    }

    /// In which order both streams spoke.
    fn order(&self) -> Result<Vec<u8>, JobOutputError> {
        let archived = |output: &Self| Ok(output.archived(OutputStream::Order, 0, ORDER_BYTES_MAX)?.bytes);
        // It goes into the archive as a whole, when the job is over.
        let Some(sandbox) = &self.sandbox else { return archived(self) };
        match self.executor.job_order(sandbox, self.row.id.as_str(), 0) {
            Ok(order) if order.is_empty() => archived(self),
            Ok(order) => Ok(order),
            Err(SandboxReadError::Absent { .. }) => archived(self),
            Err(error) => Err(unreadable(self.row, chain(&error))),
        }
    }

    fn archived(
        &self,
        stream: OutputStream,
        offset: u64,
        len_max: usize,
    ) -> Result<OutputSpan, JobOutputError> {
        let nothing = OutputSpan { offset, bytes: Vec::new() };
        let reader = match self.db.reader() {
            Ok(Some(reader)) => reader,
            Ok(None) => return Ok(nothing),
            // What is in the files can be read all the same.
            Err(ArchiveOpenError::Full | ArchiveOpenError::Failed) if !self.row.archived => {
                return Ok(nothing);
            }
            Err(ArchiveOpenError::Full | ArchiveOpenError::Failed) => {
                return Err(unreadable(self.row, "the archive could not be opened".to_owned()));
            }
        };
        match reader.read(&self.row.id, stream, offset, len_max) {
            Ok(read) => Ok(OutputSpan { offset: read.offset, bytes: read.bytes }),
            Err(error) => Err(unreadable(self.row, told(&error))),
        }
    }
}

fn stream_of(who: StreamKind) -> OutputStream {
    match who {
        StreamKind::Stdout => OutputStream::Stdout,
        StreamKind::Stderr => OutputStream::Stderr,
    }
}

pub(super) fn told(error: &OutputError) -> String {
    format!("{}: {} ({})", error.code(), chain(error), error.hint())
}

fn unreadable(row: &JobRow, why: String) -> JobOutputError {
    JobOutputError::Unreadable { job: row.id.clone(), why }
}

/// Why the output of a job could not be read.
#[derive(Debug, thiserror::Error)]
pub enum JobOutputError {
    #[error("the output of {job} could not be read")]
    Unreadable { job: JobId, why: String },
    #[error(transparent)]
    Thread(#[from] JoinError),
}

impl JobOutputError {
    /// Stable, documented, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            JobOutputError::Unreadable { .. } => "job.output_unreadable",
            JobOutputError::Thread(_) => "daemon.internal",
        }
    }

    /// Why, where something else is to blame.
    pub fn cause(&self) -> Option<String> {
        match self {
            JobOutputError::Unreadable { why, .. } => Some(why.clone()),
            JobOutputError::Thread(_) => None,
        }
    }

    /// What to do next.
    pub fn hint(&self) -> Option<String> {
        match self {
            JobOutputError::Unreadable { .. } => {
                Some("`lodge info` tells what is wrong with the archive".to_owned())
            }
            JobOutputError::Thread(_) => None,
        }
    }
}
