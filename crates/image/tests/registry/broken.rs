//! Registries that disconnect, stall, or are busy.

use std::sync::Arc;
use std::time::Duration;

use lodge_image::registry::RegistryTerms;
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryFault};

use crate::common::*;

const SIZE: usize = 300_000;
/// Until a condition holds that must come.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_blob_that_breaks_off_goes_on_where_it_was_at_whatever_byte() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let mut offsets = vec![0, 1, 2, SIZE as u64 - 1, SIZE as u64 / 2];
    offsets.extend(bytes(7, 40).chunks(2).map(|pair| u64::from(pair[0]) << 10 | u64::from(pair[1])));
    for offset in offsets {
        let here = LocalStore::new(quick());
        let before = (mock.served(&layers[0]), mock.seen().len());
        mock.fault("GET", &layers[0], FaultCount::Next(1), RegistryFault::CutAt(offset));
        here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
        assert_eq!(mock.served(&layers[0]) - before.0, SIZE as u64, "cut at {offset}");
        assert_eq!(here.read(&layers[0]), bytes(1, SIZE), "cut at {offset}");
        let asked: Vec<_> = mock.seen()[before.1..]
            .iter()
            .filter(|seen| seen.path.contains(&layers[0]))
            .map(|seen| seen.header("range").map(str::to_owned))
            .collect();
        let from = (offset > 0).then(|| format!("bytes={offset}-"));
        assert_eq!(asked, [None, from], "cut at {offset}");
    }
}

#[tokio::test]
async fn a_pull_that_failed_goes_on_where_it_was_the_next_time() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = LocalStore::new(RegistryTerms { tries: 1, ..quick() });
    mock.fault("GET", &layers[0], FaultCount::Next(1), RegistryFault::CutAt(200_000));
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.unreachable", "{}", told(&error));
    assert!(!here.stored().contains(&layers[0]));
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!((mock.served(&layers[0]), here.read(&layers[0])), (SIZE as u64, bytes(1, SIZE)));
}

#[tokio::test]
async fn a_pull_that_was_dropped_goes_on_where_it_was_the_next_time() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = Arc::new(LocalStore::new(quick()));
    mock.fault("GET", &layers[0], FaultCount::Next(1), RegistryFault::StallAt(200_000));
    let (pulling, at) = (Arc::clone(&here), remote(&mock.host(), "thing:v1"));
    let pull = tokio::spawn(async move { pulling.pull(&at).await });
    let digest = layers[0].parse().unwrap();
    let arrived = async {
        while here.watched.moved.lock().unwrap().get(&digest) != Some(&200_000) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, arrived).await.unwrap();
    pull.abort();
    assert!(pull.await.unwrap_err().is_cancelled());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!((mock.served(&layers[0]), here.read(&layers[0])), (SIZE as u64, bytes(1, SIZE)));
}

#[tokio::test]
async fn a_registry_without_ranges_sends_it_all_again() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = LocalStore::new(quick());
    mock.fault("GET", &layers[0], FaultCount::Always, RegistryFault::NoRanges);
    mock.fault("GET", &layers[0], FaultCount::Next(2), RegistryFault::CutAt(1_000));
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(mock.served(&layers[0]), SIZE as u64 + 2_000);
    assert_eq!(here.read(&layers[0]), bytes(1, SIZE));
}

#[tokio::test]
async fn a_registry_that_refuses_or_mixes_up_the_range_ends_in_the_blob_or_in_a_lie() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    mock.fault("GET", &layers[0], FaultCount::Next(1), RegistryFault::CutAt(1_000));
    let unsatisfied = RegistryFault::Answer { status: 416, headers: Vec::new(), body: Vec::new() };
    let start = LocalStore::new(RegistryTerms { tries: 1, ..quick() });
    start.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    mock.fault("GET", &layers[0], FaultCount::Next(1), unsatisfied);
    let again = mock.count("GET", &layers[0]);
    let error = start.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.refused", "its only try");
    start.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    let asked = mock.seen();
    let last = asked.iter().rfind(|seen| seen.path.contains(&layers[0])).unwrap();
    assert_eq!((mock.count("GET", &layers[0]) - again, last.header("range")), (2, None));
    for range in ["bytes 0-9/10", "bytes 999-299999/300000", "bytes 1000-299999/300001", "", "bytes x-y/z"] {
        let here = LocalStore::new(quick());
        mock.forget_faults();
        mock.fault("GET", &layers[0], FaultCount::Next(1), RegistryFault::CutAt(1_000));
        mock.fault(
            "GET",
            &layers[0],
            FaultCount::Always,
            RegistryFault::Header("Content-Range".to_owned(), range.to_owned()),
        );
        let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!(error.code(), "registry.lies", "{range}: {}", told(&error));
    }
}

