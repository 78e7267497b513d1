//! Registries that lead elsewhere.

use std::net::{IpAddr, Ipv4Addr};

use lodge_image::registry::RegistryTerms;
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryDoor, RegistryFault};

use crate::common::*;

const SIZE: usize = 100_000;
const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

fn to(url: String) -> RegistryFault {
    RegistryFault::Answer { status: 307, headers: vec![("Location".to_owned(), url)], body: Vec::new() }
}

#[tokio::test]
async fn a_blob_may_come_from_elsewhere_which_sees_no_credentials() {
    let (mock, other) = (MockRegistry::start().unwrap(), MockRegistry::start().unwrap());
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    other.put_blob(&bytes(1, SIZE));
    mock.set_door(RegistryDoor::Basic { login: LOGIN.to_owned() });
    let here = LocalStore::with(user(&mock.host()), quick());
    let elsewhere = other.url(&format!("/v2/any/blobs/{}?signature=hush", layers[0]));
    mock.fault("GET", &layers[0], FaultCount::Always, to(elsewhere));
    other.fault("GET", &layers[0], FaultCount::Next(1), RegistryFault::CutAt(1_000));
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(here.read(&layers[0]), bytes(1, SIZE));
    let seen = other.seen();
    assert_eq!((seen.len(), seen[1].header("range")), (2, Some("bytes=1000-")));
    assert!(
        seen.iter().all(|seen| seen.header("authorization").is_none() && seen.header("referer").is_none())
    );
    let asked = mock.seen();
    let last = asked.last().unwrap();
    assert_eq!(last.header("authorization"), Some(format!("Basic {LOGIN}").as_str()));
}

#[tokio::test]
async fn the_address_of_a_blob_elsewhere_is_never_told() {
    let (mock, other) = (MockRegistry::start().unwrap(), MockRegistry::start().unwrap());
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = LocalStore::new(quick());
    mock.fault("GET", &layers[0], FaultCount::Always, to(other.url("/blob?signature=hush")));
    for (fault, code, requests) in [
        (RegistryFault::CutAt(1), "registry.lies", 1),
        (RegistryFault::Answer { status: 403, headers: Vec::new(), body: Vec::new() }, "registry.refused", 5),
    ] {
        let before = other.seen().len();
        other.forget_faults();
        other.fault("GET", "/blob", FaultCount::Always, fault);
        other.fault("GET", "/blob", FaultCount::Always, RegistryFault::Length(SIZE as u64 + 1));
        let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
        let shown = format!("{} {error:?} {:?}", told(&error), error.hint());
        assert!(error.code() == code || error.code() == "registry.refused", "{shown}");
        assert!(!shown.contains("hush") && shown.contains(&other.host()), "{shown}");
        assert!(other.seen().len() - before >= requests, "an address may be good for a while only");
    }
}

#[tokio::test]
async fn manifests_come_from_the_registry_itself() {
    let (mock, other) = (MockRegistry::start().unwrap(), MockRegistry::start().unwrap());
    image(&mock, &[]);
    image(&other, &[]);
    let here = LocalStore::new(quick());
    mock.fault("GET", "/manifests/v1", FaultCount::Always, to(other.url("/v2/thing/manifests/v1")));
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), other.seen().len()), ("registry.lies", 0), "{}", told(&error));
    mock.forget_faults();
    let manifest = image(&mock, &[]).0;
    mock.fault("GET", "/manifests/v1", FaultCount::Always, to(format!("/v2/thing/manifests/{manifest}")));
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
}

#[tokio::test]
async fn redirects_without_end_are_followed_five_times() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = LocalStore::new(quick());
    mock.fault("GET", &layers[0], FaultCount::Always, to(format!("/v2/thing/blobs/{}", layers[0])));
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), mock.count("GET", &layers[0])), ("registry.lies", 6), "{}", told(&error));
    mock.forget_faults();
    mock.fault("GET", &layers[0], FaultCount::Next(5), to(format!("/v2/thing/blobs/{}", layers[0])));
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
}

#[tokio::test]
async fn nobody_is_led_to_where_nothing_is_encrypted_or_to_no_address() {
    let mock = MockRegistry::start().unwrap();
    let (_, layers) = image(&mock, &[bytes(1, SIZE)]);
    let here = LocalStore::new(quick());
    for location in [
        "http://10.0.0.1/x",
        "http://cdn.example/x",
        "http://169.254.169.254/latest/meta-data/",
        "file:///etc/passwd",
        "gopher://127.0.0.1/x",
        "http://user:word@127.0.0.1/x",
        "//",
        "",
        "http://[",
    ] {
        mock.forget_faults();
        mock.fault("GET", &layers[0], FaultCount::Always, to(location.to_owned()));
        let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!(error.code(), "registry.lies", "{location}: {}", told(&error));
    }
}

#[tokio::test]
async fn a_registry_outside_leads_nobody_inside_by_address_or_by_name() {
    // For this test the internet is 127.0.0.2, and 127.0.0.1 with its name is inside.
    let outside = MockRegistry::start_at(SECOND).unwrap();
    let inside = MockRegistry::start().unwrap();
    let (_, layers) = image(&outside, &[bytes(1, SIZE)]);
    inside.put_blob(&bytes(1, SIZE));
    let here = LocalStore::new(RegistryTerms { inward: |address| address != SECOND, ..quick() });
    let port = inside.host().split(':').next_back().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost", "2130706433", "0x7f.1"] {
        outside.forget_faults();
        let inward = format!("http://{host}:{port}/v2/any/blobs/{}", layers[0]);
        outside.fault("GET", &layers[0], FaultCount::Always, to(inward));
        let error = here.pull(&remote(&outside.host(), "thing:v1")).await.unwrap_err();
        assert_eq!((error.code(), inside.seen().len()), ("registry.lies", 0), "{host}: {}", told(&error));
        assert!(error.to_string().contains("inside this network"), "{error}");
    }
    let there = MockRegistry::start_at(SECOND).unwrap();
    there.put_blob(&bytes(1, SIZE));
    outside.forget_faults();
    outside.fault(
        "GET",
        &layers[0],
        FaultCount::Always,
        to(there.url(&format!("/v2/any/blobs/{}", layers[0]))),
    );
    here.pull(&remote(&outside.host(), "thing:v1")).await.unwrap();
}

#[tokio::test]
async fn a_second_redirect_leads_nobody_inside_either() {
    let outside = MockRegistry::start_at(SECOND).unwrap();
    let accomplice = MockRegistry::start_at(SECOND).unwrap();
    let inside = MockRegistry::start().unwrap();
    let (_, layers) = image(&outside, &[bytes(1, SIZE)]);
    let here = LocalStore::new(RegistryTerms { inward: |address| address != SECOND, ..quick() });
    outside.fault("GET", &layers[0], FaultCount::Always, to(accomplice.url("/blob")));
    accomplice.fault("GET", "/blob", FaultCount::Always, to(inside.url("/blob")));
    let error = here.pull(&remote(&outside.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), inside.seen().len()), ("registry.lies", 0), "{}", told(&error));
    assert_eq!(accomplice.seen().len(), 1);
}

#[tokio::test]
async fn a_registry_on_another_machine_is_reached_by_encryption() {
    // An address of every machine that is no loopback address, though it leads to this one.
    let mock = MockRegistry::start_at(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).unwrap();
    image(&mock, &[]);
    let here = LocalStore::with(user(&mock.host()), RegistryTerms { tries: 1, ..quick() });
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.unreachable", "{}", told(&error));
    assert!(mock.seen().iter().all(|seen| seen.path.is_empty() && seen.headers.is_empty()));
}
