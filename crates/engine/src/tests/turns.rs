//! Turns: their steps, their calls, and what is left of them after a crash.

use super::*;

#[test]
fn a_turn_without_tools_waits_for_two_commits() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let accepted = world.send(&agent, "s", "hi");
    let turn = turn_of(&accepted);
    let asked = world.ask_model(&agent, &turn, 1);
    let answered = world.answer(&turn, 1, 1, "hello", &[]);
    assert_eq!([accepted.urgent, asked.urgent, answered.urgent], [true, false, true]);
    assert_eq!(world.state(&turn), TurnState::Done);
    // The call leaves before its intent is on disk; nothing else of the turn does.
    assert!(matches!(asked.early[..], [Effect::Model(ModelEffect::Call(_))]));
    assert!(accepted.early.is_empty() && answered.early.is_empty());
}

#[test]
fn a_program_starts_only_after_the_batch_that_holds_its_intent() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "", &[("c1", "sh")]);
    let batch = world.exec(&agent, &turn, "c1", "sh");
    assert!(batch.urgent && batch.early.is_empty());
    let intent = batch.writes.iter().any(|write| {
        matches!(write, Write::Turn(TurnWrite::Step(step)) if step.kind() == StepKind::Tool && step.state == StepState::Intent && step.target.exec().is_some())
    });
    assert!(intent);
    assert_eq!(started_exec(&batch).len(), 1);
}

#[test]
fn asking_twice_for_the_same_step_starts_nothing_twice() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    assert!(world.ask_model(&agent, &turn, 1).early.is_empty());
    world.answer(&turn, 1, 1, "", &[("c1", "sh")]);
    assert!(
        world.ask_model(&agent, &turn, 1).early.is_empty(),
        "a stored answer is told again, not asked for again"
    );
    let exec = started_exec(&world.exec(&agent, &turn, "c1", "sh")).remove(0);
    assert!(started_exec(&world.exec(&agent, &turn, "c1", "sh")).is_empty());
    world.see(Observation::Turn(TurnObservation::ExecEnded { exec: exec.clone(), end: ended("out") }));
    assert!(
        world
            .see(Observation::Turn(TurnObservation::ExecEnded { exec, end: ended("out") }))
            .writes
            .is_empty(),
        "an end counts once"
    );
    assert!(started_exec(&world.exec(&agent, &turn, "c1", "sh")).is_empty());
}

#[test]
fn turns_of_one_session_never_interleave_and_those_of_two_do() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let first = turn_of(&world.send(&agent, "s", "1"));
    let second = turn_of(&world.send(&agent, "s", "2"));
    let other = turn_of(&world.send(&agent, "t", "3"));
    assert_eq!(
        [&first, &second, &other].map(|turn| world.state(turn)),
        [TurnState::Running, TurnState::Queued, TurnState::Running]
    );
    world.ask_model(&agent, &first, 1);
    let done = world.answer(&first, 1, 1, "a", &[]);
    assert_eq!(world.state(&second), TurnState::Running);
    assert!(!kinds(&done).contains(&EventKind::AgentReady), "it still works");
}

#[test]
fn a_call_that_the_daemon_cannot_make_is_tried_a_bounded_number_of_times_and_the_message_can_be_sent_again() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let record = FailureRecord { code: "daemon.busy".into(), message: "busy".into(), hint: None };
    let mut tries = 1;
    loop {
        let failure = ModelFailure { record: record.clone(), retry: CallRetry::Own };
        let batch = world.see(Observation::Turn(TurnObservation::ModelFailed {
            turn: turn.clone(),
            step: 1,
            attempt: tries,
            failure,
        }));
        if batch.early.is_empty() {
            break;
        }
        assert!(kinds(&batch).contains(&EventKind::TurnStepRestarted));
        tries += 1;
    }
    assert_eq!(tries, lodge_core::limits::MODEL_ATTEMPTS_MAX);
    assert_eq!(world.state(&turn), TurnState::Failed);
    let again = turn_of(&world.send(&agent, "s", "hi"));
    assert_eq!(world.state(&again), TurnState::Running);
}

#[test]
fn an_answer_of_an_attempt_that_was_given_up_is_ignored() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    let record = FailureRecord { code: "model.cut".into(), message: "cut".into(), hint: None };
    let failure = ModelFailure { record, retry: CallRetry::Own };
    world.see(Observation::Turn(TurnObservation::ModelFailed {
        turn: turn.clone(),
        step: 1,
        attempt: 1,
        failure,
    }));
    assert!(world.answer(&turn, 1, 1, "late", &[]).writes.is_empty());
    world.answer(&turn, 1, 2, "good", &[]);
    assert_eq!(world.state(&turn), TurnState::Done);
}

