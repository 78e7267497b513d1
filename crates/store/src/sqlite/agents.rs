//! Reading agents.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::AgentId;
use lodge_core::park::{ParkReason, ParkRecord};
use lodge_core::record::{AgentFact, AgentRow, Usage};
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use super::{quarantine, rows};
use crate::reads::{AgentMatch, AgentReads, AgentSummary, Result};
use crate::sqlite::codes::{
    AGENT_PULLING, AGENT_READY, AGENT_REMOVED, AGENT_STARTING, JOB_RUNNING, TURN_OVER, TURN_RUNNING,
    TURN_WAITING, USAGE_SUM, sql,
};

/// Removed agents that are listed, when several match.
const FOUND_MAX: u32 = 5;

impl AgentReads for SqliteSnapshot<'_> {
    fn find_agent(&self, given: &str) -> Result<AgentMatch> {
        self.with(|c| {
            let exact: Option<String> = c
                .prepare_cached(sql!(
                    "SELECT id FROM agents WHERE id = ?1 OR (name = ?1 AND state < ",
                    AGENT_REMOVED,
                    ")"
                ))?
                .query_row([given], |row| row.get(0))
                .optional()?;
            let ids = match exact {
                Some(id) => vec![id],
                None if given.len() < AgentId::PREFIX.len() + 2 || !given.starts_with("agt_") => Vec::new(),
                None => c
                    .prepare_cached(sql!(
                        "SELECT id FROM agents WHERE id >= ?1 AND id < ?1 || '{' AND state < ",
                        AGENT_REMOVED,
                        " LIMIT 5"
                    ))?
                    .query_map([given], |row| row.get(0))?
                    .collect::<rusqlite::Result<Vec<String>>>()?,
            };
            let mut ids: Vec<AgentId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
            Ok(match ids.len() {
                0 => AgentMatch::None,
                1 => AgentMatch::One(ids.remove(0)),
                _ => AgentMatch::Many(ids),
            })
        })
    }

    fn find_agent_ever(&self, given: &str) -> Result<AgentMatch> {
        let living = self.find_agent(given)?;
        if living != AgentMatch::None {
            return Ok(living);
        }
        let prefixed = given.starts_with("agt_") && given.len() >= AgentId::PREFIX.len() + 2;
        self.with(|c| {
            let ids = c
                .prepare_cached(sql!(
                    "SELECT id FROM agents WHERE state >= ",
                    AGENT_REMOVED,
                    " AND (name = ?1 OR (?2 AND id >= ?1 AND id < ?1 || '{')) \
                     ORDER BY id DESC LIMIT ?3"
                ))?
                .query_map(params![given, prefixed, FOUND_MAX], |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<String>>>()?;
            let mut ids: Vec<AgentId> = ids.iter().filter_map(|id| id.parse().ok()).collect();
            Ok(match ids.len() {
                0 => AgentMatch::None,
                1 => AgentMatch::One(ids.remove(0)),
                _ => AgentMatch::Many(ids),
            })
        })
    }

    fn agents(&self, after: Option<&str>, limit: u32) -> Result<Vec<AgentSummary>> {
        self.with(|c| {
            let working = working(c)?;
            let quarantine = quarantine::all(c)?;
            let mut parked = parked(c, None)?;
            c.prepare_cached(sql!(
                "SELECT * FROM agents WHERE state < ",
                AGENT_REMOVED,
                " AND id > ?1 ORDER BY id LIMIT ?2"
            ))?
            .query_map(params![after.unwrap_or(""), limit], rows::agent)?
            .map(|row| {
                row.map(|row| AgentSummary {
                    working: working.contains(row.id.as_str()),
                    quarantine: quarantine::of_agent(&quarantine, &row.id),
                    parked: parked.remove(row.id.as_str()).unwrap_or_default(),
                    row,
                })
            })
            .collect()
        })
    }

    fn agent(&self, id: &AgentId) -> Result<Option<AgentSummary>> {
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
                parked: parked(c, Some(id))?.remove(id.as_str()).unwrap_or_default(),
            }))
        })
    }

    fn agent_fact(&self, id: &AgentId) -> Result<Option<AgentFact>> {
        self.with(|c| {
            let row = c
                .prepare_cached(sql!("SELECT * FROM agents WHERE id = ?1 AND state < ", AGENT_REMOVED))?
                .query_row([id.as_str()], rows::agent)
                .optional()?;
            let Some(row) = row else { return Ok(None) };
            let lineage = c
                .prepare_cached("SELECT * FROM lineages WHERE id = ?1")?
                .query_row([row.lineage.as_str()], rows::lineage)?;
            // From the events: the table of heads may be behind.
            let head: Option<i64> = c
                .prepare_cached("SELECT max(stream_seq) FROM events WHERE stream = ?1")?
                .query_row([id.as_str()], |row| row.get(0))?;
            Ok(Some(AgentFact { row, lineage, head: head.unwrap_or(0).cast_unsigned() }))
        })
    }

    fn agent_of_sandbox(&self, sandbox: &str) -> Result<Option<AgentRow>> {
        self.with(|c| {
            c.prepare_cached(sql!("SELECT * FROM agents WHERE sandbox = ?1 AND state < ", AGENT_REMOVED))?
                .query_row([sandbox], rows::agent)
                .optional()
        })
    }

    fn usage_of_agents(&self) -> Result<BTreeMap<AgentId, Usage>> {
        self.with(|c| {
            c.prepare_cached(sql!("SELECT agent, ", USAGE_SUM, " FROM turns GROUP BY agent"))?
                .query_map([], |row| Ok((rows::id(row, "agent")?, rows::usage_sum(row)?)))?
                .collect()
        })
    }

    fn agent_usage(&self, id: &AgentId) -> Result<Usage> {
        self.with(|c| {
            c.prepare_cached(sql!(
                "SELECT ",
                USAGE_SUM,
                " FROM sessions AS s JOIN turns AS t ON t.session = s.id WHERE s.agent = ?1"
            ))?
            .query_row([id.as_str()], rows::usage_sum)
        })
    }

    fn agent_counts(&self) -> Result<(u64, u64, u64)> {
        self.with(|c| {
            let (total, running) = c.query_row(
                sql!(
                    "SELECT count(*) AS total, count(*) FILTER (WHERE state IN (",
                    AGENT_PULLING,
                    ", ",
                    AGENT_STARTING,
                    ", ",
                    AGENT_READY,
                    ")) AS running FROM agents WHERE state < ",
                    AGENT_REMOVED
                ),
                [],
                |row| Ok((rows::unsigned(row, "total")?, rows::unsigned(row, "running")?)),
            )?;
            let works =
                format!("SELECT count(*) FROM agents WHERE state = {AGENT_READY} AND id IN ({WORKING})");
            Ok((total, running, c.query_row(&works, [], |row| row.get::<_, i64>(0))?.cast_unsigned()))
        })
    }
}

