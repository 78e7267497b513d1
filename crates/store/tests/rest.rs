//! Agents at rest are not loaded, and what an engine has to know of all of them is.

use std::collections::BTreeMap;

use lodge_core::agent::{AgentState, FailReason};
use lodge_core::event::AgentStopped;
use lodge_core::lineage::LineageState;
use lodge_core::record::{
    AgentRow, AgentSpec, AgentWrite, EventRow, ImageRecord, ImageRow, ImageWrite, LineageRow, ResidentIds,
    StartRetry, ToolRecord, Write,
};
use lodge_core::{AgentId, IdSource, LineageId, SandboxId, Timestamp};
use lodge_store::{OpenedDatabase, open};
use rusqlite::Connection;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);
const TOOL: &str = "sha256:7777777777777777777777777777777777777777777777777777777777777777";

fn agent(ids: &mut IdSource, name: &str, state: AgentState) -> AgentRow {
    let tool =
        ToolRecord { name: "t".into(), image: Some(format!("t:latest@{TOOL}")), ..ToolRecord::default() };
    AgentRow {
        id: AgentId::new(ids, NOW),
        name: name.into(),
        image: "a:latest".into(),
        image_digest: "sha256:0".into(),
        lineage: LineageId::new(ids, NOW),
        sandbox: SandboxId::new(ids, NOW),
        state,
        failure_detail: None,
        incarnation: 1,
        runs: 1,
        uid: Some(1_900_000_007),
        created_at: NOW,
        started_at: None,
        spec: AgentSpec { tools: vec![tool], ..AgentSpec::default() },
        retry: StartRetry::default(),
        next: None,
    }
}

fn lineage(row: &AgentRow) -> LineageRow {
    LineageRow {
        id: row.lineage.clone(),
        agent: row.id.clone(),
        state: LineageState::Active,
        revivals: 0,
        deaths: 0,
        detail: None,
        created_at: NOW,
        ended_at: None,
    }
}

/// Agents, each with its lineage and one event, in the order of their numbers.
fn writes(rows: &[AgentRow]) -> Vec<Write> {
    let image = ImageRow::agent("sha256:0".into(), "a:latest".into(), 0, ImageRecord::default());
    let mut writes = vec![Write::Image(ImageWrite::Here(Box::new(image)))];
    for (at, row) in rows.iter().enumerate() {
        writes.push(Write::Agent(AgentWrite::New(Box::new(row.clone()))));
        writes.push(Write::Agent(AgentWrite::Lineage(lineage(row))));
        writes.push(Write::Event(EventRow {
            seq: at as u64 + 1,
            stream: row.id.to_string(),
            stream_seq: 1,
            at: NOW,
            body: AgentStopped { name: row.name.clone() }.into(),
        }));
    }
    writes
}

fn removed(row: &AgentRow) -> Write {
    Write::Agent(AgentWrite::State {
        id: row.id.clone(),
        state: AgentState::Removed,
        detail: None,
        lineage: row.lineage.clone(),
        incarnation: row.incarnation,
        runs: row.runs,
        started_at: None,
        retry: StartRetry::default(),
    })
}

fn reopened(dir: &tempfile::TempDir) -> OpenedDatabase {
    open(&dir.path().join("daemon.db"), &[7; 64]).unwrap()
}

