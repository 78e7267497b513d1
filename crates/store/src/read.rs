//! Reading what was committed, in short transactions, so that the WAL can always be copied back.

use std::collections::BTreeSet;
use std::path::Path;

use lodge_core::event::{EventBody, TurnFailed, TurnFinished, TurnInterrupted};
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{AgentRow, EventRow, MessageRow, RequestRow, Role, SessionFact, StepRow, TurnRow};
use lodge_core::summary::{Around, TurnFull};
use lodge_core::turn::TurnState;
use lodge_core::{AgentId, SessionId, TurnId};
use rusqlite::{Connection, OptionalExtension, params};

use crate::pool::Pool;
use crate::{load, quarantine, rows};

#[derive(Debug, thiserror::Error)]
#[error("the database could not be read")]
pub struct ReadError {
    #[from]
    cause: rusqlite::Error,
}

pub(crate) type Result<T> = std::result::Result<T, ReadError>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentFound {
    One(AgentId),
    None,
    /// Several ids start with what was given.
    Many(Vec<AgentId>),
}

#[derive(Debug, Clone)]
pub struct AgentSummary {
    pub row: AgentRow,
    /// Whether a turn of it runs.
    pub working: bool,
    /// Its work in quarantine.
    pub quarantine: Vec<QuarantineRow>,
}

/// A page of a listing ends with the row that reaches so many bytes: rows can be megabytes, and a page hundreds of them.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// Read connections. No reader sees more than was committed.
#[derive(Debug)]
pub struct Reader {
    pool: Pool,
}

impl Reader {
    pub(crate) fn new(path: &Path) -> rusqlite::Result<Self> {
        Ok(Reader { pool: Pool::connected(path)? })
    }

