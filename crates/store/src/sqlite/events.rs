//! Reading the log, forwards and backwards, and the answers to requests.

use lodge_core::event::EventKind;
use lodge_core::record::{EventRow, RequestRow};
use lodge_core::{AgentId, Timestamp};
use rusqlite::{OptionalExtension, params};

use super::rows;
use super::snapshot::SqliteSnapshot;
use crate::reads::{EventReads, PAGE_BYTES_MAX, Result};

impl EventReads for SqliteSnapshot<'_> {
    fn head(&self) -> Result<u64> {
        self.with(|c| {
            c.query_row("SELECT coalesce(max(seq), 0) AS head FROM events", [], |row| {
                rows::unsigned(row, "head")
            })
        })
    }

    fn events(&self, since: u64, stream: Option<&str>, limit: u32) -> Result<(Vec<EventRow>, u64)> {
        self.with(|c| {
            let mut statement = match stream {
                None => c.prepare_cached(
                    "SELECT * FROM events WHERE seq > ?1 AND ?2 IS NULL ORDER BY seq LIMIT ?3",
                )?,
                Some(_) => c.prepare_cached(
                    "SELECT * FROM events WHERE seq > ?1 AND stream = ?2 ORDER BY seq LIMIT ?3",
                )?,
            };
            let mut found = statement.query(params![since.cast_signed(), stream, limit])?;
            page(&mut found, since)
        })
    }

    fn events_before(&self, before: u64, stream: Option<&str>, limit: u32) -> Result<(Vec<EventRow>, u64)> {
        self.with(|c| {
            // Within a stream both sequences grow together, and only one of them is indexed by stream. A page that
            // continues from an event of the stream starts there, and does not scan newer events.
            let mut statement = c.prepare_cached(match stream {
                None => "SELECT * FROM events WHERE seq < ?1 AND ?2 IS NULL ORDER BY seq DESC LIMIT ?3",
                Some(_) => {
                    "SELECT * FROM events WHERE seq < ?1 AND stream = ?2 AND stream_seq < \
                     coalesce((SELECT stream_seq FROM events WHERE seq = ?1 AND stream = ?2), 9223372036854775807) \
                     ORDER BY stream_seq DESC LIMIT ?3"
                }
            })?;
            let before = i64::try_from(before).unwrap_or(i64::MAX);
            let mut found = statement.query(params![before, stream, limit])?;
            page(&mut found, 0)
        })
    }

    fn last_at(&self, agent: &AgentId, kind: EventKind) -> Result<Option<Timestamp>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT at FROM events WHERE stream = ?1 AND kind = ?2 ORDER BY stream_seq DESC LIMIT 1",
            )?
            .query_row(params![agent.as_str(), kind.code()], |row| row.get(0).map(Timestamp::from_ms))
            .optional()
        })
    }

    fn request(&self, caller: &str, request_id: &str) -> Result<Option<RequestRow>> {
        self.with(|c| {
            c.prepare_cached("SELECT * FROM requests WHERE caller = ?1 AND request_id = ?2")?
                .query_row([caller, request_id], rows::request)
                .optional()
        })
    }

    fn integrity(&self) -> Result<String> {
        self.with(|c| c.query_row("PRAGMA integrity_check", [], |row| row.get(0)))
    }
}

/// Events until a page is full, and the sequence of the last row that was read, which is `last` when there is none.
fn page(found: &mut rusqlite::Rows<'_>, mut last: u64) -> rusqlite::Result<(Vec<EventRow>, u64)> {
    let (mut events, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES_MAX
        && let Some(row) = found.next()?
    {
        last = rows::unsigned(row, "seq")?;
        let event = rows::event(row)?;
        bytes += event.as_ref().map_or(0, |event| event.body.weight());
        events.extend(event);
    }
    Ok((events, last))
}
