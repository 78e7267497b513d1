//! A provider that does not answer for a while: turns wait for it, also across kills, and give up when their time is over.

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, id};

/// An address where nobody listens.
fn nowhere() -> String {
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    format!("http://{port}/v1")
}

/// A world in which one agent may work at a time, whose provider `mock` is down and whose provider `fine` is not.
async fn down(settings: &str) -> (ApiWorld, CheckedClient) {
    let mut world = ApiWorld::asleep();
    world.put_providers(&providers(&world, &nowhere(), settings));
    world.lodge.set_env("LODGED_MAX_CONCURRENT", "1");
    world.lodge.start();
    let api = world.checked().await;
    (world, api)
}

fn providers(world: &ApiWorld, base_url: &str, settings: &str) -> String {
    let (mock, fine) = (world.provider("mock", base_url), world.provider("fine", &world.mock.base_url()));
    format!("{mock}{settings}{fine}")
}

async fn send(api: &mut CheckedClient, agent: &str, session: &str, text: &str) -> String {
    let sent = api.ok("turn/send", json!({"agent": agent, "session": session, "text": text})).await;
    id(&sent).to_owned()
}

async fn parked(api: &mut CheckedClient, turn: &str) -> Value {
    api.until("turn/get", json!({"turn": turn}), |turn| turn["waits_for"] == "provider").await
}

#[tokio::test]
async fn a_turn_outlives_an_outage_and_a_kill_and_leaves_its_slot_to_another_agent_meanwhile() {
    let (mut world, mut api) = down("").await;
    let agent = world.agent(&mut api, "one").await;
    let created =
        api.ok("agent/create", json!({"content": "FROM scratch\nMODEL fine/m\n", "name": "two"})).await;
    let other = id(&created).to_owned();
    api.agent_is(&other, "ready").await;
    let turn = send(&mut api, &agent, "s", "[[reply:at last]]").await;
    let before = parked(&mut api, &turn).await;
    let (status, wait) = (&before["status"], &before["waiting"]);
    assert_eq!(
        (status, &wait["reason"], &wait["provider"]),
        (&json!("waiting"), &json!("provider"), &json!("mock"))
    );
    assert_eq!(wait["code"], "model.unreachable", "{before:#}");
    assert!(wait["next_at"].as_str() <= wait["until"].as_str(), "{before:#}");
    assert_eq!(api.answer(&other, "t", "[[reply:meanwhile]]").await, "meanwhile", "it has the slot");
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let after = parked(&mut api, &turn).await;
    assert_eq!((&after["waiting"]["since"], &after["waiting"]["until"]), (&wait["since"], &wait["until"]));
    world.put_providers(&providers(&world, &world.mock.base_url(), ""));
    let done = api.ended(&turn).await;
    assert_eq!((&done["status"], &done["text"]), (&json!("done"), &json!("at last")), "{done:#}");
    assert_eq!(done.get("waiting"), None);
    let log = api.log().await;
    let waits: Vec<&Value> = log.iter().filter(|event| event["kind"] == "turn.waiting").collect();
    assert!(!waits.is_empty() && waits.iter().all(|event| event["data"]["turn"] == turn), "{waits:#?}");
    assert_eq!(waits[0]["data"]["until"], wait["until"]);
}

#[tokio::test]
async fn a_parked_turn_can_be_interrupted_and_a_provider_that_is_removed_ends_it() {
    let (world, mut api) = down("").await;
    let agent = world.agent(&mut api, "one").await;
    let (first, second) = (send(&mut api, &agent, "s", "hi").await, send(&mut api, &agent, "t", "hi").await);
    parked(&mut api, &first).await;
    parked(&mut api, &second).await;
    api.ok("turn/interrupt", json!({"turn": first})).await;
    assert_eq!(api.ended(&first).await["status"], "interrupted");
    let (code, _, err) = world.cli(&["provider", "rm", "mock"]);
    assert_eq!(code, 0, "{err}");
    let ended = api.ended(&second).await;
    assert_eq!((&ended["status"], &ended["error"]["code"]), (&json!("failed"), &json!("provider.not_found")));
}

#[tokio::test]
async fn without_time_for_retries_one_failure_ends_the_turn() {
    let (world, mut api) = down("    retry-for: 0\n").await;
    let agent = world.agent(&mut api, "one").await;
    let turn = api.say(&agent, "s", "hi").await;
    assert_eq!((&turn["status"], &turn["error"]["code"]), (&json!("failed"), &json!("model.unreachable")));
    assert_eq!(turn["steps"][0]["attempt"], 1);
}

#[tokio::test]
async fn a_rejected_key_ends_the_turn_at_once() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let turn = api.say(&agent, "s", "[[status:401]]").await;
    assert_eq!((&turn["status"], &turn["error"]["code"]), (&json!("failed"), &json!("model.refused_auth")));
    assert_eq!((&turn["steps"][0]["attempt"], turn.get("waiting")), (&json!(1), None));
    assert!(turn["error"]["hint"].as_str().expect("a hint").contains("api-key"), "{turn:#}");
}

#[tokio::test]
async fn the_command_line_says_once_what_a_prompt_waits_for_and_prints_the_answer() {
    let (world, mut api) = down("").await;
    let agent = world.agent(&mut api, "one").await;
    let mut command = world.lodge.cli_command(["prompt", "one", "-s", "s", "[[reply:at last]]"]);
    let prompt = std::thread::spawn(move || command.output().expect("the command runs"));
    let waits = api
        .until("event/list", json!({"agent": agent, "kind": "turn.waiting"}), |page| {
            page["events"].as_array().is_some_and(|events| !events.is_empty())
        })
        .await;
    assert_eq!(waits["events"][0]["data"]["session"], "s");
    world.put_providers(&providers(&world, &world.mock.base_url(), ""));
    let output = prompt.join().expect("the command ends");
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "at last\n", "{err}");
    let lines: Vec<&str> =
        err.lines().filter(|line| line.starts_with("waiting for provider `mock`: ")).collect();
    assert_eq!(lines.len(), 1, "{err}");
    assert!(lines[0].contains("; next try in ") && lines[0].contains(" (gives up at "), "{err}");
    // Who joins afterwards does not see a wait that is over.
    let turn = waits["events"][0]["data"]["turn"].as_str().expect("a turn");
    let (code, out, err) = world.cli(&["turn", "attach", turn]);
    assert_eq!((code, out.as_str()), (0, "at last\n"), "{err}");
    assert!(!err.contains("waiting for"), "{err}");
}
