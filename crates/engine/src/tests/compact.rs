//! Compaction: an epoch is recorded once, a summary before it is used, and a failed summary is no failed turn.

use lodge_core::epoch::{EpochRow, Strategy, Summary};
use lodge_core::record::{Role, SessionWrite, TurnWrite};

use super::*;
use crate::{ModelEffect, SandboxEffect, TurnCommand, TurnObservation};

/// A world with a session of two finished turns, whose third runs.
fn talk() -> (EngineWorld, AgentId, TurnId) {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    for text in ["one", "two"] {
        let turn = turn_of(&world.send(&agent, "s", text));
        world.ask_model(&agent, &turn, 1);
        world.answer(&turn, 1, 1, "yes", &[]);
    }
    let turn = turn_of(&world.send(&agent, "s", "three"));
    (world, agent, turn)
}

impl EngineWorld {
    fn compact(&mut self, agent: &AgentId, turn: &TurnId, from_turn: u32, strategy: Strategy) -> Batch {
        let ask = RuntimeCall::Compact { turn: turn.clone(), from_turn, strategy };
        self.see(Observation::Turn(TurnObservation::Asked {
            agent: agent.clone(),
            id: RuntimeCallId(json!("e")),
            ask,
        }))
    }

    fn fail_model(&mut self, turn: &TurnId, attempt: u32, retryable: bool) -> Batch {
        let record = FailureRecord { code: "model.status".into(), message: "no".into(), hint: None };
        let failure =
            ModelFailure { record, retry: if retryable { CallRetry::Own } else { CallRetry::Never } };
        self.see(Observation::Turn(TurnObservation::ModelFailed {
            turn: turn.clone(),
            step: 0,
            attempt,
            failure,
        }))
    }

    /// Requests the first step, and returns the epoch whose summary the model reads.
    fn summary_read(&mut self, agent: &AgentId, turn: &TurnId, from_turn: u32) -> Option<u32> {
        let ask = RuntimeCall::Model { turn: turn.clone(), step: 1, context: "c".into(), from_turn };
        let batch = self.see(Observation::Turn(TurnObservation::Asked {
            agent: agent.clone(),
            id: RuntimeCallId(json!("m1")),
            ask,
        }));
        order(&batch).summary
    }
}

fn order(batch: &Batch) -> &ModelOrder {
    match &batch.early[..] {
        [Effect::Model(ModelEffect::Call(order))] => order,
        other => panic!("no model call: {other:?}"),
    }
}

fn epochs(batch: &Batch) -> Vec<EpochRow> {
    let rows = batch.writes.iter().filter_map(|write| match write {
        Write::Session(SessionWrite::Epoch(row)) => Some(row.clone()),
        _ => None,
    });
    rows.collect()
}

fn told(batch: &Batch) -> Result<RuntimeAnswer, String> {
    let mut answers = acts(batch).into_iter().filter_map(|effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Answer { answer, .. }, .. } => {
            Some(answer.clone().map_err(|refusal| refusal.code().to_owned()))
        }
        _ => None,
    });
    answers.next_back().expect("the runtime is answered")
}

#[test]
fn a_runtime_hears_of_a_window_that_slides_after_it_is_recorded() {
    let (mut world, agent, turn) = talk();
    let batch = world.compact(&agent, &turn, 3, Strategy::Sliding);
    assert!(batch.early.is_empty(), "nothing leaves before its commit: {:?}", batch.early);
    assert!(batch.urgent, "the runtime waits");
    let [epoch] = &epochs(&batch)[..] else { panic!("one epoch") };
    assert_eq!((epoch.number, epoch.turn, epoch.from_turn, &epoch.summary), (2, 3, 3, &Summary::Nothing));
    assert_eq!(told(&batch), Ok(RuntimeAnswer::Compacted { from_turn: 3 }));
    assert_eq!(kinds(&batch), [EventKind::SessionCompacted]);
    let again = world.compact(&agent, &turn, 3, Strategy::Sliding);
    assert!(again.writes.is_empty(), "asked for again it is the same epoch");
    assert_eq!(told(&again), Ok(RuntimeAnswer::Compacted { from_turn: 3 }));
    assert_eq!(world.summary_read(&agent, &turn, 3), None);
}

