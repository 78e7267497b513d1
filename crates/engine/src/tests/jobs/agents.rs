//! Jobs when their agent is stopped, killed, removed, restarted, updated, or dies.

use lodge_core::agent::{AgentState, FailReason};

use super::*;
use crate::{AgentCommand, AgentObservation, SandboxEffect};

/// An agent with a job that runs and one that waits.
struct TwoJobs {
    world: EngineWorld,
    agent: AgentId,
    runs: JobId,
    waits: JobId,
}

fn two() -> TwoJobs {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.see(Observation::Configured(Settings { max_jobs: 1, ..settings(10) }));
    let (runs, waits) = (world.job_in(&agent, "s"), world.job(&agent));
    TwoJobs { world, agent, runs, waits }
}

impl TwoJobs {
    fn states(&self) -> [&'static str; 2] {
        [&self.runs, &self.waits].map(|job| self.world.job_state(job).word())
    }

    fn ask(&mut self, command: Command) -> Batch {
        self.world.ask(None, command)
    }

    fn run(&self) -> u32 {
        self.world.engine.agents[&self.agent].row.runs
    }

    fn down(&mut self) -> Batch {
        let (agent, run) = (self.agent.clone(), self.run());
        self.world.see(Observation::Sandbox(SandboxObservation::Down { agent, run }))
    }

    fn dies(&mut self, part: AgentComponent) -> Batch {
        let (agent, run, detail) = (self.agent.clone(), self.run(), "boom".to_owned());
        self.world.see(Observation::Agent(AgentObservation::Died { agent, run, part, detail }))
    }

    fn policy(&mut self, policy: Policy) {
        self.world.engine.agents.get_mut(&self.agent).unwrap().row.spec.revival_policy = Some(policy.code());
    }

    fn why(&self, job: &JobId) -> Option<String> {
        self.world.job_row(job).progress.error
    }

    fn reboot(self) -> (TwoJobs, Batch) {
        let TwoJobs { world, agent, runs, waits } = self;
        let (world, batch) = world.reboot();
        (TwoJobs { world, agent, runs, waits }, batch)
    }

    fn state(&self) -> AgentState {
        self.world.engine.agents[&self.agent].row.state
    }
}

/// Where in a batch something is done.
fn place(batch: &Batch, is_it: impl Fn(&Effect) -> bool) -> usize {
    acts(batch).into_iter().position(is_it).expect("it is done")
}

#[test]
fn the_end_of_an_agent_cancels_its_jobs_and_each_has_the_reason() {
    type Make = fn(AgentId) -> Command;
    let ways: [(Make, &str); 3] = [
        (|id| Command::Agent(AgentCommand::Stop { id, jobs: RunningJobs::Cancel }), "its agent was stopped"),
        (|id| Command::Agent(AgentCommand::Kill { id }), "its agent was killed"),
        (|id| Command::Agent(AgentCommand::Remove { id, force: true }), "its agent was removed"),
    ];
    for (way, why) in ways {
        let mut two = two();
        let batch = two.ask(way(two.agent.clone()));
        assert_eq!(two.states(), ["running", "cancelled"]);
        let killed = place(&batch, |effect| {
            matches!(effect, Effect::Sandbox { what: SandboxEffect::Job(JobOrder::Kill { .. }), .. })
        });
        assert!(
            killed
                < place(&batch, |effect| matches!(
                    effect,
                    Effect::Sandbox { what: SandboxEffect::Down { .. }, .. }
                ))
        );
        // The sandbox may be gone before the keeper reported the end. Then its files have the outcome.
        assert_eq!(job_acts(&two.down()), [kill(&two.runs)], "{why}");
        two.world.job_ends(&two.runs, exited(0));
        assert_eq!(two.states(), ["cancelled"; 2]);
        assert_eq!(
            [&two.runs, &two.waits].map(|job| two.why(job)),
            [Some(why.to_owned()), Some(why.to_owned())]
        );
    }
}

