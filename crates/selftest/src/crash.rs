//! The crash scheduler: kills daemons, runtimes and keepers with agents at work, and checks that nothing was lost or
//! happened twice.
//!
//! Owns: seeded runs against the real programs, with effects, model requests and events counted by other processes.
//! Never: judges by panicking; a run returns a [`CrashReport`], so that a deliberately broken daemon can be shown to be
//! noticed.

mod agents;
mod changes;
mod check;
mod edited;
pub(crate) mod effects;
mod events;
mod follow;
mod interrupt;
mod job_check;
mod job_plan;
mod jobs;
mod left;
mod listings;
mod lives;
mod percentile;
mod pill;
mod plan;
mod points;
mod pulled;
mod ready;
mod report;
mod requests;
mod rng;
mod rounds;
mod strike;
mod struck;
mod talk;
mod time;
mod tokens;
mod turns;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::lodge::PATIENCE;
use crate::programs::Programs;

pub use self::changes::changes;
pub use self::interrupt::interrupted_tools;
pub use self::jobs::jobs_alone;
pub use self::left::left_daemons;
pub use self::lives::agents_lives;
pub use self::percentile::percentile;
pub use self::pill::pill;
pub use self::plan::CrashModel;
pub use self::points::{die_at, jobs_die_at, named_points};
pub use self::report::{BrokenPromise, CrashReport, FailedRun};
pub use self::rounds::{KILLS_A_ROUND, restarts, rounds};
pub use self::strike::Victim;
pub use self::struck::{RunningTool, struck, struck_after_the_end};

/// What a run is made of. The same setup makes the same choices.
#[derive(Debug, Clone)]
pub struct CrashSetup {
    pub programs: Programs,
    pub model: CrashModel,
    pub seed: u64,
    /// For every daemon of the run.
    pub env: Vec<(String, String)>,
    /// The processes to kill at random, weighted by repetition.
    pub victims: &'static [Victim],
    pub progress: Arc<CrashProgress>,
    pub remains: FailedRunDir,
    /// How long the turns that are left may take in the end before they count as stuck.
    pub patience: Duration,
}

const BROKEN_PATIENCE: Duration = Duration::from_secs(10);

/// Whether the state directory of a failed run is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailedRunDir {
    /// It stays where it is, for inspection.
    Kept,
    /// It goes: the promise was broken on purpose.
    Removed,
}

impl CrashSetup {
    pub fn new(programs: Programs, model: CrashModel, seed: u64) -> CrashSetup {
        CrashSetup {
            programs,
            model,
            seed,
            env: Vec::new(),
            victims: &Victim::USUAL,
            progress: Arc::default(),
            remains: FailedRunDir::Kept,
            patience: PATIENCE,
        }
    }

    /// With a deliberate bug in the daemon. Its leftovers prove nothing, and it may leave turns open.
    #[must_use]
    pub fn broken_by(mut self, mutation: &str) -> CrashSetup {
        self.env.push(("LODGED_MUTATION".to_owned(), mutation.to_owned()));
        CrashSetup { remains: FailedRunDir::Removed, patience: BROKEN_PATIENCE, ..self }
    }

    fn with_seed(&self, seed: u64) -> CrashSetup {
        CrashSetup { seed, ..self.clone() }
    }
}

/// The progress of a run, for its caller.
#[derive(Debug, Default)]
pub struct CrashProgress {
    kills: AtomicU64,
    acknowledged: AtomicU64,
}

impl CrashProgress {
    pub fn kills(&self) -> u64 {
        self.kills.load(Ordering::Relaxed)
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    fn add_kills(&self, count: u64) {
        self.kills.fetch_add(count, Ordering::Relaxed);
    }

    fn add_acknowledged(&self) {
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}
