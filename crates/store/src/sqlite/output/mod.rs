//! What jobs wrote: a database of its own, `output.db`, so that a gigabyte of output holds up no commit.
//!
//! Owns: the bytes of every stream, in chunks that are written once and in order. Never: which jobs there are (see
//! `jobs`): an output without a job is swept away, and a job whose output is missing says so.

mod open;
mod read;

use std::path::PathBuf;

use lodge_core::JobId;
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};

pub use self::open::{OutputOpenError, OutputOpened, UnusableArchive};
pub use self::read::{OutputPiece, OutputReader};
use crate::sqlite::full::is_full;
use crate::write::Committed;

/// What one transaction takes at most; more is written in several.
const TRANSACTION_BYTES_MAX: usize = 16 << 20;
/// From here on the WAL is copied back after every commit, as far as readers let it: at best every other round of the
/// daemon's archive, as that takes flushes of its own …
const CHECKPOINT_BYTES: u64 = 16 << 20;
/// … and from here on readers are waited for, so that it starts over. With one more transaction it is below 48 MB.
const RESTART_BYTES: u64 = 24 << 20;
/// What one call gives back to the file system at most.
const GIVE_BACK_BYTES: u64 = 8 << 20;
/// Chunks that one transaction removes.
const REMOVE_CHUNKS: u32 = 256;

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

    fn code(self) -> i64 {
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
        cause: rusqlite::Error,
    },
    #[error("the archive of job output {} is damaged", path.display())]
    Corrupt {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    /// A write failed and left the disk in doubt: nothing more is written until the store is opened again.
    #[error("the archive of job output {} cannot be written", path.display())]
    InDoubt { path: PathBuf },
    #[error("the archive of job output {} could not be used", path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
}

impl OutputError {
    pub(crate) fn of(connection: &Connection, path: &std::path::Path, cause: rusqlite::Error) -> OutputError {
        if is_full(connection, &cause) {
            return OutputError::Full { cause };
        }
        let path = path.to_owned();
        if is_damage(&cause) {
            OutputError::Corrupt { path, cause }
        } else {
            OutputError::Sqlite { path, cause }
        }
    }

    /// Stable, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            OutputError::Full { .. } => "archive.full",
            OutputError::Corrupt { .. } => "archive.damaged",
            OutputError::InDoubt { .. } => "archive.in_doubt",
            OutputError::Sqlite { .. } => "archive.unusable",
        }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            OutputError::Full { .. } => "make room on the disk; what was not archived stays in its files",
            OutputError::Corrupt { .. } => {
                "restart the daemon: a damaged archive is set aside and a new one begun"
            }
            OutputError::InDoubt { .. } | OutputError::Sqlite { .. } => {
                "check the disk and restart the daemon; what was not archived stays in its files"
            }
        }
    }
}

fn is_damage(cause: &rusqlite::Error) -> bool {
    matches!(cause.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

/// Holds the only connection that writes.
#[derive(Debug)]
pub struct OutputStore {
    connection: Connection,
    path: PathBuf,
    page_bytes: u64,
    health: Health,
}

/// How long the WAL is, and how much of it is in the file, too.
#[derive(Debug, Clone, Copy)]
struct WalFill {
    pages: u64,
    copied: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    Sound,
    InDoubt,
}

impl OutputStore {
    /// Writes chunks, all of them or, with an error, the first of them; returns when they are on disk.
    ///
    /// What is archived already is not written again: a chunk that begins before the end of its stream gives what it
    /// has beyond it. Nothing is ever written before that end.
    pub fn append(&mut self, chunks: &[OutputChunk]) -> Result<Committed<()>, OutputError> {
        let mut rest = chunks;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(transaction_len(rest));
            self.write(|tx| now.iter().try_for_each(|chunk| insert(tx, chunk)))?;
            rest = later;
        }
        Ok(Committed::new(()))
    }

    /// Removes all that is kept of these jobs. Asked again after it was cut off, it goes on.
    pub fn remove(&mut self, jobs: &[JobId]) -> Result<(), OutputError> {
        for job in jobs {
            while self.write(|tx| remove_some(tx, job))? == ShrinkState::Some {}
        }
        Ok(())
    }

    /// Gives a part of what was removed back to the file system. Asked until it says so, all of it.
    pub fn give_back(&mut self) -> Result<ShrinkState, OutputError> {
        let pages = GIVE_BACK_BYTES / self.page_bytes;
        let left = self.write(|tx| {
            // It gives one page back with every row that is asked for.
            let mut vacuum = tx.prepare_cached(&format!("PRAGMA incremental_vacuum({pages})"))?;
            let mut given = vacuum.raw_query();
            while given.next()?.is_some() {}
            tx.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0))
        })?;
        if left > 0 {
            return Ok(ShrinkState::Some);
        }
        // The file becomes shorter when the WAL is copied back.
        self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(ShrinkState::All)
    }

    /// What is on disk in the log alone: the file may grow by as much when that is copied back.
    pub fn pending_bytes(&mut self) -> Result<u64, OutputError> {
        let log = self.log()?;
        Ok((log.pages - log.copied) * self.page_bytes)
    }

    /// Copies it back now, and gives the room of the log back, unless somebody reads.
    pub fn settle(&mut self) -> Result<(), OutputError> {
        self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)")
    }

    /// Gives back the page cache.
    pub fn rest(&self) {
        // What cannot be given back is kept, which harms nobody.
        drop(self.connection.execute_batch("PRAGMA shrink_memory"));
    }

    /// Lets the file grow no further, as a full disk would; for tests.
    #[doc(hidden)]
    pub fn limit_pages(&mut self, pages: u32) {
        // A limit that was not taken shows as an append that does not fail.
        drop(self.connection.pragma_update(None, "max_page_count", pages));
    }

    fn write<T>(&mut self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, OutputError> {
        if self.health == Health::InDoubt {
            return Err(OutputError::InDoubt { path: self.path.clone() });
        }
        let written = (|| {
            let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&tx)?;
            tx.commit()?;
            Ok(value)
        })();
        match written {
            Ok(value) => {
                self.bound_wal()?;
                Ok(value)
            }
            Err(cause) => Err(self.failed(cause)),
        }
    }

    /// Looks after the WAL's length. Nobody waits for this writer, so that it copies by itself.
    fn bound_wal(&mut self) -> Result<(), OutputError> {
        let pragma = match self.log()?.pages * self.page_bytes {
            0..CHECKPOINT_BYTES => return Ok(()),
            CHECKPOINT_BYTES..RESTART_BYTES => "PRAGMA wal_checkpoint(PASSIVE)",
            RESTART_BYTES.. => "PRAGMA wal_checkpoint(TRUNCATE)",
        };
        self.checkpoint(pragma)
    }

    fn log(&mut self) -> Result<WalFill, OutputError> {
        let number = |row: &rusqlite::Row<'_>, column| {
            row.get::<_, i64>(column).map(|pages| pages.max(0).cast_unsigned())
        };
        let log = self.connection.prepare_cached("PRAGMA wal_checkpoint(NOOP)").and_then(|mut statement| {
            statement.query_row([], |row| {
                let pages = number(row, 1)?;
                Ok(WalFill { pages, copied: number(row, 2)?.min(pages) })
            })
        });
        log.map_err(|cause| self.failed(cause))
    }

    fn checkpoint(&mut self, pragma: &str) -> Result<(), OutputError> {
        match self.connection.query_row(pragma, [], |_| Ok(())) {
            Ok(()) => Ok(()),
            // What was written is on disk, in the WAL: without room, or while somebody reads, it stays there.
            Err(cause) if is_full(&self.connection, &cause) || is_busy(&cause) => Ok(()),
            Err(cause) => Err(self.failed(cause)),
        }
    }

    /// Without room nothing is in doubt, and when somebody else has the lock neither. After anything else the kernel may
    /// have dropped what it could not write, and say so only once.
    fn failed(&mut self, cause: rusqlite::Error) -> OutputError {
        let busy = is_busy(&cause);
        let error = OutputError::of(&self.connection, &self.path, cause);
        match &error {
            OutputError::Full { .. } => {}
            OutputError::Corrupt { .. } => {
                open::suspect(&self.path);
                self.health = Health::InDoubt;
            }
            OutputError::Sqlite { .. } if busy => {}
            OutputError::Sqlite { .. } | OutputError::InDoubt { .. } => self.health = Health::InDoubt,
        }
        error
    }
}

