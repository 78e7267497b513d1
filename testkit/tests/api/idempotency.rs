//! The same `request_id` twice is one change with one answer.

use futures_util::future::join_all;
use lodge_proto::client::Client;
use lodge_testkit::lodge::{http, rpc};
use rusqlite::Connection;
use serde_json::{Value, json};

use crate::tokens::issue;
use crate::world::{AGENTFILE, ApiWorld, id};

#[tokio::test]
async fn a_resend_gets_the_first_answer_also_from_the_next_daemon() {
    let mut world = ApiWorld::new();
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
    let mut world = ApiWorld::new();
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
async fn request_ids_of_two_tokens_have_nothing_to_do_with_each_other() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let mut tokens = Vec::new();
    for given in [json!({}), json!({}), json!({"agent": agent}), json!({"agent": agent})] {
        tokens.push(issue(&mut api, given).await.1);
    }
    tokens.push(world.lodge.token());
    let mut sent = Vec::new();
    for round in 0..3 {
        for (at, token) in tokens.iter().enumerate() {
            let text = format!("[[reply:{at}]]");
            let given = json!({"agent": agent, "session": "s", "text": text, "request_id": "same"});
            let mut client = Client::connect(&world.lodge.target(), token).await.expect("a connection");
            let turn = client.call_value("turn/send", given).await.expect("a turn of its own");
            sent.push(id(&turn).to_owned());
            assert_eq!(sent[at], *sent.last().expect("a turn"), "the same again in round {round}");
        }
        if round == 1 {
            world.lodge.kill9();
            world.lodge.start();
        }
    }
    sent.sort();
    sent.dedup();
    assert_eq!(sent.len(), tokens.len());
}

#[tokio::test]
async fn the_token_in_credentials_json_is_the_same_caller_when_it_is_replaced() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let given = json!({"agent": agent, "session": "s", "text": "[[reply:x]]", "request_id": "r"});
    let first = api.ok("turn/send", given.clone()).await;
    world.lodge.kill9();
    std::fs::remove_file(world.lodge.home().join("credentials.json")).expect("a file");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.ok("turn/send", given).await["id"], first["id"]);
}

#[tokio::test]
async fn requests_that_an_earlier_release_recorded_are_not_done_twice() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let (_, script) = issue(&mut api, json!({})).await;
    let (_, agents) = issue(&mut api, json!({"agent": agent})).await;
    let own = world.lodge.token();
    // Each with a key of its own: that release took all operators for one caller.
    let given = |key: &str| json!({"agent": agent, "session": "s", "text": "[[reply:x]]", "request_id": key});
    let mut first = Vec::new();
    for (key, token) in [("r1", &own), ("r2", &script), ("r3", &agents)] {
        let mut client = Client::connect(&world.lodge.target(), token).await.expect("a connection");
        first.push(client.call_value("turn/send", given(key)).await.expect("a turn"));
    }
    world.lodge.kill9();
    let database = Connection::open(world.lodge.home().join("daemon.db")).expect("a database");
    for (key, caller) in [("r1", "operator"), ("r2", "operator"), ("r3", agent.as_str())] {
        let changed = database
            .execute("UPDATE requests SET caller = ?1 WHERE request_id = ?2", [caller, key])
            .expect("a change");
        assert_eq!(changed, 1, "{key}");
    }
    drop(database);
    world.lodge.start();
    for ((key, token), first) in [("r1", &own), ("r2", &script), ("r3", &agents)].into_iter().zip(&first) {
        let mut client = Client::connect(&world.lodge.target(), token).await.expect("a connection");
        let again = client.call_value("turn/send", given(key)).await.expect("a turn");
        assert_eq!(again["id"], first["id"], "{key}");
    }
}

#[tokio::test]
async fn twenty_equal_requests_at_once_make_one_agent_and_one_turn() {
    let world = ApiWorld::new();
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
