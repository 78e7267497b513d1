//! What was written before: by the last release, and long ago.

use lodge_core::Timestamp;
use lodge_core::event::{AgentReady, TurnText};
use lodge_core::record::{EventRow, ImageFact, ImageKind, ImageRecord, ImageState, Write};
use lodge_core::turn::TurnState;
use lodge_store::open;
use rusqlite::Connection;

#[test]
fn a_database_from_before_there_were_branches_and_slots_keeps_its_work() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    {
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch(include_str!("../src/sqlite/migrations/0001.sql")).unwrap();
        connection.execute_batch(include_str!("../src/sqlite/migrations/0002.sql")).unwrap();
        connection
            .execute_batch(
                "INSERT INTO meta VALUES ('log', CAST('log_1' AS BLOB)), ('state-key', zeroblob(32));
                 INSERT INTO counters VALUES ('epoch', 4);
                 INSERT INTO images VALUES ('sha256:0', 'a:latest', x'');
                 INSERT INTO agents VALUES
                     ('agt_00000000000000001', 'a', 'a', 'sha256:0', 'lin_00000000000000001',
                      'sbx_00000000000000001', 5, 5, 'died', 6, NULL, 17, 18, x'', 6),
                     ('agt_00000000000000002', 'b', 'b', 'sha256:0', 'lin_00000000000000002',
                      'sbx_00000000000000002', 3, NULL, NULL, 1, NULL, 17, 18, x'', 1);
                 INSERT INTO sessions VALUES
                     ('s', 'agt_00000000000000001', NULL, 20), ('t', 'agt_00000000000000002', 'ann', 21);
                 INSERT INTO turns VALUES
                     ('trn_00000000000000001', 's', 'agt_00000000000000001', 1, 10, 1, 1, 22, 40, 3, 4, NULL),
                     ('trn_00000000000000002', 's', 'agt_00000000000000001', 2, 2, 2, 3, 41, NULL, 0, 0, NULL),
                     ('trn_00000000000000003', 't', 'agt_00000000000000002', 1, 2, 1, 1, 30, NULL, 0, 0, NULL);
                 INSERT INTO messages VALUES
                     ('s', 1, 'trn_00000000000000001', 1, 0, 1, 22, x''),
                     ('s', 2, 'trn_00000000000000001', 1, 1, 2, 40, x''),
                     ('s', 3, 'trn_00000000000000002', 2, 0, 1, 41, x''),
                     ('t', 1, 'trn_00000000000000003', 1, 0, 1, 30, x'');",
            )
            .unwrap();
        connection.pragma_update(None, "user_version", (2_u32 << 16) | 2).unwrap();
    }
    let store = open(&path, &[7; 64]).unwrap();
    let live: Vec<_> =
        store.loaded.turns.iter().map(|live| (live.row.session.as_str(), live.row.state)).collect();
    assert_eq!(live, [("s", TurnState::Waiting), ("t", TurnState::Running)], "one whose agent failed waits");
    let fact = store.reader.here(|snapshot| snapshot.session_fact(&"s".parse().unwrap())).unwrap().unwrap();
    assert_eq!((fact.turns, fact.messages, fact.cuts), (2, 3, 0));
    assert_eq!(fact.tip.unwrap().as_str(), "trn_00000000000000002");
    let listed = store.reader.here(|snapshot| snapshot.sessions(None, None, 9)).unwrap();
    let listed: Vec<_> =
        listed.iter().map(|one| (one.row.id.as_str(), one.turns, one.last_active.ms())).collect();
    assert_eq!(listed, [("s", 2, 41), ("t", 1, 30)]);
    assert_eq!(store.loaded.image_refs.len(), 1);
}

