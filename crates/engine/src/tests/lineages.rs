//! Work whose process died, hangs or was killed.

use lodge_core::agent::FailReason;
use lodge_core::lineage::{EndReason, LineageState};
use lodge_core::liveness::Liveness;
use lodge_core::record::{AgentWrite, LineageRow};

use super::*;
use crate::{AgentCommand, AgentObservation, SandboxEffect, TurnCommand};

impl EngineWorld {
    pub(super) fn agent_with(&mut self, policy: Policy) -> AgentId {
        let id = self.agent();
        if let Some(agent) = self.engine.agents.get_mut(&id) {
            agent.row.spec.revival_policy = Some(policy.code());
        }
        id
    }

    pub(super) fn die(&mut self, agent: &AgentId, part: AgentComponent) -> Batch {
        let run = self.engine.agents[agent].row.runs;
        self.see(Observation::Agent(AgentObservation::Died {
            agent: agent.clone(),
            run,
            part,
            detail: "signal 9".into(),
        }))
    }

    fn lineage(&self, agent: &AgentId) -> &LineageRow {
        &self.engine.agents[agent].lineage
    }

    fn agent_state(&self, agent: &AgentId) -> AgentState {
        self.engine.agents[agent].row.state
    }

    fn settle(&mut self, agent: &AgentId, policy: Policy) -> Batch {
        let lineage = self.lineage(agent).id.clone();
        let settlement = LineageResolution { agent: agent.clone(), lineage, policy, last_turn: None };
        self.ask(None, Command::Agent(AgentCommand::SettleLineage(Box::new(settlement))))
    }

    /// A turn that waits for a tool.
    fn turn_at_work(&mut self, agent: &AgentId) -> (TurnId, ExecId) {
        let turn = turn_of(&self.send(agent, "s", "hi"));
        self.ask_model(agent, &turn, 1);
        self.answer(&turn, 1, 1, "", &[("c1", "sh")]);
        let exec = started_exec(&self.exec(agent, &turn, "c1", "sh")).remove(0);
        (turn, exec)
    }
}

fn kinds(batch: &Batch) -> Vec<&'static str> {
    batch.events().map(|event| event.body.kind().word()).collect()
}

fn ups(batch: &Batch) -> Vec<(u32, u32)> {
    let up = |effect: &&Effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Up { plan, .. }, .. } => Some((plan.incarnation, plan.run)),
        _ => None,
    };
    acts(batch).iter().filter_map(up).collect()
}

#[test]
fn a_dead_runtime_is_replaced_in_its_sandbox_and_its_turn_goes_on() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (turn, exec) = world.turn_at_work(&agent);
    let batch = world.die(&agent, AgentComponent::Runtime);
    assert_eq!(ups(&batch), [(1, 2)], "the same sandbox, another runtime");
    assert!(
        !acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Down { .. }, .. })),
        "tools go on"
    );
    assert_eq!(kinds(&batch), ["lineage.orphaned", "agent.pulling", "lineage.revived", "agent.starting"]);
    let resumed = world.ready(&agent);
    assert_eq!(started_exec(&resumed), [exec], "asked for under its old id");
    assert_eq!(world.state(&turn), TurnState::Running);
    assert_eq!((world.lineage(&agent).state, world.lineage(&agent).revivals), (LineageState::Active, 1));
}

#[test]
fn a_runtime_that_exits_before_it_was_ever_ready_has_failed_and_one_that_was_ready_is_revived() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let exit = |world: &mut EngineWorld, code| {
        let run = world.engine.agents[&agent].row.runs;
        world.see(Observation::Agent(AgentObservation::Exited {
            agent: agent.clone(),
            run,
            code,
            detail: "code".into(),
        }))
    };
    assert_eq!(ups(&exit(&mut world, 3)).len(), 1);
    world.ready(&agent);
    exit(&mut world, 0);
    assert_eq!(world.agent_state(&agent), AgentState::Stopped);
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    assert!(ups(&exit(&mut world, 3)).is_empty());
    assert_eq!(world.agent_state(&agent), AgentState::Failed(FailReason::Crashed));
}

#[test]
fn a_dead_sandbox_is_replaced_by_another() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    assert_eq!(ups(&world.die(&agent, AgentComponent::Sandbox)), [(2, 2)]);
}

