//! Which jobs run: a limited number at a time, fair between agents, in order within an agent.

use lodge_core::limits::{
    AGENT_JOBS_PENDING_MAX, AGENT_JOBS_PENDING_OWN, AGENT_TURNS_MAX, JOBS_PENDING_MAX, JOBS_UNARCHIVED_MAX,
};

use lodge_core::record::LimitsRecord;

use super::*;
use crate::{AgentCommand, AgentObservation, SandboxEffect, TurnCommand};

impl EngineWorld {
    fn with_places(max_jobs: usize) -> EngineWorld {
        let mut world = EngineWorld::new();
        world.see(Observation::Configured(Settings { max_jobs, ..settings(10) }));
        world
    }

    fn jobs(&mut self, agent: &AgentId, count: usize) -> Vec<JobId> {
        (0..count).map(|_| self.job(agent)).collect()
    }
}

#[test]
fn a_job_is_recorded_before_it_is_acknowledged_and_started_after() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let batch = world.submit_job(&agent, Some("s"), work("sh"));
    let job = job_of(&batch);
    assert!(batch.urgent && batch.early.is_empty());
    assert_eq!(kinds(&batch), [EventKind::JobSubmitted, EventKind::JobStarted, EventKind::AgentWorking]);
    assert_eq!(job_acts(&batch), [start(&job, false)]);
    let view = reply(&batch);
    assert_eq!(view["status"], "running");
    assert_eq!(view["labels"], json!({"io.lodge.session-id": "s"}));
    let row = world.job_row(&job);
    assert_eq!(row.progress.boot.as_deref(), Some("boot-1"));
    assert_eq!((row.request.output_bytes, row.progress.started_at), (1 << 20, Some(NOW)));
}

#[test]
fn an_agent_works_from_its_first_turn_or_job_in_flight_to_the_end_of_the_last() {
    let mut world = EngineWorld::with_places(1);
    let agent = world.agent();
    let states = |batch: &Batch| -> Vec<EventKind> {
        let is_state = |kind: &EventKind| matches!(kind, EventKind::AgentWorking | EventKind::AgentReady);
        kinds(batch).into_iter().filter(is_state).collect()
    };
    let submitted = world.submit_job(&agent, None, work("sh"));
    assert_eq!(states(&submitted), [EventKind::AgentWorking]);
    let waits = world.submit_job(&agent, None, work("sh"));
    let sent = world.send(&agent, "s", "hi");
    let first_ended = world.job_ends(&job_of(&submitted), exited(0));
    let interrupted = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn_of(&sent) }));
    for batch in [&waits, &sent, &first_ended, &interrupted] {
        assert!(states(batch).is_empty(), "{:?}", kinds(batch));
    }
    assert_eq!(
        reply(&world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() })))["status"],
        "working"
    );
    assert_eq!(states(&world.job_ends(&job_of(&waits), exited(0))), [EventKind::AgentReady]);
}

#[test]
fn only_so_many_run_and_the_oldest_is_next() {
    let mut world = EngineWorld::with_places(2);
    let agent = world.agent();
    let jobs = world.jobs(&agent, 4);
    assert_eq!(world.states(&jobs), ["running", "running", "pending", "pending"]);
    let batch = world.job_ends(&jobs[1], exited(0));
    assert_eq!(started(&batch), [jobs[2].clone()]);
    world.job_ends(&jobs[0], exited(0));
    assert_eq!(world.states(&jobs), ["done", "done", "running", "running"]);
}

#[test]
fn more_places_are_taken_at_once_and_fewer_end_nothing() {
    let mut world = EngineWorld::with_places(1);
    let agent = world.agent();
    let jobs = world.jobs(&agent, 3);
    world.see(Observation::Configured(Settings { max_jobs: 3, ..settings(10) }));
    assert_eq!(world.states(&jobs), ["running"; 3]);
    let last = world.job(&agent);
    world.see(Observation::Configured(Settings { max_jobs: 1, ..settings(10) }));
    assert_eq!(world.states(&jobs), ["running"; 3]);
    world.job_ends(&jobs[0], exited(0));
    assert_eq!(world.job_state(&last), JobState::Pending, "two still run, of one that may");
}

