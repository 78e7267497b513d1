//! Many sessions at once with a model that answers at once: durable turns a second, and what they cost in CPU.

use std::time::Instant;

use tokio::task::LocalSet;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::wal::Wal;
use crate::world::{BenchModel, BenchSession, BenchWorld};

const SESSIONS: usize = 32;
/// Of one core: the clients and the model server use the same cores.
const CORE_TURNS_MIN: f64 = 1_550.0;
const MB: f64 = 1024.0 * 1024.0;

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let models = [(BenchModel::Script, "scripted model", 0.5), (BenchModel::Http, "model over HTTP", 0.6)];
    for (model, words, cpu_ms_max) in models {
        let world = BenchWorld::start().await;
        let agent = world.agent("parallel", model).await;
        let mut talks = Vec::new();
        for session in 0..SESSIONS {
            talks.push(world.talk(&agent, &format!("s{session}")).await);
        }
        let mut each = Sample::default();
        talks = round(talks, sizes.parallel_turns.min(5), "hello", &mut each).await;
        let (mut rate, mut cpu, mut fsync) = (Sample::default(), Sample::default(), Sample::default());
        let (mut each, mut wal_bytes) = (Sample::default(), 0);
        let family = world.family();
        for _ in 0..sizes.parallel_rounds {
            fsync.extend(&floors.fsync(20));
            let (from, cpu_from) = (Instant::now(), family.cpu_ms());
            talks = round(talks, sizes.parallel_turns, "hello", &mut each).await;
            let turns = (SESSIONS * sizes.parallel_turns) as f64;
            rate.push_ms(turns / from.elapsed().as_secs_f64());
            cpu.push_ms((family.cpu_ms() - cpu_from) / turns);
            wal_bytes = wal_bytes.max(Wal::bytes(&world.lodge));
        }
        fsync.extend(&floors.fsync(20));
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let what = format!("durable turns a second, {SESSIONS} sessions, {words}");
        let row = BenchRow::rounds(what, "/s", &rate).with_floor("1/fsync", 1e3 / fsync.p50());
        // A provider's connection is not part of what two cores are expected to carry at that rate.
        table.row(match model {
            BenchModel::Script => {
                row.hold(NumberBound::at_least(&format!("1,550 x {cores} cores"), CORE_TURNS_MIN * cores))
            }
            BenchModel::Http => row,
        });
        table.row(
            BenchRow::rounds("  CPU a turn, daemon, keepers and runtimes", "ms", &cpu)
                .hold(NumberBound::at_most("", cpu_ms_max)),
        );
        table.row(
            BenchRow::times("  one of those turns, as its client sees it", &each)
                .with_floor("fsync", fsync.p50()),
        );
        table.row(
            BenchRow::new("  largest write-ahead log seen", "MB", wal_bytes as f64 / MB)
                .hold(NumberBound::at_most("", 48.0)),
        );
    }
}

/// Every session does its turns, all at once, on this thread.
pub(crate) async fn round(
    talks: Vec<BenchSession>,
    turns: usize,
    text: &'static str,
    each: &mut Sample,
) -> Vec<BenchSession> {
    let tasks = LocalSet::new();
    let running: Vec<_> = talks
        .into_iter()
        .map(|mut talk| {
            tasks.spawn_local(async move {
                let mut took = Sample::default();
                for _ in 0..turns {
                    took.push(talk.turn(text).await);
                }
                (talk, took)
            })
        })
        .collect();
    tasks.await;
    let mut talks = Vec::new();
    for task in running {
        let (talk, took) = task.await.expect("a session that did its turns");
        each.extend(&took);
        talks.push(talk);
    }
    talks
}
