//! Images and their names, as they are found again.

use lodge_core::agent::AgentState;
use lodge_core::record::{
    AgentRow, AgentSpec, AgentWrite, BinImageRecord, BinPlatformRecord, BinRecord, FileRecord, ImageContents,
    ImageFact, ImageKind, ImageRecord, ImageRefRow, ImageRow, ImageState, ImageWrite, NextSpec,
    RuntimeRecord, StartRetry, ToolRecord, Write,
};
use lodge_core::{AgentId, IdSource, LineageId, SandboxId, Timestamp};
use lodge_store::{OpenedDatabase, open};

const NOW: Timestamp = Timestamp::from_ms(1_700_000_000_000);

fn image(digest: &str, text: &str) -> Write {
    let file = FileRecord { name: "f".into(), bytes: text.into(), ..FileRecord::default() };
    let record = ImageRecord { files: vec![file], ..ImageRecord::default() };
    Write::Image(ImageWrite::Here(Box::new(ImageRow::agent(
        digest.into(),
        "a:latest".into(),
        text.len() as u64,
        record,
    ))))
}

fn named(reference: &str, digest: &str) -> Write {
    Write::Image(ImageWrite::Named(ImageRefRow {
        reference: reference.into(),
        digest: digest.into(),
        at: NOW,
    }))
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
        retry: StartRetry::default(),
        next: None,
    }
}

struct ImageStoreWorld {
    dir: tempfile::TempDir,
    store: OpenedDatabase,
}

impl ImageStoreWorld {
    fn new() -> ImageStoreWorld {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
        ImageStoreWorld { dir, store }
    }

    fn write(&mut self, writes: &[Write]) {
        drop(self.store.writer.commit(writes, ()).expect("a commit"));
    }

    fn again(self) -> ImageStoreWorld {
        let ImageStoreWorld { dir, store } = self;
        drop(store);
        let store = open(&dir.path().join("daemon.db"), &[7; 64]).unwrap();
        ImageStoreWorld { dir, store }
    }
}