#[test]
fn a_free_slot_goes_to_the_agent_with_the_fewest_running_jobs() {
    let mut world = EngineWorld::with_places(4);
    let (greedy, modest) = (world.agent(), world.agent());
    let many = world.jobs(&greedy, 5);
    let few = world.jobs(&modest, 2);
    assert_eq!(world.states(&many), ["running", "running", "running", "running", "pending"]);
    assert_eq!(world.states(&few), ["running", "pending"], "the first has an extra slot");
    assert!(started(&world.job_ends(&many[0], exited(0))).is_empty(), "four still run, of four that may");
    assert_eq!(started(&world.job_ends(&many[1], exited(0))), [few[1].clone()], "it has fewer that run");
}

#[test]
fn endless_jobs_of_one_agent_do_not_block_the_first_job_of_another() {
    for max in [1, 2, 10] {
        let mut world = EngineWorld::with_places(max);
        let greedy = world.agent();
        let endless = world.jobs(&greedy, max + 3);
        let running = |world: &EngineWorld| world.engine.sizes().jobs.running;
        assert_eq!(running(&world), max, "any agent may use all shared slots");
        let others: Vec<AgentId> = (0..=max).map(|_| world.agent()).collect();
        let firsts: Vec<JobId> = others.iter().map(|agent| world.job(agent)).collect();
        assert_eq!(world.states(&firsts[..max]), vec!["running"; max]);
        assert_eq!(world.states(&firsts[max..]), ["pending"], "there are as many extra slots as shared ones");
        let second = world.job(&others[0]);
        assert_eq!(world.job_state(&second), JobState::Pending, "an extra slot is for a first job alone");
        // A freed extra slot goes only to the next agent that has none.
        assert_eq!(started(&world.job_ends(&firsts[max - 1], exited(0))), [firsts[max].clone()]);
        let batch = world.job_ends(&firsts[max], exited(0));
        assert!(started(&batch).iter().all(|job| *job == second && max == 1), "{:?}", started(&batch));
        assert_eq!(world.states(&endless[max..]), ["pending"; 3]);
        assert!(running(&world) <= 2 * max);
    }
}

#[test]
fn extra_slots_survive_a_restart_and_are_given_back() {
    let mut world = EngineWorld::with_places(1);
    let (greedy, modest) = (world.agent(), world.agent());
    let endless = world.jobs(&greedy, 2);
    let first = world.job(&modest);
    let one = Host { settings: Settings { max_jobs: 1, ..settings(10) }, ..host() };
    let (engine, batch) = Engine::boot(world.loaded(), one, IdSource::new(9), "0", NOW);
    assert!(started(&batch).is_empty());
    let mut world = EngineWorld { engine, written: world.written, stored: BTreeMap::new(), tickets: 0 };
    world.keep(&batch);
    assert_eq!(world.states(&[endless[0].clone(), first.clone()]), ["running"; 2]);
    assert!(started(&world.job_ends(&first, exited(0))).is_empty());
    assert_eq!(started(&world.job_ends(&endless[0], exited(0))), [endless[1].clone()]);
}

#[test]
fn of_agents_with_as_many_that_run_the_one_that_waits_longest_is_next() {
    let mut world = EngineWorld::with_places(1);
    let agents: Vec<AgentId> = (0..4).map(|_| world.agent()).collect();
    let mut runs = vec![world.job(&agents[0]), world.job(&agents[3])];
    let third = world.job(&agents[2]);
    let second = world.job(&agents[1]);
    let last = world.job(&agents[0]);
    let mut order = Vec::new();
    while let Some(ends) = (!runs.is_empty()).then(|| runs.remove(0)) {
        let next = started(&world.job_ends(&ends, exited(0)));
        order.extend(next.iter().cloned());
        runs.extend(next);
    }
    assert_eq!(order, [third, second, last]);
}

#[test]
fn a_priority_orders_the_jobs_of_one_agent_and_takes_no_turn_of_another() {
    let mut world = EngineWorld::with_places(1);
    let (one, two, three) = (world.agent(), world.agent(), world.agent());
    let runs = world.job(&one);
    let extra = world.job(&three);
    let older = world.job(&two);
    let with = |world: &mut EngineWorld, priority| {
        job_of(&world.submit_job(&one, None, JobSpec { priority, ..work("sh") }))
    };
    let (low, plain, high) = (with(&mut world, -5), with(&mut world, 0), with(&mut world, 100));
    let mut order = started(&world.job_ends(&extra, exited(0)));
    assert_eq!(order, std::slice::from_ref(&older));
    assert!(started(&world.job_ends(&older, exited(0))).is_empty(), "the shared slot is taken");
    let mut ends = runs;
    while let [next] = &started(&world.job_ends(&ends, exited(0)))[..] {
        order.push(next.clone());
        ends = next.clone();
    }
    assert_eq!(order, [older, high, plain, low]);
}