fn working(c: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    c.prepare_cached(WORKING)?.query_map([], |row| row.get(0))?.collect()
}

/// Why turns are parked, by agent; of one agent, or of all.
fn parked(c: &Connection, agent: Option<&AgentId>) -> rusqlite::Result<BTreeMap<String, Vec<ParkReason>>> {
    let mut parked: BTreeMap<String, Vec<ParkReason>> = BTreeMap::new();
    let mut statement = c.prepare_cached(sql!(
        "SELECT agent, park FROM turns INDEXED BY turns_live WHERE state < ",
        TURN_OVER,
        " AND state = ",
        TURN_WAITING,
        " AND park IS NOT NULL AND (?1 IS NULL OR agent = ?1) ORDER BY id"
    ))?;
    let mut found = statement.query([agent.map(AgentId::as_str)])?;
    while let Some(row) = found.next()? {
        let record = rows::optional_message::<ParkRecord>(row, "park")?;
        if let Some(reason) = record.and_then(|record| record.reason) {
            parked.entry(row.get("agent")?).or_default().push(reason);
        }
    }
    Ok(parked)
}

/// The agents of which a turn or a job is in flight.
const WORKING: &str = sql!(
    "SELECT agent FROM turns INDEXED BY turns_live WHERE state < ",
    TURN_OVER,
    " AND state = ",
    TURN_RUNNING,
    " \
    UNION SELECT agent FROM jobs INDEXED BY jobs_state WHERE state = ",
    JOB_RUNNING
);