#[test]
fn images_from_before_there_were_manifests_are_agents_that_are_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    let record = ImageRecord { agentfile: b"FROM scratch".to_vec(), ..ImageRecord::default() };
    let bytes = prost::Message::encode_to_vec(&record);
    {
        let connection = Connection::open(&path).unwrap();
        for migration in [
            include_str!("../src/sqlite/migrations/0001.sql"),
            include_str!("../src/sqlite/migrations/0002.sql"),
            include_str!("../src/sqlite/migrations/0003.sql"),
            include_str!("../src/sqlite/migrations/0004.sql"),
        ] {
            connection.execute_batch(migration).unwrap();
        }
        connection
            .execute_batch(
                "INSERT INTO meta VALUES ('log', CAST('log_1' AS BLOB)), ('state-key', zeroblob(32));
                 INSERT INTO counters VALUES ('epoch', 4);",
            )
            .unwrap();
        connection
            .execute(
                "INSERT INTO images (digest, name, record) VALUES ('sha256:0', 'a:latest', ?1)",
                [&bytes],
            )
            .unwrap();
        connection
            .execute_batch(
                "INSERT INTO image_refs VALUES ('a:latest', 'sha256:0', 17);
                 INSERT INTO images (digest, name, record, gone) VALUES ('sha256:1', 'b:latest', x'', 1);",
            )
            .unwrap();
        connection.pragma_update(None, "user_version", (4_u32 << 16) | 4).unwrap();
    }
    let store = open(&path, &[7; 64]).unwrap();
    let (digest, bytes) = ("sha256:0".to_owned(), bytes.len() as u64);
    let held =
        ImageFact { digest, kind: ImageKind::Agent, bytes, state: ImageState::Complete, needs: Vec::new() };
    assert_eq!(store.loaded.images, [held], "one that was gone stays so");
    assert_eq!(store.reader.here(|snapshot| snapshot.image("sha256:0")).unwrap(), Some(record));
    let listed = store.reader.here(|snapshot| snapshot.images(ImageKind::Agent, None, 9)).unwrap();
    let listed: Vec<_> = listed.iter().map(|one| (one.digest.as_str(), one.bytes, one.refs.len())).collect();
    assert_eq!(listed, [("sha256:0", bytes, 1)]);
}

#[test]
fn the_past_of_a_stream_is_read_page_by_page_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
    let event = |seq: u64| {
        let (stream, stream_seq) = if seq.is_multiple_of(3) { ("b", seq / 3) } else { ("a", seq - seq / 3) };
        Write::Event(EventRow {
            seq,
            stream: stream.into(),
            stream_seq,
            at: Timestamp::from_ms(1),
            body: AgentReady::default().into(),
        })
    };
    let writes: Vec<Write> = (1..=20).map(event).collect();
    drop(store.writer.commit(&writes, ()).unwrap());
    for (stream, first) in [(Some("a"), 21), (Some("a"), 18), (Some("b"), 17), (None, 21), (Some("c"), 21)] {
        let is_meant = |seq: &u64| stream.is_none_or(|stream| (stream == "b") == seq.is_multiple_of(3));
        let all: Vec<u64> = (1..first).rev().filter(is_meant).filter(|_| stream != Some("c")).collect();
        let (mut found, mut before) = (Vec::new(), first);
        loop {
            let (page, last) =
                store.reader.here(|snapshot| snapshot.events_before(before, stream, 3)).unwrap();
            if page.is_empty() {
                break;
            }
            found.extend(page.iter().map(|event| event.seq));
            before = last;
        }
        assert_eq!(found, all, "{stream:?} before {first}");
    }
}

#[test]
fn a_page_of_the_log_ends_after_some_megabytes_and_the_next_goes_on_behind_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
    let event = |seq: u64| {
        let body = TurnText { text: "x".repeat(1 << 20), ..TurnText::default() }.into();
        let at = Timestamp::from_ms(1);
        let stream = "daemon".to_owned();
        Write::Event(EventRow { seq, stream, stream_seq: seq, at, body })
    };
    let writes: Vec<Write> = (1..=10).map(event).collect();
    store.writer.commit(&writes, ()).unwrap().into_inner();
    for stream in [None, Some("daemon")] {
        let (mut cursor, mut found) = (0, Vec::new());
        while cursor < 10 {
            let (page, last) = store.reader.here(|snapshot| snapshot.events(cursor, stream, 500)).unwrap();
            assert!((1..=4).contains(&page.len()), "four megabytes at most: {}", page.len());
            found.extend(page.iter().map(|event| event.seq));
            cursor = last;
        }
        assert_eq!(found, (1..=10).collect::<Vec<u64>>());
        let (mut cursor, mut found) = (11, Vec::new());
        while cursor > 1 {
            let (page, last) =
                store.reader.here(|snapshot| snapshot.events_before(cursor, stream, 500)).unwrap();
            assert!((1..=4).contains(&page.len()), "four megabytes at most: {}", page.len());
            found.extend(page.iter().map(|event| event.seq));
            cursor = last;
        }
        assert_eq!(found, (1..=10).rev().collect::<Vec<u64>>());
    }
}
