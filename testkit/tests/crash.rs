//! Kill -9, at any instant: what was acknowledged is there, what was running goes on, nothing happens twice.

use lodge_testkit::crash::{self, Broken, Model, Report, Tool};

const SCRIPT_SEED: u64 = 0x10d6e;
const OPENAI_SEED: u64 = 0x0a1c5;
const POINTS_SEED: u64 = 0x90147;
const LIVES_SEED: u64 = 0x11fe5;
const INTERRUPT_SEED: u64 = 0x1a7e;
const KEEPER_SEED: u64 = 0xdead;
const MUTATION_SEED: u64 = 0xb09;
/// Of each of the two providers.
const KILLS: u64 = 150;

fn run(what: &str, seed: u64, future: impl Future<Output = Report>) -> Report {
    println!("{what}: to repeat, set LODGE_CRASH_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let report = runtime.expect("a runtime").block_on(future);
    println!("{what}\n{report}");
    report
}

#[track_caller]
fn assert_clean(report: &Report) {
    assert!(report.is_clean(), "\n{report}");
}

#[test]
fn random_kills_lose_and_double_nothing_with_the_script_model() {
    let (seed, kills) = (crash::seed_or(SCRIPT_SEED), crash::kills_or(KILLS));
    let report = run("script", seed, crash::random_kills(Model::Script, seed, kills));
    assert_clean(&report);
    assert!(report.kills >= kills && report.busy_kills > kills / 2, "\n{report}");
}

#[test]
fn random_kills_lose_and_double_nothing_with_an_openai_provider_whose_streams_are_cut() {
    let (seed, kills) = (crash::seed_or(OPENAI_SEED), crash::kills_or(KILLS));
    let report = run("openai", seed, crash::random_kills(Model::OpenAi, seed, kills));
    assert_clean(&report);
    assert!(report.kills >= kills && report.busy_kills > kills / 2, "\n{report}");
    assert!(report.requests > report.acknowledged, "\n{report}");
}

#[test]
fn every_named_point_is_hit_and_survived_with_the_script_model() {
    let seed = crash::seed_or(POINTS_SEED);
    assert_clean(&run("points, script", seed, crash::named_points(Model::Script, seed, 2)));
}

#[test]
fn every_named_point_is_hit_and_survived_with_an_openai_provider() {
    let seed = crash::seed_or(POINTS_SEED + 1);
    assert_clean(&run("points, openai", seed, crash::named_points(Model::OpenAi, seed, 2)));
}

#[test]
fn agents_that_are_created_stopped_started_and_removed_through_kills_are_as_they_were_told_to_be() {
    let (seed, kills) = (crash::seed_or(LIVES_SEED), crash::kills_or(40));
    assert_clean(&run("lives", seed, crash::agents_lives(Model::Script, seed, kills)));
}

#[test]
fn the_tool_of_an_interrupted_turn_is_ended_although_the_daemon_died_first() {
    let seed = crash::seed_or(INTERRUPT_SEED);
    assert_clean(&run("interrupts", seed, crash::interrupted_tools(Model::Script, seed, 2)));
}

#[test]
fn a_tool_that_ended_before_its_keeper_died_is_not_run_again_and_its_result_is_used() {
    let seed = crash::seed_or(KEEPER_SEED);
    assert_clean(&run("keeper", seed, crash::dead_keeper(Model::OpenAi, seed, Tool::Ended)));
}

#[test]
fn a_tool_that_died_with_its_keeper_is_told_as_unknown_and_not_run_again() {
    let seed = crash::seed_or(KEEPER_SEED + 1);
    assert_clean(&run("keeper", seed, crash::dead_keeper(Model::Script, seed, Tool::Running)));
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_replies_before_the_commit_is_noticed() {
    let seed = crash::seed_or(MUTATION_SEED);
    let report = run("mutation", seed, crash::mutated("reply-before-commit", "before_commit", seed, 4));
    assert!(report.count(Broken::Lost) > 0, "\n{report}");
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_starts_tools_without_an_intent_is_noticed() {
    let seed = crash::seed_or(MUTATION_SEED + 1);
    let report = run("mutation", seed, crash::mutated("drop-intent", "during_effect", seed, 4));
    assert!(report.count(Broken::Duplicated) > 0, "\n{report}");
}