    pub(crate) fn with<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        Ok(self.pool.with(read)??)
    }

    /// Gives back the page caches and statements of connections that nobody uses.
    pub fn rest(&self) {
        self.pool.rest();
    }

    /// The newest sequence.
    pub fn head(&self) -> Result<u64> {
        self.with(|c| {
            c.query_row("SELECT coalesce(max(seq), 0) AS head FROM events", [], |row| {
                rows::unsigned(row, "head")
            })
        })
    }

    /// An agent by id, name or unique id prefix. Removed agents are found by their whole id alone.
    pub fn find_agent(&self, given: &str) -> Result<AgentFound> {
        self.with(|c| {
            let exact: Option<String> = c
                .prepare_cached("SELECT id FROM agents WHERE id = ?1 OR (name = ?1 AND state < 7)")?
                .query_row([given], |row| row.get(0))
                .optional()?;
            let ids = match exact {
                Some(id) => vec![id],
                None if given.len() < AgentId::PREFIX.len() + 2 || !given.starts_with("agt_") => Vec::new(),
                None => c
                    .prepare_cached(
                        "SELECT id FROM agents WHERE id >= ?1 AND id < ?1 || '{' AND state < 7 LIMIT 5",
                    )?
                    .query_map([given], |row| row.get(0))?
                    .collect::<rusqlite::Result<Vec<String>>>()?,
            };
            let mut ids: Vec<AgentId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
            Ok(match ids.len() {
                0 => AgentFound::None,
                1 => AgentFound::One(ids.remove(0)),
                _ => AgentFound::Many(ids),
            })
        })
    }

    pub fn agents(&self, after: Option<&str>, limit: u32) -> Result<Vec<AgentSummary>> {
        self.with(|c| {
            let working = working(c)?;
            let quarantine = quarantine::all(c)?;
            c.prepare_cached("SELECT * FROM agents WHERE state < 7 AND id > ?1 ORDER BY id LIMIT ?2")?
                .query_map(params![after.unwrap_or(""), limit], rows::agent)?
                .map(|row| {
                    row.map(|row| AgentSummary {
                        working: working.contains(row.id.as_str()),
                        quarantine: quarantine::of_agent(&quarantine, &row.id),
                        row,
                    })
                })
                .collect()
        })
    }

    pub fn agent(&self, id: &AgentId) -> Result<Option<AgentSummary>> {
        self.with(|c| {
            let row = c
                .prepare_cached("SELECT * FROM agents WHERE id = ?1")?
                .query_row([id.as_str()], rows::agent)
                .optional()?;
            let Some(row) = row else { return Ok(None) };
            let working = working(c)?.contains(id.as_str());
            Ok(Some(AgentSummary {
                row,
                working,
                quarantine: quarantine::of_agent(&quarantine::all(c)?, id),
            }))
        })
    }

    pub fn agent_counts(&self) -> Result<(u64, u64, u64)> {
        self.with(|c| {
            let (total, running) = c.query_row(
                "SELECT count(*) AS total, count(*) FILTER (WHERE state IN (1, 2, 3)) AS running FROM agents WHERE state < 7",
                [],
                |row| Ok((rows::unsigned(row, "total")?, rows::unsigned(row, "running")?)),
            )?;
            let works = format!("SELECT count(*) FROM agents WHERE state = 3 AND id IN ({WORKING})");
            Ok((total, running, c.query_row(&works, [], |row| row.get::<_, i64>(0))?.cast_unsigned()))
        })
    }

    pub fn session_fact(&self, id: &SessionId) -> Result<Option<SessionFact>> {
        // One transaction for all its statements: each would begin with looking what was committed since.
        self.with(|c| load::session_fact(&*c.unchecked_transaction()?, id.as_str()))
    }

    /// The newest session of an agent with a sender.
    pub fn session_of(&self, agent: &AgentId, sender: &str) -> Result<Option<SessionFact>> {
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

    pub fn session_count(&self, agent: &AgentId) -> Result<u64> {
        self.with(|c| {
            c.prepare_cached("SELECT count(*) AS n FROM sessions WHERE agent = ?1")?
                .query_row([agent.as_str()], |row| rows::unsigned(row, "n"))
        })
    }

    pub fn turn(&self, id: &TurnId) -> Result<Option<TurnFull>> {
        self.with(|c| {
            let row = c
                .prepare_cached("SELECT * FROM turns WHERE id = ?1")?
                .query_row([id.as_str()], rows::turn)
                .optional()?;
            row.map(|row| full(c, row)).transpose()
        })
    }

    /// Whether any turn of the agent waits or runs.
    pub fn has_live_turn(&self, agent: &AgentId) -> Result<bool> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT EXISTS (SELECT 1 FROM turns INDEXED BY turns_live WHERE agent = ?1 AND state < 10)",
            )?
            .query_row([agent.as_str()], |row| row.get(0))
        })
    }

    /// Turns that wait or run; of one agent, one session, or all.
    pub fn live_turns(
        &self,
        agent: Option<&AgentId>,
        session: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<TurnFull>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT * FROM turns INDEXED BY turns_live \
                 WHERE state < 10 AND (?1 IS NULL OR agent = ?1) AND (?2 IS NULL OR session = ?2) \
                 ORDER BY id LIMIT ?3",
            )?
            .query_map(
                params![agent.map(AgentId::as_str), session.map(SessionId::as_str), limit],
                rows::turn,
            )?
            .map(|row| full(c, row?))
            .collect()
        })
    }

    /// What a model reads: the messages of turns `from..=upto`, turn after turn.
    pub fn context(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<MessageRow>> {
        self.with(|c| {
            let c = &c.unchecked_transaction()?;
            let first: Option<i64> = c
                .prepare_cached("SELECT first_message FROM turns WHERE session = ?1 AND dropped = 0 AND number >= ?2 ORDER BY number LIMIT 1")?
                .query_row(params![session.as_str(), from], |row| row.get(0))
                .optional()?;
            let mut messages: Vec<MessageRow> = c
                .prepare_cached(
                    "SELECT * FROM messages WHERE session = ?1 AND seq >= ?2 AND number >= ?3 AND number <= ?4 \
                     AND EXISTS (SELECT 1 FROM turns WHERE id = messages.turn AND dropped = 0)",
                )?
                .query_map(params![session.as_str(), first.unwrap_or(0), from, upto], rows::message_row)?
                .collect::<rusqlite::Result<_>>()?;
            messages.sort_by_key(|message| (message.number, message.seq));
            Ok(messages)
        })
    }

    /// A page of the log after a sequence, and the last sequence it looked at.
    pub fn events(&self, since: u64, stream: Option<&str>, limit: u32) -> Result<(Vec<EventRow>, u64)> {
        self.with(|c| {
            let mut statement = match stream {
                None => c.prepare_cached(
                    "SELECT * FROM events WHERE seq > ?1 AND ?2 IS NULL ORDER BY seq LIMIT ?3",
                )?,
                Some(_) => c.prepare_cached(
                    "SELECT * FROM events WHERE seq > ?1 AND stream = ?2 ORDER BY seq LIMIT ?3",
                )?,
            };
            let (mut last, mut bytes) = (since, 0);
            let mut events = Vec::new();
            let mut found = statement.query(params![since.cast_signed(), stream, limit])?;
            while bytes < PAGE_BYTES_MAX
                && let Some(row) = found.next()?
            {
                last = rows::unsigned(row, "seq")?;
                let event = rows::event(row)?;
                bytes += event.as_ref().map_or(0, |event| event.body.weight());
                events.extend(event);
            }
            Ok((events, last))
        })
    }

    pub fn request(&self, caller: &str, request_id: &str) -> Result<Option<RequestRow>> {
        self.with(|c| {
            c.prepare_cached("SELECT * FROM requests WHERE caller = ?1 AND request_id = ?2")?
                .query_row([caller, request_id], rows::request)
                .optional()
        })
    }

    /// SQLite's own check of the whole file.
    pub fn integrity(&self) -> Result<String> {
        self.with(|c| c.query_row("PRAGMA integrity_check", [], |row| row.get(0)))
    }
}

