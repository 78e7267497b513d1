//! Logins and tokens: what lets us in, and who gets to see it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use lodge_image::registry::{RegistryLogin, RegistryLogins, RegistryTerms};
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryDoor, RegistryFault};

use crate::common::*;

const TOKEN: &str = "letmein";

fn token_door(mock: &MockRegistry, login: Option<&str>) {
    let (realm, login) = (mock.url("/token"), login.map(str::to_owned));
    mock.set_door(RegistryDoor::Token { realm, login, token: TOKEN.to_owned() });
}

#[tokio::test]
async fn a_token_is_asked_for_once_for_a_whole_image() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[bytes(1, 10), bytes(2, 10), bytes(3, 10)]);
    token_door(&mock, Some(LOGIN));
    let here = LocalStore::with(user(&mock.host()), quick());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!((mock.count("GET", "/token"), mock.seen().len()), (1, 1 + 1 + 1 + 4));
    let asked = mock.seen();
    let token = asked.iter().find(|seen| seen.path.starts_with("/token")).unwrap();
    assert_eq!(token.path, "/token?service=mock&scope=repository%3Athing%3Apull");
    assert_eq!(token.header("authorization"), Some(format!("Basic {LOGIN}").as_str()));
    assert!(
        asked[0].header("authorization").is_none()
            && asked[0].header("user-agent").unwrap().starts_with("lodge/")
    );
}

#[tokio::test]
async fn a_token_is_had_without_a_login_where_everybody_gets_one() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[bytes(1, 10)]);
    token_door(&mock, None);
    let here = LocalStore::new(quick());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    let asked = mock.seen();
    let token = asked.iter().find(|seen| seen.path.starts_with("/token")).unwrap();
    assert!(token.header("authorization").is_none());
}

#[tokio::test]
async fn an_identity_token_is_exchanged() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[bytes(1, 10)]);
    token_door(&mock, Some("identity"));
    let login = RegistryLogin { user: "<token>".to_owned(), secret: "identity".to_owned(), is_token: true };
    let here = LocalStore::with(Arc::new(OneLogin { host: mock.host(), login }), quick());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    let asked = mock.seen();
    let exchange = asked.iter().find(|seen| seen.method == "POST").unwrap();
    let form = String::from_utf8_lossy(&exchange.body).into_owned();
    let expected = "service=mock&scope=repository%3Athing%3Apull&grant_type=refresh_token&client_id=lodge&refresh_token=identity";
    assert_eq!((form.as_str(), exchange.path.as_str()), (expected, "/token"));
}

#[tokio::test]
async fn a_token_that_is_good_no_more_is_asked_for_again_and_a_bad_one_is_not_tried_twice() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[bytes(1, 10)]);
    token_door(&mock, Some(LOGIN));
    let here = LocalStore::with(user(&mock.host()), quick());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    let (realm, login) = (mock.url("/token"), Some(LOGIN.to_owned()));
    mock.set_door(RegistryDoor::Token {
        realm: realm.clone(),
        login: login.clone(),
        token: "another".to_owned(),
    });
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    assert_eq!(mock.count("GET", "/token"), 2);
    let useless = br#"{"token":"useless"}"#.to_vec();
    mock.fault("GET", "/token", FaultCount::Always, RegistryFault::Body(useless));
    mock.set_door(RegistryDoor::Token { realm, login, token: "third".to_owned() });
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), mock.count("GET", "/token")), ("registry.denied", 3), "{}", told(&error));
}

#[tokio::test]
async fn who_is_not_let_in_learns_how_to_log_in_and_no_secret_is_reported() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[]);
    let host = mock.host();
    let wrong = RegistryLogin { user: "user".to_owned(), secret: "hush".to_owned(), is_token: false };
    let wrong: Arc<dyn RegistryLogins> = Arc::new(OneLogin { host: host.clone(), login: wrong });
    for door in ["basic", "token"] {
        match door {
            "basic" => mock.set_door(RegistryDoor::Basic { login: LOGIN.to_owned() }),
            _token => token_door(&mock, Some(LOGIN)),
        }
        for logins in [Arc::new(NoLogin) as Arc<dyn RegistryLogins>, Arc::clone(&wrong)] {
            let here = LocalStore::with(logins, quick());
            let error = here.pull(&remote(&host, "thing:v1")).await.unwrap_err();
            let shown = format!("{} {error:?} {:?} {:?}", told(&error), error.hint(), here.registries);
            assert_eq!(error.code(), "registry.denied", "{shown}");
            assert!(error.hint().contains(&format!("`docker login {host}`")), "{shown}");
            assert!(!shown.contains("hush") && !shown.contains(TOKEN), "{shown}");
        }
    }
}

struct BrokenLogins;

impl RegistryLogins for BrokenLogins {
    fn login(&self, _host: &str) -> Result<Option<RegistryLogin>, String> {
        Err("the helper is not there".to_owned())
    }
}

#[tokio::test]
async fn logins_are_looked_for_only_where_one_is_wanted() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[]);
    let here = LocalStore::with(Arc::new(BrokenLogins), quick());
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
    mock.set_door(RegistryDoor::Basic { login: LOGIN.to_owned() });
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.login");
    assert!(error.to_string().ends_with("the helper is not there"), "{error}");
}

