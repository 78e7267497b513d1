//! Agents that become another in place.

use std::collections::BTreeMap;

use lodge_core::record::{ImageWrite, LimitsRecord, RuntimeRecord};

use super::*;
use crate::{AgentCommand, AgentObservation, ModelEffect, SandboxEffect};

fn ups(batch: &Batch) -> Vec<(u32, String)> {
    let up = |effect: &&Effect| match effect {
        Effect::Sandbox { what: SandboxEffect::Up { plan, how: StartMode::Start }, .. } => {
            Some((plan.incarnation, plan.settings.model.clone()))
        }
        _ => None,
    };
    acts(batch).iter().filter_map(up).collect()
}

fn runtime(source: &str) -> RuntimeRecord {
    RuntimeRecord { source: source.into(), ..RuntimeRecord::default() }
}

fn to_model(model: &str) -> Change {
    Change { model: Some(model.into()), ..Change::default() }
}

impl EngineWorld {
    fn update(&mut self, agent: &AgentId, change: Change) -> Batch {
        let update = Update { agent: agent.clone(), change, image: None };
        self.ask(None, Command::Agent(AgentCommand::Update(Box::new(update))))
    }

    fn spec(&self, agent: &AgentId) -> &AgentSpec {
        &self.engine.agents[agent].row.spec
    }

    fn calls_model(&mut self, agent: &AgentId, turn: &TurnId) -> String {
        let batch = self.ask_model(agent, turn, 1);
        let model = batch.early.iter().find_map(|effect| match effect {
            Effect::Model(ModelEffect::Call(order)) => Some(order.model.clone()),
            _ => None,
        });
        model.expect("a call")
    }
}

#[test]
fn an_idle_agent_gets_it_at_once_by_another_runtime() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let batch = world.update(&agent, to_model("p/new"));
    assert_eq!((&reply(&batch)["in_force"], &reply(&batch)["after_turns"]), (&json!("now"), &json!([])));
    assert_eq!(ups(&batch), [(2, "p/new".to_owned())]);
    assert_eq!(reply(&batch)["model"], "p/new");
    assert!(kinds(&batch).contains(&EventKind::AgentUpdated));
}

#[test]
fn running_turns_finish_on_the_old_settings_and_then_the_runtime_is_replaced() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let (one, two) = (turn_of(&world.send(&agent, "s", "1")), turn_of(&world.send(&agent, "t", "1")));
    let batch = world.update(&agent, to_model("p/new"));
    assert_eq!(reply(&batch)["in_force"], "after_turns");
    assert_eq!(reply(&batch)["after_turns"], json!([one.to_string(), two.to_string()]));
    assert!(ups(&batch).is_empty());
    let waits = world.send(&agent, "u", "1");
    assert_eq!(reply(&waits)["waits_for"], "update", "nothing begins on what is about to go");
    assert_eq!(world.calls_model(&agent, &one), "p/m");
    assert!(ups(&world.answer(&one, 1, 1, "done", &[])).is_empty());
    assert_eq!(world.calls_model(&agent, &two), "p/m");
    assert_eq!(ups(&world.answer(&two, 1, 1, "done", &[])), [(2, "p/new".to_owned())]);
    world.ready(&agent);
    let later = turn_of(&waits);
    assert_eq!(world.state(&later), TurnState::Running);
    assert_eq!(world.calls_model(&agent, &later), "p/new");
}

#[test]
fn a_stopped_agent_gets_it_at_its_next_start() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }));
    let batch = world.update(&agent, to_model("p/new"));
    assert_eq!(reply(&batch)["in_force"], "next_start");
    assert!(ups(&batch).is_empty());
    assert_eq!(world.engine.agents[&agent].row.state, AgentState::Stopped);
    assert_eq!(
        ups(&world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }))),
        [(2, "p/new".to_owned())]
    );
}

#[test]
fn one_that_waits_for_its_retry_is_tried_at_once_with_what_is_new() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Restart { id: agent.clone(), jobs: RunningJobs::Cancel }));
    let lacks = Observation::Agent(AgentObservation::Lacks {
        agent: agent.clone(),
        run: 2,
        lack: StartRequirement::Model,
        detail: "x".into(),
    });
    world.see(lacks);
    let batch = world.update(&agent, to_model("p/new"));
    assert_eq!(reply(&batch)["in_force"], "now");
    assert_eq!(ups(&batch), [(3, "p/new".to_owned())]);
}

#[test]
fn a_stop_or_a_death_for_good_in_between_lets_what_is_new_count() {
    for how in ["stop", "death", "restart"] {
        let mut world = EngineWorld::new();
        let agent = world.agent();
        let turn = turn_of(&world.send(&agent, "s", "1"));
        world.update(&agent, to_model("p/new"));
        let command = match how {
            "stop" => {
                Some(Command::Agent(AgentCommand::Stop { id: agent.clone(), jobs: RunningJobs::Cancel }))
            }
            "restart" => {
                Some(Command::Agent(AgentCommand::Restart { id: agent.clone(), jobs: RunningJobs::Cancel }))
            }
            _ => None,
        };
        match command {
            Some(command) => drop(world.ask(None, command)),
            None => {
                let seen = Observation::Sandbox(SandboxObservation::NotDown {
                    agent: agent.clone(),
                    run: 1,
                    detail: "x".into(),
                });
                world.see(seen);
                assert_eq!(world.state(&turn), TurnState::Waiting);
            }
        }
        assert_eq!(world.spec(&agent).model, "p/new", "after {how}");
        assert!(world.engine.agents[&agent].row.next.is_none(), "after {how}");
    }
}

