//! One job that prints as fast as it can, and its captured output.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::BenchSizes;
use crate::floor::Floors;
use crate::jobs::ours::{LodgeJobs, archived, submit};
use crate::jobs::pueue::Pueue;
use crate::jobs::tools::PeerTools;
use crate::jobs::tsp::Tsp;
use crate::sample::Sample;
use crate::table::{BenchRow, BenchTable, NumberBound};

/// The part of the speed of a program whose pipe is copied into a file.
const SHARE_MIN: f64 = 0.8;
const WAL_MB_MAX: f64 = 48.0;
const MB: u64 = 1_000_000;
/// What is read from a pipe at once: as much as it holds.
const PIPE_BYTES: usize = 64 * 1024;
/// Between two looks, at the logs and at peers that can only be asked.
const LOOK: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(300);
const ZEROS: &str = "/dev/zero";

#[derive(Debug, Default)]
struct OutputSamples {
    raw: Sample,
    whole: Sample,
    archived: Sample,
    capped: Sample,
    pueue: Sample,
    tsp: Sample,
    fsync: Sample,
}

pub(crate) async fn run(sizes: BenchSizes, tools: &PeerTools, floors: &mut Floors, table: &mut BenchTable) {
    let bytes = sizes.output_mb * MB;
    let mut ours = LodgeJobs::start(&[]).await;
    let pueue = tools.pueue.as_ref().map(|tool| Pueue::start(tool, 1));
    let tsp = tools.tsp.as_ref().map(|tool| Tsp::start(tool, 1));
    let logs = WalWatch::watched(&ours.world.lodge.home());
    let mut samples = OutputSamples::default();
    for _ in 0..sizes.output_rounds {
        samples.fsync.extend(&floors.fsync(20));
        samples.raw.push_ms(rate(bytes, raw(bytes)));
        let (captured, until_archived) = of_ours(&mut ours, bytes, Some(2 * bytes)).await;
        samples.whole.push_ms(rate(bytes, captured));
        samples.archived.push_ms(until_archived.as_secs_f64());
        let (captured, _) = of_ours(&mut ours, bytes, None).await;
        samples.capped.push_ms(rate(bytes, captured));
        if let Some(pueue) = &pueue {
            samples.pueue.push_ms(rate(bytes, of_pueue(pueue, bytes)));
        }
        if let Some(tsp) = &tsp {
            samples.tsp.push_ms(rate(bytes, of_tsp(tsp, bytes)));
        }
    }
    rows(sizes, &samples, table);
    logs.rows(table);
}

fn rows(sizes: BenchSizes, samples: &OutputSamples, table: &mut BenchTable) {
    let size = format!("{} MB", sizes.output_mb);
    let floor = samples.raw.p50();
    table.row(BenchRow::rounds(format!("floor: {size} through a pipe into a file"), "MB/s", &samples.raw));
    table.row(BenchRow::times("floor: fdatasync, in turn with it", &samples.fsync));
    let hold = NumberBound::at_least("0.8 of the floor", SHARE_MIN * floor);
    let what = format!("output of a job captured, {size}, all of it kept");
    table.row(BenchRow::rounds(what, "MB/s", &samples.whole).with_floor("raw", floor).hold(hold.clone()));
    let what = "  from its end until all of it is archived";
    table.row(BenchRow::rounds(what, "s", &samples.archived));
    let what = "  with the cap as it is unless set: head and tail kept";
    table.row(BenchRow::rounds(what, "MB/s", &samples.capped).with_floor("raw", floor).hold(hold));
    for (name, sample) in [("pueue", &samples.pueue), ("task-spooler", &samples.tsp)] {
        if sample.len() > 0 {
            let what = format!("  {name}, whose job writes into the file itself");
            table.row(BenchRow::rounds(what, "MB/s", sample).with_floor("raw", floor));
        }
    }
}

fn rate(bytes: u64, took: Duration) -> f64 {
    (bytes / MB) as f64 / took.as_secs_f64()
}

