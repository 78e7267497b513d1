//! What a crash run did and what it found: counts, and every broken promise in words.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use super::percentile::percentile;
use crate::trouble::Trouble;

/// How a promise was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum BrokenPromise {
    /// Acknowledged or done, and gone.
    Lost,
    /// Accepted, asked, answered or done twice.
    Duplicated,
    /// An unknown outcome, although its keeper lived.
    Unknown,
    /// An event that a re-attached client did not see.
    EventMissed,
    /// An event that it saw twice or out of order.
    EventDoubled,
    /// A keeper that was not adopted, or was not alone.
    Keeper,
    /// A process that outlived its agent.
    LeftBehind,
    /// A turn that did not end, or not as it should; a daemon or an agent that did not come back.
    Wrong,
}

impl BrokenPromise {
    pub const ALL: [BrokenPromise; 8] = [
        BrokenPromise::Lost,
        BrokenPromise::Duplicated,
        BrokenPromise::Unknown,
        BrokenPromise::EventMissed,
        BrokenPromise::EventDoubled,
        BrokenPromise::Keeper,
        BrokenPromise::LeftBehind,
        BrokenPromise::Wrong,
    ];

    pub fn words(self) -> &'static str {
        match self {
            BrokenPromise::Lost => "lost",
            BrokenPromise::Duplicated => "duplicated",
            BrokenPromise::Unknown => "unknown without a reason",
            BrokenPromise::EventMissed => "events missed",
            BrokenPromise::EventDoubled => "events doubled",
            BrokenPromise::Keeper => "keepers not adopted",
            BrokenPromise::LeftBehind => "processes left behind",
            BrokenPromise::Wrong => "ended wrongly",
        }
    }
}

/// A part of a run that broke a promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedRun {
    /// Its seed and kills reproduce it.
    pub seed: u64,
    pub kills: u64,
    /// Where its state directory and logs are.
    pub kept: PathBuf,
}

#[derive(Debug, Clone, Default)]
pub struct CrashReport {
    /// Processes that were ended by SIGKILL, all of them and by what they were.
    pub kills: u64,
    pub victims: BTreeMap<&'static str, u64>,
    /// Daemons that were asked to end under load, by SIGTERM.
    pub restarts: u64,
    /// Kills with turns in flight, and how many turns those were in all.
    pub busy_kills: u64,
    pub cut_turns: u64,
    /// Kills by what they waited for.
    pub aims: BTreeMap<String, u64>,
    /// Deaths at a named point.
    pub points: BTreeMap<String, u64>,
    pub acknowledged: u64,
    pub resent: u64,
    pub adoptions: u64,
    /// Keepers that took the place of a killed one.
    pub replaced: u64,
    pub effects: u64,
    /// Effects of tools declared safe that happened again because their keeper was killed.
    pub repeated: u64,
    /// Unknown outcomes, because their keeper was killed.
    pub unknown: u64,
    pub requests: u64,
    pub events: u64,
    pub restarted_steps: u64,
    /// Jobs that clients submitted and the daemon took.
    pub jobs: u64,
    /// Jobs that ended with their keeper, which was killed.
    pub jobs_cut: u64,
    /// Bytes of output that were compared with what the jobs wrote.
    pub job_bytes: u64,
    /// Ends of jobs that were reported to their session before its next message.
    pub job_notes: u64,
    /// From a daemon's start until all agents were there and answered, in microseconds.
    pub recovery_us: Vec<u64>,
    pub broken: Vec<(BrokenPromise, String)>,
    pub failed: Vec<FailedRun>,
}

impl From<Trouble> for CrashReport {
    fn from(trouble: Trouble) -> CrashReport {
        let mut report = CrashReport::default();
        report.stopped_by(&trouble);
        report
    }
}

impl CrashReport {
    pub fn add(&mut self, broken: BrokenPromise, what: impl Into<String>) {
        self.broken.push((broken, what.into()));
    }

    /// An aborted run is a broken promise too: the run must finish.
    pub fn stopped_by(&mut self, trouble: &Trouble) {
        self.add(BrokenPromise::Wrong, trouble.whole());
    }