#[test]
fn a_stop_that_spares_jobs_is_refused_while_one_runs_and_changes_nothing() {
    type Make = fn(AgentId) -> Command;
    let ways: [Make; 2] = [
        |id| Command::Agent(AgentCommand::Stop { id, jobs: RunningJobs::Refuse }),
        |id| Command::Agent(AgentCommand::Restart { id, jobs: RunningJobs::Refuse }),
    ];
    for way in ways {
        let mut two = two();
        let batch = two.ask(way(two.agent.clone()));
        assert_eq!(refusal(&batch), "agent.jobs_running");
        assert!(batch.writes.is_empty() && acts(&batch).is_empty());
        two.world.job_done(&two.runs);
        two.world.job_done(&two.waits);
        let batch = two.ask(way(two.agent.clone()));
        assert!(!batch.writes.is_empty(), "nothing runs any more");
    }
}

#[test]
fn after_a_crash_jobs_of_an_agent_that_was_stopped_are_settled_when_it_is_down() {
    let mut two = two();
    two.ask(Command::Agent(AgentCommand::Stop { id: two.agent.clone(), jobs: RunningJobs::Cancel }));
    let (mut two, batch) = two.reboot();
    assert!(
        acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Down { .. }, .. }))
    );
    assert_eq!(job_acts(&two.down()), [kill(&two.runs)]);
    two.world.job_ends(&two.runs, silent(ExecOutcome::Lost));
    assert_eq!(two.states(), ["cancelled"; 2]);
    two.world.job_archived(&two.runs);
    assert!(two.down().after.is_empty(), "there is nothing left to do");
}

#[test]
fn files_of_a_removed_agent_stay_until_all_of_its_output_is_archived() {
    let clears = |batch: &Batch| {
        acts(batch).iter().any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Clear, .. }))
    };
    let mut two = two();
    let earlier = two.runs.clone();
    two.world.job_ends(&earlier, exited(0));
    // That one is not archived, the other runs by now.
    assert!(!clears(&two.ask(Command::Agent(AgentCommand::Remove { id: two.agent.clone(), force: true }))));
    let (mut two, batch) = two.reboot();
    assert!(!clears(&batch));
    assert_eq!(job_acts(&batch), [archive(&earlier)]);
    assert!(!clears(&two.world.job_archived(&earlier)));
    assert_eq!(job_acts(&two.down()), [kill(&two.waits)]);
    assert!(!clears(&two.world.job_ends(&two.waits, exited(0))));
    let archived = two.world.job_archived(&two.waits);
    assert!(clears(&archived) && archived.urgent);
    two.world.see(Observation::Sandbox(SandboxObservation::Cleared { agent: two.agent.clone() }));
    assert_eq!(two.world.engine.sizes().jobs.held, 0, "its sessions have nobody to tell any more");
    assert_eq!(two.states(), ["done", "cancelled"], "rows stay");
    let (two, batch) = two.reboot();
    assert!(job_acts(&batch).is_empty());
    assert!(two.world.job_row(&earlier).told);
}

#[test]
fn a_removal_without_unarchived_output_clears_at_once_also_when_asked_again() {
    let mut two = two();
    two.world.job_done(&two.runs);
    two.world.job_done(&two.waits);
    for _ in 0..2 {
        let batch = two.ask(Command::Agent(AgentCommand::Remove { id: two.agent.clone(), force: true }));
        assert!(
            acts(&batch)
                .iter()
                .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Clear, .. }))
        );
    }
}