#[test]
fn the_order_of_those_that_wait_survives_a_restart() {
    let mut world = EngineWorld::with_places(1);
    let agent = world.agent();
    let runs = world.job(&agent);
    let with = |world: &mut EngineWorld, priority| {
        job_of(&world.submit_job(&agent, None, JobSpec { priority, ..work("sh") }))
    };
    let (low, high) = (with(&mut world, 1), with(&mut world, 2));
    let places = |world: &EngineWorld| {
        let mut loaded = world.loaded();
        loaded.jobs.reverse();
        loaded
    };
    let one = Host { settings: Settings { max_jobs: 1, ..settings(10) }, ..host() };
    let (engine, batch) = Engine::boot(places(&world), one, IdSource::new(9), "0", NOW);
    assert!(started(&batch).is_empty(), "one runs");
    let mut world = EngineWorld { engine, written: world.written, stored: BTreeMap::new(), tickets: 0 };
    world.keep(&batch);
    assert_eq!(started(&world.job_ends(&runs, exited(0))), std::slice::from_ref(&high));
    assert_eq!(started(&world.job_ends(&high, exited(0))), [low]);
}

#[test]
fn what_cannot_be_run_is_refused_in_the_order_of_the_checks_and_nothing_is_written() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let refused = |world: &mut EngineWorld, agent: &AgentId, work: JobSpec| {
        let batch = world.submit_job(agent, None, work);
        assert!(batch.writes.is_empty());
        refusal(&batch)
    };
    let gone: AgentId = "agt_00000000000000000".parse().unwrap();
    assert_eq!(refused(&mut world, &gone, work("")), "agent.not_found");
    assert_eq!(refused(&mut world, &agent, work("")), "params.invalid");
    assert_eq!(refused(&mut world, &agent, work("rm")), "bin.not_declared");
    let reserved = BTreeMap::from([("io.lodge.session-id".to_owned(), "other".to_owned())]);
    let forged = JobSpec { labels: reserved, ..work("sh") };
    assert_eq!(refused(&mut world, &agent, forged), "job.label_reserved");
    assert_eq!(refused(&mut world, &agent, JobSpec { priority: 101, ..work("sh") }), "params.invalid");
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!(refused(&mut world, &agent, work("rm")), "agent.not_running");
    assert_eq!(refused(&mut world, &agent, work("")), "params.invalid");
}

#[test]
fn an_undeclared_bin_is_refused_with_the_declared_ones_in_order() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let message = |world: &mut EngineWorld| {
        let batch = world.submit_job(&agent, None, work("rm"));
        let [BatchOutput::Reply { reply: Err(error), .. }] = &batch.after[..] else { panic!("one refusal") };
        error.to_string()
    };
    assert!(message(&mut world).ends_with("it has: date, sh"));
    world.engine.agents.get_mut(&agent).unwrap().row.spec.tools.clear();
    assert!(message(&mut world).ends_with("it has: (none)"));
}

#[test]
fn a_session_of_another_agent_has_no_jobs_of_this_one() {
    let mut world = EngineWorld::new();
    let (one, two) = (world.agent(), world.agent());
    world.send(&one, "s", "hi");
    let batch = world.submit_job(&two, Some("s"), work("sh"));
    assert_eq!(refusal(&batch), "session.other_agent");
    assert!(batch.writes.is_empty());
}