#[test]
fn names_and_images_are_there_after_opening_again() {
    let mut world = ImageStoreWorld::new();
    world.write(&[image("sha256:1", "one"), named("x:latest", "sha256:1"), named("x:v1", "sha256:1")]);
    world.write(&[
        image("sha256:2", "two"),
        named("x:latest", "sha256:2"),
        Write::Agent(AgentWrite::New(Box::new(agent(AgentState::Ready, "sha256:2")))),
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
    assert_eq!(reader.here(|snapshot| snapshot.image_ref("x:v1")).unwrap().unwrap().digest, "sha256:1");
    assert!(reader.here(|snapshot| snapshot.image_ref("x")).unwrap().is_none());
    let found = reader.here(|snapshot| snapshot.images(ImageKind::Agent, None, 10)).unwrap();
    let facts: Vec<_> = found.iter().map(|one| (one.digest.as_str(), one.refs.len(), one.agents)).collect();
    assert_eq!(facts, [("sha256:1", 1, 0), ("sha256:2", 1, 1)]);
    assert_eq!(
        reader.here(|snapshot| snapshot.images(ImageKind::Agent, Some("sha256:1"), 1)).unwrap()[0].digest,
        "sha256:2"
    );
    assert_eq!(reader.here(|snapshot| snapshot.image("sha256:2")).unwrap().unwrap().files[0].bytes, b"two");
    assert_eq!(reader.here(|snapshot| snapshot.agents_of_image("sha256:2")).unwrap(), ["a"]);
    assert_eq!(reader.here(|snapshot| snapshot.find_digests("sha256:")).unwrap().len(), 2);
    assert_eq!(reader.here(|snapshot| snapshot.find_digests("sha256:2")).unwrap(), ["sha256:2"]);
}

#[test]
fn an_image_that_a_removed_agent_had_goes_and_can_come_again() {
    let mut world = ImageStoreWorld::new();
    world.write(&[
        image("sha256:1", "one"),
        Write::Agent(AgentWrite::New(Box::new(agent(AgentState::Removed, "sha256:1")))),
    ]);
    world.write(&[
        named("x:latest", "sha256:1"),
        Write::Image(ImageWrite::Unnamed { reference: "x:latest".into() }),
    ]);
    world.write(&[Write::Image(ImageWrite::Gone { digest: "sha256:1".into() })]);
    assert!(world.store.reader.here(|snapshot| snapshot.image("sha256:1")).unwrap().is_none());
    assert!(
        world.store.reader.here(|snapshot| snapshot.images(ImageKind::Agent, None, 10)).unwrap().is_empty()
    );
    assert!(world.store.reader.here(|snapshot| snapshot.find_digests("sha256:1")).unwrap().is_empty());
    world.write(&[image("sha256:1", "one"), named("x:latest", "sha256:1")]);
    assert_eq!(
        world.store.reader.here(|snapshot| snapshot.image("sha256:1")).unwrap().unwrap().files[0].bytes,
        b"one"
    );
    world.write(&[
        Write::Image(ImageWrite::Unnamed { reference: "x:latest".into() }),
        Write::Image(ImageWrite::Gone { digest: "sha256:1".into() }),
    ]);
    // Without a name, nothing of it is left.
    world.write(&[image("sha256:2", "two")]);
    world.write(&[Write::Image(ImageWrite::Gone { digest: "sha256:2".into() })]);
    assert!(world.store.reader.here(|snapshot| snapshot.image_summary("sha256:2")).unwrap().is_none());
}

const RG: &str = "sha256:rg";

/// A tool.
fn bin() -> ImageRow {
    let linux = BinPlatformRecord { platform: "linux/amd64".into(), ..BinPlatformRecord::default() };
    let record = BinImageRecord { name: "rg".into(), platforms: vec![linux], ..BinImageRecord::default() };
    let (digest, name) = (RG.to_owned(), "rg:latest".to_owned());
    ImageRow { digest, name, bytes: 9, state: ImageState::Complete, contents: ImageContents::Bin(record) }
}

/// An agent's image that needs the tool.
fn needing(digest: &str, state: ImageState) -> ImageRow {
    let rg = BinRecord { name: "rg".into(), image: Some(format!("rg:latest@{RG}")), ..BinRecord::default() };
    let record = ImageRecord { bins: vec![rg], ..ImageRecord::default() };
    ImageRow { state, ..ImageRow::agent(digest.into(), "a:latest".into(), 5, record) }
}

/// What an agent of such an image is.
fn with_rg() -> AgentSpec {
    let rg = ToolRecord { image: Some(format!("rg:latest@{RG}")), ..ToolRecord::default() };
    AgentSpec { tools: vec![rg], ..AgentSpec::default() }
}

fn put(row: ImageRow) -> Write {
    Write::Image(ImageWrite::Here(Box::new(row)))
}

#[test]
fn what_an_engine_knows_of_images_is_found_again() {
    let mut world = ImageStoreWorld::new();
    world.write(&[put(needing("sha256:1", ImageState::Announced)), put(bin()), image("sha256:2", "two")]);
    let mut world = world.again();
    let held = |digest: &str, kind, bytes, state, needs: &[&str]| ImageFact {
        digest: digest.into(),
        kind,
        bytes,
        state,
        needs: needs.iter().map(|need| (*need).to_owned()).collect(),
    };
    let plain = held("sha256:2", ImageKind::Agent, 3, ImageState::Complete, &[]);
    let tool = held(RG, ImageKind::Bin, 9, ImageState::Complete, &[]);
    let announced = held("sha256:1", ImageKind::Agent, 5, ImageState::Announced, &[RG]);
    assert_eq!(world.store.loaded.images, [announced.clone(), plain.clone(), tool.clone()]);
    world.write(&[put(needing("sha256:1", ImageState::Complete))]);
    // One that is whole is not announced again.
    world.write(&[put(needing("sha256:1", ImageState::Announced))]);
    let world = world.again();
    let whole = ImageFact { state: ImageState::Complete, ..announced };
    assert_eq!(world.store.loaded.images, [whole, plain, tool]);
}

#[test]
fn tools_are_listed_apart_from_agents_with_who_needs_them() {
    let mut world = ImageStoreWorld::new();
    world.write(&[put(bin()), put(needing("sha256:1", ImageState::Complete)), image("sha256:2", "two")]);
    world.write(&[put(needing("sha256:3", ImageState::Announced))]);
    world.write(&[Write::Agent(AgentWrite::New(Box::new(AgentRow {
        spec: with_rg(),
        ..agent(AgentState::Ready, "sha256:1")
    })))]);
    let reader = &world.store.reader;
    let digests = |kind| -> Vec<String> {
        reader
            .here(|snapshot| snapshot.images(kind, None, 10))
            .unwrap()
            .into_iter()
            .map(|one| one.digest)
            .collect()
    };
    assert_eq!(digests(ImageKind::Agent), ["sha256:1", "sha256:2", "sha256:3"]);
    assert_eq!(digests(ImageKind::Bin), [RG]);
    let found = reader.here(|snapshot| snapshot.image_summary(RG)).unwrap().unwrap();
    assert_eq!((found.kind, found.bytes, found.needed_by, found.agents), (ImageKind::Bin, 9, 2, 1));
    assert_eq!(found.at, NOW, "since its first agent");
    assert!(reader.here(|snapshot| snapshot.image(RG)).unwrap().is_none(), "no agent");
    assert_eq!(
        reader.here(|snapshot| snapshot.bin_image(RG)).unwrap().unwrap().platforms[0].platform,
        "linux/amd64"
    );
    assert!(reader.here(|snapshot| snapshot.bin_image("sha256:1")).unwrap().is_none(), "no tool");
    assert_eq!(
        reader.here(|snapshot| snapshot.image_digests()).unwrap(),
        ["sha256:1", "sha256:2", "sha256:3", RG]
    );
    assert_eq!(
        reader.here(|snapshot| snapshot.image_summary("sha256:3")).unwrap().unwrap().state,
        ImageState::Announced
    );
}

#[test]
fn tools_are_listed_with_what_they_are_and_with_the_agents_that_were_given_them_beside_their_images() {
    let mut world = ImageStoreWorld::new();
    let tool = |digest: &str| put(ImageRow { digest: digest.into(), ..bin() });
    world.write(&[tool("sha256:loop"), tool("sha256:new"), put(bin()), image("sha256:1", "one")]);
    let runtime = |digest: &str| {
        let image = Some(format!("loop:1@{digest}"));
        AgentSpec { runtime: Some(RuntimeRecord { image, ..RuntimeRecord::default() }), ..with_rg() }
    };
    let next =
        NextSpec { image_digest: "sha256:1".into(), spec: runtime("sha256:new"), ..NextSpec::default() };
    let mut ids = IdSource::new(8);
    let later = Timestamp::from_ms(NOW.ms() + 1);
    let both = AgentRow {
        id: AgentId::new(&mut ids, NOW),
        name: "b".into(),
        created_at: later,
        spec: runtime("sha256:loop"),
        ..agent(AgentState::Ready, "sha256:1")
    };
    let waits = Write::Agent(AgentWrite::Spec {
        id: both.id.clone(),
        image: both.image.clone(),
        image_digest: both.image_digest.clone(),
        spec: Box::new(both.spec.clone()),
        next: Some(Box::new(next)),
    });
    let gone = AgentRow {
        id: AgentId::new(&mut ids, NOW),
        spec: runtime("sha256:loop"),
        ..agent(AgentState::Removed, "sha256:1")
    };
    let plain = AgentRow { spec: with_rg(), ..agent(AgentState::Ready, "sha256:1") };
    world.write(&[
        Write::Agent(AgentWrite::New(Box::new(plain))),
        Write::Agent(AgentWrite::New(Box::new(both))),
        Write::Agent(AgentWrite::New(Box::new(gone))),
        waits,
    ]);
    let reader = &world.store.reader;
    let found = reader.here(|snapshot| snapshot.bins(None, 10)).unwrap();
    let facts: Vec<_> = found.iter().map(|(one, _)| (one.digest.as_str(), one.agents, one.at)).collect();
    assert_eq!(facts, [("sha256:loop", 1, later), ("sha256:new", 1, later), (RG, 2, NOW)]);
    assert!(found.iter().all(|(_, record)| record.platforms[0].platform == "linux/amd64"));
    let second = reader.here(|snapshot| snapshot.bins(Some("sha256:loop"), 1)).unwrap();
    assert_eq!(second[0].0, reader.here(|snapshot| snapshot.image_summary("sha256:new")).unwrap().unwrap());
    assert_eq!(second.len(), 1);
}

#[test]
fn what_a_recorded_image_needs_is_wanted_before_it_is_recorded_itself_and_no_longer_than_that_image() {
    let mut world = ImageStoreWorld::new();
    world.write(&[put(needing("sha256:1", ImageState::Announced))]);
    assert_eq!(world.store.reader.here(|snapshot| snapshot.image_digests()).unwrap(), ["sha256:1", RG]);
    world.write(&[Write::Image(ImageWrite::Gone { digest: "sha256:1".into() })]);
    assert!(world.store.reader.here(|snapshot| snapshot.image_digests()).unwrap().is_empty());
}

#[test]
fn an_image_that_goes_needs_nothing_and_one_that_comes_again_needs_what_it_did() {
    let mut world = ImageStoreWorld::new();
    let row = || put(needing("sha256:1", ImageState::Complete));
    world.write(&[
        put(bin()),
        row(),
        Write::Agent(AgentWrite::New(Box::new(agent(AgentState::Removed, "sha256:1")))),
    ]);
    world.write(&[Write::Image(ImageWrite::Gone { digest: "sha256:1".into() })]);
    assert_eq!(world.store.reader.here(|snapshot| snapshot.image_summary(RG)).unwrap().unwrap().needed_by, 0);
    let mut world = world.again();
    assert_eq!(world.store.loaded.images.len(), 1);
    world.write(&[row()]);
    assert_eq!(world.store.reader.here(|snapshot| snapshot.image_summary(RG)).unwrap().unwrap().needed_by, 1);
    assert_eq!(world.again().store.loaded.images[0].needs, [RG]);
}
