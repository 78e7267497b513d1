//! A thousand agents that do nothing and outlive their daemon, and a hundred that all work at once.

use std::time::Instant;

use serde_json::json;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::parallel::round;
use crate::proc;
use crate::recovery;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::world::{BenchModel, BenchWorld, wait_ready};

const AGENT_MB_MAX: f64 = 0.8;
/// Parallel create requests.
const CREATORS: usize = 8;

/// Creates agents, all of them at once, and looks at what they take.
pub(crate) async fn idle(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let mut world = BenchWorld::start().await;
    let before = proc::pss_kb(world.family().daemon);
    let spawn = floors.spawn(20);
    let from = Instant::now();
    create(&world, sizes.many).await;
    let took_ms = from.elapsed().as_secs_f64() * 1e3;
    let n = sizes.many as f64;
    let what = format!("{} agents created until all are ready", sizes.many);
    table.row(BenchRow::new(what, "s", took_ms / 1e3));
    table.row(BenchRow::new("  each", "ms", took_ms / n).with_floor("spawn", spawn.p50()));
    let family = world.family();
    let of = |pids: &[u32]| pids.iter().map(|pid| proc::pss_kb(*pid)).sum::<Option<u64>>();
    let mb = |kb: u64| kb as f64 / 1024.0;
    match (before, proc::pss_kb(family.daemon), of(&family.keepers), of(&family.runtimes)) {
        (Some(before), Some(daemon), Some(keepers), Some(runtimes)) => {
            let row =
                BenchRow::new("  memory (PSS) of each, keeper and runtime", "MB", mb(keepers + runtimes) / n);
            table.row(row.hold(NumberBound::at_most("", AGENT_MB_MAX)));
            let more = (mb(daemon) - mb(before)) * 1024.0 / n;
            table.row(BenchRow::new("  what each adds to the daemon", "KB", more));
        }
        _ => table.note("their memory: keepers and runtimes are not dumpable, so only root may read it"),
    }
    if let Some(files) = proc::open_files(family.daemon) {
        table.row(BenchRow::new("  open files of the daemon for each", "files", files as f64 / n));
    }
    recovery::run_many(sizes, floors, &mut world, table).await;
}

/// Every agent has a turn in flight all the time.
pub(crate) async fn working(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let all = sizes.working.to_string();
    let world = BenchWorld::start_with(&[("LODGED_MAX_CONCURRENT", &all)]).await;
    let ids = create(&world, sizes.working).await;
    let mut talks = Vec::new();
    for id in &ids {
        talks.push(world.talk(id, &format!("work-{id}")).await);
    }
    let family = world.family();
    for (text, words) in [("hello", "turns"), ("[[tool:true|[\"x\"]]] done", "turns with a tool call")] {
        let mut each = Sample::default();
        talks = round(talks, 1, text, &mut each).await;
        let (mut rate, mut cpu, mut each) = (Sample::default(), Sample::default(), Sample::default());
        let fsync = floors.fsync(20);
        for _ in 0..sizes.working_rounds {
            let (from, cpu_from) = (Instant::now(), family.cpu_ms());
            talks = round(talks, sizes.working_turns, text, &mut each).await;
            let turns = (sizes.working * sizes.working_turns) as f64;
            rate.push_ms(turns / from.elapsed().as_secs_f64());
            cpu.push_ms((family.cpu_ms() - cpu_from) / turns);
        }
        let what = format!("{words} a second, {} agents at work at once", sizes.working);
        table.row(BenchRow::rounds(what, "/s", &rate));
        table.row(BenchRow::rounds("  CPU a turn, daemon, keepers and runtimes", "ms", &cpu));
        table.row(
            BenchRow::times("  one of them, as its client sees it", &each).with_floor("fsync", fsync.p50()),
        );
    }
    let mut client = world.lodge.client().await;
    let ready = client.call_value("agent/list", json!({"all": true, "limit": 1})).await;
    assert!(ready.is_ok(), "the daemon answers after all that: {ready:?}");
}

/// Creates this many agents and waits until every one is ready.
async fn create(world: &BenchWorld, count: usize) -> Vec<String> {
    let queue = std::cell::RefCell::new((0..count).collect::<Vec<_>>());
    let ids = std::cell::RefCell::new(Vec::new());
    let creator = async || {
        let mut client = world.lodge.client().await;
        loop {
            let Some(number) = queue.borrow_mut().pop() else { return };
            let id = world.create(&mut client, &format!("many{number}"), BenchModel::Http).await;
            ids.borrow_mut().push(id);
        }
    };
    let creators: Vec<_> = (0..CREATORS).map(|_| creator()).collect();
    futures_util::future::join_all(creators).await;
    let ids = ids.into_inner();
    let mut client = world.lodge.client().await;
    for id in &ids {
        wait_ready(&mut client, id).await;
    }
    ids
}