#[test]
fn a_restart_cancels_what_runs_and_what_waits_goes_on_with_the_new_process() {
    let mut two = two();
    let batch =
        two.ask(Command::Agent(AgentCommand::Restart { id: two.agent.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!(job_acts(&batch), [kill(&two.runs)]);
    assert_eq!(two.states(), ["running", "pending"]);
    let batch = two.world.ready(&two.agent.clone());
    assert_eq!(
        job_acts(&batch),
        [kill(&two.runs)],
        "it has the place until its end is known, and is not started anew"
    );
    let batch = two.world.job_ends(&two.runs, silent(ExecOutcome::Lost));
    assert_eq!(started(&batch), [two.waits.clone()]);
    assert_eq!(two.why(&two.runs).as_deref(), Some("its agent was restarted"));
}

#[test]
fn an_update_waits_for_jobs_that_run_and_starts_none_meanwhile() {
    let mut two = two();
    two.world.see(Observation::Configured(settings(10)));
    // Both run, on what was before.
    assert_eq!(two.states(), ["running"; 2]);
    let change = Change { model: Some("p/other".into()), ..Change::default() };
    let update = Update { agent: two.agent.clone(), change, image: None };
    let batch = two.ask(Command::Agent(AgentCommand::Update(Box::new(update))));
    assert!(
        !acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Up { .. }, .. }))
    );
    let late = two.world.job(&two.agent);
    assert_eq!(two.world.job_state(&late), JobState::Pending);
    two.world.job_ends(&two.runs, exited(0));
    let (mut two, batch) = two.reboot();
    assert!(started(&batch).is_empty());
    let batch = two.world.job_ends(&two.waits, exited(0));
    assert!(acts(&batch).iter().any(|effect| matches!(
        effect,
        Effect::Sandbox { what: SandboxEffect::Up { how: StartMode::Start, .. }, .. }
    )));
    assert!(started(&batch).is_empty());
    assert_eq!(two.world.engine.agents[&two.agent].row.spec.model, "p/other");
    assert_eq!(started(&two.world.ready(&two.agent.clone())), [late]);
}

#[test]
fn turns_go_on_while_an_update_waits_for_a_job_and_wait_for_it_once_the_job_is_over() {
    let mut two = two();
    two.world.job_done(&two.waits.clone());
    let change = Change { model: Some("p/other".into()), ..Change::default() };
    two.ask(Command::Agent(AgentCommand::Update(Box::new(Update {
        agent: two.agent.clone(),
        change,
        image: None,
    }))));
    let agent = two.agent.clone();
    let meanwhile = turn_of(&two.world.send(&agent, "t", "while it runs"));
    assert_eq!(two.world.state(&meanwhile), TurnState::Running);
    let batch = two.world.job_ends(&two.runs.clone(), exited(0));
    assert!(
        !acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Up { .. }, .. }))
    );
    let late = turn_of(&two.world.send(&agent, "u", "when it is over"));
    assert_eq!(two.world.state(&late), TurnState::Queued);
    two.world.ask_model(&agent, &meanwhile, 1);
    let batch = two.world.answer(&meanwhile, 1, 1, "done", &[]);
    assert!(acts(&batch).iter().any(|effect| matches!(
        effect,
        Effect::Sandbox { what: SandboxEffect::Up { how: StartMode::Start, .. }, .. }
    )));
    two.world.ready(&agent);
    assert_eq!(two.world.state(&late), TurnState::Running);
}

#[test]
fn a_job_that_a_running_turn_may_wait_for_starts_although_its_agent_is_to_become_another() {
    let mut two = two();
    two.world.job_done(&two.runs);
    two.world.job_done(&two.waits);
    let turn = two.world.calling(&two.agent.clone(), "s", "job_submit");
    let change = Change { model: Some("p/other".into()), ..Change::default() };
    two.ask(Command::Agent(AgentCommand::Update(Box::new(Update {
        agent: two.agent.clone(),
        change,
        image: None,
    }))));
    let other = two.world.job(&two.agent.clone());
    assert_eq!(two.world.job_state(&other), JobState::Pending);
    let batch = two.world.wish(&two.agent.clone(), &turn, JobToolRequest::Submit(work("sh")));
    let [own] = &started(&batch)[..] else { panic!("one starts") };
    assert_ne!(*own, other);
}

#[test]
fn a_job_that_waited_for_an_update_starts_when_a_turn_of_its_session_does() {
    let mut two = two();
    two.world.see(Observation::Configured(Settings { max_jobs: 2, ..settings(10) }));
    two.world.job_done(&two.waits.clone());
    let change = Change { model: Some("p/other".into()), ..Change::default() };
    two.ask(Command::Agent(AgentCommand::Update(Box::new(Update {
        agent: two.agent.clone(),
        change,
        image: None,
    }))));
    let agent = two.agent.clone();
    let waits = two.world.job_in(&agent, "t");
    assert_eq!(two.world.job_state(&waits), JobState::Pending);
    let batch = two.world.send(&agent, "t", "how is it going?");
    assert_eq!(two.world.state(&turn_of(&batch)), TurnState::Running);
    assert_eq!(started(&batch), [waits], "the turn may wait for it");
}

