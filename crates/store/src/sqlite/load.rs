//! Loads the memory of an engine. The cost depends on what is live, not on the history.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use lodge_core::record::{
    AgentRow, DAEMON_STREAM, LineageRow, LiveTurn, Role, SessionFact, StoredState, TurnRow,
};
use lodge_core::sandbox::SandboxRow;
use lodge_core::{AgentId, SandboxId};
use rusqlite::{Connection, OptionalExtension, params};

use crate::sqlite::codes::{AGENT_LIVE, AGENT_REMOVED, TURN_OVER, sql};
use crate::sqlite::heads::Heads;
use crate::sqlite::open::OpenError;
use crate::sqlite::rows::{AgentPlaces, LineagePlaces};
use crate::sqlite::{agent_images, epochs, images, jobs, paths, quarantine, rows, sandboxes, tokens};

#[derive(Debug)]
pub(crate) struct RowLoadError(rusqlite::Error);

impl From<rusqlite::Error> for RowLoadError {
    fn from(cause: rusqlite::Error) -> Self {
        RowLoadError(cause)
    }
}

impl RowLoadError {
    pub(crate) fn into_inner(self) -> rusqlite::Error {
        self.0
    }

    pub(crate) fn into_open(self, path: &Path) -> OpenError {
        match self.0 {
            rusqlite::Error::FromSqlConversionFailure(_, _, cause) => {
                OpenError::Corrupt { path: path.to_owned(), what: cause.to_string() }
            }
            cause => OpenError::Sqlite { path: path.to_owned(), cause },
        }
    }
}

/// Also returns the heads of streams that the derived table does not have yet. Agents at rest are left out, except
/// those that are `remembered`.
pub(crate) fn load(
    connection: &Connection,
    epoch: u64,
    remembered: &[AgentId],
    remembered_sandboxes: &[SandboxId],
) -> Result<(StoredState, Heads), RowLoadError> {
    let seq: i64 = connection.query_row("SELECT coalesce(max(seq), 0) FROM events", [], |row| row.get(0))?;
    let rows: Vec<TurnRow> = connection
        // Ordered by id, the planner would read every turn of the history.
        .prepare(sql!(
            "SELECT * FROM turns INDEXED BY turns_live WHERE state < ",
            TURN_OVER,
            " ORDER BY session, number"
        ))?
        .query_map([], rows::turn)?
        .collect::<Result<_, _>>()?;
    let mut sessions: BTreeMap<String, SessionFact> = BTreeMap::new();
    let mut turns = Vec::with_capacity(rows.len());
    for row in rows {
        let session = row.session.as_str();
        if !sessions.contains_key(session)
            && let Some(fact) = session_fact(connection, session)?
        {
            sessions.insert(session.to_owned(), fact);
        }
        turns.push(live_turn(connection, row)?);
    }
    let heads = Heads::load(connection, seq)?;
    let (jobs, quarantine) = (jobs::unsettled(connection)?, quarantine::all(connection)?);
    let open = jobs.iter().filter(|row| row.progress.state.is_open() || !row.archived).map(|row| &row.agent);
    let held = turns.iter().map(|turn| &turn.row.agent).chain(open).chain(remembered);
    let held = held.chain(quarantine.iter().filter_map(|row| row.agent.as_ref())).collect();
    let agents = agents(connection, &held)?;
    let live_sandboxes = sandboxes::live(connection, remembered_sandboxes)?;
    let loaded = StoredState {
        epoch,
        seq: seq.cast_unsigned(),
        streams: streams(connection, &heads, &agents, &live_sandboxes)?,
        lineages: lineages(connection, &agents)?,
        names: names(connection)?,
        resting_images: agent_images::counts(connection, &agents)?,
        agents,
        last_uid: connection.query_row(LAST_UID, [], |row| row.get(0))?,
        sessions: sessions.into_values().collect(),
        turns,
        tokens: tokens::unrevoked(connection)?,
        image_refs: images::refs(connection)?,
        images: images::image_facts(connection)?,
        jobs,
        quarantine,
        sandboxes: live_sandboxes,
        execs: sandboxes::open_execs(connection)?,
    };
    Ok((loaded, heads))
}

