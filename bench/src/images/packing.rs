//! An agent's directory packed as an image: first, and again when nothing changed.

use crate::BenchSizes;
use crate::floor::Floors;
use crate::images::layers::agent;
use crate::images::{plain, store};
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable};

const FILE_BYTES: usize = 1024 * 1024;

pub(crate) fn run(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let lodge = store::daemon();
    let (mut first, mut again) = (Sample::default(), Sample::default());
    let (mut hash, mut floor, mut spawn) = (Sample::default(), Sample::default(), Sample::default());
    for round in 0..sizes.pack_rounds {
        // Other contents each time, so that nothing of them is there.
        let name = format!("packed{round}");
        let (dir, parts) =
            agent(&lodge, &name, sizes.pack_contexts, (sizes.pack_mb, FILE_BYTES), round as u64 + 1);
        let pieces = || parts.iter().map(Vec::as_slice);
        let hashed = plain::hashed(pieces());
        hash.push(hashed);
        floor.push(hashed + plain::written(pieces()));
        spawn.extend(&floors.spawn(1));
        plain::flushed();
        let args = ["-q".as_ref(), "image".as_ref(), "build".as_ref(), dir.as_os_str()];
        first.push(store::timed(&lodge, args));
        plain::flushed();
        again.push(store::timed(&lodge, args));
    }
    let what = format!("image of {} contexts and {} MB of files built", sizes.pack_contexts, sizes.pack_mb);
    table.row(BenchRow::times("floor: the same bytes hashed once", &hash));
    table.row(BenchRow::times("floor: hashed once, written once, each file flushed", &floor));
    table.row(BenchRow::times("floor: spawn and wait of `true`, in turn with the builds", &spawn));
    table.row(BenchRow::times(what, &first).with_floor("hash + write", floor.p50()));
    table.row(BenchRow::times("  again, when nothing changed", &again).with_floor("hash", hash.p50()));
}
