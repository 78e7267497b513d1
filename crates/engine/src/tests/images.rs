//! Names of images, and when an image goes.

use lodge_core::record::{AgentWrite, ImageWrite, RuntimeRecord};

use super::pulls::{bin, rg, with_rg};
use super::*;
use crate::{AgentCommand, ImageCommand, PullEffect, PullObservation, SandboxObservation};

impl EngineWorld {
    fn build(&mut self, digest: &str, tags: &[&str]) -> Batch {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let new = new_image(digest, tags);
        self.ask(None, Command::Image(ImageCommand::Add(Box::new(new))))
    }

    fn remove_image(&mut self, given: ImageSelector) -> Batch {
        self.ask(None, Command::Image(ImageCommand::Remove { given, used_by: Vec::new() }))
    }

    fn agent_of(&mut self, digest: &str, tags: &[&str]) -> AgentId {
        let new = NewAgent {
            name: NameChoice::Like("a".into()),
            called: "a:latest".into(),
            image: new_image(digest, tags.iter().map(|tag| (*tag).to_owned()).collect()),
            spec: AgentSpec::default(),
        };
        let batch = self.ask(None, Command::Agent(AgentCommand::Create(Box::new(new))));
        reply(&batch)["id"].as_str().unwrap().parse().unwrap()
    }

    fn remove_agent(&mut self, id: &AgentId) -> Batch {
        self.ask(None, Command::Agent(AgentCommand::Remove { id: id.clone(), force: true }));
        self.see(Observation::Sandbox(SandboxObservation::Cleared { agent: id.clone() }))
    }
}

fn named(reference: &str) -> ImageSelector {
    ImageSelector::Ref(reference.to_owned())
}

/// The images that a batch lets go.
fn gone(batch: &Batch) -> Vec<&str> {
    let gone = batch.writes.iter().filter_map(|write| match write {
        Write::Image(ImageWrite::Gone { digest }) => Some(digest.as_str()),
        _ => None,
    });
    gone.collect()
}

fn code(batch: &Batch) -> String {
    let refusal = batch.after.iter().find_map(|out| match out {
        BatchOutput::Reply { reply: Err(error), .. } => Some(error.code().to_owned()),
        BatchOutput::Reply { reply: Ok(_), .. } | BatchOutput::Act(_) => None,
    });
    refusal.expect("a refusal")
}

#[test]
fn a_name_that_moves_lets_its_old_image_go_unless_somebody_has_it() {
    let mut world = EngineWorld::new();
    let shown = reply(&world.build("sha256:1", &["x:latest", "x:v1"]));
    assert_eq!((&shown["refs"], &shown["agents"]), (&json!(["x:latest", "x:v1"]), &json!(0)));
    assert!(gone(&world.build("sha256:2", &["x:latest"])).is_empty(), "x:v1 still means it");
    assert_eq!(gone(&world.build("sha256:2", &["x:v1"])), ["sha256:1"]);
    let agent = world.agent_of("sha256:2", &[]);
    assert!(gone(&world.build("sha256:3", &["x:latest", "x:v1"])).is_empty(), "an agent has it");
    assert_eq!(gone(&world.remove_agent(&agent)), ["sha256:2"]);
    assert!(gone(&world.build("sha256:3", &["x:latest"])).is_empty(), "the same again changes nothing");
}

#[test]
fn a_name_can_go_as_long_as_the_image_has_another_or_nobody_uses_it() {
    let mut world = EngineWorld::new();
    world.build("sha256:1", &["x:latest", "x:v1"]);
    let agent = world.agent_of("sha256:1", &[]);
    let removed = world.remove_image(named("x:v1"));
    assert_eq!(reply(&removed), json!({"digest": "sha256:1", "untagged": ["x:v1"], "removed": false}));
    assert_eq!(code(&world.remove_image(named("x:v1"))), "image.not_found");
    assert_eq!(code(&world.remove_image(named("x:latest"))), "image.in_use");
    assert_eq!(code(&world.remove_image(ImageSelector::Digest("sha256:1".into()))), "image.in_use");
    assert!(gone(&world.remove_agent(&agent)).is_empty(), "it has a name");
    let removed = world.remove_image(named("x:latest"));
    assert_eq!(reply(&removed)["removed"], true);
    assert_eq!(gone(&removed), ["sha256:1"]);
}

