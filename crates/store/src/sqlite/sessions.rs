//! Reads sessions: listings, and the snapshot that a change is based on.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use lodge_core::epoch::{Epoch, EpochRow};
use lodge_core::limits::PATH_TURNS_MAX;
use lodge_core::record::{SessionFact, SessionRow, TurnRow, Usage};
use lodge_core::session::{ForkPlan, PathPlan};
use lodge_core::summary::{LiveTurns, SessionSummary};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, SessionId, Timestamp, TurnId};
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use crate::reads::{
    ID_MATCHES_MAX, Result, SessionBase, SessionCursor, SessionReads, TurnRemains, TurnRepeat,
    TurnSelectionError, TurnSelector,
};
use crate::sqlite::codes::{AGENT_REMOVED, TURN_OVER, USAGE_SUM, sql};
use crate::sqlite::{epochs, load, paths, quarantine, retry, rows};

/// Characters of the first message that become the title of a session.
const TITLE_CHARS_MAX: usize = 60;

impl SessionReads for SqliteSnapshot<'_> {
    fn find_sessions(&self, given: &str) -> Result<Vec<SessionId>> {
        self.with(|c| {
            // No id has a character after `~`.
            let mut ids: Vec<SessionId> = c
                .prepare_cached(
                    "SELECT id FROM sessions WHERE id >= ?1 AND id < ?1 || '~' ORDER BY id LIMIT ?2",
                )?
                .query_map(params![given, ID_MATCHES_MAX], |row| rows::id(row, "id"))?
                .collect::<rusqlite::Result<_>>()?;
            if ids.first().is_some_and(|id| id.as_str() == given) {
                ids.truncate(1);
            }
            Ok(ids)
        })
    }

    fn session_fact(&self, id: &SessionId) -> Result<Option<SessionFact>> {
        self.with(|c| load::session_fact(c, id.as_str()))
    }

    fn session_of(&self, agent: &AgentId, sender: &str) -> Result<Option<SessionFact>> {
        self.with(|c| {
            let id: Option<String> = c
                .prepare_cached(
                    "SELECT id FROM sessions WHERE agent = ?1 AND sender = ?2 ORDER BY created_at DESC LIMIT 1",
                )?
                .query_row([agent.as_str(), sender], |row| row.get(0))
                .optional()?;
            id.map_or(Ok(None), |id| load::session_fact(c, &id))
        })
    }

    fn session_usage(&self, id: &SessionId) -> Result<Usage> {
        self.with(|c| {
            c.prepare_cached(sql!("SELECT ", USAGE_SUM, " FROM turns WHERE session = ?1"))?
                .query_row([id.as_str()], rows::usage_sum)
        })
    }

    fn session_count(&self, agent: &AgentId) -> Result<u64> {
        self.with(|c| {
            c.prepare_cached("SELECT count(*) AS n FROM sessions WHERE agent = ?1")?
                .query_row([agent.as_str()], |row| rows::unsigned(row, "n"))
        })
    }

    fn sessions(
        &self,
        agent: Option<&AgentId>,
        before: Option<&SessionCursor>,
        limit: u32,
    ) -> Result<Vec<SessionSummary>> {
        self.with(|c| {
            let live = live_turns(c, None)?;
            let newest = newest(c, agent, before, limit as usize, &live)?;
            newest.into_iter().filter_map(|(_, id)| summary(c, &id, &live).transpose()).collect()
        })
    }

    fn session(&self, id: &SessionId) -> Result<Option<SessionSummary>> {
        self.with(|c| summary(c, id.as_str(), &live_turns(c, Some(id))?))
    }

    fn inactive_turns(&self, id: &SessionId) -> Result<u64> {
        self.with(|c| {
            c.prepare_cached("SELECT count(*) AS n FROM turns WHERE session = ?1 AND dropped > 0")?
                .query_row([id.as_str()], |row| rows::unsigned(row, "n"))
        })
    }

    fn session_base(&self, id: &SessionId) -> Result<Option<SessionBase>> {
        self.with(|c| session_base(c, id))
    }

    fn rewind_plan(
        &self,
        id: &SessionId,
        pick: &TurnSelector,
    ) -> Result<Option<(SessionBase, std::result::Result<PathPlan, TurnSelectionError>)>> {
        self.planned(id, |c, standing| {
            if matches!(pick, TurnSelector::Number(0)) {
                return Ok(Ok(cut(c, standing, 1)?));
            }
            match picked(c, standing, pick)? {
                Err(no) => Ok(Err(no)),
                Ok(turn) => Ok(Ok(cut(c, standing, turn.number + 1)?)),
            }
        })
    }

    fn branch_plan(
        &self,
        id: &SessionId,
        turn: &TurnId,
    ) -> Result<Option<(SessionBase, std::result::Result<PathPlan, TurnSelectionError>)>> {
        self.planned(id, |c, standing| {
            let Some(row) = turn_of(c, standing, turn)? else { return Ok(Err(TurnSelectionError::Unknown)) };
            branch(c, standing, row)
        })
    }

    fn fork_plan(
        &self,
        id: &SessionId,
        pick: &TurnSelector,
    ) -> Result<Option<(SessionBase, std::result::Result<ForkPlan, TurnSelectionError>)>> {
        self.planned(id, |c, standing| {
            let turn = match picked(c, standing, pick)? {
                Ok(turn) => turn,
                Err(no) => return Ok(Err(no)),
            };
            if turn.number as usize > PATH_TURNS_MAX {
                return Ok(Err(TurnSelectionError::TooMany));
            }
            copied(c, standing, turn.number).map(Ok)
        })
    }

    fn repeat_plan(
        &self,
        id: &SessionId,
        pick: &TurnSelector,
    ) -> Result<Option<(SessionBase, std::result::Result<TurnRepeat, TurnSelectionError>)>> {
        self.planned(id, |c, standing| {
            let turn = match picked(c, standing, pick)? {
                Ok(turn) => turn,
                Err(no) => return Ok(Err(no)),
            };
            let first =
                c.prepare_cached("SELECT * FROM messages WHERE session = ?1 AND seq = ?2")?.query_row(
                    params![turn.session.as_str(), turn.first_message.cast_signed()],
                    rows::message_row,
                )?;
            let plan = cut(c, standing, turn.number)?;
            Ok(Ok(TurnRepeat { turn: turn.id, body: first.body, plan }))
        })
    }

    fn retry_plan(
        &self,
        id: &SessionId,
        turn: &TurnId,
    ) -> Result<Option<(SessionBase, std::result::Result<TurnRemains, TurnSelectionError>)>> {
        self.planned(id, |c, base| retry::remains(c, base, turn))
    }
}