#[tokio::test]
async fn a_registry_that_cuts_endlessly_is_given_up() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = LocalStore::new(quick());
    mock.fault("GET", &layers[0], FaultCount::Always, RegistryFault::CutAt(1));
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(
        (error.code(), mock.count("GET", &layers[0])),
        ("registry.unreachable", 5),
        "{}",
        told(&error)
    );
}

#[tokio::test]
async fn a_byte_now_and_then_is_a_stall() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = LocalStore::new(RegistryTerms { tries: 2, ..hasty() });
    mock.fault("GET", &layers[0], FaultCount::Always, RegistryFault::Trickle(Duration::from_millis(20)));
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.stalled", "{}", told(&error));
}

#[tokio::test]
async fn a_stall_is_reported_as_one_and_survived_when_it_passes() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = LocalStore::new(RegistryTerms { tries: 2, ..hasty() });
    mock.fault("GET", &layers[0], FaultCount::Always, RegistryFault::StallAt(1_000));
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.stalled", "{}", told(&error));
    mock.forget_faults();
    mock.fault("GET", "/manifests/", FaultCount::Always, RegistryFault::Silence);
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.stalled", "{}", told(&error));
    mock.forget_faults();
    let patient = LocalStore::new(hasty());
    mock.fault("GET", "/manifests/", FaultCount::Next(1), RegistryFault::Silence);
    mock.fault("GET", &layers[0], FaultCount::Next(1), RegistryFault::StallAt(1_000));
    patient.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(patient.read(&layers[0]), bytes(1, SIZE));
}

#[tokio::test]
async fn a_busy_registry_is_asked_again_and_not_endlessly() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, 100)]);
    let at = remote(&mock.host(), "thing:v1");
    let answer = |status, after: &str| RegistryFault::Answer {
        status,
        headers: vec![("Retry-After".to_owned(), after.to_owned())],
        body: Vec::new(),
    };
    for status in [429, 500, 502, 503, 504] {
        for after in ["0", "100000000", "Fri, 31 Dec 1999 23:59:59 GMT", "-1"] {
            let here = LocalStore::new(quick());
            mock.forget_faults();
            mock.fault("GET", "/manifests/", FaultCount::Next(4), answer(status, after));
            mock.fault("GET", &layers[0], FaultCount::Next(4), answer(status, after));
            here.pull(&at).await.unwrap();
        }
    }
    let here = LocalStore::new(quick());
    mock.forget_faults();
    mock.fault("GET", "/manifests/", FaultCount::Next(5), answer(503, "0"));
    let before = mock.count("GET", "/manifests/");
    let error = here.pull(&at).await.unwrap_err();
    assert_eq!((error.code(), mock.count("GET", "/manifests/") - before), ("registry.refused", 5));
    mock.forget_faults();
    mock.fault("GET", "/manifests/", FaultCount::Next(1), answer(400, "0"));
    let before = mock.count("GET", "/manifests/");
    let error = here.pull(&at).await.unwrap_err();
    assert_eq!((error.code(), mock.count("GET", "/manifests/") - before), ("registry.refused", 1));
}

#[tokio::test]
async fn what_is_not_there_is_not_found_and_who_is_not_there_is_unreachable() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(quick());
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.to_string(), format!("`{}/thing:v1` is not in its registry", mock.host()));
    assert_eq!(error.code(), "registry.not_found");
    let gone = mock.host();
    drop(mock);
    // The thread that waits for connections sees the end with the next one.
    let refused = async {
        while tokio::net::TcpStream::connect(&gone).await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SOON, refused).await.unwrap();
    let error = here.pull(&remote(&gone, "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.unreachable", "{}", told(&error));
}

