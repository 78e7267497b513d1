//! Moving output from the files of jobs into the archive: read, stored, and only then given back.
//!
//! Each step can be cut off and done again: what is archived already is not archived twice, and a byte is in one of the
//! two places at any time.

use std::collections::HashMap;
use std::sync::Arc;

use lodge_core::JobId;
use lodge_exec::{ExecStream, Executor, SandboxReadError};
use lodge_store::{OutputChunk, OutputEnds, OutputError, OutputStream, OutputWriter};

use super::db::{ArchiveDb, ArchiveOpenError};
use super::read::told;
use crate::chain;

/// Longest chunk.
const CHUNK_BYTES_MAX: usize = 256 << 10;
/// What one job of several may have in a round, so that each has its turn.
const JOB_BYTES_MAX: usize = 4 << 20;
/// What one round stores at most.
pub const ROUND_BYTES_MAX: usize = 8 << 20;

/// Where the output of a job is, and how it lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobOutputLayout {
    pub sandbox: String,
    /// How many bytes of the beginning of each stream never change once they are written.
    pub head: u64,
}

/// How much of a job to archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveRequest {
    /// The part that can no longer change, of a running job.
    Final,
    /// Everything, of one that ended.
    All,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveTask {
    pub job: JobId,
    pub placed: JobOutputLayout,
    pub want: ArchiveRequest,
}

/// What is left to be archived of what was wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveRemainder {
    Nothing,
    /// There was more than a round takes.
    Some,
    /// It could not be read now.
    Unread,
}

/// What a round takes, and where each job will stand after it.
#[derive(Debug, Default)]
pub struct ArchiveBatch {
    chunks: Vec<OutputChunk>,
    pub parts: Vec<ArchivedOutput>,
}

#[derive(Debug)]
pub struct ArchivedOutput {
    pub task: ArchiveTask,
    pub ends: OutputEnds,
    pub left: ArchiveRemainder,
}

impl ArchiveBatch {
    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.len()).sum()
    }
}

/// Why a round stored nothing.
#[derive(Debug)]
pub enum NotArchived {
    /// For want of room: it may be tried again.
    Full,
    /// Another process may use it: a second attempt decides.
    Failed { why: String },
    /// Archiving has ended.
    Broken,
}

/// Owns the writer of `output.db`.
#[derive(Debug)]
pub struct Archiver {
    executor: Arc<dyn Executor>,
    db: Arc<ArchiveDb>,
    store: Option<Box<dyn OutputWriter>>,
    /// Up to where the jobs that run are archived.
    ends: HashMap<JobId, OutputEnds>,
}

impl Archiver {
    pub fn new(executor: Arc<dyn Executor>, db: Arc<ArchiveDb>) -> Archiver {
        Archiver { executor, db, store: None, ends: HashMap::new() }
    }

    /// Reads what the tasks want, each in its turn, up to what a round takes.
    pub fn gather(&mut self, tasks: Vec<ArchiveTask>) -> Result<ArchiveBatch, NotArchived> {
        let mut batch = ArchiveBatch::default();
        // One that is alone takes the turns of the others: fewer flushes for as many bytes.
        let share = if tasks.len() > 1 { JOB_BYTES_MAX } else { ROUND_BYTES_MAX };
        for task in tasks {
            let room = ROUND_BYTES_MAX.saturating_sub(batch.bytes()).min(share);
            let part = self.part(task, room, &mut batch.chunks)?;
            batch.parts.push(part);
        }
        Ok(batch)
    }

