//! Opening what a cut left, and what must be found there.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use lodge_store::open;

use crate::archive;
use crate::cut::{Cut, Cuts, Prefixes, Rng};
use crate::disk::{Disk, Image};
use crate::trace::{Op, OpKind, Trace};
use lodge_core::record::DAEMON_STREAM;

use crate::workload::{CALLER, DATABASE, NEWEST, commits_up_to, events};

/// The contents of a database after a cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseContents {
    pub commits: u64,
    /// Of a database that has one.
    pub identity: Option<Identity>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub epoch: u64,
    pub state_key: [u8; 32],
}

/// Which database is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    Daemon,
    Archive,
}

impl Subject {
    pub fn database(self) -> &'static str {
        match self {
            Subject::Daemon => DATABASE,
            Subject::Archive => archive::DATABASE,
        }
    }

    fn look_at(self, dir: &Path) -> Result<DatabaseContents, String> {
        match self {
            Subject::Daemon => look_at(&dir.join(DATABASE)),
            Subject::Archive => archive::look_at(dir),
        }
    }
}

/// What its users had been told before the cut: acknowledged commits and openings.
#[derive(Debug, Clone, Copy, Default)]
struct ReportedProgress {
    acked: u64,
    begun: u64,
    opened: u64,
    opening: u64,
}

/// What a run of cuts came to.
#[derive(Debug, Default)]
pub struct CutReport {
    pub cuts: usize,
    /// Different disks among them.
    pub disks: usize,
    pub broken: Vec<String>,
}

/// Where every cut is opened, one after the other.
#[derive(Debug)]
struct CutBench {
    subject: Subject,
    dir: tempfile::TempDir,
    known: BTreeMap<u64, Result<DatabaseContents, String>>,
}

/// Tries every cut of a recorded run that began with `before` on the disk. Stops after the first few that are broken.
pub fn every_cut(subject: Subject, trace: &Trace, root: &Path, before: &Image, seed: u64) -> CutReport {
    const BROKEN_MAX: usize = 3;
    let mut rng = Rng::new(seed);
    let mut bench = CutBench::new(subject);
    let mut disk = Disk::new(root, before);
    let mut told = ReportedProgress::default();
    let mut outcome = CutReport::default();
    // What was there before the recording was acknowledged long ago.
    if before.files.contains_key(Path::new(subject.database())) {
        let found = bench.open(before).expect("the disk was sound before");
        let epoch = found.identity.map_or(0, |identity| identity.epoch - 1);
        told = ReportedProgress { acked: found.commits, begun: found.commits, opened: epoch, opening: epoch };
    }
    for (at, op) in trace.ops.iter().enumerate() {
        disk.apply(op);
        told.hear(op);
        let Some(cuts) = cuts(trace.ops.get(at + 1), op) else { continue };
        for cut in cuts.of(&disk, &mut rng) {
            outcome.cuts += 1;
            if let Err(why) = bench.look(cut, &disk, told) {
                outcome
                    .broken
                    .push(format!("seed {seed}, after change {at} ({}), {cut:?}: {why}", brief(&op.what)));
                if outcome.broken.len() >= BROKEN_MAX {
                    return outcome;
                }
            }
        }
    }
    outcome.disks = bench.known.len();
    outcome
}

/// Before a sync most is in doubt: every prefix of what was written since the last one is tried, which is a cut at
/// every write and at every sector of it. Between, only a change of what is known makes a difference.
fn cuts(next: Option<&Op>, op: &Op) -> Option<Cuts> {
    if next.is_none_or(|next| matches!(next.what, OpKind::Sync(_))) {
        return Some(Cuts { drawn: 8, prefixes: Prefixes::Every });
    }
    match op.what {
        OpKind::Write { .. } => None,
        OpKind::Note(_)
        | OpKind::Sync(_)
        | OpKind::Create(_)
        | OpKind::MakeDir(_)
        | OpKind::SetLen { .. }
        | OpKind::Remove(_)
        | OpKind::Rename { .. } => Some(Cuts { drawn: 2, prefixes: Prefixes::Few }),
    }
}

fn brief(what: &OpKind) -> String {
    match what {
        OpKind::Write { path, at, bytes } => format!("{} bytes at {at} of {}", bytes.len(), path.display()),
        other => format!("{other:?}"),
    }
}

