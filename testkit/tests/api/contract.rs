//! The API keeps to what `rpc/discover` says, through every door.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use lodge_testkit::lodge::{PATIENCE, http, rpc};
use lodge_testkit::registry::MockRegistry;
use serde_json::{Value, json};

use crate::bins::platform;
use crate::quarantine::two_aside;
use crate::world::{AGENTFILE, ApiWorld, http_unix, id, kill, sh};

#[tokio::test]
async fn every_method_can_be_called_and_every_answer_fits_its_schema() {
    let mut world = ApiWorld::new();
    let [retried, dropped] = two_aside(&mut world).await;
    let mut api = world.checked().await;
    let attached = api.ok("client/attach", json!({"all": true})).await;
    let agent = world.agent(&mut api, "one").await;
    let text = format!("{} [[reply:done]]", sh("echo hi"));
    assert_eq!(api.answer(&agent, "s", &text).await, "done");
    let slow = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "[[hang]]"})).await;
    api.until("turn/get", json!({"turn": id(&slow)}), |turn| turn["status"] == "running").await;
    assert_eq!(api.ok("turn/interrupt", json!({"turn": id(&slow)})).await["status"], "interrupted");
    let again = api.ok("turn/retry", json!({"turn": id(&slow)})).await;
    api.ok("turn/interrupt", json!({"turn": id(&again)})).await;
    let asks = json!({"content": AGENTFILE, "name": "asks", "revival_policy": "ask"});
    api.ok("agent/create", asks).await;
    let asks = api.agent_is("asks", "ready").await;
    kill(i32::try_from(asks["pid"].as_u64().expect("a pid")).expect("a pid"), libc::SIGKILL);
    api.agent_is("asks", "failed").await;
    let job = json!({"agent": "one", "session": "s", "bin": "sh", "args": ["-c", "echo hi; echo oh >&2"]});
    let job = json!({"job": id(&api.ok("job/submit", job).await)});
    let sleeps = api.ok("job/submit", json!({"agent": "one", "bin": "sleep", "args": ["600"]})).await;
    let extra = api.ok("token/issue", json!({"agent": "one", "name": "extra"})).await;
    let registry = MockRegistry::start().expect("a registry");
    let (far, far_bin) = (format!("{}/far:v1", registry.host()), format!("{}/bin:v1", registry.host()));
    let programs = json!([{"platform": platform(), "path": "/bin/cat"}]);
    for (method, params) in [
        ("info", json!({})),
        ("lineage/list", json!({"agent": "asks"})),
        ("lineage/get", json!({"lineage": "asks"})),
        ("lineage/snapshot", json!({"lineage": "asks"})),
        ("lineage/messages", json!({"lineage": "one", "session": "s"})),
        ("daemon/reap", json!({})),
        ("lineage/resolve", json!({"lineage": asks["lineage"], "decision": "reap"})),
        ("agent/kill", json!({"agent": "asks"})),
        ("agent/list", json!({"all": true})),
        ("agent/logs", json!({"agent": agent})),
        ("turn/list", json!({"session": "s"})),
        ("session/list", json!({"agent": "one"})),
        ("session/get", json!({"session": "s"})),
        ("session/messages", json!({"session": "s"})),
        ("session/search", json!({"query": "echo", "agent": "one"})),
        ("session/export", json!({"session": "s"})),
        ("session/fork", json!({"session": "s", "turn": "1", "to": "f"})),
        ("session/rewind", json!({"session": "s", "turn": "1"})),
        ("session/branches/activate", json!({"session": "s", "turn": slow["id"]})),
        ("session/regenerate", json!({"session": "f"})),
        ("session/delete", json!({"session": "s"})),
        ("job/wait", job.clone()),
        ("job/get", job.clone()),
        ("job/output", job),
        ("job/list", json!({"agent": "one"})),
        ("job/cancel", json!({"job": sleeps["id"]})),
        ("image/build", json!({"content": AGENTFILE, "tags": ["extra", "extra:v1"]})),
        ("image/list", json!({})),
        ("image/inspect", json!({"image": "extra"})),
        ("image/tag", json!({"image": "extra", "tags": ["extra:v2"]})),
        ("image/diff", json!({"from": "extra", "to": "tester"})),
        ("image/push", json!({"image": "extra", "to": far})),
        ("image/pull", json!({"image": far})),
        ("image/remove", json!({"image": "extra:v1"})),
        ("bin/build", json!({"name": "cat", "programs": programs})),
        ("bin/list", json!({})),
        ("bin/inspect", json!({"bin": "cat"})),
        ("bin/push", json!({"bin": "cat", "to": far_bin})),
        ("bin/pull", json!({"bin": far_bin})),
        ("bin/remove", json!({"bin": "cat"})),
        (
            "provider/add",
            json!({"name": "extra", "kind": "openai", "base_url": world.mock.base_url(), "api_key": "k"}),
        ),
        ("provider/list", json!({})),
        ("provider/test", json!({"name": "mock"})),
        ("provider/remove", json!({"name": "extra"})),
        ("token/list", json!({})),
        ("token/revoke", json!({"token": extra["id"]})),
        ("event/list", json!({"agent": "one"})),
        ("quarantine/list", json!({})),
        ("quarantine/retry", json!({"work": retried})),
        ("quarantine/drop", json!({"work": dropped})),
        ("agent/update", json!({"agent": "one", "labels": {"a": "b"}})),
        ("agent/restart", json!({"agent": "one"})),
        ("agent/stop", json!({"agent": "one"})),
        ("agent/start", json!({"agent": "one"})),
        ("daemon/reload", json!({})),
        ("sandbox/create", json!({"id": "box-1", "shell": true})),
        ("sandbox/list", json!({})),
        ("sandbox/get", json!({"sandbox": "box-1"})),
        ("sandbox/stop", json!({"sandbox": "box-1"})),
        ("agent/remove", json!({"agent": "one", "force": true})),
        ("client/detach", json!({"attachment": attached["attachment"]})),
        ("daemon/shutdown", json!({})),
    ] {
        api.ok(method, params).await;
    }
    // Their module calls these: they need a sandbox that is ready or stopped.
    let elsewhere = [
        "sandbox/resume",
        "sandbox/remove",
        "exec/run",
        "exec/list",
        "exec/get",
        "exec/cancel",
        "exec/output",
    ];
    api.called.extend(elsewhere.map(str::to_owned));
    assert_eq!(api.called, api.schemas.methods());
}