#[tokio::test]
async fn a_reason_is_shown_without_what_it_would_do_to_a_terminal() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(quick());
    let long = "x".repeat(10_000);
    let body = format!(r#"{{"errors":[{{"code":"X","message":"no \u001b[31mred\u202e {long}"}}]}}"#);
    let answer = RegistryFault::Answer { status: 400, headers: Vec::new(), body: body.into_bytes() };
    mock.fault("GET", "/manifests/", FaultCount::Always, answer);
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("answered 400: no \\u{1b}[31mred\\u{202e} xxx") && text.len() < 400, "{text}");
}

#[tokio::test]
async fn two_pulls_of_one_layer_at_the_same_time_move_it_once() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    mock.put_manifest(
        "other",
        "v1",
        MANIFEST,
        &written(&manifest_of(CONFIG, &[bytes(1, SIZE), bytes(2, 10)])),
    );
    mock.put_blob(&bytes(2, 10));
    let here = LocalStore::new(quick());
    let (one, other) = (remote(&mock.host(), "thing:v1"), remote(&mock.host(), "other:v1"));
    let (one, other) = tokio::join!(here.pull(&one), here.pull(&other));
    one.unwrap();
    other.unwrap();
    assert_eq!((mock.served(&layers[0]), here.read(&layers[0])), (SIZE as u64, bytes(1, SIZE)));
}

#[tokio::test]
async fn what_is_there_is_not_moved_again_but_what_is_damaged_is() {
    let mock = MockRegistry::start().unwrap();
    let (manifest, layers) = image(&mock, &[bytes(1, SIZE), bytes(2, 10)]);
    let here = LocalStore::new(quick());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(mock.count("GET", "/blobs/"), 3);
    assert!(here.watched.planned.lock().unwrap().values().all(|there| *there));
    let file = here.blob_file(&layers[0]);
    std::fs::remove_file(&file).unwrap();
    std::fs::write(&file, bytes(3, SIZE)).unwrap();
    assert!(here.blobs.verify(&layers[0].parse().unwrap()).is_err());
    here.pull(&remote(&mock.host(), &format!("thing@{manifest}"))).await.unwrap();
    assert_eq!((mock.count("GET", "/blobs/"), here.read(&layers[0])), (4, bytes(1, SIZE)));
}

#[test]
fn a_registry_that_stalls_holds_no_thread_that_others_need() {
    // Fewer threads for the disk than blobs that wait for more to come.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(2)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (slow, quick_one) = (MockRegistry::start().unwrap(), MockRegistry::start().unwrap());
        image(&slow, &[bytes(1, SIZE), bytes(2, SIZE), bytes(3, SIZE), bytes(4, SIZE)]);
        let (_, layers) = image(&quick_one, &[bytes(5, SIZE)]);
        let here = LocalStore::new(quick());
        here.put(CONFIG);
        slow.fault("GET", "/blobs/", FaultCount::Always, RegistryFault::StallAt(500));
        let (stuck, other) = (remote(&slow.host(), "thing:v1"), remote(&quick_one.host(), "thing:v1"));
        let meanwhile = async {
            while slow.count("GET", "/blobs/") < 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            here.pull(&other).await
        };
        tokio::select! {
            ended = here.pull(&stuck) => panic!("it was to stall: {ended:?}"),
            pulled = tokio::time::timeout(SOON, meanwhile) => pulled.unwrap().unwrap(),
        };
        assert_eq!(here.read(&layers[0]), bytes(5, SIZE));
    });
}

#[tokio::test]
async fn four_blobs_are_moved_at_once_and_no_more() {
    let mock = MockRegistry::start().unwrap();
    let layers: Vec<_> = (1..20).map(|seed| bytes(seed, 1_000)).collect();
    image(&mock, &layers);
    let here = Arc::new(LocalStore::new(quick()));
    // It is shorter than the part that comes.
    here.put(CONFIG);
    mock.fault("GET", "/blobs/", FaultCount::Always, RegistryFault::StallAt(500));
    let (pulling, at) = (Arc::clone(&here), remote(&mock.host(), "thing:v1"));
    let pull = tokio::spawn(async move { pulling.pull(&at).await });
    let halfway = |bytes: &&u64| **bytes == 500;
    let arrived = async {
        while here.watched.moved.lock().unwrap().values().filter(halfway).count() < 4 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(SOON, arrived).await.unwrap();
    pull.abort();
    assert!(pull.await.unwrap_err().is_cancelled());
    assert_eq!(mock.count("GET", "/blobs/"), 4);
}
