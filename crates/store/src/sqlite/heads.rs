//! The newest `stream_seq` of every stream, without a write for every event.
//!
//! Owns: the derived table `streams`. It may be behind: the row without a name has the last event that it counts. Later
//! events are counted again at a load.

use std::collections::BTreeMap;

use lodge_core::record::EventRow;
use rusqlite::{Connection, OptionalExtension, params};

/// Events between two writes of the table, which bounds the counting at a start.
const HEADS_EVERY: i64 = 4_096;
/// The name of the row that is a sequence of the log, and not the head of a stream.
const COUNTED: &str = "";

/// Heads that the table does not have yet.
#[derive(Debug, Default)]
pub(crate) struct Heads {
    /// The event up to which the table counts.
    counted: i64,
    newest: i64,
    behind: BTreeMap<String, i64>,
}

impl Heads {
    /// Counts the events after the last write of the table; all of them if the table is missing.
    pub(crate) fn load(connection: &Connection, newest: i64) -> rusqlite::Result<Heads> {
        let known: Option<i64> = connection
            .query_row("SELECT head FROM streams WHERE stream = ?1", [COUNTED], |row| row.get(0))
            .optional()?;
        let counted = match known {
            Some(counted) => counted,
            None if newest > 2 * HEADS_EVERY => {
                count_all(connection, newest)?;
                newest
            }
            None => 0,
        };
        let mut heads = Heads { counted, newest, behind: BTreeMap::new() };
        let mut later =
            connection.prepare("SELECT stream, stream_seq FROM events WHERE seq > ?1 ORDER BY seq")?;
        let mut rows = later.query([counted])?;
        while let Some(row) = rows.next()? {
            heads.behind.insert(row.get(0)?, row.get(1)?);
        }
        Ok(heads)
    }

    /// The head of one stream, if it has events.
    pub(crate) fn of(&self, connection: &Connection, stream: &str) -> rusqlite::Result<Option<u64>> {
        let head = match self.behind.get(stream) {
            Some(head) => Some(*head),
            None => connection
                .prepare_cached("SELECT head FROM streams WHERE stream = ?1")?
                .query_row([stream], |row| row.get(0))
                .optional()?,
        };
        Ok(head.map(i64::cast_unsigned))
    }

    /// Notes an event that is on disk.
    pub(crate) fn note(&mut self, event: &EventRow) {
        self.newest = event.seq.cast_signed();
        let head = event.stream_seq.cast_signed();
        match self.behind.get_mut(&event.stream) {
            Some(known) => *known = head,
            None => drop(self.behind.insert(event.stream.clone(), head)),
        }
    }

    /// Writes the table when it is too far behind. True: once `tx` is committed, [`Heads::written`] is due.
    pub(crate) fn write(&self, tx: &Connection) -> rusqlite::Result<bool> {
        if self.newest - self.counted < HEADS_EVERY {
            return Ok(false);
        }
        let mut put = tx.prepare_cached("INSERT OR REPLACE INTO streams (stream, head) VALUES (?1, ?2)")?;
        for (stream, head) in &self.behind {
            put.execute(params![stream, head])?;
        }
        put.execute(params![COUNTED, self.newest])?;
        Ok(true)
    }

    pub(crate) fn written(&mut self) {
        self.counted = self.newest;
        self.behind.clear();
    }
}

/// Counts all events, after the table was lost.
fn count_all(connection: &Connection, newest: i64) -> rusqlite::Result<()> {
    let tx = connection.unchecked_transaction()?;
    tx.execute("DELETE FROM streams", [])?;
    tx.execute(
        "INSERT INTO streams (stream, head) SELECT stream, max(stream_seq) FROM events GROUP BY stream",
        [],
    )?;
    tx.execute("INSERT INTO streams (stream, head) VALUES (?1, ?2)", params![COUNTED, newest])?;
    tx.commit()
}