#[test]
fn a_job_whose_bin_went_with_an_update_is_an_error_and_frees_its_place() {
    let mut two = two();
    let last = two.world.job(&two.agent);
    two.world.engine.agents.get_mut(&two.agent).unwrap().row.spec.tools.retain(|tool| tool.name == "date");
    let batch = two.world.job_ends(&two.runs, exited(0));
    assert!(started(&batch).is_empty());
    assert_eq!(two.states(), ["done", "error"]);
    assert_eq!(two.why(&last).as_deref(), Some("its agent no longer has the bin `sh`"));
    assert_eq!(two.world.engine.sizes().jobs.pending, 0);
}

#[test]
fn a_runtime_that_dies_takes_no_job_with_it() {
    let mut two = two();
    assert!(job_acts(&two.dies(AgentComponent::Runtime)).is_empty());
    assert_eq!(two.states(), ["running", "pending"]);
    two.world.job_ends(&two.runs, exited(0));
    assert_eq!(two.states(), ["done", "pending"], "its end is heard while there is no runtime");
    assert_eq!(started(&two.world.ready(&two.agent.clone())), [two.waits.clone()]);
}

#[test]
fn jobs_of_a_sandbox_that_died_are_asked_for_in_the_next_and_are_lost_if_that_knows_nothing() {
    let mut two = two();
    assert!(job_acts(&two.dies(AgentComponent::Sandbox)).is_empty());
    assert_eq!(job_acts(&two.world.ready(&two.agent.clone())), [start(&two.runs, true)]);
    let end = JobEnd { detail: Some("its sandbox died".into()), ..silent(ExecOutcome::Lost) };
    let batch = two.world.job_ends(&two.runs, end);
    assert_eq!(two.states(), ["error", "running"]);
    assert_eq!(job_acts(&batch), [archive(&two.runs), start(&two.waits, false)]);
    assert_eq!(two.why(&two.runs).as_deref(), Some("lost: its sandbox died"));
}

#[test]
fn work_that_is_reaped_is_cancelled_and_what_died_with_its_sandbox_tells_how_it_ended() {
    for part in [AgentComponent::Runtime, AgentComponent::Sandbox] {
        let mut two = two();
        two.policy(Policy::Reap);
        let batch = two.dies(part);
        assert_eq!(two.states(), ["running", "cancelled"]);
        assert_eq!(two.why(&two.waits).as_deref(), Some("its agent died: boom"));
        let killed = if part == AgentComponent::Runtime { vec![kill(&two.runs)] } else { Vec::new() };
        assert_eq!(job_acts(&batch), killed, "{part:?}");
        assert_eq!(job_acts(&two.down()), [kill(&two.runs)]);
        two.world.job_ends(&two.runs, exited(0));
        assert_eq!(two.states()[0], if part == AgentComponent::Runtime { "cancelled" } else { "done" });
    }
}

#[test]
fn work_that_an_operator_decides_about_waits_and_goes_on_or_is_dropped() {
    for policy in [Policy::Revive, Policy::Reap] {
        let mut two = two();
        two.policy(Policy::Ask);
        two.dies(AgentComponent::Sandbox);
        two.down();
        two.world.job_ends(&two.runs, silent(ExecOutcome::Lost));
        assert_eq!(two.states(), ["error", "pending"]);
        assert_eq!(
            refusal(&two.world.submit_job(&two.agent.clone(), None, work("sh"))),
            "lineage.ask_pending"
        );
        let lineage = two.world.engine.agents[&two.agent].lineage.id.clone();
        let settlement = LineageResolution { agent: two.agent.clone(), lineage, policy, last_turn: None };
        two.ask(Command::Agent(AgentCommand::SettleLineage(Box::new(settlement))));
        match policy {
            Policy::Reap => assert_eq!(two.states()[1], "cancelled"),
            Policy::Revive | Policy::Ask => {
                assert_eq!(started(&two.world.ready(&two.agent.clone())), [two.waits.clone()]);
            }
        }
    }
}

