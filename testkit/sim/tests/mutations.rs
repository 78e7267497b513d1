//! The simulation can fail: deliberate bugs in the simulated shell are found, each within a part of the budget.

use lodge_sim::{Mutation, run};

const SEEDS: u64 = 300;
const STEPS: u64 = 3_000;

/// The first seed in whose world the bug shows, and what it looks like there.
fn find(mutation: Mutation) -> (u64, String) {
    for seed in 1..=SEEDS {
        if let Err(failure) = run(seed, STEPS, mutation, 0) {
            return (seed, failure.what);
        }
    }
    panic!("{mutation:?} was not found in {SEEDS} seeds of {STEPS} steps");
}

/// The first failure contains one of these words.
fn finds(mutation: Mutation, words: &[&str]) {
    let (seed, what) = find(mutation);
    println!("{mutation:?} found with seed {seed}: {what}");
    assert!(
        words.iter().any(|words| what.contains(words)),
        "{mutation:?} was found as something else, with seed {seed}: {what}"
    );
}

#[test]
fn a_reply_that_leaves_before_its_commit_is_found() {
    finds(Mutation::EarlyRelease, &["not on disk"]);
}

#[test]
fn a_tool_without_an_intent_is_found() {
    // The second: it was ended before it ran, and the store has no step to record that in.
    finds(Mutation::LostIntent, &["its intent is not on disk", "has no step"]);
}

#[test]
fn a_request_that_is_not_sent_again_is_found() {
    finds(Mutation::NoResend, &["at rest"]);
}

#[test]
fn a_blind_second_run_is_found() {
    finds(Mutation::BlindRerun, &["had its effect twice"]);
}

#[test]
fn an_end_that_is_not_told_is_found() {
    finds(Mutation::DeafActor, &["at rest"]);
}

#[test]
fn a_revival_beside_a_living_process_is_found() {
    finds(Mutation::HastyDeath, &["two runtimes at once"]);
}

#[test]
fn a_claim_that_is_forgotten_is_found() {
    finds(Mutation::LostClaims, &["had its effect twice"]);
}

#[test]
fn a_path_whose_cut_is_not_written_is_found() {
    finds(Mutation::LostCut, &["is not the next turn", "the engine remembers"]);
}

#[test]
fn output_that_is_forgotten_before_it_is_archived_is_found() {
    finds(Mutation::EarlyForget, &["are archived, and its file is"]);
}

#[test]
fn a_job_that_starts_before_that_is_recorded_is_found() {
    finds(Mutation::LostStart, &["that it starts is not on disk"]);
}

#[test]
fn an_end_that_is_told_twice_is_found() {
    finds(Mutation::LostTold, &["is told twice"]);
}

#[test]
fn a_token_that_opens_doors_after_it_was_revoked_is_found() {
    finds(Mutation::DeafDoors, &["that token is"]);
}

#[test]
fn a_pull_that_a_new_daemon_does_not_ask_for_again_is_found() {
    finds(Mutation::LostPull, &["is pulling", "callers wait"]);
}

#[test]
fn what_was_pulled_and_is_not_held_until_it_is_recorded_is_found() {
    finds(Mutation::LoosePull, &["its contents are gone"]);
}

#[test]
fn an_answer_that_leaves_although_the_store_was_away_is_found() {
    finds(Mutation::AwayIsWritten, &["not on disk", "cannot be inserted", "is not there"]);
}

#[test]
fn a_collection_that_takes_what_an_agent_has_is_found() {
    finds(Mutation::GreedyCollection, &["its contents are gone", "is not here"]);
}

#[test]
fn an_agent_that_leaves_memory_before_it_is_on_disk_is_found() {
    finds(
        Mutation::EarlyRest,
        &[
            "left memory before it was on disk",
            "does not follow",
            "moved from",
            "for an agent that does not run",
        ],
    );
}
