//! A hundred thousand finished jobs: a first page of them, and pages by agent, status, session and label.
//!
//! They are multiplied from real ones in the database, with the daemon gone, as everything that is filled here.

use std::process::Stdio;
use std::time::Instant;

use lodge_proto::client::Client;
use lodge_testkit::lodge::Lodge;
use rusqlite::{Connection, params};
use serde_json::{Value, json};

use crate::BenchSizes;
use crate::floor::Floors;
use crate::jobs::ours::{LodgeJobs, agent, archived, submit};
use crate::jobs::pueue::Pueue;
use crate::jobs::tools::PeerTools;
use crate::jobs::tsp::Tsp;
use crate::proc;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};

/// As many as share the jobs equally.
const AGENTS: usize = 10;
/// Of each agent.
const SESSIONS: usize = 10;
/// Jobs that have the rare label.
const RARE: usize = 100;
const PAGE: usize = 50;
const PAGE_MS_MAX: f64 = 50.0;
/// A peer that returns everything is queried less often.
const PEER_ROUNDS: usize = 3;

pub(crate) async fn run(sizes: BenchSizes, tools: &PeerTools, floors: &mut Floors, table: &mut BenchTable) {
    let mut ours = filled(sizes.listed_jobs).await;
    let from = Instant::now();
    ours.world.lodge.start();
    let started = from.elapsed().as_secs_f64() * 1e3;
    let n = sizes.listed_jobs;
    let fsync = floors.fsync(20);
    let what = format!("start to first answer, {n} jobs, {AGENTS} live agents");
    table.row(BenchRow::new(what, "ms", started).with_floor("fsync", fsync.p50()));
    let mut client = ours.world.lodge.client().await;
    let session = format!("s-{}-3", ours.agent);
    let pages = [
        ("of all", json!({})),
        ("by agent, a tenth", json!({"agent": ours.agent})),
        ("by session, a hundredth", json!({"session": session})),
        ("by status, nearly all", json!({"status": "done"})),
        ("by status, a hundredth", json!({"status": "error"})),
        ("by a label half have", json!({"labels": {"half": "1"}})),
        ("by a rare label", json!({"labels": {"batch": "7"}})),
        (
            "by four things, none",
            json!({
            "agent": ours.agent, "status": "error", "labels": {"batch": "7", "half": "0"}}),
        ),
    ];
    for (words, filter) in pages {
        let sample = page(&mut client, &filter, sizes.list_rounds).await;
        let row = BenchRow::times(format!("{PAGE} of {n} jobs listed: {words}"), &sample);
        table.row(row.hold(NumberBound::at_most("", PAGE_MS_MAX)));
    }
    let cli = repeated(sizes.list_rounds, || {
        let mut command =
            ours.world.lodge.cli_command(["jobs", "ls", "-n", "50", "--status", "error", "--json"]);
        let output = command.stderr(Stdio::null()).output().expect("lodge runs");
        assert!(output.status.success(), "{}", output.status);
    });
    table.row(BenchRow::times("  by status error, through the CLI", &cli));
    if let Some(kb) = proc::pss_kb(ours.world.family().daemon) {
        table.row(BenchRow::new("  memory (PSS) of lodged then", "MB", kb as f64 / 1024.0));
    }
    peers(sizes, tools, table);
}

async fn page(client: &mut Client, filter: &Value, rounds: usize) -> Sample {
    let mut params = filter.clone();
    params["limit"] = json!(PAGE);
    let mut sample = Sample::default();
    for _ in 0..rounds {
        let from = Instant::now();
        let page = client.call_value("job/list", params.clone()).await.expect("a page");
        sample.push(from.elapsed());
        assert!(page["jobs"].is_array(), "{page}");
    }
    sample
}

fn repeated(rounds: usize, mut act: impl FnMut()) -> Sample {
    let mut sample = Sample::default();
    for _ in 0..rounds {
        let from = Instant::now();
        act();
        sample.push(from.elapsed());
    }
    sample
}

