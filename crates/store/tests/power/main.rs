//! The power fails at every write: what was acknowledged is there, whole, and the file is sound.
//!
//! A workload runs under `strace`, which records every change of files in order. From that, the test builds every state
//! that a disk may have after a cut, and opens it. The disk keeps everything that was synced. Of the rest it keeps any
//! part, in sectors of 512 bytes: a sector has its old or its new contents, and a later state of it contains the
//! earlier ones. A file may have grown without its data, which then reads as zeros. A created, removed or moved name is
//! certain only after a sync of its *directory*: a sync of the file is not enough, although some file systems do more.
//! A sync covers the operations that ended before it began, and is certain only when it has ended.

mod archive;
mod check;
mod cut;
mod disk;
mod record;
mod trace;
mod workload;

use std::path::{Path, PathBuf};
use std::process::Command;

use check::{CutReport, Subject, every_cut};
use cut::{Cut, Rng};
use disk::{Disk, Image};
use record::record;
use trace::{OpKind, Trace};

const SEED: u64 = 20_251;
const SEED_NAME: &str = "LODGE_POWER_SEED";
/// For the workload: where, and how often it opens and closes.
const DIR: &str = "LODGE_POWER_DIR";
const LIVES: &str = "LODGE_POWER_LIVES";
/// Where a run that failed lies: with its seed, it fails again.
const KEPT: &str = "LODGE_POWER_KEPT";

/// The one that is set, or always the same.
fn seed() -> u64 {
    std::env::var(SEED_NAME).map_or(SEED, |text| text.parse().expect("a seed is a number"))
}

struct RecordedRun {
    subject: Subject,
    trace: Trace,
    root: PathBuf,
    before: Image,
    dir: tempfile::TempDir,
}

/// Runs this program's workload on a disk that holds `before`, recorded; or takes what an earlier one left.
fn recorded(before: &Image, lives: usize) -> RecordedRun {
    recorded_of(Subject::Daemon, before, lives)
}

fn recorded_of(subject: Subject, before: &Image, lives: usize) -> RecordedRun {
    let workload = match subject {
        Subject::Daemon => "the_workload_keeps_what_it_commits",
        Subject::Archive => "the_archive_keeps_what_it_commits",
    };
    let dir = tempfile::tempdir().unwrap();
    let path = std::env::var_os(KEPT).map_or_else(|| dir.path().canonicalize().unwrap(), PathBuf::from);
    let (root, start, trace) = (path.join("root"), path.join("before"), path.join("trace"));
    if std::env::var_os(KEPT).is_none() {
        before.write(&root).and_then(|()| before.write(&start)).unwrap();
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", workload, "--test-threads=1"]);
        program.env(DIR, &path).env(LIVES, lives.to_string());
        record(&program, &trace);
    }
    let before = Image::read(&start).unwrap();
    let text = std::fs::read_to_string(&trace).unwrap();
    let trace = Trace::parse(&text, &root, &path.join("notes")).unwrap_or_else(|error| panic!("{error}"));
    assert_complete(subject, &trace, &root, &before);
    RecordedRun { subject, trace, root, before, dir }
}

/// Without a cut, the disk of the trace must hold what the real one does.
fn assert_complete(subject: Subject, trace: &Trace, root: &Path, before: &Image) {
    let mut disk = Disk::new(root, before);
    trace.ops.iter().for_each(|op| disk.apply(op));
    let (mut told, mut real) = (Cut::Everything.image(&disk), Image::read(root).unwrap());
    // The file is written through memory, which no trace shows, and the first process that opens it creates it again.
    for image in [&mut told, &mut real] {
        image.files.remove(Path::new(&format!("{}-shm", subject.database())));
    }
    assert!(told == real, "the trace does not tell everything that was done");
}

impl RecordedRun {
    /// These, beneath the root, were synced at least once: otherwise a cut at them proves nothing.
    fn assert_covers(&self, names: &[&str]) {
        for name in names {
            let path = self.root.join(name);
            let synced = self.trace.ops.iter().any(|op| op.what == OpKind::Sync(path.clone()));
            assert!(synced, "{} is never synced", path.display());
        }
    }

    /// The same run by a program that never syncs this, or not after the first few times.
    fn assert_noticed_without_syncs_of(&self, name: &str, but_the_first: usize) {
        self.assert_covers(&[name]);
        let path = self.root.join(name);
        let trace = self.trace.without_syncs_of(&path, but_the_first);
        let outcome = every_cut(self.subject, &trace, &self.root, &self.before, seed());
        assert!(!outcome.broken.is_empty(), "{} cuts, and nothing was noticed", outcome.cuts);
    }

