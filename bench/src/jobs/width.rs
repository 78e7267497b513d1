//! Many small jobs, four at once: from the first submission until the last has ended.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use lodge_proto::client::Client;
use serde_json::json;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::jobs::WIDTH;
use crate::jobs::ours::{LodgeJobs, submit};
use crate::jobs::pueue::Pueue;
use crate::jobs::tools::PeerTools;
use crate::jobs::tsp::Tsp;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};

/// Of what spawning alone reaches.
const SHARE_MIN: f64 = 0.45;
/// Parallel submissions through the socket: each waits until it is on disk, and they share commits.
const SUBMITTERS: usize = 8;
/// Between two looks at a peer that can only be asked.
const LOOK: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) async fn run(sizes: BenchSizes, tools: &PeerTools, floors: &mut Floors, table: &mut BenchTable) {
    let (mut raw, mut socket, mut cli, mut tsp) =
        (Sample::default(), Sample::default(), Sample::default(), Sample::default());
    let (mut cpu, mut fsync) = (Sample::default(), Sample::default());
    let width = WIDTH.to_string();
    for _ in 0..sizes.width_rounds {
        let mut ours = LodgeJobs::start(&[("LODGED_MAX_JOBS", &width)]).await;
        fsync.extend(&floors.fsync(20));
        raw.push_ms(raw_spawns(sizes.width_jobs));
        let (rate, cpu_ms) = through_socket(&mut ours, sizes.width_jobs).await;
        socket.push_ms(rate);
        cpu.push_ms(cpu_ms);
        raw.push_ms(raw_spawns(sizes.width_jobs));
        cli.push_ms(through_cli(&ours, sizes.width_jobs).await);
        if let Some(tool) = &tools.tsp {
            tsp.push_ms(of_tsp(&Tsp::start(tool, WIDTH), sizes.width_jobs));
        }
    }
    let n = sizes.width_jobs;
    table.row(BenchRow::rounds(format!("floor: `true` spawned, {n} of them, {WIDTH} at once"), "/s", &raw));
    let what = format!("jobs a second, {n} of `true`, {WIDTH} at once, through the socket");
    let hold = NumberBound::at_least("0.45 of spawning alone", SHARE_MIN * raw.p50());
    table.row(BenchRow::rounds(what, "/s", &socket).with_floor("raw spawn", raw.p50()).hold(hold));
    table.row(BenchRow::rounds("  CPU a job, daemon and keeper", "ms", &cpu));
    table.row(BenchRow::times("  fdatasync then", &fsync));
    let row = BenchRow::rounds("  through the CLI, one submission after another", "/s", &cli);
    table.row(row.with_floor("raw spawn", raw.p50()));
    if tsp.len() > 0 {
        let row = BenchRow::rounds("  task-spooler through its CLI, one after another", "/s", &tsp);
        table.row(row.with_floor("raw spawn", raw.p50()));
    }
    if let Some(tool) = &tools.pueue {
        let rate = of_pueue(&Pueue::start(tool, WIDTH), n);
        table.row(
            BenchRow::new("  pueue through its socket, once", "/s", rate).with_floor("raw spawn", raw.p50()),
        );
    }
}

/// What the machine reaches: four threads that spawn and wait.
fn raw_spawns(count: usize) -> f64 {
    let begun = AtomicUsize::new(0);
    let from = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..WIDTH {
            scope.spawn(|| {
                while begun.fetch_add(1, Ordering::Relaxed) < count {
                    let mut command = Command::new("true");
                    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
                    assert!(status.expect("`true` runs").success(), "`true` is false here");
                }
            });
        }
    });
    count as f64 / from.elapsed().as_secs_f64()
}

/// Jobs a second, and the CPU of each.
async fn through_socket(ours: &mut LodgeJobs, count: usize) -> (f64, f64) {
    let mut watcher = ours.watcher().await;
    let mut clients = Vec::new();
    for _ in 0..SUBMITTERS {
        clients.push(ours.world.lodge.client().await);
    }
    let family = ours.world.family();
    let left = std::cell::Cell::new(count);
    let submitter = async |mut client: Client| {
        while left.get() > 0 {
            left.set(left.get() - 1);
            submit(&mut client, json!({"agent": ours.agent, "bin": "true"})).await;
        }
    };
    let (from, cpu_from) = (Instant::now(), family.cpu_ms());
    join(join_all(clients.into_iter().map(submitter)), watcher.ended(count)).await;
    let took = from.elapsed().as_secs_f64();
    (count as f64 / took, (family.cpu_ms() - cpu_from) / count as f64)
}

async fn through_cli(ours: &LodgeJobs, count: usize) -> f64 {
    let mut watcher = ours.watcher().await;
    let from = Instant::now();
    // The watcher's connection is not read meanwhile; its events wait in the store.
    (0..count).for_each(|_| ours.submit_cli());
    watcher.ended(count).await;
    count as f64 / from.elapsed().as_secs_f64()
}

fn of_tsp(tsp: &Tsp, count: usize) -> f64 {
    let from = Instant::now();
    for _ in 0..count {
        tsp.ok(&["true"]);
    }
    wait("task-spooler", from, || tsp.finished() >= count);
    count as f64 / from.elapsed().as_secs_f64()
}

fn of_pueue(pueue: &Pueue, count: usize) -> f64 {
    let mut wire = pueue.connect();
    let from = Instant::now();
    for _ in 0..count {
        wire.add("true");
    }
    wait("pueue", from, || wire.finished() >= count);
    count as f64 / from.elapsed().as_secs_f64()
}

fn wait(who: &str, from: Instant, mut is_done: impl FnMut() -> bool) {
    while !is_done() {
        assert!(from.elapsed() < PATIENCE, "{who} did not do its jobs within {} s", PATIENCE.as_secs());
        std::thread::sleep(LOOK);
    }
}
