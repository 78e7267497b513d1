//! Changes of sessions: decided on what they are, refused on what they were.

use lodge_core::SessionId;
use lodge_core::epoch::Strategy;
use lodge_core::session::{ForkPlan, PathPlan};

use super::*;
use crate::{AgentCommand, TurnCommand, TurnObservation};
use lodge_core::record::{SessionWrite, TurnWrite};

impl EngineWorld {
    fn fact(&self, session: &str) -> SessionFact {
        let session = &self.engine.sessions[&id(session)];
        SessionFact {
            row: session.row.clone(),
            turns: session.turns,
            messages: session.messages,
            cuts: session.cuts,
            tip: session.tip.clone(),
            epoch: session.epoch.clone(),
        }
    }

    fn change(&mut self, fact: SessionFact, what: SessionOperation) -> Batch {
        let change = SessionChange { fact, agent_name: "a".into(), agent_removed: false, what };
        self.ask(None, Command::Session(Box::new(change)))
    }

    fn say(&mut self, agent: &AgentId, session: &str, text: &str) -> TurnRow {
        let batch = self.send(agent, session, text);
        let row = accepted(&batch);
        self.ask_model(agent, &row.id, 1);
        self.answer(&row.id, 1, 1, "ok", &[]);
        row
    }
}

fn id(session: &str) -> SessionId {
    session.parse().unwrap()
}

fn accepted(batch: &Batch) -> TurnRow {
    let turn = batch.writes.iter().find_map(|write| match write {
        Write::Turn(TurnWrite::New(row)) => Some(row.clone()),
        _ => None,
    });
    turn.unwrap()
}

fn refusal(batch: &Batch) -> &str {
    match &batch.after[..] {
        [BatchOutput::Reply { reply: Err(error), .. }] => error.code(),
        other => panic!("not refused: {other:?}"),
    }
}

/// A path that is cut after this many turns, the last of which is `tip`.
fn cut(turns: u32, tip: Option<&TurnRow>) -> PathPlan {
    let tip = tip.map(|row| row.id.clone());
    PathPlan { from: turns + 1, restored: Vec::new(), turns, tip, epoch: lodge_core::epoch::Epoch::default() }
}

#[test]
fn turns_after_a_rewind_are_numbered_from_there_and_messages_go_on() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let rows: Vec<TurnRow> = (0..3).map(|_| world.say(&agent, "s", "hi")).collect();
    let fact = world.fact("s");
    let batch = world.change(fact, SessionOperation::Rewind(cut(1, Some(&rows[0]))));
    assert_eq!(reply(&batch)["turns"], 1);
    let next = world.say(&agent, "s", "again");
    assert_eq!((next.number, next.first_message), (2, 7), "no message is numbered twice");
    assert_eq!(next.place.parent.as_ref(), Some(&rows[0].id));
    assert_eq!((world.fact("s").cuts, world.fact("s").turns), (1, 2));
}

#[test]
fn what_was_read_of_a_session_that_moved_on_changes_nothing() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let row = world.say(&agent, "s", "hi");
    let stale = world.fact("s");
    world.say(&agent, "s", "more");
    let refused = world.change(stale, SessionOperation::Rewind(cut(0, None)));
    assert_eq!((refusal(&refused), refused.writes.len()), ("session.changed", 0));
    let stale = world.fact("s");
    let fact = world.fact("s");
    world.change(fact, SessionOperation::Rewind(cut(1, Some(&row))));
    let refused = world.change(stale, SessionOperation::Delete);
    assert_eq!(refusal(&refused), "session.changed");
    // In flight nothing is changed either.
    world.send(&agent, "s", "live");
    let fact = world.fact("s");
    let refused = world.change(fact, SessionOperation::Delete);
    assert_eq!((refusal(&refused), refused.writes.len()), ("session.busy", 0));
}

#[test]
fn a_plan_from_before_a_compaction_is_refused_although_the_turn_added_nothing_else() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let rows: Vec<TurnRow> = (0..2).map(|_| world.say(&agent, "s", "hi")).collect();
    let turn = accepted(&world.send(&agent, "s", "more")).id;
    let stale = world.fact("s");
    let ask = RuntimeCall::Compact { turn: turn.clone(), from_turn: 2, strategy: Strategy::Sliding };
    let id = RuntimeCallId(serde_json::json!("e"));
    world.see(Observation::Turn(TurnObservation::Asked { agent: agent.clone(), id, ask }));
    world.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn }));
    assert_eq!(world.fact("s").epoch.newest, stale.epoch.newest + 1);
    let refused = world.change(stale, SessionOperation::Rewind(cut(1, Some(&rows[0]))));
    assert_eq!((refusal(&refused), refused.writes.len()), ("session.changed", 0));
}

#[test]
fn a_request_that_read_of_a_session_before_it_was_deleted_begins_it_again() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.say(&agent, "s", "hi");
    let before = world.fact("s");
    world.change(before.clone(), SessionOperation::Delete);
    let refused = world.change(before.clone(), SessionOperation::Delete);
    assert_eq!(refusal(&refused), "session.not_found");
    let session = SessionChoice::Named { id: id("s"), fact: Some(before) };
    let new = NewTurn { agent, session, sender: None, text: "hi".into(), schema: None };
    let batch = world.ask(None, Command::Turn(TurnCommand::Send(Box::new(new))));
    assert!(
        batch.writes.iter().any(|write| matches!(write, Write::Session(SessionWrite::New(_)))),
        "it is made again"
    );
    let row = accepted(&batch);
    assert_eq!((row.number, row.first_message, row.place.parent), (1, 1, None));
}

