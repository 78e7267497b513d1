//! Reading a lineage as it was at its last turn boundary. Nothing is stored for it: it is put together when it is read.
//!
//! The boundary of a session lies before its first open turn, so nothing of a turn in flight is ever part of it.

use std::collections::HashMap;

use lodge_core::event::{EventBody, EventKind};
use lodge_core::record::{LineageRow, Role, SessionRow, Usage};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, LineageId, SessionId, Timestamp, TurnId};
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use crate::reads::{
    Boundary, BoundaryReads, LineageBoundary, MessageCursor, MessagePage, MessageRange, Result,
};
use crate::sqlite::codes::{TURN_OVER, sql};
use crate::sqlite::rows;

/// The search for a turn that ran stops after this many abandoned turns in a row.
const LOOK_BACK_MAX: u32 = 1_000;

impl BoundaryReads for SqliteSnapshot<'_> {
    fn at_boundary(
        &self,
        id: &LineageId,
        daemon: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Option<LineageBoundary>> {
        self.with(|c| {
            let Some(lineage) = lineage_row(c, id)? else { return Ok(None) };
            let agent = c
                .prepare_cached("SELECT * FROM agents WHERE id = ?1")?
                .query_row([lineage.agent.as_str()], rows::agent)?;
            let open = first_open(c, &lineage.agent)?;
            let (mut sessions, mut written_at, mut more) = (Vec::new(), lineage.created_at, false);
            let mut statement = c.prepare_cached("SELECT * FROM sessions WHERE agent = ?1 ORDER BY id")?;
            for session in statement.query_map([lineage.agent.as_str()], rows::session)? {
                let Some(boundary) = boundary(c, &lineage, &open, session?)? else { continue };
                written_at = written_at.max(boundary.ended_at);
                if after.is_some_and(|after| boundary.session.id.as_str() <= after) {
                    continue;
                }
                more = sessions.len() == limit as usize;
                if !more {
                    sessions.push(boundary);
                }
            }
            let epoch = epoch_at(c, daemon, written_at)?;
            Ok(Some(LineageBoundary { lineage, agent, written_at, epoch, sessions, more }))
        })
    }

    fn boundary_messages(
        &self,
        id: &LineageId,
        session: &SessionId,
        wanted: MessageRange,
    ) -> Result<Option<MessagePage>> {
        self.with(|c| {
            let Some(lineage) = lineage_row(c, id)? else { return Ok(None) };
            let row = c
                .prepare_cached("SELECT * FROM sessions WHERE id = ?1 AND agent = ?2")?
                .query_row([session.as_str(), lineage.agent.as_str()], rows::session)
                .optional()?;
            let Some(row) = row else { return Ok(None) };
            let open = first_open(c, &lineage.agent)?;
            match boundary(c, &lineage, &open, row)? {
                Some(boundary) => page(c, &lineage, &boundary, wanted).map(Some),
                None => Ok(Some(MessagePage::default())),
            }
        })
    }
}

fn lineage_row(c: &Connection, id: &LineageId) -> rusqlite::Result<Option<LineageRow>> {
    c.prepare_cached("SELECT * FROM lineages WHERE id = ?1")?
        .query_row([id.as_str()], rows::lineage)
        .optional()
}

/// The number of the first open turn of every session of an agent that has one.
fn first_open(c: &Connection, agent: &AgentId) -> rusqlite::Result<HashMap<String, u32>> {
    c.prepare_cached(sql!(
        "SELECT session, min(number) FROM turns INDEXED BY turns_live WHERE state < ",
        TURN_OVER,
        " AND agent = ?1 GROUP BY session"
    ))?
    .query_map([agent.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))?
    .collect()
}

fn boundary(
    c: &Connection,
    lineage: &LineageRow,
    open: &HashMap<String, u32>,
    session: SessionRow,
) -> rusqlite::Result<Option<Boundary>> {
    let newest: Option<u32> = c
        .prepare_cached(
            // What the end of a lineage broke off did not reach a boundary.
            "SELECT number FROM turns WHERE session = ?1 AND dropped = 0 AND (?2 IS NULL OR ended_at < ?2) \
             ORDER BY number DESC LIMIT 1",
        )?
        .query_row(params![session.id.as_str(), lineage.ended_at.map(Timestamp::ms)], |row| row.get(0))
        .optional()?;
    let before_open = open.get(session.id.as_str()).map_or(u32::MAX, |number| number - 1);
    let turns = newest.unwrap_or(0).min(before_open);
    if turns == 0 {
        return Ok(None);
    }
    let ended_at = last_end(c, session.id.as_str(), turns)?.unwrap_or(session.created_at);
    Ok(Some(Boundary { session, turns, ended_at }))
}