    fn part(
        &mut self,
        task: ArchiveTask,
        mut room: usize,
        chunks: &mut Vec<OutputChunk>,
    ) -> Result<ArchivedOutput, NotArchived> {
        let known = self.ends.get(&task.job).copied().unwrap_or_default();
        let totals = match self.executor.job_totals(&task.placed.sandbox, task.job.as_str()) {
            // Most jobs that say nothing are done with here, without a look at the archive.
            Ok(totals) if totals.stdout.end == 0 && totals.stderr.end == 0 => {
                return Ok(ArchivedOutput { task, ends: known, left: ArchiveRemainder::Nothing });
            }
            Ok(totals) => totals,
            // Absent: forgotten, which happens after all was archived; or it never ran.
            Err(error) => {
                let left = unreadable(&task.job, &error);
                return Ok(ArchivedOutput { task, ends: known, left });
            }
        };
        let mut ends = self.ends_of(&task.job)?;
        let upto = |total: u64| match task.want {
            ArchiveRequest::Final => total.min(task.placed.head),
            ArchiveRequest::All => total,
        };
        let streams = [
            (ExecStream::Stdout, &mut ends.stdout, totals.stdout.end),
            (ExecStream::Stderr, &mut ends.stderr, totals.stderr.end),
        ];
        let mut left = ArchiveRemainder::Nothing;
        for (stream, end, total) in streams {
            left = worse(left, self.take(&task, stream, end, upto(total), &mut room, chunks));
        }
        if task.want == ArchiveRequest::All && totals.order > ends.order {
            left = worse(left, self.take_order(&task, &mut ends.order, chunks));
        }
        Ok(ArchivedOutput { task, ends, left })
    }

    fn ends_of(&mut self, job: &JobId) -> Result<OutputEnds, NotArchived> {
        if let Some(ends) = self.ends.get(job) {
            return Ok(*ends);
        }
        let reader = self.db.reader().map_err(not_archived)?;
        let ends = reader.map_or(Ok(OutputEnds::default()), |reader| reader.archived(job)).map_err(failed)?;
        self.ends.insert(job.clone(), ends);
        Ok(ends)
    }

    /// Reads a stream from where its archive ends, up to a place.
    fn take(
        &self,
        task: &ArchiveTask,
        stream: ExecStream,
        end: &mut u64,
        upto: u64,
        room: &mut usize,
        chunks: &mut Vec<OutputChunk>,
    ) -> ArchiveRemainder {
        while *end < upto {
            if *room == 0 {
                return ArchiveRemainder::Some;
            }
            let len_max = CHUNK_BYTES_MAX.min(*room).min(usize::try_from(upto - *end).unwrap_or(usize::MAX));
            let read = self.executor.job_read(&task.placed.sandbox, task.job.as_str(), stream, *end, len_max);
            let mut read = match read {
                Ok(read) => read,
                Err(error) => return unreadable(&task.job, &error),
            };
            let within = usize::try_from(upto.saturating_sub(read.offset)).unwrap_or(usize::MAX);
            read.bytes.truncate(within);
            if read.bytes.is_empty() {
                return ArchiveRemainder::Nothing;
            }
            *end = read.offset + read.bytes.len() as u64;
            *room -= read.bytes.len();
            let stream = match stream {
                ExecStream::Stdout => OutputStream::Stdout,
                ExecStream::Stderr => OutputStream::Stderr,
            };
            chunks.push(OutputChunk {
                job: task.job.clone(),
                stream,
                offset: read.offset,
                bytes: read.bytes,
            });
        }
        ArchiveRemainder::Nothing
    }

    fn take_order(
        &self,
        task: &ArchiveTask,
        end: &mut u64,
        chunks: &mut Vec<OutputChunk>,
    ) -> ArchiveRemainder {
        let marks = match self.executor.job_order(&task.placed.sandbox, task.job.as_str(), *end) {
            Ok(marks) => marks,
            Err(error) => return unreadable(&task.job, &error),
        };
        for bytes in marks.chunks(CHUNK_BYTES_MAX) {
            let (job, stream) = (task.job.clone(), OutputStream::Order);
            chunks.push(OutputChunk { job, stream, offset: *end, bytes: bytes.to_vec() });
            *end += bytes.len() as u64;
        }
        ArchiveRemainder::Nothing
    }

    /// Stores what was read; returns when it is on disk.
    pub fn write(&mut self, batch: &ArchiveBatch) -> Result<(), NotArchived> {
        if !batch.chunks.is_empty() {
            self.store()?.append(&batch.chunks).map_err(failed)?.into_inner();
        }
        for part in &batch.parts {
            if part.task.want == ArchiveRequest::All && part.left == ArchiveRemainder::Nothing {
                self.ends.remove(&part.task.job);
            } else {
                self.ends.insert(part.task.job.clone(), part.ends);
            }
        }
        Ok(())
    }

