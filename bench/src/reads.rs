//! Small reads while many sessions work: what a client waits for an answer that is in the store. Conversations are read
//! whole before each model call, and a reader should not have to wait for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lodge_proto::client::{Client, Target};
use lodge_testkit::golden::previous_lodged;
use lodge_testkit::lodge::Lodge;
use serde_json::{Value, json};

use crate::BenchSizes;
use crate::parallel::round;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable};
use crate::world::{BenchModel, BenchSession, BenchWorld};

const SESSIONS: usize = 32;
/// Between two reads: one client that looks, not one that loads the daemon.
const PAUSE: Duration = Duration::from_millis(2);
/// The text of each turn: some kilobytes of plain text.
const TEXT: &str = include_str!("../../LICENSE");

/// What one daemon gave.
struct ReadTimes {
    agents: Sample,
    sessions: Sample,
    /// Turns a second beside the reads.
    rate: f64,
}

pub(crate) async fn run(sizes: BenchSizes, table: &mut BenchTable) {
    let now = taken(Lodge::new(), sizes).await;
    let before = if cfg!(target_arch = "x86_64") {
        let dir =
            tempfile::Builder::new().prefix("lodge-previous-").tempdir().expect("a temporary directory");
        Some(taken(Lodge::of(previous_lodged(dir.path())), sizes).await)
    } else {
        None
    };
    let beside = |row: BenchRow, was: fn(&ReadTimes) -> f64| match &before {
        Some(before) => row.with_floor("previous", was(before)),
        None => row,
    };
    let words = format!("while {SESSIONS} sessions work");
    table.row(beside(BenchRow::times(format!("agent/get {words}"), &now.agents), |was| was.agents.p50()));
    table.row(beside(BenchRow::times(format!("session/get {words}"), &now.sessions), |was| {
        was.sessions.p50()
    }));
    let late = BenchRow::new("  the slowest of a hundred of both", "ms", worst(&now));
    table.row(beside(late, worst));
    table.row(beside(BenchRow::new("  durable turns a second beside them", "/s", now.rate), |was| was.rate));
}

fn worst(taken: &ReadTimes) -> f64 {
    let mut both = Sample::default();
    both.extend(&taken.agents);
    both.extend(&taken.sessions);
    both.p99()
}

async fn taken(lodge: Lodge, sizes: BenchSizes) -> ReadTimes {
    let world = BenchWorld::of(lodge, &[]).await;
    let agent = world.agent("reads", BenchModel::Script).await;
    let mut talks: Vec<BenchSession> = Vec::new();
    for session in 0..SESSIONS {
        talks.push(world.talk(&agent, &format!("s{session}")).await);
    }
    talks = round(talks, sizes.read_history, TEXT, &mut Sample::default()).await;
    let done = Arc::new(AtomicBool::new(false));
    let (target, token, stop) = (world.lodge.target(), world.lodge.bearer(), done.clone());
    // On a thread of its own: the one that drives the sessions would make its reads wait.
    let reading = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(read(target, token, agent, &stop))
    });
    let from = Instant::now();
    let talks = round(talks, sizes.read_turns, TEXT, &mut Sample::default()).await;
    let rate = (SESSIONS * sizes.read_turns) as f64 / from.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    let (agents, sessions) = reading.join().expect("a reader");
    drop(talks);
    ReadTimes { agents, sessions, rate }
}

async fn read(target: Target, token: String, agent: String, stop: &AtomicBool) -> (Sample, Sample) {
    let mut client = Client::connect(&target, token.as_str()).await.expect("a connection");
    let (mut agents, mut sessions) = (Sample::default(), Sample::default());
    loop {
        agents.push(timed(&mut client, "agent/get", json!({"agent": agent})).await);
        sessions.push(timed(&mut client, "session/get", json!({"session": "s1"})).await);
        if stop.load(Ordering::Relaxed) {
            return (agents, sessions);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn timed(client: &mut Client, method: &str, params: Value) -> Duration {
    let from = Instant::now();
    client.call_value(method, params).await.expect("an answer");
    from.elapsed()
}