impl ReportedProgress {
    fn hear(&mut self, op: &Op) {
        let OpKind::Note(line) = &op.what else { return };
        let (word, number) = line.split_once(' ').unwrap_or((line, "0"));
        let number = number.parse().expect("notes end with a number");
        match word {
            "opening" => self.opening = self.opened + 1,
            "opened" => self.opened = number,
            "begin" => self.begun = number,
            "ack" => self.acked = number,
            other => panic!("`{other}` is no note"),
        }
    }

    fn judge(self, found: &DatabaseContents) -> Result<(), String> {
        if found.commits < self.acked || found.commits > self.begun {
            return Err(format!("{} commits are there: {self:?}", found.commits));
        }
        let Some(identity) = &found.identity else { return Ok(()) };
        // The check's own opening raised it once more.
        if identity.epoch <= self.opened || identity.epoch > self.opening.max(self.opened) + 1 {
            return Err(format!("the epoch is {}: {self:?}", identity.epoch));
        }
        // A database whose opening was not acknowledged may be created again.
        if self.opened > 0 && identity.state_key != [7; 32] {
            return Err("the state key is another one".to_owned());
        }
        Ok(())
    }
}

impl CutBench {
    fn new(subject: Subject) -> CutBench {
        // Memory, where there is some: what is opened here needs to survive nothing.
        let shared = PathBuf::from("/dev/shm");
        let dir = tempfile::tempdir_in(shared).or_else(|_| tempfile::tempdir()).expect("a directory");
        CutBench { subject, dir, known: BTreeMap::new() }
    }

    fn look(&mut self, cut: Cut, disk: &Disk, told: ReportedProgress) -> Result<(), String> {
        told.judge(&self.open(&cut.image(disk))?)
    }

    fn open(&mut self, image: &Image) -> Result<DatabaseContents, String> {
        let mut hasher = DefaultHasher::new();
        image.hash(&mut hasher);
        let key = hasher.finish();
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let dir = self.dir.path().join("disk");
        image.write(&dir).expect("the disk can be made");
        let shm = dir.join(format!("{}-shm", self.subject.database()));
        if shm.exists() {
            // It is written through memory, which no trace shows: it may hold anything.
            let garbage: Vec<u8> =
                (0..32_768_u32).map(|at| (at.wrapping_mul(key as u32 | 1) >> 7) as u8).collect();
            std::fs::write(shm, garbage).expect("a file");
        }
        let found = self.subject.look_at(&dir);
        self.known.insert(key, found.clone());
        found
    }
}

/// Opens a database, which must be sound and hold whole commits in order.
fn look_at(path: &Path) -> Result<DatabaseContents, String> {
    let opened = open(path, &[9; 64]).map_err(|error| format!("it does not open: {error:?}"))?;
    let (reader, loaded) = (&opened.reader, &opened.loaded);
    let sound = reader.here(|snapshot| snapshot.integrity()).map_err(|error| format!("{error:?}"))?;
    if sound != "ok" {
        return Err(format!("it is not sound: {sound}"));
    }
    let Some(commits) = commits_up_to(loaded.seq) else {
        return Err(format!("event {} is the last, and the last of no commit", loaded.seq));
    };
    let expected: Vec<_> = (1..=commits).flat_map(events).collect();
    let (there, _) =
        reader.here(|snapshot| snapshot.events(0, None, u32::MAX)).map_err(|error| format!("{error:?}"))?;
    if there != expected {
        return Err(format!("{commits} commits have other events than they wrote"));
    }
    let heads = if loaded.seq == 0 { None } else { Some(&loaded.seq) };
    if loaded.streams.get(DAEMON_STREAM) != heads {
        return Err(format!(
            "the stream is at {:?}, the log at {}",
            loaded.streams.get(DAEMON_STREAM),
            loaded.seq
        ));
    }
    let answer =
        |id: &str| reader.here(|snapshot| snapshot.request(CALLER, id)).map(|row| row.map(|row| row.answer));
    for number in 1..=commits + 1 {
        let found = answer(&number.to_string()).map_err(|error| format!("{error:?}"))?;
        if found != (number <= commits).then(|| number.to_string().into_bytes()) {
            return Err(format!("of {commits} commits, {number} has the answer {found:?}"));
        }
    }
    let newest = answer(NEWEST).map_err(|error| format!("{error:?}"))?;
    if newest != (commits > 0).then(|| commits.to_string().into_bytes()) {
        return Err(format!("after {commits} commits the newest says {newest:?}"));
    }
    let identity = Identity { epoch: loaded.epoch, state_key: opened.meta.state_key };
    Ok(DatabaseContents { commits, identity: Some(identity) })
}
