//! How jobs end, and what is left of them.

use lodge_core::Cause;

use super::*;
use crate::jobs::Expiry;

#[test]
fn a_job_that_ended_is_archived_then_forgotten_and_then_nothing_is_held_of_it() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job(&agent);
    let ended = world.job_ends(&job, exited(3));
    assert!(ended.urgent);
    assert_eq!(kinds(&ended), [EventKind::JobFinished, EventKind::AgentReady]);
    assert_eq!(job_acts(&ended), [archive(&job)]);
    let row = world.job_row(&job);
    assert_eq!((row.progress.state, row.progress.exit_code), (JobState::Done, Some(3)));
    assert_eq!((row.progress.stdout.seen, row.progress.finished_at), (5, Some(NOW)));
    let archived = world.job_archived(&job);
    assert!(!archived.urgent, "that it is archived can be found out again");
    assert_eq!(job_acts(&archived), [forget(&job)]);
    assert_eq!(world.engine.sizes().jobs.held, 0);
    assert!(world.job_archived(&job).writes.is_empty() && world.job_ends(&job, exited(0)).writes.is_empty());
}

#[test]
fn a_job_without_output_needs_no_archive() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job(&agent);
    let batch = world.job_ends(&job, silent(ExecOutcome::Exited { code: 0 }));
    assert_eq!(job_acts(&batch), [forget(&job)]);
    assert!(world.job_row(&job).archived && world.engine.sizes().jobs.held == 0);
    // How much a lost job wrote is unknown.
    let lost = world.job(&agent);
    assert_eq!(job_acts(&world.job_ends(&lost, silent(ExecOutcome::Lost))), [archive(&lost)]);
}

#[test]
fn how_a_job_ended_decides_what_it_is_called() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let mut check = |timeout_ms: u64,
                     end: JobEnd,
                     state: JobState,
                     exit: (Option<i32>, Option<i32>),
                     error: Option<&str>| {
        let job = job_of(&world.submit_job(&agent, None, JobSpec { timeout_ms, ..work("sh") }));
        world.job_ends(&job, end);
        let progress = world.job_row(&job).progress;
        let found = (progress.state, (progress.exit_code, progress.signal), progress.error.as_deref());
        assert_eq!(found, (state, exit, error));
        progress.cause
    };
    let ended = |how, cause| JobEnd { how, cause, ..exited(0) };
    let why = |how, detail: &str| JobEnd { how, detail: Some(detail.into()), ..exited(0) };
    let (killed, nothing) = (ExecOutcome::Killed { signal: 9 }, (None, None));
    check(0, exited(7), JobState::Done, (Some(7), None), None);
    check(0, ended(killed, None), JobState::Done, (None, Some(9)), None);
    let oom = check(0, ended(killed, Some(Cause::Oom)), JobState::Done, (None, Some(9)), None);
    assert_eq!(oom, Some(Cause::Oom));
    let timeout = Some(Cause::Timeout);
    check(90_000, ended(killed, timeout), JobState::Error, (None, Some(9)), Some("timed out after 90 s"));
    check(
        120_000,
        ended(ExecOutcome::Exited { code: 0 }, timeout),
        JobState::Error,
        nothing,
        Some("timed out after 2 min"),
    );
    check(0, why(ExecOutcome::NotStarted, "no such file"), JobState::Error, nothing, Some("no such file"));
    check(0, silent(ExecOutcome::NotStarted), JobState::Error, nothing, Some("it could not be started"));
    check(
        0,
        why(ExecOutcome::Lost, "its sandbox died"),
        JobState::Error,
        nothing,
        Some("lost: its sandbox died"),
    );
}

#[test]
fn one_that_waits_is_cancelled_at_once_and_never_starts() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.see(Observation::Configured(Settings { max_jobs: 1, ..settings(10) }));
    let (runs, waits) = (world.job(&agent), world.job(&agent));
    let batch = world.cancel_job(&waits);
    assert_eq!(reply(&batch)["status"], "cancelled");
    assert_eq!(kinds(&batch), [EventKind::JobCancelled]);
    assert!(job_acts(&batch).is_empty() && world.job_row(&waits).archived);
    assert!(started(&world.job_ends(&runs, exited(0))).is_empty());
}

#[test]
fn one_that_runs_is_killed_and_cancelled_when_its_end_is_seen_whatever_that_is() {
    for end in [
        exited(0),
        silent(ExecOutcome::Killed { signal: 9 }),
        silent(ExecOutcome::NotStarted),
        silent(ExecOutcome::Lost),
    ] {
        let mut world = EngineWorld::new();
        let agent = world.agent();
        let job = world.job(&agent);
        let asked = world.cancel_job(&job);
        assert_eq!(
            (reply(&asked)["status"].as_str(), reply(&asked)["cancelling"].as_bool()),
            (Some("running"), Some(true))
        );
        assert_eq!(job_acts(&asked), [kill(&job)]);
        assert!(kinds(&asked).is_empty(), "it is not over");
        let ended = world.job_ends(&job, end.clone());
        assert_eq!(kinds(&ended), [EventKind::JobCancelled, EventKind::AgentReady]);
        let progress = world.job_row(&job).progress;
        assert_eq!((progress.state, progress.exit_code, progress.signal), (JobState::Cancelled, None, None));
        assert_eq!(progress.error.as_deref(), Some("cancelled on request"));
        assert_eq!(progress.stdout, end.stdout, "what was captured is kept");
    }
}

