//! Names of images, and when an image goes.

use super::*;

impl World {
    fn build(&mut self, digest: &str, tags: &[&str]) -> Batch {
        let tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        let new = NewImage { digest: digest.into(), record: ImageRecord::default(), bytes: 7, tags };
        self.ask(None, Command::BuildImage(Box::new(new)))
    }

    fn remove_image(&mut self, given: ImageGiven) -> Batch {
        self.ask(None, Command::RemoveImage(given))
    }

    fn agent_of(&mut self, digest: &str, tags: &[&str]) -> AgentId {
        let new = NewAgent {
            name: NameChoice::Like("a".into()),
            image: "a:latest".into(),
            image_digest: digest.into(),
            record: ImageRecord::default(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            spec: AgentSpec::default(),
        };
        let batch = self.ask(None, Command::CreateAgent(Box::new(new)));
        reply(&batch)["id"].as_str().unwrap().parse().unwrap()
    }

    fn remove_agent(&mut self, id: &AgentId) -> Batch {
        self.ask(None, Command::RemoveAgent { id: id.clone(), force: true });
        self.see(Seen::Cleared { agent: id.clone() })
    }
}

fn named(reference: &str) -> ImageGiven {
    ImageGiven::Ref(reference.to_owned())
}

/// The images that a batch lets go.
fn gone(batch: &Batch) -> Vec<&str> {
    let gone = batch.writes.iter().filter_map(|write| match write {
        Write::ImageGone { digest } => Some(digest.as_str()),
        _ => None,
    });
    gone.collect()
}

fn code(batch: &Batch) -> String {
    let refusal = batch.after.iter().find_map(|out| match out {
        Out::Reply { reply: Err(error), .. } => Some(error.data.code.clone()),
        Out::Reply { reply: Ok(_), .. } | Out::Act(_) => None,
    });
    refusal.expect("a refusal")
}

#[test]
fn a_name_that_moves_lets_its_old_image_go_unless_somebody_has_it() {
    let mut world = World::new();
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
    let mut world = World::new();
    world.build("sha256:1", &["x:latest", "x:v1"]);
    let agent = world.agent_of("sha256:1", &[]);
    let removed = world.remove_image(named("x:v1"));
    assert_eq!(reply(&removed), json!({"digest": "sha256:1", "untagged": ["x:v1"], "removed": false}));
    assert_eq!(code(&world.remove_image(named("x:v1"))), "image.not_found");
    assert_eq!(code(&world.remove_image(named("x:latest"))), "image.in_use");
    assert_eq!(code(&world.remove_image(ImageGiven::Digest("sha256:1".into()))), "image.in_use");
    assert!(gone(&world.remove_agent(&agent)).is_empty(), "it has a name");
    let removed = world.remove_image(named("x:latest"));
    assert_eq!(reply(&removed)["removed"], true);
    assert_eq!(gone(&removed), ["sha256:1"]);
}

#[test]
fn an_image_removed_by_its_digest_loses_all_of_its_names() {
    let mut world = World::new();
    world.build("sha256:1", &["x:latest", "y:latest"]);
    world.build("sha256:2", &["z:latest"]);
    let removed = world.remove_image(ImageGiven::Digest("sha256:1".into()));
    assert_eq!(reply(&removed)["untagged"], json!(["x:latest", "y:latest"]));
    assert_eq!(gone(&removed), ["sha256:1"]);
    assert_eq!(code(&world.remove_image(named("y:latest"))), "image.not_found");
    assert_eq!(reply(&world.remove_image(named("z:latest")))["removed"], true);
}

#[test]
fn an_agent_names_its_image_and_the_name_outlives_it() {
    let mut world = World::new();
    let agent = world.agent_of("sha256:1", &["a:latest"]);
    assert!(gone(&world.remove_agent(&agent)).is_empty());
    assert_eq!(reply(&world.remove_image(named("a:latest")))["removed"], true);
}

#[test]
fn an_image_that_a_waiting_update_had_goes_once_and_after_its_agent_has_another() {
    let mut world = World::new();
    let agent = world.agent();
    world.send(&agent, "s", "1");
    let update = |world: &mut World, digest: &str| {
        let (old, new) = (Box::default(), Box::default());
        let image = ImageChange { name: digest.into(), digest: digest.into(), old, new };
        let change = Change { image: Some(image), ..Change::default() };
        let (digest, tags) = (digest.to_owned(), vec!["x:latest".to_owned()]);
        let image = Some(NewImage { digest, record: ImageRecord::default(), bytes: 7, tags });
        world.ask(None, Command::UpdateAgent(Box::new(Update { agent: agent.clone(), change, image })))
    };
    assert_eq!(reply(&update(&mut world, "sha256:1"))["in_force"], "after_turns");
    let batch = update(&mut world, "sha256:2");
    let named = batch.writes.iter().position(|write| matches!(write, Write::AgentSpec { .. }));
    let left = batch.writes.iter().position(|write| matches!(write, Write::ImageGone { .. }));
    assert!(named.is_some() && named < left, "{:?}", batch.writes);
    assert_eq!(gone(&batch), ["sha256:1"]);
}

#[test]
fn an_image_that_went_while_somebody_named_it_by_its_digest_is_not_there() {
    let mut world = World::new();
    let digest = || ImageGiven::Digest("sha256:1".into());
    world.build("sha256:1", &["x:latest"]);
    assert_eq!(reply(&world.remove_image(digest()))["removed"], true);
    let again = world.remove_image(digest());
    assert_eq!((code(&again), again.writes.len()), ("image.not_found".into(), 0));
}