#[test]
fn queues_are_bounded_for_an_agent_and_for_the_daemon() {
    let mut world = EngineWorld::with_places(1);
    let agents: Vec<AgentId> = (0..5).map(|_| world.agent()).collect();
    let runs = world.job(&agents[0]);
    world.jobs(&agents[0], AGENT_JOBS_PENDING_MAX);
    assert_eq!(refusal(&world.submit_job(&agents[0], None, work("sh"))), "job.queue_full");
    world.job(&agents[1]);
    let mut waiting = AGENT_JOBS_PENDING_MAX;
    for agent in &agents[1..4] {
        let count = AGENT_JOBS_PENDING_MAX.min(JOBS_PENDING_MAX - waiting);
        world.jobs(agent, count);
        waiting += count;
    }
    assert_eq!(world.engine.sizes().jobs.pending, JOBS_PENDING_MAX);
    assert_eq!(refusal(&world.submit_job(&agents[1], None, work("sh"))), "job.queue_full");
    world.jobs(&agents[4], AGENT_JOBS_PENDING_OWN);
    assert_eq!(refusal(&world.submit_job(&agents[4], None, work("sh"))), "job.queue_full");
    while world.engine.sizes().jobs.pending >= JOBS_PENDING_MAX {
        let next = world.engine.jobs.all().find(|row| row.progress.state == JobState::Running);
        let next = next.map(|row| row.id.clone()).unwrap_or_else(|| runs.clone());
        world.job_ends(&next, exited(0));
    }
    world.job(&agents[4]);
}

#[test]
fn a_job_keeps_a_part_of_what_its_agent_may_have_on_disk() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let mut kept = |disk_bytes: Option<u64>, output_bytes: u64| {
        let limits = LimitsRecord { disk_bytes, ..LimitsRecord::default() };
        world.engine.agents.get_mut(&agent).unwrap().row.spec.limits = Some(limits);
        let job = job_of(&world.submit_job(&agent, None, JobSpec { output_bytes, ..work("sh") }));
        world.job_row(&job).request.output_bytes
    };
    assert_eq!([kept(None, 0), kept(None, 1 << 30)], [1 << 20, 1 << 30]);
    assert_eq!([kept(Some(1 << 30), 0), kept(Some(1 << 30), 1 << 30)], [1 << 20, 1 << 27]);
    assert_eq!(kept(Some(0), 1 << 20), 4096, "the least that can be kept");
}

#[test]
fn nothing_starts_while_too_much_output_is_not_in_the_archive() {
    let mut world = EngineWorld::with_places(1);
    let agent = world.agent();
    let mut ended = Vec::new();
    for _ in 0..JOBS_UNARCHIVED_MAX {
        let job = world.job(&agent);
        world.job_ends(&job, exited(0));
        ended.push(job);
    }
    let waits = world.job(&agent);
    assert_eq!(world.job_state(&waits), JobState::Pending);
    let batch = world.job_archived(&ended[7]);
    assert_eq!(started(&batch), [waits]);
}

#[test]
fn jobs_wait_for_an_agent_that_starts_and_for_one_that_is_revived() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    let early = world.job(&agent);
    assert_eq!(world.job_state(&early), JobState::Pending);
    assert_eq!(started(&world.ready(&agent)), std::slice::from_ref(&early));
    let run = world.engine.agents[&agent].row.runs;
    let (part, detail) = (AgentComponent::Runtime, "x".to_owned());
    world.see(Observation::Agent(AgentObservation::Died { agent: agent.clone(), run, part, detail }));
    let late = world.job(&agent);
    assert_eq!(
        world.states(&[early.clone(), late.clone()]),
        ["running", "pending"],
        "jobs outlive their runtime"
    );
    let batch = world.ready(&agent);
    assert_eq!(job_acts(&batch), [start(&early, true), start(&late, false)]);
}

#[test]
fn that_a_job_writes_is_an_event_now_and_then_and_forces_no_commit() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let job = world.job(&agent);
    let mut wrote = |at: i64| {
        let seen = JobObservation::Output { job: job.clone(), stdout: 7, stderr: 3 };
        let batch = world.engine.step([Input::Seen(Observation::Job(seen))], Timestamp::from_ms(at));
        assert!(!batch.urgent && batch.after.is_empty());
        kinds(&batch).len()
    };
    assert_eq!([wrote(1_000), wrote(1_100), wrote(1_999), wrote(2_000), wrote(2_001)], [1, 0, 0, 1, 0]);
    assert_eq!(wrote(500), 1, "a clock that was set back silences nothing");
}

/// Two agents and one slot; a turn of the first waits for its job.
fn one_asleep() -> (EngineWorld, [AgentId; 2], TurnId, JobId) {
    let mut world = EngineWorld::new();
    world.see(Observation::Configured(settings(1)));
    let (one, two) = (world.agent(), world.agent());
    let job = world.job_in(&one, "s");
    let turn = world.calling(&one, "s", "job_wait");
    world.wish(&one, &turn, JobToolRequest::Wait { job: job.clone() });
    (world, [one, two], turn, job)
}