#[test]
fn a_summary_is_a_model_step_of_the_turn_and_is_paid_for_by_it() {
    let (mut world, agent, turn) = talk();
    let asked = world.compact(&agent, &turn, 3, Strategy::Summarize);
    assert!(!asked.urgent, "nobody waits for the intent of a model call");
    let wanted = order(&asked);
    assert_eq!((wanted.step, wanted.from_turn, wanted.summary), (0, 1, None));
    assert_eq!(wanted.purpose, Purpose::Summary { upto: 2, strategy: Strategy::Summarize });
    assert!(world.compact(&agent, &turn, 3, Strategy::Summarize).early.is_empty(), "one call, one answer");
    let text = world.see(Observation::Turn(TurnObservation::ModelText {
        turn: turn.clone(),
        step: 0,
        attempt: 1,
        offset: 0,
        text: "they".into(),
    }));
    assert!(text.writes.is_empty(), "the text of a summary is nobody's answer");
    let answered = world.answer(&turn, 0, 1, "  they said yes twice\n", &[]);
    let [epoch] = &epochs(&answered)[..] else { panic!("one epoch") };
    assert_eq!(epoch.summary, Summary::Text("they said yes twice".into()));
    assert_eq!(told(&answered), Ok(RuntimeAnswer::Compacted { from_turn: 3 }));
    assert!(answered.urgent);
    let messages =
        answered.writes.iter().filter(|write| matches!(write, Write::Turn(TurnWrite::Message(_)))).count();
    assert_eq!(messages, 0, "history is not changed");
    assert_eq!(world.summary_read(&agent, &turn, 3), Some(2));
    world.answer(&turn, 1, 1, "yes", &[]);
    let usage = world.written.iter().rev().find_map(|write| match write {
        Write::Turn(TurnWrite::State { id, usage, .. }) if *id == turn => Some(*usage),
        _ => None,
    });
    assert_eq!(usage.map(|usage| (usage.input_tokens, usage.output_tokens)), Some((6, 4)));
}

#[test]
fn a_summary_that_cannot_be_had_becomes_a_window_that_slides_and_keeps_the_one_before() {
    let (mut world, agent, turn) = talk();
    world.compact(&agent, &turn, 2, Strategy::Summarize);
    world.answer(&turn, 0, 1, "the first", &[]);
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "yes", &[]);
    let turn = turn_of(&world.send(&agent, "s", "four"));
    world.compact(&agent, &turn, 4, Strategy::Summarize);
    let again = world.fail_model(&turn, 1, true);
    assert_eq!(order(&again).attempt, 2, "it is tried as any model call is");
    let given_up = world.fail_model(&turn, 2, false);
    let [epoch] = &epochs(&given_up)[..] else { panic!("one epoch") };
    assert_eq!((epoch.strategy, epoch.from_turn), (Strategy::Sliding, 4));
    assert_eq!(epoch.summary, Summary::Kept);
    assert_eq!(told(&given_up), Ok(RuntimeAnswer::Compacted { from_turn: 4 }));
    assert_eq!(world.state(&turn), TurnState::Running);
    assert_eq!(world.summary_read(&agent, &turn, 4), Some(3), "what stood there still stands");
}

#[test]
fn a_model_that_writes_nothing_has_written_no_summary() {
    let (mut world, agent, turn) = talk();
    world.compact(&agent, &turn, 3, Strategy::Summarize);
    let answered = world.answer(&turn, 0, 1, " \n", &[]);
    let [epoch] = &epochs(&answered)[..] else { panic!("one epoch") };
    assert_eq!((epoch.strategy, &epoch.summary), (Strategy::Sliding, &Summary::Kept));
    let event = answered.events().find(|event| event.body.kind() == EventKind::SessionCompacted).unwrap();
    assert_eq!(event.body.data()["code"], "model.no_summary");
}

#[test]
fn after_a_handoff_nothing_older_than_the_turn_is_read() {
    let (mut world, agent, turn) = talk();
    let asked = world.compact(&agent, &turn, 2, Strategy::Handoff);
    assert_eq!(order(&asked).purpose, Purpose::Summary { upto: 2, strategy: Strategy::Handoff });
    let answered = world.answer(&turn, 0, 1, "all there is to know", &[]);
    assert_eq!(told(&answered), Ok(RuntimeAnswer::Compacted { from_turn: 3 }), "more than was asked for");
    let (mut world, agent, turn) = talk();
    world.compact(&agent, &turn, 2, Strategy::Handoff);
    let failed = world.fail_model(&turn, 1, false);
    assert_eq!(
        told(&failed),
        Ok(RuntimeAnswer::Compacted { from_turn: 2 }),
        "without a document it slides as far as asked"
    );
}

