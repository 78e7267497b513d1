//! How long a submission takes: until the client has its id.

use std::time::{Duration, Instant};

use crate::BenchSizes;
use crate::floor::Floors;
use crate::jobs::ours::LodgeJobs;
use crate::jobs::pueue::Pueue;
use crate::jobs::tools::PeerTools;
use crate::jobs::tsp::Tsp;
use crate::jobs::{WIDTH, p99};
use crate::proc;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};

/// Between two submissions, so that the job before has run: a submission is measured, and not a crowd.
const BETWEEN: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
struct SubmitSamples {
    ours_cli: Sample,
    ours_socket: Sample,
    pueue_cli: Sample,
    pueue_socket: Sample,
    tsp_cli: Sample,
    spawn: Sample,
    fsync: Sample,
}

/// All programs alternate, so that all see the same machine.
pub(crate) async fn run(sizes: BenchSizes, tools: &PeerTools, floors: &mut Floors, table: &mut BenchTable) {
    let width = WIDTH.to_string();
    let mut ours = LodgeJobs::start(&[("LODGED_MAX_JOBS", &width)]).await;
    let mut watcher = ours.watcher().await;
    let pueue = tools.pueue.as_ref().map(|tool| Pueue::start(tool, WIDTH));
    let tsp = tools.tsp.as_ref().map(|tool| Tsp::start(tool, WIDTH));
    let mut wire = pueue.as_ref().map(Pueue::connect);
    let mut samples = SubmitSamples::default();
    for _ in 0..sizes.submits {
        samples.fsync.extend(&floors.fsync(1));
        samples.spawn.extend(&floors.spawn(1));
        timed(&mut samples.ours_cli, || ours.submit_cli()).await;
        if let Some(tsp) = &tsp {
            timed(&mut samples.tsp_cli, || drop(tsp.ok(&["true"]))).await;
        }
        if let Some(pueue) = &pueue {
            timed(&mut samples.pueue_cli, || drop(pueue.ok(&["add", "--", "true"]))).await;
        }
        if let Some(wire) = &mut wire {
            timed(&mut samples.pueue_socket, || wire.add("true")).await;
        }
        let from = Instant::now();
        ours.submit("true", &[]).await;
        samples.ours_socket.push(from.elapsed());
        tokio::time::sleep(BETWEEN).await;
    }
    watcher.ended(2 * sizes.submits).await;
    rows(&samples, table);
    memory(&ours, pueue.as_ref(), tsp.as_ref(), table);
}

async fn timed(sample: &mut Sample, act: impl FnOnce()) {
    let from = Instant::now();
    act();
    sample.push(from.elapsed());
    tokio::time::sleep(BETWEEN).await;
}

fn rows(samples: &SubmitSamples, table: &mut BenchTable) {
    let (spawn, fsync) = (samples.spawn.p50(), samples.fsync.p50());
    table.row(BenchRow::times("floor: fdatasync, in turn with the submissions", &samples.fsync));
    table.row(BenchRow::times("floor: spawn and wait of `true`, in turn with them", &samples.spawn));
    let cli = BenchRow::times("job submitted through the CLI", &samples.ours_cli).with_floor("spawn", spawn);
    let fastest = [&samples.pueue_cli, &samples.tsp_cli].into_iter().filter(|sample| sample.len() > 0);
    let fastest = fastest.map(Sample::p50).reduce(f64::min);
    table.row(match fastest {
        // But for the flush that none of them waits for.
        Some(fastest) => cli.hold(NumberBound::at_most("fastest peer and an fsync", fastest + fsync)),
        None => cli,
    });
    p99(table, &samples.ours_cli);
    for (name, sample) in [("pueue", &samples.pueue_cli), ("task-spooler", &samples.tsp_cli)] {
        if sample.len() > 0 {
            table.row(
                BenchRow::times(format!("  {name}, which flushes nothing"), sample)
                    .with_floor("spawn", spawn),
            );
            p99(table, sample);
        }
    }
    let socket =
        BenchRow::times("job submitted through the socket", &samples.ours_socket).with_floor("fsync", fsync);
    table.row(socket.hold(NumberBound::at_most("1 fsync + 1 ms", fsync + 1.0)));
    p99(table, &samples.ours_socket);
    if samples.pueue_socket.len() > 0 {
        table.row(
            BenchRow::times("  pueue, which flushes nothing", &samples.pueue_socket)
                .with_floor("fsync", fsync),
        );
        p99(table, &samples.pueue_socket);
    }
    table.note("task-spooler: its CLI alone, as its socket speaks in the layout of one build");
}

/// Of the daemons alone, after the same jobs.
fn memory(ours: &LodgeJobs, pueue: Option<&Pueue>, tsp: Option<&Tsp>, table: &mut BenchTable) {
    let family = ours.world.family();
    let pids = [
        ("lodged", Some(family.daemon)),
        ("  the keeper of its agent", family.keepers.first().copied()),
        ("  pueued", pueue.map(Pueue::pid)),
        ("  task-spooler", tsp.and_then(Tsp::pid)),
    ];
    for (name, pid) in pids {
        if let Some(kb) = pid.and_then(proc::pss_kb) {
            table.row(BenchRow::new(
                format!("{name}: memory (PSS) after these jobs"),
                "MB",
                kb as f64 / 1024.0,
            ));
        }
    }
}