#[test]
fn an_agent_that_waits_for_a_job_gives_its_slot_to_another_and_has_it_again_when_there_is_one() {
    let (mut world, [one, two], turn, job) = one_asleep();
    assert_eq!(world.state(&turn), TurnState::Running, "nobody else wants its slot");
    let batch = world.send(&two, "t", "hi");
    let other = turn_of(&batch);
    let drops = |effect: &&Effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::DropTurn { turn: dropped, .. }, .. } if *dropped == turn);
    assert_eq!(acts(&batch).iter().filter(|effect| drops(effect)).count(), 1);
    assert_eq!([&turn, &other].map(|turn| world.state(turn)), [TurnState::Waiting, TurnState::Running]);
    world.job_done(&job);
    let asked = ToolCallRef { turn: turn.clone(), step: 1, call: "c1".into() };
    let batch = world.read_answers(asked, "it is done", &[&job]);
    assert!(
        !acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Answer { .. }, .. })),
        "nobody waits for it"
    );
    assert_eq!(world.state(&turn), TurnState::Waiting, "the slot is taken");
    let batch = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: other }));
    let goes_on = |effect: &&Effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::RunTurn { turn: run, step: 2, calls, .. }, .. } if *run == turn && calls.is_empty());
    assert_eq!(acts(&batch).iter().filter(|effect| goes_on(effect)).count(), 1);
    assert_eq!((world.state(&turn), world.engine.sizes().working), (TurnState::Running, 1));
    assert_eq!(world.engine.agents[&one].running, 1);
}

#[test]
fn a_turn_that_gave_its_slot_away_has_a_free_one_back_before_its_job_ends() {
    let (mut world, [one, two], turn, job) = one_asleep();
    let other = turn_of(&world.send(&two, "t", "hi"));
    let batch = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: other }));
    assert_eq!(world.state(&turn), TurnState::Running);
    let again = |effect: &&Effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::RunTurn { turn: run, calls, .. }, .. } if *run == turn && calls.len() == 1);
    assert_eq!(acts(&batch).iter().filter(|effect| again(effect)).count(), 1);
    // Its runtime asks again, and one wait is answered once.
    assert!(job_acts(&world.wish(&one, &turn, JobToolRequest::Wait { job: job.clone() })).is_empty());
    assert_eq!(world.job_state(&job), JobState::Running);
}

#[test]
fn an_agent_that_does_more_than_wait_keeps_its_slot_and_one_that_is_interrupted_without_one_cancels_its_job()
{
    let (mut world, [one, two], turn, job) = one_asleep();
    let busy = turn_of(&world.send(&one, "other", "hi"));
    let waits = turn_of(&world.send(&two, "t", "hi"));
    assert_eq!(
        [&turn, &busy, &waits].map(|turn| world.state(turn)),
        [TurnState::Running, TurnState::Running, TurnState::Queued]
    );
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: busy }));
    assert_eq!([&turn, &waits].map(|turn| world.state(turn)), [TurnState::Waiting, TurnState::Running]);
    let (mut world, _) = world.reboot();
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn }));
    assert!(world.job_row(&job).progress.cancel.is_some(), "it is to be over");
}

#[test]
fn an_agent_with_as_many_sleepers_as_it_may_have_turns_gives_its_slot_to_its_own_turn_and_that_is_the_end() {
    let (mut world, [one, two], _, _) = one_asleep();
    for number in 1..AGENT_TURNS_MAX {
        let session = format!("s{number}");
        let job = world.job_in(&one, &session);
        let turn = world.calling(&one, &session, "job_wait");
        world.wish(&one, &turn, JobToolRequest::Wait { job });
    }
    assert_eq!(world.engine.agents[&one].running, AGENT_TURNS_MAX);
    let own = turn_of(&world.send(&one, "own", "hi"));
    let other = turn_of(&world.send(&two, "t", "hi"));
    assert_eq!([&own, &other].map(|turn| world.state(turn)), [TurnState::Running, TurnState::Queued]);
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: own }));
    assert_eq!(world.state(&other), TurnState::Running);
}