#[test]
fn stopping_an_agent_breaks_its_turns_off_and_pairs_every_call_with_a_result() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    let queued = turn_of(&world.send(&agent, "s", "later"));
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "", &[("c1", "sh"), ("c2", "date")]);
    world.exec(&agent, &turn, "c1", "sh");
    let batch =
        world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!([&turn, &queued].map(|turn| world.state(turn)), [TurnState::Interrupted; 2]);
    let results = batch.writes.iter().filter(
        |write| matches!(write, Write::Turn(TurnWrite::Message(message)) if message.body.call.is_some()),
    );
    assert_eq!(results.count(), 2);
    assert!(
        !batch.after.iter().any(|out| matches!(out, BatchOutput::Reply { .. })),
        "the answer waits until nothing is left"
    );
    assert_eq!(
        reply(&world.see(Observation::Sandbox(SandboxObservation::Down { agent, run: 1 })))["status"],
        "stopped"
    );
}

#[test]
fn a_resend_is_one_change_with_one_answer_and_other_parameters_are_refused() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let key =
        |digest: u8| Some(RequestKey { caller: "o".into(), request_id: "r".into(), digest: [digest; 32] });
    let send = |agent: &AgentId| {
        let new = NewTurn {
            agent: agent.clone(),
            session: SessionChoice::Fresh,
            sender: None,
            text: "hi".into(),
            schema: None,
        };
        Command::Turn(TurnCommand::Send(Box::new(new)))
    };
    let first = world.ask(key(1), send(&agent));
    let second = world.ask(key(1), send(&agent));
    assert_eq!(rendered(&answer(&first)), rendered(&answer(&second)));
    assert!(second.writes.is_empty());
    assert_eq!(refusal(&world.ask(key(2), send(&agent))), "request.reused");
}

#[test]
fn an_answer_is_remembered_until_its_commit_has_settled_and_no_longer() {
    let mut world = EngineWorld::new();
    let key = |id: &str| Some(RequestKey { caller: "o".into(), request_id: id.into(), digest: [1; 32] });
    let keep = || Command::Keep { answer: RenderedAnswer("done".into()) };
    assert_eq!(world.ask(key("one"), keep()).requests(), 1);
    assert_eq!(world.ask(key("two"), keep()).requests(), 1);
    // The second was decided after the writer went to rest, and may not be on disk.
    let batch = world.see(Observation::Settled { requests: 1, seq: 0, rest: true });
    assert!(batch.writes.is_empty() && batch.after.is_empty() && batch.early.is_empty(), "rest wakes nobody");
    assert_eq!(world.ask(key("two"), keep()).requests(), 0, "still known");
    assert_eq!(world.engine.requests.len(), 1);
    world.see(Observation::Settled { requests: 2, seq: 0, rest: true });
    assert!(world.engine.requests.len() == 0);
    let many = RECENT_REQUESTS_MAX + 10;
    for number in 0..many {
        world.ask(key(&number.to_string()), keep());
    }
    assert_eq!(world.engine.requests.len(), many, "none of them is known to be on disk");
    world.see(Observation::Settled { requests: 12, seq: 0, rest: false });
    world.ask(key("last"), keep());
    assert_eq!(world.engine.requests.len(), many + 1 - 10, "only those that are on disk are forgotten");
}

#[test]
fn a_session_of_another_agent_is_refused_and_nothing_changes() {
    let mut world = EngineWorld::new();
    let (one, two) = (world.agent(), world.agent());
    world.send(&one, "s", "hi");
    let batch = world.send(&two, "s", "hi");
    assert_eq!(refusal(&batch), "session.other_agent");
    assert!(batch.writes.is_empty());
}

#[test]
fn a_turn_is_taken_while_the_agent_starts_and_refused_when_it_is_stopped() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!(refusal(&world.send(&agent, "s", "hi")), "agent.not_running");
    world.see(Observation::Sandbox(SandboxObservation::Down { agent: agent.clone(), run: 1 }));
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    assert_eq!(world.state(&turn), TurnState::Queued);
    world.ready(&agent);
    assert_eq!(world.state(&turn), TurnState::Running);
}

#[test]
fn what_an_earlier_process_reports_is_ignored() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    world.see(Observation::Sandbox(SandboxObservation::Down { agent: agent.clone(), run: 1 }));
    world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    let stale = Observation::Agent(AgentObservation::Died {
        agent: agent.clone(),
        run: 1,
        part: AgentComponent::Sandbox,
        detail: "old".into(),
    });
    assert!(world.see(stale).writes.is_empty());
    assert_eq!(world.engine.agents[&agent].row.state, AgentState::Starting);
}

