//! Kill -9 at any moment: acknowledged work is present, running work continues, nothing happens twice.

use lodge_testkit::crash::{self, BrokenPromise, CrashModel, CrashReport, CrashSetup, RunningTool, Victim};

const SCRIPT_SEED: u64 = 0x10d6e;
const OPENAI_SEED: u64 = 0x0a1c5;
const PARTS_SEED: u64 = 0xba475;
const POINTS_SEED: u64 = 0x90147;
const LIVES_SEED: u64 = 0x11fe5;
const PULLS_SEED: u64 = 0x9a11;
const CHANGES_SEED: u64 = 0xc4a9e;
const RESTART_SEED: u64 = 0x5e57;
const INTERRUPT_SEED: u64 = 0x1a7e;
const STRUCK_SEED: u64 = 0xdead;
const LEFT_SEED: u64 = 0x1ef7;
const JOBS_SEED: u64 = 0x10b5;
const PILL_SEED: u64 = 0xb177e4;
const MUTATION_SEED: u64 = 0xb09;
/// Of each of the three tests at random: with those of the others, more than a thousand.
const KILLS: u64 = 320;
/// For a test in which agents die more often than daemons.
const PARTS: [Victim; 4] =
    [Victim::Runtime, Victim::Keeper, Victim::DaemonAndRuntime, Victim::DaemonAndKeeper];

fn run(what: &str, seed: u64, future: impl Future<Output = CrashReport>) -> CrashReport {
    println!("{what}: to repeat, set LODGE_CRASH_SEED={seed}");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let report = runtime.expect("a runtime").block_on(future);
    println!("{what}\n{report}");
    report
}

async fn rounds(setup: &CrashSetup, kills: u64) -> CrashReport {
    crash::rounds(setup, kills).await.unwrap_or_else(CrashReport::from)
}

#[track_caller]
fn assert_clean(report: &CrashReport) {
    assert!(report.is_clean(), "\n{report}");
}

#[test]
fn random_kills_lose_and_double_nothing_with_the_script_model() {
    let (seed, kills) = (crash::seed_or(SCRIPT_SEED), crash::kills_or(KILLS));
    let report = run("script", seed, rounds(&crash::setup(CrashModel::Script, seed), kills));
    assert_clean(&report);
    assert!(report.kills >= kills && report.busy_kills >= kills / 4, "\n{report}");
}

#[test]
fn random_kills_lose_and_double_nothing_with_an_openai_provider_whose_streams_are_cut() {
    let (seed, kills) = (crash::seed_or(OPENAI_SEED), crash::kills_or(KILLS));
    let report = run("openai", seed, rounds(&crash::setup(CrashModel::OpenAi, seed), kills));
    assert_clean(&report);
    assert!(report.kills >= kills && report.busy_kills >= kills / 4, "\n{report}");
    assert!(report.requests > report.acknowledged, "\n{report}");
}

#[test]
fn random_kills_of_runtimes_and_keepers_cost_no_turn_and_make_unknown_only_what_they_cut() {
    let (seed, kills) = (crash::seed_or(PARTS_SEED), crash::kills_or(KILLS));
    let setup = CrashSetup { victims: &PARTS, ..crash::setup(CrashModel::OpenAi, seed) };
    let report = run("parts", seed, rounds(&setup, kills));
    assert_clean(&report);
    let died = |victim| report.victims.get(victim).copied().unwrap_or(0);
    assert!(died("runtime") >= kills / 20 && died("keeper") >= kills / 20, "\n{report}");
    assert!(report.replaced >= died("keeper") / 2, "\n{report}");
}

#[test]
fn every_named_point_is_hit_and_survived_with_the_script_model() {
    let seed = crash::seed_or(POINTS_SEED);
    assert_clean(&run(
        "points, script",
        seed,
        crash::named_points(&crash::setup(CrashModel::Script, seed), 2),
    ));
}

#[test]
fn every_named_point_is_hit_and_survived_with_an_openai_provider() {
    let seed = crash::seed_or(POINTS_SEED + 1);
    assert_clean(&run(
        "points, openai",
        seed,
        crash::named_points(&crash::setup(CrashModel::OpenAi, seed), 2),
    ));
}

