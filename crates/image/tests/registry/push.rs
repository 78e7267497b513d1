//! Pushing, to a registry that watches.

use std::time::Duration;

use lodge_image::oci::Descriptor;
use lodge_image::registry::RegistryTerms;
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryDoor, RegistryFault};

use crate::common::*;

const SIZE: usize = 200_000;

/// An index of two platforms that share a layer, in the store.
fn built(here: &LocalStore) -> (Descriptor, Vec<Vec<u8>>) {
    here.put(CONFIG);
    let layers = vec![bytes(1, SIZE), bytes(2, 1), bytes(3, 70_000)];
    for layer in &layers {
        here.put(layer);
    }
    let one = written(&manifest_of(CONFIG, &layers[..2]));
    let two = written(&manifest_of(CONFIG, &layers[1..]));
    let index = written(&index_of(&[("amd64", &one), ("arm64", &two)]));
    here.put(&one);
    here.put(&two);
    let digest = here.put(&index);
    (Descriptor::new(INDEX, digest, index.len() as u64), layers)
}

fn built_one(here: &LocalStore, layer: &[u8]) -> Descriptor {
    here.put(CONFIG);
    here.put(layer);
    let manifest = written(&manifest_of(CONFIG, &[layer.to_vec()]));
    Descriptor::new(MANIFEST, here.put(&manifest), manifest.len() as u64)
}

#[tokio::test]
async fn what_an_image_names_is_there_before_it_and_its_name_comes_last() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(quick());
    let (image, layers) = built(&here);
    let sent = here.push(&image, &remote(&mock.host(), "team/thing:v1")).await.unwrap();
    let seen = mock.seen();
    let last_blob = seen.iter().rposition(|seen| seen.path.contains("/blobs/")).unwrap();
    let puts: Vec<_> = seen
        .iter()
        .enumerate()
        .filter(|(_, seen)| seen.method == "PUT" && seen.path.contains("/manifests/"))
        .collect();
    assert!(puts.len() == 3 && puts[0].0 > last_blob, "{puts:?}");
    assert_eq!(seen.last().unwrap().path, "/v2/team/thing/manifests/v1");
    assert_eq!(puts[2].1.header("content-type"), Some(INDEX));
    for layer in &layers {
        assert_eq!(mock.blob(&lodge_testkit::registry::digest(layer)).as_ref(), Some(layer));
    }
    let blobs: usize = layers.iter().map(Vec::len).sum::<usize>() + CONFIG.len();
    let documents: usize = puts.iter().map(|(_, seen)| seen.body.len()).sum();
    assert_eq!(sent, (blobs + documents) as u64);
    assert_eq!(mock.count("PATCH", "/uploads/"), layers.len() + 1, "each blob with one request");
    let there = LocalStore::new(quick());
    assert_eq!(there.pull(&remote(&mock.host(), "team/thing:v1")).await.unwrap(), image);
    assert_eq!(there.stored(), here.stored());
}

#[tokio::test]
async fn what_is_there_is_not_sent_again() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(quick());
    let (image, _) = built(&here);
    here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap();
    let before = mock.seen().len();
    let sent = here.push(&image, &remote(&mock.host(), "thing:v2")).await.unwrap();
    assert_eq!(sent, image.size, "only its name");
    assert!(mock.seen()[before..].iter().all(|seen| seen.method == "HEAD" || seen.path.ends_with("/v2")));
    let by_digest = remote(&mock.host(), &format!("thing@{}", image.digest));
    assert_eq!(here.push(&image, &by_digest).await.unwrap(), 0);
}

