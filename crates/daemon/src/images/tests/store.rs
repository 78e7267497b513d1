//! Tests of storing, pushing and collecting images.

use super::*;

#[tokio::test]
async fn recorded_and_pinned_images_stay_and_the_rest_is_collected() {
    let mut world = ImagesWorld::new();
    let (kept, pinned, loose) = (bin("kept"), bin("held"), bin("loose"));
    let pins = world.images.blobs().unwrap().pins();
    {
        let short = world.images.blobs().unwrap().pins();
        world.images.store_packed(&short, &kept).unwrap();
        world.images.store_packed(&short, &loose).unwrap();
    }
    world.images.store_packed(&pins, &pinned).unwrap();
    let row = world.images.load_row(&pins, &kept.digest.to_string(), "kept:latest".into()).unwrap();
    let bytes: u64 = kept.blobs.iter().map(|blob| blob.bytes.len() as u64).sum();
    assert_eq!(row.bytes, bytes);
    world.record([row]);
    world.images.clone().collect().await;
    let there = |packed: &PackedImage| {
        packed.blobs.iter().filter(|blob| world.blob_path(&blob.digest).exists()).count()
    };
    assert_eq!((there(&kept), there(&pinned)), (kept.blobs.len(), pinned.blobs.len()));
    // The images may share an empty config.
    assert!(there(&loose) < loose.blobs.len() && !world.blob_path(&loose.digest).exists());
    drop(pins);
    world.images.clone().collect().await;
    assert!(there(&kept) == kept.blobs.len() && !world.blob_path(&pinned.digest).exists());
}

#[tokio::test]
async fn nothing_of_an_image_that_was_announced_is_collected_before_it_is_complete() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("rg");
    let agent = agent(&pinned("rg:latest", &tool));
    registry.add_image("agents/otter", Some("v1"), &agent);
    let arrived = world.images.announce(&registry.remote("agents/otter:v1")).await.unwrap();
    world.record([arrived.row]);
    drop(arrived.pins);
    let layers = agent.blobs.len();
    world.images.fetch_image(&registry.remote("agents/otter:v1"), Arc::new(NoWatcher)).await.unwrap();
    world.images.clone().collect().await;
    assert_eq!(agent.blobs.iter().filter(|blob| world.blob_path(&blob.digest).exists()).count(), layers);
}

#[tokio::test]
async fn a_tool_that_a_dead_daemon_pulled_is_kept_for_an_agent_in_pulling() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("rg");
    registry.add_image("agents/otter", None, &tool);
    registry.add_image("agents/otter", Some("v1"), &agent(&pinned("rg:latest", &tool)));
    let arrived = world.images.announce(&registry.remote("agents/otter:v1")).await.unwrap();
    let row = row_of(&registry.remote("agents/otter:v1").to_string(), &arrived.row);
    world.record([arrived.row]);
    drop(arrived.pins);
    drop(world.images.obtain_needs(&row).await.unwrap());
    // The daemon died before the commit.
    let world = world.again();
    world.images.clone().collect().await;
    let asked = registry.all_asked();
    world.images.obtain_needs(&row).await.unwrap();
    assert_eq!(registry.all_asked(), asked);
}

#[tokio::test]
async fn the_registry_directory_is_created_on_first_use() {
    let world = ImagesWorld::new();
    world.images.clone().collect().await;
    assert!(!world.dir.path().join("registry").exists());
}

#[tokio::test]
async fn a_push_sends_the_tools_first_and_the_tag_of_the_agent_last() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("rg");
    let agent = agent(&pinned("rg:latest", &tool));
    let pins = world.images.blobs().unwrap().pins();
    for (packed, name) in [(&tool, "rg:latest"), (&agent, "otter:latest")] {
        world.images.store_packed(&pins, packed).unwrap();
        let row = world.images.load_row(&pins, &packed.digest.to_string(), name.into()).unwrap();
        world.record([row]);
    }
    let to = registry.remote("agents/otter:v1");
    let sent = world.images.push(&agent.digest.to_string(), &to, Arc::new(NoWatcher)).await.unwrap();
    assert!(sent > PROGRAM_BYTES as u64, "{sent}");
    let put = registry.manifests_put();
    assert!(put.contains(&format!("agents/otter {}", tool.digest)), "{put:?}");
    assert_eq!(put.last().map(String::as_str), Some("agents/otter v1"));
    // Another host can pull everything.
    let other = ImagesWorld::new();
    let pulled = other.images.pull(&to, Arc::new(NoWatcher)).await.unwrap();
    assert_eq!((pulled.row.digest, pulled.with.len()), (agent.digest.to_string(), 1));
}

#[tokio::test]
async fn an_image_of_an_earlier_release_cannot_be_pushed() {
    let (mut world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let digest = Digest::of(b"a record").to_string();
    world.record([ImageRow::agent(digest.clone(), "old:latest".into(), 0, ImageRecord::default())]);
    let error = world.images.push(&digest, &registry.remote("old"), Arc::new(NoWatcher)).await.unwrap_err();
    assert_eq!((error.code(), error.hint().as_deref()), ("image.not_packed", Some("build it again")));
    assert_eq!(registry.all_asked(), 0);
}

#[test]
fn a_pull_that_does_not_fit_on_the_disk_is_refused_before_it_starts() {
    let world = ImagesWorld::new();
    assert!(world.images.admit(1).is_ok());
    let error = world.images.admit(u64::MAX).unwrap_err();
    assert_eq!((error.code(), error.hint().is_some()), ("image.no_room", true));
}

#[test]
fn reserved_space_is_not_available_to_others_until_it_is_released() {
    let world = ImagesWorld::new();
    let stat = rustix::fs::statvfs(world.dir.path()).unwrap();
    // Other processes write to this disk, too, so the test uses two thirds of the free space.
    let most = stat.f_bavail * stat.f_frsize / 3 * 2;
    let room = world.images.admit(most).unwrap();
    assert_eq!(world.images.admit(most).unwrap_err().code(), "image.no_room");
    drop(world.images.admit(0).unwrap());
    assert!(world.images.spares(1) && !world.images.spares(most));
    drop(room);
    assert!(world.images.spares(most));
    drop(world.images.admit(most).unwrap());
}