#[tokio::test]
async fn every_change_takes_a_request_id_and_nothing_unknown() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for method in api.schemas.discovery["methods"].as_array().expect("methods").clone() {
        let name = method["name"].as_str().expect("a name");
        if method["mutates"] == true {
            assert!(method["params"]["properties"]["request_id"].is_object(), "{name} takes no request_id");
        }
        api.refused(name, json!({"no_such_parameter": 1}), "params.invalid").await;
    }
}

/// An answer without what others change meanwhile: the room on a disk that all tests share.
fn same(mut answer: Value) -> Value {
    if let Some(free) = answer.pointer_mut("/result/storage/free_bytes") {
        *free = Value::Null;
    }
    answer
}

#[tokio::test]
async fn post_gives_the_same_answers_as_a_websocket_on_both_doors() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "[[reply:hi]]").await;
    let job = api.ok("job/submit", json!({"agent": agent, "bin": "sh", "args": ["-c", "echo hi"]})).await;
    let job = id(&api.ok("job/wait", json!({"job": id(&job)})).await).to_owned();
    let bearer = format!("Bearer {}", world.lodge.token());
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    for (method, params) in [
        ("info", json!({})),
        ("rpc/discover", json!({})),
        ("agent/list", json!({})),
        ("agent/get", json!({"agent": "one"})),
        ("session/messages", json!({"session": "s"})),
        ("turn/list", json!({"session": "s"})),
        ("event/list", json!({"limit": 500})),
        ("job/list", json!({})),
        ("job/get", json!({"job": job})),
        ("job/output", json!({"job": job})),
        ("job/get", json!({"job": "job_0"})),
        ("agent/get", json!({"agent": "nobody"})),
        ("session/get", json!({"session": "none"})),
        ("turn/get", json!({"turn": "trn_0"})),
    ] {
        let expected = api.call(method, params.clone()).await;
        let body = rpc(method, &params);
        let tcp = http(&world.lodge.http_addr(), "POST", "/v1/rpc", &headers, &body).expect("an answer");
        let unix = http_unix(&world.lodge.home().join("lodge.sock"), "POST", "/v1/rpc", &headers, &body);
        let answer = same(serde_json::from_str(&tcp.1).expect("JSON"));
        assert_eq!((unix.0, same(serde_json::from_str(&unix.1).expect("JSON"))), (tcp.0, answer.clone()));
        match expected {
            Ok(result) => {
                let expected = same(json!({"result": result}));
                assert_eq!((tcp.0, &answer["result"]), (200, &expected["result"]));
            }
            Err(error) => {
                assert_eq!(answer["error"], error);
                assert!((400..500).contains(&tcp.0), "{} for {error}", tcp.0);
            }
        }
        assert_eq!((&answer["id"], &answer["jsonrpc"]), (&json!(1), &json!("2.0")));
    }
}