#[tokio::test]
async fn an_upload_that_is_cut_goes_on_where_the_registry_is() {
    let mock = MockRegistry::start().unwrap();
    for cut in [0, 1, 2, 1_000, 65_535, 65_536] {
        let here = LocalStore::new(quick());
        let layer = bytes(cut + 10, SIZE);
        let image = built_one(&here, &layer);
        here.push(&built_one(&here, b"small"), &remote(&mock.host(), "thing:small")).await.unwrap();
        let before = mock.seen().len();
        mock.forget_faults();
        mock.fault("PATCH", "/uploads/", FaultCount::Next(1), RegistryFault::TakeOnly(cut));
        let sent = here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap();
        assert_eq!(mock.blob(&lodge_testkit::registry::digest(&layer)), Some(layer), "cut at {cut}");
        let taken: usize = mock.seen()[before..]
            .iter()
            .filter(|seen| seen.method == "PATCH")
            .map(|seen| seen.body.len())
            .sum();
        // A registry that has one byte says the same as one that has none, so it is sent a chunk that it refuses.
        let twice = if cut == 1 { 1 + quick().chunk as usize } else { 0 };
        assert_eq!(taken, SIZE + twice, "cut at {cut}");
        assert!(sent <= (SIZE as u64) + image.size, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_request_that_was_cut_or_too_large_is_followed_by_small_ones_only() {
    let too_large = RegistryFault::Answer { status: 413, headers: Vec::new(), body: Vec::new() };
    let chunk = quick().chunk as usize;
    let mock = MockRegistry::start().unwrap();
    for (seed, fault) in [(1, too_large.clone()), (2, RegistryFault::TakeOnly(10))] {
        let here = LocalStore::new(quick());
        let layer = bytes(seed, SIZE);
        here.push(&built_one(&here, b"small"), &remote(&mock.host(), "thing:small")).await.unwrap();
        let image = built_one(&here, &layer);
        let before = mock.seen().len();
        mock.fault("PATCH", "/uploads/", FaultCount::Next(1), fault);
        here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap();
        assert_eq!(mock.blob(&lodge_testkit::registry::digest(&layer)), Some(layer));
        let lengths: Vec<usize> = mock.seen()[before..]
            .iter()
            .filter(|seen| seen.method == "PATCH")
            .map(|seen| seen.header("content-length").unwrap().parse().unwrap())
            .collect();
        assert!(lengths[0] == SIZE && lengths.len() == 5, "{lengths:?}");
        assert!(lengths[1..].iter().all(|length| *length <= chunk), "{lengths:?}");
    }
    // Who takes no chunk, either, is not asked again.
    let here = LocalStore::new(quick());
    let image = built_one(&here, &bytes(3, chunk));
    mock.fault("PATCH", "/uploads/", FaultCount::Always, too_large);
    let before = mock.count("PATCH", "/uploads/");
    let error = here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.refused", "{}", told(&error));
    assert_eq!(mock.count("PATCH", "/uploads/") - before, 1);
}

#[tokio::test]
async fn an_upload_that_the_registry_lost_begins_again() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(quick());
    let layer = bytes(1, SIZE);
    let image = built_one(&here, &layer);
    let lost = |status| RegistryFault::Answer { status, headers: Vec::new(), body: Vec::new() };
    mock.fault("PATCH", "/uploads/", FaultCount::Next(1), lost(404));
    mock.fault("PATCH", "/uploads/", FaultCount::Next(2), lost(416));
    mock.fault("PUT", "/uploads/", FaultCount::Next(1), lost(404));
    here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(mock.blob(&lodge_testkit::registry::digest(&layer)), Some(layer));
}

#[tokio::test]
async fn an_upload_whose_last_answer_was_lost_is_not_sent_again() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(RegistryTerms { whole: Duration::from_secs(1), ..quick() });
    let layer = bytes(1, SIZE);
    let image = built_one(&here, &layer);
    let config = built_one(&here, b"small");
    here.push(&config, &remote(&mock.host(), "thing:small")).await.unwrap();
    let before = mock.count("POST", "/uploads/");
    mock.fault("PUT", "/uploads/", FaultCount::Next(1), RegistryFault::Silence);
    here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(mock.count("POST", "/uploads/") - before, 1);
    assert_eq!(mock.blob(&lodge_testkit::registry::digest(&layer)), Some(layer));
}

#[tokio::test]
async fn a_registry_that_takes_nothing_more_has_stalled() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(RegistryTerms { tries: 2, ..hasty() });
    let image = built_one(&here, &bytes(1, SIZE));
    mock.fault("PATCH", "/uploads/", FaultCount::Always, RegistryFault::Silence);
    // Nor does it say that it has taken all of it.
    mock.fault("GET", "/uploads/", FaultCount::Always, RegistryFault::Silence);
    let error = here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.stalled", "{}", told(&error));
    assert!(mock.manifest("thing", "v1").is_none());
}

