//! Who may call, and that secrets stay where they belong.

use std::fs;
use std::path::Path;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use lodge_proto::client::{Client, ClientError, Target};
use lodge_testkit::lodge::{Lodge, http, rpc};
use ring::hmac;
use rusqlite::Connection;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::world::{ApiWorld, KEY, family, http_unix, sh};

/// A way to sign: its name in a token, and what it is.
type Signing = (&'static str, hmac::Algorithm);

const HS256: Signing = ("HS256", hmac::HMAC_SHA256);
const HS384: Signing = ("HS384", hmac::HMAC_SHA384);
const HS512: Signing = ("HS512", hmac::HMAC_SHA512);

/// Signs claims with the key that a daemon's tokens are signed with.
fn signed(lodge: &Lodge, (name, algorithm): Signing, change: impl FnOnce(&mut Value)) -> String {
    let database = Connection::open(lodge.home().join("daemon.db")).expect("a database");
    let meta = |key: &str| -> Vec<u8> {
        database.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).expect("a value")
    };
    let mut hash = Sha256::new();
    hash.update(b"lodge-derive-1");
    hash.update(meta("state-key"));
    hash.update(5_u64.to_be_bytes());
    hash.update(b"token");
    let log = String::from_utf8(meta("log")).expect("text");
    let jti: String = database
        .query_row(
            "SELECT jti FROM tokens WHERE name = 'credentials.json' AND revoked_at IS NULL",
            [],
            |row| row.get(0),
        )
        .expect("a token");
    let mut claims = json!({
        "iss": "lodge:operator", "sub": "operator", "iat": 1, "exp": 4_000_000_000_u64, "aud": log, "jti": jti
    });
    change(&mut claims);
    let key: [u8; 32] = hash.finalize().into();
    let encoded = |part: &Value| BASE64_URL_SAFE_NO_PAD.encode(part.to_string());
    let signed = format!("{}.{}", encoded(&json!({"typ": "JWT", "alg": name})), encoded(&claims));
    let signature = hmac::sign(&hmac::Key::new(algorithm, &key), signed.as_bytes());
    format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature))
}

/// Tokens that open nothing, with the code each is refused with.
fn bad_tokens(lodge: &Lodge, other: &Lodge) -> Vec<(String, &'static str)> {
    let good = lodge.token();
    let parts: Vec<&str> = good.split('.').collect();
    let mut flipped = parts[2].to_owned();
    let last = if flipped.remove(0) == 'A' { 'B' } else { 'A' };
    flipped.insert(0, last);
    vec![
        (String::new(), "auth.missing"),
        ("Bearer".to_owned(), "auth.missing"),
        (format!("Basic {good}"), "auth.missing"),
        ("Bearer nonsense".to_owned(), "auth.invalid"),
        (format!("Bearer {}.{}.{flipped}", parts[0], parts[1]), "auth.invalid"),
        (format!("Bearer {}.{}.", parts[0], parts[1]), "auth.invalid"),
        // {"alg":"none"} and {"alg":"none","typ":"JWT"}.
        (format!("Bearer eyJhbGciOiJub25lIn0.{}.", parts[1]), "auth.invalid"),
        (format!("Bearer eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.{}.{}", parts[1], parts[2]), "auth.invalid"),
        (format!("Bearer {}", other.token()), "auth.invalid"),
        (format!("Bearer {}", signed(lodge, HS512, |_| ())), "auth.invalid"),
        (
            format!("Bearer {}", signed(lodge, HS256, |claims| claims["exp"] = json!(1_000_000_000))),
            "auth.expired",
        ),
        (
            format!("Bearer {}", signed(lodge, HS256, |claims| claims["iss"] = json!("lodge:agent"))),
            "auth.invalid",
        ),
        (format!("Bearer {}", signed(lodge, HS256, |claims| claims["aud"] = json!("other"))), "auth.invalid"),
        (
            format!("Bearer {}", signed(lodge, HS256, |claims| claims["iss"] = json!("lodge:root"))),
            "auth.invalid",
        ),
        (format!("Bearer {}", signed(lodge, HS256, |claims| claims["jti"] = json!(null))), "auth.invalid"),
        // Signed, and not recorded: there is nothing that it could have been but revoked.
        (format!("Bearer {}", signed(lodge, HS256, |claims| claims["jti"] = json!("tok_0"))), "auth.revoked"),
        (format!("Bearer {}", signed(lodge, HS384, |_| ())), "auth.invalid"),
    ]
}

