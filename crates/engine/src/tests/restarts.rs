//! A new process in place of the old one, in one step.

use lodge_core::agent::FailReason;
use lodge_core::lineage::{EndReason, LineageState};

use super::*;
use crate::{AgentCommand, AgentObservation, ModelEffect, SandboxEffect};

fn ups(batch: &Batch) -> Vec<(u32, u32)> {
    let up = |effect: &&Effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Up { plan, how: StartMode::Start }, .. } => {
            Some((plan.incarnation, plan.run))
        }
        _ => None,
    };
    acts(batch).iter().filter_map(up).collect()
}

fn restart(world: &mut EngineWorld, agent: &AgentId) -> Batch {
    world.ask(None, Command::Agent(AgentCommand::Restart { id: agent.clone(), jobs: RunningJobs::Cancel }))
}

#[test]
fn a_restart_is_one_commit_with_another_sandbox_and_breaks_turns_off() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (turn, queued) = (turn_of(&world.send(&agent, "s", "1")), turn_of(&world.send(&agent, "s", "2")));
    let batch = restart(&mut world, &agent);
    assert_eq!(ups(&batch), [(2, 2)]);
    assert_eq!(reply(&batch)["status"], "starting");
    assert_eq!([&turn, &queued].map(|turn| world.state(turn)), [TurnState::Interrupted; 2]);
    let words: Vec<&str> = kinds(&batch).iter().map(|kind| kind.word()).collect();
    let states: Vec<&&str> = words.iter().filter(|word| word.starts_with("agent.")).collect();
    assert_eq!(states, [&"agent.ready", &"agent.pulling", &"agent.starting"], "never stopped");
    assert_eq!(world.engine.agents[&agent].lineage.state, LineageState::Active);
}

#[test]
fn after_a_death_in_the_middle_of_a_restart_the_next_daemon_starts_the_agent() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    restart(&mut world, &agent);
    let known = &world.engine.agents[&agent];
    let loaded = StoredState {
        epoch: 2,
        seq: world.engine.seq,
        agents: vec![known.row.clone()],
        lineages: vec![known.lineage.clone()],
        ..StoredState::default()
    };
    let (_, batch) = Engine::boot(loaded, host(), IdSource::new(2), "0", NOW);
    let up = acts(&batch).into_iter().find_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Up { plan, how: StartMode::Adopt }, .. } => {
            Some((plan.was_ready, plan.incarnation))
        }
        _ => None,
    });
    assert_eq!(up, Some((false, 2)), "an older incarnation is not what is adopted");
}

#[test]
fn what_the_old_process_does_after_a_restart_means_nothing() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    restart(&mut world, &agent);
    for seen in [
        Observation::Agent(AgentObservation::Died {
            agent: agent.clone(),
            run: 1,
            part: AgentComponent::Sandbox,
            detail: "x".into(),
        }),
        Observation::Agent(AgentObservation::Exited {
            agent: agent.clone(),
            run: 1,
            code: 0,
            detail: "x".into(),
        }),
        Observation::Agent(AgentObservation::RuntimeReady {
            agent: agent.clone(),
            run: 1,
            adopted: false,
            running: Vec::new(),
        }),
    ] {
        assert!(world.see(seen).writes.is_empty());
    }
    world.ready(&agent);
    assert_eq!(world.engine.agents[&agent].row.state, AgentState::Ready);
}

#[test]
fn a_restart_starts_what_is_stopped_or_failed_and_revives_what_waits_for_it() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!(ups(&restart(&mut world, &agent)).len(), 1);
    let run = world.engine.agents[&agent].row.runs;
    world.see(Observation::Agent(AgentObservation::ProbeTimedOut { agent: agent.clone(), run }));
    assert_eq!(world.engine.agents[&agent].row.state, AgentState::Failed(FailReason::ReadinessTimeout));
    assert_eq!(ups(&restart(&mut world, &agent)).len(), 1);
    for _ in 0..2 {
        world.ready(&agent);
        let run = world.engine.agents[&agent].row.runs;
        world.see(Observation::Agent(AgentObservation::Died {
            agent: agent.clone(),
            run,
            part: AgentComponent::Runtime,
            detail: "x".into(),
        }));
    }
    assert_eq!(world.engine.agents[&agent].lineage.state, LineageState::Orphaned);
    let run = world.engine.agents[&agent].row.runs;
    assert_eq!(ups(&restart(&mut world, &agent)).len(), 1);
    let lineage = &world.engine.agents[&agent].lineage;
    assert_eq!((lineage.state, lineage.deaths), (LineageState::Active, 0));
    assert!(
        ups(&world.see(Observation::Agent(AgentObservation::RevivalDue { agent: agent.clone(), run })))
            .is_empty()
    );
}

#[test]
fn a_killed_lineage_stays_dead_and_a_restart_begins_another() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Kill { id: agent.clone() }));
    let old = world.engine.agents[&agent].lineage.clone();
    assert_eq!(old.state, LineageState::Ended(EndReason::Killed));
    restart(&mut world, &agent);
    assert_ne!(world.engine.agents[&agent].lineage.id, old.id);
}

#[test]
fn a_restart_is_refused_while_somebody_has_to_decide_and_when_the_agent_is_going() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    if let Some(agent) = world.engine.agents.get_mut(&agent) {
        agent.row.spec.revival_policy = Some(Policy::Ask.code());
    }
    world.see(Observation::Agent(AgentObservation::Died {
        agent: agent.clone(),
        run: 1,
        part: AgentComponent::Sandbox,
        detail: "x".into(),
    }));
    assert_eq!(refusal(&restart(&mut world, &agent)), "lineage.ask_pending");
    world.ask(None, Command::Agent(AgentCommand::Remove { id: agent.clone(), force: true }));
    assert_eq!(refusal(&restart(&mut world, &agent)), "agent.wrong_state");
}

#[test]
fn an_answer_to_a_call_whose_intent_was_lost_is_not_taken_for_the_answer_to_the_next_one() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    let known = &world.engine.agents[&agent];
    let row = world.engine.turns[&turn].row.clone();
    // The disk is full from here on: the call is made, and its intent is not recorded.
    let loaded = StoredState {
        seq: world.engine.seq,
        streams: heads(&world.engine),
        agents: vec![known.row.clone()],
        lineages: vec![known.lineage.clone()],
        sessions: world.engine.sessions.values().map(fact).collect(),
        turns: vec![LiveTurn { row, steps: Vec::new(), calls: Vec::new(), answered: Vec::new(), note: None }],
        ..StoredState::default()
    };
    world.ask_model(&agent, &turn, 1);
    let (engine, _) = world.engine.rebuild(loaded, &std::collections::HashSet::new(), NOW);
    let mut world = EngineWorld { engine, ..world };
    world.ready(&agent);
    let again = world.ask_model(&agent, &turn, 1);
    assert!(
        matches!(&again.early[..], [Effect::Model(ModelEffect::Call(order))] if order.attempt == 2),
        "{:?}",
        again.early
    );
    assert!(world.answer(&turn, 1, 1, "late", &[]).writes.is_empty());
    world.answer(&turn, 1, 2, "good", &[]);
    assert_eq!(world.state(&turn), TurnState::Done);
}
