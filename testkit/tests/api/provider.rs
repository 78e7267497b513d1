//! Providers that fail in every way they can, and the turns that depend on them.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lodge_testkit::lodge::until;
use lodge_testkit::mock::RequestOutcome;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, id};

/// So that failures that stay end their turns soon.
const IMPATIENT: &str = "    retry-for: 600ms\n";

/// The kinds of a turn's events, and the last of them.
async fn told(api: &mut CheckedClient, turn: &Value) -> (Vec<String>, Value) {
    let log = api.log().await;
    let of_turn: Vec<&Value> = log.iter().filter(|event| event["data"]["turn"] == turn["id"]).collect();
    let kinds = of_turn.iter().map(|event| event["kind"].as_str().expect("a kind").to_owned()).collect();
    (kinds, of_turn[of_turn.len() - 1].clone())
}

#[tokio::test]
async fn a_failure_that_passes_is_tried_again_and_every_attempt_is_visible() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for (place, fault) in
        ["[[status-once:429]]", "[[status-once:500]]", "[[cut:2]]", "[[garbage-once]]", "[[error-once]]"]
            .iter()
            .enumerate()
    {
        let turn = api.say(&agent, &format!("s{place}"), &format!("{fault}[[reply:a whole answer]]")).await;
        assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("a whole answer")), "{fault}");
        assert_eq!(turn["steps"][0]["attempt"], 2, "{fault}: {turn:#}");
        assert_eq!(turn["partial"], false);
        let (kinds, last) = told(&mut api, &turn).await;
        assert_eq!(kinds.iter().filter(|kind| *kind == "turn.step_restarted").count(), 1, "{kinds:?}");
        assert_eq!(last["kind"], "turn.finished");
        assert_eq!(world.mock.requests_for(fault).expect("a log").len(), 2, "{fault}");
    }
    // One session's messages hold the whole answer, once.
    let messages = api.ok("session/messages", json!({"session": "s2"})).await;
    assert_eq!(messages["messages"].as_array().expect("messages").len(), 2, "{messages:#}");
}

#[tokio::test]
async fn a_failure_that_stays_ends_the_turn_and_the_message_can_be_sent_again() {
    let world = ApiWorld::new();
    world.put_providers(&format!("{}{IMPATIENT}", world.provider("mock", &world.mock.base_url())));
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let faults = [
        ("[[status:500]]", "model.status", 2),
        ("[[status:429]][[retry-after:0]]", "model.rate_limited", 2),
        ("[[cut-always:2]]", "model.cut", 2),
        ("[[garbage]]", "model.garbage", 2),
        ("[[error]]", "model.error_in_stream", 2),
        ("[[status:401]]", "model.refused_auth", 1),
        ("[[status:400]]", "model.status", 1),
    ];
    // One after the other: turns that fail at the same time share their attempts.
    for (at, (fault, code, attempts)) in faults.iter().enumerate() {
        let turn = api.say(&agent, &format!("s{at}"), &format!("{fault} please")).await;
        assert_eq!((&turn["status"], &turn["error"]["code"]), (&json!("failed"), &json!(code)), "{turn:#}");
        assert_eq!(turn["steps"][0]["status"], "failed");
        let attempt = turn["steps"][0]["attempt"].as_u64().expect("a number");
        // Several until the time for retries is over, or one.
        assert!(attempt >= *attempts && (*attempts > 1 || attempt == 1), "{fault}: {turn:#}");
        // The provider's own note of an answer comes behind it.
        let asked = until("the provider has answered", || {
            let asked = world.mock.requests_for(fault).expect("a log");
            asked.iter().all(|line| line.outcome.is_some()).then_some(asked)
        });
        assert_eq!(asked.len() as u64, attempt, "{fault}");
        assert!(asked.iter().all(|line| line.outcome == Some(RequestOutcome::Failed)));
        let (_, last) = told(&mut api, &turn).await;
        assert_eq!((&last["kind"], &last["data"]["code"]), (&json!("turn.failed"), &json!(code)));
        assert_eq!(last["data"]["message"], turn["error"]["message"]);
        assert!(turn["error"]["message"].as_str().expect("a message").contains("`mock`"), "{turn:#}");
    }
    api.agent_is(&agent, "ready").await;
    for n in 0..faults.len() {
        let text = api.answer(&agent, &format!("s{n}"), "once more [[reply:here you are]]").await;
        assert_eq!(text, "here you are");
    }
}

#[tokio::test]
async fn the_command_line_tells_a_failed_turn_with_its_cause_and_exits_with_one() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let (code, out, err) = world.cli(&["prompt", "one", "[[status:401]]"]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(
        err.starts_with("error: the turn failed\n  because: ") && err.contains("model.refused_auth"),
        "{err}"
    );
    assert!(err.contains("\nhint: check `api-key` of `mock`"), "{err}");
    let (code, out, _) = world.cli(&["--json", "prompt", "one", "[[status:401]]"]);
    let turn: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(
        (code, &turn["status"], &turn["error"]["code"]),
        (1, &json!("failed"), &json!("model.refused_auth"))
    );
}

#[tokio::test]
async fn a_provider_that_is_down_fails_the_turn_and_one_that_came_back_answers() {
    let mut world = ApiWorld::asleep();
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    world.put_providers(&format!("{}{IMPATIENT}", world.provider("mock", &format!("http://{port}/v1"))));
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let turn = api.say(&agent, "s", "hello [[reply:hi]]").await;
    assert_eq!((&turn["status"], &turn["error"]["code"]), (&json!("failed"), &json!("model.unreachable")));
    assert!(turn["error"]["hint"].as_str().expect("a hint").contains("lodge provider test mock"), "{turn:#}");
    assert!(turn["steps"][0]["attempt"].as_u64() >= Some(2), "{turn:#}");
    world.put_providers(&world.provider("mock", &world.mock.base_url()));
    assert_eq!(api.answer(&agent, "s", "hello [[reply:hi]]").await, "hi");
}