#[test]
fn an_image_removed_by_its_digest_loses_all_of_its_names() {
    let mut world = EngineWorld::new();
    world.build("sha256:1", &["x:latest", "y:latest"]);
    world.build("sha256:2", &["z:latest"]);
    let removed = world.remove_image(ImageSelector::Digest("sha256:1".into()));
    assert_eq!(reply(&removed)["untagged"], json!(["x:latest", "y:latest"]));
    assert_eq!(gone(&removed), ["sha256:1"]);
    assert_eq!(code(&world.remove_image(named("y:latest"))), "image.not_found");
    assert_eq!(reply(&world.remove_image(named("z:latest")))["removed"], true);
}

#[test]
fn an_agent_names_its_image_and_the_name_outlives_it() {
    let mut world = EngineWorld::new();
    let agent = world.agent_of("sha256:1", &["a:latest"]);
    assert!(gone(&world.remove_agent(&agent)).is_empty());
    assert_eq!(reply(&world.remove_image(named("a:latest")))["removed"], true);
}

#[test]
fn an_image_that_a_waiting_update_had_goes_once_and_after_its_agent_has_another() {
    let mut world = EngineWorld::new();
    let agent = world.agent();
    world.send(&agent, "s", "1");
    let update = |world: &mut EngineWorld, digest: &str| {
        let (old, new) = (Box::default(), Box::default());
        let image = AgentImageChange { name: digest.into(), digest: digest.into(), old, new };
        let change = Change { image: Some(image), ..Change::default() };
        let image = Some(new_image(digest, vec!["x:latest".to_owned()]));
        world.ask(
            None,
            Command::Agent(AgentCommand::Update(Box::new(Update { agent: agent.clone(), change, image }))),
        )
    };
    assert_eq!(reply(&update(&mut world, "sha256:1"))["in_force"], "after_turns");
    let batch = update(&mut world, "sha256:2");
    let named = batch.writes.iter().position(|write| matches!(write, Write::Agent(AgentWrite::Spec { .. })));
    let left = batch.writes.iter().position(|write| matches!(write, Write::Image(ImageWrite::Gone { .. })));
    assert!(named.is_some() && named < left, "{:?}", batch.writes);
    assert_eq!(gone(&batch), ["sha256:1"]);
}

#[test]
fn an_image_that_went_while_somebody_named_it_by_its_digest_is_not_there() {
    let mut world = EngineWorld::new();
    let digest = || ImageSelector::Digest("sha256:1".into());
    world.build("sha256:1", &["x:latest"]);
    assert_eq!(reply(&world.remove_image(digest()))["removed"], true);
    let again = world.remove_image(digest());
    assert_eq!((code(&again), again.writes.len()), ("image.not_found".into(), 0));
}

impl EngineWorld {
    fn add(&mut self, row: ImageRow, with: Vec<ImageRow>, tags: &[&str]) -> Batch {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        self.ask(None, Command::Image(ImageCommand::Add(Box::new(NewImage { row, with, tags }))))
    }

    fn tag(&mut self, digest: &str, tags: &[&str]) -> Batch {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        self.ask(None, Command::Image(ImageCommand::Tag { digest: digest.into(), tags }))
    }

    fn has(&self, digest: &str) -> bool {
        self.engine.images.contains_key(digest)
    }
}

/// How often contents are to be collected.
fn collections(batch: &Batch) -> usize {
    acts(batch).iter().filter(|effect| matches!(effect, Effect::Pull(PullEffect::Collect))).count()
}

#[test]
fn a_tool_stays_while_an_image_needs_it_and_goes_with_the_last_of_them() {
    let mut world = EngineWorld::new();
    world.add(with_rg("sha256:1"), vec![bin("sha256:rg")], &["x:latest"]);
    world.add(with_rg("sha256:2"), Vec::new(), &["y:latest"]);
    assert_eq!(gone(&world.remove_image(named("x:latest"))), ["sha256:1"]);
    assert!(world.has("sha256:rg"));
    let last = world.remove_image(named("y:latest"));
    assert_eq!((gone(&last), collections(&last)), (vec!["sha256:2", "sha256:rg"], 1));
}

