//! Reading turns, with their steps and their text.

use lodge_core::event::{EventBody, TurnFailed, TurnFinished, TurnInterrupted};
use lodge_core::record::{Role, StepRow, TurnRow};
use lodge_core::summary::{TurnDetail, TurnExtras, WaitReasons};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, SessionId, TurnId};
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use super::{quarantine, rows};
use crate::reads::{ID_MATCHES_MAX, PAGE_BYTES_MAX, Result, TurnFilter, TurnPage, TurnReads};
use crate::sqlite::codes::{AGENT_READY, TURN_OVER, sql};
use crate::sqlite::conversation::highest;

/// How much of a message a listing has.
const MESSAGE_CHARS_SHOWN: usize = 200;

impl TurnReads for SqliteSnapshot<'_> {
    fn turn(&self, id: &TurnId) -> Result<Option<TurnDetail>> {
        self.with(|c| {
            let row = c
                .prepare_cached("SELECT * FROM turns WHERE id = ?1")?
                .query_row([id.as_str()], rows::turn)
                .optional()?;
            let Some(row) = row else { return Ok(None) };
            let extras = TurnExtras { message: message(c, &row)?, since: since(c, &row)? };
            Ok(Some(TurnDetail { extras, ..full(c, row)? }))
        })
    }

    fn find_turns(&self, given: &str, agent: Option<&AgentId>) -> Result<Vec<TurnId>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT id FROM turns WHERE id >= ?1 AND id < ?1 || '{' AND (?2 IS NULL OR agent = ?2) LIMIT ?3",
            )?
            .query_map((given, agent.map(AgentId::as_str), ID_MATCHES_MAX), |row| rows::id(row, "id"))?
            .collect()
        })
    }

    fn newest_turns(&self, filter: &TurnFilter, before: Option<&TurnId>, limit: u32) -> Result<TurnPage> {
        self.with(|c| newest(c, filter, before, limit))
    }

    fn has_live_turn(&self, agent: &AgentId) -> Result<bool> {
        self.with(|c| {
            c.prepare_cached(sql!(
                "SELECT EXISTS (SELECT 1 FROM turns INDEXED BY turns_live WHERE agent = ?1 AND state < ",
                TURN_OVER,
                ")"
            ))?
            .query_row([agent.as_str()], |row| row.get(0))
        })
    }

    fn live_turns(
        &self,
        agent: Option<&AgentId>,
        session: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<TurnDetail>> {
        self.with(|c| {
            c.prepare_cached(sql!(
                "SELECT * FROM turns INDEXED BY turns_live \
                 WHERE state < ",
                TURN_OVER,
                " AND (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR session = ?2) \
                 ORDER BY id LIMIT ?3"
            ))?
            .query_map(
                params![agent.map(AgentId::as_str), session.map(SessionId::as_str), limit],
                rows::turn,
            )?
            .map(|row| full(c, row?))
            .collect()
        })
    }
}

/// Ids are in the order of time, so the newest turns are at the end of the table. Open turns, and those of a session,
/// have an index.
fn newest(
    c: &Connection,
    filter: &TurnFilter,
    before: Option<&TurnId>,
    limit: u32,
) -> rusqlite::Result<TurnPage> {
    let TurnFilter { agent, session, state, which } = filter;
    let sql = match (state.is_some_and(TurnState::is_live), session) {
        (true, _) => {
            sql!("SELECT * FROM turns INDEXED BY turns_live WHERE state < ", TURN_OVER, NEWEST_WHERE)
        }
        (false, Some(_)) => {
            sql!("SELECT * FROM turns INDEXED BY turns_path WHERE session = ?3", NEWEST_WHERE)
        }
        (false, None) => sql!("SELECT * FROM turns WHERE ?3 IS NULL", NEWEST_WHERE),
    };
    let mut statement = c.prepare_cached(sql)?;
    let mut found = statement.query(params![
        before.map(TurnId::as_str),
        agent.as_ref().map(AgentId::as_str),
        session.as_ref().map(SessionId::as_str),
        state.map(TurnState::code),
        highest(*which),
        limit
    ])?;
    let (mut turns, mut bytes) = (Vec::new(), 0);
    while bytes < PAGE_BYTES_MAX
        && let Some(row) = found.next()?
    {
        let row = rows::turn(row)?;
        let message = message(c, &row)?.map(|text| text.chars().take(MESSAGE_CHARS_SHOWN).collect());
        let extras = TurnExtras { message, since: None };
        let turn = TurnDetail { extras, ..full(c, row)? };
        bytes += turn.text.len();
        turns.push(turn);
    }
    let more = turns.len() == limit as usize || bytes >= PAGE_BYTES_MAX;
    Ok(TurnPage { turns, more })
}

const NEWEST_WHERE: &str = " AND (?1 IS NULL OR id < ?1) AND (?2 IS NULL OR agent = ?2) \
     AND (session = ?3 OR (?3 IS NULL AND origin IS NULL)) AND (?4 IS NULL OR state = ?4) AND dropped <= ?5 \
     ORDER BY id DESC LIMIT ?6";