#[test]
fn a_lineage_that_is_exhausted_ends_what_runs_and_what_waits_goes_on_with_a_start() {
    let mut two = two();
    while two.state() != AgentState::Failed(FailReason::Crashed) {
        two.dies(AgentComponent::Sandbox);
        let (agent, run) = (two.agent.clone(), two.run());
        two.world.see(Observation::Agent(AgentObservation::RevivalDue { agent, run }));
    }
    assert_eq!(two.states(), ["running", "pending"]);
    assert_eq!(job_acts(&two.down()), [kill(&two.runs)]);
    two.world.job_ends(&two.runs, silent(ExecOutcome::Lost));
    assert_eq!(two.states(), ["error", "pending"]);
    two.ask(Command::Agent(AgentCommand::Start { id: two.agent.clone() }));
    assert_eq!(started(&two.world.ready(&two.agent.clone())), [two.waits.clone()]);
}

#[test]
fn an_agent_that_fails_ends_what_runs_and_what_waits_goes_on_when_it_is_back() {
    let mut two = two();
    let (agent, run) = (two.agent.clone(), two.run());
    let batch = two.world.see(Observation::Agent(AgentObservation::Exited {
        agent,
        run,
        code: 0,
        detail: "it left".into(),
    }));
    assert_eq!(job_acts(&batch), [kill(&two.runs)]);
    assert_eq!(two.states(), ["running", "pending"]);
    two.world.job_ends(&two.runs, exited(0));
    assert_eq!(two.why(&two.runs).as_deref(), Some("its agent ended: it left"));
    two.ask(Command::Agent(AgentCommand::Start { id: two.agent.clone() }));
    assert_eq!(started(&two.world.ready(&two.agent.clone())), [two.waits.clone()]);
}

#[test]
fn jobs_that_died_with_their_sandbox_are_lost_and_not_cancelled_also_when_the_next_one_fails() {
    for fails in [
        |agent, run| Observation::Agent(AgentObservation::ProbeTimedOut { agent, run }),
        |agent, run| {
            Observation::Agent(AgentObservation::Died {
                agent,
                run,
                part: AgentComponent::Runtime,
                detail: "boom".into(),
            })
        },
    ] {
        let mut two = two();
        two.dies(AgentComponent::Sandbox);
        while !matches!(two.state(), AgentState::Failed(_)) {
            let (agent, run) = (two.agent.clone(), two.run());
            assert!(job_acts(&two.world.see(fails(agent.clone(), run))).is_empty());
            two.world.see(Observation::Agent(AgentObservation::RevivalDue { agent, run }));
        }
        assert_eq!(job_acts(&two.down()), [kill(&two.runs)]);
        two.world.job_ends(&two.runs, silent(ExecOutcome::Lost));
        assert_eq!(two.states()[0], "error");
    }
}

#[test]
fn an_agent_without_memory_ends_all_of_its_jobs() {
    let mut two = two();
    let (agent, run) = (two.agent.clone(), two.run());
    two.world.see(Observation::Agent(AgentObservation::OutOfMemory { agent, run, detail: "oom".into() }));
    two.world.job_ends(&two.runs, exited(0));
    assert_eq!(two.states(), ["cancelled"; 2]);
}

#[test]
fn a_daemon_that_had_no_room_goes_on_with_the_jobs_that_are_recorded() {
    let mut two = two();
    let loaded = two.world.loaded();
    // None of this is recorded: it is not acted on either.
    let recorded = two.world.written.len();
    two.world.cancel_job(&two.runs);
    two.world.job_ends(&two.runs, exited(0));
    two.world.written.truncate(recorded);
    let TwoJobs { world, agent, runs, waits } = two;
    let (engine, batch) = world.engine.rebuild(loaded, &std::collections::HashSet::new(), NOW);
    assert!(job_acts(&batch).is_empty());
    let mut world = EngineWorld { engine, written: world.written, stored: BTreeMap::new(), tickets: 0 };
    let batch = world.ready(&agent);
    assert_eq!(job_acts(&batch), [start(&runs, true)]);
    world.job_ends(&runs, exited(0));
    assert_eq!(world.states(&[runs, waits]), ["done", "running"]);
}
