//! Work that is set aside: its turn waits, others go on, an operator decides.

use lodge_core::WorkId;
use lodge_core::quarantine::{QuarantineRow, Suspect, Work, WorkKind};

use super::*;
use crate::{AgentObservation, SandboxEffect, TurnCommand};
use lodge_core::record::WorkWrite;

fn suspect(kind: WorkKind, subject: &str) -> Suspect {
    Suspect { work: Work { kind, subject: subject.into() }, detail: "agent/list".into(), deaths: 3 }
}

impl EngineWorld {
    fn as_left(&self, quarantine: Vec<QuarantineRow>) -> StoredState {
        let engine = &self.engine;
        let live = |turn: &Turn| LiveTurn {
            row: turn.row.clone(),
            steps: Vec::new(),
            calls: Vec::new(),
            answered: Vec::new(),
            note: None,
        };
        let mut turns: Vec<LiveTurn> = engine.turns.values().map(live).collect();
        turns.sort_by_key(|turn| (turn.row.session.clone(), turn.row.number));
        StoredState {
            epoch: engine.epoch + 1,
            seq: engine.seq,
            streams: heads(engine),
            agents: engine.agents.values().map(|agent| agent.row.clone()).collect(),
            lineages: engine.agents.values().map(|agent| agent.lineage.clone()).collect(),
            sessions: engine.sessions.values().map(fact).collect(),
            turns,
            quarantine,
            ..StoredState::default()
        }
    }

    /// The next daemon, with these suspects.
    fn next(self, suspects: Vec<Suspect>) -> (EngineWorld, Batch) {
        let recorded = self.engine.quarantine.values().cloned().collect();
        let loaded = self.as_left(recorded);
        let (engine, batch) =
            Engine::boot_with_suspects(loaded, suspects, host(), IdSource::new(7), "0", NOW);
        let mut world = EngineWorld { engine, written: self.written, stored: BTreeMap::new(), tickets: 0 };
        world.keep(&batch);
        (world, batch)
    }

    fn aside(&self) -> Vec<WorkId> {
        self.engine.quarantine.keys().cloned().collect()
    }

    fn release(&mut self, id: &WorkId, how: Release) -> Batch {
        self.ask(None, Command::Work(WorkCommand::Release { id: id.clone(), how }))
    }
}

fn runs(batch: &Batch, turn: &TurnId) -> bool {
    acts(batch).iter().any(|effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::RunTurn { turn: run, .. }, .. } if run == turn))
}

/// A daemon that set the model call of a turn aside, which had another one behind it and one beside it.
fn with_a_pill() -> (EngineWorld, AgentId, [TurnId; 3]) {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turns = [("s", "bitter"), ("s", "behind"), ("other", "beside")]
        .map(|(session, text)| turn_of(&world.send(&agent, session, text)));
    world.ask_model(&agent, &turns[0], 1);
    let (world, batch) = world.next(vec![suspect(WorkKind::ModelCall, turns[0].as_str())]);
    let told = batch.events().find(|row| row.body.kind() == EventKind::WorkQuarantined).expect("an event");
    assert_eq!((told.stream.as_str(), &told.body.data()["deaths"]), (agent.as_str(), &json!(3)));
    assert_eq!(told.body.data()["turn"], turns[0].as_str());
    assert!(
        acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Work(WorkEffect::Decided { is_aside: true, .. })))
    );
    assert_eq!(world.state(&turns[0]), TurnState::Waiting);
    (world, agent, turns)
}

#[test]
fn a_turn_whose_model_call_is_set_aside_waits_and_others_of_its_agent_go_on() {
    let (mut world, agent, [pill, behind, beside]) = with_a_pill();
    let run = world.engine.agents[&agent].row.runs;
    // The runtime survived and runs both turns.
    let running = vec![pill.clone(), beside.clone()];
    let ready = world.see(Observation::Agent(AgentObservation::RuntimeReady {
        agent: agent.clone(),
        run,
        adopted: true,
        running,
    }));
    let dropped = |effect: &&Effect| matches!(effect, Effect::Sandbox { what: SandboxEffect::DropTurn { turn, .. }, .. } if *turn == pill);
    assert_eq!(acts(&ready).into_iter().filter(|effect| dropped(effect)).count(), 1);
    assert!(!runs(&ready, &pill) && !runs(&ready, &behind));
    let asked = world.ask_model(&agent, &pill, 1);
    assert!(asked.early.is_empty(), "nothing of it is computed");
    world.ask_model(&agent, &beside, 1);
    world.answer(&beside, 1, 1, "fine", &[]);
    assert_eq!(world.state(&beside), TurnState::Done);
    assert_eq!(world.state(&pill), TurnState::Waiting);
    // Both wait for the same decision, and a new turn reports that at once.
    let waits_for = |turn: &TurnId| world.engine.wait_reasons(&world.engine.turns[turn]).unwrap().quarantine;
    for turn in [&pill, &behind] {
        assert_eq!(waits_for(turn).expect("it waits").work.subject, pill.as_str());
    }
    let sent = world.send(&agent, "s", "later");
    assert_eq!(
        (&reply(&sent)["waits_for"], &reply(&sent)["quarantine"]["turn"]),
        (&json!("session"), &json!(pill.as_str()))
    );
    assert!(reply(&world.send(&agent, "other", "later")).get("quarantine").is_none());
}

