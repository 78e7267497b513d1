//! Reads archived output in short transactions, so that checkpoints are always possible.

use std::path::Path;

use lodge_core::JobId;
use rusqlite::{Connection, OptionalExtension, params};

use super::{end, output_error, output_of};
use crate::outputs::{OUTPUT_PAGE_MAX, OutputEnds, OutputError, OutputPiece, OutputReads, OutputStream};
use crate::sqlite::pool::Pool;

/// Read connections, for any number of threads.
#[derive(Debug)]
pub struct OutputReader {
    pool: Pool,
}

impl OutputReader {
    pub(super) fn new(path: &Path) -> OutputReader {
        OutputReader { pool: Pool::new(path) }
    }

    fn with<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, OutputError> {
        let path = self.pool.path();
        let looked = self.pool.with(|c| read(c).map_err(|cause| output_error(c, path, cause)));
        looked.map_err(|cause| OutputError::Unusable { path: path.to_owned(), cause: Box::new(cause) })?
    }
}

impl OutputReads for OutputReader {
    fn archived(&self, job: &JobId) -> Result<OutputEnds, OutputError> {
        self.with(|c| {
            let Some(output) = output_of(c, job)? else { return Ok(OutputEnds::default()) };
            Ok(OutputEnds {
                stdout: end(c, output, OutputStream::Stdout)?,
                stderr: end(c, output, OutputStream::Stderr)?,
                order: end(c, output, OutputStream::Order)?,
            })
        })
    }

    fn read(
        &self,
        job: &JobId,
        stream: OutputStream,
        offset: u64,
        len_max: usize,
    ) -> Result<OutputPiece, OutputError> {
        self.with(|c| {
            let Some(output) = output_of(c, job)? else {
                return Ok(OutputPiece { offset, bytes: Vec::new() });
            };
            piece(c, output, stream, offset, len_max)
        })
    }

    fn bytes(&self, job: &JobId) -> Result<u64, OutputError> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT coalesce(sum(length(bytes)), 0) FROM chunks \
                 WHERE output = (SELECT id FROM outputs WHERE job = ?1)",
            )?
            .query_row([job.as_str()], |row| row.get::<_, i64>(0))
            .map(i64::cast_unsigned)
        })
    }

    fn total_bytes(&self) -> Result<u64, OutputError> {
        self.with(|c| {
            let pragma = |name: &str| c.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, i64>(0));
            let used = pragma("page_count")? - pragma("freelist_count")?;
            Ok((used * pragma("page_size")?).cast_unsigned())
        })
    }

    fn jobs(&self, after: Option<&JobId>, limit: u32) -> Result<Vec<JobId>, OutputError> {
        self.with(|c| {
            let ids = c
                .prepare_cached("SELECT job FROM outputs WHERE job > ?1 ORDER BY job LIMIT ?2")?
                .query_map(params![after.map_or("", JobId::as_str), limit.min(OUTPUT_PAGE_MAX)], |row| {
                    row.get(0)
                })?
                .collect::<rusqlite::Result<Vec<String>>>()?;
            Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
        })
    }

    fn integrity(&self) -> Result<String, OutputError> {
        self.with(|c| c.query_row("PRAGMA integrity_check", [], |row| row.get(0)))
    }

    fn rest(&self) {
        self.pool.close();
    }
}

fn piece(
    c: &Connection,
    output: i64,
    stream: OutputStream,
    asked: u64,
    len_max: usize,
) -> rusqlite::Result<OutputPiece> {
    let nothing = OutputPiece { offset: asked, bytes: Vec::new() };
    let Ok(from) = i64::try_from(asked) else { return Ok(nothing) };
    // The chunk that has the byte, or the first one after it.
    let first: Option<i64> = c
        .prepare_cached(
            "SELECT offset FROM chunks WHERE output = ?1 AND stream = ?2 AND offset <= ?3 ORDER BY offset DESC LIMIT 1",
        )?
        .query_row(params![output, stream.code(), from], |row| row.get(0))
        .optional()?;
    let mut statement = c.prepare_cached(
        "SELECT offset, bytes FROM chunks WHERE output = ?1 AND stream = ?2 AND offset >= ?3 ORDER BY offset",
    )?;
    let mut found = statement.query(params![output, stream.code(), first.unwrap_or(from)])?;
    let mut piece = nothing;
    while let Some(row) = found.next()? {
        let (start, bytes) = (row.get::<_, i64>(0)?.cast_unsigned(), row.get_ref(1)?.as_blob()?);
        if piece.bytes.is_empty() {
            let skipped = usize::try_from(asked.saturating_sub(start)).unwrap_or(usize::MAX);
            let Some(wanted) = bytes.get(skipped..).filter(|wanted| !wanted.is_empty()) else { continue };
            piece.offset = start.max(asked);
            piece.bytes.extend_from_slice(&wanted[..wanted.len().min(len_max)]);
        } else if start == piece.offset + piece.bytes.len() as u64 {
            let room = len_max - piece.bytes.len();
            piece.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        } else {
            break;
        }
        if piece.bytes.len() >= len_max {
            break;
        }
    }
    Ok(piece)
}
