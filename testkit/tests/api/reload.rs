//! The settings are read again in place: whole or not at all, by request and by signal.

use std::fs;

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, id, kill};

fn put(world: &ApiWorld, text: &str) {
    let (path, new) = (world.lodge.home().join("lodged.yaml"), world.lodge.home().join("lodged.new"));
    fs::write(&new, text).expect("a file");
    fs::rename(new, path).expect("a file");
}

async fn setting(api: &mut CheckedClient, key: &str) -> Value {
    api.ok("info", json!({})).await["config"][key].clone()
}

fn keys(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|one| one["key"].as_str().expect("a key")).collect()
}

#[tokio::test]
async fn a_reload_says_what_changed_what_needs_a_restart_and_what_does_not_count() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_BACKOFF_BASE", "2s");
    world.lodge.start();
    let mut api = world.checked().await;
    let before = api.ok("info", json!({})).await;
    put(&world, "serve:\n  max-concurrent: 3\n  backoff-base: 5s\n  executor: docker\n  log-level: warn\n");
    let told = api.ok("daemon/reload", json!({"request_id": "r"})).await;
    // The harness sets the log's level by a variable.
    assert_eq!(keys(&told["changed"]), ["max-concurrent"]);
    assert_eq!(told["changed"][0], json!({"key": "max-concurrent", "from": 10, "to": 3}));
    assert_eq!(told["needs_restart"][0], json!({"key": "executor", "from": "system", "to": "docker"}));
    assert_eq!(keys(&told["overridden"]), ["backoff-base", "log-level"]);
    assert_eq!(
        told["overridden"][0],
        json!({"key": "backoff-base", "by": "env", "value": "2s", "file": "5s"})
    );
    assert_eq!(setting(&mut api, "max-concurrent").await, json!({"value": 3, "source": "file"}));
    assert_eq!(setting(&mut api, "executor").await["value"], "system", "what is in effect is shown");
    let after = api.ok("info", json!({})).await;
    for same in ["pid", "socket", "http_addr", "epoch", "started_at"] {
        assert_eq!(after[same], before[same], "{same}");
    }
    let warnings = after["warnings"].to_string();
    assert!(
        warnings.contains("executor is system; the file says docker, from the next start on"),
        "{warnings}"
    );
    let event =
        api.log().await.into_iter().find(|event| event["kind"] == "daemon.reloaded").expect("an event");
    assert_eq!((&event["stream"], &event["data"]["keys"]), (&json!("daemon"), &json!(["max-concurrent"])));
    assert_eq!(api.ok("daemon/reload", json!({"request_id": "r"})).await, told, "a resend is one reload");
    let told = api.ok("daemon/reload", json!({})).await;
    assert_eq!(told["changed"], json!([]));
    assert_eq!(keys(&told["needs_restart"]), ["executor"], "it still waits");
    put(&world, "");
    let told = api.ok("daemon/reload", json!({})).await;
    assert_eq!(told["changed"][0], json!({"key": "max-concurrent", "from": 3, "to": 10}));
    assert_eq!(setting(&mut api, "max-concurrent").await["source"], "default");
}

#[tokio::test]
async fn a_file_with_a_mistake_changes_nothing_and_is_reported_with_file_key_and_reason() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    put(&world, "serve:\n  max-concurrent: 3\n");
    api.ok("daemon/reload", json!({})).await;
    let before = api.ok("info", json!({})).await["config"].clone();
    for (text, message, hint) in [
        ("serve:\n  max-concurrent: 4\n  flavour: x\n", "unknown key `flavour`", "keys below"),
        (
            "serve:\n  max-concurrent: 4\n  backoff-cap: soon\n",
            "`soon` does not fit backoff-cap",
            "a duration",
        ),
        ("serve:\n  max-concurrent: none\n", "`none` does not fit max-concurrent", "a whole number"),
        ("serve:\n  max-concurrent: 4\n  log-level: loud\n", "`loud` does not fit log-level", "error, warn"),
        ("serve: [\n", "not valid YAML", "line"),
    ] {
        put(&world, text);
        let error = api.refused("daemon/reload", json!({}), "config.invalid").await;
        let said = error["message"].as_str().expect("a message").to_owned();
        assert!(said.contains(message) && said.contains("lodged.yaml"), "{said}");
        assert!(error["data"]["hint"].as_str().expect("a hint").contains(hint), "{error}");
        assert_eq!(api.ok("info", json!({})).await["config"], before);
    }
    let reloads = api.log().await.iter().filter(|event| event["kind"] == "daemon.reloaded").count();
    assert_eq!(reloads, 1);
    let (code, out, err) = world.cli(&["reload"]);
    assert!(
        code == 1 && out.is_empty() && err.contains("error: ") && err.contains("lodged.yaml"),
        "{out}{err}"
    );
    let in_effect = before["max-concurrent"]["value"].to_string();
    put(&world, &format!("serve:\n  max-concurrent: {in_effect}\n  log-format: json\n"));
    let (code, out, err) = world.cli(&["reload"]);
    assert!(code == 0 && out.contains("next start") && err.contains("nothing changed yet"), "{out}{err}");
}

