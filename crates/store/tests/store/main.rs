//! What is acknowledged is there after opening again, and nothing else is.

mod releases;

use std::collections::BTreeMap;
use std::path::Path;

use lodge_core::agent::{AgentState, FailReason};
use lodge_core::event::{TurnAccepted, TurnText};
use lodge_core::lineage::{EndReason, LineageState};
use lodge_core::record::{
    AgentRow, AgentSpec, AgentWrite, CallRecord, DAEMON_STREAM, EventRow, ExecRequest, FailureRecord,
    ImageRecord, ImageRow, ImageWrite, JobWait, JobWaitTool, MessageBody, MessageRow, RequestRow, Role,
    SessionRow, SessionWrite, StartRetry, StepRow, StepTarget, TurnRow, TurnWrite, Usage, Write,
};
use lodge_core::session::TurnLinks;
use lodge_core::turn::{StepState, TurnState};
use lodge_core::{
    AgentId, EventBody, ExecId, IdSource, LineageId, SandboxId, SessionId, StepId, Timestamp, TurnId,
};
use lodge_store::{AgentMatch, OpenError, OpenedDatabase, SCHEMA_VERSION, open};
use rusqlite::Connection;

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

fn opened(path: &Path) -> OpenedDatabase {
    open(path, &[7; 64]).unwrap_or_else(|error| panic!("{error}"))
}

struct TestIds {
    source: IdSource,
    seq: u64,
}

impl TestIds {
    fn new() -> TestIds {
        TestIds { source: IdSource::new(3), seq: 0 }
    }

    fn agent(&mut self, name: &str, state: AgentState) -> AgentRow {
        AgentRow {
            id: AgentId::new(&mut self.source, NOW),
            name: name.into(),
            image: "a:latest".into(),
            image_digest: "sha256:0".into(),
            lineage: LineageId::new(&mut self.source, NOW),
            sandbox: SandboxId::new(&mut self.source, NOW),
            state,
            failure_detail: None,
            incarnation: 2,
            runs: 2,
            uid: Some(1_900_000_000),
            created_at: NOW,
            started_at: Some(NOW),
            spec: AgentSpec {
                model: "p/m".into(),
                env: BTreeMap::from([("K".into(), "V".into())]),
                ..AgentSpec::default()
            },
            retry: StartRetry { failures: 3, at: Some(NOW) },
            next: None,
        }
    }

    fn event(&mut self, stream: &str, stream_seq: u64, body: impl Into<EventBody>) -> Write {
        self.seq += 1;
        Write::Event(EventRow {
            seq: self.seq,
            stream: stream.into(),
            stream_seq,
            at: NOW,
            body: body.into(),
        })
    }
}

fn image() -> Write {
    Write::Image(ImageWrite::Here(Box::new(ImageRow::agent(
        "sha256:0".into(),
        "a:latest".into(),
        0,
        ImageRecord::default(),
    ))))
}