#[test]
fn a_conversation_is_not_compacted_in_the_middle_of_a_turn_nor_beyond_it() {
    let (mut world, agent, turn) = talk();
    assert_eq!(told(&world.compact(&agent, &turn, 4, Strategy::Sliding)), Err("turn.bad_window".into()));
    assert_eq!(
        told(&world.compact(&agent, &turn, 1, Strategy::Sliding)),
        Ok(RuntimeAnswer::Compacted { from_turn: 1 })
    );
    world.ask_model(&agent, &turn, 1);
    assert_eq!(told(&world.compact(&agent, &turn, 3, Strategy::Sliding)), Err("turn.wrong_step".into()));
    world.answer(&turn, 1, 1, "", &[("c1", "sh")]);
    assert_eq!(told(&world.compact(&agent, &turn, 3, Strategy::Handoff)), Err("turn.wrong_step".into()));
    assert_eq!(world.state(&turn), TurnState::Running, "whoever asks decides what to do about it");
}

#[test]
fn an_interrupt_ends_the_summary_and_the_conversation_stays_as_it_was() {
    let (mut world, agent, turn) = talk();
    world.compact(&agent, &turn, 3, Strategy::Summarize);
    let batch = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }));
    assert!(acts(&batch).iter().any(|effect| matches!(effect, Effect::Model(ModelEffect::Cancel { .. }))));
    let ended = batch.writes.iter().any(|write| {
        matches!(write, Write::Turn(TurnWrite::StepState { step: 0, state: StepState::Interrupted, .. }))
    });
    assert!(ended && epochs(&batch).is_empty());
    let late = world.answer(&turn, 0, 1, "too late", &[]);
    assert!(late.writes.is_empty());
    let next = turn_of(&world.send(&agent, "s", "four"));
    assert_eq!(world.summary_read(&agent, &next, 1), None);
}

#[test]
fn what_was_seen_of_an_answer_that_was_broken_off_stays_in_the_conversation() {
    let (mut world, agent, turn) = talk();
    world.ask_model(&agent, &turn, 1);
    let (offset, text) = (0, "half an ans".to_owned());
    world.see(Observation::Turn(TurnObservation::ModelText {
        turn: turn.clone(),
        step: 1,
        attempt: 1,
        offset,
        text,
    }));
    let batch = world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn }));
    let kept = batch.writes.iter().find_map(|write| match write {
        Write::Turn(TurnWrite::Message(row)) => Some(row.clone()),
        _ => None,
    });
    let kept = kept.expect("a message");
    assert_eq!(
        (kept.role, kept.body.text.as_str(), kept.body.partial),
        (Role::Assistant, "half an ans", true)
    );
}

#[test]
fn a_summary_that_a_crash_cut_is_asked_for_again_and_one_that_is_stored_is_not() {
    for stored in [false, true] {
        let (mut old, agent, turn) = talk();
        old.compact(&agent, &turn, 3, Strategy::Summarize);
        if stored {
            old.answer(&turn, 0, 1, "a summary", &[]);
        }
        let (row, summary) = (old.engine.turns[&turn].row.clone(), old.engine.turns[&turn].summary.clone());
        let session = &old.engine.sessions[&row.session];
        let fact = SessionFact {
            row: session.row.clone(),
            turns: session.turns,
            messages: session.messages,
            cuts: session.cuts,
            tip: session.tip.clone(),
            epoch: session.epoch.clone(),
        };
        let live = LiveTurn {
            row,
            steps: summary.into_iter().collect(),
            calls: Vec::new(),
            answered: Vec::new(),
            note: None,
        };
        let loaded = StoredState {
            epoch: 2,
            seq: old.engine.seq,
            streams: heads(&old.engine),
            agents: vec![old.engine.agents[&agent].row.clone()],
            lineages: vec![old.engine.agents[&agent].lineage.clone()],
            sessions: vec![fact],
            turns: vec![live],
            ..StoredState::default()
        };
        let facts = old.engine.facts();
        let (engine, _) = Engine::boot(loaded, host(), IdSource::new(2), "0", NOW);
        assert_eq!(engine.facts().turns, facts.turns, "a restart finds what was held");
        let mut world = EngineWorld { engine, written: old.written, stored: BTreeMap::new(), tickets: 0 };
        let handed = world.ready(&agent);
        let run = acts(&handed).into_iter().find_map(|effect| match effect {
            Effect::Sandbox { what: SandboxEffect::RunTurn { step, epoch, .. }, .. } => {
                Some((*step, epoch.from_turn))
            }
            _ => None,
        });
        assert_eq!(run, Some((1, if stored { 3 } else { 1 })));
        let asked = world.compact(&agent, &turn, 3, Strategy::Summarize);
        if stored {
            assert!(asked.early.is_empty(), "it is answered from what is stored");
            assert_eq!(told(&asked), Ok(RuntimeAnswer::Compacted { from_turn: 3 }));
        } else {
            assert_eq!((order(&asked).step, order(&asked).attempt), (0, 2));
            assert!(kinds(&asked).contains(&EventKind::TurnStepRestarted));
        }
    }
}