/// Boots a second engine from a turn whose tool call was in flight.
fn after_a_crash(answered: bool) -> (EngineWorld, AgentId, TurnId, ExecId) {
    let mut old = EngineWorld::new();
    let agent = old.agent();
    let turn = turn_of(&old.send(&agent, "s", "hi"));
    old.ask_model(&agent, &turn, 1);
    old.answer(&turn, 1, 1, "", &[("c1", "sh"), ("c2", "date")]);
    let exec = started_exec(&old.exec(&agent, &turn, "c1", "sh")).remove(0);
    let rows: Vec<StepRow> = old
        .written
        .iter()
        .filter_map(
            |write| if let Write::Turn(TurnWrite::Step(step)) = write { Some(step.clone()) } else { None },
        )
        .map(|mut step| {
            if step.kind() == StepKind::Model || answered {
                step.state = StepState::Done;
            }
            step
        })
        .collect();
    let row: TurnRow = old.engine.turns[&turn].row.clone();
    let session = &old.engine.sessions[&row.session];
    let calls = ["c1", "c2"].map(|id| CallRecord {
        id: id.into(),
        name: if id == "c1" { "sh" } else { "date" }.into(),
        arguments: "{}".into(),
    });
    let loaded = StoredState {
        epoch: 2,
        seq: old.engine.seq,
        streams: heads(&old.engine),
        agents: vec![old.engine.agents[&agent].row.clone()],
        lineages: vec![old.engine.agents[&agent].lineage.clone()],
        last_uid: None,
        sessions: vec![fact(session)],
        turns: vec![LiveTurn {
            row,
            steps: rows,
            calls: calls.into(),
            answered: if answered { vec!["c1".into()] } else { Vec::new() },
            note: None,
        }],
        ..StoredState::default()
    };
    let (engine, batch) = Engine::boot(loaded, host(), IdSource::new(2), "0", NOW);
    assert!(acts(&batch).iter().any(|effect| matches!(
        effect,
        Effect::Sandbox { what: SandboxEffect::Up { how: StartMode::Adopt, .. }, .. }
    )));
    let mut world = EngineWorld { engine, written: old.written, stored: BTreeMap::new(), tickets: 0 };
    world.keep(&batch);
    (world, agent, turn, exec)
}

#[test]
fn after_a_crash_the_call_in_flight_is_asked_for_under_its_old_id_and_the_open_ones_go_to_the_runtime() {
    let (mut world, agent, turn, exec) = after_a_crash(false);
    let batch = world.ready(&agent);
    assert_eq!(started_exec(&batch), [exec]);
    let run = acts(&batch).into_iter().find_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::RunTurn { turn, step, calls, .. }, .. } => {
            Some((turn.clone(), *step, calls.len()))
        }
        _ => None,
    });
    assert_eq!(run, Some((turn.clone(), 2, 2)));
    // A runtime that outlived the daemon has the turn already and is left alone.
    let again = Observation::Agent(AgentObservation::RuntimeReady {
        agent: agent.clone(),
        run: 1,
        adopted: true,
        running: vec![turn],
    });
    assert!(
        !acts(&world.see(again))
            .iter()
            .any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::RunTurn { .. }, .. }))
    );
}

#[test]
fn after_a_crash_a_stored_result_is_used_and_its_program_is_not_asked_for() {
    let (mut world, agent, turn, _) = after_a_crash(true);
    let batch = world.ready(&agent);
    assert!(started_exec(&batch).is_empty());
    let told = world.exec(&agent, &turn, "c1", "sh");
    assert!(started_exec(&told).is_empty());
    assert!(acts(&told).iter().any(|effect| matches!(
        effect,
        Effect::Sandbox { what: SandboxEffect::Answer { answer: Ok(_), .. }, .. }
    )));
}

#[test]
fn events_are_numbered_without_gaps_in_the_log_and_in_every_stream() {
    let mut world = EngineWorld::new();
    let (one, two) = (world.agent(), world.agent());
    for agent in [&one, &two] {
        let turn = turn_of(&world.send(agent, if *agent == one { "s" } else { "t" }, "hi"));
        world.ask_model(agent, &turn, 1);
        world.answer(&turn, 1, 1, "x", &[]);
    }
    let events: Vec<_> = world
        .written
        .iter()
        .filter_map(|write| if let Write::Event(event) = write { Some(event) } else { None })
        .collect();
    let mut heads = std::collections::BTreeMap::new();
    for (at, event) in events.iter().enumerate() {
        assert_eq!(event.seq, at as u64 + 1);
        let head = heads.entry(&event.stream).or_insert(0);
        *head += 1;
        assert_eq!(event.stream_seq, *head);
    }
}