/// The floor: the same program, and a loop that copies its output into a file.
fn raw(bytes: u64) -> Duration {
    let dir = tempfile::Builder::new().prefix("lodge-floor-").tempdir().expect("a temporary directory");
    let from = Instant::now();
    let mut command = Command::new("head");
    command.args(["-c", &bytes.to_string(), ZEROS]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("`head` runs");
    let mut pipe = child.stdout.take().expect("a pipe");
    let mut file = File::create(dir.path().join("output")).expect("a file");
    let mut buffer = vec![0; PIPE_BYTES];
    loop {
        let count = pipe.read(&mut buffer).expect("output");
        if count == 0 {
            break;
        }
        file.write_all(&buffer[..count]).expect("room for the output");
    }
    assert!(child.wait().expect("`head` ends").success(), "`head` failed");
    from.elapsed()
}

/// From the submission until its end is known, and from there until its output is archived.
async fn of_ours(ours: &mut LodgeJobs, bytes: u64, keep: Option<u64>) -> (Duration, Duration) {
    let mut watcher = ours.watcher().await;
    let mut params = json!({"agent": ours.agent, "bin": "head", "args": ["-c", bytes.to_string(), ZEROS]});
    if let Some(keep) = keep {
        params["output"] = json!(keep.to_string());
    }
    let from = Instant::now();
    let job = submit(&mut ours.client, params).await;
    watcher.ended(1).await;
    let captured = from.elapsed();
    archived(ours, &job).await;
    let whole = from.elapsed();
    let seen = ours.client.call_value("job/get", json!({"job": job})).await.expect("a job");
    assert_eq!(seen["stdout_bytes"], bytes, "{seen}");
    assert!(keep.is_none() || seen["truncated"] == false, "{seen}");
    (captured, whole - captured)
}

fn of_pueue(pueue: &Pueue, bytes: u64) -> Duration {
    let mut wire = pueue.connect();
    let before = wire.finished();
    let from = Instant::now();
    wire.add(&format!("head -c {bytes} {ZEROS}"));
    wait("pueue", from, || wire.finished() > before);
    let took = from.elapsed();
    pueue.ok(&["clean"]);
    took
}

fn of_tsp(tsp: &Tsp, bytes: u64) -> Duration {
    let from = Instant::now();
    let id = tsp.ok(&["head", "-c", &bytes.to_string(), ZEROS]);
    // Waits for it, and exits as it did.
    tsp.ok(&["-w", id.trim()]);
    let took = from.elapsed();
    let output = tsp.ok(&["-o", id.trim()]);
    std::fs::remove_file(output.trim()).expect("task-spooler's file of the output");
    took
}

fn wait(who: &str, from: Instant, mut is_done: impl FnMut() -> bool) {
    while !is_done() {
        assert!(from.elapsed() < PATIENCE, "{who} did not end within {} s", PATIENCE.as_secs());
        std::thread::sleep(LOOK);
    }
}

/// The largest that the write-ahead logs of both databases became, looked at all the while.
#[derive(Debug)]
pub(crate) struct WalWatch {
    shared: Arc<WalMaxima>,
    looker: Option<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct WalMaxima {
    daemon: (PathBuf, AtomicU64),
    output: (PathBuf, AtomicU64),
    is_over: AtomicBool,
}

impl WalWatch {
    pub(crate) fn watched(home: &Path) -> WalWatch {
        let of = |name: &str| (home.join(name), AtomicU64::new(0));
        let shared = Arc::new(WalMaxima {
            daemon: of("daemon.db-wal"),
            output: of("output.db-wal"),
            is_over: AtomicBool::new(false),
        });
        let seen = Arc::clone(&shared);
        let looker = std::thread::spawn(move || {
            while !seen.is_over.load(Ordering::Relaxed) {
                seen.sample_sizes();
                std::thread::sleep(LOOK);
            }
        });
        WalWatch { shared, looker: Some(looker) }
    }

    pub(crate) fn rows(&self, table: &mut BenchTable) {
        for (name, log) in [("daemon.db", &self.shared.daemon), ("output.db", &self.shared.output)] {
            let mb = log.1.load(Ordering::Relaxed) as f64 / MB as f64;
            let row = BenchRow::new(format!("  largest write-ahead log of {name}"), "MB", mb);
            table.row(row.hold(NumberBound::at_most("", WAL_MB_MAX)));
        }
    }
}

impl WalMaxima {
    fn sample_sizes(&self) {
        for (path, largest) in [&self.daemon, &self.output] {
            let bytes = std::fs::metadata(path).map_or(0, |meta| meta.len());
            largest.fetch_max(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for WalWatch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(looker) = self.looker.take() {
            drop(looker.join());
        }
    }
}
