//! Agents that restart automatically, and agents that wait for an operator.

use lodge_core::agent::FailReason;
use lodge_core::record::StartRetry;

use super::*;
use crate::{AgentCommand, AgentObservation, SandboxEffect};

impl EngineWorld {
    fn new_agent(&mut self) -> AgentId {
        let agent = self.agent();
        self.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
        self.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
        agent
    }

    fn fail_start(&mut self, agent: &AgentId, how: fn(AgentId, u32) -> Observation) -> Batch {
        let run = self.engine.agents[agent].row.runs;
        self.see(how(agent.clone(), run))
    }

    fn due(&mut self, agent: &AgentId, run: u32) -> Batch {
        self.see(Observation::Agent(AgentObservation::RetryDue { agent: agent.clone(), run }))
    }

    fn row(&self, agent: &AgentId) -> &lodge_core::record::AgentRow {
        &self.engine.agents[agent].row
    }
}

fn no_model(agent: AgentId, run: u32) -> Observation {
    Observation::Agent(AgentObservation::Lacks {
        agent,
        run,
        lack: StartRequirement::Model,
        detail: "no provider `x`".into(),
    })
}

fn no_image(agent: AgentId, run: u32) -> Observation {
    Observation::Agent(AgentObservation::Lacks {
        agent,
        run,
        lack: StartRequirement::Image,
        detail: "its image is not in the store".into(),
    })
}

fn no_config(agent: AgentId, run: u32) -> Observation {
    Observation::Agent(AgentObservation::Lacks {
        agent,
        run,
        lack: StartRequirement::Config,
        detail: "CONFIG k has no value".into(),
    })
}

fn no_spawn(agent: AgentId, run: u32) -> Observation {
    Observation::Agent(AgentObservation::SpawnFailed { agent, run, detail: "it cannot\nbe spawned".into() })
}

fn no_probe(agent: AgentId, run: u32) -> Observation {
    Observation::Agent(AgentObservation::ProbeTimedOut { agent, run })
}

fn laters(batch: &Batch) -> Vec<(u32, u64)> {
    let later = |effect: &&Effect| match effect {
        Effect::Agent(AgentEffect::RetryTimer { run, delay_ms, .. }) => Some((*run, *delay_ms)),
        _ => None,
    };
    acts(batch).iter().filter_map(later).collect()
}

fn ups(batch: &Batch) -> usize {
    acts(batch)
        .iter()
        .filter(|effect| {
            matches!(effect, Effect::Sandbox { what: SandboxEffect::Up { how: StartMode::Start, .. }, .. })
        })
        .count()
}

#[test]
fn pull_init_and_model_failures_are_tried_again_with_doubling_pauses_endlessly() {
    for (how, reason) in [
        (no_image as fn(_, _) -> _, FailReason::Pull),
        (no_spawn, FailReason::Init),
        (no_model, FailReason::Model),
    ] {
        let mut world = EngineWorld::new();
        let agent = world.new_agent();
        let mut pauses = Vec::new();
        for failures in 1..=8 {
            let batch = world.fail_start(&agent, how);
            assert_eq!(world.row(&agent).state, AgentState::Failed(reason));
            let (run, delay_ms) = laters(&batch)[0];
            pauses.push(delay_ms);
            let at = NOW.plus_ms(i64::try_from(delay_ms).unwrap());
            assert_eq!(world.row(&agent).retry, StartRetry { failures, at: Some(at) });
            let event = batch.events().find(|event| event.body.kind() == EventKind::AgentFailed).unwrap();
            assert_eq!(
                (&event.body.data()["attempt"], &event.body.data()["retry_at"]),
                (&json!(failures), &json!(at.to_string()))
            );
            assert_eq!(event.body.data()["reason"], reason.word());
            let again = world.due(&agent, run);
            assert_eq!(ups(&again), 1, "{reason:?} is tried again");
            assert_eq!(ups(&world.due(&agent, run)), 0, "once");
            assert_eq!(world.row(&agent).retry, StartRetry { failures, at: None });
        }
        assert_eq!(pauses, [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]);
        world.ready(&agent);
        assert_eq!(world.row(&agent).retry, StartRetry::default(), "a start that succeeds ends the count");
    }
}

#[test]
fn what_would_only_fail_again_waits_for_an_operator() {
    for (how, reason) in
        [(no_config as fn(_, _) -> _, FailReason::Config), (no_probe, FailReason::ReadinessTimeout)]
    {
        let mut world = EngineWorld::new();
        let agent = world.new_agent();
        let batch = world.fail_start(&agent, how);
        assert_eq!(world.row(&agent).state, AgentState::Failed(reason));
        assert!(laters(&batch).is_empty());
        assert_eq!(world.row(&agent).retry, StartRetry::default());
        let run = world.row(&agent).runs;
        assert_eq!(ups(&world.due(&agent, run)), 0, "{reason:?} is not tried again, whoever says so");
    }
}