impl SqliteSnapshot<'_> {
    fn planned<P>(
        &self,
        id: &SessionId,
        plan: impl FnOnce(&Connection, &SessionBase) -> rusqlite::Result<P>,
    ) -> Result<Option<(SessionBase, P)>> {
        self.with(|c| {
            let Some(standing) = session_base(c, id)? else { return Ok(None) };
            let plan = plan(c, &standing)?;
            Ok(Some((standing, plan)))
        })
    }
}

fn session_base(c: &Connection, id: &SessionId) -> rusqlite::Result<Option<SessionBase>> {
    let Some(fact) = load::session_fact(c, id.as_str())? else { return Ok(None) };
    let (agent_name, agent_removed) = agent_of(c, &fact.row)?;
    Ok(Some(SessionBase { fact, agent_name, agent_removed }))
}

fn agent_of(c: &Connection, row: &SessionRow) -> rusqlite::Result<(String, bool)> {
    c.prepare_cached(sql!("SELECT name, state >= ", AGENT_REMOVED, " FROM agents WHERE id = ?1"))?
        .query_row([row.agent.as_str()], |found| Ok((found.get(0)?, found.get(1)?)))
}

/// The turns in flight, of one session or of all.
fn live_turns(c: &Connection, of: Option<&SessionId>) -> rusqlite::Result<HashMap<String, LiveTurns>> {
    let mut live: HashMap<String, LiveTurns> = HashMap::new();
    let mut statement = c.prepare_cached(
        sql!("SELECT session, id, state, created_at FROM turns INDEXED BY turns_live WHERE state < ", TURN_OVER, " \
         AND (?1 IS NULL OR agent = (SELECT agent FROM sessions WHERE id = ?1)) AND (?1 IS NULL OR session = ?1) \
         ORDER BY session, number"),
    )?;
    let mut found = statement.query([of.map(SessionId::as_str)])?;
    while let Some(row) = found.next()? {
        let (id, state): (String, i64) = (row.get("id")?, row.get("state")?);
        let Ok(id) = id.parse::<TurnId>() else { continue };
        let turns = live.entry(row.get("session")?).or_default();
        turns.newest = turns.newest.max(Some(Timestamp::from_ms(row.get("created_at")?)));
        if state == TurnState::Queued.code() {
            turns.queued.push(id);
        } else {
            turns.running = Some(id);
        }
    }
    Ok(live)
}

