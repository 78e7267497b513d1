//! Epochs: the messages of a session that a model reads, and the text before them.

use std::collections::BTreeMap;

use lodge_core::epoch::{Epoch, EpochRow, Summary};
use rusqlite::{Connection, OptionalExtension, params};

use crate::sqlite::rows;

pub(crate) fn put(tx: &Connection, row: &EpochRow) -> rusqlite::Result<()> {
    let kept: Option<String>;
    let summary = match &row.summary {
        Summary::Nothing => None,
        Summary::Text(text) => Some(text),
        Summary::Kept => {
            kept = newest(tx, row.session.as_str())?.and_then(|before| match before.summary {
                Summary::Text(text) => Some(text),
                Summary::Nothing | Summary::Kept => None,
            });
            kept.as_ref()
        }
    };
    tx.prepare_cached(
        "INSERT INTO epochs (session, epoch, turn, from_turn, strategy, summary, at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        row.session.as_str(),
        row.number,
        row.turn,
        row.from_turn,
        row.strategy.code(),
        summary,
        row.at.ms(),
    ])?;
    Ok(())
}

/// The number of the epoch that a session is in.
pub(crate) fn number(c: &Connection, session: &str) -> rusqlite::Result<u32> {
    c.prepare_cached("SELECT coalesce(max(epoch), 1) FROM epochs WHERE session = ?1 AND dropped = 0")?
        .query_row([session], |row| row.get(0))
}

/// The epoch that a session is in, weighed: the bodies of its messages are measured and not read.
pub(crate) fn current(c: &Connection, session: &str) -> rusqlite::Result<Epoch> {
    let newest: u32 = c
        .prepare_cached("SELECT coalesce(max(epoch), 1) FROM epochs WHERE session = ?1")?
        .query_row([session], |row| row.get(0))?;
    let mut epoch = match self::newest(c, session)? {
        Some(row) => Epoch::recorded(&row, newest),
        None => Epoch::default(),
    };
    epoch.newest = newest;
    let first = first_message(c, session, epoch.from_turn)?;
    // Added up here: with GROUP BY or IN, SQLite would create a temporary table and its cache each time.
    let mut statement = c.prepare_cached(
        "SELECT number, length(body) AS bytes FROM messages WHERE session = ?1 AND seq >= ?2 AND number >= ?3 \
         AND EXISTS (SELECT 1 FROM turns WHERE id = messages.turn AND dropped = 0)",
    )?;
    let mut found = statement.query(params![session, first.cast_signed(), epoch.from_turn])?;
    let mut weights: BTreeMap<u32, u64> = BTreeMap::new();
    while let Some(row) = found.next()? {
        *weights.entry(row.get("number")?).or_default() += rows::unsigned(row, "bytes")?;
    }
    for (number, bytes) in weights {
        epoch.add(number, bytes);
    }
    Ok(epoch)
}

fn newest(c: &Connection, session: &str) -> rusqlite::Result<Option<EpochRow>> {
    c.prepare_cached("SELECT * FROM epochs WHERE session = ?1 AND dropped = 0 ORDER BY epoch DESC LIMIT 1")?
        .query_row([session], rows::epoch)
        .optional()
}

/// The sequence of the first message of a turn, or of the next existing turn.
pub(crate) fn first_message(c: &Connection, session: &str, turn: u32) -> rusqlite::Result<u64> {
    let first: Option<i64> = c
        .prepare_cached(
            "SELECT first_message FROM turns WHERE session = ?1 AND dropped = 0 AND number >= ?2 ORDER BY number LIMIT 1",
        )?
        .query_row(params![session, turn], |row| row.get(0))
        .optional()?;
    Ok(first.unwrap_or(0).cast_unsigned())
}