#[test]
fn a_failure_is_one_line_of_the_log_in_the_promised_form() {
    let mut world = EngineWorld::new();
    let agent = world.new_agent();
    let batch = world.fail_start(&agent, no_spawn);
    let lines: Vec<&String> = acts(&batch)
        .into_iter()
        .filter_map(|effect| {
            if let Effect::Sandbox { what: SandboxEffect::NoteFailure { line, .. }, .. } = effect {
                Some(line)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(lines, ["1000 daemon: failed: init: it cannot be spawned"]);
}

#[test]
fn a_stop_a_kill_and_a_removal_cancel_a_pending_retry_at_once() {
    for command in [
        (|id| Command::Agent(AgentCommand::Stop { id, jobs: RunningJobs::Cancel })) as fn(AgentId) -> Command,
        |id| Command::Agent(AgentCommand::Kill { id }),
        |id| Command::Agent(AgentCommand::Remove { id, force: false }),
    ] {
        let mut world = EngineWorld::new();
        let agent = world.new_agent();
        let (run, _) = laters(&world.fail_start(&agent, no_model))[0];
        world.ask(None, command(agent.clone()));
        assert_eq!(world.row(&agent).retry, StartRetry::default());
        assert_eq!(ups(&world.due(&agent, run)), 0);
        assert_eq!(ups(&world.see(Observation::ProvidersChanged)), 0);
    }
}

#[test]
fn a_manual_start_begins_the_count_again_and_an_old_timer_means_nothing() {
    let mut world = EngineWorld::new();
    let agent = world.new_agent();
    for _ in 0..3 {
        let (run, _) = laters(&world.fail_start(&agent, no_spawn))[0];
        world.due(&agent, run);
    }
    let (run, _) = laters(&world.fail_start(&agent, no_spawn))[0];
    assert_eq!(ups(&world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }))), 1);
    assert_eq!(world.row(&agent).retry, StartRetry::default());
    assert_eq!(ups(&world.due(&agent, run)), 0);
    let again = world.fail_start(&agent, no_spawn);
    assert_eq!(laters(&again)[0].1, 1_000);
}

#[test]
fn a_provider_that_is_added_ends_the_pause_of_those_who_wait_for_a_model_alone() {
    let mut world = EngineWorld::new();
    let (model, init) = (world.new_agent(), world.new_agent());
    world.fail_start(&model, no_model);
    world.fail_start(&init, no_spawn);
    let batch = world.see(Observation::ProvidersChanged);
    assert_eq!(ups(&batch), 1);
    assert_eq!(world.row(&model).state, AgentState::Starting);
    assert_eq!(world.row(&init).state, AgentState::Failed(FailReason::Init));
}

#[test]
fn a_turn_for_one_that_waits_for_its_retry_is_refused_with_the_time_of_the_next_try() {
    let mut world = EngineWorld::new();
    let agent = world.new_agent();
    world.fail_start(&agent, no_model);
    let batch = world.send(&agent, "s", "hi");
    let error = batch.after.iter().find_map(|out| match out {
        BatchOutput::Reply { reply: Err(error), .. } => Some(error),
        _ => None,
    });
    let error = error.expect("a refusal");
    assert_eq!(error.code(), "agent.not_running");
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("tried again at 1970-01-01T00:00:02.000Z"), "{hint}");
}

#[test]
fn a_new_daemon_tries_at_once_and_goes_on_counting() {
    let mut world = EngineWorld::new();
    let agent = world.new_agent();
    world.fail_start(&agent, no_model);
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
    assert_eq!(ups(&batch), 1);
    assert_eq!(engine.agents[&agent].row.retry, StartRetry { failures: 1, at: None });
}

#[test]
fn turns_of_one_that_cannot_be_started_again_wait_and_go_on_when_it_can() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    let run = world.row(&agent).runs;
    world.see(Observation::Agent(AgentObservation::Died {
        agent: agent.clone(),
        run,
        part: AgentComponent::Sandbox,
        detail: "x".into(),
    }));
    assert_eq!(world.state(&turn), TurnState::Running, "its revival is under way");
    let (run, _) = laters(&world.fail_start(&agent, no_model))[0];
    assert_eq!(world.state(&turn), TurnState::Waiting);
    world.due(&agent, run);
    let batch = world.ready(&agent);
    assert_eq!(world.state(&turn), TurnState::Running);
    assert!(
        acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::RunTurn { .. }, .. }))
    );
}