#[test]
fn one_that_keeps_dying_is_revived_with_growing_pauses_and_then_no_more() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (turn, _) = world.turn_at_work(&agent);
    let mut pauses = Vec::new();
    loop {
        let batch = world.die(&agent, AgentComponent::Runtime);
        let later = acts(&batch).into_iter().find_map(|effect| match effect {
            Effect::Agent(AgentEffect::RevivalTimer { run, delay_ms, .. }) => Some((*run, *delay_ms)),
            _ => None,
        });
        match later {
            Some((run, delay_ms)) => {
                pauses.push(delay_ms);
                assert_eq!(world.agent_state(&agent), AgentState::Pulling);
                assert_eq!(
                    ups(&world
                        .see(Observation::Agent(AgentObservation::RevivalDue { agent: agent.clone(), run })))
                    .len(),
                    1
                );
                let again =
                    world.see(Observation::Agent(AgentObservation::RevivalDue { agent: agent.clone(), run }));
                assert!(ups(&again).is_empty(), "one revival a death");
            }
            None if ups(&batch).is_empty() => break,
            None => pauses.push(0),
        }
        world.ready(&agent);
    }
    assert_eq!(pauses, [0, 1_000, 2_000, 4_000, 8_000]);
    assert_eq!(world.lineage(&agent).state, LineageState::Ended(EndReason::Exhausted));
    assert_eq!(world.agent_state(&agent), AgentState::Failed(FailReason::Crashed));
    assert_eq!(world.state(&turn), TurnState::Waiting, "its work is not lost");
    let old = world.lineage(&agent).id.clone();
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    assert_ne!(world.lineage(&agent).id, old, "another start is another lineage");
    assert_eq!(world.engine.agents[&agent].row.lineage, world.lineage(&agent).id);
}

/// An agent with a turn that runs and one that is queued, which died once too often.
fn exhausted() -> (EngineWorld, AgentId, [TurnId; 2], ExecId) {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (turn, exec) = world.turn_at_work(&agent);
    let queued = turn_of(&world.send(&agent, "s", "and then"));
    while world.agent_state(&agent) != AgentState::Failed(FailReason::Crashed) {
        world.die(&agent, AgentComponent::Runtime);
        let run = world.engine.agents[&agent].row.runs;
        world.see(Observation::Agent(AgentObservation::RevivalDue { agent: agent.clone(), run }));
        world.ready(&agent);
    }
    (world, agent, [turn, queued], exec)
}

#[test]
fn turns_of_an_agent_that_died_too_often_wait_and_a_start_goes_on_with_them() {
    for restarted in [false, true] {
        let (mut world, agent, [turn, queued], exec) = exhausted();
        let states = |world: &EngineWorld| [&turn, &queued].map(|turn| world.state(turn));
        assert_eq!(states(&world), [TurnState::Waiting, TurnState::Queued]);
        assert_eq!(world.engine.sizes().working, 0, "it has no slot");
        if restarted {
            world = world.reboot().0;
            assert_eq!(states(&world), [TurnState::Waiting, TurnState::Queued]);
            assert_eq!(world.agent_state(&agent), AgentState::Failed(FailReason::Crashed));
        }
        assert_eq!(refusal(&world.send(&agent, "t", "more")), "agent.not_running");
        world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
        assert_eq!(world.lineage(&agent).deaths, 0, "it is tried as often as the first time");
        let batch = world.ready(&agent);
        let runs = |effect: &&Effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::RunTurn { turn: run, .. }, .. } if *run == turn);
        assert_eq!(acts(&batch).iter().filter(|effect| runs(effect)).count(), 1);
        if !restarted {
            // The open call is requested under its own id, so that it cannot run twice.
            assert_eq!(started_exec(&batch), std::slice::from_ref(&exec));
        }
        assert_eq!(states(&world), [TurnState::Running, TurnState::Queued]);
        assert_eq!(ups(&world.die(&agent, AgentComponent::Runtime)).len(), 1);
    }
}

#[test]
fn an_answer_that_comes_after_the_last_death_leaves_the_lineage_ended() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    let mut attempt = 0;
    while world.agent_state(&agent) != AgentState::Failed(FailReason::Crashed) {
        world.ask_model(&agent, &turn, 1);
        attempt += 1;
        world.die(&agent, AgentComponent::Runtime);
        let run = world.engine.agents[&agent].row.runs;
        world.see(Observation::Agent(AgentObservation::RevivalDue { agent: agent.clone(), run }));
        world.ready(&agent);
    }
    let ended = world.lineage(&agent).clone();
    assert_eq!(ended.state, LineageState::Ended(EndReason::Exhausted));
    for attempt in 1..=attempt {
        let batch = world.answer(&turn, 1, attempt, "done", &[]);
        assert!(
            !batch.writes.iter().any(|write| matches!(write, Write::Agent(AgentWrite::Lineage(_)))),
            "attempt {attempt}"
        );
    }
    assert_eq!(world.state(&turn), TurnState::Done, "the answer is not lost");
    assert_eq!(*world.lineage(&agent), ended);
}