/// The agents that are not at rest, and those in `held` that were not removed, ordered by id.
fn agents(connection: &Connection, held: &BTreeSet<&AgentId>) -> rusqlite::Result<Vec<AgentRow>> {
    let mut live =
        connection.prepare(sql!("SELECT * FROM agents INDEXED BY agents_live WHERE ", AGENT_LIVE))?;
    let at = AgentPlaces::of(&live)?;
    let mut agents: BTreeMap<AgentId, AgentRow> = live
        .query_map([], |row| rows::agent_at(row, &at))?
        .map(|row| row.map(|row| (row.id.clone(), row)))
        .collect::<rusqlite::Result<_>>()?;
    let mut one =
        connection.prepare(sql!("SELECT * FROM agents WHERE id = ?1 AND state < ", AGENT_REMOVED))?;
    for id in held {
        if !agents.contains_key(*id)
            && let Some(row) = one.query_row([id.as_str()], rows::agent).optional()?
        {
            agents.insert(row.id.clone(), row);
        }
    }
    Ok(agents.into_values().collect())
}

fn lineages(connection: &Connection, agents: &[AgentRow]) -> rusqlite::Result<Vec<LineageRow>> {
    let mut one = connection.prepare("SELECT * FROM lineages WHERE id = ?1")?;
    let at = LineagePlaces::of(&one)?;
    let mut lineages = Vec::with_capacity(agents.len());
    for agent in agents {
        lineages
            .extend(one.query_row([agent.lineage.as_str()], |row| rows::lineage_at(row, &at)).optional()?);
    }
    Ok(lineages)
}

/// From the index alone: the rows of agents are large.
fn names(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    connection.prepare(NAMES)?.query_map([], |row| row.get(0))?.collect()
}

/// The newest user of any sandbox.
const LAST_UID: &str =
    "SELECT max(uid) FROM (SELECT max(uid) AS uid FROM agents UNION ALL SELECT max(uid) FROM sandboxes)";

const NAMES: &str =
    sql!("SELECT name FROM agents INDEXED BY agents_name WHERE state < ", AGENT_REMOVED, " ORDER BY name");

fn streams(
    connection: &Connection,
    heads: &Heads,
    agents: &[AgentRow],
    sandboxes: &[SandboxRow],
) -> rusqlite::Result<BTreeMap<String, u64>> {
    let mut streams = BTreeMap::new();
    let sandboxes = sandboxes.iter().map(|sandbox| sandbox.id.as_str());
    for stream in agents.iter().map(|agent| agent.id.as_str()).chain(sandboxes).chain([DAEMON_STREAM]) {
        if let Some(head) = heads.of(connection, stream)? {
            streams.insert(stream.to_owned(), head);
        }
    }
    Ok(streams)
}

pub(crate) fn session_fact(connection: &Connection, session: &str) -> rusqlite::Result<Option<SessionFact>> {
    let row = connection
        .prepare_cached("SELECT * FROM sessions WHERE id = ?1")?
        .query_row([session], rows::session)
        .optional()?;
    let Some(row) = row else { return Ok(None) };
    let (turns, tip) = paths::end(connection, session)?;
    let cuts = connection
        .prepare_cached("SELECT cuts FROM sessions WHERE id = ?1")?
        .query_row([session], |row| row.get(0))?;
    let messages: Option<i64> = connection
        .prepare_cached("SELECT max(seq) FROM messages WHERE session = ?1")?
        .query_row([session], |row| row.get(0))?;
    let epoch = epochs::current(connection, session)?;
    let messages = messages.unwrap_or(0).cast_unsigned();
    Ok(Some(SessionFact { row, turns, messages, cuts, tip, epoch }))
}

fn live_turn(connection: &Connection, row: TurnRow) -> rusqlite::Result<LiveTurn> {
    let steps = connection
        .prepare_cached("SELECT * FROM steps WHERE turn = ?1 ORDER BY step, ordinal")?
        .query_map([row.id.as_str()], rows::step)?
        .collect::<Result<Vec<_>, _>>()?;
    let messages = connection
        .prepare_cached("SELECT * FROM messages WHERE session = ?1 AND seq >= ?2 AND turn = ?3 ORDER BY seq")?
        .query_map(
            params![row.session.as_str(), row.first_message.cast_signed(), row.id.as_str()],
            rows::message_row,
        )?
        .collect::<Result<Vec<_>, _>>()?;
    let newest = messages.iter().rposition(|message| message.role == Role::Assistant);
    let calls = newest.map(|at| messages[at].body.calls.clone()).unwrap_or_default();
    // Only results after the newest answer: some models use the ids of earlier calls again.
    let after = newest.map_or(&messages[..], |at| &messages[at..]);
    let answered = after.iter().filter_map(|message| message.body.call.clone()).collect();
    let note = messages.first().and_then(|message| message.body.note.clone());
    Ok(LiveTurn { row, steps, calls, answered, note })
}
