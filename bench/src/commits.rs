//! Durable changes a second: many clients, each waiting until its change is on disk before it asks for the next.
//!
//! Every session's first turn waits for a model that never answers, so a message behind it is only recorded, and
//! interrupting it only records that: two durable answers, and nothing else runs.

use std::time::Instant;

use lodge_proto::client::Client;
use serde_json::{Value, json};
use tokio::task::LocalSet;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable};
use crate::wal::Wal;
use crate::world::{BenchModel, BenchWorld};

const CLIENTS: usize = 64;

struct CommitClient {
    client: Client,
    agent: String,
    session: String,
}

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let world = BenchWorld::start().await;
    let agent = world.agent("commits", BenchModel::Http).await;
    let mut senders = Vec::new();
    for number in 0..CLIENTS {
        let mut sender = CommitClient {
            client: world.lodge.client().await,
            agent: agent.clone(),
            session: format!("c{number}"),
        };
        sender.send("[[hang]]").await;
        senders.push(sender);
    }
    let (mut rate, mut fsync, mut shared) = (Sample::default(), Sample::default(), Sample::default());
    for _ in 0..sizes.commit_rounds {
        fsync.extend(&floors.fsync(20));
        let (from, before) = (Instant::now(), Wal::read(&Wal::path(&world.lodge)));
        senders = round(senders, sizes.commit_pairs).await;
        let changes = (2 * CLIENTS * sizes.commit_pairs) as f64;
        rate.push_ms(changes / from.elapsed().as_secs_f64());
        let after = Wal::read(&Wal::path(&world.lodge));
        if let Some((commits, _)) = before.zip(after).and_then(|(before, after)| after.since(&before)) {
            shared.push_ms(changes / commits.max(1) as f64);
        }
    }
    fsync.extend(&floors.fsync(20));
    let row =
        BenchRow::rounds(format!("durable changes acknowledged a second, {CLIENTS} clients"), "/s", &rate);
    table.row(row.with_floor("1/fsync", 1e3 / fsync.p50()));
    if shared.len() > 0 {
        table.row(BenchRow::rounds("  changes that shared one commit", "", &shared));
    }
}

impl CommitClient {
    async fn send(&mut self, text: &str) -> Value {
        let turn = json!({"agent": self.agent, "session": self.session, "text": text});
        self.client.call_value("turn/send", turn).await.expect("an accepted turn")
    }
}

async fn round(senders: Vec<CommitClient>, pairs: usize) -> Vec<CommitClient> {
    let tasks = LocalSet::new();
    let running: Vec<_> = senders
        .into_iter()
        .map(|mut sender| {
            tasks.spawn_local(async move {
                for _ in 0..pairs {
                    let turn = sender.send("recorded and never run").await;
                    let interrupt = json!({"turn": turn["id"]});
                    sender.client.call_value("turn/interrupt", interrupt).await.expect("an ended turn");
                }
                sender
            })
        })
        .collect();
    tasks.await;
    let mut senders = Vec::new();
    for task in running {
        senders.push(task.await.expect("a client that did its round"));
    }
    senders
}
