//! Pulls and what changes meanwhile: updates of the agent, and rebuilt engines.

use super::*;

#[test]
fn an_update_to_another_image_pulls_it_when_the_turns_are_over() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    let turn = turn_of(&world.send(&agent, "s", "hi"));
    let new = Box::new(spec(vec![rg()]));
    let image = AgentImageChange { name: "b:1".into(), digest: "sha256:1".into(), old: Box::default(), new };
    let change = Change { image: Some(image), ..Change::default() };
    let image = Some(announced(with_rg("sha256:1")));
    let update =
        Command::Agent(AgentCommand::Update(Box::new(Update { agent: agent.clone(), change, image })));
    let batch = world.ask(None, update);
    assert_eq!((pulls(&batch), reply(&batch)["in_force"].as_str()), ((vec![], 0), Some("after_turns")));
    world.ask_model(&agent, &turn, 1);
    let batch = world.answer(&turn, 1, 1, "done", &[]);
    assert_eq!((pulls(&batch), ups(&batch).len()), ((vec![1], 0), 0));
    assert_eq!(world.pull_state(&agent), AgentState::Pulling);
    let rows = vec![with_rg("sha256:1"), bin("sha256:rg")];
    assert_eq!(ups(&world.pull_ended(&agent, 1, rows, vec![found_rg()]))[0].image_digest, "sha256:1");
    assert!(!world.engine.images.contains_key("sha256:0"), "nobody has the old one");
}

#[test]
fn an_update_that_needs_nothing_from_images_ends_a_pull() {
    let mut world = EngineWorld::new();
    let (agent, ask) = world.pulling();
    let (old, new) = (Box::new(spec(vec![rg()])), Box::new(spec(Vec::new())));
    let image = AgentImageChange { name: "b:1".into(), digest: "sha256:2".into(), old, new };
    let change = Change { image: Some(image), ..Change::default() };
    let image = Some(new_image("sha256:2", Vec::new()));
    let batch = world.ask(
        None,
        Command::Agent(AgentCommand::Update(Box::new(Update { agent: agent.clone(), change, image }))),
    );
    assert_eq!((pulls(&batch), ups(&batch).len()), ((vec![], 1), 1));
    assert!(world.pulled(&agent, ask).writes.is_empty());
}

#[test]
fn an_update_to_the_image_that_it_has_needs_no_other_runtime() {
    let mut world = EngineWorld::new();
    let agent = world.pulled_agent();
    // As the API finds it: not pulled.
    let (old, new) = (Box::new(spec(vec![rg()])), Box::new(spec(vec![rg()])));
    let image = AgentImageChange { name: "a:latest".into(), digest: "sha256:1".into(), old, new };
    let change = Change { image: Some(image), ..Change::default() };
    let batch = world.ask(
        None,
        Command::Agent(AgentCommand::Update(Box::new(Update { agent: agent.clone(), change, image: None }))),
    );
    assert_eq!((pulls(&batch), world.pull_state(&agent)), ((vec![], 0), AgentState::Ready));
    assert_eq!(world.engine.agents[&agent].row.spec.tools, [found_rg()]);
}

#[test]
fn a_change_of_labels_meanwhile_is_not_lost_when_the_pull_ends() {
    let mut world = EngineWorld::new();
    let (agent, ask) = world.pulling();
    let labels = std::collections::BTreeMap::from([("k".to_owned(), Some("v".to_owned()))]);
    let change = Change { labels, ..Change::default() };
    let batch = world.ask(
        None,
        Command::Agent(AgentCommand::Update(Box::new(Update { agent: agent.clone(), change, image: None }))),
    );
    assert_eq!(pulls(&batch), (vec![], 0), "it is the same pull");
    world.pulled(&agent, ask);
    let spec = &world.engine.agents[&agent].row.spec;
    assert_eq!((spec.labels.get("k").map(String::as_str), &spec.tools), (Some("v"), &vec![found_rg()]));
}

#[test]
fn an_image_that_went_after_somebody_looked_it_up_is_pulled_and_not_taken_for_granted() {
    let mut world = EngineWorld::new();
    let row = || ImageRow::agent("sha256:1".into(), "a:latest".into(), 7, ImageRecord::default());
    let new = NewImage { row: row(), with: Vec::new(), tags: vec!["x:latest".to_owned()] };
    world.ask(None, Command::Image(ImageCommand::Add(Box::new(new))));
    let batch = world.ask(None, new_agent(announced(row()), Vec::new()));
    assert_eq!((pulls(&batch).0.len(), ups(&batch).len()), (0, 1), "it is whole");
    let agent: AgentId = reply(&batch)["id"].as_str().unwrap().parse().unwrap();
    world.ask(None, Command::Agent(AgentCommand::Remove { id: agent.clone(), force: true }));
    world.see(Observation::Sandbox(SandboxObservation::Cleared { agent }));
    world.ask(
        None,
        Command::Image(ImageCommand::Remove {
            given: ImageSelector::Ref("x:latest".into()),
            used_by: Vec::new(),
        }),
    );
    let batch = world.ask(None, new_agent(announced(row()), Vec::new()));
    assert_eq!((pulls(&batch).0.len(), ups(&batch).len()), (1, 0), "it went");
}

#[test]
fn a_rebuilt_engine_that_needs_no_pull_drops_the_one_under_way() {
    let mut world = EngineWorld::new();
    let (agent, _) = world.pulling();
    // As if what it lacked had come another way.
    let mut stored = world.as_stored();
    stored.agents.iter_mut().flat_map(|row| &mut row.spec.tools).for_each(|tool| tool.image = None);
    let (engine, batch) = world.engine.rebuild(stored, &HashSet::new(), NOW);
    assert_eq!((pulls(&batch), ups(&batch).len()), ((Vec::new(), 1), 1));
    assert!(engine.agents[&agent].pull.is_none());
}

#[test]
fn a_pull_that_is_set_aside_is_not_tried_again_until_an_operator_says_so() {
    use lodge_core::quarantine::{Suspect, Work, WorkKind};
    let mut world = EngineWorld::new();
    let (agent, _) = world.pulling();
    let work = Work { kind: WorkKind::Pull, subject: agent.to_string() };
    let suspect = Suspect { work, detail: world.engine.agents[&agent].row.image_digest.clone(), deaths: 3 };
    let (engine, batch) =
        Engine::boot_with_suspects(world.as_stored(), vec![suspect], host(), IdSource::new(2), "0", NOW);
    world.engine = engine;
    assert!(pulls(&batch).0.is_empty(), "nothing is pulled");
    assert_eq!(world.pull_state(&agent), AgentState::Failed(FailReason::Pull));
    let row = &world.engine.agents[&agent].row;
    assert!(
        row.retry.at.is_none() && row.failure_detail.as_ref().unwrap().contains("lodge quarantine retry")
    );
    let start = world.ask(None, Command::Agent(AgentCommand::Start { id: agent.clone() }));
    assert!(pulls(&start).0.is_empty(), "nor when somebody starts it");
    assert_eq!(world.pull_state(&agent), AgentState::Failed(FailReason::Pull));
    let id = world.engine.quarantine.keys().next().unwrap().clone();
    let retry = world.ask(None, Command::Work(WorkCommand::Release { id, how: Release::Retry }));
    world.pulled(&agent, pulls(&retry).0[0]);
    world.ready(&agent);
    assert_eq!(world.pull_state(&agent), AgentState::Ready);
}
