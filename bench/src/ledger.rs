//! What the ledger costs: a turn with one tool call beside a turn without, and beside the bare tool.
//!
//! Two sessions of one agent take turns, so that a disk that changes its mind changes both.

use crate::BenchSizes;
use crate::floor::Floors;
use crate::proc;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable};
use crate::wal::Wal;
use crate::world::{BenchModel, BenchSession, BenchWorld};

/// Turns in a row of one kind.
const STRIDE: usize = 10;
const PLAIN: &str = "hello";
const WITH_TOOL: &str = "[[tool:true|[]]] [[reply:done]]";

/// What the turns of one kind took.
#[derive(Debug, Default)]
struct TurnCost {
    turns: usize,
    time: Sample,
    cpu_ms: f64,
    bytes: Option<u64>,
    /// Of the turns during which the log did not start over.
    counted: usize,
    commits: u64,
    pages: u64,
    page_kb: f64,
}

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let mut world = BenchWorld::start().await;
    let agent = world.agent("ledger", BenchModel::Http).await;
    let (mut without, mut with) = (world.talk(&agent, "without").await, world.talk(&agent, "with").await);
    let (mut plain, mut tool) = (TurnCost::default(), TurnCost::default());
    measure(&world, &mut without, PLAIN, &mut TurnCost::default()).await;
    measure(&world, &mut with, WITH_TOOL, &mut TurnCost::default()).await;
    let (mut model, mut spawn, mut fsync) = (Sample::default(), Sample::default(), Sample::default());
    while plain.turns < sizes.ledger_turns {
        fsync.extend(&floors.fsync(4));
        spawn.extend(&floors.spawn(4));
        model.extend(&world.mock_alone(3));
        measure(&world, &mut without, PLAIN, &mut plain).await;
        measure(&world, &mut with, WITH_TOOL, &mut tool).await;
    }
    let own = model.p50();
    let (plain_ms, tool_ms) = (plain.time.less(own), tool.time.less(2.0 * own));
    table.row(
        BenchRow::times("turn with one tool call beside one without", &tool_ms)
            .with_floor("turn", plain_ms.p50()),
    );
    let more = BenchRow::new("  the call itself, beside the bare tool", "ms", tool_ms.p50() - plain_ms.p50());
    table.row(more.with_floor("spawn", spawn.p50()));
    let more = BenchRow::new("  the same beside a flush of the disk", "ms", tool_ms.p50() - plain_ms.p50());
    table.row(more.with_floor("fsync", fsync.p50()));
    each("  CPU, daemon, keeper and runtime", "ms", &plain, &tool, table, |cost| {
        Some(cost.cpu_ms / cost.turns as f64)
    });
    each("  commits, counted in the log", "", &plain, &tool, table, |cost| {
        (cost.counted > 0).then(|| cost.commits as f64 / cost.counted as f64)
    });
    each("  written to the log", "KB", &plain, &tool, table, |cost| {
        (cost.counted > 0).then(|| cost.pages as f64 * cost.page_kb / cost.counted as f64)
    });
    each("  written by the daemon, log and copying back", "KB", &plain, &tool, table, |cost| {
        Some(cost.bytes? as f64 / 1024.0 / cost.turns as f64)
    });
}

/// One row: what a turn with a tool costs, beside one without.
fn each(
    what: &str,
    unit: &'static str,
    plain: &TurnCost,
    tool: &TurnCost,
    table: &mut BenchTable,
    of: impl Fn(&TurnCost) -> Option<f64>,
) {
    match (of(plain), of(tool)) {
        (Some(plain), Some(tool)) => table.row(BenchRow::new(what, unit, tool).with_floor("turn", plain)),
        (None, _) | (_, None) => table.note(&format!("{}: could not be measured", what.trim())),
    }
}

async fn measure(world: &BenchWorld, talk: &mut BenchSession, text: &str, cost: &mut TurnCost) {
    let family = world.family();
    let path = Wal::path(&world.lodge);
    let (log, written, cpu_ms) = (Wal::read(&path), proc::written(family.daemon), family.cpu_ms());
    for _ in 0..STRIDE {
        cost.time.push(talk.turn(text).await);
    }
    cost.turns += STRIDE;
    cost.cpu_ms += family.cpu_ms() - cpu_ms;
    let added = written.zip(proc::written(family.daemon)).map(|(before, after)| after - before);
    cost.bytes = added.map(|added| cost.bytes.unwrap_or(0) + added);
    // A round in which the log started over is not counted.
    if let Some((before, after)) = log.zip(Wal::read(&path))
        && let Some((commits, pages)) = after.since(&before)
    {
        cost.counted += STRIDE;
        (cost.commits, cost.pages, cost.page_kb) =
            (cost.commits + commits, cost.pages + pages, after.page_kb);
    }
}