#[test]
fn an_image_that_is_kept_or_pulled_when_the_daemon_dies_is_gone_on_with_and_its_agent_is_there_once() {
    for point in ["after_image_kept", "during_pull", "after_pulled"] {
        let seed = crash::seed_or(PULLS_SEED);
        let report = run(point, seed, crash::die_at(&crash::setup(CrashModel::Script, seed), point, 3));
        assert_clean(&report);
        assert_eq!(report.points.get(point), Some(&3), "\n{report}");
    }
}

#[test]
fn a_daemon_that_is_restarted_under_load_fails_no_turn_and_loses_no_event() {
    let seed = crash::seed_or(RESTART_SEED);
    let report = run("restarts", seed, crash::restarts(&crash::setup(CrashModel::OpenAi, seed), 20));
    assert_clean(&report);
    assert!((report.kills, report.restarts) == (0, 20) && report.acknowledged >= 20, "\n{report}");
}

#[test]
fn agents_that_are_created_stopped_started_and_removed_through_kills_are_as_they_were_told_to_be() {
    let (seed, kills) = (crash::seed_or(LIVES_SEED), crash::kills_or(40));
    assert_clean(&run("lives", seed, crash::agents_lives(&crash::setup(CrashModel::Script, seed), kills)));
}

#[test]
fn changes_of_sessions_agents_and_tokens_through_kills_are_there_once_they_were_acknowledged_and_there_once()
{
    for (seed, model) in [(CHANGES_SEED, CrashModel::Script), (CHANGES_SEED + 1, CrashModel::OpenAi)] {
        let (seed, kills) = (crash::seed_or(seed), crash::kills_or(30));
        assert_clean(&run("changes", seed, crash::changes(&crash::setup(model, seed), kills)));
    }
}

#[test]
fn jobs_through_kills_of_everybody_are_neither_lost_nor_run_twice_and_every_byte_of_them_is_there() {
    for (seed, victims) in [(JOBS_SEED, &Victim::USUAL[..]), (JOBS_SEED + 1, &PARTS)] {
        let (seed, kills) = (crash::seed_or(seed), crash::kills_or(40));
        let setup = CrashSetup { victims, ..crash::setup(CrashModel::OpenAi, seed) };
        let report = run("jobs", seed, crash::jobs_alone(&setup, kills));
        assert_clean(&report);
        assert!(report.jobs >= kills / 2 && report.job_bytes > 100_000 && report.job_notes > 0, "\n{report}");
    }
}

#[test]
fn the_tool_of_an_interrupted_turn_is_ended_although_the_daemon_died_first() {
    let seed = crash::seed_or(INTERRUPT_SEED);
    assert_clean(&run(
        "interrupts",
        seed,
        crash::interrupted_tools(&crash::setup(CrashModel::Script, seed), 2),
    ));
}

#[test]
fn a_tool_that_ended_before_its_keeper_died_is_not_run_again_and_its_result_is_used() {
    let seed = crash::seed_or(STRUCK_SEED);
    let report = run("struck", seed, crash::struck_after_the_end(&crash::setup(CrashModel::OpenAi, seed)));
    assert_clean(&report);
    assert_eq!((report.unknown, report.effects), (0, 2), "\n{report}");
}

#[test]
fn a_pill_is_set_aside_after_three_deaths_and_everything_else_is_as_after_any_kill() {
    for (seed, model) in [(PILL_SEED, CrashModel::Script), (PILL_SEED + 1, CrashModel::OpenAi)] {
        let seed = crash::seed_or(seed);
        let report = run("pill", seed, crash::pill(&crash::setup(model, seed)));
        assert_clean(&report);
        assert_eq!(report.kills, 5, "\n{report}");
    }
}

fn struck(seed: u64, victim: Victim, tool: RunningTool) -> CrashReport {
    let seed = crash::seed_or(STRUCK_SEED + seed);
    let report = run("struck", seed, crash::struck(&crash::setup(CrashModel::OpenAi, seed), victim, tool));
    assert_clean(&report);
    report
}