/// An agent with a running turn whose tool call has no result yet.
fn live(ids: &mut TestIds) -> (AgentRow, TurnRow, Vec<Write>) {
    let agent = ids.agent("a", AgentState::Ready);
    let session: SessionId = "s".parse().unwrap();
    let turn = TurnRow {
        id: TurnId::new(&mut ids.source, NOW),
        session: session.clone(),
        agent: agent.id.clone(),
        number: 1,
        place: TurnLinks::default(),
        state: TurnState::Running,
        first_event: 1,
        first_message: 1,
        created_at: NOW,
        ended_at: None,
        usage: Usage::default(),
        failure: None,
        park: None,
    };
    let call = CallRecord { id: "c1".into(), name: "sh".into(), arguments: "{}".into() };
    let message = |seq, role, text: &str, calls: Vec<CallRecord>| {
        Write::Turn(TurnWrite::Message(MessageRow {
            session: session.clone(),
            seq,
            turn: turn.id.clone(),
            number: 1,
            step: 1,
            role,
            at: NOW,
            body: MessageBody { text: text.into(), calls, ..MessageBody::default() },
        }))
    };
    let step = |ids: &mut TestIds, ordinal, target, state| StepRow {
        id: StepId::new(&mut ids.source, NOW),
        turn: turn.id.clone(),
        step: 1,
        ordinal,
        target,
        name: "x".into(),
        state,
        attempt: 1,
        call: (ordinal > 0).then(|| "c1".into()),
        exit_code: None,
        signal: None,
        cause: None,
        started_at: NOW,
        ended_at: None,
    };
    let program = StepTarget::Program {
        exec: ExecId::new(&mut ids.source, NOW),
        request: ExecRequest {
            bin: "sh".into(),
            args: vec!["-c".into()],
            stdin: vec![0, 255],
            boot: "b".into(),
            timeout_ms: 7,
        },
    };
    let stream = agent.id.as_str().to_owned();
    let writes = vec![
        image(),
        Write::Agent(AgentWrite::New(Box::new(agent.clone()))),
        Write::Session(SessionWrite::New(SessionRow {
            id: session.clone(),
            agent: agent.id.clone(),
            sender: Some("ann".into()),
            created_at: NOW,
            forked: None,
        })),
        Write::Turn(TurnWrite::New(turn.clone())),
        message(1, Role::User, "hi", Vec::new()),
        Write::Turn(TurnWrite::Step(step(ids, 0, StepTarget::ModelCall, StepState::Done))),
        message(2, Role::Assistant, "let me see", vec![call]),
        Write::Turn(TurnWrite::Step(step(ids, 1, program, StepState::Intent))),
        ids.event(&stream, 1, TurnAccepted { turn: turn.id.to_string(), ..TurnAccepted::default() }),
        ids.event(
            &stream,
            2,
            TurnText { turn: turn.id.to_string(), text: "let me".into(), ..TurnText::default() },
        ),
    ];
    (agent, turn, writes)
}

#[test]
fn a_turn_in_flight_is_read_back_where_it_stood() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    let (agent, turn, writes) = live(&mut TestIds::new());
    drop(opened(&path).writer.commit(&writes, ()).unwrap());
    let again = opened(&path);
    assert_eq!(again.loaded.epoch, 2);
    assert_eq!(again.loaded.agents, std::slice::from_ref(&agent));
    let [live] = &again.loaded.turns[..] else { panic!("one turn is live") };
    assert_eq!(live.row, turn);
    assert_eq!(live.calls.len(), 1);
    assert!(live.answered.is_empty());
    let stored = |write: &Write| match write {
        Write::Turn(TurnWrite::Step(step)) => Some(step.clone()),
        _ => None,
    };
    assert_eq!(live.steps, writes.iter().filter_map(stored).collect::<Vec<_>>());
    assert_eq!(again.loaded.streams[agent.id.as_str()], 2);
    assert_eq!((again.loaded.sessions[0].turns, again.loaded.sessions[0].messages), (1, 2));
    let full = again.reader.here(|snapshot| snapshot.turn(&turn.id)).unwrap().unwrap();
    assert_eq!((full.text.as_str(), full.partial), ("let me", true));
    assert_eq!(
        again.reader.here(|snapshot| snapshot.session_of(&agent.id, "ann")).unwrap().unwrap().row.id.as_str(),
        "s"
    );
}

#[test]
fn a_wait_for_a_job_is_read_back_also_if_an_older_release_stored_it_as_a_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    let (_, _, writes) = live(&mut TestIds::new());
    drop(opened(&path).writer.commit(&writes, ()).unwrap());
    let wait =
        StepTarget::Job(JobWait { tool: JobWaitTool::Cancel, job: "job_0123456789abcdefg".parse().unwrap() });
    let old = b"\x0a\x0ajob_cancel\x12\x15job_0123456789abcdefg\x22\x01b".to_vec();
    for request in [old, wait.encode_request().unwrap()] {
        let raw = Connection::open(&path).unwrap();
        raw.execute("UPDATE steps SET exec = NULL, request = ?1 WHERE ordinal = 1", [request]).unwrap();
        drop(raw);
        assert_eq!(opened(&path).loaded.turns[0].steps[1].target, wait);
    }
}