#[test]
fn a_deleted_session_is_known_as_such_also_after_going_on_from_what_is_recorded() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.say(&agent, "s", "hi");
    let before = world.fact("s");
    world.change(before.clone(), SessionOperation::Delete);
    let loaded = StoredState {
        seq: world.engine.seq,
        streams: heads(&world.engine),
        agents: vec![world.engine.agents[&agent].row.clone()],
        lineages: vec![world.engine.agents[&agent].lineage.clone()],
        ..StoredState::default()
    };
    let EngineWorld { engine, written, stored, tickets } = world;
    let (engine, _) = engine.rebuild(loaded, &std::collections::HashSet::new(), NOW);
    let mut world = EngineWorld { engine, written, stored, tickets };
    assert_eq!(refusal(&world.change(before, SessionOperation::Delete)), "session.not_found");
}

#[test]
fn a_fork_goes_on_behind_its_copies_and_takes_no_name_that_is_taken() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let rows: Vec<TurnRow> = (0..2).map(|_| world.say(&agent, "s", "hi")).collect();
    let plan = || ForkPlan {
        turns: rows.iter().map(|row| row.id.clone()).collect(),
        messages: 4,
        bytes: 10,
        epoch: lodge_core::epoch::Epoch::default(),
    };
    let fact = world.fact("s");
    let taken = world.change(fact, SessionOperation::Fork { to: Some(id("s")), plan: plan() });
    assert_eq!(refusal(&taken), "session.exists");
    let fact = world.fact("s");
    let batch = world.change(fact, SessionOperation::Fork { to: Some(id("f")), plan: plan() });
    assert_eq!(reply(&batch)["forked_from"], json!({"session": "s", "turn": 2}));
    let Some(Write::Session(SessionWrite::Fork(fork))) =
        batch.writes.iter().find(|write| matches!(write, Write::Session(SessionWrite::Fork(_))))
    else {
        panic!("no fork: {batch:?}")
    };
    let next = world.say(&agent, "f", "on");
    assert_eq!((next.number, next.first_message), (3, 5));
    assert_eq!(next.place.parent.as_ref(), fork.turns.last().map(|(_, copy)| copy));
    let large = ForkPlan { bytes: lodge_core::limits::FORK_BYTES_MAX + 1, ..plan() };
    let fact = world.fact("s");
    let refused = world.change(fact, SessionOperation::Fork { to: None, plan: large });
    assert_eq!((refusal(&refused), refused.writes.len()), ("session.too_large", 0));
}

#[test]
fn a_refusal_leaves_a_session_that_the_store_knew_no_longer_in_memory_than_one_at_rest() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.say(&agent, "s", "hi");
    let known = world.fact("s");
    let stored = |id: &str, agent: &AgentId| {
        let row = lodge_core::record::SessionRow {
            id: id.parse().unwrap(),
            agent: agent.clone(),
            ..known.row.clone()
        };
        SessionFact { row, ..known.clone() }
    };
    let large = ForkPlan {
        turns: Vec::new(),
        messages: 0,
        bytes: lodge_core::limits::FORK_BYTES_MAX + 1,
        epoch: lodge_core::epoch::Epoch::default(),
    };
    let refused = world.change(stored("forked", &agent), SessionOperation::Fork { to: None, plan: large });
    assert_eq!(refusal(&refused), "session.too_large");
    let other: AgentId = "agt_00000000000000009".parse().unwrap();
    let session = SessionChoice::Named { id: id("theirs"), fact: Some(stored("theirs", &other)) };
    let new = NewTurn { agent, session, sender: None, text: "hi".into(), schema: None };
    let refused = world.ask(None, Command::Turn(TurnCommand::Send(Box::new(new))));
    assert_eq!(refusal(&refused), "session.other_agent");
    assert_eq!(world.engine.idle_sessions, [id("s"), id("forked"), id("theirs")]);
}

#[test]
fn a_turn_that_is_done_again_takes_the_place_of_the_old_one_in_one_batch() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let rows: Vec<TurnRow> = (0..2).map(|_| world.say(&agent, "s", "hi")).collect();
    let again = |plan| TurnRegeneration {
        turn: rows[1].id.clone(),
        text: "hi".into(),
        schema: None,
        note: None,
        plan,
    };
    let fact = world.fact("s");
    let batch = world.change(fact, SessionOperation::Regenerate(Box::new(again(cut(1, Some(&rows[0]))))));
    let row = accepted(&batch);
    assert_eq!((row.number, row.place.replaces.as_ref()), (2, Some(&rows[1].id)));
    assert_eq!(row.place.parent.as_ref(), Some(&rows[0].id));
    assert!(batch.writes.iter().any(|write| matches!(write, Write::Session(SessionWrite::Path(_)))));
    assert_eq!(reply(&batch)["replaces"], json!(rows[1].id.as_str()));
    // Refused, the path is as it was.
    world.ask_model(&agent, &row.id, 1);
    world.answer(&row.id, 1, 1, "ok", &[]);
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent, jobs: RunningJobs::Cancel }));
    let (fact, plan) = (world.fact("s"), cut(1, Some(&rows[0])));
    let refused = world.change(fact.clone(), SessionOperation::Regenerate(Box::new(again(plan))));
    assert_eq!((refusal(&refused), refused.writes.len()), ("agent.not_running", 0));
    assert_eq!(world.fact("s"), fact);
}