#[test]
fn a_cancellation_is_asked_for_twice_without_harm_and_refused_when_it_is_over() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job(&agent);
    world.cancel_job(&job);
    let again = world.cancel_job(&job);
    assert_eq!(reply(&again)["cancelling"], true);
    assert_eq!((again.writes.len(), job_acts(&again)), (0, vec![kill(&job)]));
    world.job_ends(&job, exited(0));
    assert_eq!(refusal(&world.cancel_job(&job)), "job.not_running");
    world.job_archived(&job);
    assert_eq!(refusal(&world.cancel_job(&job)), "job.not_running");
}

#[test]
fn after_a_crash_a_job_is_where_it_was_and_is_asked_for_again() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.see(Observation::Configured(Settings { max_jobs: 3, ..settings(10) }));
    let jobs: Vec<JobId> = (0..4).map(|_| world.job(&agent)).collect();
    world.cancel_job(&jobs[1]);
    world.job_ends(&jobs[2], exited(0));
    // The first runs, the second is being cancelled, the third has ended, the fourth started in the third's slot.
    let (mut world, batch) = world.reboot();
    assert_eq!(job_acts(&batch), [archive(&jobs[2])], "the rest waits for its keeper");
    let batch = world.ready(&agent);
    does(&batch, &[start(&jobs[0], true), kill(&jobs[1]), start(&jobs[3], true)]);
    world.job_ends(&jobs[1], exited(0));
    assert_eq!(world.job_state(&jobs[1]), JobState::Cancelled, "that somebody wanted it is not forgotten");
    world.job_ends(&jobs[0], exited(4));
    assert_eq!(world.job_row(&jobs[0]).progress.exit_code, Some(4));
}

#[test]
fn jobs_that_waited_start_with_the_next_daemon() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.see(Observation::Configured(Settings { max_jobs: 1, ..settings(10) }));
    let (runs, waits) = (world.job(&agent), world.job(&agent));
    let (engine, batch) = Engine::boot(world.loaded(), host(), IdSource::new(5), "0", NOW);
    world.engine = engine;
    world.keep(&batch);
    assert_eq!(started(&batch), std::slice::from_ref(&waits), "there are more places than there were");
    let batch = world.ready(&agent);
    does(&batch, &[start(&runs, true), start(&waits, true)]);
}

#[test]
fn what_a_keeper_runs_and_nobody_wants_is_killed_and_what_is_settled_is_forgotten() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (runs, over, unarchived) = (world.job(&agent), world.job(&agent), world.job(&agent));
    let cancelled = world.job(&agent);
    world.job_done(&over);
    world.job_ends(&unarchived, exited(0));
    world.cancel_job(&cancelled);
    let stray: JobId = "job_00000000000000000".parse().unwrap();
    let found = |running: &[&JobId], ended: &[&JobId]| {
        let own = |jobs: &[&JobId]| jobs.iter().map(|job| (*job).clone()).collect();
        Observation::Job(JobObservation::Found {
            agent: agent.clone(),
            running: own(running),
            ended: own(ended),
        })
    };
    let batch = world.see(found(&[&runs, &stray, &over], &[&unarchived]));
    assert_eq!(job_acts(&batch), [kill(&stray), kill(&over)]);
    assert!(batch.urgent && batch.writes.is_empty());
    let batch = world.see(found(&[], &[&runs, &stray, &over, &unarchived, &cancelled]));
    let asked = [start(&runs, true), forget(&stray), forget(&over), start(&cancelled, true)];
    assert_eq!(job_acts(&batch), asked, "whatever ended tells how, also one that was to be cancelled");
    world.job_ends(&cancelled, exited(0));
    assert_eq!(world.job_state(&cancelled), JobState::Cancelled);
}

#[test]
fn retention_takes_what_is_settled_and_nothing_else() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (runs, unarchived, untold) = (world.job(&agent), world.job(&agent), world.job_in(&agent, "s"));
    let old = world.job(&agent);
    world.job_ends(&unarchived, exited(0));
    world.job_done(&untold);
    world.job_done(&old);
    let all: Vec<JobId> = [&runs, &unarchived, &untold, &old].map(JobId::clone).to_vec();
    let removed = |batch: &Batch| match &acts(batch)[..] {
        [Effect::Job(JobEffect::RemoveOutput { jobs })] => jobs.clone(),
        other => panic!("{other:?}"),
    };
    let batch =
        world.see(Observation::Job(JobObservation::Expired { jobs: all.clone(), what: Expiry::Output }));
    assert_eq!(removed(&batch), [untold.clone(), old.clone()]);
    assert!(world.job_row(&untold).output_removed && !world.job_row(&runs).output_removed);
    let batch = world.see(Observation::Job(JobObservation::Expired { jobs: all, what: Expiry::All }));
    assert_eq!(removed(&batch), [untold.clone(), old]);
    assert_eq!(world.stored().len(), 2);
    assert!(world.engine.jobs.get(&untold).is_none());
    let nothing =
        world.see(Observation::Job(JobObservation::Expired { jobs: vec![runs], what: Expiry::All }));
    assert!(nothing.writes.is_empty() && nothing.after.is_empty());
}
