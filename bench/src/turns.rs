//! What one turn costs beyond the model's own time.

use crate::BenchSizes;
use crate::floor::Floors;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::wal::Wal;
use crate::world::{BenchModel, BenchSession, BenchWorld};

const WARM_UP: usize = 20;
/// Turns between two looks at the floors.
const STRIDE: usize = 10;
const HOLD_MS: f64 = 2.0;
/// Turns between two looks at the log.
const COUNTED: usize = 10;

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let mut world = BenchWorld::start().await;
    for (model, words) in [(BenchModel::Script, "scripted model"), (BenchModel::Http, "model over HTTP")] {
        let agent = world.agent(&format!("one-{}", words.len()), model).await;
        let mut talk = world.talk(&agent, words.split(' ').next().unwrap_or(words)).await;
        for _ in 0..WARM_UP.min(sizes.turns) {
            talk.turn("warm up").await;
        }
        let measured = measure(&mut world, &mut talk, model, sizes.turns, floors, "hello").await;
        let hold = 2.0 * measured.fsync.p50() + HOLD_MS;
        let row = BenchRow::times(format!("turn without tools, {words}, one session"), &measured.beyond);
        table.row(
            row.with_floor("fsync", measured.fsync.p50()).hold(NumberBound::at_most("2 fsync + 2 ms", hold)),
        );
        let tail = BenchRow::new("  the same, 95th in a hundred beside fsync's", "ms", measured.beyond.p95());
        table.row(tail.with_floor("fsync", measured.fsync.p95()));
        if model == BenchModel::Http {
            table.row(BenchRow::times("  of which not counted: the model server alone", &measured.model));
            let with_tool = "[[tool:true|[]]] [[reply:done]]";
            let tool = measure(&mut world, &mut talk, model, sizes.tool_turns, floors, with_tool).await;
            let spawn = floors.spawn(20);
            let row = BenchRow::times("turn with one tool call (`true`), two model calls", &tool.beyond);
            table.row(row.with_floor("spawn", spawn.p50()));
        }
        commits(&world, &mut talk, sizes, table).await;
    }
}

struct TurnSamples {
    beyond: Sample,
    model: Sample,
    fsync: Sample,
}

async fn measure(
    world: &mut BenchWorld,
    talk: &mut BenchSession,
    model: BenchModel,
    turns: usize,
    floors: &mut Floors,
    text: &str,
) -> TurnSamples {
    let (mut whole, mut alone, mut fsync) = (Sample::default(), Sample::default(), Sample::default());
    while whole.len() < turns {
        fsync.extend(&floors.fsync(4));
        if model == BenchModel::Http {
            alone.extend(&world.mock_alone(3));
        }
        for _ in 0..STRIDE.min(turns - whole.len()) {
            whole.push(talk.turn(text).await);
        }
    }
    fsync.extend(&floors.fsync(4));
    let calls = if text.contains("[[tool:") { 2.0 } else { 1.0 };
    let own = if model == BenchModel::Http { alone.p50() * calls } else { 0.0 };
    TurnSamples { beyond: whole.less(own), model: alone, fsync }
}

/// Commits of a turn, counted in the log: a turn without tools waits for exactly two.
async fn commits(world: &BenchWorld, talk: &mut BenchSession, sizes: BenchSizes, table: &mut BenchTable) {
    let path = Wal::path(&world.lodge);
    let (mut turns, mut commits, mut pages, mut page_kb) = (0, 0, 0, 0.0);
    for _ in 0..10 {
        let before = Wal::read(&path);
        for _ in 0..COUNTED {
            talk.turn("count").await;
        }
        // A round in which the log started over is not counted.
        if let Some((before, after)) = before.zip(Wal::read(&path))
            && let Some((committed, written)) = after.since(&before)
        {
            turns += COUNTED;
            (commits, pages, page_kb) = (commits + committed, pages + written, after.page_kb);
        }
        if turns >= sizes.turns.min(50) {
            break;
        }
    }
    if turns == 0 {
        table.note("commits a turn: the log started over in every round, so they could not be counted");
        return;
    }
    let a_turn = commits as f64 / turns as f64;
    table.row(
        BenchRow::new("commits a turn without tools, counted in the log", "", a_turn)
            .hold(NumberBound::at_most("", 2.0)),
    );
    let kb = pages as f64 * page_kb / turns as f64;
    table.row(BenchRow::new(format!("  written by such a turn to the log, pages of {page_kb} KB"), "KB", kb));
}
