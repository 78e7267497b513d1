//! How many agents work at the same time, and who is next.

use lodge_core::agent::FailReason;

use super::*;
use crate::{AgentCommand, AgentObservation, TurnCommand, TurnObservation};

impl EngineWorld {
    pub(super) fn with_slots(max_concurrent: usize) -> EngineWorld {
        let mut world = EngineWorld::new();
        world.see(Observation::Configured(settings(max_concurrent)));
        world
    }

    fn finish(&mut self, agent: &AgentId, turn: &TurnId) -> Batch {
        self.ask_model(agent, turn, 1);
        self.answer(turn, 1, 1, "done", &[])
    }

    /// A turn in a session of its own, named after the agent and the text.
    fn begin(&mut self, agent: &AgentId, text: &str) -> TurnId {
        turn_of(&self.send(agent, &format!("{agent}.{text}"), text))
    }

    fn end_by(&mut self, agent: &AgentId, turn: &TurnId, how: &str) {
        match how {
            "finish" => drop(self.finish(agent, turn)),
            "interrupt" => drop(self.ask(None, Command::Turn(TurnCommand::Interrupt { id: turn.clone() }))),
            "fail" => {
                let ask = RuntimeCall::Finish { turn: turn.clone(), code: "x".into(), message: "x".into() };
                self.see(Observation::Turn(TurnObservation::Asked {
                    agent: agent.clone(),
                    id: RuntimeCallId(json!(1)),
                    ask,
                }));
            }
            "stop" => drop(self.ask(
                None,
                Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }),
            )),
            "kill" => drop(self.ask(None, Command::Agent(AgentCommand::Kill { id: agent.clone() }))),
            "remove" => {
                drop(self.ask(None, Command::Agent(AgentCommand::Remove { id: agent.clone(), force: true })))
            }
            "restart" => drop(self.ask(
                None,
                Command::Agent(AgentCommand::Restart { id: agent.clone(), jobs: RunningJobs::Cancel }),
            )),
            "death" => {
                if let Some(agent) = self.engine.agents.get_mut(agent) {
                    agent.row.spec.revival_policy = Some(Policy::Ask.code());
                }
                let run = self.engine.agents[agent].row.runs;
                let (agent, part, detail) = (agent.clone(), AgentComponent::Sandbox, "x".to_owned());
                self.see(Observation::Agent(AgentObservation::Died { agent, run, part, detail }));
            }
            "exit" => {
                let run = self.engine.agents[agent].row.runs;
                self.see(Observation::Agent(AgentObservation::Exited {
                    agent: agent.clone(),
                    run,
                    code: 0,
                    detail: "x".into(),
                }));
            }
            "not down" => {
                let run = self.engine.agents[agent].row.runs;
                self.see(Observation::Sandbox(SandboxObservation::NotDown {
                    agent: agent.clone(),
                    run,
                    detail: "x".into(),
                }));
            }
            other => panic!("nothing ends a turn by {other}"),
        }
    }
}

#[test]
fn only_max_concurrent_agents_work_and_the_first_in_line_is_next() {
    let mut world = EngineWorld::with_slots(2);
    let agents: Vec<AgentId> = (0..4).map(|_| world.agent()).collect();
    let turns: Vec<TurnId> = agents.iter().map(|agent| world.begin(agent, "a")).collect();
    let states = |world: &EngineWorld| turns.iter().map(|turn| world.state(turn)).collect::<Vec<_>>();
    use TurnState::{Done, Queued, Running};
    assert_eq!(states(&world), [Running, Running, Queued, Queued]);
    assert_eq!(world.engine.sizes().working, 2);
    let batch = world.finish(&agents[1], &turns[1]);
    assert_eq!(states(&world), [Running, Done, Running, Queued]);
    assert_eq!(kinds(&batch).iter().filter(|kind| **kind == EventKind::AgentReady).count(), 1);
    world.finish(&agents[0], &turns[0]);
    assert_eq!(states(&world), [Done, Done, Running, Running]);
}

#[test]
fn an_agent_that_works_starts_further_turns_freely_and_gives_its_slot_back_after_the_last() {
    let mut world = EngineWorld::with_slots(1);
    let (one, two) = (world.agent(), world.agent());
    let first = world.begin(&one, "a");
    let waits = world.begin(&two, "a");
    let more = world.begin(&one, "b");
    assert_eq!(world.state(&more), TurnState::Running);
    world.finish(&one, &first);
    assert_eq!(world.state(&waits), TurnState::Queued, "one of its turns still runs");
    world.finish(&one, &more);
    assert_eq!(world.state(&waits), TurnState::Running);
}

#[test]
fn a_session_with_many_turns_does_not_keep_others_from_their_turn() {
    let mut world = EngineWorld::with_slots(1);
    let (one, two) = (world.agent(), world.agent());
    let first = turn_of(&world.send(&one, "s", "1"));
    let other = world.begin(&two, "a");
    let second = turn_of(&world.send(&one, "s", "2"));
    world.finish(&one, &first);
    assert_eq!([&other, &second].map(|turn| world.state(turn)), [TurnState::Running, TurnState::Queued]);
    world.finish(&two, &other);
    assert_eq!(world.state(&second), TurnState::Running);
}

#[test]
fn every_end_of_the_last_turn_of_an_agent_frees_its_slot() {
    for how in
        ["finish", "interrupt", "fail", "stop", "kill", "remove", "restart", "death", "exit", "not down"]
    {
        let mut world = EngineWorld::with_slots(1);
        let (one, two) = (world.agent(), world.agent());
        let (turn, waits) = (world.begin(&one, "a"), world.begin(&two, "a"));
        assert_eq!(world.state(&waits), TurnState::Queued);
        world.end_by(&one, &turn, how);
        assert_eq!(world.state(&waits), TurnState::Running, "after {how}");
        assert_eq!(world.engine.sizes().working, 1, "after {how}");
    }
}