/// When the last of the first `turns` turns ended. That may be another than the last: one that waited can be given up
/// before an earlier one ends. But turns that ran end in their order.
fn last_end(c: &Connection, session: &str, turns: u32) -> rusqlite::Result<Option<Timestamp>> {
    let mut statement = c.prepare_cached(
        "SELECT state, ended_at FROM turns WHERE session = ?1 AND dropped = 0 AND number <= ?2 \
         ORDER BY number DESC LIMIT ?3",
    )?;
    let mut found = statement.query(params![session, turns, LOOK_BACK_MAX])?;
    let mut last: Option<i64> = None;
    while let Some(row) = found.next()? {
        last = last.max(row.get("ended_at")?);
        if TurnState::from_code(row.get("state")?) == Some(TurnState::Done) {
            break;
        }
    }
    Ok(last.map(Timestamp::from_ms))
}

/// The epoch of the daemon that ran at a time.
fn epoch_at(c: &Connection, daemon: &str, at: Timestamp) -> rusqlite::Result<Option<u64>> {
    let found = c
        .prepare_cached(
            "SELECT * FROM events WHERE stream = ?1 AND kind = ?2 AND at <= ?3 ORDER BY stream_seq DESC LIMIT 1",
        )?
        .query_row(params![daemon, EventKind::DaemonStarted.code(), at.ms()], rows::event)
        .optional()?;
    Ok(match found.flatten().map(|event| event.body) {
        Some(EventBody::DaemonStarted(started)) => Some(started.epoch),
        Some(_) | None => None,
    })
}

/// What a page needs to know of a turn.
struct TurnFact {
    id: TurnId,
    first_message: u64,
    usage: Usage,
}

fn page(
    c: &Connection,
    lineage: &LineageRow,
    boundary: &Boundary,
    wanted: MessageRange,
) -> rusqlite::Result<MessagePage> {
    let session = boundary.session.id.as_str();
    let upto = boundary.turns.min(wanted.turns_max);
    let from = wanted.after.number.max(1);
    if from > upto {
        return Ok(MessagePage::default());
    }
    let to = upto.min(from.saturating_add(wanted.messages_max - 1));
    let turns = turn_facts(c, lineage, session, from, to)?;
    let places = places(c, session, &turns, to)?;
    let mut page = MessagePage::default();
    let mut bytes = 0;
    let mut one = c.prepare_cached("SELECT * FROM messages WHERE session = ?1 AND seq = ?2")?;
    let mut left = places.into_iter().filter(|place| *place > wanted.after).peekable();
    while let Some(place) = left.next() {
        let message = one.query_row(params![session, place.seq.cast_signed()], rows::message_row)?;
        bytes += message.body.text.len();
        bytes += message.body.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        if let Some(fact) = turns.get(&place.number).filter(|fact| fact.first_message == place.seq) {
            page.usage += fact.usage;
        }
        page.messages.push(message);
        let full = page.messages.len() == wanted.messages_max as usize || bytes >= wanted.bytes_max;
        if full && left.peek().is_some() {
            page.next = Some(place);
            return Ok(page);
        }
    }
    page.next = (to < upto).then_some(MessageCursor { number: to + 1, seq: 0 });
    Ok(page)
}

/// The turns of a page. The tokens of those that are of another lineage count for nothing.
fn turn_facts(
    c: &Connection,
    lineage: &LineageRow,
    session: &str,
    from: u32,
    to: u32,
) -> rusqlite::Result<HashMap<u32, TurnFact>> {
    c.prepare_cached("SELECT * FROM turns WHERE session = ?1 AND dropped = 0 AND number BETWEEN ?2 AND ?3")?
        .query_map(params![session, from, to], rows::turn)?
        .map(|turn| {
            let turn = turn?;
            let own = turn.created_at >= lineage.created_at
                && lineage.ended_at.is_none_or(|ended_at| turn.created_at <= ended_at);
            let usage = if own { turn.usage } else { Usage::default() };
            Ok((turn.number, TurnFact { id: turn.id, first_message: turn.first_message, usage }))
        })
        .collect()
}

/// Where the messages of some turns are, in the order of reading.
fn places(
    c: &Connection,
    session: &str,
    turns: &HashMap<u32, TurnFact>,
    to: u32,
) -> rusqlite::Result<Vec<MessageCursor>> {
    let first = turns.values().map(|fact| fact.first_message).min().unwrap_or(0);
    let next: Option<String> = c
        .prepare_cached("SELECT id FROM turns WHERE session = ?1 AND dropped = 0 AND number = ?2")?
        .query_row(params![session, to + 1], |row| row.get(0))
        .optional()?;
    let mut statement = c.prepare_cached(
        "SELECT number, seq, role, turn FROM messages WHERE session = ?1 AND seq >= ?2 ORDER BY seq",
    )?;
    let mut found = statement.query(params![session, first.cast_signed()])?;
    let mut places = Vec::new();
    while let Some(row) = found.next()? {
        let place = MessageCursor { number: row.get("number")?, seq: rows::unsigned(row, "seq")? };
        let turn = row.get_ref("turn")?.as_str()?;
        if turns.get(&place.number).is_some_and(|fact| fact.id.as_str() == turn) {
            places.push(place);
        } else if next.as_deref() == Some(turn) && row.get::<_, i64>("role")? != Role::User.code() {
            // A waiting message lies among the answers to earlier ones, but one turn is answered at a time.
            break;
        }
    }
    places.sort_unstable();
    Ok(places)
}