#[tokio::test]
async fn an_upload_goes_on_with_the_registry_itself_and_nobody_else() {
    let (mock, other) = (MockRegistry::start().unwrap(), MockRegistry::start().unwrap());
    let here = LocalStore::with(user(&mock.host()), quick());
    mock.set_door(RegistryDoor::Basic { login: LOGIN.to_owned() });
    let image = built_one(&here, &bytes(1, SIZE));
    let location = |url: String| RegistryFault::Header("Location".to_owned(), url);
    for (method, url) in [
        ("POST", other.url("/v2/thing/blobs/uploads/1")),
        ("PATCH", other.url("/v2/thing/blobs/uploads/1")),
        ("POST", "https://127.0.0.1/x".to_owned()),
        ("POST", "//".to_owned()),
    ] {
        mock.forget_faults();
        mock.fault(method, "/uploads/", FaultCount::Always, location(url.clone()));
        let error = here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!((error.code(), other.seen().len()), ("registry.lies", 0), "{url}: {}", told(&error));
    }
    mock.forget_faults();
    let headers = vec![("Location".to_owned(), other.url("/"))];
    let moved = RegistryFault::Answer { status: 307, headers, body: Vec::new() };
    mock.fault("PUT", "/manifests/", FaultCount::Always, moved);
    let error = here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), other.seen().len()), ("registry.lies", 0), "{}", told(&error));
    assert!(mock.seen().iter().filter(|seen| seen.method == "PATCH").count() > 0);
}

#[tokio::test]
async fn a_registry_that_says_it_has_more_than_it_was_sent_lies() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(quick());
    let image = built_one(&here, &bytes(1, SIZE));
    mock.fault(
        "PATCH",
        "/uploads/",
        FaultCount::Always,
        RegistryFault::Header("Range".to_owned(), "0-200000".to_owned()),
    );
    let error = here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.lies", "{}", told(&error));
    mock.forget_faults();
    let claim =
        RegistryFault::Header("Docker-Content-Digest".to_owned(), format!("sha256:{}", "0".repeat(64)));
    mock.fault("PUT", "/manifests/", FaultCount::Always, claim);
    let error = here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.lies", "{}", told(&error));
}

#[tokio::test]
async fn what_is_damaged_or_missing_here_is_not_named_there() {
    let mock = MockRegistry::start().unwrap();
    for damage in ["other bytes", "fewer bytes", "none"] {
        let here = LocalStore::new(quick());
        let layer = bytes(1, SIZE);
        let image = built_one(&here, &layer);
        let file = here.blob_file(&lodge_testkit::registry::digest(&layer));
        std::fs::remove_file(&file).unwrap();
        match damage {
            "other bytes" => std::fs::write(&file, bytes(2, SIZE)).unwrap(),
            "fewer bytes" => std::fs::write(&file, bytes(1, SIZE - 1)).unwrap(),
            _none => {}
        }
        let error = here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!(error.code(), "image.damaged", "{damage}: {}", told(&error));
        assert!(mock.manifest("thing", "v1").is_none(), "{damage}");
    }
}

#[tokio::test]
async fn a_push_asks_for_the_right_to_push() {
    let mock = MockRegistry::start().unwrap();
    let realm = mock.url("/token");
    mock.set_door(RegistryDoor::Token { realm, login: Some(LOGIN.to_owned()), token: "letmein".to_owned() });
    let here = LocalStore::with(user(&mock.host()), quick());
    let image = built_one(&here, &bytes(1, SIZE));
    here.push(&image, &remote(&mock.host(), "thing:v1")).await.unwrap();
    assert!(mock.count("GET", "/token?service=mock&scope=repository%3Athing%3Apull%2Cpush") > 0);
    let stranger = LocalStore::new(quick());
    let image = built_one(&stranger, &bytes(1, 10));
    let error = stranger.push(&image, &remote(&mock.host(), "thing:v2")).await.unwrap_err();
    assert_eq!(error.code(), "registry.denied", "{}", told(&error));
}