#[tokio::test]
async fn a_hangup_reloads_and_a_bad_file_leaves_the_daemon_as_it_was() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let pid = i32::try_from(world.lodge.pid().expect("a daemon")).expect("a pid");
    put(&world, "serve:\n  max-concurrent: 7\n");
    kill(pid, libc::SIGHUP);
    let seven = |info: &Value| info["config"]["max-concurrent"]["value"] == 7;
    api.until("info", json!({}), seven).await;
    put(&world, "serve:\n  max-concurrent: -1\n");
    kill(pid, libc::SIGHUP);
    until("the mistake is told", || world.lodge.log().contains("daemon.not_reloaded").then_some(()));
    assert!(seven(&api.ok("info", json!({})).await));
}

#[tokio::test]
async fn more_slots_let_waiting_turns_start_at_once_and_fewer_let_running_ones_finish() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    put(&world, "serve:\n  max-concurrent: 1\n");
    api.ok("daemon/reload", json!({})).await;
    let go = world.lodge.dir().join("go");
    let held = format!("[[hold:{}]][[reply:done]]", go.display());
    let mut turns = Vec::new();
    for name in ["a", "b", "c"] {
        let agent = world.agent(&mut api, name).await;
        let sent = api.ok("turn/send", json!({"agent": agent, "text": held})).await;
        turns.push(id(&sent).to_owned());
    }
    assert_eq!(api.ok("turn/get", json!({"turn": turns[1]})).await["waits_for"], "slot");
    put(&world, "serve:\n  max-concurrent: 2\n");
    let (code, out, err) = world.cli(&["reload"]);
    assert!(code == 0 && out.contains("max-concurrent   1      2    now"), "{out}{err}");
    api.until("turn/get", json!({"turn": turns[1]}), |turn| turn["status"] == "running").await;
    assert_eq!(api.ok("turn/get", json!({"turn": turns[2]})).await["status"], "queued");
    put(&world, "serve:\n  max-concurrent: 1\n");
    api.ok("daemon/reload", json!({})).await;
    assert_eq!(api.ok("info", json!({})).await["agents"]["working"], 2, "what runs goes on");
    fs::write(&go, "").expect("a file");
    for turn in &turns {
        assert_eq!(api.ended(turn).await["text"], "done");
    }
}

#[tokio::test]
async fn a_variable_that_looks_like_a_setting_and_is_none_is_warned_of() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_MAX_CONCURENT", "3");
    world.lodge.set_env("LODGED_COFFEE", "black");
    world.lodge.start();
    let mut api = world.checked().await;
    let warnings = api.ok("info", json!({})).await["warnings"].to_string();
    assert!(
        warnings.contains("LODGED_MAX_CONCURENT is no setting; did you mean LODGED_MAX_CONCURRENT?"),
        "{warnings}"
    );
    assert!(warnings.contains("LODGED_COFFEE is no setting"), "{warnings}");
    let log = world.lodge.log();
    assert_eq!(log.matches("config.unknown_variable").count(), 2, "{log}");
    assert!(!warnings.contains("LODGED_LOG_LEVEL"), "{warnings}");
}
