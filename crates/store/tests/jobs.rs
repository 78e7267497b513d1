//! Jobs: what is stored of them, found again, listed and forgotten.

use std::collections::BTreeMap;
use std::path::Path;

use lodge_core::job::{JobProgress, JobRequest, JobRow, JobState, JobStreamBytes, JobWrite, SESSION_LABEL};
use lodge_core::record::Write;
use lodge_core::{AgentId, Cause, IdSource, JobId, Timestamp};
use lodge_store::{JobFilter, OpenedDatabase, OutputFate, open};
use rusqlite::Connection;

const AGENT: &str = "agt_00000000000000001";

/// A database of the third schema, with an agent and a session.
fn third_schema(path: &Path) {
    let made = Connection::open(path).unwrap();
    for migration in [
        include_str!("../src/sqlite/migrations/0001.sql"),
        include_str!("../src/sqlite/migrations/0002.sql"),
        include_str!("../src/sqlite/migrations/0003.sql"),
    ] {
        made.execute_batch(migration).unwrap();
    }
    made.execute_batch(&format!(
        "INSERT INTO meta VALUES ('log', CAST('log_1' AS BLOB)), ('state-key', zeroblob(32));
         INSERT INTO counters VALUES ('epoch', 4);
         INSERT INTO images (digest, name, record) VALUES ('sha256:0', 'a:latest', x'');
         INSERT INTO agents (id, name, image, image_digest, lineage, sandbox, state, incarnation, runs, created_at, spec)
         VALUES ('{AGENT}', 'a', 'a', 'sha256:0', 'lin_00000000000000001', 'sbx_00000000000000001', 3, 1, 1, 17, x'');
         INSERT INTO sessions (id, agent, created_at, last_active) VALUES ('s', '{AGENT}', 20, 20);"
    ))
    .unwrap();
    made.pragma_update(None, "user_version", (3_u32 << 16) | 3).unwrap();
}

struct JobStoreWorld {
    _dir: tempfile::TempDir,
    path: std::path::PathBuf,
    store: OpenedDatabase,
    ids: IdSource,
}

impl JobStoreWorld {
    fn new() -> JobStoreWorld {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.db");
        third_schema(&path);
        let store = open(&path, &[7; 64]).unwrap_or_else(|error| panic!("{error}"));
        JobStoreWorld { _dir: dir, path, store, ids: IdSource::new(5) }
    }

    fn row(&mut self, at: i64, session: Option<&str>, labels: &[(&str, &str)]) -> JobRow {
        let now = Timestamp::from_ms(at);
        JobRow {
            id: JobId::new(&mut self.ids, now),
            agent: AGENT.parse().unwrap(),
            session: session.map(|session| session.parse().unwrap()),
            priority: -3,
            created_at: now,
            request: JobRequest {
                bin: "make".into(),
                args: vec!["all".into(), String::new()],
                timeout_ms: 9,
                output_bytes: 10,
                labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
                turn: Some("trn_1".into()),
            },
            progress: JobProgress::pending(),
            archived: false,
            told: false,
            output_removed: false,
        }
    }

    fn write(&mut self, writes: impl IntoIterator<Item = JobWrite>) {
        let writes: Vec<Write> = writes.into_iter().map(Write::Job).collect();
        drop(self.store.writer.commit(&writes, ()).expect("a commit"));
    }

    fn new_job(&mut self, at: i64, session: Option<&str>, labels: &[(&str, &str)]) -> JobRow {
        let row = self.row(at, session, labels);
        self.write([JobWrite::New { row: Box::new(row.clone()), stdin: vec![0, 255] }]);
        row
    }

    /// Ends a job completely, so that no work is left for it.
    fn settle(&mut self, row: &mut JobRow, at: i64) {
        row.progress.state = JobState::Done;
        row.progress.finished_at = Some(Timestamp::from_ms(at));
        (row.archived, row.told) = (true, true);
        let id = row.id.clone();
        let progress = Box::new(row.progress.clone());
        self.write([
            JobWrite::Progress { id: id.clone(), progress },
            JobWrite::Archived { id: id.clone() },
            JobWrite::Told { id },
        ]);
    }

    fn reopened(self) -> JobStoreWorld {
        let JobStoreWorld { _dir, path, store, ids } = self;
        drop(store);
        let store = open(&path, &[8; 64]).unwrap_or_else(|error| panic!("{error}"));
        JobStoreWorld { _dir, path, store, ids }
    }