#[test]
fn a_runtime_that_dies_while_an_update_waits_is_revived_with_what_its_turns_began_with() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "1"));
    world.update(&agent, to_model("p/new"));
    let died = Observation::Agent(AgentObservation::Died {
        agent: agent.clone(),
        run: 1,
        part: AgentComponent::Runtime,
        detail: "x".into(),
    });
    assert_eq!(ups(&world.see(died)), [(1, "p/m".to_owned())]);
    world.ready(&agent);
    assert_eq!(world.calls_model(&agent, &turn), "p/m");
    assert_eq!(ups(&world.answer(&turn, 1, 1, "x", &[])), [(2, "p/new".to_owned())]);
}

#[test]
fn two_changes_at_once_are_two_changes() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "1"));
    let env = |key: &str, value: Option<&str>| Change {
        env: BTreeMap::from([(key.to_owned(), value.map(str::to_owned))]),
        ..Change::default()
    };
    world.update(&agent, env("A", Some("1")));
    world.update(&agent, env("B", Some("2")));
    world.update(&agent, env("A", None));
    world.ask_model(&agent, &turn, 1);
    world.answer(&turn, 1, 1, "x", &[]);
    assert_eq!(world.spec(&agent).env, BTreeMap::from([("B".to_owned(), "2".to_owned())]));
}

#[test]
fn labels_and_the_policy_need_no_other_runtime() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "1"));
    let change = Change {
        labels: BTreeMap::from([("team".to_owned(), Some("a".to_owned()))]),
        revival_policy: Some(Policy::Ask),
        ..Change::default()
    };
    let batch = world.update(&agent, change);
    assert_eq!(reply(&batch)["in_force"], "now");
    assert!(ups(&batch).is_empty());
    assert_eq!(world.spec(&agent).policy(Policy::Revive), Policy::Ask);
    assert_eq!(world.state(&turn), TurnState::Running);
    let told = Change {
        labels: BTreeMap::from([("description".to_owned(), Some("b".to_owned()))]),
        ..Change::default()
    };
    assert_eq!(reply(&world.update(&agent, told))["in_force"], "after_turns", "the agent is told this one");
}

#[test]
fn another_image_replaces_what_came_with_the_old_one_and_keeps_what_was_chosen() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    };
    if let Some(agent) = world.engine.agents.get_mut(&agent) {
        agent.row.spec.labels = labels(&[("from", "old"), ("mine", "1"), ("both", "chosen")]);
        agent.row.spec.runtime = Some(RuntimeRecord { path: "/found/loop".into(), ..runtime("host:loop") });
    }
    let old = AgentSpec {
        model: "p/m".into(),
        labels: labels(&[("from", "old")]),
        runtime: Some(runtime("host:loop")),
        ..AgentSpec::default()
    };
    let new = AgentSpec {
        model: "p/newer".into(),
        labels: labels(&[("since", "new"), ("both", "image")]),
        tools: vec![ToolRecord { name: "cat".into(), ..ToolRecord::default() }],
        limits: Some(LimitsRecord { pids: Some(7), ..LimitsRecord::default() }),
        ..AgentSpec::default()
    };
    let image = AgentImageChange {
        name: "b:latest".into(),
        digest: "sha256:1".into(),
        old: Box::new(old),
        new: Box::new(new),
    };
    let update = Update {
        agent: agent.clone(),
        change: Change { image: Some(image), ..Change::default() },
        image: Some(new_image("sha256:1", vec!["b:latest".into()])),
    };
    let batch = world.ask(None, Command::Agent(AgentCommand::Update(Box::new(update))));
    assert!(
        batch
            .writes
            .iter()
            .any(|write| matches!(write, Write::Image(ImageWrite::Here(row)) if row.digest == "sha256:1"))
    );
    let spec = world.spec(&agent);
    assert_eq!((spec.model.as_str(), spec.tools.len()), ("p/newer", 1));
    assert_eq!(spec.labels, labels(&[("both", "chosen"), ("mine", "1"), ("since", "new")]));
    assert_eq!(spec.limits.and_then(|limits| limits.pids), Some(7));
    assert_eq!(spec.runtime, None, "its own went with the old image");
    assert_eq!(world.engine.agents[&agent].row.image, "b:latest");
}

#[test]
fn an_agent_that_is_going_is_not_updated() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.ask(None, Command::Agent(AgentCommand::Remove { id: agent.clone(), force: true }));
    let batch = world.update(&agent, to_model("p/new"));
    assert_eq!(refusal(&batch), "agent.wrong_state");
    assert!(batch.writes.is_empty());
}