#[tokio::test]
async fn no_door_opens_without_a_token_of_this_daemons_that_is_still_good() {
    let (world, other) = (ApiWorld::new(), Lodge::started());
    let api = world.checked().await;
    let (addr, socket) = (world.lodge.http_addr(), world.lodge.home().join("lodge.sock"));
    let body = rpc("info", &json!({}));
    for (header, code) in bad_tokens(&world.lodge, &other) {
        let headers = [("authorization", header.as_str()), ("content-type", "application/json")];
        let headers = if header.is_empty() { &headers[1..] } else { &headers[..] };
        let tcp = http(&addr, "POST", "/v1/rpc", headers, &body).expect("an answer");
        let unix = http_unix(&socket, "POST", "/v1/rpc", headers, &body);
        for (status, body) in [tcp, unix] {
            let error = serde_json::from_str::<Value>(&body).expect("JSON")["error"].clone();
            api.schemas.error(&error);
            assert_eq!((status, error["data"]["code"].as_str()), (401, Some(code)), "{header}");
            assert!(error["data"]["hint"].is_string(), "{error}");
        }
        assert_eq!(http(&addr, "GET", "/v1/events", headers, b"").expect("an answer").0, 401);
        let token = header.strip_prefix("Bearer ").unwrap_or_default();
        for target in [world.lodge.target(), Target::Tcp(addr.clone())] {
            match Client::connect(&target, token).await {
                Err(ClientError::Handshake { status: Some(401), body: Some(body), .. }) => {
                    assert!(body.data.code.starts_with("auth."), "{body:?}");
                }
                // Over TCP the client finds out: a foreign server cannot prove that it knows the token.
                Err(ClientError::Unverified { target: Target::Tcp(_), .. }) => {}
                other => panic!("{header}: {other:?}"),
            }
        }
    }
    let good = format!("Bearer {}", signed(&world.lodge, HS256, |_| ()));
    let headers = [("authorization", good.as_str()), ("content-type", "application/json")];
    assert_eq!(http(&addr, "POST", "/v1/rpc", &headers, &body).expect("an answer").0, 200);
}

#[tokio::test]
async fn pages_of_others_cannot_call_whatever_name_they_use_for_this_machine() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_ALLOWED_ORIGINS", "https://lodge.example");
    world.lodge.start();
    let (addr, bearer) = (world.lodge.http_addr(), format!("Bearer {}", world.lodge.token()));
    let port = addr.rsplit_once(':').expect("a port").1.to_owned();
    let own = format!("http://{addr}");
    let local = format!("localhost:{port}");
    let rebound = format!("attacker.example:{port}");
    let nip = format!("127.0.0.1.nip.io:{port}");
    for (host, origin, status) in [
        (addr.as_str(), None, 200),
        (local.as_str(), None, 200),
        ("[::1]:5500", None, 200),
        (addr.as_str(), Some(own.as_str()), 200),
        ("lodge.example", Some("https://lodge.example"), 200),
        (addr.as_str(), Some("https://lodge.example"), 200),
        (rebound.as_str(), None, 403),
        (nip.as_str(), None, 403),
        ("localhost.attacker.example", None, 403),
        ("", None, 403),
        ("10.0.0.1", None, 403),
        (addr.as_str(), Some("http://attacker.example"), 403),
        (addr.as_str(), Some("null"), 403),
        (addr.as_str(), Some("http://lodge.example"), 403),
        (local.as_str(), Some(own.as_str()), 403),
    ] {
        let mut headers =
            vec![("host", host), ("authorization", bearer.as_str()), ("content-type", "application/json")];
        headers.extend(origin.map(|origin| ("origin", origin)));
        let (got, body) =
            http(&addr, "POST", "/v1/rpc", &headers, &rpc("info", &json!({}))).expect("an answer");
        assert_eq!(got, status, "{host:?} {origin:?}: {body}");
        // A page with another host name does not get the health status.
        assert_eq!(http(&addr, "GET", "/healthz", &headers, b"").expect("an answer").0, status, "{host:?}");
    }
    // A form of a page may be posted anywhere without asking: it is not JSON.
    for kind in ["text/plain", "application/x-www-form-urlencoded", ""] {
        let headers = [("authorization", bearer.as_str()), ("content-type", kind)];
        let (status, _) =
            http(&addr, "POST", "/v1/rpc", &headers, &rpc("info", &json!({}))).expect("an answer");
        assert_eq!(status, 400, "{kind:?}");
    }
}

#[test]
fn the_token_is_kept_across_restarts_and_renewed_when_it_is_nearly_over() {
    let mut lodge = Lodge::started();
    let first = lodge.token();
    lodge.kill9();
    lodge.start();
    assert_eq!(lodge.token(), first);
    lodge.kill9();
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs()
        + 86_400;
    let old = signed(&lodge, HS256, |claims| claims["exp"] = json!(soon));
    Connection::open(lodge.home().join("daemon.db"))
        .and_then(|database| {
            database
                .execute("UPDATE tokens SET expires_at = ?1", [i64::try_from(soon * 1_000).expect("a time")])
        })
        .expect("a change");
    fs::write(lodge.home().join("credentials.json"), json!({"token": old}).to_string()).expect("a file");
    lodge.start();
    assert_ne!(lodge.token(), old);
    assert_eq!(lodge.cli(["info"]).status.code(), Some(0));
}