#[test]
fn turns_of_an_agent_that_died_too_often_can_be_dropped() {
    let (mut world, agent, [turn, queued], _) = exhausted();
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }));
    assert_eq!(world.state(&turn), TurnState::Interrupted);
    assert_eq!(world.state(&queued), TurnState::Queued);
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!(world.state(&queued), TurnState::Interrupted);
}

#[test]
fn a_finished_turn_and_a_long_life_begin_the_count_of_deaths_again() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.die(&agent, AgentComponent::Runtime);
    world.ready(&agent);
    assert_eq!(world.lineage(&agent).deaths, 1);
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "done", &[]);
    assert_eq!(world.lineage(&agent).deaths, 0);
    world.die(&agent, AgentComponent::Runtime);
    world.ready(&agent);
    let run = world.engine.agents[&agent].row.runs;
    let much_later = NOW.plus_ms(24 * 60 * 60 * 1_000);
    let died = Observation::Agent(AgentObservation::Died {
        agent: agent.clone(),
        run,
        part: AgentComponent::Runtime,
        detail: "x".into(),
    });
    world.engine.step([Input::Seen(died)], much_later);
    assert_eq!(world.lineage(&agent).deaths, 1);
}

#[test]
fn under_the_policy_reap_open_work_is_dropped_and_the_agent_waits_for_its_operator() {
    let mut world = EngineWorld::new();
    let agent = world.agent_with(Policy::Reap);
    let (turn, _) = world.turn_at_work(&agent);
    let batch = world.die(&agent, AgentComponent::Sandbox);
    assert!(ups(&batch).is_empty());
    assert_eq!(world.lineage(&agent).state, LineageState::Reaped);
    assert_eq!(world.state(&turn), TurnState::Interrupted);
    assert_eq!(world.agent_state(&agent), AgentState::Failed(FailReason::Crashed));
}

#[test]
fn under_the_policy_ask_nothing_happens_to_the_agent_before_somebody_decided() {
    let mut world = EngineWorld::new();
    let agent = world.agent_with(Policy::Ask);
    let (turn, exec) = world.turn_at_work(&agent);
    assert!(ups(&world.die(&agent, AgentComponent::Sandbox)).is_empty());
    assert_eq!(world.lineage(&agent).state, LineageState::AskPending);
    assert_eq!(world.state(&turn), TurnState::Waiting, "its work waits");
    for command in [
        Command::Agent(AgentCommand::Start { id: agent.clone() }),
        Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }),
        Command::Agent(AgentCommand::Remove { id: agent.clone(), force: false }),
    ] {
        assert_eq!(refusal(&world.ask(None, command)), "lineage.ask_pending");
    }
    assert_eq!(refusal(&world.send(&agent, "s", "more")), "lineage.ask_pending");
    let batch = world.settle(&agent, Policy::Revive);
    assert_eq!(reply(&batch)["status"], "active");
    assert_eq!(ups(&batch).len(), 1);
    assert_eq!(started_exec(&world.ready(&agent)), [exec]);
    assert_eq!(refusal(&world.settle(&agent, Policy::Reap)), "lineage.settled");
}

#[test]
fn a_lineage_that_is_reaped_on_request_is_settled_once() {
    let mut world = EngineWorld::new();
    let agent = world.agent_with(Policy::Ask);
    let (turn, _) = world.turn_at_work(&agent);
    world.die(&agent, AgentComponent::Runtime);
    assert_eq!(reply(&world.settle(&agent, Policy::Reap))["status"], "reaped");
    assert_eq!(world.state(&turn), TurnState::Interrupted);
    for policy in [Policy::Reap, Policy::Revive] {
        assert_eq!(refusal(&world.settle(&agent, policy)), "lineage.settled");
    }
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    assert_eq!(world.lineage(&agent).state, LineageState::Active);
}

#[test]
fn a_killed_lineage_stays_dead_whatever_is_observed_afterwards() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (turn, _) = world.turn_at_work(&agent);
    let batch = world.ask(None, Command::Agent(AgentCommand::Kill { id: agent.clone() }));
    assert!(
        acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Down { .. }, .. }))
    );
    assert_eq!(world.lineage(&agent).state, LineageState::Ended(EndReason::Killed));
    assert_eq!(world.state(&turn), TurnState::Interrupted);
    let run = world.engine.agents[&agent].row.runs;
    for part in [AgentComponent::Runtime, AgentComponent::Sandbox] {
        assert!(ups(&world.die(&agent, part)).is_empty());
        assert!(
            ups(&world.see(Observation::Agent(AgentObservation::RevivalDue { agent: agent.clone(), run })))
                .is_empty()
        );
    }
    assert_eq!(world.lineage(&agent).state, LineageState::Ended(EndReason::Killed));
    assert_eq!(world.agent_state(&agent), AgentState::Stopped);
}