    fn listed(&self, filter: JobFilter<'_>) -> Vec<JobId> {
        self.store
            .reader
            .here(|snapshot| snapshot.jobs(filter, 100))
            .unwrap()
            .jobs
            .into_iter()
            .map(|job| job.row.id)
            .collect()
    }
}

#[test]
fn a_database_of_the_third_schema_takes_jobs_and_keeps_what_it_had() {
    let mut world = JobStoreWorld::new();
    assert_eq!((world.store.loaded.epoch, world.store.loaded.jobs.len()), (5, 0));
    let mut row = world.new_job(30, Some("s"), &[("k", "v")]);
    row.progress = JobProgress {
        state: JobState::Error,
        cancel: Some("somebody".into()),
        boot: Some("b".into()),
        started_at: Some(Timestamp::from_ms(31)),
        finished_at: Some(Timestamp::from_ms(32)),
        exit_code: Some(-1),
        signal: Some(9),
        cause: Some(Cause::Oom),
        error: Some("lost".into()),
        stdout: JobStreamBytes { seen: 1 << 40, kept: 5 },
        stderr: JobStreamBytes { seen: 7, kept: 7 },
    };
    world.write([JobWrite::Progress { id: row.id.clone(), progress: Box::new(row.progress.clone()) }]);
    let world = world.reopened();
    assert_eq!(world.store.loaded.jobs, [row.clone()], "it is neither archived nor told");
    let shown = world.store.reader.here(|snapshot| snapshot.job_summary(&row.id)).unwrap().unwrap();
    assert_eq!((shown.row, shown.agent_name.as_str()), (row, "a"));
    assert!(
        world.store.reader.here(|snapshot| snapshot.session_fact(&"s".parse().unwrap())).unwrap().is_some()
    );
}

#[test]
fn the_stdin_of_a_job_is_kept_until_it_is_over_and_no_longer() {
    let mut world = JobStoreWorld::new();
    let mut row = world.new_job(30, None, &[]);
    for (state, stdin) in
        [(JobState::Pending, vec![0, 255]), (JobState::Running, vec![0, 255]), (JobState::Done, vec![])]
    {
        row.progress.state = state;
        world.write([JobWrite::Progress { id: row.id.clone(), progress: Box::new(row.progress.clone()) }]);
        let to_start = world.store.reader.here(|snapshot| snapshot.job_to_start(&row.id)).unwrap();
        assert_eq!(to_start, Some((row.clone(), stdin)), "{state:?}");
    }
}

#[test]
fn an_engine_is_given_the_jobs_that_are_not_done_with_and_no_others() {
    let mut world = JobStoreWorld::new();
    let mut settled = world.new_job(30, Some("s"), &[]);
    world.settle(&mut settled, 35);
    let open = world.new_job(40, None, &[]);
    let mut untold = world.new_job(50, Some("s"), &[]);
    untold.progress.state = JobState::Cancelled;
    untold.archived = true;
    world.write([
        JobWrite::Progress { id: untold.id.clone(), progress: Box::new(untold.progress.clone()) },
        JobWrite::Archived { id: untold.id.clone() },
    ]);
    // A job without a session is reported to no one.
    let mut alone = world.new_job(60, None, &[]);
    alone.progress.state = JobState::Done;
    world.write([
        JobWrite::Progress { id: alone.id.clone(), progress: Box::new(alone.progress.clone()) },
        JobWrite::Archived { id: alone.id.clone() },
    ]);
    assert_eq!(world.reopened().store.loaded.jobs, [open, untold]);
}

#[test]
fn labels_select_and_the_label_of_the_session_does_too() {
    let mut world = JobStoreWorld::new();
    let a = world.new_job(30, Some("s"), &[("k", "v"), ("x", "")]);
    let b = world.new_job(40, None, &[("k", "v")]);
    let c = world.new_job(50, Some("t"), &[("k", "w")]);
    assert_eq!(a.labels().get(SESSION_LABEL).map(String::as_str), Some("s"));
    let agent: AgentId = AGENT.parse().unwrap();
    for (labels, found) in [
        (vec![], vec![&c, &b, &a]),
        (vec![("k", "v")], vec![&b, &a]),
        (vec![("k", "v"), ("x", "")], vec![&a]),
        (vec![(SESSION_LABEL, "t")], vec![&c]),
        (vec![(SESSION_LABEL, "s"), ("k", "w")], vec![]),
        (vec![(SESSION_LABEL, "no session: a/b")], vec![]),
    ] {
        let labels: BTreeMap<String, String> =
            labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let filter =
            JobFilter { agent: Some(&agent), session: None, states: &[], labels: &labels, before: None };
        let found: Vec<JobId> = found.into_iter().map(|row| row.id.clone()).collect();
        assert_eq!(world.listed(filter), found, "{labels:?}");
    }
}

