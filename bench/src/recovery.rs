//! kill -9 of the daemon with agents alive, until the next daemon has all of them again.

use std::time::Instant;

use serde_json::json;

use crate::BenchSizes;
use crate::fill;
use crate::floor::Floors;
use crate::sample::Sample;
use crate::start;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::world::{BenchModel, BenchWorld, wait_ready};

const HOLD_MS: f64 = 150.0;
/// Of each agent that is stored beside the living ones.
const EVENTS_AN_AGENT: u32 = 20;
/// The stopped one and the failed one that all others are like.
const SEEDS: u32 = 2;

/// What some rounds took.
#[derive(Debug, Default)]
struct RecoverySamples {
    /// From the exec of the daemon to its first answer.
    answered: Sample,
    /// From the exec until every living agent was adopted.
    adopted: Sample,
    fsync: Sample,
}

/// With as many living agents again as the world has, and nothing else.
pub(crate) async fn run(
    sizes: BenchSizes,
    floors: &mut Floors,
    world: &mut BenchWorld,
    table: &mut BenchTable,
) {
    let live = sizes.agents * 2;
    start_agents(world, sizes.agents..live).await;
    let recovered = rounds(sizes, floors, world, live).await;
    let what = format!("kill -9 with {live} live agents: exec until all adopted");
    let row = BenchRow::times(what, &recovered.adopted).with_floor("fsync", recovered.fsync.p50());
    table.row(row.hold(NumberBound::at_most("", HOLD_MS)));
    add_rows(&recovered, live, table);
}

/// With many more agents that are stopped or failed, half of each.
pub(crate) async fn run_stored(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let mut world = BenchWorld::start().await;
    fill::stopped(&world.lodge).await;
    fill::broken(&world.lodge).await;
    start_agents(&world, 0..sizes.agents).await;
    world.lodge.kill9();
    let there = u32::try_from(sizes.agents).unwrap_or(u32::MAX).saturating_add(SEEDS);
    let others = sizes.stored_agents.saturating_sub(there).max(1);
    fill::add(&world.lodge, others, others * EVENTS_AN_AGENT);
    start::start(&mut world.lodge);
    let recovered = rounds(sizes, floors, &mut world, sizes.agents).await;
    let what = format!(
        "kill -9 with {} agents stored, {} of them live: all adopted",
        sizes.stored_agents, sizes.agents
    );
    let row = BenchRow::times(what, &recovered.adopted).with_floor("fsync", recovered.fsync.p50());
    table.row(row.hold(NumberBound::at_most("", HOLD_MS)));
    add_rows(&recovered, sizes.agents, table);
}

fn add_rows(recovered: &RecoverySamples, live: usize, table: &mut BenchTable) {
    let answered = BenchRow::times("  exec until the first answer", &recovered.answered);
    table.row(answered.with_floor("fsync", recovered.fsync.p50()));
    let rest = recovered.adopted.p50() - recovered.answered.p50();
    table.row(BenchRow::new("  after that, for each live agent", "ms", rest / live as f64));
    table.row(BenchRow::new("  slowest round", "ms", recovered.adopted.max()));
}

async fn start_agents(world: &BenchWorld, numbers: std::ops::Range<usize>) {
    let mut client = world.lodge.client().await;
    for number in numbers {
        let id = world.create(&mut client, &format!("a{number}"), BenchModel::Http).await;
        wait_ready(&mut client, &id).await;
    }
}

/// With the living agents of a world that has many, each of whom is ready.
pub(crate) async fn run_many(
    sizes: BenchSizes,
    floors: &mut Floors,
    world: &mut BenchWorld,
    table: &mut BenchTable,
) {
    let recovered = rounds(sizes, floors, world, sizes.many).await;
    let what = format!("kill -9 with {} live agents: exec until all adopted", sizes.many);
    table.row(BenchRow::times(what, &recovered.adopted).with_floor("fsync", recovered.fsync.p50()));
    add_rows(&recovered, sizes.many, table);
}

async fn rounds(
    sizes: BenchSizes,
    floors: &mut Floors,
    world: &mut BenchWorld,
    live: usize,
) -> RecoverySamples {
    let mut recovered = RecoverySamples::default();
    for _ in 0..sizes.recoveries {
        recovered.fsync.extend(&floors.fsync(10));
        let mut client = world.lodge.client().await;
        let listed = client.call_value("event/list", json!({"limit": 1})).await.expect("events");
        let head = listed["head"].as_u64().expect("a head");
        let before = keepers(world);
        world.lodge.kill9();
        let from = Instant::now();
        recovered.answered.push(start::start(&mut world.lodge));
        let mut client = world.lodge.client().await;
        client.call_value("client/attach", json!({"all": true, "since": head})).await.expect("an attachment");
        let mut adopted = 0;
        while adopted < live {
            let note = client.next().await.expect("an event");
            match note.params["kind"].as_str() {
                Some("lineage.adopted") => adopted += 1,
                Some("agent.failed") => panic!("an agent was lost: {}", note.params),
                Some(_) | None => {}
            }
        }
        recovered.adopted.push(from.elapsed());
        assert_eq!(keepers(world), before, "adopted, not started again");
    }
    recovered
}

fn keepers(world: &BenchWorld) -> Vec<i32> {
    let mut keepers = world.lodge.keepers();
    keepers.sort_unstable();
    keepers
}
