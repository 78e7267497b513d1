//! Images and their names, as they are found again.

use lodge_core::agent::AgentState;
use lodge_core::record::{AgentRow, AgentSpec, FileRecord, ImageRecord, ImageRefRow, Retry, Write};
use lodge_core::{AgentId, IdSource, LineageId, SandboxId, Timestamp};
use lodge_store::{Opened, open};

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

fn image(digest: &str, text: &str) -> Write {
    let file = FileRecord { name: "f".into(), bytes: text.into(), description: None };
    let record = ImageRecord { files: vec![file], ..ImageRecord::default() };
    Write::Image { digest: digest.into(), name: "a:latest".into(), record }
}

fn named(reference: &str, digest: &str) -> Write {
    Write::ImageRef(ImageRefRow { reference: reference.into(), digest: digest.into(), at: NOW })
}

fn agent(state: AgentState, digest: &str) -> AgentRow {
    let mut ids = IdSource::new(7);
    AgentRow {
        id: AgentId::new(&mut ids, NOW),
        name: "a".into(),
        image: "a:latest".into(),
        image_digest: digest.into(),
        lineage: LineageId::new(&mut ids, NOW),
        sandbox: SandboxId::new(&mut ids, NOW),
        state,
        failure_detail: None,
        incarnation: 1,
        runs: 1,
        uid: None,
        created_at: NOW,
        started_at: None,
        spec: AgentSpec::default(),
        retry: Retry::default(),
        next: None,
    }
}

struct World {
    dir: tempfile::TempDir,
    store: Opened,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
        World { dir, store }
    }

    fn write(&mut self, writes: &[Write]) {
        drop(self.store.writer.commit(writes, ()).expect("a commit"));
    }

    fn again(self) -> World {
        let World { dir, store } = self;
        drop(store);
        let store = open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
        World { dir, store }
    }
}

#[test]
fn names_and_images_are_there_after_opening_again() {
    let mut world = World::new();
    world.write(&[image("sha256:1", "one"), named("x:latest", "sha256:1"), named("x:v1", "sha256:1")]);
    world.write(&[
        image("sha256:2", "two"),
        named("x:latest", "sha256:2"),
        Write::Agent(agent(AgentState::Ready, "sha256:2")),
    ]);
    let world = world.again();
    let refs: Vec<_> = world
        .store
        .loaded
        .image_refs
        .iter()
        .map(|row| (row.reference.as_str(), row.digest.as_str()))
        .collect();
    assert_eq!(refs, [("x:latest", "sha256:2"), ("x:v1", "sha256:1")]);
    let reader = &world.store.reader;
    assert_eq!(reader.image_ref("x:v1").unwrap().unwrap().digest, "sha256:1");
    assert!(reader.image_ref("x").unwrap().is_none());
    let found = reader.images(None, 10).unwrap();
    let facts: Vec<_> = found.iter().map(|one| (one.digest.as_str(), one.refs.len(), one.agents)).collect();
    assert_eq!(facts, [("sha256:1", 1, 0), ("sha256:2", 1, 1)]);
    assert_eq!(reader.images(Some("sha256:1"), 1).unwrap()[0].digest, "sha256:2");
    assert_eq!(reader.image("sha256:2").unwrap().unwrap().files[0].bytes, b"two");
    assert_eq!(reader.agents_of_image("sha256:2").unwrap(), ["a"]);
    assert_eq!(reader.find_digests("sha256:").unwrap().len(), 2);
    assert_eq!(reader.find_digests("sha256:2").unwrap(), ["sha256:2"]);
}

#[test]
fn an_image_that_a_removed_agent_had_goes_and_can_come_again() {
    let mut world = World::new();
    world.write(&[image("sha256:1", "one"), Write::Agent(agent(AgentState::Removed, "sha256:1"))]);
    world.write(&[named("x:latest", "sha256:1"), Write::ImageRefGone { reference: "x:latest".into() }]);
    world.write(&[Write::ImageGone { digest: "sha256:1".into() }]);
    assert!(world.store.reader.image("sha256:1").unwrap().is_none());
    assert!(world.store.reader.images(None, 10).unwrap().is_empty());
    assert!(world.store.reader.find_digests("sha256:1").unwrap().is_empty());
    world.write(&[image("sha256:1", "one"), named("x:latest", "sha256:1")]);
    assert_eq!(world.store.reader.image("sha256:1").unwrap().unwrap().files[0].bytes, b"one");
    world.write(&[
        Write::ImageRefGone { reference: "x:latest".into() },
        Write::ImageGone { digest: "sha256:1".into() },
    ]);
    // Without anybody who names it, nothing of it is left.
    world.write(&[image("sha256:2", "two")]);
    world.write(&[Write::ImageGone { digest: "sha256:2".into() }]);
    assert!(world.store.reader.image_summary("sha256:2").unwrap().is_none());
}
