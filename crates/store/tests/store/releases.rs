//! Databases of other releases.

use super::*;

#[test]
fn a_database_from_the_future_is_refused_and_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    drop(opened(&path));
    let future = SCHEMA_VERSION + 1;
    {
        let connection = Connection::open(&path).unwrap();
        connection.pragma_update(None, "user_version", (future << 16) | future).unwrap();
    }
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(open(&path, &[7; 64]), Err(OpenError::FromTheFuture { needs, .. }) if needs == future));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(!dir.path().join("daemon.db-wal").exists());
}

#[test]
fn a_newer_database_that_says_this_release_may_read_it_is_opened_and_keeps_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    let (agent, _, writes) = live(&mut TestIds::new());
    drop(opened(&path).writer.commit(&writes, ()).unwrap());
    // A newer release added a column, a kind of event and a field of the agent's record.
    let mut spec: Vec<u8> = prost::Message::encode_to_vec(&agent.spec);
    spec.extend([0xfa, 0x3e, 3, b'n', b'e', b'w']);
    {
        let connection = Connection::open(&path).unwrap();
        connection.execute("ALTER TABLE agents ADD COLUMN later TEXT", []).unwrap();
        connection.execute("UPDATE agents SET spec = ?1, later = 'kept'", [&spec]).unwrap();
        connection.execute("INSERT INTO events VALUES (3, 'daemon', 1, 0, 9999, x'')", []).unwrap();
        let version = (SCHEMA_VERSION << 16) | (SCHEMA_VERSION + 1);
        connection.pragma_update(None, "user_version", version).unwrap();
    }
    let mut store = opened(&path);
    let change = Write::Agent(AgentWrite::State {
        id: agent.id.clone(),
        state: AgentState::Failed(FailReason::Crashed),
        detail: Some("x".into()),
        lineage: agent.lineage.clone(),
        incarnation: 3,
        runs: 3,
        started_at: None,
        retry: StartRetry::default(),
    });
    drop(store.writer.commit([&change], ()).unwrap());
    let (events, last) = store.reader.here(|snapshot| snapshot.events(0, None, 100)).unwrap();
    assert_eq!((events.len(), last), (2, 3), "an unknown kind is passed over");
    drop(store);
    let connection = Connection::open(&path).unwrap();
    let (kept, later): (Vec<u8>, String) = connection
        .query_row("SELECT spec, later FROM agents", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!((kept, later.as_str()), (spec, "kept"));
}

#[test]
fn a_database_from_before_lineages_were_kept_gives_every_agent_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    {
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch(include_str!("../../src/sqlite/migrations/0001.sql")).unwrap();
        connection
            .execute_batch(
                "INSERT INTO meta VALUES ('log', CAST('log_1' AS BLOB)), ('state-key', zeroblob(32));
                 INSERT INTO counters VALUES ('epoch', 4);
                 INSERT INTO images VALUES ('sha256:0', 'a:latest', x'');
                 INSERT INTO agents VALUES
                     ('agt_00000000000000001', 'a', 'a', 'sha256:0', 'lin_00000000000000001',
                      'sbx_00000000000000001', 3, NULL, NULL, 6, NULL, 17, 18, x''),
                     ('agt_00000000000000002', 'b', 'b', 'sha256:0', 'lin_00000000000000002',
                      'sbx_00000000000000002', 7, NULL, NULL, 1, NULL, 17, 18, x'');",
            )
            .unwrap();
        connection.pragma_update(None, "user_version", (1_u32 << 16) | 1).unwrap();
    }
    let store = opened(&path);
    let [agent] = &store.loaded.agents[..] else { panic!("{:?}", store.loaded.agents) };
    assert_eq!((agent.incarnation, agent.runs), (6, 6));
    let [lineage] = &store.loaded.lineages[..] else { panic!("{:?}", store.loaded.lineages) };
    assert_eq!((&lineage.id, &lineage.agent), (&agent.lineage, &agent.id));
    assert_eq!((lineage.state, lineage.revivals, lineage.created_at.ms()), (LineageState::Active, 0, 17));
    let connection = Connection::open(&path).unwrap();
    let gone: (i64, i64) = connection
        .query_row("SELECT state, ended_reason FROM lineages WHERE id = 'lin_00000000000000002'", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(LineageState::from_codes(gone.0, Some(gone.1)), Some(LineageState::Ended(EndReason::Removed)));
}

#[test]
fn derived_tables_and_indexes_are_made_again_from_what_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    let (_, _, writes) = live(&mut TestIds::new());
    drop(opened(&path).writer.commit(&writes, ()).unwrap());
    let before = opened(&path).loaded;
    {
        let connection = Connection::open(&path).unwrap();
        connection.execute("DELETE FROM streams", []).unwrap();
        let indexes: Vec<String> = connection
            .prepare("SELECT name FROM sqlite_schema WHERE type = 'index' AND sql IS NOT NULL")
            .unwrap()
            .query_map([], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        assert!(!indexes.is_empty());
        for index in indexes {
            connection.execute(&format!("DROP INDEX {index}"), []).unwrap();
        }
    }
    let after = opened(&path).loaded;
    assert_eq!((before.streams, before.agents, before.turns), (after.streams, after.agents, after.turns));
}
