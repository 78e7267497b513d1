//! The images of agents: their own, and those of their tools, which are in their specs. A derived table: an engine does
//! not read every agent to know them.
//!
//! Triggers mark rows of a release that does not know the table; [`catch_up`] counts them.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::AgentId;
use lodge_core::record::{AgentRow, AgentSpec, NextSpec};
use rusqlite::{Connection, params};

use crate::sqlite::codes::{AGENT_REMOVED, sql};
use crate::sqlite::rows;

/// Replaces a digest: the images of this agent are not counted.
const UNCOUNTED: &str = "";

/// The images of an agent as its columns have them.
pub(crate) fn put(
    tx: &Connection,
    agent: &AgentId,
    digest: &str,
    spec: &AgentSpec,
    next: Option<&NextSpec>,
) -> rusqlite::Result<()> {
    let later = next.into_iter().flat_map(NextSpec::images);
    let used: BTreeSet<&str> = std::iter::once(digest).chain(spec.images()).chain(later).collect();
    tx.prepare_cached("DELETE FROM agent_images WHERE agent = ?1")?.execute([agent.as_str()])?;
    let mut insert = tx.prepare_cached("INSERT INTO agent_images (agent, digest) VALUES (?1, ?2)")?;
    for digest in used {
        insert.execute(params![agent.as_str(), digest])?;
    }
    Ok(())
}

/// Counts agents that were written without the table, all of them when it is empty.
pub(crate) fn catch_up(tx: &Connection) -> rusqlite::Result<()> {
    let is_empty: bool =
        tx.query_row("SELECT NOT EXISTS (SELECT 1 FROM agent_images)", [], |row| row.get(0))?;
    if is_empty {
        tx.execute(
            sql!(
                "INSERT INTO agent_images (agent, digest) SELECT id, ?1 FROM agents WHERE state < ",
                AGENT_REMOVED
            ),
            [UNCOUNTED],
        )?;
    }
    let uncounted: Vec<AgentRow> = tx
        .prepare(
            "SELECT agents.* FROM agent_images INDEXED BY agent_images_digest JOIN agents ON id = agent WHERE digest = ?1",
        )?
        .query_map([UNCOUNTED], rows::agent)?
        .collect::<rusqlite::Result<_>>()?;
    uncounted.iter().try_for_each(|row| put(tx, &row.id, &row.image_digest, &row.spec, row.next.as_ref()))
}

/// How many agents have each image, those in `but` left out.
pub(crate) fn counts(c: &Connection, but: &[AgentRow]) -> rusqlite::Result<BTreeMap<String, u64>> {
    let mut counts: BTreeMap<String, u64> = c
        .prepare(
            "SELECT digest, count(*) AS agents FROM agent_images INDEXED BY agent_images_digest GROUP BY digest",
        )?
        .query_map([], |row| Ok((row.get("digest")?, rows::unsigned(row, "agents")?)))?
        .collect::<rusqlite::Result<_>>()?;
    for row in but {
        for digest in row.images().collect::<BTreeSet<_>>() {
            if let Some(count) = counts.get_mut(digest) {
                *count = count.saturating_sub(1);
            }
        }
    }
    counts.retain(|_, count| *count > 0);
    Ok(counts)
}
