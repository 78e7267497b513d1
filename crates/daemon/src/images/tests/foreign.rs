//! Tests of agents of OpenOtters: their images name parents and tools and do not contain them.

use lodge_image::oci::{Blob, MediaDialect};

use super::*;

/// An image in the form of OpenOtters: an Agentfile and an empty config.
fn foreign(agentfile: &str) -> PackedImage {
    let config = Blob::new("application/vnd.openotters.agent.config.v1+json", b"{}".to_vec());
    let source = Blob::new("application/vnd.openotters.agentfile", agentfile.as_bytes().to_vec());
    let manifest = ManifestDocument::Manifest(Manifest {
        dialect: MediaDialect::Oci,
        artifact_type: Some("application/vnd.openotters.agent.v1".into()),
        config: config.descriptor(),
        layers: vec![source.descriptor()],
        annotations: BTreeMap::new(),
    });
    let manifest = Blob::new(manifest.media_type(), manifest.write().unwrap());
    PackedImage { digest: manifest.digest, blobs: vec![config, source, manifest] }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parents_and_tools_that_a_foreign_agent_names_are_pulled_with_it() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let (inherited, own) = (bin("rg"), bin("jq"));
    let host = &registry.host;
    let parent = agent(&pinned("rg:latest", &inherited));
    registry.add_image("agents/otter", Some("v1"), &parent);
    registry.add_image("tools/jq", Some("1"), &own);
    let child = foreign(&format!("FROM {host}/agents/otter:v1\nNAME child\nBIN jq {host}/tools/jq:1\n"));
    registry.add_image("theirs/child", Some("latest"), &child);
    // The parent's tool is not in the child's repository, so the pull fails.
    let remote = registry.remote("theirs/child");
    let error = world.images.pull(&remote, Arc::new(NoWatcher)).await.unwrap_err();
    assert_eq!(error.code(), "bin.not_found");
    registry.add_image("theirs/child", None, &inherited);
    let pulled = world.images.pull(&remote, Arc::new(NoWatcher)).await.unwrap();
    let ImageContents::Agent(record) = &pulled.row.contents else { panic!("{pulled:?}") };
    let bins: Vec<_> = record.bins.iter().map(|bin| bin.image.clone().unwrap()).collect();
    assert_eq!(bins, [pinned("rg:latest", &inherited), pinned(&format!("{host}/tools/jq:1"), &own)]);
    assert_eq!((record.name.as_deref(), record.parents, record.contexts.len()), (Some("child"), 1, 1));
    assert_eq!((pulled.row.digest, pulled.with.len()), (child.digest.to_string(), 2));
    // A foreign image is never only announced: it can be read only when it is complete.
    let announced = world.images.announce(&remote).await.unwrap();
    assert_eq!(announced.row.state, ImageState::Complete);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cycle_of_foreign_parents_is_refused() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    for (name, above) in [("a", "b"), ("b", "a")] {
        let image = foreign(&format!("FROM {}/theirs/{above}:latest\nMODEL p/m\n", registry.host));
        registry.add_image(&format!("theirs/{name}"), Some("latest"), &image);
    }
    let error = world.images.pull(&registry.remote("theirs/a"), Arc::new(NoWatcher)).await.unwrap_err();
    assert_eq!(error.code(), "image.invalid");
    assert!(error.to_string().contains("stand one above the other"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unsupported_instruction_of_a_foreign_agent_is_refused_with_its_line() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let image = foreign("FROM scratch\nMODEL p/m\nMCP notes https://notes.example/\n");
    registry.add_image("theirs/a", Some("latest"), &image);
    let error = world.images.pull(&registry.remote("theirs/a"), Arc::new(NoWatcher)).await.unwrap_err();
    assert_eq!(error.code(), "agentfile.unsupported");
    assert!(error.to_string().contains(":3:") && error.to_string().contains("MCP"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_agent_from_outside_cannot_name_a_parent_in_an_inside_registry() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    super::agents::with_an_inside(&world);
    for line in ["FROM 127.0.0.2:1/a/b:1", "FROM scratch\nBIN rg 127.0.0.2:1/a/b:1"] {
        let image = foreign(&format!("{line}\nMODEL p/m\n"));
        registry.add_image("theirs/a", Some("latest"), &image);
        let error = world.images.pull(&registry.remote("theirs/a"), Arc::new(NoWatcher)).await.unwrap_err();
        assert_eq!(error.code(), "image.invalid");
        assert!(error.to_string().contains("inside this network"), "{error:?}");
    }
}
