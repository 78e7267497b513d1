//! The simulation can fail: deliberate bugs in the simulated shell are found, each within a part of the budget.

use lodge_sim::{SimMutation, run};

const SEEDS: u64 = 300;
const STEPS: u64 = 3_000;

/// The first seed that finds the bug, and the violation.
fn find(mutation: SimMutation) -> (u64, String) {
    for seed in 1..=SEEDS {
        if let Err(failure) = run(seed, STEPS, mutation, 0) {
            return (seed, failure.what);
        }
    }
    panic!("{mutation:?} was not found in {SEEDS} seeds of {STEPS} steps");
}

/// The first failure contains one of these words.
fn finds(mutation: SimMutation, words: &[&str]) {
    let (seed, what) = find(mutation);
    println!("{mutation:?} found with seed {seed}: {what}");
    assert!(
        words.iter().any(|words| what.contains(words)),
        "{mutation:?} was found as something else, with seed {seed}: {what}"
    );
}

#[test]
fn a_reply_that_leaves_before_its_commit_is_found() {
    finds(SimMutation::EarlyRelease, &["not on disk"]);
}

#[test]
fn a_tool_without_an_intent_is_found() {
    // The second message: the exec ended before it ran, and the store has no step for it.
    finds(SimMutation::LostIntent, &["its intent is not on disk", "has no step"]);
}

#[test]
fn a_request_that_is_not_sent_again_is_found() {
    finds(SimMutation::NoResend, &["at rest"]);
}

#[test]
fn a_blind_second_run_is_found() {
    finds(SimMutation::BlindRerun, &["had its effect twice"]);
}

#[test]
fn an_end_that_is_not_reported_is_found() {
    finds(SimMutation::LostExecEnd, &["at rest"]);
}

#[test]
fn a_revival_beside_a_living_process_is_found() {
    finds(SimMutation::HastyDeath, &["two runtimes at once"]);
}

#[test]
fn a_claim_that_is_forgotten_is_found() {
    finds(SimMutation::LostClaims, &["had its effect twice"]);
}

#[test]
fn a_path_whose_cut_is_not_written_is_found() {
    finds(SimMutation::LostCut, &["is not the next turn", "the engine remembers"]);
}

#[test]
fn output_that_is_forgotten_before_it_is_archived_is_found() {
    finds(SimMutation::EarlyForget, &["are archived, and its file is"]);
}

#[test]
fn a_job_that_starts_before_its_start_is_recorded_is_found() {
    // A job whose start is not on disk is not started, so it may also show as one that others overtake.
    let laws = [
        "that it starts is not on disk",
        "a restart would find something else",
        "another one of its agent was before it",
    ];
    finds(SimMutation::LostStart, &laws);
}

#[test]
fn an_end_that_is_reported_twice_is_found() {
    finds(SimMutation::LostEndReport, &["is told twice"]);
}

#[test]
fn a_revoked_token_that_stays_valid_is_found() {
    finds(SimMutation::IgnoredRevocation, &["that token is"]);
}

#[test]
fn a_pull_that_a_new_daemon_does_not_resume_is_found() {
    finds(SimMutation::LostPull, &["is pulling", "callers wait"]);
}

#[test]
fn pulled_contents_without_a_pin_are_found() {
    finds(SimMutation::LoosePull, &["its contents are gone"]);
}

#[test]
fn an_answer_that_leaves_while_the_store_is_away_is_found() {
    finds(
        SimMutation::AwayIsWritten,
        &["not on disk", "not so on disk", "cannot be inserted", "is not there"],
    );
}

#[test]
fn a_collection_that_removes_contents_in_use_is_found() {
    finds(SimMutation::GreedyCollection, &["its contents are gone", "is not here"]);
}

#[test]
fn a_restart_that_forgets_why_turns_wait_is_found() {
    finds(SimMutation::LostWait, &["tries provider p, and"]);
}

#[test]
fn a_finished_tool_that_a_retried_turn_runs_again_is_found() {
    finds(SimMutation::LostResults, &["which continues it"]);
}

#[test]
fn an_agent_that_leaves_memory_before_it_is_on_disk_is_found() {
    finds(
        SimMutation::EarlyRest,
        &[
            "left memory before it was on disk",
            "does not follow",
            "moved from",
            "for an agent that does not run",
        ],
    );
}