    pub fn count(&self, broken: BrokenPromise) -> usize {
        self.broken.iter().filter(|(kind, _)| *kind == broken).count()
    }

    pub fn is_clean(&self) -> bool {
        self.broken.is_empty()
    }

    /// A percentile of the time to recover, in milliseconds.
    pub fn recovery_ms(&self, percent: u64) -> f64 {
        let mut sorted = self.recovery_us.clone();
        sorted.sort_unstable();
        // Whole tens of microseconds: more would be noise.
        (percentile(&sorted, percent) / 10) as f64 / 100.0
    }

    /// Takes in what another part of the same run counted.
    pub fn merge(&mut self, other: CrashReport) {
        self.kills += other.kills;
        self.restarts += other.restarts;
        self.busy_kills += other.busy_kills;
        self.cut_turns += other.cut_turns;
        self.acknowledged += other.acknowledged;
        self.resent += other.resent;
        self.adoptions += other.adoptions;
        self.replaced += other.replaced;
        self.effects += other.effects;
        self.repeated += other.repeated;
        self.unknown += other.unknown;
        self.requests += other.requests;
        self.events += other.events;
        self.restarted_steps += other.restarted_steps;
        self.jobs += other.jobs;
        self.jobs_cut += other.jobs_cut;
        self.job_bytes += other.job_bytes;
        self.job_notes += other.job_notes;
        self.recovery_us.extend(other.recovery_us);
        self.broken.extend(other.broken);
        self.failed.extend(other.failed);
        for (mine, theirs) in [(&mut self.aims, other.aims), (&mut self.points, other.points)] {
            for (name, count) in theirs {
                *mine.entry(name).or_default() += count;
            }
        }
        for (name, count) in other.victims {
            *self.victims.entry(name).or_default() += count;
        }
    }

    /// Every count with its name, in the order of the output.
    pub fn counts(&self) -> Vec<(String, u64)> {
        let mut rows = vec![("kills".to_owned(), self.kills)];
        rows.extend(self.victims.iter().map(|(name, count)| (format!("  of a {name}"), *count)));
        let named = self.points.values().sum();
        rows.extend([
            ("  at a named point".to_owned(), named),
            ("  with turns in flight".to_owned(), self.busy_kills),
            ("restarts under load".to_owned(), self.restarts),
            ("messages acknowledged".to_owned(), self.acknowledged),
            ("messages sent again".to_owned(), self.resent),
            ("turns in flight at kills".to_owned(), self.cut_turns),
            ("keepers adopted".to_owned(), self.adoptions),
            ("keepers replaced".to_owned(), self.replaced),
            ("effects of tools".to_owned(), self.effects),
            ("  repeated, of tools declared safe".to_owned(), self.repeated),
            ("model requests".to_owned(), self.requests),
            ("model steps restarted".to_owned(), self.restarted_steps),
            ("events followed".to_owned(), self.events),
            ("unknown, their keeper was killed".to_owned(), self.unknown),
        ]);
        rows.extend(self.job_counts());
        rows.extend(
            BrokenPromise::ALL
                .into_iter()
                .map(|broken| (broken.words().to_owned(), self.count(broken) as u64)),
        );
        rows
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in self.counts() {
            writeln!(f, "  {name:<36}{count:>7}")?;
        }
        writeln!(f, "  {:<36}{:>7}", "recovery p50, ms", self.recovery_ms(50))?;
        writeln!(f, "  {:<36}{:>7}", "recovery p99, ms", self.recovery_ms(99))?;
        for (name, count) in &self.aims {
            writeln!(f, "  {:<36}{count:>7}", format!("killed {name}"))?;
        }
        for (name, count) in &self.points {
            writeln!(f, "  {:<36}{count:>7}", format!("point {name}"))?;
        }
        for (broken, what) in &self.broken {
            writeln!(f, "BROKEN ({}): {what}", broken.words())?;
        }
        for failed in &self.failed {
            writeln!(f, "kept for inspection: {} (seed {})", failed.kept.display(), failed.seed)?;
        }
        Ok(())
    }
}
