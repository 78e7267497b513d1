//! What images add to the memory of a daemon that does nothing: when it has tools, and when it has talked to a registry.

use std::time::Duration;

use lodge_testkit::lodge::Lodge;

use crate::images::peers::Peers;
use crate::images::store;
use crate::proc;
use crate::table::{BenchRow, BenchTable};

/// For what is released later.
const SETTLE: Duration = Duration::from_secs(2);

pub(crate) fn run(peers: &Peers, table: &mut BenchTable) {
    let archive = match store::stock_archive() {
        Ok(archive) => archive,
        Err(why) => return table.not_run("the memory that images take", &why),
    };
    let import = ["-q".as_ref(), "image".as_ref(), "import".as_ref(), "--yes".as_ref(), archive.as_os_str()];
    let lodge = store::daemon();
    let Some(before) = memory(&lodge) else {
        return table.note("the memory that images take: the kernel does not tell it");
    };
    lodge.cli_ok(import);
    let with_tools = memory(&lodge);
    let what = "idle memory (PSS): daemon that never had an image";
    table.row(BenchRow::new(what, "MB", before));
    if let Some(mb) = with_tools {
        table.row(BenchRow::new("  with the stock set imported", "MB", mb).with_floor("before", before));
    }
    let Some(registry) = peers.registry() else {
        return table.not_run("the memory after a pull", "there is no registry");
    };
    let there = format!("{}/stock/busybox:v1", registry.host);
    let other = store::daemon();
    other.cli_ok(import);
    other.cli_ok(["-q", "bin", "push", "stock/busybox", &there]);
    // It would share the pages of their program.
    drop(other);
    lodge.cli_ok(["-q", "bin", "rm", "stock/busybox"]);
    lodge.cli_ok(["-q", "bin", "pull", &there]);
    if let Some(mb) = memory(&lodge) {
        table.row(
            BenchRow::new("  and with a tool pulled from a registry", "MB", mb).with_floor("before", before),
        );
    }
    if let Some(kb) = lodge.pid().and_then(proc::anonymous_kb) {
        table.row(BenchRow::new("    of which its own", "MB", kb as f64 / 1024.0));
    }
}

/// In MB, once it has settled.
fn memory(lodge: &Lodge) -> Option<f64> {
    std::thread::sleep(SETTLE);
    Some(proc::pss_kb(lodge.pid()?)? as f64 / 1024.0)
}
