//! The crash scheduler on the programs under test.

use lodge_selftest::Programs;
pub use lodge_selftest::crash::*;

use crate::lodge::bin;

/// A run on the programs under test.
pub fn setup(model: CrashModel, seed: u64) -> CrashSetup {
    CrashSetup::new(Programs { lodge: bin("lodge"), lodged: bin("lodged") }, model, seed)
}

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