/// The ids of a page of sessions. All sessions are scanned, which takes a few milliseconds for ten thousand; an index
/// would cost every turn more.
fn newest(
    c: &Connection,
    agent: Option<&AgentId>,
    before: Option<&SessionCursor>,
    limit: usize,
    live: &HashMap<String, LiveTurns>,
) -> rusqlite::Result<Vec<(i64, String)>> {
    let before = before.map(|place| (place.last_active.ms(), place.id.as_str()));
    let mut statement = match agent {
        None => c.prepare_cached("SELECT id, last_active FROM sessions WHERE ?1 IS NULL")?,
        Some(_) => c.prepare_cached("SELECT id, last_active FROM sessions WHERE agent = ?1")?,
    };
    let mut found = statement.query([agent.map(AgentId::as_str)])?;
    // The newest so far, the oldest of them on top.
    let mut page: BinaryHeap<Reverse<(i64, String)>> = BinaryHeap::new();
    while let Some(row) = found.next()? {
        let id = row.get_ref("id")?.as_str()?;
        let at = last_active(row.get("last_active")?, live.get(id));
        let full = page.len() == limit;
        let older =
            full && page.peek().is_some_and(|Reverse((last, other))| (at, id) < (*last, other.as_str()));
        if older || before.is_some_and(|before| (at, id) >= before) {
            continue;
        }
        page.push(Reverse((at, id.to_owned())));
        if full {
            page.pop();
        }
    }
    Ok(page.into_sorted_vec().into_iter().map(|Reverse(place)| place).collect())
}

/// The last activity: a turn in flight is newer than the last ended one.
fn last_active(ended: i64, live: Option<&LiveTurns>) -> i64 {
    live.and_then(|live| live.newest).map_or(ended, |newest| ended.max(newest.ms()))
}

/// The first words of the first message, which is a user's.
fn title(c: &Connection, id: &str) -> rusqlite::Result<Option<String>> {
    let first = c
        .prepare_cached("SELECT * FROM messages WHERE session = ?1 ORDER BY seq LIMIT 1")?
        .query_row([id], rows::message_row)
        .optional()?;
    Ok(first.map(|message| message.body.text.chars().take(TITLE_CHARS_MAX).collect()))
}

fn summary(
    c: &Connection,
    id: &str,
    live: &HashMap<String, LiveTurns>,
) -> rusqlite::Result<Option<SessionSummary>> {
    let found: Option<(SessionRow, i64)> = c
        .prepare_cached("SELECT * FROM sessions WHERE id = ?1")?
        .query_row([id], |row| Ok((rows::session(row)?, row.get("last_active")?)))
        .optional()?;
    let Some((row, ended)) = found else { return Ok(None) };
    let (turns, _) = paths::end(c, id)?;
    let (agent_name, agent_removed) = agent_of(c, &row)?;
    let live = live.get(id).cloned().unwrap_or_default();
    // Most sessions have no open turn, and so nothing in quarantine.
    let quarantine =
        if live.is_empty() { Vec::new() } else { quarantine::of_turns(&quarantine::all(c)?, live.all()) };
    Ok(Some(SessionSummary {
        title: title(c, id)?,
        turns,
        last_active: Timestamp::from_ms(last_active(ended, Some(&live))),
        epoch: epochs::number(c, id)?,
        agent_name,
        agent_removed,
        quarantine,
        live,
        row,
    }))
}

