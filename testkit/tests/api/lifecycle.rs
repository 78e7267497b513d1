//! Agents that fail, wait, come up by themselves, and work no more at a time than they may.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, id};

/// An agent whose provider does not exist yet.
const LATER: &str = "FROM scratch\nNAME later\nMODEL later/m\n";

fn quick() -> ApiWorld {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_BACKOFF_BASE", "50ms");
    world.lodge.set_env("LODGED_BACKOFF_CAP", "200ms");
    world.lodge.start();
    world
}

/// So slow that nothing is tried again while a test looks.
fn patient() -> ApiWorld {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_BACKOFF_BASE", "1h");
    world.lodge.set_env("LODGED_BACKOFF_CAP", "1h");
    world.lodge.start();
    world
}

fn words(log: &[Value], agent: &str) -> Vec<String> {
    let of = log.iter().filter(|event| event["stream"] == agent);
    of.map(|event| event["kind"].as_str().expect("a kind").to_owned()).collect()
}

async fn failed_with(api: &mut CheckedClient, agent: &str, attempt: u64) -> Value {
    let failed = |view: &Value| {
        view["status"] == "failed" && view["attempt"].as_u64().is_some_and(|tries| tries >= attempt)
    };
    api.until("agent/get", json!({"agent": agent}), failed).await
}

/// The lines of an agent's log with these words, once there are this many: they are written after the event.
async fn logged(api: &mut CheckedClient, agent: &str, words: &str, count: usize) -> Vec<String> {
    let lines = |answer: &Value| -> Vec<String> {
        let text = answer["text"].as_str().expect("a text");
        text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
    };
    let answer =
        api.until("agent/logs", json!({"agent": agent}), |answer| lines(answer).len() >= count).await;
    let lines = lines(&answer);
    assert_eq!(lines.len(), count, "one line for each failure");
    lines
}