fn working(c: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    c.prepare_cached(WORKING)?.query_map([], |row| row.get(0))?.collect()
}

/// The agents of which a turn or a job is in flight.
const WORKING: &str = "SELECT agent FROM turns INDEXED BY turns_live WHERE state < 10 AND state = 2 \
    UNION SELECT agent FROM jobs INDEXED BY jobs_state WHERE state = 2";

fn around(c: &Connection, row: &TurnRow) -> rusqlite::Result<Option<Around>> {
    match row.state {
        TurnState::Queued | TurnState::Waiting => {}
        TurnState::Running | TurnState::Done | TurnState::Interrupted | TurnState::Failed => return Ok(None),
    }
    let quarantine = quarantine::before(c, row)?;
    c.prepare_cached(
        "SELECT state = 3, next IS NOT NULL, EXISTS (SELECT 1 FROM turns INDEXED BY turns_live \
         WHERE state < 10 AND agent = ?1 AND session = ?2 AND number < ?3) FROM agents WHERE id = ?1",
    )?
    .query_row(params![row.agent.as_str(), row.session.as_str(), row.number], |found| {
        Ok(Around { agent_ready: found.get(0)?, updating: found.get(1)?, earlier: found.get(2)?, quarantine })
    })
    .optional()
}

pub(crate) fn full(c: &Connection, row: TurnRow) -> rusqlite::Result<TurnFull> {
    let steps: Vec<StepRow> = c
        .prepare_cached("SELECT * FROM steps WHERE turn = ?1 ORDER BY step, ordinal")?
        .query_map([row.id.as_str()], rows::step)?
        .collect::<rusqlite::Result<_>>()?;
    if row.state == TurnState::Done {
        let text = answer(c, &row)?;
        return Ok(TurnFull { row, steps, text, partial: false, around: None });
    }
    let text = text_so_far(c, &row)?;
    let around = around(c, &row)?;
    Ok(TurnFull { row, steps, text, partial: true, around })
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
    // What a copy says was said in the turn that it is a copy of.
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
