//! The same `request_id` twice is one change with one answer.

use futures_util::future::join_all;
use lodge_testkit::lodge::{http, rpc};
use serde_json::{Value, json};

use crate::world::{AGENTFILE, World, id};

#[tokio::test]
async fn a_resend_gets_the_first_answer_also_from_the_next_daemon() {
    let mut world = World::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let changes = [
        ("agent/create", json!({"content": AGENTFILE, "name": "two", "request_id": "r1"})),
        ("turn/send", json!({"agent": agent, "session": "s", "text": "[[reply:x]]", "request_id": "r2"})),
        ("agent/stop", json!({"agent": "two", "request_id": "r3"})),
        ("agent/start", json!({"agent": "two", "request_id": "r4"})),
        ("agent/remove", json!({"agent": "two", "force": true, "request_id": "r5"})),
        ("provider/add", json!({"name": "p", "kind": "script", "request_id": "r6"})),
        ("provider/remove", json!({"name": "p", "request_id": "r7"})),
        ("job/submit", json!({"agent": agent, "bin": "sleep", "args": ["600"], "request_id": "r8"})),
    ];
    let mut answers = Vec::new();
    for (method, params) in &changes {
        answers.push(api.ok(method, params.clone()).await.to_string());
    }
    for ((method, params), first) in changes.iter().zip(&answers) {
        assert_eq!(api.ok(method, params.clone()).await.to_string(), *first, "{method}");
    }
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for ((method, params), first) in changes.iter().zip(&answers) {
        assert_eq!(api.ok(method, params.clone()).await.to_string(), *first, "{method} after a restart");
    }
    let agents = api.ok("agent/list", json!({"all": true})).await;
    assert_eq!(agents["agents"].as_array().expect("agents").len(), 1, "{agents:#}");
    let turns = api.ok("turn/list", json!({"session": "s"})).await;
    assert_eq!(turns["turns"].as_array().expect("turns").len(), 1, "{turns:#}");
    let jobs = api.ok("job/list", json!({})).await;
    assert_eq!(jobs["jobs"].as_array().expect("jobs").len(), 1, "{jobs:#}");
}

#[tokio::test]
async fn a_request_id_with_other_parameters_or_another_method_is_refused() {
    let mut world = World::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let first = json!({"agent": agent, "session": "s", "text": "a", "request_id": "r"});
    api.ok("turn/send", first).await;
    let other = json!({"agent": agent, "session": "s", "text": "b", "request_id": "r"});
    let error = api.refused("turn/send", other.clone(), "request.reused").await;
    assert!(error["data"]["hint"].is_string());
    api.refused("agent/stop", json!({"agent": agent, "request_id": "r"}), "request.reused").await;
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.refused("turn/send", other, "request.reused").await;
    for id in [String::new(), "x".repeat(129)] {
        let params = json!({"agent": agent, "text": "a", "request_id": id});
        api.refused("turn/send", params, "params.invalid").await;
    }
}

#[tokio::test]
async fn twenty_equal_requests_at_once_make_one_agent_and_one_turn() {
    let world = World::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let (addr, bearer) = (world.lodge.http_addr(), format!("Bearer {}", world.lodge.token()));
    for (method, params) in [
        ("agent/create", json!({"content": AGENTFILE, "request_id": "c"})),
        ("turn/send", json!({"agent": agent, "sender": "ann", "text": "[[reply:x]]", "request_id": "t"})),
        ("job/submit", json!({"agent": agent, "bin": "sleep", "args": ["600"], "request_id": "j"})),
        ("agent/stop", json!({"agent": agent, "request_id": "s"})),
    ] {
        let calls = (0..20).map(|_| {
            let (addr, bearer, body) = (addr.clone(), bearer.clone(), rpc(method, &params));
            tokio::task::spawn_blocking(move || {
                let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
                http(&addr, "POST", "/v1/rpc", &headers, &body).expect("an answer")
            })
        });
        let answers: Vec<_> = join_all(calls).await.into_iter().map(|call| call.expect("a call")).collect();
        assert!(answers.iter().all(|answer| *answer == answers[0]), "{method}: {answers:#?}");
        assert_eq!(answers[0].0, 200, "{method}: {}", answers[0].1);
    }
    let count = |value: &Value, plural: &str| value[plural].as_array().expect("items").len();
    assert_eq!(count(&api.ok("agent/list", json!({"all": true})).await, "agents"), 2);
    assert_eq!(count(&api.ok("job/list", json!({})).await, "jobs"), 1);
    let sessions = api.ok("session/list", json!({})).await;
    assert_eq!(count(&sessions, "sessions"), 1);
    let session = id(&sessions["sessions"][0]);
    assert_eq!(count(&api.ok("turn/list", json!({"session": session})).await, "turns"), 1);
}
