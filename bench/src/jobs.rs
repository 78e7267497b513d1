//! Jobs beside other task daemons, in the same run: submitting, many small ones, much output, many that print, long lists.
//!
//! Every peer has a directory of its own and is ended with its measurement. One that is not there is NOT RUN.

mod listed;
mod ours;
mod output;
mod printing;
mod pueue;
mod submit;
mod tools;
mod tsp;
mod width;

use crate::BenchSizes;
use crate::floor::Floors;
pub(crate) use crate::jobs::tools::MissingPeer;
use crate::jobs::tools::PeerTools;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable};

/// Small jobs that run in parallel, in every program.
const WIDTH: usize = 4;
/// The parts that can run separately.
pub(crate) const PARTS: [&str; 5] = ["submit", "width", "printing", "listed", "output"];

/// All parts when `jobs` is wanted, else those that are.
pub(crate) async fn run(
    wanted: impl Fn(&str) -> bool,
    sizes: BenchSizes,
    missing: MissingPeer,
    floors: &mut Floors,
    table: &mut BenchTable,
) {
    let wanted = |part: &str| wanted("jobs") || wanted(part);
    if !PARTS.into_iter().any(wanted) {
        return;
    }
    let tools = PeerTools::find(missing, table);
    if wanted("submit") {
        submit::run(sizes, &tools, floors, table).await;
    }
    if wanted("width") {
        width::run(sizes, &tools, floors, table).await;
    }
    if wanted("printing") {
        printing::run(sizes, &tools, floors, table).await;
    }
    if wanted("listed") {
        listed::run(sizes, &tools, floors, table).await;
    }
    // Last, as the disk is busy with it for a while afterwards.
    if wanted("output") {
        output::run(sizes, &tools, floors, table).await;
    }
}

/// The line under a row of durations.
fn p99(table: &mut BenchTable, sample: &Sample) {
    table.row(BenchRow::new("    the 99th in a hundred", "ms", sample.p99()));
}
