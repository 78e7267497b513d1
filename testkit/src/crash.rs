//! The crash scheduler: kills the daemon with agents at work, and checks that nothing was lost or happened twice.
//!
//! Owns: seeded runs against the real programs, with effects, model requests and events counted by other processes.
//! Never: judges by panicking; a run returns a [`Report`], so that a deliberately broken daemon can be shown to be
//! noticed.

mod check;
mod effects;
mod follow;
mod interrupt;
mod keepers;
mod kills;
mod lives;
mod plan;
mod points;
mod process;
mod report;
mod rng;
mod world;

pub use self::interrupt::interrupted_tools;
pub use self::keepers::{Tool, dead_keeper};
pub use self::kills::random_kills;
pub use self::lives::agents_lives;
pub use self::plan::Model;
pub use self::points::{mutated, named_points};
pub use self::report::{Broken, Report};

/// The seed of a run: `LODGE_CRASH_SEED`, or the test's own.
pub fn seed_or(default: u64) -> u64 {
    number("LODGE_CRASH_SEED").unwrap_or(default)
}

/// The number of kills of a run: `LODGE_CRASH_KILLS`, or the test's own.
pub fn kills_or(default: u64) -> u64 {
    number("LODGE_CRASH_KILLS").unwrap_or(default)
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
}
