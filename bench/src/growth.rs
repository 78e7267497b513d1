//! Whether an old session costs more than a young one, and what a turn writes.
//!
//! Two daemons on two state directories take turns, so that a disk that changes its mind changes both.

use crate::BenchSizes;
use crate::floor::Floors;
use crate::proc;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::wal::Wal;
use crate::world::{BenchModel, BenchSession, BenchWorld};

/// The window around turn 10.
const YOUNG: std::ops::RangeInclusive<usize> = 5..=15;
const RATIO_MAX: f64 = 1.2;
const BYTES_A_TURN_MAX: f64 = 64.0;
const WAL_MAX_MB: f64 = 48.0;
const MB: f64 = 1024.0 * 1024.0;

const TEXT: &str = "a message of the usual length, give or take a word or two";

pub(crate) async fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let (old, young) = (BenchWorld::start().await, BenchWorld::start().await);
    let (old_agent, young_agent) =
        (old.agent("old", BenchModel::Http).await, young.agent("young", BenchModel::Http).await);
    let mut talk = old.talk(&old_agent, "old").await;
    let window = YOUNG.end() - YOUNG.start() + 1;
    let until = sizes.old_turns.saturating_sub(sizes.young_sessions * window / 2);
    let aging = age(&old, &mut talk, until).await;

    let (mut aged, mut fresh, mut fsync) = (Sample::default(), Sample::default(), Sample::default());
    let (mut aged_log, mut fresh_log) = (WalGrowth::default(), WalGrowth::default());
    for session in 0..sizes.young_sessions {
        let mut youth = young.talk(&young_agent, &format!("young-{session}")).await;
        fsync.extend(&floors.fsync(10));
        for number in 1..=*YOUNG.end() {
            let log = Wal::read(&Wal::path(&young.lodge));
            let took = youth.turn(TEXT).await;
            if YOUNG.contains(&number) {
                fresh.push(took);
                fresh_log.add(log, &young);
                let log = Wal::read(&Wal::path(&old.lodge));
                aged.push(talk.turn(TEXT).await);
                aged_log.add(log, &old);
            }
        }
    }
    table.row(
        BenchRow::times("whole turn around turn 10, model over HTTP", &fresh)
            .with_floor("fsync", fsync.p50()),
    );
    let what = format!("whole turn around turn {}", sizes.old_turns);
    table.row(BenchRow::times(what, &aged).with_floor("fsync", fsync.p50()));
    let ratio = BenchRow::new("  the later beside the earlier", "x", aged.p50() / fresh.p50());
    table.row(ratio.hold(NumberBound::at_most("", RATIO_MAX)));
    written(&aging, table);
    logged(&fresh_log, &aged_log, sizes, table);
    let wal = BenchRow::new("  largest write-ahead log seen", "MB", aging.log_bytes_max as f64 / MB);
    table.row(wal.hold(NumberBound::at_most("", WAL_MAX_MB)));
}

/// What a session wrote while it grew.
#[derive(Debug)]
struct SessionGrowth {
    /// By the daemon, in KB a turn: over all turns, their first tenth and their last.
    kb: Option<[f64; 3]>,
    log_bytes_max: u64,
}

async fn age(world: &BenchWorld, talk: &mut BenchSession, turns: usize) -> SessionGrowth {
    let daemon = world.lodge.pid().expect("a running daemon");
    let tenth = (turns / 10).max(1);
    let mut log_bytes_max = 0;
    let mut marks = vec![proc::written(daemon)];
    for number in 1..=turns {
        talk.turn(TEXT).await;
        log_bytes_max = log_bytes_max.max(Wal::bytes(&world.lodge));
        if number == tenth || number + tenth == turns || number == turns {
            marks.push(proc::written(daemon));
        }
    }
    let marks: Option<Vec<u64>> = marks.into_iter().collect();
    let kb = marks.as_deref().and_then(|marks| {
        let [start, early, late, end] = marks else { return None };
        let each = |from: u64, to: u64, turns: usize| (to - from) as f64 / 1024.0 / turns as f64;
        Some([each(*start, *end, turns), each(*start, *early, tenth), each(*late, *end, tenth)])
    });
    SessionGrowth { kb, log_bytes_max }
}

fn written(aging: &SessionGrowth, table: &mut BenchTable) {
    let Some([all, early, late]) = aging.kb else {
        return table.note("bytes written a turn: only root may read them");
    };
    let hold = || NumberBound::at_most("", BYTES_A_TURN_MAX);
    table.row(BenchRow::new("  written a turn by the daemon, log and copying back", "KB", all).hold(hold()));
    table.row(BenchRow::new("    of the first tenth of these turns", "KB", early).hold(hold()));
    table.row(BenchRow::new("    of the last tenth", "KB", late).with_floor("first", early).hold(hold()));
}

/// What turns added to the log, as far as it did not start over meanwhile.
#[derive(Debug, Default)]
struct WalGrowth {
    turns: usize,
    kb: f64,
}

impl WalGrowth {
    fn add(&mut self, before: Option<Wal>, world: &BenchWorld) {
        if let Some((before, after)) = before.zip(Wal::read(&Wal::path(&world.lodge)))
            && let Some((_, pages)) = after.since(&before)
        {
            self.turns += 1;
            self.kb += pages as f64 * after.page_kb;
        }
    }
}

fn logged(fresh: &WalGrowth, aged: &WalGrowth, sizes: BenchSizes, table: &mut BenchTable) {
    if fresh.turns == 0 || aged.turns == 0 {
        return table.note("written to the log a turn: it started over during every turn");
    }
    let (fresh, aged) = (fresh.kb / fresh.turns as f64, aged.kb / aged.turns as f64);
    let hold = || NumberBound::at_most("", BYTES_A_TURN_MAX);
    table.row(BenchRow::new("  written to the log around turn 10", "KB", fresh).hold(hold()));
    let what = format!("  written to the log around turn {}", sizes.old_turns);
    table.row(BenchRow::new(what, "KB", aged).with_floor("turn 10", fresh).hold(hold()));
}
