//! What is kept, given away and removed.

use super::*;

#[tokio::test]
async fn what_is_recorded_or_about_to_be_stays_and_the_rest_is_collected() {
    let mut world = ImagesWorld::new();
    let (kept, pinned, loose) = (bin("kept"), bin("held"), bin("loose"));
    let pins = world.images.blobs().unwrap().pins();
    {
        let short = world.images.blobs().unwrap().pins();
        world.images.keep(&short, &kept).unwrap();
        world.images.keep(&short, &loose).unwrap();
    }
    world.images.keep(&pins, &pinned).unwrap();
    let row = world.images.found(&pins, &kept.digest.to_string(), "kept:latest".into()).unwrap();
    let bytes: u64 = kept.blobs.iter().map(|blob| blob.bytes.len() as u64).sum();
    assert_eq!(row.bytes, bytes);
    world.record([row]);
    world.images.clone().collect().await;
    let there = |packed: &PackedImage| {
        packed.blobs.iter().filter(|blob| world.blob_path(&blob.digest).exists()).count()
    };
    assert_eq!((there(&kept), there(&pinned)), (kept.blobs.len(), pinned.blobs.len()));
    // An empty config may be the same in all of them.
    assert!(there(&loose) < loose.blobs.len() && !world.blob_path(&loose.digest).exists());
    drop(pins);
    world.images.clone().collect().await;
    assert!(there(&kept) == kept.blobs.len() && !world.blob_path(&pinned.digest).exists());
}

#[tokio::test]
async fn nothing_of_an_image_that_was_announced_is_collected_before_it_is_complete() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let tool = bin("rg");
    let agent = agent(&pinned("rg:latest", &tool));
    registry.hold("agents/otter", Some("v1"), &agent);
    let arrived = world.images.announce(&registry.remote("agents/otter:v1")).await.unwrap();
    world.record([arrived.row]);
    drop(arrived.pins);
    let layers = agent.blobs.len();
    world.images.bring(&registry.remote("agents/otter:v1"), Arc::new(Unwatched)).await.unwrap();
    world.images.clone().collect().await;
    assert_eq!(agent.blobs.iter().filter(|blob| world.blob_path(&blob.digest).exists()).count(), layers);
}

#[tokio::test]
async fn a_tool_that_came_before_its_daemon_died_is_there_for_the_agent_that_is_pulling() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let tool = bin("rg");
    registry.hold("agents/otter", None, &tool);
    registry.hold("agents/otter", Some("v1"), &agent(&pinned("rg:latest", &tool)));
    let arrived = world.images.announce(&registry.remote("agents/otter:v1")).await.unwrap();
    let row = row_of(&registry.remote("agents/otter:v1").to_string(), &arrived.row);
    world.record([arrived.row]);
    drop(arrived.pins);
    drop(world.images.ready(&row).await.unwrap());
    // Nothing of that was recorded.
    let world = world.again();
    world.images.clone().collect().await;
    let asked = registry.all_asked();
    world.images.ready(&row).await.unwrap();
    assert_eq!(registry.all_asked(), asked);
}

#[tokio::test]
async fn a_directory_that_was_never_needed_is_not_made() {
    let world = ImagesWorld::new();
    world.images.clone().collect().await;
    assert!(!world.dir.path().join("registry").exists());
}

#[tokio::test]
async fn an_agent_travels_with_its_tools_and_its_own_name_comes_last() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let tool = bin("rg");
    let agent = agent(&pinned("rg:latest", &tool));
    let pins = world.images.blobs().unwrap().pins();
    for (packed, name) in [(&tool, "rg:latest"), (&agent, "otter:latest")] {
        world.images.keep(&pins, packed).unwrap();
        let row = world.images.found(&pins, &packed.digest.to_string(), name.into()).unwrap();
        world.record([row]);
    }
    let to = registry.remote("agents/otter:v1");
    let sent = world.images.push(&agent.digest.to_string(), &to, Arc::new(Unwatched)).await.unwrap();
    assert!(sent > PROGRAM_BYTES as u64, "{sent}");
    let put = registry.manifests_put();
    assert!(put.contains(&format!("agents/otter {}", tool.digest)), "{put:?}");
    assert_eq!(put.last().map(String::as_str), Some("agents/otter v1"));
    // Somebody who has nothing can have all of it.
    let other = ImagesWorld::new();
    let pulled = other.images.pull(&to, Arc::new(Unwatched)).await.unwrap();
    assert_eq!((pulled.row.digest, pulled.with.len()), (agent.digest.to_string(), 1));
}

#[tokio::test]
async fn an_image_of_an_earlier_release_cannot_be_given_away() {
    let (mut world, registry) = (ImagesWorld::new(), Registry::start().await);
    let digest = Digest::of(b"a record").to_string();
    world.record([ImageRow::agent(digest.clone(), "old:latest".into(), 0, ImageRecord::default())]);
    let error = world.images.push(&digest, &registry.remote("old"), Arc::new(Unwatched)).await.unwrap_err();
    assert_eq!((error.code(), error.hint().as_deref()), ("image.not_packed", Some("build it again")));
    assert_eq!(registry.all_asked(), 0);
}

#[test]
fn what_the_disk_has_no_room_for_is_refused_before_it_is_begun() {
    let world = ImagesWorld::new();
    assert!(world.images.admit(1).is_ok());
    let error = world.images.admit(u64::MAX).unwrap_err();
    assert_eq!((error.code(), error.hint().is_some()), ("image.no_room", true));
}

#[test]
fn room_that_somebody_was_promised_is_nobody_elses_until_he_is_done() {
    let world = ImagesWorld::new();
    let stat = rustix::fs::statvfs(world.dir.path()).unwrap();
    // Others write to this disk, too: most of it is not all of it.
    let most = stat.f_bavail * stat.f_frsize / 3 * 2;
    let room = world.images.admit(most).unwrap();
    assert_eq!(world.images.admit(most).unwrap_err().code(), "image.no_room");
    drop(world.images.admit(0).unwrap());
    assert!(world.images.spares(1) && !world.images.spares(most));
    drop(room);
    assert!(world.images.spares(most));
    drop(world.images.admit(most).unwrap());
}
