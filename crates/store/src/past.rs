//! Looking back: the newest events before a place in the log, and agents that are no more.

use lodge_core::event::EventKind;
use lodge_core::record::EventRow;
use lodge_core::{AgentId, Timestamp};
use rusqlite::{OptionalExtension, params};

use crate::read::{AgentFound, PAGE_BYTES_MAX, Reader, Result};
use crate::rows;

/// Removed agents that are told apart, when several fit.
const FOUND_MAX: u32 = 5;

impl Reader {
    /// The newest events before `before`, the newest first, and the sequence of the last one that was looked at.
    pub fn events_before(
        &self,
        before: u64,
        stream: Option<&str>,
        limit: u32,
    ) -> Result<(Vec<EventRow>, u64)> {
        self.with(|c| {
            // Within a stream both sequences grow together, and only one of them is indexed by stream: a page that goes
            // on from an event of the stream begins there, and does not pass over everything newer.
            let mut statement = c.prepare_cached(match stream {
                None => "SELECT * FROM events WHERE seq < ?1 AND ?2 IS NULL ORDER BY seq DESC LIMIT ?3",
                Some(_) => {
                    "SELECT * FROM events WHERE seq < ?1 AND stream = ?2 AND stream_seq < \
                     coalesce((SELECT stream_seq FROM events WHERE seq = ?1 AND stream = ?2), 9223372036854775807) \
                     ORDER BY stream_seq DESC LIMIT ?3"
                }
            })?;
            let (mut last, mut bytes) = (0, 0);
            let mut events = Vec::new();
            let before = i64::try_from(before).unwrap_or(i64::MAX);
            let mut found = statement.query(params![before, stream, limit])?;
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

    /// When an event of this kind happened last to an agent.
    pub fn last_at(&self, agent: &AgentId, kind: EventKind) -> Result<Option<Timestamp>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT at FROM events WHERE stream = ?1 AND kind = ?2 ORDER BY stream_seq DESC LIMIT 1",
            )?
            .query_row(params![agent.as_str(), kind.code()], |row| row.get(0).map(Timestamp::from_ms))
            .optional()
        })
    }

    /// An agent by id, name or unique id prefix; if there is none, one that was removed.
    pub fn find_agent_ever(&self, given: &str) -> Result<AgentFound> {
        let living = self.find_agent(given)?;
        if living != AgentFound::None {
            return Ok(living);
        }
        let prefixed = given.starts_with("agt_") && given.len() >= AgentId::PREFIX.len() + 2;
        self.with(|c| {
            let ids = c
                .prepare_cached(
                    "SELECT id FROM agents WHERE state >= 7 AND (name = ?1 OR (?2 AND id >= ?1 AND id < ?1 || '{')) \
                     ORDER BY id DESC LIMIT ?3",
                )?
                .query_map(params![given, prefixed, FOUND_MAX], |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<String>>>()?;
            let mut ids: Vec<AgentId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
            Ok(match ids.len() {
                0 => AgentFound::None,
                1 => AgentFound::One(ids.remove(0)),
                _ => AgentFound::Many(ids),
            })
        })
    }
}