#[test]
fn a_tool_goes_on_when_its_runtime_dies_and_the_turn_takes_its_result() {
    for (seed, victim) in [(1, Victim::Runtime), (2, Victim::DaemonAndRuntime)] {
        let report = struck(seed, victim, RunningTool::Short);
        assert_eq!((report.unknown, report.effects, report.replaced), (0, 2, 0), "{victim:?}\n{report}");
        assert_eq!(report.victims.get("runtime"), Some(&1), "{victim:?}\n{report}");
    }
}

#[test]
fn a_tool_that_died_with_its_keeper_is_reported_as_unknown_and_not_run_again() {
    for (seed, victim) in [(3, Victim::Keeper), (4, Victim::DaemonAndKeeper)] {
        let report = struck(seed, victim, RunningTool::Long);
        assert_eq!((report.unknown, report.effects, report.replaced), (1, 1, 1), "{victim:?}\n{report}");
    }
}

#[test]
fn a_safe_tool_that_died_with_its_keeper_runs_again() {
    for (seed, victim) in [(5, Victim::Keeper), (6, Victim::DaemonAndKeeper)] {
        let report = struck(seed, victim, RunningTool::Safe);
        assert_eq!((report.unknown, report.repeated, report.effects), (0, 1, 3), "{victim:?}\n{report}");
    }
}

#[test]
fn a_daemon_that_a_tool_left_behind_outlives_lodged_but_neither_its_keeper_nor_the_stop_of_its_agent() {
    let seed = crash::seed_or(LEFT_SEED);
    let report = run("left", seed, crash::left_daemons(&crash::setup(CrashModel::OpenAi, seed)));
    assert_clean(&report);
    assert_eq!((report.kills, report.effects, report.replaced), (2, 4, 1), "\n{report}");
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_replies_before_the_commit_is_noticed() {
    let seed = crash::seed_or(MUTATION_SEED);
    let setup = crash::setup(CrashModel::Script, seed).broken_by("reply-before-commit");
    let report = run("mutation", seed, crash::die_at(&setup, "before_commit", 4));
    assert!(report.count(BrokenPromise::Lost) > 0, "\n{report}");
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_acknowledges_changes_before_the_commit_is_noticed() {
    let seed = crash::seed_or(MUTATION_SEED + 3);
    let setup = crash::setup(CrashModel::Script, seed).broken_by("reply-before-commit");
    let report = run("mutation", seed, crash::changes(&setup, 60));
    assert!(report.count(BrokenPromise::Lost) + report.count(BrokenPromise::Duplicated) > 0, "\n{report}");
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_starts_tools_without_an_intent_is_noticed() {
    let seed = crash::seed_or(MUTATION_SEED + 1);
    let setup = crash::setup(CrashModel::Script, seed).broken_by("drop-intent");
    let report = run("mutation", seed, crash::die_at(&setup, "during_effect", 4));
    assert!(report.count(BrokenPromise::Duplicated) > 0, "\n{report}");
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_repeats_what_may_have_happened_is_noticed() {
    let seed = crash::seed_or(MUTATION_SEED + 2);
    let setup = crash::setup(CrashModel::Script, seed).broken_by("repeat-unsafe");
    let report = run("mutation", seed, crash::struck(&setup, Victim::Keeper, RunningTool::Long));
    assert!(report.count(BrokenPromise::Duplicated) > 0, "\n{report}");
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_removes_output_before_it_is_archived_is_noticed() {
    let seed = crash::seed_or(MUTATION_SEED + 4);
    let setup = crash::setup(CrashModel::Script, seed).broken_by("forget-before-archive");
    let report = run("mutation", seed, crash::die_at(&setup, "before_archive", 4));
    assert!(report.count(BrokenPromise::Lost) > 0, "\n{report}");
}

#[cfg(debug_assertions)]
#[test]
fn a_daemon_that_acknowledges_jobs_before_the_commit_is_noticed() {
    let seed = crash::seed_or(MUTATION_SEED + 5);
    let setup = crash::setup(CrashModel::Script, seed).broken_by("reply-before-commit");
    let report = run("mutation", seed, crash::jobs_die_at(&setup, "before_commit", 6));
    assert!(report.count(BrokenPromise::Lost) > 0, "\n{report}");
}