    /// Gives back the room of what is stored. Where that fails it is given back with the job's directory.
    pub fn release(&self, batch: &ArchiveBatch) {
        // One that is done with is forgotten as a whole.
        let go_on = |part: &&ArchivedOutput| {
            part.task.want == ArchiveRequest::Final || part.left != ArchiveRemainder::Nothing
        };
        for part in batch.parts.iter().filter(go_on) {
            let (sandbox, job) = (&part.task.placed.sandbox, part.task.job.as_str());
            for (stream, upto) in
                [(ExecStream::Stdout, part.ends.stdout), (ExecStream::Stderr, part.ends.stderr)]
            {
                if let Err(error) = self.executor.job_release(sandbox, job, stream, upto) {
                    tracing::warn!(event = "job.output_not_released", job, error = chain(&error));
                }
            }
        }
    }

    /// Removes all that is archived of these jobs.
    pub fn remove(&mut self, jobs: &[JobId]) -> Result<(), NotArchived> {
        if self.store.is_none() && self.db.reader().map_err(not_archived)?.is_none() {
            return Ok(());
        }
        self.ends.retain(|job, _| !jobs.contains(job));
        self.store()?.remove(jobs).map_err(failed)
    }

    /// Gives some of what was removed back to the file system.
    pub fn shrink(&mut self) -> Result<lodge_store::ShrinkState, NotArchived> {
        match &mut self.store {
            Some(store) => store.shrink().map_err(failed),
            None => Ok(lodge_store::ShrinkState::All),
        }
    }

    /// By how much `output.db` will grow for what is in its log.
    pub fn pending_bytes(&mut self) -> Result<u64, NotArchived> {
        self.store.as_mut().map_or(Ok(0), |store| store.pending_bytes()).map_err(failed)
    }

    /// Copies that back now, if it is open.
    pub fn checkpoint_now(&mut self) -> Result<(), NotArchived> {
        self.store.as_mut().map_or(Ok(()), |store| store.settle()).map_err(failed)
    }

    /// Forgets what only saves time.
    pub fn rest(&self) {
        if let Some(store) = &self.store {
            store.rest();
        }
    }

    pub(super) fn store(&mut self) -> Result<&mut dyn OutputWriter, NotArchived> {
        let store = match self.store.take() {
            Some(store) => store,
            None => self.db.store().map_err(not_archived)?,
        };
        Ok(&mut **self.store.insert(store))
    }
}

fn worse(a: ArchiveRemainder, b: ArchiveRemainder) -> ArchiveRemainder {
    match (a, b) {
        (ArchiveRemainder::Unread, _) | (_, ArchiveRemainder::Unread) => ArchiveRemainder::Unread,
        (ArchiveRemainder::Some, _) | (_, ArchiveRemainder::Some) => ArchiveRemainder::Some,
        (ArchiveRemainder::Nothing, ArchiveRemainder::Nothing) => ArchiveRemainder::Nothing,
    }
}

fn unreadable(job: &JobId, error: &SandboxReadError) -> ArchiveRemainder {
    match error {
        SandboxReadError::Absent { .. } => ArchiveRemainder::Nothing,
        // What lies there is not what a keeper writes, and will not be.
        SandboxReadError::BadId { .. }
        | SandboxReadError::NotPlain { .. }
        | SandboxReadError::TooLong { .. } => {
            tracing::error!(event = "job.output_unreadable", %job, error = chain(error));
            ArchiveRemainder::Nothing
        }
        // The kernel's refusals may pass.
        SandboxReadError::Open { .. } | SandboxReadError::Read { .. } => {
            tracing::warn!(event = "job.output_unread", %job, error = chain(error));
            ArchiveRemainder::Unread
        }
    }
}

fn not_archived(error: ArchiveOpenError) -> NotArchived {
    match error {
        ArchiveOpenError::Full => NotArchived::Full,
        ArchiveOpenError::Failed => NotArchived::Broken,
    }
}

fn failed(error: OutputError) -> NotArchived {
    match error {
        OutputError::Full { .. } => NotArchived::Full,
        OutputError::InDoubt { .. } => NotArchived::Broken,
        OutputError::Corrupt { .. } | OutputError::Unusable { .. } => {
            NotArchived::Failed { why: told(&error) }
        }
    }
}