/// Lets the file grow by a page more each time: the commit fails at every place it can, until it does not.
#[test]
fn a_batch_is_acknowledged_exactly_when_it_survives_reopening() {
    let dir = tempfile::tempdir().unwrap();
    for pages in 0.. {
        let path = dir.path().join(format!("{pages}.db"));
        drop(opened(&path));
        let limit = {
            let connection = Connection::open(&path).unwrap();
            let now: u32 = connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
            now + pages
        };
        let mut store = opened(&path);
        store.writer.limit_pages(limit);
        let (_, _, mut writes) = live(&mut TestIds::new());
        // Enough text to need pages of its own.
        for write in &mut writes {
            if let Write::Turn(TurnWrite::Message(message)) = write {
                message.body.text = "x".repeat(9_000);
            }
        }
        let acked = store.writer.commit(&writes, ()).is_ok();
        drop(store);
        let again = opened(&path);
        assert_eq!(acked, again.loaded.turns.len() == 1, "with {pages} pages");
        assert_eq!(acked, !again.loaded.agents.is_empty(), "all or nothing, with {pages} pages");
        assert_eq!(again.reader.here(|snapshot| snapshot.integrity()).unwrap(), "ok");
        if acked {
            assert!(pages > 0, "the fault must have struck at least once");
            return;
        }
    }
}

#[test]
fn an_agent_is_found_by_id_name_or_unique_prefix() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(&dir.path().join("daemon.db"));
    let mut ids = TestIds::new();
    let (one, two) = (ids.agent("one", AgentState::Ready), ids.agent("two", AgentState::Stopped));
    drop(
        store
            .writer
            .commit(
                &[
                    image(),
                    Write::Agent(AgentWrite::New(Box::new(one.clone()))),
                    Write::Agent(AgentWrite::New(Box::new(two.clone()))),
                ],
                (),
            )
            .unwrap(),
    );
    let find = |given: &str| store.reader.here(|snapshot| snapshot.find_agent(given)).unwrap();
    assert_eq!(find("one"), AgentMatch::One(one.id.clone()));
    assert_eq!(find(two.id.as_str()), AgentMatch::One(two.id.clone()));
    let id = one.id.as_str();
    assert_eq!(find(&id[..id.len() - 1]), AgentMatch::One(one.id.clone()));
    assert!(
        matches!(find("agt_0"), AgentMatch::Many(ids) if ids.len() == 2)
            || matches!(find(&id[..6]), AgentMatch::Many(_))
    );
    assert_eq!(find("three"), AgentMatch::None);
    assert_eq!(find("agt_"), AgentMatch::None);
}

#[test]
fn answers_are_kept_with_their_requests_and_for_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = opened(&dir.path().join("daemon.db"));
    let request = |id: &str, at| {
        Write::Request(RequestRow {
            caller: "o".into(),
            request_id: id.into(),
            digest: [1; 32],
            answer: b"{}".to_vec(),
            at,
        })
    };
    drop(store.writer.commit(&[request("old", NOW.plus_ms(-25 * 3_600_000))], ()).unwrap());
    assert!(store.reader.here(|snapshot| snapshot.request("o", "old")).unwrap().is_some());
    let many: Vec<Write> = (0..600).map(|n| request(&n.to_string(), NOW)).collect();
    drop(store.writer.commit(&many, ()).unwrap());
    assert!(store.reader.here(|snapshot| snapshot.request("o", "old")).unwrap().is_none());
    assert_eq!(store.reader.here(|snapshot| snapshot.request("o", "7")).unwrap().unwrap().answer, b"{}");
    assert!(store.reader.here(|snapshot| snapshot.request("other", "7")).unwrap().is_none());
}

