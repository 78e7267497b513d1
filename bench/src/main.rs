//! lodge-bench: every number Lodge claims, measured beside the floor of the same machine in the same run.
//!
//! Owns: the order of the parts and their sizes. Never: an opinion about time in `--quick`, which only shows that
//! every part still runs.

mod commits;
mod fill;
mod floor;
mod growth;
mod images;
mod jobs;
mod ledger;
mod many;
mod memory;
mod network;
mod parallel;
mod previous;
mod proc;
mod reads;
mod recovery;
mod revival;
mod sample;
mod sessions;
mod start;
mod table;
mod turns;
mod wal;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::floor::Floors;
use crate::jobs::MissingPeer;
use crate::table::BenchTable;

/// Measures Lodge's claims on this machine, each beside the floor of the same run.
#[derive(Debug, Parser)]
#[command(name = "lodge-bench")]
struct BenchFlags {
    /// A smoke run of a few seconds: everything runs, and nothing is asserted about time.
    #[arg(long)]
    quick: bool,
    /// Also write the rows as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where state directories and the floor's files are made; the disk under it is what is measured.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Agents that live at once for memory, idle CPU and recovery, which is also measured with twice as many.
    #[arg(long, value_name = "N")]
    agents: Option<usize>,
    /// Only these parts: start, turns, growth, ledger, parallel, reads, commits, agents, stored, revival, sessions, many, working, previous,
    /// network, jobs, images; of jobs also submit, width, printing, listed, output; of images also transfer, layers, packing, stock, catalog,
    /// footprint.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
}

/// How much of everything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BenchSizes {
    pub(crate) starts: usize,
    pub(crate) filled_starts: usize,
    pub(crate) filled_agents: u32,
    pub(crate) filled_events: u32,
    pub(crate) turns: usize,
    pub(crate) tool_turns: usize,
    pub(crate) old_turns: usize,
    pub(crate) young_sessions: usize,
    pub(crate) ledger_turns: usize,
    pub(crate) parallel_rounds: usize,
    pub(crate) parallel_turns: usize,
    pub(crate) read_history: usize,
    pub(crate) read_turns: usize,
    pub(crate) commit_rounds: usize,
    pub(crate) commit_pairs: usize,
    pub(crate) agents: usize,
    pub(crate) agent_turns: usize,
    pub(crate) idle_s: u64,
    pub(crate) recoveries: usize,
    pub(crate) stored_agents: u32,
    pub(crate) revivals: usize,
    pub(crate) many: usize,
    pub(crate) working: usize,
    pub(crate) working_rounds: usize,
    pub(crate) working_turns: usize,
    pub(crate) beside_starts: usize,
    pub(crate) beside_agents: usize,
    pub(crate) beside_turns: usize,
    pub(crate) network_rounds: usize,
    pub(crate) network_connects: usize,
    pub(crate) network_mb: usize,
    pub(crate) network_agents: usize,
    pub(crate) submits: usize,
    pub(crate) width_rounds: usize,
    pub(crate) width_jobs: usize,
    pub(crate) output_rounds: usize,
    pub(crate) output_mb: u64,
    pub(crate) printers: usize,
    pub(crate) printing_commits: usize,
    pub(crate) listed_jobs: usize,
    pub(crate) list_rounds: usize,
    pub(crate) tsp_listed: usize,
    pub(crate) image_mb: usize,
    pub(crate) image_rounds: usize,
    /// Contexts, and as many files.
    pub(crate) image_layers: usize,
    pub(crate) layer_rounds: usize,
    pub(crate) pack_rounds: usize,
    pub(crate) pack_contexts: usize,
    pub(crate) pack_mb: usize,
    pub(crate) stock_daemons: usize,
    pub(crate) stock_starts: usize,
    pub(crate) images: usize,
    pub(crate) bins: usize,
    pub(crate) removals: usize,
    pub(crate) collect_commits: usize,
}

const FULL: BenchSizes = BenchSizes {
    starts: 15,
    filled_starts: 7,
    filled_agents: 10_000,
    filled_events: 1_000_000,
    turns: 300,
    tool_turns: 100,
    old_turns: 1_000,
    young_sessions: 6,
    ledger_turns: 200,
    parallel_rounds: 5,
    parallel_turns: 40,
    read_history: 12,
    read_turns: 80,
    commit_rounds: 5,
    commit_pairs: 40,
    agents: 100,
    agent_turns: 20,
    idle_s: 10,
    recoveries: 5,
    stored_agents: 1_000,
    revivals: 15,
    many: 1_000,
    working: 100,
    working_rounds: 5,
    working_turns: 10,
    beside_starts: 40,
    beside_agents: 30,
    beside_turns: 300,
    network_rounds: 5,
    network_connects: 300,
    network_mb: 512,
    network_agents: 20,
    submits: 100,
    width_rounds: 3,
    width_jobs: 1_000,
    output_rounds: 3,
    output_mb: 1_000,
    printers: 100,
    printing_commits: 500,
    listed_jobs: 100_000,
    list_rounds: 20,
    tsp_listed: 1_000,
    image_mb: 256,
    image_rounds: 5,
    image_layers: 100,
    layer_rounds: 10,
    pack_rounds: 10,
    pack_contexts: 100,
    pack_mb: 16,
    stock_daemons: 5,
    stock_starts: 10,
    images: 10_000,
    bins: 1_000,
    removals: 10,
    collect_commits: 300,
};

