//! Tests of transfers that several callers wait for.

use futures_util::FutureExt;

use super::super::pulls::TRANSFERS_MAX;
use super::*;

#[tokio::test]
async fn a_pull_while_the_same_image_is_pulled_shares_one_download() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("rg");
    registry.add_image("tools/rg", Some("latest"), &tool);
    registry.send_up_to(10_000);
    let large = largest(&tool);
    let by_digest = registry.remote(&format!("tools/rg@{}", tool.digest));
    let pull = |remote: RemoteImage, seen: &Arc<RecordedProgress>| {
        let (images, seen) = (world.images.clone(), seen.clone());
        tokio::spawn(async move { images.pull(&remote, seen).await })
    };
    let seen: Vec<Arc<RecordedProgress>> = std::iter::repeat_with(Arc::default).take(3).collect();
    let first = pull(registry.remote("tools/rg"), &seen[0]);
    until("the first has begun", || seen[0].has_moved(&large)).await;
    // One by the same name, and one by its digest: both get the past progress.
    let (second, third) = (pull(registry.remote("tools/rg"), &seen[1]), pull(by_digest, &seen[2]));
    until("all are told", || seen.iter().all(|seen| seen.has_moved(&large))).await;
    registry.send_up_to(usize::MAX);
    for pulled in [first, second, third] {
        assert_eq!(pulled.await.unwrap().unwrap().row.digest, tool.digest.to_string());
    }
    assert!(seen.iter().all(|seen| seen.has_all(&large)));
    assert_eq!(registry.starts_of(&large), [0]);
    let others = tool.blobs.len() as u32;
    assert!(registry.blobs_asked() < others, "{} for {others} parts", registry.blobs_asked());
}

#[tokio::test]
async fn the_last_caller_to_give_up_cancels_the_download_and_the_next_one_resumes_it() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let tool = bin("rg");
    registry.add_image("tools/rg", Some("latest"), &tool);
    registry.send_up_to(10_000);
    let (large, remote) = (largest(&tool), registry.remote("tools/rg"));
    let seen: Arc<RecordedProgress> = Arc::default();
    let pull = |images: &Arc<Images>| {
        let (images, remote, seen) = (images.clone(), remote.clone(), seen.clone());
        tokio::spawn(async move { images.pull(&remote, seen).await })
    };
    let (first, second) = (pull(&world.images), pull(&world.images));
    let partial = world.dir.path().join("registry/partial").join(large.hex());
    let came = || std::fs::metadata(&partial).map_or(0, |meta| meta.len());
    until("some has come", || came() == 10_000).await;
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    registry.send_up_to(20_000);
    until("it goes on for the other", || came() == 20_000).await;
    second.abort();
    assert!(second.await.unwrap_err().is_cancelled());
    until("nobody waits", || format!("{:?}", world.images.transfers) == "{}").await;
    // The same after a restart.
    let world = world.again();
    registry.send_up_to(usize::MAX);
    pull(&world.images).await.unwrap().unwrap();
    assert_eq!(registry.starts_of(&large), [0, 20_000]);
}

#[tokio::test]
async fn every_waiting_caller_gets_the_failure_and_the_next_one_tries_again() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let remote = registry.remote("tools/none");
    let pull = || world.images.pull(&remote, Arc::new(NoWatcher));
    let (first, second) = tokio::join!(pull(), pull());
    for failed in [first, second] {
        let error = failed.unwrap_err();
        assert_eq!((error.code(), error.hint().is_some()), ("registry.not_found", true));
    }
    let tool = bin("none");
    registry.add_image("tools/none", Some("latest"), &tool);
    assert_eq!(pull().await.unwrap().row.digest, tool.digest.to_string());
}

#[tokio::test]
async fn transfers_over_the_limit_wait_for_a_slot() {
    let (world, registry) = (ImagesWorld::new(), FakeRegistry::start().await);
    let transfers = &world.images.transfers;
    let others: Vec<_> = (0..TRANSFERS_MAX).map(|_| transfers.slot().now_or_never()).collect();
    assert!(others.iter().all(Option::is_some) && transfers.slot().now_or_never().is_none());
    let tool = bin("rg");
    registry.add_image("tools/rg", Some("latest"), &tool);
    let (images, remote) = (world.images.clone(), registry.remote("tools/rg"));
    let pull = tokio::spawn(async move { images.pull(&remote, Arc::new(NoWatcher)).await });
    until("what it is, is known", || world.blob_path(&tool.digest).exists()).await;
    // Requests that transfer nothing need no slot.
    for _ in 0..50 {
        assert!(world.images.pull(&registry.remote("tools/none"), Arc::new(NoWatcher)).await.is_err());
    }
    assert_eq!(registry.blobs_asked(), 0, "it did not wait");
    drop(others);
    assert_eq!(pull.await.unwrap().unwrap().row.digest, tool.digest.to_string());
    assert!(world.images.transfers.slot().now_or_never().is_some(), "everybody gave his turn back");
}