#[test]
fn a_tool_with_a_name_outlives_the_images_that_need_it() {
    let mut world = EngineWorld::new();
    let shown = reply(&world.add(bin("sha256:rg"), Vec::new(), &["rg:latest"]));
    assert_eq!(
        (&shown["name"], &shown["used"], &shown["refs"]),
        (&json!("rg"), &json!(0), &json!(["rg:latest"]))
    );
    world.add(with_rg("sha256:1"), Vec::new(), &["x:latest"]);
    assert_eq!(gone(&world.remove_image(named("x:latest"))), ["sha256:1"]);
    assert!(world.has("sha256:rg"));
}

#[test]
fn the_last_name_of_a_tool_is_not_taken_from_those_who_need_it() {
    let mut world = EngineWorld::new();
    world.add(bin("sha256:rg"), Vec::new(), &["rg:latest", "rg:14"]);
    world.add(with_rg("sha256:1"), Vec::new(), &["x:latest"]);
    assert_eq!(reply(&world.remove_image(named("rg:14")))["removed"], false);
    let why = |batch: &Batch| {
        batch.after.iter().find_map(|out| match out {
            BatchOutput::Reply { reply: Err(error), .. } => Some(error.to_string()),
            BatchOutput::Reply { reply: Ok(_), .. } | BatchOutput::Act(_) => None,
        })
    };
    let refused = world.remove_image(named("rg:latest"));
    assert_eq!(code(&refused), "image.in_use");
    assert_eq!(why(&refused).as_deref(), Some("the image `rg:latest` is needed by `x:latest`"));
    let spec = AgentSpec { tools: vec![rg()], ..AgentSpec::default() };
    let image = new_image("sha256:0", Vec::new());
    let (name, called) = (NameChoice::Like("a".into()), "a".into());
    world.ask(None, Command::Agent(AgentCommand::Create(Box::new(NewAgent { name, called, image, spec }))));
    let refused = world.remove_image(ImageSelector::Digest("sha256:rg".into()));
    let both = "the image `rg:latest` is in use by `a`, and needed by `x:latest`";
    assert_eq!(why(&refused).as_deref(), Some(both));
    assert_eq!(reply(&world.remove_image(named("x:latest")))["removed"], true);
    assert_eq!(
        why(&world.remove_image(named("rg:latest"))).as_deref(),
        Some("the image `rg:latest` is in use by `a`")
    );
}

#[test]
fn a_tool_that_came_for_an_agent_goes_with_it() {
    let mut world = EngineWorld::new();
    let spec = AgentSpec { tools: vec![rg()], ..AgentSpec::default() };
    let image = new_image("sha256:0", Vec::new());
    let (name, called) = (NameChoice::Like("a".into()), "a".into());
    let batch = world
        .ask(None, Command::Agent(AgentCommand::Create(Box::new(NewAgent { name, called, image, spec }))));
    let agent: AgentId = reply(&batch)["id"].as_str().unwrap().parse().unwrap();
    let rows = vec![bin("sha256:rg"), bin("sha256:unasked")];
    let seen = Observation::Pull(PullObservation::Pulled {
        agent: agent.clone(),
        ask: 1,
        rows,
        tools: vec![rg()],
        runtime: None,
    });
    assert_eq!(gone(&world.see(seen)), ["sha256:unasked"], "what nobody needs is not kept");
    let batch = world.remove_agent(&agent);
    assert_eq!((gone(&batch), collections(&batch)), (vec!["sha256:rg", "sha256:0"], 1));
}

#[test]
fn a_runtime_that_an_agent_was_given_beside_its_image_stays_as_long_as_the_agent() {
    let mut world = EngineWorld::new();
    let loops = Some("loop:1@sha256:loop".to_owned());
    let spec = AgentSpec {
        runtime: Some(RuntimeRecord { image: loops, ..RuntimeRecord::default() }),
        ..AgentSpec::default()
    };
    let with = vec![bin("sha256:loop")];
    let image = NewImage { with, ..new_image("sha256:0", Vec::new()) };
    let (name, called) = (NameChoice::Like("a".into()), "a".into());
    let batch = world
        .ask(None, Command::Agent(AgentCommand::Create(Box::new(NewAgent { name, called, image, spec }))));
    let agent: AgentId = reply(&batch)["id"].as_str().unwrap().parse().unwrap();
    assert!(gone(&batch).is_empty() && world.has("sha256:loop"), "{batch:?}");
    world.tag("sha256:loop", &["loop:1"]);
    world.build("sha256:1", &["x:latest"]);
    for given in [named("loop:1"), ImageSelector::Digest("sha256:loop".into())] {
        assert_eq!(code(&world.remove_image(given)), "image.in_use");
    }
    // Its name moves on, and the agent still has it.
    assert_eq!(gone(&world.add(bin("sha256:loop2"), Vec::new(), &["loop:1"])), [""; 0]);
    assert!(world.has("sha256:loop"));
    assert_eq!(gone(&world.remove_agent(&agent)), ["sha256:loop", "sha256:0"]);
}

