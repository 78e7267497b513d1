//! Images: moved beside skopeo and a registry on the same machine, packed beside plain writes, run beside tools of the host,
//! and many of them in one store.
//!
//! Every round has the disk to itself: what earlier rounds wrote is flushed before a clock starts.

mod catalog;
mod footprint;
mod layers;
mod packing;
mod peers;
mod plain;
pub(crate) mod stock;
mod store;
mod transfer;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::images::peers::Peers;
use crate::table::BenchTable;

/// The parts that can run separately.
pub(crate) const PARTS: [&str; 6] = ["transfer", "layers", "packing", "stock", "catalog", "footprint"];

/// All parts when `images` is wanted, else those that are.
pub(crate) async fn run(
    wanted: impl Fn(&str) -> bool,
    sizes: BenchSizes,
    floors: &mut Floors,
    table: &mut BenchTable,
) {
    let wanted = |part: &str| wanted("images") || wanted(part);
    if !PARTS.into_iter().any(wanted) {
        return;
    }
    let peers = Peers::find(table);
    if wanted("packing") {
        packing::run(sizes, floors, table);
    }
    if wanted("layers") {
        layers::run(sizes, &peers, table);
    }
    if wanted("stock") {
        stock::run(sizes, floors, table).await;
    }
    if wanted("footprint") {
        footprint::run(&peers, table);
    }
    if wanted("catalog") {
        catalog::run(sizes, floors, table).await;
    }
    // Last, as the disk is busy with it for a while afterwards.
    if wanted("transfer") {
        transfer::run(sizes, &peers, table);
    }
}
