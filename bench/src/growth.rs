//! Whether an old session costs more than a young one, and what a turn writes.
//!
//! Two daemons on two state directories take turns, so that a disk that changes its mind changes both.

use crate::Sizes;
use crate::floor::Floors;
use crate::proc;
use crate::sample::Sample;
use crate::table::{Hold, Row, Table};
use crate::wal::Wal;
use crate::world::{Model, World};

/// The window around turn 10.
const YOUNG: std::ops::RangeInclusive<usize> = 5..=15;
const RATIO_MAX: f64 = 1.2;
const BYTES_A_TURN_MAX: f64 = 64.0;
const WAL_MAX_MB: f64 = 48.0;
const MB: f64 = 1024.0 * 1024.0;

pub(crate) async fn run(sizes: Sizes, floors: &mut Floors, table: &mut Table) {
    let (old, young) = (World::start().await, World::start().await);
    let (old_agent, young_agent) =
        (old.agent("old", Model::Http).await, young.agent("young", Model::Http).await);
    let mut talk = old.talk(&old_agent, "old").await;
    let daemon = old.lodge.pid().expect("a running daemon");
    let window = YOUNG.end() - YOUNG.start() + 1;
    let mut wal_bytes = 0;
    let before = proc::written(daemon);
    let until = sizes.old_turns.saturating_sub(sizes.young_sessions * window / 2);
    for _ in 0..until {
        talk.turn("a message of the usual length, give or take a word or two").await;
        wal_bytes = wal_bytes.max(Wal::bytes(&old.lodge));
    }
    let after = proc::written(daemon);

    let (mut aged, mut fresh, mut fsync) = (Sample::default(), Sample::default(), Sample::default());
    for session in 0..sizes.young_sessions {
        let mut youth = young.talk(&young_agent, &format!("young-{session}")).await;
        fsync.extend(&floors.fsync(10));
        for number in 1..=*YOUNG.end() {
            let took = youth.turn("a message of the usual length, give or take a word or two").await;
            if YOUNG.contains(&number) {
                fresh.push(took);
                aged.push(talk.turn("a message of the usual length, give or take a word or two").await);
            }
        }
    }
    table.row(Row::times("whole turn around turn 10, model over HTTP", &fresh).beside("fsync", fsync.p50()));
    let what = format!("whole turn around turn {}", sizes.old_turns);
    table.row(Row::times(what, &aged).beside("fsync", fsync.p50()));
    let ratio = Row::new("  the later beside the earlier", "x", aged.p50() / fresh.p50());
    table.row(ratio.hold(Hold::at_most("", RATIO_MAX)));
    match before.zip(after) {
        Some((before, after)) => {
            let kb = (after - before) as f64 / 1024.0 / until.max(1) as f64;
            let row = Row::new("  written a turn by the daemon, log and copying back", "KB", kb);
            table.row(row.hold(Hold::at_most("", BYTES_A_TURN_MAX)));
        }
        None => table.note("bytes written a turn: only root may read them"),
    }
    let wal = Row::new("  largest write-ahead log seen", "MB", wal_bytes as f64 / MB);
    table.row(wal.hold(Hold::at_most("", WAL_MAX_MB)));
}