#[test]
fn the_wal_stays_bounded_while_much_is_written_and_somebody_reads() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    let mut store = opened(&path);
    let mut ids = TestIds::new();
    let mut largest = 0;
    for round in 1..=1_500_u64 {
        let text = "x".repeat(60_000);
        let event = ids.event("daemon", round, TurnText { text, ..TurnText::default() });
        drop(store.writer.commit([&event], ()).unwrap());
        if round % 50 == 0 {
            assert_eq!(store.reader.here(|snapshot| snapshot.head()).unwrap(), round);
        }
        largest = largest.max(std::fs::metadata(dir.path().join("daemon.db-wal")).unwrap().len());
    }
    assert!(largest <= 48 * 1024 * 1024, "the WAL reached {largest} bytes");
}

#[test]
fn a_failed_turn_keeps_its_reason_and_a_file_that_is_no_database_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    let (_, turn, writes) = live(&mut TestIds::new());
    let mut store = opened(&path);
    drop(store.writer.commit(&writes, ()).unwrap());
    let failure = FailureRecord { code: "model.cut".into(), message: "m".into(), hint: Some("h".into()) };
    let end = Write::Turn(TurnWrite::State {
        id: turn.id.clone(),
        state: TurnState::Failed,
        ended_at: Some(NOW),
        usage: Usage { input_tokens: 3, output_tokens: 2, cached_tokens: 1, micro_usd: Some(7) },
        failure: Some(failure.clone()),
    });
    drop(store.writer.commit([&end], ()).unwrap());
    assert_eq!(
        store.reader.here(|snapshot| snapshot.turn(&turn.id)).unwrap().unwrap().row.failure,
        Some(failure)
    );
    drop(store);
    assert!(opened(&path).loaded.turns.is_empty());

    let other = dir.path().join("other.db");
    std::fs::write(&other, "these are my notes, not a database, and they are longer than a header would be, which is a hundred bytes").unwrap();
    assert!(matches!(open(&other, &[7; 64]), Err(OpenError::Foreign { .. })));
    assert!(std::fs::read_to_string(&other).unwrap().starts_with("these are my notes"));
}

/// The derived table is written now and then, and what it lacks is counted from the events.
#[test]
fn the_heads_of_streams_are_right_however_far_the_table_is_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("daemon.db");
    // Streams of agents that are not at rest are loaded, and that of the daemon.
    let (agent, _, mut writes) = live(&mut TestIds::new());
    writes.retain(|write| !matches!(write, Write::Event(_)));
    drop(opened(&path).writer.commit(&writes, ()).unwrap());
    let event = |seq: u64| {
        let (stream, stream_seq) =
            if seq <= 10 { (agent.id.as_str(), seq) } else { (DAEMON_STREAM, seq - 10) };
        Write::Event(EventRow {
            seq,
            stream: stream.to_owned(),
            stream_seq,
            at: Timestamp::from_ms(1),
            body: TurnText::default().into(),
        })
    };
    let mut seq = 0;
    for upto in [5_u64, 20, 5_000, 5_001, 20_000] {
        let mut writer = opened(&path).writer;
        while seq < upto {
            let to = upto.min(seq + 1_000);
            let writes: Vec<Write> = (seq + 1..=to).map(event).collect();
            drop(writer.commit(&writes, ()).unwrap());
            seq = to;
        }
        drop(writer);
        let expected = |name: &str| match name {
            DAEMON_STREAM => upto.saturating_sub(10),
            _ => upto.min(10),
        };
        let check = |streams: &BTreeMap<String, u64>| {
            for (name, head) in streams {
                assert_eq!(*head, expected(name), "{name} after {upto}");
            }
            assert_eq!(streams.len(), if upto > 10 { 2 } else { 1 });
        };
        check(&opened(&path).loaded.streams);
        Connection::open(&path).unwrap().execute("DELETE FROM streams", []).unwrap();
        check(&opened(&path).loaded.streams);
    }
}