#[tokio::test]
async fn a_silent_provider_holds_up_only_its_own_turn_which_can_be_interrupted() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for (session, text) in [("a", "[[hang]]"), ("b", "[[hang-after:3]]")] {
        let sent = api.ok("turn/send", json!({"agent": agent, "session": session, "text": text})).await;
        until("the provider is asked", || {
            (!world.mock.requests_for(text).expect("a log").is_empty()).then_some(())
        });
        assert_eq!(api.answer(&agent, &format!("{session}2"), "[[reply:fine]]").await, "fine");
        api.ok("turn/interrupt", json!({"turn": id(&sent)})).await;
        let turn = api.ended(id(&sent)).await;
        assert_eq!((&turn["status"], &turn["partial"]), (&json!("interrupted"), &json!(true)), "{turn:#}");
        api.refused("turn/interrupt", json!({"turn": id(&sent)}), "turn.over").await;
        // The call to the provider was given up, not merely forgotten.
        until("the call is cut", || {
            let asked = world.mock.requests_for(text).expect("a log");
            (asked[0].outcome == Some(RequestOutcome::Gone)).then_some(())
        });
        assert_eq!(api.answer(&agent, session, "[[reply:on we go]]").await, "on we go");
    }
}

#[tokio::test]
async fn a_provider_removed_while_in_use_fails_the_next_call_with_a_name() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.ok("provider/remove", json!({"name": "mock"})).await;
    let turn = api.say(&agent, "s", "hi").await;
    assert_eq!(
        (&turn["status"], &turn["error"]["code"]),
        (&json!("failed"), &json!("provider.not_found")),
        "{turn:#}"
    );
    api.agent_is(&agent, "ready").await;
    let add = json!({"name": "mock", "kind": "openai", "base_url": world.mock.base_url(), "api_key": crate::world::KEY});
    api.ok("provider/add", add).await;
    assert_eq!(api.answer(&agent, "s", "[[reply:back]]").await, "back");
}

#[tokio::test]
async fn providers_are_read_again_when_the_file_changes_and_a_bad_file_changes_nothing() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    world.put_providers(
        &world.provider("mock", &world.mock.base_url()).replace(crate::world::KEY, "wrong-key"),
    );
    assert_eq!(api.say(&agent, "s", "hi").await["error"]["code"], "model.refused_auth");
    world.put_providers(&world.provider("mock", &world.mock.base_url()));
    assert_eq!(api.answer(&agent, "s", "[[reply:hi]]").await, "hi");
    let file = world.lodge.home().join("providers.yaml");
    let good = fs::read(&file).expect("a file");
    for (text, mode) in [
        ("providers: [", 0o600),
        ("providers:\n  - name: x\n    knd: openai\n", 0o600),
        ("providers: []\n", 0o644),
    ] {
        fs::write(&file, text).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("a mode");
        let list = api.until("provider/list", json!({}), |list| !list["error"].is_null()).await;
        assert!(list.to_string().contains("\"mock\""), "the last good copy is kept: {list}");
        assert_eq!(api.answer(&agent, "s", "[[reply:still]]").await, "still", "{text}");
        let warnings = api.ok("info", json!({})).await["warnings"].to_string();
        assert!(warnings.contains("providers.yaml"), "{warnings}");
        fs::write(&file, &good).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("a mode");
        api.until("provider/list", json!({}), |list| list["error"].is_null()).await;
    }
}

#[tokio::test]
async fn a_file_that_breaks_before_anybody_asked_for_a_provider_changes_nothing_either() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let file = world.lodge.home().join("providers.yaml");
    fs::write(&file, "providers:\n  - name: x\n    kind: opnai\n").expect("a file");
    let list = api.until("provider/list", json!({}), |list| !list["error"].is_null()).await;
    assert!(list.to_string().contains("\"mock\""), "it was read at the start: {list}");
    let told = list["error"].to_string();
    assert!(told.contains("providers.yaml:3:") && told.contains("`kind: opnai` is unknown"), "{told}");
}

#[tokio::test]
async fn a_provider_is_tested_by_asking_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let tested = api.ok("provider/test", json!({"name": "mock"})).await;
    assert_eq!((&tested["ok"], &tested["models"]), (&json!(true), &json!(["mock"])));
    api.refused("provider/test", json!({"name": "nobody"}), "provider.not_found").await;
    api.refused("provider/remove", json!({"name": "nobody"}), "provider.not_found").await;
    let add = |name: &str, kind: &str, url: &str| json!({"name": name, "kind": kind, "base_url": url, "api_key": "k"});
    api.refused("provider/add", add("mock", "openai", "http://x/v1"), "provider.exists").await;
    api.refused("provider/add", add("a b", "openai", "http://x/v1"), "provider.bad_name").await;
    api.refused("provider/add", add("x", "openai", "nonsense"), "provider.bad_url").await;
    api.refused("provider/add", add("x", "oracle", "http://x/v1"), "provider.invalid").await;
    api.ok("provider/add", add("bad", "openai", &world.mock.base_url())).await;
    api.refused("provider/test", json!({"name": "bad"}), "model.refused_auth").await;
}
