//! Registries that send something else than the client requested.

use lodge_image::oci::MANIFEST_MAX;
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryFault};
use serde_json::json;

use crate::common::*;

/// What is on its way in the buffers of both ends.
const BUFFERED: u64 = 16 << 20;

#[tokio::test]
async fn a_manifest_without_end_is_not_read_to_its_end() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[]);
    let here = LocalStore::new(quick());
    mock.fault("GET", "/manifests/", FaultCount::Always, RegistryFault::Endless);
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "image.invalid", "{}", told(&error));
    assert!(mock.served("/manifests/") < MANIFEST_MAX + BUFFERED);
    assert_eq!((mock.count("GET", "/manifests/"), here.stored().len()), (1, 0));
}

#[tokio::test]
async fn a_manifest_that_says_it_has_a_gigabyte_is_not_read_at_all() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[]);
    let here = LocalStore::new(quick());
    mock.fault("GET", "/manifests/", FaultCount::Always, RegistryFault::Length(1 << 30));
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), mock.count("GET", "")), ("image.invalid", 1), "{}", told(&error));
}

#[tokio::test]
async fn a_manifest_of_another_digest_than_was_asked_for_is_a_lie() {
    let mock = MockRegistry::start().unwrap();
    let (digest, _) = image(&mock, &[bytes(1, 10)]);
    let here = LocalStore::new(quick());
    mock.fault(
        "GET",
        "/manifests/",
        FaultCount::Always,
        RegistryFault::Body(written(&manifest_of(CONFIG, &[]))),
    );
    let error = here.pull(&remote(&mock.host(), &format!("thing@{digest}"))).await.unwrap_err();
    assert_eq!((error.code(), here.stored().len()), ("registry.lies", 0), "{}", told(&error));
    // By its tag, the registry itself says what digest it has.
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), here.stored().len()), ("registry.lies", 0), "{}", told(&error));
}

#[tokio::test]
async fn only_a_claim_about_the_digest_that_can_be_checked_is_held_against_it() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[]);
    let here = LocalStore::new(quick());
    let of_nothing = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    for (claim, code) in
        [("sha512:00", None), (of_nothing, Some("registry.lies")), ("?", Some("registry.lies"))]
    {
        mock.forget_faults();
        let claimed = RegistryFault::Header("Docker-Content-Digest".to_owned(), claim.to_owned());
        mock.fault("GET", "/manifests/", FaultCount::Always, claimed);
        let pulled = here.pull(&remote(&mock.host(), "thing:v1")).await;
        assert_eq!(pulled.err().map(|error| error.code()), code, "{claim}");
    }
}

#[tokio::test]
async fn a_blob_with_other_contents_is_a_lie_the_second_time_and_never_in_the_store() {
    let mock = MockRegistry::start().unwrap();
    let (manifest, layers) = image(&mock, &[bytes(1, 100_000)]);
    let here = LocalStore::new(quick());
    mock.fault("GET", &layers[0], FaultCount::Always, RegistryFault::Body(bytes(2, 100_000)));
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), mock.count("GET", &layers[0])), ("registry.lies", 2), "{}", told(&error));
    assert!(!here.stored().contains(&layers[0]) && here.stored().contains(&manifest));
    mock.forget_faults();
    mock.fault("GET", &layers[0], FaultCount::Next(1), RegistryFault::Body(bytes(2, 100_000)));
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(here.read(&layers[0]), bytes(1, 100_000));
}

