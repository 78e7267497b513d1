//! A hundred jobs that print all the time, and what a change of state costs meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use lodge_testkit::lodge::PATIENCE;
use serde_json::json;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::jobs::ours::{LodgeJobs, cancel};
use crate::jobs::output::WalWatch;
use crate::jobs::p99;
use crate::jobs::pueue::Pueue;
use crate::jobs::tools::PeerTools;
use crate::jobs::tsp::Tsp;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};
use crate::world::BenchTalker;

/// Flushes that the slowest commit in a hundred may take.
const FSYNCS_MAX: f64 = 3.0;
/// One of the host's own programs that prints at a pace without spending the machine on it.
const PERL: &str = "/usr/bin/perl";
/// A kilobyte fifty times a second, for this many seconds.
const PACE: &str = r#"$|=1; for (1..50*shift) { print "x" x 1023, "\n"; select(undef, undef, undef, 0.02) }"#;
/// Also of a measurement on a slow disk; those that still print then are ended.
const PRINTS_S: &str = "120";
/// Until all of them print.
const WARM_UP: Duration = Duration::from_secs(1);
/// How long their CPU is looked at before anything is committed.
const PRINTING_FOR: Duration = Duration::from_secs(3);

pub(crate) fn has_perl() -> bool {
    Path::new(PERL).is_file()
}

pub(crate) async fn run(sizes: BenchSizes, tools: &PeerTools, floors: &mut Floors, table: &mut BenchTable) {
    if !has_perl() {
        table.not_run("jobs that print at a pace", "there is no perl here");
        return;
    }
    of_ours(sizes, floors, table).await;
    let n = sizes.printers;
    if let Some(tool) = &tools.pueue {
        let pueue = Pueue::start(tool, 2 * n);
        let line = format!("exec {PERL} -e '{PACE}' {PRINTS_S}");
        let mut wire = pueue.connect();
        (0..n).for_each(|_| wire.add(&line));
        let sample = peer(sizes, floors, || wire.add("true")).await;
        peer_rows("pueue: submission through its socket meanwhile", &sample, table);
    }
    if let Some(tool) = &tools.tsp {
        let tsp = Tsp::start(tool, 2 * n);
        (0..n).for_each(|_| drop(tsp.ok(&[PERL, "-e", PACE, PRINTS_S])));
        let sample = peer(sizes, floors, || drop(tsp.ok(&["true"]))).await;
        peer_rows("task-spooler: submission through its CLI meanwhile", &sample, table);
    }
}

async fn of_ours(sizes: BenchSizes, floors: &mut Floors, table: &mut BenchTable) {
    let n = sizes.printers;
    let slots = (2 * n).to_string();
    let mut ours = LodgeJobs::start(&[("LODGED_MAX_JOBS", &slots)]).await;
    let logs = WalWatch::watched(&ours.world.lodge.home());
    let mut talker = BenchTalker::of(&ours.world, &ours.agent).await;
    let (quiet_fsync, quiet) = commits(sizes, floors, &mut talker).await;
    let mut jobs = Vec::new();
    for _ in 0..n {
        jobs.push(ours.submit("perl", &["-e", PACE, PRINTS_S]).await);
    }
    running(&mut ours, n).await;
    tokio::time::sleep(WARM_UP).await;
    let cpu = cpu_of_printing(&ours).await;
    let (fsync, commit) = commits(sizes, floors, &mut talker).await;
    let printed = printed(&mut ours, &jobs).await;
    for job in &jobs {
        cancel(&mut ours.client, job).await;
    }
    table.row(BenchRow::times("floor: fdatasync while nothing prints", &quiet_fsync));
    p99(table, &quiet_fsync);
    table.row(
        BenchRow::times("state commit while nothing prints", &quiet).with_floor("fsync", quiet_fsync.p50()),
    );
    p99(table, &quiet);
    table.row(BenchRow::times(format!("floor: fdatasync while {n} jobs print"), &fsync));
    p99(table, &fsync);
    let what = format!("state commit while {n} jobs print");
    table.row(BenchRow::times(what, &commit).with_floor("fsync", fsync.p50()));
    let row =
        BenchRow::new("  the 99th in a hundred", "ms", commit.p99()).with_floor("its fsync", fsync.p99());
    table.row(row.hold(NumberBound::at_most("3 times fsync's 99th", FSYNCS_MAX * fsync.p99())));
    table.row(BenchRow::new("  CPU of daemon and keeper before that, of one core", "%", cpu));
    table.row(BenchRow::new("  printed by all of them, when they were ended", "MB", printed as f64 / 1e6));
    logs.rows(table);
}

/// CPU of daemon and keeper without other requests, in hundredths of a core.
async fn cpu_of_printing(ours: &LodgeJobs) -> f64 {
    let family = ours.world.family();
    let (from, cpu_from) = (Instant::now(), family.cpu_ms());
    tokio::time::sleep(PRINTING_FOR).await;
    (family.cpu_ms() - cpu_from) / from.elapsed().as_secs_f64() / 10.0
}

/// Flushes and durable changes, in turn.
async fn commits(sizes: BenchSizes, floors: &mut Floors, talker: &mut BenchTalker) -> (Sample, Sample) {
    let (mut fsync, mut commit) = (Sample::default(), Sample::default());
    for _ in 0..sizes.printing_commits {
        fsync.extend(&floors.fsync(1));
        commit.push(talker.commit().await);
    }
    (fsync, commit)
}

/// Waits until this many run.
async fn running(ours: &mut LodgeJobs, count: usize) {
    let end = Instant::now() + PATIENCE;
    loop {
        let page = json!({"agent": ours.agent, "status": "running", "limit": count});
        let page = ours.client.call_value("job/list", page).await.expect("a page");
        if page["jobs"].as_array().is_some_and(|jobs| jobs.len() >= count) {
            return;
        }
        assert!(Instant::now() < end, "not all of them run: {}", ours.world.lodge.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn printed(ours: &mut LodgeJobs, jobs: &[String]) -> u64 {
    let mut bytes = 0;
    for job in jobs {
        let seen = ours.client.call_value("job/get", json!({"job": job})).await.expect("a job");
        bytes += seen["stdout_bytes"].as_u64().unwrap_or(0);
    }
    bytes
}

/// A peer's nearest thing to a change of state, which it does not flush.
async fn peer(sizes: BenchSizes, floors: &mut Floors, mut act: impl FnMut()) -> (Sample, Sample) {
    tokio::time::sleep(WARM_UP).await;
    let (mut fsync, mut sample) = (Sample::default(), Sample::default());
    for _ in 0..sizes.printing_commits {
        fsync.extend(&floors.fsync(1));
        let from = Instant::now();
        act();
        sample.push(from.elapsed());
    }
    (fsync, sample)
}

fn peer_rows(what: &str, (fsync, sample): &(Sample, Sample), table: &mut BenchTable) {
    table.row(BenchRow::times(format!("  {what}"), sample).with_floor("fsync", fsync.p50()));
    table.row(
        BenchRow::new("  the 99th in a hundred", "ms", sample.p99()).with_floor("its fsync", fsync.p99()),
    );
}
