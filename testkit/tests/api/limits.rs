//! Agents that use too much: the reached limit is reported by name, and other agents are not affected.

use std::fs;
use std::path::{Path, PathBuf};

use lodge_testkit::lodge::PATIENCE;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, sh};

/// An agent with the usual tools and these lines.
async fn agent_with(api: &mut CheckedClient, name: &str, lines: &str) -> Value {
    let content = format!("{AGENTFILE}{lines}");
    api.ok("agent/create", json!({"content": content, "name": name})).await;
    api.agent_is(name, "ready").await
}

/// Runs a script and returns its step and the tool result for the model.
async fn run(api: &mut CheckedClient, agent: &str, session: &str, script: &str) -> (Value, String) {
    let script = format!("PATH=/usr/bin:/bin; {script}");
    let turn = api.say(agent, session, &format!("{} [[reply:{{{{tool}}}}]]", sh(&script))).await;
    assert_eq!(turn["status"], "done", "{turn}");
    let steps = turn["steps"].as_array().expect("steps");
    let step = steps.iter().find(|step| step["kind"] == "tool").expect("a tool call").clone();
    (step, turn["text"].as_str().expect("a text").to_owned())
}

fn limit<'v>(view: &'v Value, name: &str) -> &'v Value {
    let limits = view["limits"].as_array().expect("limits");
    limits.iter().find(|limit| limit["name"] == name).unwrap_or_else(|| panic!("no {name}: {view}"))
}

#[tokio::test]
async fn every_bomb_is_reported_by_name_and_neither_its_agent_nor_another_notices() {
    let bombs = [
        (
            "oom",
            "LIMIT memory 96m",
            "for i in 1 2 3 4; do tail /dev/zero & done; wait",
            "out of memory (limit 96 MiB)",
        ),
        (
            "cpu_time",
            "LIMIT cpu-time 500ms",
            "spin() { while :; do :; done; }; spin & spin & wait",
            "limit 500 ms",
        ),
        ("pids", "LIMIT pids 40", "while :; do sleep 60 & done", "too many processes (limit 40)"),
        ("disk", "LIMIT disk 24m", "head -c 40m /dev/zero >large; sleep 60", "limit 24 MiB"),
        ("output", "LIMIT output 200k", "while :; do echo flood; done", "too much output (limit 200 KiB)"),
        ("timeout", "CONFIG tool-timeout=400ms", "sleep 60", "out of time (limit 400 ms)"),
    ];
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "other").await;
    for (cause, lines, script, words) in bombs {
        let before = agent_with(&mut api, cause, &format!("{lines}\n")).await;
        let (step, text) = run(&mut api, cause, cause, script).await;
        assert_eq!(step["cause"], cause, "{step} {text}");
        assert!(text.contains(words), "{cause}: {text}");
        let events = api.log().await;
        let told = |event: &&Value| event["kind"] == "turn.tool_result" && event["data"]["cause"] == cause;
        assert!(events.iter().any(|event| told(&event)), "{cause}: {events:?}");
        let view = api.ok("agent/get", json!({"agent": cause})).await;
        assert_eq!((&view["status"], &view["pid"]), (&json!("ready"), &before["pid"]), "{cause}");
        let (after, text) = run(&mut api, cause, &format!("after-{cause}"), "echo fine").await;
        assert!(after["cause"].is_null() && text.contains("fine"), "{cause}: {text}");
        let (after, text) = run(&mut api, "other", &format!("other-{cause}"), "echo fine").await;
        assert!(after["cause"].is_null() && text.contains("fine"), "{cause}: {text}");
    }
}

#[tokio::test]
async fn an_agent_on_a_full_disk_gets_the_reason_and_frees_space_by_itself() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    agent_with(&mut api, "full", "LIMIT disk 8m\n").await;
    let (step, _) = run(&mut api, "full", "s", "head -c 40m /dev/zero >large; sleep 60").await;
    assert_eq!(step["cause"], "disk");
    let (step, text) = run(&mut api, "full", "s", "echo more >more; cat more; rm large; echo removed").await;
    assert!(step["cause"].is_null() && text.contains("removed\n"), "{text}");
    assert!(text.contains("no room is left for the agent's files") && !text.contains("more\n\n"), "{text}");
    let (step, text) = run(&mut api, "full", "s", "echo fine >fine; cat fine").await;
    assert!(step["cause"].is_null() && text == "fine\n", "{text}");
}

#[tokio::test]
async fn a_runtime_without_memory_has_failed_and_waits_for_an_operator() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = "FROM scratch\nMODEL mock/m\nLIMIT memory 64m\nRUNTIME host:sh\n\
        EXEC [\"-c\", \"exec /usr/bin/tail /dev/zero\"]\n";
    api.ok("agent/create", json!({"content": content, "name": "greedy"})).await;
    let failed = |view: &Value| view["status"] == "failed";
    let view = api.until("agent/get", json!({"agent": "greedy"}), failed).await;
    assert_eq!(view["failure_reason"], "oom", "{view}");
    let detail = view["failure_detail"].as_str().expect("a detail");
    assert!(detail.contains("out of memory (limit 64 MiB)"), "{detail}");
    assert!(view["retry_at"].is_null(), "{view}");
    let lineage = api.ok("lineage/get", json!({"lineage": view["lineage"]})).await;
    assert_eq!(lineage["revivals"], 0, "{lineage}");
}