#[test]
fn a_turn_that_waited_in_the_ledger_needs_a_slot_to_go_on() {
    let mut world = EngineWorld::with_slots(1);
    let (one, two) = (world.agent(), world.agent());
    let (turn, other) = (world.begin(&one, "a"), world.begin(&two, "a"));
    world.end_by(&one, &turn, "death");
    assert_eq!([&turn, &other].map(|turn| world.state(turn)), [TurnState::Waiting, TurnState::Running]);
    let lineage = world.engine.agents[&one].lineage.id.clone();
    let settlement =
        LineageResolution { agent: one.clone(), lineage, policy: Policy::Revive, last_turn: None };
    world.ask(None, Command::Agent(AgentCommand::SettleLineage(Box::new(settlement))));
    world.ready(&one);
    assert_eq!(world.state(&turn), TurnState::Waiting, "the slot is taken");
    world.finish(&two, &other);
    assert_eq!(world.state(&turn), TurnState::Running);
}

#[test]
fn an_answer_that_was_under_way_when_its_turn_was_parked_is_kept() {
    let mut world = EngineWorld::with_slots(1);
    let agent = world.agent();
    let turn = world.begin(&agent, "a");
    world.ask_model(&agent, &turn, 1);
    world.end_by(&agent, &turn, "death");
    world.answer(&turn, 1, 1, "done", &[]);
    assert_eq!(world.state(&turn), TurnState::Done);
    assert_eq!(world.engine.agents[&agent].row.state, AgentState::Failed(FailReason::Crashed));
}

#[test]
fn the_number_of_slots_can_grow_and_shrink_while_agents_work() {
    let mut world = EngineWorld::with_slots(1);
    let agents: Vec<AgentId> = (0..3).map(|_| world.agent()).collect();
    let turns: Vec<TurnId> = agents.iter().map(|agent| world.begin(agent, "a")).collect();
    world.see(Observation::Configured(settings(3)));
    assert_eq!(world.engine.sizes().working, 3, "who waited starts at once");
    world.see(Observation::Configured(settings(1)));
    assert_eq!(world.engine.sizes().working, 3, "what runs goes on");
    let late = world.begin(&agents[0], "b");
    assert_eq!(world.state(&late), TurnState::Running, "and has its slot until it is done");
    world.finish(&agents[0], &turns[0]);
    world.finish(&agents[0], &late);
    world.finish(&agents[1], &turns[1]);
    let next = world.begin(&agents[1], "c");
    assert_eq!(world.state(&next), TurnState::Queued);
    world.finish(&agents[2], &turns[2]);
    assert_eq!(world.state(&next), TurnState::Running);
}

#[test]
fn a_turn_says_what_it_waits_for() {
    let mut world = EngineWorld::with_slots(1);
    let (one, two) = (world.agent(), world.agent());
    let of = |batch: &Batch| reply(batch)["waits_for"].as_str().map(str::to_owned);
    assert_eq!(of(&world.send(&one, "s", "1")), None);
    assert_eq!(of(&world.send(&one, "s", "2")).as_deref(), Some("session"));
    assert_eq!(of(&world.send(&two, "t", "1")).as_deref(), Some("slot"));
    world.ask(None, Command::Agent(AgentCommand::Restart { id: two.clone(), jobs: RunningJobs::Cancel }));
    assert_eq!(of(&world.send(&two, "u", "1")).as_deref(), Some("agent"));
}

#[test]
fn a_restart_of_the_daemon_finds_the_same_slots_and_the_same_order() {
    let mut world = EngineWorld::with_slots(1);
    let agents: Vec<AgentId> = (0..3).map(|_| world.agent()).collect();
    let turns: Vec<TurnId> = agents.iter().map(|agent| world.begin(agent, "a")).collect();
    let engine = &world.engine;
    let live = |(at, turn): (i64, &TurnId)| {
        let row = TurnRow { created_at: NOW.plus_ms(at), ..engine.turns[turn].row.clone() };
        LiveTurn { row, steps: Vec::new(), calls: Vec::new(), answered: Vec::new(), note: None }
    };
    let sessions = engine.sessions.values().map(super::fact);
    let loaded = StoredState {
        epoch: 2,
        seq: engine.seq,
        streams: heads(engine),
        agents: engine.agents.values().map(|agent| agent.row.clone()).collect(),
        lineages: engine.agents.values().map(|agent| agent.lineage.clone()).collect(),
        sessions: sessions.collect(),
        turns: (0..).zip(&turns).map(live).collect(),
        ..StoredState::default()
    };
    let host = Host { settings: settings(1), ..host() };
    let (engine, batch) = Engine::boot(loaded, host, IdSource::new(2), "0", NOW);
    let mut world = EngineWorld { engine, written: world.written, stored: BTreeMap::new(), tickets: 0 };
    world.keep(&batch);
    assert_eq!(world.engine.sizes().working, 1);
    for agent in agents.iter().rev() {
        world.ready(agent);
    }
    assert_eq!(world.engine.sizes().working, 1, "the slot is still that of the turn that ran");
    world.finish(&agents[0], &turns[0]);
    assert_eq!([1, 2].map(|at: usize| world.state(&turns[at])), [TurnState::Running, TurnState::Queued]);
}
