//! The output of jobs: read while it grows, and released once it is archived.
//!
//! A long stream consists of a head and consecutive segments (see the keeper). Every file is opened as in `evidence`:
//! beneath the job's directory, without following a link, plain, within a size limit.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use lodge_link::{EXEC_DIR, ORDER_FILE, RELEASED_FILE, Segment, limits, segment_name};
use rustix::fs::{AtFlags, Dir, FallocateFlags, OFlags};
use rustix::io::Errno;

use super::SystemExecutor;
use super::evidence::{check_ids, is_there, open_beneath, open_plain_at, read_at};
use crate::error::SandboxReadError;
use crate::output::{ExecStream, JobBytes, JobStreamExtent, JobTotals};

/// Most entries of a job's directory that are looked at. There are a dozen.
const ENTRIES_MAX: usize = 256;
/// How often a read starts again because the segment it wanted was removed. A segment outlives many reads, so this is
/// only for a job that writes faster than it can be read.
const ROUNDS_MAX: usize = 32;
/// What is given back of a head begins and ends at multiples of this, which blocks of every usual file system divide.
const BLOCK_BYTES: u64 = 64 * 1024;
const OUTPUT: &str = "captured output";
const ORDER: &str = "order of the output";
const RELEASED: &str = "mark of what was stored elsewhere";
const JOB: &str = "job";
/// One number for each stream.
const RELEASED_BYTES: usize = 16;

