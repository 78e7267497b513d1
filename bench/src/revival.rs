//! A killed process until its agent is ready again: the runtime alone, and the whole sandbox.
//!
//! Each is shown next to an ordinary start of the same agent, measured in the same rounds.

use std::time::{Duration, Instant};

use lodge_testkit::lodge::PATIENCE;
use serde_json::json;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::proc::{self, DaemonProcesses};
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable};
use crate::world::{BenchModel, BenchSession, BenchWorld, wait_ready};

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let world = BenchWorld::start().await;
    let agent = world.agent("revived", BenchModel::Http).await;
    let mut talk = world.talk(&agent, "between").await;
    let (mut runtime, mut sandbox) = (Sample::default(), Sample::default());
    let (mut started, mut fsync) = (Sample::default(), Sample::default());
    for _ in 0..sizes.revivals {
        fsync.extend(&floors.fsync(10));
        runtime.push(ready_after(&world, &mut talk, |family| family.runtimes[0]).await);
        sandbox.push(ready_after(&world, &mut talk, |family| family.keepers[0]).await);
        let mut client = world.lodge.client().await;
        client.call_value("agent/stop", json!({"agent": agent})).await.expect("a stopped agent");
        client.call_value("client/attach", json!({"agent": agent})).await.expect("an attachment");
        let from = Instant::now();
        client.call_value("agent/start", json!({"agent": agent})).await.expect("a started agent");
        until_ready(&mut client).await;
        started.push(from.elapsed());
    }
    let start = BenchRow::times("agent started until ready", &started);
    table.row(start.with_floor("fsync", fsync.p50()));
    let row = BenchRow::times("  runtime killed until ready again, in its sandbox", &runtime);
    table.row(row.with_floor("start", started.p50()));
    let row = BenchRow::times("  sandbox killed until ready again, in another", &sandbox);
    table.row(row.with_floor("start", started.p50()));
}

/// How long it takes from the death of one of the agent's processes until it is ready, as a client sees it.
async fn ready_after(
    world: &BenchWorld,
    talk: &mut BenchSession,
    which: impl FnOnce(&DaemonProcesses) -> u32,
) -> Duration {
    // A finished turn between two deaths: the next revival does not wait.
    talk.turn("hello").await;
    let agent = talk.agent.as_str();
    let mut client = world.lodge.client().await;
    wait_ready(&mut client, agent).await;
    client.call_value("client/attach", json!({"agent": agent})).await.expect("an attachment");
    let pid = which(&world.family());
    let from = Instant::now();
    proc::kill9(pid);
    until_ready(&mut client).await;
    from.elapsed()
}

async fn until_ready(client: &mut lodge_proto::client::Client) {
    loop {
        let note = tokio::time::timeout(PATIENCE, client.next()).await.expect("an event in time");
        let note = note.expect("a connection that lives");
        match note.params["kind"].as_str() {
            Some("agent.ready") => return,
            Some("agent.failed") => panic!("the agent failed: {}", note.params),
            Some(_) | None => {}
        }
    }
}