/// Reads server-sent events, each as (id, event, data).
fn sse(world: &ApiWorld, path: &str, last: Option<u64>, count: usize) -> Vec<(u64, String, Value)> {
    let mut stream = TcpStream::connect(world.lodge.http_addr()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let last = last.map(|last| format!("last-event-id: {last}\r\n")).unwrap_or_default();
    let head = format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n{last}\r\n",
        world.lodge.token()
    );
    stream.write_all(head.as_bytes()).expect("a request");
    let mut events = Vec::new();
    let (mut id, mut kind) = (0, String::new());
    for line in BufReader::new(stream).lines() {
        let line = line.expect("a line");
        if let Some(text) = line.strip_prefix("id: ") {
            id = text.parse().expect("a sequence");
        } else if let Some(text) = line.strip_prefix("event: ") {
            text.clone_into(&mut kind);
        } else if let Some(text) = line.strip_prefix("data: ") {
            events.push((id, kind.clone(), serde_json::from_str(text).expect("JSON")));
        }
        if events.len() == count {
            break;
        }
    }
    events
}

#[tokio::test]
async fn server_sent_events_resume_after_the_last_event_id() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "[[reply:hi]]").await;
    let log = api.log().await;
    let all = sse(&world, "/v1/events?since=0", None, log.len());
    for ((id, kind, event), known) in all.iter().zip(&log) {
        api.schemas.event(event);
        assert_eq!((event, &json!(id), &json!(kind)), (known, &known["seq"], &known["kind"]));
    }
    let middle = log.len() / 2;
    let rest = sse(&world, "/v1/events", Some(all[middle].0), log.len() - middle - 1);
    assert_eq!(rest, all[middle + 1..]);
    // The header is newer than the address it comes with, as browsers reconnect.
    let rest = sse(&world, "/v1/events?since=0", Some(all[middle].0), 1);
    assert_eq!(rest[0], all[middle + 1]);
    // And then live.
    let text = json!({"agent": agent, "session": "s", "text": "[[reply:more]]"});
    api.ok("turn/send", text).await;
    let live = sse(&world, "/v1/events?kind=turn.accepted", Some(all[all.len() - 1].0), 1);
    assert_eq!(live[0].2["kind"], "turn.accepted");
}

#[tokio::test]
async fn a_stream_from_the_future_or_of_nothing_known_is_refused() {
    let world = ApiWorld::new();
    let api = world.checked().await;
    let bearer = format!("Bearer {}", world.lodge.token());
    for (path, last, code) in [
        ("/v1/events?since=999999", None, "cursor.future"),
        ("/v1/events", Some("999999"), "cursor.future"),
        ("/v1/events", Some("x"), "params.invalid"),
        ("/v1/events?agent=nobody", None, "agent.not_found"),
        ("/v1/events?sinse=1", None, "params.invalid"),
    ] {
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(last.map(|last| ("last-event-id", last)));
        let (status, body) = http(&world.lodge.http_addr(), "GET", path, &headers, b"").expect("an answer");
        let error = serde_json::from_str::<Value>(&body).expect("JSON")["error"].clone();
        api.schemas.error(&error);
        assert_eq!((error["data"]["code"].as_str(), status / 100), (Some(code), 4), "{path}");
    }
}

#[tokio::test]
async fn health_is_reported_without_a_token_and_nothing_else_is() {
    let world = ApiWorld::new();
    let addr = world.lodge.http_addr();
    let (status, body) = http(&addr, "GET", "/healthz", &[], b"").expect("an answer");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((status, &body["status"], &body["epoch"]), (200, &json!("ok"), &json!(1)));
    assert_eq!(body.as_object().expect("an object").len(), 3, "{body}");
    for (method, path) in [("GET", "/v1/events"), ("POST", "/v1/rpc"), ("GET", "/v1/rpc")] {
        assert_eq!(http(&addr, method, path, &[], b"").expect("an answer").0, 401, "{method} {path}");
    }
    assert_eq!(http(&addr, "GET", "/nowhere", &[], b"").expect("an answer").0, 404);
}

#[tokio::test]
async fn listings_are_paged_without_loss_or_repetition() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for name in ["a", "b", "c", "d", "e"] {
        api.ok("agent/create", json!({"content": AGENTFILE, "name": name})).await;
    }
    api.agent_is("a", "ready").await;
    for n in 0..5 {
        api.answer("a", "many", "[[reply:x]]").await;
        api.answer("a", &format!("s{n}"), "[[reply:x]]").await;
    }
    for (method, plural, params, total) in [
        ("agent/list", "agents", json!({"all": true}), 5),
        ("session/list", "sessions", json!({}), 6),
        ("turn/list", "turns", json!({"session": "many"}), 5),
    ] {
        let (mut seen, mut after) = (Vec::new(), Value::Null);
        loop {
            let mut params = params.clone();
            params["limit"] = json!(2);
            params["after"] = after;
            let page = api.ok(method, params).await;
            let items = page[plural].as_array().expect("items");
            assert!(items.len() <= 2);
            seen.extend(items.iter().map(|item| id(item).to_owned()));
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
        let mut unique = seen.clone();
        unique.sort();
        unique.dedup();
        assert_eq!((seen.len(), unique.len()), (total, total), "{method}");
    }
}