impl SystemExecutor {
    pub(super) fn release(
        &self,
        sandbox: &str,
        job: &str,
        stream: ExecStream,
        upto: u64,
    ) -> Result<(), SandboxReadError> {
        let dir = match self.job_dir(sandbox, job) {
            Ok(dir) => dir,
            Err(SandboxReadError::Absent { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let before = read_released(&dir)?;
        let has_some = open_part(&dir, stream.file_name())?.is_some() || !segments(&dir, stream)?.is_empty();
        // A job without output has nothing to release, and its directory may belong to another job by now.
        if upto <= before.of(stream) || !has_some {
            return Ok(());
        }
        write_released(&dir, before.with(stream, upto))?;
        punch(&dir, stream, before.of(stream), upto)?;
        let segments = segments(&dir, stream)?;
        // The last one may be written to; one before another is whole.
        for pair in segments.windows(2) {
            if pair[1].base <= upto {
                let name = segment_name(stream.file_name(), pair[0].base);
                match rustix::fs::unlinkat(&dir, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(errno) => return Err(failed(OUTPUT, errno.into())),
                }
            }
        }
        Ok(())
    }

    /// Reads in a job's directory. One that was forgotten meanwhile may be another's by now, with what was read in it.
    pub(super) fn read_in_job_dir<T>(
        &self,
        sandbox: &str,
        job: &str,
        read: impl FnOnce(&File) -> Result<T, SandboxReadError>,
    ) -> Result<T, SandboxReadError> {
        let dir = self.job_dir(sandbox, job)?;
        let read = read(&dir);
        match is_there(&self.sandbox_dir(sandbox), &format!("{EXEC_DIR}/{job}")) {
            true => read,
            false => Err(SandboxReadError::Absent { what: JOB }),
        }
    }

    fn job_dir(&self, sandbox: &str, job: &str) -> Result<File, SandboxReadError> {
        check_ids(sandbox, job)?;
        let claim = format!("{EXEC_DIR}/{job}");
        match open_beneath(&self.sandbox_dir(sandbox), claim.as_ref(), OFlags::DIRECTORY | OFlags::RDONLY) {
            Ok(dir) => Ok(dir),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(SandboxReadError::Absent { what: JOB })
            }
            Err(cause) => Err(SandboxReadError::Open { what: JOB, cause }),
        }
    }
}

fn failed(what: &'static str, cause: io::Error) -> SandboxReadError {
    SandboxReadError::Read { what, cause }
}

fn len_of(file: &File, what: &'static str) -> Result<u64, SandboxReadError> {
    Ok(file.metadata().map_err(|cause| failed(what, cause))?.len())
}

/// How much there is of both streams.
pub(super) fn totals(dir: &File) -> Result<JobTotals, SandboxReadError> {
    let released = read_released(dir)?;
    let order = match open_plain_at(dir, ORDER_FILE, ORDER, OFlags::RDONLY) {
        Ok(file) => len_of(&file, ORDER)?,
        Err(SandboxReadError::Absent { .. }) => 0,
        Err(error) => return Err(error),
    };
    let of = |stream: ExecStream| stream_totals(dir, stream, released.of(stream));
    Ok(JobTotals { stdout: of(ExecStream::Stdout)?, stderr: of(ExecStream::Stderr)?, order })
}

/// The marks of the order in which both streams were written, from `offset` on.
pub(super) fn order(dir: &File, offset: u64) -> Result<Vec<u8>, SandboxReadError> {
    let file = match open_plain_at(dir, ORDER_FILE, ORDER, OFlags::RDONLY) {
        Ok(file) => file,
        Err(SandboxReadError::Absent { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let total = len_of(&file, ORDER)?.min(limits::ORDER_BYTES_MAX as u64);
    read_at(&file, ORDER, offset, limits::ORDER_BYTES_MAX as u64, total)
}

/// Bytes of a stream that were not stored elsewhere before they were read.
pub(super) fn read_unreleased(
    dir: &File,
    stream: ExecStream,
    offset: u64,
    len_max: usize,
) -> Result<JobBytes, SandboxReadError> {
    let mut released = read_released(dir)?.of(stream);
    for _ in 0..ROUNDS_MAX {
        let from = offset.max(released);
        let read = read_parts(dir, stream, from, len_max)?;
        // Recorded before any space is released: bytes that may be zeroed are not returned.
        released = read_released(dir)?.of(stream);
        match read {
            Some((offset, bytes)) if released <= from => return Ok(JobBytes { offset, bytes, released }),
            Some(_) | None => {}
        }
    }
    Ok(JobBytes { offset: offset.max(released), bytes: Vec::new(), released })
}

/// A part of a stream, if it is there.
fn open_part(dir: &File, name: &str) -> Result<Option<File>, SandboxReadError> {
    match open_plain_at(dir, name, OUTPUT, OFlags::RDONLY) {
        Ok(file) => Ok(Some(file)),
        Err(SandboxReadError::Absent { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The segments of a stream that follow each other up to its end, by their place in it.
///
/// Segments before a gap are stale: the keeper died before it removed them.
fn segments(dir: &File, stream: ExecStream) -> Result<Vec<Segment>, SandboxReadError> {
    let mut all = listed(dir, stream)?;
    let mut from = all.len().saturating_sub(1);
    while let Some([before, after]) = from.checked_sub(1).and_then(|at| all.get(at..=from)) {
        let file = open_part(dir, &segment_name(stream.file_name(), before.base))?;
        match file {
            Some(file) if before.base + len_of(&file, OUTPUT)? == after.base => from -= 1,
            Some(_) | None => break,
        }
    }
    Ok(all.split_off(from))
}

fn listed(dir: &File, stream: ExecStream) -> Result<Vec<Segment>, SandboxReadError> {
    let mut found = Vec::new();
    let entries = Dir::read_from(dir).map_err(|errno| failed(OUTPUT, errno.into()))?;
    for entry in entries.take(ENTRIES_MAX) {
        let entry = entry.map_err(|errno| failed(OUTPUT, errno.into()))?;
        let name = entry.file_name().to_str().ok();
        found.extend(name.and_then(|name| Segment::parse(stream.file_name(), name)));
    }
    found.sort();
    Ok(found)
}

/// Bytes from `from` on, with where they begin. None: what was to be read was replaced meanwhile.
fn read_parts(
    dir: &File,
    stream: ExecStream,
    from: u64,
    len_max: usize,
) -> Result<Option<(u64, Vec<u8>)>, SandboxReadError> {
    // Listed first: where there is a segment now, all that came before it is as long as it will ever be.
    let segments = segments(dir, stream)?;
    let (mut offset, mut bytes) = (from, Vec::new());
    if let Some(head) = open_part(dir, stream.file_name())? {
        let len = len_of(&head, OUTPUT)?;
        bytes = read_at(&head, OUTPUT, from, len_max as u64, len)?;
    }
    for (at, segment) in segments.iter().enumerate() {
        let position = offset + bytes.len() as u64;
        let is_passed = segments.get(at + 1).is_some_and(|next| next.base <= position);
        if is_passed {
            continue;
        }
        if bytes.len() >= len_max || (segment.base > position && !bytes.is_empty()) {
            break;
        }
        let Some(file) = open_part(dir, &segment_name(stream.file_name(), segment.base))? else {
            return Ok((!bytes.is_empty()).then_some((offset, bytes)));
        };
        let len = len_of(&file, OUTPUT)?;
        if bytes.is_empty() {
            offset = offset.max(segment.base);
        }
        let within = (offset + bytes.len() as u64).saturating_sub(segment.base);
        bytes.extend(read_at(&file, OUTPUT, within, (len_max - bytes.len()) as u64, len)?);
    }
    Ok(Some((offset, bytes)))
}

fn stream_totals(dir: &File, stream: ExecStream, released: u64) -> Result<JobStreamExtent, SandboxReadError> {
    for _ in 0..ROUNDS_MAX {
        let segments = segments(dir, stream)?;
        let head = match open_part(dir, stream.file_name())? {
            Some(file) => len_of(&file, OUTPUT)?,
            None => 0,
        };
        let Some(last) = segments.last() else {
            return Ok(JobStreamExtent { head, tail_from: None, end: head, released });
        };
        let tail_from = segments.first().map(|first| first.base);
        if let Some(file) = open_part(dir, &segment_name(stream.file_name(), last.base))? {
            let end = last.base + len_of(&file, OUTPUT)?;
            return Ok(JobStreamExtent { head, tail_from, end, released });
        }
    }
    Err(SandboxReadError::Absent { what: OUTPUT })
}

/// How much of either stream was stored elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct ReleasedBytes {
    stdout: u64,
    stderr: u64,
}

impl ReleasedBytes {
    fn of(self, stream: ExecStream) -> u64 {
        match stream {
            ExecStream::Stdout => self.stdout,
            ExecStream::Stderr => self.stderr,
        }
    }

    fn with(self, stream: ExecStream, upto: u64) -> ReleasedBytes {
        match stream {
            ExecStream::Stdout => ReleasedBytes { stdout: upto, ..self },
            ExecStream::Stderr => ReleasedBytes { stderr: upto, ..self },
        }
    }
}

fn read_released(dir: &File) -> Result<ReleasedBytes, SandboxReadError> {
    let file = match open_plain_at(dir, RELEASED_FILE, RELEASED, OFlags::RDONLY) {
        Ok(file) => file,
        Err(SandboxReadError::Absent { .. }) => return Ok(ReleasedBytes::default()),
        Err(error) => return Err(error),
    };
    let bytes = read_at(&file, RELEASED, 0, RELEASED_BYTES as u64, RELEASED_BYTES as u64)?;
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map_or(0, u64::from_le_bytes)
    };
    Ok(ReleasedBytes { stdout: number(0), stderr: number(8) })
}

/// Recorded on disk before anything is removed, so that concurrent readers see it.
fn write_released(dir: &File, released: ReleasedBytes) -> Result<(), SandboxReadError> {
    let file = open_plain_at(dir, RELEASED_FILE, RELEASED, OFlags::RDWR | OFlags::CREATE)?;
    let mut bytes = [0; RELEASED_BYTES];
    bytes[..8].copy_from_slice(&released.stdout.to_le_bytes());
    bytes[8..].copy_from_slice(&released.stderr.to_le_bytes());
    file.write_all_at(&bytes, 0).map_err(|cause| failed(RELEASED, cause))
}

/// Makes a hole in the head, which keeps its length.
fn punch(dir: &File, stream: ExecStream, before: u64, upto: u64) -> Result<(), SandboxReadError> {
    let head = match open_plain_at(dir, stream.file_name(), OUTPUT, OFlags::RDWR) {
        Ok(head) => head,
        Err(SandboxReadError::Absent { .. }) => return Ok(()),
        Err(error) => return Err(error),
    };
    let down = |offset: u64| offset / BLOCK_BYTES * BLOCK_BYTES;
    let (from, to) = (down(before), down(upto.min(len_of(&head, OUTPUT)?)));
    if to <= from {
        return Ok(());
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match rustix::fs::fallocate(&head, hole, from, to - from) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(failed(OUTPUT, errno.into())),
    }
}
