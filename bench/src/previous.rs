//! This release beside the previous one: the same agents on two daemons, which take turns, so that both meet the same
//! machine.

use lodge_proto::client::Client;
use lodge_testkit::golden::previous_lodged;
use lodge_testkit::lodge::Lodge;
use serde_json::json;

use crate::BenchSizes;
use crate::images::stock::until_ready;
use crate::proc;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::world::{BenchSession, BenchWorld, wait_ready};

const START_RATIO_MAX: f64 = 1.3;
const START_MORE_MS: f64 = 2.0;
const TOOL_RATIO_MAX: f64 = 1.05;
const WARM_UP: usize = 20;
const WITH_TOOL: &str = "[[tool:true|[]]] [[reply:done]]";

/// What an Agentfile says of its network, and what that may cost in memory.
struct NetworkSetting {
    words: &'static str,
    image: &'static str,
    line: &'static str,
    more_mb_max: f64,
}

const MODES: [NetworkSetting; 2] = [
    NetworkSetting { words: "the default network", image: "plain", line: "", more_mb_max: 0.3 },
    NetworkSetting { words: "NETWORK none", image: "closed", line: "NETWORK none\n", more_mb_max: 0.05 },
];

/// One of the two daemons, with an image for each mode.
struct ComparedDaemon {
    world: BenchWorld,
    client: Client,
    // The previous release's program is in it.
    _dir: Option<tempfile::TempDir>,
}

impl ComparedDaemon {
    async fn of(lodge: Lodge, dir: Option<tempfile::TempDir>) -> ComparedDaemon {
        let world = BenchWorld::of(lodge, &[]).await;
        let mut client = world.lodge.client().await;
        for mode in &MODES {
            let text = format!(
                "# syntax=lodge/agentfile:1\nFROM scratch\nNAME {}\nMODEL mock/instant\n\
                 CONFIG memory-strategy=sliding\nBIN true host:true safe \"does nothing\"\n{}",
                mode.image, mode.line
            );
            client.call_value("image/build", json!({"content": text})).await.expect("an image");
        }
        client.call_value("client/attach", json!({"all": true})).await.expect("an attachment");
        // The first agent of a daemon pays for what every agent needs.
        until_ready(&mut client, MODES[0].image).await;
        ComparedDaemon { world, client, _dir: dir }
    }

    /// Megabytes per idle agent, for this many agents, which are removed afterwards. None if only root can read it.
    async fn agent_mb(&mut self, image: &str, count: usize) -> Option<f64> {
        let mut client = self.world.lodge.client().await;
        let mut ids = Vec::new();
        for number in 0..count {
            let params = json!({"image": image, "name": format!("{image}-{number}")});
            let made = client.call_value("agent/create", params).await.expect("an agent");
            ids.push(made["id"].as_str().expect("an id").to_owned());
        }
        for id in &ids {
            wait_ready(&mut client, id).await;
            self.world.talk(id, &format!("memory-{id}")).await.turn(WITH_TOOL).await;
        }
        let family = self.world.family();
        let daemon = family.daemon;
        let kb = family.all().filter(|pid| *pid != daemon).map(proc::pss_kb).sum::<Option<u64>>();
        for id in ids {
            let removed = json!({"agent": id, "force": true});
            client.call_value("agent/remove", removed).await.expect("a removed agent");
        }
        kb.map(|kb| kb as f64 / 1024.0 / count as f64)
    }

    async fn talk(&mut self) -> BenchSession {
        let made = self.client.call_value("agent/create", json!({"image": MODES[0].image})).await;
        let id = made.expect("an agent")["id"].as_str().expect("an id").to_owned();
        wait_ready(&mut self.world.lodge.client().await, &id).await;
        let mut talk = self.world.talk(&id, "tools").await;
        for _ in 0..WARM_UP {
            talk.turn(WITH_TOOL).await;
        }
        talk
    }
}

pub(crate) async fn run(sizes: BenchSizes, table: &mut BenchTable) {
    if !cfg!(target_arch = "x86_64") {
        return table.not_run("this release beside the previous one", "its program is for x86_64");
    }
    let dir = tempfile::Builder::new().prefix("lodge-previous-").tempdir().expect("a temporary directory");
    let previous = Lodge::of(previous_lodged(dir.path()));
    let mut before = ComparedDaemon::of(previous, Some(dir)).await;
    let mut now = ComparedDaemon::of(Lodge::new(), None).await;
    for mode in &MODES {
        starts(mode, sizes.beside_starts, &mut before, &mut now, table).await;
    }
    for mode in &MODES {
        memory(mode, sizes.beside_agents, &mut before, &mut now, table).await;
    }
    tools(sizes.beside_turns, &mut before, &mut now, table).await;
}

async fn starts(
    mode: &NetworkSetting,
    rounds: usize,
    before: &mut ComparedDaemon,
    now: &mut ComparedDaemon,
    table: &mut BenchTable,
) {
    let (mut was, mut is) = (Sample::default(), Sample::default());
    for _ in 0..rounds {
        was.push(until_ready(&mut before.client, mode.image).await);
        is.push(until_ready(&mut now.client, mode.image).await);
    }
    let limit = START_RATIO_MAX * was.p50() + START_MORE_MS;
    let row = BenchRow::times(format!("agent created until ready, {}", mode.words), &is);
    let hold = NumberBound::at_most(&format!("{START_RATIO_MAX} x previous + {START_MORE_MS} ms"), limit);
    table.row(row.with_floor("previous", was.p50()).hold(hold));
}

async fn memory(
    mode: &NetworkSetting,
    agents: usize,
    before: &mut ComparedDaemon,
    now: &mut ComparedDaemon,
    table: &mut BenchTable,
) {
    let was = before.agent_mb(mode.image, agents).await;
    let (Some(was), Some(is)) = (was, now.agent_mb(mode.image, agents).await) else {
        table.note("memory beside the previous release: only root may read it");
        return;
    };
    let words = format!("previous + {} MB", mode.more_mb_max);
    let row =
        BenchRow::new(format!("memory of each agent, {}", mode.words), "MB", is).with_floor("previous", was);
    table.row(row.hold(NumberBound::at_most(&words, was + mode.more_mb_max)));
}

async fn tools(turns: usize, before: &mut ComparedDaemon, now: &mut ComparedDaemon, table: &mut BenchTable) {
    let mut sides = [before.talk().await, now.talk().await];
    let mut with = [Sample::default(), Sample::default()];
    let mut without = [Sample::default(), Sample::default()];
    for _ in 0..turns {
        for (side, talk) in sides.iter_mut().enumerate() {
            with[side].push(talk.turn(WITH_TOOL).await);
            without[side].push(talk.turn("hello").await);
        }
    }
    let [was, is] = &with;
    let row = BenchRow::times("turn with one tool call", is).with_floor("previous", was.p50());
    table.row(row.hold(NumberBound::at_most("1.05 x previous", TOOL_RATIO_MAX * was.p50())));
    let [was, is] = &without;
    table.row(BenchRow::times("turn without", is).with_floor("previous", was.p50()));
}