#[tokio::test]
async fn a_realm_is_somewhere_safe_or_gets_no_login() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[]);
    let here = LocalStore::with(user(&mock.host()), quick());
    for realm in [
        "http://10.0.0.1/token",
        "http://auth.example/token",
        "ftp://127.0.0.1/token",
        "http://user:word@127.0.0.1/token",
        "/token",
        "",
        "http://",
    ] {
        mock.set_door(RegistryDoor::Token { realm: realm.to_owned(), login: None, token: TOKEN.to_owned() });
        let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!(error.code(), "registry.lies", "{realm}: {}", told(&error));
    }
}

#[tokio::test]
async fn a_realm_inside_is_not_asked_for_a_registry_outside() {
    const SECOND: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let outside = MockRegistry::start_at(SECOND).unwrap();
    let inside = MockRegistry::start().unwrap();
    image(&outside, &[]);
    let here = LocalStore::with(
        user(&outside.host()),
        RegistryTerms { inward: |address| address != SECOND, ..quick() },
    );
    let port = inside.host().split(':').next_back().unwrap().to_owned();
    for host in ["127.0.0.1", "localhost"] {
        let realm = format!("http://{host}:{port}/token");
        outside.set_door(RegistryDoor::Token { realm, login: None, token: TOKEN.to_owned() });
        let error = here.pull(&remote(&outside.host(), "thing:v1")).await.unwrap_err();
        assert_eq!((error.code(), inside.seen().len()), ("registry.lies", 0), "{host}: {}", told(&error));
    }
}

#[tokio::test]
async fn a_realm_leads_nobody_with_a_login_elsewhere() {
    let (mock, other) = (MockRegistry::start().unwrap(), MockRegistry::start().unwrap());
    image(&mock, &[]);
    token_door(&mock, Some(LOGIN));
    let here = LocalStore::with(user(&mock.host()), quick());
    let headers = vec![("Location".to_owned(), other.url("/token"))];
    mock.fault(
        "GET",
        "/token",
        FaultCount::Always,
        RegistryFault::Answer { status: 302, headers, body: Vec::new() },
    );
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!((error.code(), other.seen().len()), ("registry.lies", 0), "{}", told(&error));
}

#[tokio::test]
async fn a_token_of_ten_megabytes_or_none_at_all_is_refused() {
    let mock = MockRegistry::start().unwrap();
    image(&mock, &[]);
    token_door(&mock, None);
    let here = LocalStore::new(quick());
    let long = format!(r#"{{"token":"{}"}}"#, "a".repeat(10 << 20));
    for fault in [
        RegistryFault::Body(long.into_bytes()),
        RegistryFault::Endless,
        RegistryFault::Body(b"{}".to_vec()),
        RegistryFault::Body(br#"{"token":"a\r\nX: y"}"#.to_vec()),
        RegistryFault::Body(b"\xff".to_vec()),
    ] {
        mock.forget_faults();
        mock.fault("GET", "/token", FaultCount::Always, fault);
        let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!(error.code(), "registry.lies", "{}", told(&error));
    }
    mock.forget_faults();
    let busy = RegistryFault::Answer { status: 503, headers: Vec::new(), body: Vec::new() };
    mock.fault("GET", "/token", FaultCount::Next(4), busy);
    here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap();
}

#[tokio::test]
async fn what_is_no_challenge_is_a_refusal() {
    let mock = MockRegistry::start().unwrap();
    let here = LocalStore::with(user(&mock.host()), quick());
    let long = format!("Bearer realm=\"{}\"", "a".repeat(20_000));
    for challenge in
        ["", "Negotiate", "Bearer", "Bearer realm", "Bearer realm=\"", "=,=\"\\", &long, "Digest realm=x"]
    {
        mock.forget_faults();
        let headers = vec![("WWW-Authenticate".to_owned(), challenge.to_owned())];
        let answer = RegistryFault::Answer { status: 401, headers, body: Vec::new() };
        mock.fault("GET", "/manifests/", FaultCount::Always, answer);
        let before = mock.seen().len();
        let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
        assert_eq!((error.code(), mock.seen().len() - before), ("registry.denied", 1), "{challenge:.60}");
    }
}

#[tokio::test]
async fn a_blob_elsewhere_that_wants_a_login_gets_none() {
    let (mock, other) = (MockRegistry::start().unwrap(), MockRegistry::start().unwrap());
    let (_, layers) = image(&mock, &[bytes(1, 10)]);
    mock.set_door(RegistryDoor::Basic { login: LOGIN.to_owned() });
    other.set_door(RegistryDoor::Basic { login: LOGIN.to_owned() });
    let here = LocalStore::with(user(&mock.host()), quick());
    let headers = vec![("Location".to_owned(), other.url("/blob"))];
    mock.fault(
        "GET",
        &layers[0],
        FaultCount::Always,
        RegistryFault::Answer { status: 307, headers, body: Vec::new() },
    );
    let error = here.pull(&remote(&mock.host(), "thing:v1")).await.unwrap_err();
    assert_eq!(error.code(), "registry.refused", "{}", told(&error));
    assert!(other.seen().iter().all(|seen| seen.header("authorization").is_none()));
}