#[test]
fn the_next_daemon_finds_it_set_aside_and_does_not_set_it_aside_twice() {
    let (world, _, [pill, ..]) = with_a_pill();
    let ids = world.aside();
    let (world, batch) = world.next(vec![suspect(WorkKind::ModelCall, pill.as_str())]);
    assert_eq!((world.aside(), world.state(&pill)), (ids, TurnState::Waiting));
    assert!(!batch.events().any(|row| row.body.kind() == EventKind::WorkQuarantined));
    assert!(
        acts(&batch)
            .iter()
            .any(|effect| matches!(effect, Effect::Work(WorkEffect::Decided { is_aside: true, .. })))
    );
}

#[test]
fn a_retry_hands_the_turn_out_again_and_a_drop_fails_it_and_lets_the_next_begin() {
    for how in [Release::Retry, Release::Drop] {
        let (mut world, agent, [pill, behind, _]) = with_a_pill();
        world.ready(&agent);
        let id = world.aside().remove(0);
        let batch = world.release(&id, how);
        assert_eq!(reply(&batch)["status"], how.word());
        assert_eq!(reply(&batch)["turn"], pill.as_str());
        assert!(world.aside().is_empty());
        assert!(batch.events().any(|row| row.body.kind() == EventKind::WorkReleased));
        match how {
            Release::Retry => {
                assert!(runs(&batch, &pill) && !runs(&batch, &behind));
                assert_eq!(world.state(&pill), TurnState::Running);
            }
            Release::Drop => {
                assert!(runs(&batch, &behind));
                assert_eq!(world.state(&pill), TurnState::Failed);
                let failed = batch.events().find(|row| row.body.kind() == EventKind::TurnFailed).unwrap();
                assert_eq!(failed.body.data()["code"], "work.quarantined");
            }
        }
        let again = world.release(&id, how);
        assert_eq!(refusal(&again), "work.not_found");
    }
}

#[test]
fn interrupting_the_turn_is_a_decision_too() {
    let (mut world, _, [pill, ..]) = with_a_pill();
    let batch = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: pill.clone() }));
    assert_eq!(world.state(&pill), TurnState::Interrupted);
    assert!(world.aside().is_empty());
    assert!(batch.writes.iter().any(|write| matches!(write, Write::Work(WorkWrite::Released { .. }))));
}

#[test]
fn what_is_over_or_was_never_there_is_not_set_aside() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "done", &[]);
    let suspects = vec![
        suspect(WorkKind::ModelCall, turn.as_str()),
        suspect(WorkKind::SchemaCheck, "trn_0"),
        suspect(WorkKind::Pull, "agt_0"),
    ];
    let (world, batch) = world.next(suspects);
    assert!(world.aside().is_empty());
    let forgotten = acts(&batch);
    let forgotten = forgotten
        .iter()
        .filter(|effect| matches!(effect, Effect::Work(WorkEffect::Decided { is_aside: false, .. })));
    assert_eq!(forgotten.count(), 3, "their deaths do not count any more");
}

#[test]
fn a_request_is_set_aside_for_nobody_in_particular_and_released_in_either_way() {
    for how in [Release::Retry, Release::Drop] {
        let (mut world, batch) = EngineWorld::new().next(vec![suspect(WorkKind::Request, "abc")]);
        let told =
            batch.events().find(|row| row.body.kind() == EventKind::WorkQuarantined).expect("an event");
        assert_eq!(
            (told.stream.as_str(), &told.body.data()["detail"]),
            (DAEMON_STREAM, &json!("agent/list"))
        );
        let id = world.aside().remove(0);
        let batch = world.release(&id, how);
        assert!(
            acts(&batch)
                .iter()
                .any(|effect| matches!(effect, Effect::Work(WorkEffect::Decided { is_aside: false, .. })))
        );
    }
}

#[test]
fn what_was_set_aside_without_room_on_the_disk_is_set_aside_again() {
    let (world, _, [pill, ..]) = with_a_pill();
    let before = world.as_left(Vec::new());
    let lost = StoredState { seq: 0, ..before.clone() };
    let (engine, batch) = world.engine.rebuild(lost, &std::collections::HashSet::new(), NOW);
    assert_eq!(
        engine.quarantine.values().map(|row| row.work.subject.as_str()).collect::<Vec<_>>(),
        [pill.as_str()]
    );
    assert!(batch.writes.iter().any(|write| matches!(write, Write::Work(WorkWrite::Quarantined(_)))));
    // Recorded and released since, it is not.
    let released = StoredState { seq: u64::MAX / 2, ..before };
    let (engine, _) = engine.rebuild(released, &std::collections::HashSet::new(), NOW);
    assert!(engine.quarantine.is_empty());
}

#[test]
fn work_that_ended_without_room_on_the_disk_is_quarantined_again_with_its_turn() {
    let (mut world, _, [pill, ..]) = with_a_pill();
    let before = world.as_left(Vec::new());
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: pill.clone() }));
    assert!(world.engine.quarantine.is_empty(), "the turn is over");
    let lost = StoredState { seq: 0, ..before };
    let (engine, _) = world.engine.rebuild(lost, &std::collections::HashSet::new(), NOW);
    assert!(engine.turns.contains_key(&pill) && engine.is_quarantined(&pill));
}
