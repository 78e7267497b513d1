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

use crate::Sizes;
use crate::floor::Floors;
pub(crate) use crate::jobs::tools::Missing;
use crate::jobs::tools::Tools;
use crate::sample::Sample;
use crate::table::{Row, Table};

/// Small jobs that run at once, of everybody.
const WIDTH: usize = 4;
/// Those of this part that can be had alone.
pub(crate) const PARTS: [&str; 5] = ["submit", "width", "printing", "listed", "output"];

/// All parts when `jobs` is wanted, else those that are.
pub(crate) async fn run(
    wanted: impl Fn(&str) -> bool,
    sizes: Sizes,
    missing: Missing,
    floors: &mut Floors,
    table: &mut Table,
) {
    let wanted = |part: &str| wanted("jobs") || wanted(part);
    if !PARTS.into_iter().any(wanted) {
        return;
    }
    let tools = Tools::find(missing, table);
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
fn p99(table: &mut Table, sample: &Sample) {
    table.row(Row::new("    the 99th in a hundred", "ms", sample.p99()));
}
