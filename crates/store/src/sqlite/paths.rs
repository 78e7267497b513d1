//! Writing sessions: their paths, copies of them, and their end.

use std::collections::HashMap;

use lodge_core::record::SessionRow;
use lodge_core::session::{Fork, PathChange};
use lodge_core::{SessionId, Timestamp, TurnId};
use rusqlite::{Connection, OptionalExtension, params};

/// How many turns the path of a session has, and the last of them.
pub(crate) fn end(c: &Connection, session: &str) -> rusqlite::Result<(u32, Option<TurnId>)> {
    let found: Option<(u32, String)> = c
        .prepare_cached(
            "SELECT number, id FROM turns WHERE session = ?1 AND dropped = 0 ORDER BY number DESC LIMIT 1",
        )?
        .query_row([session], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.map_or((0, None), |(number, id)| (number, id.parse().ok())))
}

pub(crate) fn insert(tx: &Connection, row: &SessionRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO sessions (id, agent, sender, created_at, forked_from, forked_at, last_active) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?4)",
    )?
    .execute(params![
        row.id.as_str(),
        row.agent.as_str(),
        row.sender,
        row.created_at.ms(),
        row.forked.as_ref().map(|fork| fork.session.as_str()),
        row.forked.as_ref().map(|fork| fork.turn),
    ])?;
    Ok(())
}

/// A turn ended. Its start is not worth a page: turns in flight are known (see `sessions`).
pub(crate) fn touch(tx: &Connection, turn: &TurnId, at: Timestamp) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "UPDATE sessions SET last_active = ?2 WHERE id = (SELECT session FROM turns WHERE id = ?1)",
    )?
    .execute(params![turn.as_str(), at.ms()])?;
    Ok(())
}

pub(crate) fn change(tx: &Connection, change: &PathChange) -> rusqlite::Result<()> {
    let session = change.session.as_str();
    for table in [
        "UPDATE turns SET dropped = ?2 WHERE session = ?1 AND dropped = 0 AND number >= ?3",
        "UPDATE epochs SET dropped = ?2 WHERE session = ?1 AND dropped = 0 AND turn >= ?3",
    ] {
        tx.prepare_cached(table)?.execute(params![session, change.cut, change.from])?;
    }
    for turn in &change.restored {
        // Epochs that began in a turn leave and join the path with it.
        tx.prepare_cached(
            "UPDATE epochs SET dropped = 0 WHERE session = ?1 AND (dropped, turn) IN \
             (SELECT dropped, number FROM turns WHERE id = ?2)",
        )?
        .execute(params![session, turn.as_str()])?;
        tx.prepare_cached("UPDATE turns SET dropped = 0 WHERE id = ?2 AND session = ?1")?
            .execute(params![session, turn.as_str()])?;
    }
    tx.prepare_cached("UPDATE sessions SET cuts = ?2, last_active = ?3 WHERE id = ?1")?.execute(params![
        session,
        change.cut,
        change.at.ms()
    ])?;
    Ok(())
}

/// Copies turns, messages and epochs. The usage of the originals counts once, so the copies have none.
pub(crate) fn fork(tx: &Connection, fork: &Fork) -> rusqlite::Result<()> {
    insert(tx, &fork.row)?;
    let Some(point) = &fork.row.forked else { return Ok(()) };
    let (from, to) = (point.session.as_str(), fork.row.id.as_str());
    let places = places(tx, from, fork)?;
    let mut first: HashMap<&str, i64> = HashMap::new();
    for (at, (_, _, copy)) in (1_i64..).zip(&places) {
        first.entry(copy).or_insert(at);
    }
    let mut parent: Option<&str> = None;
    let mut turn = tx.prepare_cached(
        "INSERT INTO turns (id, session, agent, number, state, first_event, first_message, created_at, ended_at, \
         input_tokens, output_tokens, failure, parent, origin) \
         SELECT ?2, ?3, agent, number, state, first_event, ?4, created_at, ended_at, 0, 0, failure, ?5, \
         coalesce(origin, id) FROM turns WHERE id = ?1",
    )?;
    for (id, copy) in &fork.turns {
        let first = first.get(copy.as_str()).copied().unwrap_or(1);
        turn.execute(params![id.as_str(), copy.as_str(), to, first, parent])?;
        parent = Some(copy.as_str());
    }
    let mut message = tx.prepare_cached(
        "INSERT INTO messages (session, seq, turn, number, step, role, at, body) \
         SELECT ?3, ?4, ?5, number, step, role, at, body FROM messages WHERE session = ?1 AND seq = ?2",
    )?;
    for (at, (_, seq, copy)) in (1_i64..).zip(&places) {
        message.execute(params![from, seq, to, at, copy])?;
    }
    tx.prepare_cached(
        "INSERT INTO epochs (session, epoch, turn, from_turn, strategy, summary, at) \
         SELECT ?2, epoch, turn, from_turn, strategy, summary, at FROM epochs \
         WHERE session = ?1 AND dropped = 0 AND turn <= ?3",
    )?
    .execute(params![from, to, point.turn])?;
    Ok(())
}

/// The messages that a fork copies, in the order of reading: number, sequence, and the copy of their turn.
fn places<'f>(tx: &Connection, from: &str, fork: &'f Fork) -> rusqlite::Result<Vec<(u32, i64, &'f str)>> {
    let copies: HashMap<&str, &str> =
        fork.turns.iter().map(|(id, copy)| (id.as_str(), copy.as_str())).collect();
    let mut statement = tx.prepare_cached("SELECT number, seq, turn FROM messages WHERE session = ?1")?;
    let mut found = statement.query([from])?;
    let mut places = Vec::new();
    while let Some(row) = found.next()? {
        if let Some(copy) = copies.get(row.get_ref("turn")?.as_str()?) {
            places.push((row.get("number")?, row.get("seq")?, *copy));
        }
    }
    places.sort_unstable();
    Ok(places)
}

pub(crate) fn delete(tx: &Connection, id: &SessionId) -> rusqlite::Result<()> {
    for part in [
        "DELETE FROM steps WHERE turn IN (SELECT id FROM turns WHERE session = ?1)",
        "DELETE FROM epochs WHERE session = ?1",
        "DELETE FROM messages WHERE session = ?1",
        "DELETE FROM turns WHERE session = ?1",
        "DELETE FROM sessions WHERE id = ?1",
    ] {
        tx.prepare_cached(part)?.execute([id.as_str()])?;
    }
    Ok(())
}