fn peers(sizes: BenchSizes, tools: &PeerTools, table: &mut BenchTable) {
    if let Some(tool) = &tools.pueue {
        let n = sizes.listed_jobs;
        let dir = Pueue::filled(n, AGENTS);
        let from = Instant::now();
        let pueue = Pueue::start_on(tool, dir);
        let started = from.elapsed().as_secs_f64() * 1e3;
        table.row(BenchRow::new(format!("  pueue: start to first answer, {n} jobs"), "ms", started));
        let mut wire = pueue.connect();
        let all = repeated(PEER_ROUNDS, || drop(wire.status()));
        table.row(BenchRow::times("  pueue: listed through its socket, which sends all", &all));
        let last = format!("last {PAGE}");
        let (failed, rare) = (format!("status=failed {last}"), format!("label=batch7 {last}"));
        let asked: [(&str, &[&str]); 4] = [
            ("the last of all", &["status", &last]),
            ("by group", &["status", "--group", "group3", &last]),
            ("by status failed", &["status", &failed]),
            ("by a rare label", &["status", &rare]),
        ];
        for (words, args) in asked {
            let sample = repeated(PEER_ROUNDS, || drop(pueue.ok(args)));
            table.row(BenchRow::times(format!("  pueue: {PAGE} through its CLI: {words}"), &sample));
        }
        if let Some(kb) = proc::pss_kb(pueue.pid()) {
            table.row(BenchRow::new("  memory (PSS) of pueued then", "MB", kb as f64 / 1024.0));
        }
    }
    if let Some(tool) = &tools.tsp {
        let tsp = Tsp::start(tool, 4);
        (0..sizes.tsp_listed).for_each(|_| drop(tsp.ok(&["true"])));
        let sample = repeated(PEER_ROUNDS, || drop(tsp.ok(&["-l"])));
        let what = format!("  task-spooler: all of {} through its CLI", sizes.tsp_listed);
        table.row(BenchRow::times(what, &sample));
        table.note("task-spooler keeps its jobs in memory alone, so it has as many as could be submitted");
    }
}

/// A directory without a daemon that has this many finished jobs, copied from a hundred real ones.
async fn filled(jobs: usize) -> LodgeJobs {
    let mut ours = LodgeJobs::start(&[]).await;
    let mut agents = vec![ours.agent.clone()];
    for number in 1..AGENTS {
        agents.push(agent(&ours.world, &mut ours.client, &format!("jobs{number}")).await);
    }
    for id in &agents {
        for number in 0..SESSIONS {
            let session = format!("s-{id}-{number}");
            ours.world.talk(id, &session).await;
            let params = json!({
                "agent": id, "session": session, "bin": "true", "labels": {"half": "0", "batch": "0"},
            });
            let job = submit(&mut ours.client, params).await;
            archived(&ours, &job).await;
        }
    }
    ours.world.lodge.kill9();
    multiply(&ours.world.lodge, jobs).expect("a filled database");
    ours
}

fn multiply(lodge: &Lodge, jobs: usize) -> rusqlite::Result<()> {
    let connection = Connection::open(lodge.home().join("daemon.db"))?;
    connection.execute_batch(
        "PRAGMA synchronous = OFF; PRAGMA foreign_keys = OFF; PRAGMA cache_size = -65536; BEGIN;
         CREATE TEMP TABLE one AS SELECT row_number() OVER (ORDER BY agent, session) - 1 AS k, * FROM jobs;
         CREATE TEMP TABLE n (i INTEGER PRIMARY KEY);",
    )?;
    let jobs = i64::try_from(jobs).unwrap_or(i64::MAX);
    connection.execute(
        "INSERT INTO n WITH RECURSIVE c (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < ?1) SELECT i FROM c",
        [jobs],
    )?;
    let made = connection.execute(
        "INSERT INTO jobs (id, agent, session, state, priority, created_at, started_at, finished_at, exit_code, archived, told,
             request, stdin)
         SELECT printf('job_%017d', n.i), agent, session, iif(n.i % 100 = 7, 11, 10), 0, created_at, started_at, finished_at,
             iif(n.i % 100 = 7, NULL, 0), 1, 1, request, stdin
         FROM n JOIN one ON one.k = (n.i * 7919) % (SELECT count(*) FROM one)",
        [],
    )?;
    assert_eq!(i64::try_from(made), Ok(jobs), "a job for each number");
    let batches = (jobs / i64::try_from(RARE).unwrap_or(1)).max(8);
    connection.execute_batch(
        "INSERT INTO job_labels SELECT 'half', printf('%d', n.i / 10 % 2), printf('job_%017d', n.i) FROM n;
         INSERT INTO job_labels SELECT 'io.lodge.session-id', session, id FROM jobs WHERE session IS NOT NULL
             ON CONFLICT DO NOTHING;",
    )?;
    connection.execute(
        "INSERT INTO job_labels SELECT 'batch', printf('%d', n.i % ?1), printf('job_%017d', n.i) FROM n",
        params![batches],
    )?;
    connection.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE);")?;
    connection.close().map_err(|(_, error)| error)
}
