//! A provider that does not answer for a while: turns wait for it, also across kills, and give up when their time is over.

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, KEY, id};

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
async fn listings_of_agents_say_what_their_turns_wait_for_and_when_it_is_tried_again() {
    let (world, mut api) = down("").await;
    let agent = world.agent(&mut api, "one").await;
    let turn = send(&mut api, &agent, "s", "hi").await;
    let is_parked = |agent: &Value| agent["waiting"][0]["turns"] == 1;
    let detail = api.until("agent/get", json!({"agent": agent}), is_parked).await;
    let wait = &detail["waiting"][0];
    assert_eq!((&wait["reason"], &wait["provider"]), (&json!("provider"), &json!("mock")), "{detail:#}");
    assert_eq!(wait["code"], "model.unreachable", "{detail:#}");
    assert!(wait["since"].as_str() < wait["next_at"].as_str(), "{detail:#}");
    assert!(wait["next_at"].as_str() <= wait["until"].as_str(), "{detail:#}");
    let is_listed = |list: &Value| is_parked(&list["agents"][0]);
    api.until("agent/list", json!({}), is_listed).await;
    let shows = |args: &'static [&str], words: &'static str| {
        until("the wait is shown", || world.cli(args).1.contains(words).then_some(()));
    };
    shows(&["ps"], "ready (a turn waits for provider mock, next try in ");
    shows(&["inspect", "one"], "a turn waits for provider mock, next try in ");
    api.ok("turn/interrupt", json!({"turn": turn})).await;
    let after = api.until("agent/get", json!({"agent": agent}), |agent| !is_parked(agent)).await;
    assert_eq!(after.get("waiting"), None, "{after:#}");
}

#[tokio::test]
async fn retry_for_is_given_with_the_provider_and_listed() {
    let (world, mut api) = down("").await;
    let base_url = nowhere();
    let add = |name: &'static str, time: &'static str| {
        let mut args = vec!["provider", "add", name, "--kind", "openai", "--base-url", &base_url];
        args.extend(["--api-key", KEY, "--retry-for", time]);
        world.cli(&args)
    };
    let (code, _, err) = add("bad", "10");
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("`10` is no value of `retry-for`") && err.contains("such as 30s, 10m"), "{err}");
    assert_eq!(add("quick", "0").0, 0);
    assert_eq!(add("patient", "90m").0, 0);
    let (_, listed, _) = world.cli(&["provider", "ls"]);
    let times = |name: &str| {
        let line = listed.lines().find(|line| line.starts_with(name)).expect("a line");
        line.split_whitespace().nth(5).map(str::to_owned)
    };
    assert!(listed.contains("RETRY FOR"), "{listed}");
    let shown = ["quick", "patient", "fine"].map(times).map(Option::unwrap);
    assert_eq!(shown, ["0", "90m", "-"], "{listed}");
    let create = json!({"content": "FROM scratch\nMODEL quick/m\n", "name": "one"});
    let created = api.ok("agent/create", create).await;
    api.agent_is(id(&created), "ready").await;
    let turn = api.say(id(&created), "s", "hi").await;
    assert_eq!((&turn["status"], &turn["error"]["code"]), (&json!("failed"), &json!("model.unreachable")));
    assert_eq!(turn["steps"][0]["attempt"], 1, "it fails at once");
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