fn is_busy(cause: &rusqlite::Error) -> bool {
    matches!(cause.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// How many chunks the next transaction takes: at least one.
fn transaction_len(chunks: &[OutputChunk]) -> usize {
    let mut bytes = 0;
    let fit = chunks.iter().take_while(|chunk| {
        bytes += chunk.bytes.len();
        bytes <= TRANSACTION_BYTES_MAX
    });
    fit.count().max(1)
}

fn insert(tx: &Connection, chunk: &OutputChunk) -> rusqlite::Result<()> {
    let output = match output_of(tx, &chunk.job)? {
        Some(output) => output,
        None => {
            tx.prepare_cached("INSERT INTO outputs (job) VALUES (?1)")?.execute([chunk.job.as_str()])?;
            tx.last_insert_rowid()
        }
    };
    let end = end(tx, output, chunk.stream)?;
    // What a run that was cut off wrote already.
    let known = usize::try_from(end.saturating_sub(chunk.offset)).unwrap_or(usize::MAX);
    let Some(new) = chunk.bytes.get(known..).filter(|new| !new.is_empty()) else { return Ok(()) };
    let offset = chunk.offset.max(end).cast_signed();
    tx.prepare_cached("INSERT INTO chunks (output, stream, offset, bytes) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![output, chunk.stream.code(), offset, new])?;
    Ok(())
}

fn output_of(c: &Connection, job: &JobId) -> rusqlite::Result<Option<i64>> {
    c.prepare_cached("SELECT id FROM outputs WHERE job = ?1")?
        .query_row([job.as_str()], |row| row.get(0))
        .optional()
}

/// The offset after the last byte of a stream.
fn end(c: &Connection, output: i64, stream: OutputStream) -> rusqlite::Result<u64> {
    let end: Option<i64> = c
        .prepare_cached(
            "SELECT offset + length(bytes) FROM chunks WHERE output = ?1 AND stream = ?2 ORDER BY offset DESC LIMIT 1",
        )?
        .query_row(params![output, stream.code()], |row| row.get(0))
        .optional()?;
    Ok(end.unwrap_or(0).cast_unsigned())
}

/// The output itself goes last, so that a removal that was cut off is seen as one that is still to be done.
fn remove_some(tx: &Connection, job: &JobId) -> rusqlite::Result<ShrinkState> {
    let Some(output) = output_of(tx, job)? else { return Ok(ShrinkState::All) };
    let removed = tx
        .prepare_cached(
            "DELETE FROM chunks WHERE id IN \
             (SELECT id FROM chunks WHERE output = ?1 ORDER BY stream, offset LIMIT ?2)",
        )?
        .execute(params![output, REMOVE_CHUNKS])?;
    if removed > 0 {
        return Ok(ShrinkState::Some);
    }
    tx.prepare_cached("DELETE FROM outputs WHERE id = ?1")?.execute([output])?;
    Ok(ShrinkState::All)
}