const QUICK: BenchSizes = BenchSizes {
    starts: 2,
    filled_starts: 1,
    filled_agents: 50,
    filled_events: 5_000,
    turns: 10,
    tool_turns: 3,
    old_turns: 20,
    young_sessions: 1,
    ledger_turns: 10,
    parallel_rounds: 1,
    parallel_turns: 2,
    read_history: 1,
    read_turns: 2,
    commit_rounds: 1,
    commit_pairs: 2,
    agents: 4,
    agent_turns: 2,
    idle_s: 1,
    recoveries: 1,
    stored_agents: 30,
    revivals: 2,
    many: 10,
    working: 12,
    working_rounds: 1,
    working_turns: 1,
    beside_starts: 2,
    beside_agents: 2,
    beside_turns: 3,
    network_rounds: 1,
    network_connects: 5,
    network_mb: 4,
    network_agents: 1,
    submits: 2,
    width_rounds: 1,
    width_jobs: 8,
    output_rounds: 1,
    output_mb: 8,
    printers: 4,
    printing_commits: 5,
    listed_jobs: 200,
    list_rounds: 1,
    tsp_listed: 4,
    image_mb: 1,
    image_rounds: 1,
    image_layers: 3,
    layer_rounds: 1,
    pack_rounds: 1,
    pack_contexts: 3,
    pack_mb: 1,
    stock_daemons: 1,
    stock_starts: 1,
    images: 20,
    bins: 4,
    removals: 2,
    collect_commits: 3,
};

const PARTS: [&str; 17] = [
    "start", "turns", "growth", "ledger", "parallel", "reads", "commits", "agents", "stored", "revival",
    "sessions", "many", "working", "previous", "network", "jobs", "images",
];

fn main() -> ExitCode {
    let flags = BenchFlags::parse();
    let parts = [&PARTS[..], &jobs::PARTS, &images::PARTS].concat();
    if let Some(unknown) = flags.only.iter().find(|part| !parts.contains(&part.as_str())) {
        eprintln!("error: there is no part `{unknown}`\n\nhint: the parts are {}", parts.join(", "));
        return ExitCode::from(2);
    }
    if let Some(dir) = &flags.dir {
        // Set once, before anything makes a directory.
        drop(tempfile::env::override_temp_dir(dir));
    }
    let mut sizes = if flags.quick { QUICK } else { FULL };
    sizes.agents = flags.agents.unwrap_or(sizes.agents).max(1);
    // The daemons end with the thread that started them, so everything runs on this one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let wanted = |part: &str| flags.only.is_empty() || flags.only.iter().any(|only| only == part);
    let mut floors = Floors::new();
    let mut table = BenchTable::new(floors.dir(), flags.quick);
    table.floors(&floors.measure_all(if flags.quick { 20 } else { 200 }));
    runtime.block_on(async {
        if wanted("start") {
            start::run(sizes, &mut floors, &mut table);
        }
        if wanted("turns") {
            turns::run(sizes, &mut floors, &mut table).await;
        }
        if wanted("growth") {
            growth::run(sizes, &mut floors, &mut table).await;
        }
        if wanted("ledger") {
            ledger::run(sizes, &mut floors, &mut table).await;
        }
        if wanted("parallel") {
            parallel::run(sizes, &mut floors, &mut table).await;
        }
        if wanted("reads") {
            reads::run(sizes, &mut table).await;
        }
        if wanted("commits") {
            commits::run(sizes, &mut floors, &mut table).await;
        }
        if wanted("agents") {
            let mut world = memory::run(sizes, &mut table).await;
            recovery::run(sizes, &mut floors, &mut world, &mut table).await;
        }
        if wanted("stored") {
            recovery::run_stored(sizes, &mut floors, &mut table).await;
        }
        if wanted("revival") {
            revival::run(sizes, &mut floors, &mut table).await;
        }
        if wanted("sessions") {
            sessions::run(sizes, &mut floors, &mut table).await;
        }
        if wanted("many") {
            many::idle(sizes, &mut floors, &mut table).await;
        }
        if wanted("working") {
            many::working(sizes, &mut floors, &mut table).await;
        }
        if wanted("previous") {
            previous::run(sizes, &mut table).await;
        }
        if wanted("network") {
            network::run(sizes, &mut table).await;
        }
        let missing = if flags.quick { MissingPeer::Leave } else { MissingPeer::Install };
        jobs::run(wanted, sizes, missing, &mut floors, &mut table).await;
        images::run(wanted, sizes, &mut floors, &mut table).await;
    });
    table.end();
    if let Some(path) = &flags.json
        && let Err(error) = std::fs::write(path, table.json().to_string())
    {
        eprintln!("error: could not write {}\n  because: {error}", path.display());
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