#[test]
fn a_stop_during_the_pause_before_a_revival_ends_the_pause() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.die(&agent, AgentComponent::Runtime);
    world.ready(&agent);
    let run = world.engine.agents[&agent].row.runs;
    world.die(&agent, AgentComponent::Runtime);
    assert_eq!(world.lineage(&agent).state, LineageState::Orphaned);
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    assert!(
        ups(&world.see(Observation::Agent(AgentObservation::RevivalDue { agent: agent.clone(), run })))
            .is_empty()
    );
    assert_eq!(
        (world.agent_state(&agent), world.lineage(&agent).state),
        (AgentState::Stopped, LineageState::Active)
    );
}

#[test]
fn silence_is_reported_and_beyond_the_last_threshold_what_hangs_is_killed_and_only_then_replaced() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.turn_at_work(&agent);
    let mut silent = |level, part| {
        let run = world.engine.agents[&agent].row.runs;
        world.see(Observation::Agent(AgentObservation::Silent { agent: agent.clone(), run, level, part }))
    };
    let stale = silent(Liveness::Stale, AgentComponent::Runtime);
    assert_eq!(kinds(&stale), ["agent.liveness"]);
    assert!(acts(&stale).is_empty());
    assert!(kinds(&silent(Liveness::Stale, AgentComponent::Runtime)).is_empty(), "told once");
    let crashed = silent(Liveness::Crashed, AgentComponent::Runtime);
    assert!(matches!(
        acts(&crashed)[..],
        [Effect::Sandbox { what: SandboxEffect::KillRuntime { run: 1, .. }, .. }]
    ));
    assert!(ups(&crashed).is_empty(), "nothing is started beside it");
    let keeper = silent(Liveness::Crashed, AgentComponent::Sandbox);
    assert!(matches!(acts(&keeper)[..], [Effect::Sandbox { what: SandboxEffect::Kill { run: 1, .. }, .. }]));
    assert_eq!(ups(&world.die(&agent, AgentComponent::Sandbox)), [(2, 2)]);
    assert_eq!(kinds(&world.ready(&agent))[..3], ["agent.ready", "agent.working", "agent.liveness"]);
}

#[test]
fn one_that_hangs_and_cannot_be_ended_is_not_revived_beside_itself() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let batch = world.see(Observation::Sandbox(SandboxObservation::NotDown {
        agent: agent.clone(),
        run: 1,
        detail: "it is still there".into(),
    }));
    assert!(ups(&batch).is_empty());
    assert_eq!(world.agent_state(&agent), AgentState::Failed(FailReason::Crashed));
}

#[test]
fn a_daemon_that_died_during_the_pause_revives_at_once_in_the_same_sandbox() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.die(&agent, AgentComponent::Runtime);
    world.ready(&agent);
    world.die(&agent, AgentComponent::Runtime);
    let known = &world.engine.agents[&agent];
    let loaded = StoredState {
        epoch: 2,
        seq: world.engine.seq,
        streams: heads(&world.engine),
        agents: vec![known.row.clone()],
        lineages: vec![known.lineage.clone()],
        ..StoredState::default()
    };
    let (engine, batch) = Engine::boot(loaded, host(), IdSource::new(2), "0", NOW);
    assert_eq!(ups(&batch), [(1, 3)]);
    assert_eq!(engine.agents[&agent].lineage.state, LineageState::Active);
}

#[test]
fn a_runtime_without_memory_is_not_revived_and_its_turns_have_failed() {
    let mut world = EngineWorld::new();
    let agent = world.agent_with(Policy::Revive);
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    let run = world.engine.agents[&agent].row.runs;
    let batch = world.see(Observation::Agent(AgentObservation::OutOfMemory {
        agent: agent.clone(),
        run,
        detail: "out of memory".into(),
    }));
    assert_eq!(world.agent_state(&agent), AgentState::Failed(FailReason::Oom));
    assert!(!world.engine.turns.contains_key(&turn));
    assert!(
        acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::Down { .. }, .. }))
    );
    assert_eq!((world.lineage(&agent).state, world.lineage(&agent).revivals), (LineageState::Active, 0));
    // What an earlier runtime ran out of is no news.
    world.see(Observation::Sandbox(SandboxObservation::Down { agent: agent.clone(), run }));
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    world.see(Observation::Agent(AgentObservation::OutOfMemory {
        agent: agent.clone(),
        run,
        detail: "old".into(),
    }));
    assert_eq!(world.agent_state(&agent), AgentState::Starting);
}
