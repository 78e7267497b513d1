//! Output of jobs: a separate database, `output.db`, so that a gigabyte of output delays no commit.
//!
//! Owns: the bytes of every stream, in chunks that are written once and in order. Never: which jobs exist (see `jobs`).
//! Output without a job is removed, and a job without its output reports that.

mod open;
mod read;

use std::path::{Path, PathBuf};

use lodge_core::JobId;
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};

pub use self::open::{OutputOpenError, OutputOpened, UnusableArchive};
pub use self::read::OutputReader;
use crate::outputs::{OutputChunk, OutputError, OutputStream, OutputWriter, ShrinkState};
use crate::sqlite::full::is_full;
use crate::write::Committed;

/// The size of one transaction; more is written in several.
const TRANSACTION_BYTES_MAX: usize = 16 << 20;
/// From this size on, a checkpoint follows every commit, as far as readers allow it: at best every other round of the
/// archive, because it needs its own flushes …
const CHECKPOINT_BYTES: u64 = 16 << 20;
/// … and from this size on it waits for readers, so that the WAL starts over. With one more transaction it is below 48
/// MB.
const RESTART_BYTES: u64 = 24 << 20;
/// The most space that one call returns to the file system.
const GIVE_BACK_BYTES: u64 = 8 << 20;
/// Chunks that one transaction removes.
const REMOVE_CHUNKS: u32 = 256;

fn is_damage(cause: &rusqlite::Error) -> bool {
    matches!(cause.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn output_error(connection: &Connection, path: &Path, cause: rusqlite::Error) -> OutputError {
    let (is_full, is_damage, cause) = (is_full(connection, &cause), is_damage(&cause), Box::new(cause));
    if is_full {
        return OutputError::Full { cause };
    }
    let path = path.to_owned();
    if is_damage { OutputError::Corrupt { path, cause } } else { OutputError::Unusable { path, cause } }
}

/// Holds the only connection that writes.
#[derive(Debug)]
pub struct OutputStore {
    connection: Connection,
    path: PathBuf,
    page_bytes: u64,
    health: ArchiveHealth,
}

/// The length of the WAL, and how much of it is checkpointed.
#[derive(Debug, Clone, Copy)]
struct WalFill {
    pages: u64,
    copied: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArchiveHealth {
    Sound,
    InDoubt,
}

impl OutputWriter for OutputStore {
    fn append(&mut self, chunks: &[OutputChunk]) -> Result<Committed<()>, OutputError> {
        let mut rest = chunks;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(transaction_len(rest));
            self.write(|tx| now.iter().try_for_each(|chunk| insert(tx, chunk)))?;
            rest = later;
        }
        Ok(Committed::new(()))
    }

    fn remove(&mut self, jobs: &[JobId]) -> Result<(), OutputError> {
        for job in jobs {
            while self.write(|tx| remove_some(tx, job))? == ShrinkState::Some {}
        }
        Ok(())
    }

    fn shrink(&mut self) -> Result<ShrinkState, OutputError> {
        let pages = GIVE_BACK_BYTES / self.page_bytes;
        let left = self.write(|tx| {
            // The pragma frees one page with every row that is read.
            let mut vacuum = tx.prepare_cached(&format!("PRAGMA incremental_vacuum({pages})"))?;
            let mut given = vacuum.raw_query();
            while given.next()?.is_some() {}
            tx.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0))
        })?;
        if left > 0 {
            return Ok(ShrinkState::Some);
        }
        // The file shrinks with a checkpoint.
        self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(ShrinkState::All)
    }

    fn pending_bytes(&mut self) -> Result<u64, OutputError> {
        let log = self.log()?;
        Ok((log.pages - log.copied) * self.page_bytes)
    }

    fn settle(&mut self) -> Result<(), OutputError> {
        self.checkpoint("PRAGMA wal_checkpoint(TRUNCATE)")
    }

    fn rest(&self) {
        // A failure is harmless: the memory stays in use.
        drop(self.connection.execute_batch("PRAGMA shrink_memory"));
    }

    fn limit_pages(&mut self, pages: u32) {
        // A limit that was not taken shows as an append that does not fail.
        drop(self.connection.pragma_update(None, "max_page_count", pages));
    }
}

impl OutputStore {
    fn write<T>(&mut self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, OutputError> {
        if self.health == ArchiveHealth::InDoubt {
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

    /// Bounds the WAL's length. No caller waits for this writer, so it runs checkpoints itself.
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
            // The data is on disk in the WAL. On a full disk, or while a reader is active, it stays there.
            Err(cause) if is_full(&self.connection, &cause) || is_busy(&cause) => Ok(()),
            Err(cause) => Err(self.failed(cause)),
        }
    }

    /// A full disk and another process's lock leave nothing in doubt. After any other error the kernel may have dropped
    /// pages, and reports that only once.
    fn failed(&mut self, cause: rusqlite::Error) -> OutputError {
        let busy = is_busy(&cause);
        let error = output_error(&self.connection, &self.path, cause);
        match &error {
            OutputError::Full { .. } => {}
            OutputError::Corrupt { .. } => {
                open::suspect(&self.path);
                self.health = ArchiveHealth::InDoubt;
            }
            OutputError::Unusable { .. } if busy => {}
            OutputError::Unusable { .. } | OutputError::InDoubt { .. } => {
                self.health = ArchiveHealth::InDoubt
            }
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
    // Chunks that an interrupted run wrote already.
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

/// The output itself is removed last, so that an interrupted removal is visible and repeated.
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