#[test]
fn a_job_is_found_by_the_beginning_of_its_id() {
    let mut world = JobStoreWorld::new();
    let (a, b) = (world.new_job(30, None, &[]), world.new_job(30, None, &[]));
    let (agent, other): (AgentId, AgentId) = (AGENT.parse().unwrap(), "agt_2".parse().unwrap());
    let find =
        |given: &str, agent| world.store.reader.here(|snapshot| snapshot.find_jobs(given, agent)).unwrap();
    assert_eq!(find(a.id.as_str(), None), std::slice::from_ref(&a.id));
    assert_eq!(find(&a.id.as_str()[..20], Some(&agent)), std::slice::from_ref(&a.id));
    assert_eq!(find(a.id.as_str(), Some(&other)), Vec::<JobId>::new());
    let mut both = [a.id, b.id];
    both.sort();
    assert_eq!(find("job_", None), both);
    assert_eq!(find("job_zzz", None), Vec::<JobId>::new());
}

#[test]
fn the_oldest_outputs_of_an_agent_are_those_beyond_what_it_may_have() {
    let mut world = JobStoreWorld::new();
    let mut ids = Vec::new();
    for at in 0..4 {
        let mut row = world.new_job(1_000 + at, None, &[]);
        row.progress.stdout.kept = 10;
        row.progress.stderr.kept = at.cast_unsigned();
        world.settle(&mut row, 2_000);
        ids.push(row.id);
    }
    let open = world.new_job(900, None, &[]);
    let agent: AgentId = AGENT.parse().unwrap();
    let beyond = |world: &JobStoreWorld, bytes| {
        world.store.reader.here(|snapshot| snapshot.outputs_beyond(&agent, bytes)).unwrap()
    };
    assert_eq!(beyond(&world, 46), Vec::<JobId>::new());
    assert_eq!(beyond(&world, 45), ids[..1]);
    assert_eq!(beyond(&world, 12), ids);
    world.write([JobWrite::OutputRemoved { id: ids[0].clone() }]);
    assert_eq!(beyond(&world, 36), Vec::<JobId>::new());
    assert_eq!(beyond(&world, u64::MAX), Vec::<JobId>::new());
    assert!(!beyond(&world, 0).contains(&open.id));
}

#[test]
fn what_is_old_is_reported_page_by_page_and_forgotten_with_its_labels() {
    let mut world = JobStoreWorld::new();
    let mut old: Vec<JobRow> = (0..3).map(|at| world.new_job(1_000 + at, None, &[("k", "v")])).collect();
    for row in &mut old {
        world.settle(row, 2_000);
    }
    // Made long ago, and over only now, or not at all.
    let mut slow = world.new_job(1_010, None, &[]);
    world.settle(&mut slow, 9_000);
    let open = world.new_job(1_020, None, &[]);
    let reader = &world.store.reader;
    let page = |after: Option<&JobId>, limit| {
        reader.here(|snapshot| snapshot.jobs_ended_before(Timestamp::from_ms(5_000), after, limit)).unwrap()
    };
    let ids: Vec<JobId> = old.iter().map(|row| row.id.clone()).collect();
    assert_eq!(page(None, 10), ids);
    assert_eq!(page(None, 2), ids[..2]);
    assert_eq!(page(Some(&ids[1]), 2), ids[2..]);
    assert_eq!(
        reader.here(|snapshot| snapshot.jobs_ended_before(Timestamp::from_ms(2_000), None, 10)).unwrap(),
        Vec::<JobId>::new()
    );
    world.write([JobWrite::OutputRemoved { id: ids[0].clone() }, JobWrite::Gone { id: ids[1].clone() }]);
    let reader = &world.store.reader;
    let fate = |row: &JobRow| reader.here(|snapshot| snapshot.output_fate(&row.id)).unwrap();
    let fates = [fate(&old[0]), fate(&old[1]), fate(&old[2]), fate(&open)];
    assert_eq!(fates, [OutputFate::Gone, OutputFate::Gone, OutputFate::Kept, OutputFate::Kept]);
    assert_eq!(reader.here(|snapshot| snapshot.job_summary(&ids[1])).unwrap(), None);
    let labels = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let filter = JobFilter { agent: None, session: None, states: &[], labels: &labels, before: None };
    assert_eq!(world.listed(filter), [ids[2].clone(), ids[0].clone()]);
}