    fn cut(&self) -> CutReport {
        every_cut(self.subject, &self.trace, &self.root, &self.before, seed())
    }

    /// Cuts everywhere, and keeps the recording when something broke.
    fn assert_survives(self) -> CutReport {
        let outcome = self.cut();
        println!("{} cuts, {} different disks, {SEED_NAME}={}", outcome.cuts, outcome.disks, seed());
        if !outcome.broken.is_empty() {
            let kept = self.dir.keep();
            let broken = outcome.broken.join("\n");
            panic!("{broken}\nto repeat, set {SEED_NAME}={} {KEPT}={}", seed(), kept.display());
        }
        outcome
    }
}

/// By itself, and in a process of its own as what the other tests record.
#[test]
fn the_workload_keeps_what_it_commits() {
    let own = tempfile::tempdir().unwrap();
    let dir = std::env::var_os(DIR).map_or(own.path().to_owned(), PathBuf::from);
    let lives = std::env::var(LIVES).map_or(2, |text| text.parse().unwrap());
    let root = dir.join("root");
    std::fs::create_dir_all(&root).unwrap();
    workload::run(&root, &dir.join("notes"), lives);
}

/// The same for the archive of job output.
#[test]
fn the_archive_keeps_what_it_commits() {
    let own = tempfile::tempdir().unwrap();
    let dir = std::env::var_os(DIR).map_or(own.path().to_owned(), PathBuf::from);
    let root = dir.join("root");
    std::fs::create_dir_all(&root).unwrap();
    archive::run(&root, &dir.join("notes"), 2);
}

#[test]
fn all_output_that_was_archived_survives_a_cut_at_any_write() {
    let run = recorded_of(Subject::Archive, &Image::default(), 2);
    run.assert_covers(&["output.db", "output.db-wal", ""]);
    let outcome = run.assert_survives();
    assert!(outcome.disks > 500, "only {} different disks", outcome.disks);
}

#[test]
fn an_archive_that_never_syncs_its_wal_is_noticed() {
    recorded_of(Subject::Archive, &Image::default(), 2).assert_noticed_without_syncs_of("output.db-wal", 0);
}

#[test]
fn every_acknowledged_commit_survives_a_cut_at_any_write() {
    let run = recorded(&Image::default(), 2);
    run.assert_covers(&["daemon.db", "daemon.db-wal", ""]);
    let outcome = run.assert_survives();
    assert!(outcome.disks > 1_000, "only {} different disks", outcome.disks);
}

/// As the first release left it: its tables and no index, a few commits in the file and none in a WAL.
#[test]
fn a_database_of_the_first_release_survives_cuts_while_it_is_opened_and_migrated() {
    let dir = tempfile::tempdir().unwrap();
    workload::first_release(&dir.path().join(workload::DATABASE));
    let run = recorded(&Image::read(dir.path()).unwrap(), 1);
    run.assert_survives();
}

/// The disk that a cut left is opened, recorded, and cut again.
#[test]
fn a_cut_during_the_recovery_from_a_cut_loses_nothing() {
    let first = recorded(&Image::default(), 2);
    let mut rng = Rng::new(seed());
    for _ in 0..2 {
        let end = rng.below(first.trace.ops.len());
        let mut disk = Disk::new(&first.root, &first.before);
        first.trace.ops[..end].iter().for_each(|op| disk.apply(op));
        let left = Cut::Drawn(rng.next()).image(&disk);
        println!("cut after change {end}");
        recorded(&left, 1).assert_survives();
    }
}

#[test]
fn a_store_that_never_syncs_its_wal_is_noticed() {
    recorded(&Image::default(), 2).assert_noticed_without_syncs_of("daemon.db-wal", 0);
}

#[test]
fn a_store_that_starts_the_wal_over_before_its_copy_is_synced_is_noticed() {
    // The first sync is of the file's making.
    recorded(&Image::default(), 2).assert_noticed_without_syncs_of("daemon.db", 1);
}

#[test]
fn a_store_that_makes_its_file_without_a_sync_is_noticed() {
    recorded(&Image::default(), 1).assert_noticed_without_syncs_of("daemon.db", 0);
}

#[test]
fn a_store_that_never_syncs_its_directory_is_noticed() {
    recorded(&Image::default(), 2).assert_noticed_without_syncs_of("", 0);
}

#[test]
fn a_store_that_acknowledges_before_it_commits_is_noticed() {
    let mut run = recorded(&Image::default(), 2);
    for op in &mut run.trace.ops {
        if let OpKind::Note(line) = &mut op.what
            && let Some(number) = line.strip_prefix("begin ")
        {
            *line = format!("ack {number}");
        }
    }
    assert!(!run.cut().broken.is_empty());
}