#[tokio::test]
async fn an_agent_without_its_provider_is_created_tried_again_and_comes_up_by_itself() {
    let world = quick();
    let mut api = world.checked().await;
    let created = api.ok("agent/create", json!({"content": LATER})).await;
    let failed = failed_with(&mut api, "later", 3).await;
    assert_eq!(failed["failure_reason"], "model");
    assert!(failed["failure_detail"].as_str().expect("a detail").contains("no provider `later`"));
    world.put_providers(&world.provider("later", &world.mock.base_url()));
    let ready = api.agent_is("later", "ready").await;
    assert!(ready.get("attempt").is_none() && ready.get("retry_at").is_none(), "{ready}");
    assert_eq!(api.answer(id(&created), "s", "[[reply:here]]").await, "here");
    let log = api.log().await;
    let failures: Vec<&Value> = log.iter().filter(|event| event["kind"] == "agent.failed").collect();
    let tries: Vec<u64> = failures.iter().filter_map(|event| event["data"]["attempt"].as_u64()).collect();
    assert_eq!(tries, (1..=failures.len() as u64).collect::<Vec<_>>());
    assert!(failures.iter().all(|event| event["data"]["retry_at"].is_string()));
    let lines = logged(&mut api, "later", " daemon: failed: model: ", failures.len()).await;
    assert!(
        lines[0].starts_with("20") && lines[0].contains("Z daemon: failed: model: there is no provider"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn adding_the_provider_by_request_ends_the_pause_at_once() {
    let world = patient();
    let mut api = world.checked().await;
    api.ok("agent/create", json!({"content": LATER})).await;
    let failed = failed_with(&mut api, "later", 1).await;
    let at = failed["retry_at"].as_str().expect("a time");
    let error = api.refused("turn/send", json!({"agent": "later", "text": "hi"}), "agent.not_running").await;
    let hint = error["data"]["hint"].as_str().expect("a hint");
    assert_eq!(hint, format!("it is tried again at {at}; `lodge start later` tries now"));
    let given = json!({"name": "later", "kind": "openai", "base_url": world.mock.base_url(), "api_key": crate::world::KEY});
    api.ok("provider/add", given).await;
    api.agent_is("later", "ready").await;
}

#[tokio::test]
async fn a_stop_cancels_the_retry_and_a_start_counts_again() {
    let world = quick();
    let mut api = world.checked().await;
    let agent = id(&api.ok("agent/create", json!({"content": LATER})).await).to_owned();
    failed_with(&mut api, "later", 2).await;
    let stopped = api.ok("agent/stop", json!({"agent": "later"})).await;
    assert!(stopped["status"] == "stopped" && stopped.get("retry_at").is_none(), "{stopped}");
    let seen = api.log().await.len();
    // By the time another agent was retried often enough, nothing more can happen.
    api.ok("agent/create", json!({"content": LATER, "name": "other"})).await;
    failed_with(&mut api, "other", 4).await;
    let log = api.log().await;
    assert_eq!(words(&log[seen..], &agent), Vec::<String>::new());
    api.ok("agent/start", json!({"agent": "later"})).await;
    let log = api.log().await;
    let first =
        log[seen..].iter().find(|event| event["stream"] == *agent && event["kind"] == "agent.pulling");
    assert!(first.expect("a start")["data"].get("attempt").is_none());
    api.ok("agent/remove", json!({"agent": "later", "force": true})).await;
    api.ok("agent/remove", json!({"agent": "other", "force": true})).await;
}

#[tokio::test]
async fn a_new_daemon_does_not_wait_for_the_pause_of_the_last_one() {
    let mut world = patient();
    let mut api = world.checked().await;
    api.ok("agent/create", json!({"content": LATER})).await;
    failed_with(&mut api, "later", 1).await;
    world.lodge.kill9();
    world.put_providers(&world.provider("later", &world.mock.base_url()));
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.agent_is("later", "ready").await;
}

#[tokio::test]
async fn a_model_that_its_provider_does_not_list_is_a_failure_that_names_it() {
    let world = patient();
    world.put_providers(&format!("{}    models: [n]\n", world.provider("mock", &world.mock.base_url())));
    let mut api = world.checked().await;
    api.ok("agent/create", json!({"content": AGENTFILE, "name": "wrong"})).await;
    let failed = api.agent_is("wrong", "failed").await;
    assert_eq!(failed["failure_reason"], "model");
    let detail = failed["failure_detail"].as_str().expect("a detail");
    assert!(detail.contains("provider `mock` does not list the model `m` (it lists: n)"), "{detail}");
}

#[tokio::test]
async fn a_run_without_its_provider_says_what_to_do_and_the_agent_stays() {
    let world = patient();
    let dir = world.lodge.agent_dir("later", LATER, &[]);
    let (code, out, err) = world.cli(&["run", dir.to_str().expect("a path"), "hello"]);
    assert!(code == 1 && out.is_empty(), "{out}{err}");
    assert!(
        err.contains("error: later did not become ready\n  because: its model cannot be used: "),
        "{err}"
    );
    assert!(
        err.contains("hint: add the provider with `lodge provider add`, and the agent starts automatically"),
        "{err}"
    );
    let listed = world.lodge.cli_ok(["ps", "-a"]);
    assert!(listed.contains("failed (model, next try in "), "{listed}");
    let shown = world.lodge.cli_ok(["inspect", "later"]);
    assert!(shown.contains("next try") && shown.contains("(failed once in a row)"), "{shown}");
    until("the line is there", || {
        world.lodge.cli_ok(["logs", "later"]).contains(" daemon: failed: model: ").then_some(())
    });
}

#[tokio::test]
async fn a_runtime_that_says_nothing_is_a_readiness_timeout_and_waits_for_an_operator() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let settings = world.lodge.home().join("lodged.yaml");
    fs::write(&settings, "serve:\n  readiness-timeout: 300ms\n").expect("a file");
    api.ok("daemon/reload", json!({})).await;
    let silent = world.lodge.dir().join("silent");
    fs::write(&silent, "#!/bin/sh\nexec sleep 1000\n").expect("a program");
    fs::set_permissions(&silent, fs::Permissions::from_mode(0o755)).expect("a mode");
    let text = format!("{AGENTFILE}RUNTIME host:{}\n", silent.display());
    api.ok("agent/create", json!({"content": text, "name": "mute"})).await;
    let failed = api.agent_is("mute", "failed").await;
    assert_eq!(failed["failure_reason"], "readiness_timeout");
    assert!(failed.get("retry_at").is_none() && failed.get("attempt").is_none(), "{failed}");
    logged(&mut api, "mute", " daemon: failed: readiness_timeout: ", 1).await;
    until("its sandbox is gone", || world.lodge.keepers().is_empty().then_some(()));
    // The stock runtime answers, and has as much time for that as a busy machine needs.
    fs::write(&settings, "").expect("a file");
    api.ok("daemon/reload", json!({})).await;
    api.ok("agent/update", json!({"agent": "mute", "content": AGENTFILE})).await;
    api.ok("agent/start", json!({"agent": "mute"})).await;
    api.agent_is("mute", "ready").await;
}

#[tokio::test]
async fn only_so_many_agents_work_at_a_time_and_the_others_wait_in_order() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_MAX_CONCURRENT", "1");
    world.lodge.start();
    let mut api = world.checked().await;
    let go = world.lodge.dir().join("go");
    let held = format!("[[hold:{}]][[reply:done]]", go.display());
    let mut turns = Vec::new();
    for name in ["a", "b", "c"] {
        let agent = world.agent(&mut api, name).await;
        let sent = api.ok("turn/send", json!({"agent": agent, "session": name, "text": held})).await;
        turns.push(id(&sent).to_owned());
    }
    api.until("turn/get", json!({"turn": turns[0]}), |turn| turn["status"] == "running").await;
    for turn in &turns[1..] {
        let waits = api.ok("turn/get", json!({"turn": turn})).await;
        assert_eq!((&waits["status"], &waits["waits_for"]), (&json!("queued"), &json!("slot")));
    }
    // An agent that works starts further turns freely.
    assert_eq!(api.answer("a", "a2", "[[reply:free]]").await, "free");
    assert_eq!(api.ok("agent/get", json!({"agent": "b"})).await["status"], "ready");
    assert_eq!(api.ok("info", json!({})).await["agents"]["working"], 1);
    // Also a daemon that starts finds who was first.
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    fs::write(&go, "").expect("a file");
    for turn in &turns {
        assert_eq!(api.ended(turn).await["status"], "done");
    }
    let log = api.log().await;
    let started: Vec<&str> = log
        .iter()
        .filter(|event| event["kind"] == "turn.started")
        .filter_map(|event| event["data"]["turn"].as_str())
        .filter(|turn| turns.iter().any(|known| known == turn))
        .collect();
    assert_eq!(started, turns, "first come, first served");
    let mut working = std::collections::BTreeSet::new();
    for event in &log {
        let agent = event["stream"].as_str().expect("a stream");
        match event["kind"].as_str().expect("a kind") {
            "agent.working" => drop(working.insert(agent)),
            "agent.ready" | "agent.failed" | "agent.stopped" => drop(working.remove(agent)),
            _ => {}
        }
        assert!(working.len() <= 1, "{event}");
    }
}

#[tokio::test]
async fn a_slot_is_free_after_an_interruption_a_stop_a_kill_and_a_removal() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_MAX_CONCURRENT", "1");
    world.lodge.start();
    let mut api = world.checked().await;
    for (name, how) in [
        ("a", "turn/interrupt"),
        ("b", "agent/stop"),
        ("c", "agent/kill"),
        ("d", "agent/remove"),
        ("e", "agent/restart"),
    ] {
        let busy = world.agent(&mut api, name).await;
        let waits = world.agent(&mut api, &format!("{name}-2")).await;
        let first = api.ok("turn/send", json!({"agent": busy, "text": "[[hang]]"})).await;
        let second = api.ok("turn/send", json!({"agent": waits, "text": "[[reply:mine]]"})).await;
        assert_eq!(second["waits_for"], "slot", "{how}");
        let params = match how {
            "turn/interrupt" => json!({"turn": first["id"]}),
            "agent/remove" => json!({"agent": busy, "force": true}),
            _ => json!({"agent": busy}),
        };
        api.ok(how, params).await;
        assert_eq!(api.ended(id(&second)).await["text"], "mine", "after {how}");
    }
}