#[tokio::test]
async fn a_token_in_an_address_is_refused_whoever_brings_it_and_nobody_is_given_one() {
    let world = ApiWorld::new();
    let (addr, token) = (world.lodge.http_addr(), world.lodge.token());
    let bearer = format!("Bearer {token}");
    let with = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let body = rpc("info", &json!({}));
    for key in ["token", "access_token", "jwt", "x"] {
        let query = format!("?{key}={token}");
        for (path, method) in [("/v1/rpc", "POST"), ("/v1/events", "GET"), ("/healthz", "GET"), ("/", "GET")]
        {
            for headers in [&with[..], &with[1..]] {
                let (status, told) =
                    http(&addr, method, &format!("{path}{query}"), headers, &body).expect("an answer");
                assert_eq!(status, 400, "{method} {path}{query}: {told}");
                assert!(told.contains("auth.in_query") && !told.contains(&token), "{told}");
            }
        }
    }
    // No reply to a caller without a token contains one, on both listeners.
    for path in ["/", "/healthz", "/v1/rpc", "/v1/events", "/credentials.json", "/../credentials.json"] {
        let (_, told) = http(&addr, "GET", path, &[], b"").expect("an answer");
        let (_, by_socket) = http_unix(&world.lodge.home().join("lodge.sock"), "GET", path, &[], b"");
        for told in [told, by_socket] {
            assert!(!told.contains("eyJ") && !told.to_lowercase().contains("set-cookie"), "{path}: {told}");
        }
    }
    assert!(!world.lodge.log().contains("eyJ"), "an address was logged");
}

/// Every file below `dir` that holds `needle`.
pub fn holding(dir: &Path, needle: &str) -> Vec<String> {
    holding_bytes(dir, needle.as_bytes())
}

pub fn holding_bytes(dir: &Path, needle: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        if meta.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if meta.is_file() {
            let bytes = fs::read(&path).unwrap_or_default();
            if bytes.windows(needle.len()).any(|window| window == needle) {
                found.push(path.display().to_string());
            }
        }
    }
    found
}

#[tokio::test]
async fn a_providers_key_and_the_operators_token_never_leave_the_daemon() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("OPENAI_API_KEY", "sk-from-the-environment");
    world.lodge.set_env("EXPANDED_KEY", KEY);
    world.put_providers(&world.provider("mock", &world.mock.base_url()).replace(KEY, "${EXPANDED_KEY}"));
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let (token, home) = (world.lodge.token(), world.lodge.home());
    // Tools look wherever they can.
    let script =
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; cat \"$LODGE_AGENT_ROOT\"/etc/* 2>/dev/null";
    let text = format!("{} [[reply:{{{{tool}}}}]]", sh(script));
    let answer = api.answer(&agent, "s", &text).await;
    assert!(!answer.contains("[secret]"), "a tool found a key, which was taken out of its answer: {answer}");
    for fault in ["[[status:401]]", "[[status:400]]"] {
        assert_eq!(api.say(&agent, "s", fault).await["status"], "failed");
    }
    let secrets = [KEY, "sk-from-the-environment", token.as_str()];
    for pid in world.lodge.keepers().into_iter().flat_map(family) {
        let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let cmdline = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&[environ, cmdline].concat()).into_owned();
        assert!(secrets.iter().all(|secret| !text.contains(secret)), "process {pid} has a secret: {text}");
    }
    let mut told = String::new();
    for (method, params) in [
        ("info", json!({})),
        ("agent/get", json!({"agent": agent})),
        ("agent/logs", json!({"agent": agent})),
        ("session/messages", json!({"session": "s"})),
        ("turn/list", json!({"session": "s"})),
        ("provider/list", json!({})),
    ] {
        told.push_str(&api.ok(method, params).await.to_string());
    }
    api.log().await.iter().for_each(|event| told.push_str(&event.to_string()));
    assert!(secrets.iter().all(|secret| !told.contains(secret)), "the API told a secret");
    assert!(secrets.iter().all(|secret| !world.lodge.log().contains(secret)), "the log has a secret");
    assert_eq!(holding(&home, KEY), [""; 0], "an expanded key was written");
    assert_eq!(holding(&home, &token), [home.join("credentials.json").display().to_string()]);
    let revealed = api.ok("provider/list", json!({"reveal": true})).await.to_string();
    assert!(revealed.contains(KEY), "who asks for it gets it: {revealed}");
    assert!(world.mock.requests().expect("a log").iter().all(|line| line.key_ok == Some(true)));
}