/// The user's message of a turn.
fn message(c: &Connection, row: &TurnRow) -> rusqlite::Result<Option<String>> {
    let found = c
        .prepare_cached("SELECT * FROM messages WHERE session = ?1 AND seq = ?2")?
        .query_row(params![row.session.as_str(), row.first_message.cast_signed()], rows::message_row)
        .optional()?;
    Ok(found.filter(|first| first.role == Role::User).map(|first| first.body.text))
}

/// The newest event before the first one of a turn. A copy has no events of its own.
fn since(c: &Connection, row: &TurnRow) -> rusqlite::Result<Option<u64>> {
    if row.place.origin.is_some() {
        return Ok(None);
    }
    let first: Option<i64> = c
        .prepare_cached("SELECT seq FROM events WHERE stream = ?1 AND stream_seq = ?2")?
        .query_row(params![row.agent.as_str(), row.first_event.cast_signed()], |row| row.get(0))
        .optional()?;
    Ok(first.map(|first| first.cast_unsigned().saturating_sub(1)))
}

fn wait_reasons(c: &Connection, row: &TurnRow) -> rusqlite::Result<Option<WaitReasons>> {
    match row.state {
        TurnState::Queued | TurnState::Waiting => {}
        TurnState::Running | TurnState::Done | TurnState::Interrupted | TurnState::Failed => return Ok(None),
    }
    let quarantine = quarantine::before(c, row)?;
    c.prepare_cached(sql!(
        "SELECT state = ",
        AGENT_READY,
        ", next IS NOT NULL, EXISTS (SELECT 1 FROM turns INDEXED BY turns_live \
         WHERE state < ",
        TURN_OVER,
        " AND agent = ?1 AND session = ?2 AND number < ?3) FROM agents WHERE id = ?1"
    ))?
    .query_row(params![row.agent.as_str(), row.session.as_str(), row.number], |found| {
        Ok(WaitReasons {
            agent_ready: found.get(0)?,
            updating: found.get(1)?,
            earlier: found.get(2)?,
            quarantine,
            park: row.park.clone(),
        })
    })
    .optional()
}

pub(crate) fn full(c: &Connection, row: TurnRow) -> rusqlite::Result<TurnDetail> {
    let steps: Vec<StepRow> = c
        .prepare_cached("SELECT * FROM steps WHERE turn = ?1 ORDER BY step, ordinal")?
        .query_map([row.id.as_str()], rows::step)?
        .collect::<rusqlite::Result<_>>()?;
    if row.state == TurnState::Done {
        let text = answer(c, &row)?;
        return Ok(TurnDetail {
            row,
            steps,
            text,
            partial: false,
            wait_reasons: None,
            extras: TurnExtras::default(),
        });
    }
    let text = text_so_far(c, &row)?;
    let wait_reasons = wait_reasons(c, &row)?;
    Ok(TurnDetail { row, steps, text, partial: true, wait_reasons, extras: TurnExtras::default() })
}

/// The text of the turn's newest answer.
fn answer(c: &Connection, row: &TurnRow) -> rusqlite::Result<String> {
    let found = c
        .prepare_cached("SELECT * FROM messages WHERE session = ?1 AND seq >= ?2 AND turn = ?3 AND role = ?4 ORDER BY seq DESC LIMIT 1")?
        .query_row(
            params![row.session.as_str(), row.first_message.cast_signed(), row.id.as_str(), Role::Assistant.code()],
            rows::message_row,
        )
        .optional()?;
    Ok(found.map(|message| message.body.text).unwrap_or_default())
}

/// What people saw of a turn that has no answer: the durable text of its newest step and attempt.
fn text_so_far(c: &Connection, row: &TurnRow) -> rusqlite::Result<String> {
    let mut statement =
        c.prepare_cached("SELECT * FROM events WHERE stream = ?1 AND stream_seq >= ?2 ORDER BY stream_seq")?;
    let mut found = statement.query(params![row.agent.as_str(), row.first_event.cast_signed()])?;
    // The text of a copy belongs to the turn that it copies.
    let turn = row.place.origin.as_ref().unwrap_or(&row.id);
    let mut text = String::new();
    while let Some(event) = found.next()? {
        let Some(event) = rows::event(event)? else { continue };
        let is_it = |of: &str| of == turn.as_str();
        match event.body {
            EventBody::TurnText(said) if is_it(&said.turn) => {
                if said.offset == 0 {
                    text.clear();
                }
                text.push_str(&said.text);
            }
            EventBody::TurnStepRestarted(step) if is_it(&step.turn) => text.clear(),
            EventBody::TurnFailed(TurnFailed { turn, .. })
            | EventBody::TurnInterrupted(TurnInterrupted { turn, .. })
            | EventBody::TurnFinished(TurnFinished { turn, .. })
                if is_it(&turn) =>
            {
                break;
            }
            _ => {}
        }
    }
    Ok(text)
}