#[test]
fn what_came_with_an_image_and_is_not_needed_is_not_kept_nor_an_image_without_a_name() {
    let mut world = EngineWorld::new();
    let batch = world.add(with_rg("sha256:1"), vec![bin("sha256:rg"), bin("sha256:other")], &["x:latest"]);
    assert_eq!((gone(&batch), world.has("sha256:rg")), (vec!["sha256:other"], true));
    assert_eq!(gone(&world.add(with_rg("sha256:2"), Vec::new(), &[])), ["sha256:2"]);
}

#[test]
fn a_tag_is_one_more_name_and_moves_from_its_old_image() {
    let mut world = EngineWorld::new();
    world.build("sha256:1", &["x:latest"]);
    world.build("sha256:2", &["y:latest"]);
    let shown = reply(&world.tag("sha256:1", &["z:1", "z:2"]));
    assert_eq!((&shown["refs"], &shown["size_bytes"]), (&json!(["x:latest", "z:1", "z:2"]), &json!(7)));
    assert_eq!(gone(&world.tag("sha256:1", &["y:latest"])), ["sha256:2"]);
    let refused = world.tag("sha256:2", &["x:latest"]);
    assert_eq!((code(&refused), refused.writes.len()), ("image.not_found".into(), 0));
}

#[test]
fn a_name_moves_neither_from_a_tool_to_an_agent_nor_back() {
    let mut world = EngineWorld::new();
    world.add(bin("sha256:rg"), Vec::new(), &["rg:latest"]);
    world.build("sha256:1", &["x:latest"]);
    let agent = NewAgent {
        name: NameChoice::Like("a".into()),
        called: "a:latest".into(),
        image: new_image("sha256:2", vec!["rg:latest".to_owned()]),
        spec: AgentSpec::default(),
    };
    for refused in [
        world.build("sha256:2", &["y:latest", "rg:latest"]),
        world.tag("sha256:1", &["rg:latest"]),
        world.add(bin("sha256:other"), Vec::new(), &["x:latest"]),
        world.tag("sha256:rg", &["x:latest"]),
        world.ask(None, Command::Agent(AgentCommand::Create(Box::new(agent)))),
    ] {
        assert_eq!((code(&refused), refused.writes.len()), ("image.name_taken".into(), 0));
    }
    reply(&world.add(bin("sha256:newer"), Vec::new(), &["rg:latest"]));
    reply(&world.remove_image(named("rg:latest")));
    reply(&world.tag("sha256:1", &["rg:latest"]));
}

#[test]
fn an_image_that_went_can_come_again() {
    let mut world = EngineWorld::new();
    world.build("sha256:1", &["x:latest"]);
    let again = world.build("sha256:1", &["x:latest"]);
    assert!(
        !again.writes.iter().any(|write| matches!(write, Write::Image(ImageWrite::Here(_)))),
        "it is recorded"
    );
    world.remove_image(named("x:latest"));
    let again = world.build("sha256:1", &["x:latest"]);
    assert!(
        again.writes.iter().any(|write| matches!(write, Write::Image(ImageWrite::Here(_)))),
        "it was not any more"
    );
}

#[test]
fn images_that_go_with_one_batch_are_collected_once_after_everything_else() {
    let mut world = EngineWorld::new();
    world.build("sha256:1", &["x:latest"]);
    world.build("sha256:2", &["y:latest"]);
    let remove = |ticket, name| Input::Api {
        ticket,
        request: None,
        command: Command::Image(ImageCommand::Remove { given: named(name), used_by: Vec::new() }),
    };
    let batch = world.engine.step([remove(8, "x:latest"), remove(9, "y:latest")], NOW);
    assert_eq!(gone(&batch), ["sha256:1", "sha256:2"]);
    assert_eq!(collections(&batch), 1);
    assert!(matches!(batch.after.last(), Some(BatchOutput::Act(Effect::Pull(PullEffect::Collect)))));
    assert_eq!(collections(&world.build("sha256:3", &["z:latest"])), 0);
}
