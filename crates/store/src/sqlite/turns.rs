//! Reading turns, with their steps and their text.

use lodge_core::event::{EventBody, TurnFailed, TurnFinished, TurnInterrupted};
use lodge_core::record::{Role, StepRow, TurnRow};
use lodge_core::summary::{TurnDetail, WaitReasons};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, SessionId, TurnId};
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use super::{quarantine, rows};
use crate::reads::{Result, TurnReads};
use crate::sqlite::codes::{AGENT_READY, TURN_OVER, sql};

impl TurnReads for SqliteSnapshot<'_> {
    fn turn(&self, id: &TurnId) -> Result<Option<TurnDetail>> {
        self.with(|c| {
            let row = c
                .prepare_cached("SELECT * FROM turns WHERE id = ?1")?
                .query_row([id.as_str()], rows::turn)
                .optional()?;
            row.map(|row| full(c, row)).transpose()
        })
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
        return Ok(TurnDetail { row, steps, text, partial: false, wait_reasons: None });
    }
    let text = text_so_far(c, &row)?;
    let wait_reasons = wait_reasons(c, &row)?;
    Ok(TurnDetail { row, steps, text, partial: true, wait_reasons })
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