/// A turn of the path.
fn picked(
    c: &Connection,
    standing: &SessionBase,
    pick: &TurnSelector,
) -> rusqlite::Result<std::result::Result<TurnRow, TurnSelectionError>> {
    let number = match pick {
        TurnSelector::Id(id) => {
            return Ok(match turn_of(c, standing, id)? {
                None => Err(TurnSelectionError::Unknown),
                Some(row) if row.place.dropped > 0 => Err(TurnSelectionError::Inactive),
                Some(row) => Ok(row),
            });
        }
        TurnSelector::Last => standing.fact.turns,
        TurnSelector::Number(number) => *number,
    };
    let row = c
        .prepare_cached("SELECT * FROM turns WHERE session = ?1 AND dropped = 0 AND number = ?2")?
        .query_row(params![standing.fact.row.id.as_str(), number], rows::turn)
        .optional()?;
    Ok(row.ok_or(TurnSelectionError::Unknown))
}

pub(crate) fn turn_of(
    c: &Connection,
    standing: &SessionBase,
    id: &TurnId,
) -> rusqlite::Result<Option<TurnRow>> {
    c.prepare_cached("SELECT * FROM turns WHERE id = ?1 AND session = ?2")?
        .query_row([id.as_str(), standing.fact.row.id.as_str()], rows::turn)
        .optional()
}

/// The path without its turns from a number on.
pub(crate) fn cut(c: &Connection, standing: &SessionBase, from: u32) -> rusqlite::Result<PathPlan> {
    let session = standing.fact.row.id.as_str();
    let tip: Option<String> = c
        .prepare_cached("SELECT id FROM turns WHERE session = ?1 AND dropped = 0 AND number = ?2")?
        .query_row(params![session, from - 1], |row| row.get(0))
        .optional()?;
    let epoch = epoch_after(c, session, from, &[])?;
    let tip = tip.and_then(|id| id.parse().ok());
    Ok(PathPlan { from, restored: Vec::new(), turns: from - 1, tip, epoch })
}

fn branch(
    c: &Connection,
    standing: &SessionBase,
    turn: TurnRow,
) -> rusqlite::Result<std::result::Result<PathPlan, TurnSelectionError>> {
    let session = standing.fact.row.id.as_str();
    if turn.place.dropped == 0 {
        // It is the path already: nothing changes.
        let from = standing.fact.turns + 1;
        return cut(c, standing, from).map(Ok);
    }
    let mut followers: Vec<TurnRow> = c
        .prepare_cached(
            "SELECT * FROM turns WHERE session = ?1 AND dropped = ?2 AND number > ?3 ORDER BY number",
        )?
        .query_map(params![session, turn.place.dropped, turn.number], rows::turn)?
        .take(PATH_TURNS_MAX + 1)
        .collect::<rusqlite::Result<_>>()?;
    let (mut from, mut at) = (1, Some(turn));
    let mut before = Vec::new();
    while let Some(row) = at.take() {
        if row.place.dropped == 0 {
            from = row.number + 1;
            break;
        }
        at = parent(c, &row)?;
        before.push(row);
        if before.len() + followers.len() > PATH_TURNS_MAX {
            return Ok(Err(TurnSelectionError::TooMany));
        }
    }
    before.reverse();
    before.append(&mut followers);
    let epoch = epoch_after(c, session, from, &before)?;
    let restored: Vec<TurnId> = before.into_iter().map(|row| row.id).collect();
    let turns = from - 1 + u32::try_from(restored.len()).unwrap_or(u32::MAX);
    Ok(Ok(PathPlan { from, tip: restored.last().cloned(), restored, turns, epoch }))
}