#[tokio::test]
async fn each_limit_is_shown_with_what_enforces_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let plain = agent_with(&mut api, "plain", "").await;
    assert_eq!(limit(&plain, "pids")["limit"], 1024);
    for name in ["memory", "pids", "disk", "output"] {
        let limit = limit(&plain, name);
        assert_eq!(limit["source"], "default", "{limit}");
        assert!(limit["limit"].as_u64().is_some_and(|limit| limit > 0), "{limit}");
        assert!(limit["by"].as_str().is_some_and(|by| !by.is_empty()), "{limit}");
    }
    assert!(plain["limits"].as_array().expect("limits").iter().all(|limit| limit["name"] != "cpu_time"));
    let lines = "LIMIT memory 256m\nLIMIT pids 77\nLIMIT cpu-time 3s\nLIMIT disk 1g\nLIMIT output 1m\n";
    let view = agent_with(&mut api, "told", lines).await;
    let expected: [(&str, u64); 5] =
        [("memory", 256 << 20), ("pids", 77), ("cpu_time", 3_000), ("disk", 1 << 30), ("output", 1 << 20)];
    for (name, value) in expected {
        let limit = limit(&view, name);
        assert_eq!((&limit["limit"], &limit["source"]), (&json!(value), &json!("agent")), "{limit}");
    }
    let (code, shown, _) = world.cli(&["inspect", "told"]);
    assert_eq!(code, 0);
    for words in
        ["memory 256 MiB, by ", "pids 77, by ", "cpu_time 3 s for each tool call, by ", "output 1 MiB"]
    {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let (_, info, _) = world.cli(&["info"]);
    assert!(
        ["limit_memory", "limit_pids", "limit_cpu_time"].iter().all(|name| info.contains(name)),
        "{info}"
    );
    api.ok("agent/stop", json!({"agent": "told"})).await;
    let stopped = api.agent_is("told", "stopped").await;
    assert_eq!(limit(&stopped, "memory")["limit"], 256 << 20);
    assert!(limit(&stopped, "memory")["by"].is_null());
}

fn kept(root: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(Path::new(root).join("var/log/tools")).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// More than the model gets: a line for each number.
const LONG: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo line $i; done";

fn long() -> String {
    (1..=20_000).map(|number| format!("line {number}\n")).collect()
}

/// A path of the host below an agent's root, as its programs see it.
fn inside(root: &str, path: &Path) -> String {
    format!("/{}", path.strip_prefix(root).expect("a path in the root").display())
}

#[tokio::test]
async fn long_output_is_kept_whole_where_the_agent_can_read_it() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let view = agent_with(&mut api, "one", "").await;
    let root = view["root"].as_str().expect("a root");
    run(&mut api, "one", "s", "echo short").await;
    assert_eq!(kept(root), Vec::<PathBuf>::new());
    let (_, text) = run(&mut api, "one", "s", LONG).await;
    let files = kept(root);
    assert_eq!(files.len(), 1, "{files:?}");
    assert_eq!(fs::read_to_string(&files[0]).expect("a file"), long());
    let inside = inside(root, &files[0]);
    assert!(text.contains(&format!("all of it is in {inside}")), "{}", &text[text.len() - 200..]);
    let script = format!("grep -c line {inside}; rm {inside}");
    let (_, text) = run(&mut api, "one", "s", &script).await;
    assert!(text.contains("20000"), "{text}");
    // A link in its way is no way out.
    let outside = world.lodge.home().join("outside");
    fs::create_dir(&outside).expect("a directory");
    let script = format!("cd \"$LODGE_AGENT_ROOT\"/var; rm -rf log; ln -s {} log", outside.display());
    run(&mut api, "one", "s", &script).await;
    run(&mut api, "one", "s", LONG).await;
    assert_eq!(kept(root).len(), 1);
    assert_eq!(fs::read_dir(&outside).expect("a directory").count(), 0);
}

#[tokio::test]
async fn output_is_neither_lost_nor_doubled_by_a_crash_while_it_is_kept() {
    for point in ["after_outcome", "before_keeping", "after_keeping"] {
        let mut world = ApiWorld::asleep();
        world.lodge.set_env("LODGED_CRASH_AT", point);
        world.lodge.start();
        let mut api = world.checked().await;
        let view = agent_with(&mut api, "one", "").await;
        let root = view["root"].as_str().expect("a root").to_owned();
        let text = format!("{} [[reply:{{{{tool}}}}]]", sh(LONG));
        let sent = api.ok("turn/send", json!({"agent": "one", "session": "s", "text": text})).await;
        assert_eq!(world.lodge.wait_killed(PATIENCE), Some(true), "{point}");
        world.lodge.unset_env("LODGED_CRASH_AT");
        world.lodge.start();
        let mut api = world.checked().await;
        let turn = api.ended(sent["id"].as_str().expect("an id")).await;
        assert_eq!(turn["status"], "done", "{point}: {turn}");
        let files = kept(&root);
        assert_eq!(files.len(), 1, "{point}: {files:?}");
        assert_eq!(fs::read_to_string(&files[0]).expect("a file"), long(), "{point}");
        let inside = inside(&root, &files[0]);
        assert!(turn["text"].as_str().is_some_and(|text| text.contains(&inside)), "{point}: {turn}");
    }
}