#[tokio::test]
async fn a_blob_of_another_size_is_a_lie_however_its_length_is_reported() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, 50_000)]);
    for (fault, requests) in [
        (RegistryFault::Body(bytes(1, 49_999)), 1),
        (RegistryFault::Body(bytes(1, 50_001)), 1),
        (RegistryFault::Length(u64::MAX / 2), 1),
        (RegistryFault::Length(10), 1),
        (RegistryFault::Endless, 1),
    ] {
        let here = LocalStore::new(quick());
        let before = mock.count("GET", &layers[0]);
        let served = mock.served(&layers[0]);
        mock.forget_faults();
        mock.fault("GET", &layers[0], FaultCount::Always, fault.clone());
        let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!(error.code(), "registry.lies", "{fault:?}: {}", told(&error));
        assert_eq!(mock.count("GET", &layers[0]) - before, requests, "{fault:?}");
        assert!(mock.served(&layers[0]) - served < BUFFERED, "{fault:?}");
        assert!(!here.stored().contains(&layers[0]), "{fault:?}");
    }
}

#[tokio::test]
async fn a_manifest_below_an_index_has_the_size_that_the_index_says() {
    let mock = MockRegistry::start().unwrap();
    let manifest = written(&manifest_of(CONFIG, &[]));
    mock.put_blob(CONFIG);
    mock.put_manifest("thing", "below", MANIFEST, &manifest);
    let mut index = index_of(&[("amd64", &manifest)]);
    index["manifests"][0]["size"] = json!(manifest.len() + 1);
    mock.put_manifest("thing", "v1", INDEX, &written(&index));
    let here = LocalStore::new(quick());
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "image.invalid", "{}", told(&error));
}

#[tokio::test]
async fn an_index_brings_every_platform_and_nests_only_so_deep() {
    let mock = MockRegistry::start().unwrap();
    mock.put_blob(CONFIG);
    let layers = [bytes(1, 3_000), bytes(2, 4_000)];
    let manifests = layers.clone().map(|layer| {
        mock.put_blob(&layer);
        written(&manifest_of(CONFIG, &[layer]))
    });
    for manifest in &manifests {
        mock.put_manifest("thing", "below", MANIFEST, manifest);
    }
    let mut top = written(&index_of(&[("amd64", &manifests[0]), ("arm64", &manifests[1])]));
    mock.put_manifest("thing", "v1", INDEX, &top);
    let here = LocalStore::new(quick());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(here.stored().len(), 1 + 2 + 1 + 2);
    assert!(here.watched.planned.lock().unwrap().values().all(|there| !there));
    assert_eq!(here.watched.moved.lock().unwrap().len(), 2 + 1 + 2);
    for _ in 0..5 {
        let mut index = index_of(&[("amd64", &top)]);
        index["manifests"][0]["mediaType"] = json!(INDEX);
        top = written(&index);
        mock.put_manifest("thing", "deep", INDEX, &top);
    }
    let error = here.pull(&remote(&mock.host(), "thing:deep")).await.unwrap_err();
    assert_eq!(error.code(), "image.invalid", "{}", told(&error));
}

#[tokio::test]
async fn what_is_compressed_on_the_way_is_taken_as_it_came_and_never_unpacked() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, 1_000)]);
    let here = LocalStore::new(quick());
    let packed = || RegistryFault::Header("Content-Encoding".to_owned(), "gzip".to_owned());
    mock.fault("GET", "/v2/", FaultCount::Always, packed());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(here.read(&layers[0]), bytes(1, 1_000));
    assert!(mock.seen().iter().all(|seen| seen.header("accept-encoding") == Some("identity")));
    // Sixty bytes that would be a thousand zeros.
    let bomb =
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\x18\x05\xa3\x60\x14\x0c\x54\x00\x00".to_vec();
    let there = LocalStore::new(quick());
    mock.fault("GET", &layers[0], FaultCount::Always, RegistryFault::Body(bomb));
    let error = there.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.lies", "{}", told(&error));
}

#[tokio::test]
async fn what_is_no_manifest_is_none() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::new(quick());
    for text in ["", "{}", "[]", "null", "<html>", "{\"schemaVersion\":1,\"fsLayers\":[]}"] {
        mock.put_manifest("thing", "v1", MANIFEST, text.as_bytes());
        let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!((error.code(), here.stored().len()), ("image.invalid", 0), "{text}");
    }
}