/// The turn before another when it was accepted.
fn parent(c: &Connection, row: &TurnRow) -> rusqlite::Result<Option<TurnRow>> {
    match &row.place.parent {
        Some(id) => c
            .prepare_cached("SELECT * FROM turns WHERE id = ?1")?
            .query_row([id.as_str()], rows::turn)
            .optional(),
        // From before branches existed: each number had one turn, and ids grow with time.
        None => c
            .prepare_cached("SELECT * FROM turns WHERE session = ?1 AND number = ?2 ORDER BY id LIMIT 1")?
            .query_row(params![row.session.as_str(), row.number.saturating_sub(1)], rows::turn)
            .optional(),
    }
}

/// The path up to a number, as a fork would copy it.
fn copied(c: &Connection, standing: &SessionBase, upto: u32) -> rusqlite::Result<ForkPlan> {
    let session = standing.fact.row.id.as_str();
    let ids: Vec<String> = c
        .prepare_cached(
            "SELECT id FROM turns WHERE session = ?1 AND dropped = 0 AND number <= ?2 ORDER BY number",
        )?
        .query_map(params![session, upto], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let (messages, bytes): (i64, i64) = c
        .prepare_cached(
            "SELECT count(*), coalesce(sum(length(body)), 0) FROM messages WHERE session = ?1 \
             AND turn IN (SELECT id FROM turns WHERE session = ?1 AND dropped = 0 AND number <= ?2)",
        )?
        .query_row(params![session, upto], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut epoch = epoch_after(c, session, upto + 1, &[])?;
    // A copy has no epochs but those that it is given.
    epoch.newest = epoch.number;
    let turns = ids.iter().filter_map(|id| id.parse().ok()).collect();
    Ok(ForkPlan { turns, messages: messages.cast_unsigned(), bytes: bytes.cast_unsigned(), epoch })
}

/// The epoch of a session whose path is cut before a number and continues with `restored`.
fn epoch_after(c: &Connection, session: &str, from: u32, restored: &[TurnRow]) -> rusqlite::Result<Epoch> {
    let back: HashSet<(u32, u32)> = restored.iter().map(|row| (row.place.dropped, row.number)).collect();
    let (mut current, mut newest): (Option<EpochRow>, u32) = (None, 1);
    let mut statement = c.prepare_cached("SELECT * FROM epochs WHERE session = ?1 ORDER BY epoch")?;
    let mut found = statement.query([session])?;
    while let Some(row) = found.next()? {
        let dropped: u32 = row.get("dropped")?;
        let epoch = rows::epoch(row)?;
        newest = newest.max(epoch.number);
        let stays = if dropped == 0 { epoch.turn < from } else { back.contains(&(dropped, epoch.turn)) };
        if stays {
            current = Some(epoch);
        }
    }
    let mut epoch = match &current {
        Some(row) => Epoch::recorded(row, newest),
        None => Epoch::default(),
    };
    epoch.newest = newest;
    let back: HashSet<&str> = restored.iter().map(|row| row.id.as_str()).collect();
    let mut weights: Vec<(u32, u64)> = Vec::new();
    let mut statement = c.prepare_cached(
        "SELECT number, turn, length(body) AS bytes, \
         (SELECT dropped FROM turns WHERE id = messages.turn) AS dropped FROM messages WHERE session = ?1 AND number >= ?2",
    )?;
    let mut found = statement.query(params![session, epoch.from_turn])?;
    while let Some(row) = found.next()? {
        let (number, dropped): (u32, u32) = (row.get("number")?, row.get("dropped")?);
        let stays = if dropped == 0 { number < from } else { back.contains(row.get_ref("turn")?.as_str()?) };
        if stays {
            weights.push((number, rows::unsigned(row, "bytes")?));
        }
    }
    weights.sort_unstable_by_key(|(number, _)| *number);
    weights.into_iter().for_each(|(number, bytes)| epoch.add(number, bytes));
    Ok(epoch)
}