#[test]
fn an_agent_at_rest_is_not_loaded_but_its_name_its_image_and_its_user_count() {
    let dir = tempfile::tempdir().unwrap();
    let ids = &mut IdSource::new(7);
    let failed = AgentState::Failed(FailReason::Model);
    let mut again = agent(ids, "again", failed);
    again.retry = StartRetry { failures: 1, at: Some(NOW) };
    let rows = [
        agent(ids, "alive", AgentState::Ready),
        agent(ids, "stopped", AgentState::Stopped),
        agent(ids, "failed", failed),
        again,
        agent(ids, "going", AgentState::Removing),
        agent(ids, "gone", AgentState::Removing),
    ];
    let mut store = reopened(&dir);
    drop(store.writer.commit(&writes(&rows), ()).unwrap());
    drop(store.writer.commit(&[removed(&rows[5])], ()).unwrap());
    let remembered = ResidentIds {
        agents: vec![rows[1].id.clone(), rows[5].id.clone()],
        sessions: Vec::new(),
        sandboxes: Vec::new(),
    };
    let loaded = store.writer.reload(1, &remembered).unwrap();
    let mut names: Vec<&str> = loaded.agents.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["again", "alive", "going", "stopped"], "what an engine remembers is read as well");
    drop(store);

    let OpenedDatabase { loaded, reader, .. } = reopened(&dir);
    let mut names: Vec<&str> = loaded.agents.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["again", "alive", "going"]);
    assert_eq!(loaded.lineages.len(), 3);
    assert_eq!(loaded.streams.len(), 3, "{:?}", loaded.streams);
    assert_eq!(loaded.names, ["again", "alive", "failed", "going", "stopped"]);
    assert_eq!(loaded.last_uid, Some(1_900_000_007));
    let two = |digest: &str| (digest.to_owned(), 2);
    assert_eq!(loaded.resting_images, BTreeMap::from([two("sha256:0"), two(TOOL)]));
    let fact = reader.here(|snapshot| snapshot.agent_fact(&rows[1].id)).unwrap().unwrap();
    assert_eq!((fact.row, fact.lineage, fact.head), (rows[1].clone(), lineage(&rows[1]), 1));
    assert!(reader.here(|snapshot| snapshot.agent_fact(&rows[5].id)).unwrap().is_none());
    let owner = reader.here(|snapshot| snapshot.agent_of_sandbox(rows[2].sandbox.as_str())).unwrap();
    assert_eq!(owner.map(|row| row.name).as_deref(), Some("failed"));
}

/// A release that does not know which images are counted may have written meanwhile.
#[test]
fn agents_that_another_release_wrote_are_counted_when_the_store_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let ids = &mut IdSource::new(7);
    let rows = [agent(ids, "one", AgentState::Stopped), agent(ids, "two", AgentState::Stopped)];
    let mut store = reopened(&dir);
    drop(store.writer.commit(&writes(&rows), ()).unwrap());
    drop(store);
    let other = Connection::open(dir.path().join("daemon.db")).unwrap();
    let changes = format!(
        "UPDATE agents SET spec = x'' WHERE name = 'one'; UPDATE agents SET state = 7 WHERE name = 'two';
         INSERT INTO agents (id, name, image, image_digest, lineage, sandbox, state, incarnation, created_at, spec)
         SELECT '{}', 'three', image, image_digest, '{}', '{}', state, 1, 1, spec FROM agents WHERE name = 'one'",
        AgentId::new(ids, NOW),
        LineageId::new(ids, NOW),
        SandboxId::new(ids, NOW),
    );
    other.execute_batch(&changes).unwrap();
    drop(other);
    let OpenedDatabase { loaded, .. } = reopened(&dir);
    assert_eq!(loaded.resting_images, BTreeMap::from([("sha256:0".to_owned(), 2)]));
}

#[test]
fn nothing_of_a_load_looks_at_every_agent_or_event() {
    let dir = tempfile::tempdir().unwrap();
    let ids = &mut IdSource::new(7);
    let rows: Vec<AgentRow> = (0..400).map(|at| agent(ids, &format!("a{at}"), AgentState::Stopped)).collect();
    let mut store = reopened(&dir);
    drop(store.writer.commit(&writes(&rows), ()).unwrap());
    drop(store);
    // An unreadable row is an error for its reader.
    let other = Connection::open(dir.path().join("daemon.db")).unwrap();
    other.execute_batch("UPDATE lineages SET state = 99").unwrap();
    other.execute_batch("DROP TRIGGER agent_images_spec; UPDATE agents SET spec = x'ff'").unwrap();
    drop(other);
    let OpenedDatabase { loaded, .. } = reopened(&dir);
    assert_eq!((loaded.agents.len(), loaded.names.len()), (0, 400));
}
