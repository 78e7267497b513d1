//! Millions of steps: fixed seeds, and some new ones.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use lodge_sim::{SimMutation, SimTrace, Simulation, Tally, run};

const STEPS: u64 = 10_000;
const FIXED: u64 = 160;
const FRESH: u64 = 40;
const TRACE_LINES: usize = 200;
/// Seeds that found faults of the daemon: an order to start a job that came after the job had ended and its files were
/// removed (twice), a call that watched a job and became one that cancelled it, a keeper that ended by itself while it was to be
/// killed, a quarantine that was lost with a turn that was interrupted on a full disk, and a turn that ran and waited for its
/// provider after its summary had used up the time.
const FOUND: [u64; 6] = [
    1_763_000_000_051,
    1_763_000_000_487,
    1_763_000_002_158,
    1_763_000_002_343,
    1_763_000_003_798,
    1_795_040_000_289,
];

/// Runs seeds on every core. The first failure is printed with its trace.
fn all(seeds: &[u64], steps: u64) -> Tally {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mut sum = Tally::default();
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            match run(*seed, steps, SimMutation::None, TRACE_LINES) {
                Ok(tally) => sum = sum.plus(tally),
                Err(failure) => panic!("{failure}\nagain: lodge-sim --seed {seed} --steps {steps} --runs 1"),
            }
        }
        sum
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let sums = workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|why| std::panic::resume_unwind(why)));
        sums.fold(Tally::default(), Tally::plus)
    })
}

#[test]
fn every_law_holds_for_two_million_steps() {
    let fresh = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    println!("fresh seeds from {fresh}");
    let seeds: Vec<u64> = (1..=FIXED).chain(FOUND).chain(fresh..fresh + FRESH).collect();
    let tally = all(&seeds, STEPS);
    println!("{tally:?}");
    assert!(tally.steps >= 2_000_000, "{tally:?}");
    // A run without these events would prove nothing.
    assert!(tally.turns > 100_000 && tally.effects > 50_000 && tally.unknown > 100, "{tally:?}");
    assert!(tally.lives > 5_000 && tally.rebuilt > 10_000 && tally.revived > 1_000, "{tally:?}");
    assert!(tally.retried > 500 && tally.updated > 1_000 && tally.waited > 4_000, "{tally:?}");
    assert!(tally.jobs > 20_000 && tally.jobs_done > 10_000 && tally.jobs_cancelled > 5_000, "{tally:?}");
    assert!(tally.jobs_failed > 500 && tally.archived > 10_000, "{tally:?}");
    assert!(tally.noted > 5_000 && tally.expired > 1_000, "{tally:?}");
    assert!(tally.away > 1_000, "{tally:?}");
    assert!(tally.pulls > 5_000 && tally.collected > 500, "{tally:?}");
    assert!(tally.looked_up > 1_000, "{tally:?}");
    assert!(tally.refused_calls > 3_000 && tally.continued > 350, "{tally:?}");
    assert!(tally.pills > 500 && tally.quarantined > 50, "{tally:?}");
    assert!(tally.edited > 5_000 && tally.changed > 10 && tally.misfits > 2_000, "{tally:?}");
}

#[test]
fn the_same_seed_makes_the_same_world() {
    for seed in [3, 5, 8, 13] {
        assert_eq!(all(&[seed], 3_000), all(&[seed], 3_000), "seed {seed}");
    }
}

/// The hash of the history of a world.
fn history(seed: u64) -> u64 {
    let mut simulation = Simulation::new(seed, SimMutation::None, SimTrace::new(1));
    simulation.storms(2_000).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
    simulation.world().trace.hash()
}

#[test]
fn the_same_seed_makes_the_same_history_to_the_letter_and_another_seed_another() {
    let seeds = [1, 2, 3, 4, 5, 6, 7, 8];
    let first = seeds.map(history);
    assert_eq!(first, seeds.map(history));
    let different: std::collections::BTreeSet<u64> = first.into_iter().collect();
    assert_eq!(different.len(), seeds.len(), "{first:x?}");
}
