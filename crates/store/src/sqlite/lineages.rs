//! Reading lineages, with what is derived about them.

use lodge_core::record::LineageRow;
use lodge_core::{AgentId, LineageId};
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use crate::reads::{ID_MATCHES_MAX, LineageFilter, LineageReads, LineageSummary, Result};
use crate::sqlite::rows;

impl LineageReads for SqliteSnapshot<'_> {
    fn lineages(&self, filter: LineageFilter<'_>, limit: u32) -> Result<Vec<LineageSummary>> {
        let LineageFilter { agent, state, after } = filter;
        self.with(|c| {
            let found: Vec<LineageRow> = c
                .prepare_cached(
                    "SELECT * FROM lineages WHERE id > ?1 AND (?2 IS NULL OR agent = ?2) AND (?3 IS NULL OR state = ?3) \
                     ORDER BY id LIMIT ?4",
                )?
                .query_map(params![after.unwrap_or(""), agent.map(AgentId::as_str), state, limit], rows::lineage)?
                .collect::<rusqlite::Result<_>>()?;
            found.into_iter().map(|row| summary(c, row)).collect()
        })
    }

    fn find_lineages(&self, given: &str) -> Result<Vec<LineageId>> {
        self.with(|c| {
            c.prepare_cached("SELECT id FROM lineages WHERE id >= ?1 AND id < ?1 || '{' LIMIT ?2")?
                .query_map((given, ID_MATCHES_MAX), |row| rows::id(row, "id"))?
                .collect()
        })
    }

    fn lineage(&self, id: &LineageId) -> Result<Option<LineageSummary>> {
        self.with(|c| {
            let row = c
                .prepare_cached("SELECT * FROM lineages WHERE id = ?1")?
                .query_row([id.as_str()], rows::lineage)
                .optional()?;
            row.map(|row| summary(c, row)).transpose()
        })
    }
}

fn summary(c: &Connection, row: LineageRow) -> rusqlite::Result<LineageSummary> {
    let agent = c
        .prepare_cached("SELECT * FROM agents WHERE id = ?1")?
        .query_row([row.agent.as_str()], rows::agent)?;
    // Ids grow with time, so the newest turn of each session is its last, and the newest of them all is wanted.
    let last_turn: Option<String> = c
        .prepare_cached(
            "SELECT max((SELECT id FROM turns WHERE session = s.id AND dropped = 0 AND origin IS NULL AND created_at >= ?2 \
             AND created_at <= coalesce(?3, created_at) ORDER BY number DESC LIMIT 1)) FROM sessions AS s WHERE agent = ?1",
        )?
        .query_row(
            params![row.agent.as_str(), row.created_at.ms(), row.ended_at.map(lodge_core::Timestamp::ms)],
            |found| found.get(0),
        )?;
    Ok(LineageSummary { agent, last_turn: last_turn.and_then(|id| id.parse().ok()), row })
}
