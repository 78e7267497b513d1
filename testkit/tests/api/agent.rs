//! The life of an agent, seen by its processes and files.

use std::fs;
use std::path::Path;
use std::time::Instant;

use lodge_testkit::lodge::{PATIENCE, is_alive, until};
use serde_json::{Value, json};

use crate::world::{AGENTFILE, ApiWorld, family, id, sh};

fn pid(view: &Value) -> i32 {
    i32::try_from(view["pid"].as_u64().expect("a pid")).expect("a pid")
}

fn root(view: &Value) -> &Path {
    Path::new(view["root"].as_str().expect("a root"))
}

#[tokio::test]
async fn an_agent_runs_works_stops_starts_and_goes_and_each_change_is_an_event() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let first = family(pid(&view));
    assert!(first.len() >= 2, "a keeper and a runtime: {first:?}");
    assert_eq!((&view["liveness"], &view["incarnation"]), (&json!("active"), &json!(1)));
    let text = format!(
        "{} [[reply:ok]]",
        sh("echo kept > file; echo gone > \"$TMPDIR\"/scratch; echo $HOME > \"$HOME\"/note")
    );
    api.answer(&agent, "s", &text).await;
    let stopped = api.ok("agent/stop", json!({"agent": "one"})).await;
    assert_eq!((&stopped["status"], &stopped["pid"]), (&json!("stopped"), &json!(null)));
    // The answer to a stop means that nothing of the agent runs.
    assert_eq!(first.iter().filter(|pid| is_alive(**pid)).count(), 0, "{first:?}");
    assert!(world.lodge.keepers().is_empty());
    assert!(root(&view).join("tmp/scratch").exists());
    api.ok("agent/start", json!({"agent": "one"})).await;
    let again = api.agent_is("one", "ready").await;
    assert_eq!(
        (&again["incarnation"], &again["id"], &again["lineage"]),
        (&json!(2), &view["id"], &view["lineage"])
    );
    assert_eq!(fs::read_to_string(root(&view).join("workspace/file")).expect("a file"), "kept\n");
    assert!(root(&view).join("home/note").exists());
    assert!(!root(&view).join("tmp/scratch").exists(), "tmp was not wiped");
    assert_eq!(api.answer(&agent, "s", "[[reply:{{turn}}]]").await, "2");
    api.agent_is("one", "ready").await;
    api.ok("agent/stop", json!({"agent": "one"})).await;
    assert_eq!(api.ok("agent/remove", json!({"agent": "one"})).await["status"], "removed");
    assert!(!root(&view).exists());
    api.refused("agent/get", json!({"agent": "one"}), "agent.not_found").await;
    let kinds: Vec<String> = api
        .log()
        .await
        .iter()
        .filter(|event| event["stream"] == json!(agent))
        .map(|event| event["kind"].as_str().expect("a kind").to_owned())
        .filter(|kind| kind.starts_with("agent."))
        .collect();
    let expected = "pulling starting ready working ready stopped pulling starting ready working ready stopped removing removed";
    assert_eq!(kinds.iter().map(|kind| &kind[6..]).collect::<Vec<_>>().join(" "), expected);
}

#[tokio::test]
async fn changes_that_do_not_fit_the_state_are_refused_with_the_next_step() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let error = api.refused("agent/remove", json!({"agent": agent}), "agent.wrong_state").await;
    assert!(error["data"]["hint"].as_str().expect("a hint").contains("lodge rm -f one"), "{error}");
    // Starting what runs is done already.
    assert_eq!(api.ok("agent/start", json!({"agent": agent})).await["status"], "ready");
    api.ok("agent/stop", json!({"agent": agent})).await;
    // Stopping what is stopped is done already.
    assert_eq!(api.ok("agent/stop", json!({"agent": agent})).await["status"], "stopped");
    for method in ["agent/get", "agent/start", "agent/stop", "agent/remove", "agent/logs"] {
        api.refused(method, json!({"agent": "nobody"}), "agent.not_found").await;
    }
    let two = world.agent(&mut api, "two").await;
    assert_eq!(api.ok("agent/remove", json!({"agent": two, "force": true})).await["status"], "removed");
    assert!(world.lodge.keepers().is_empty());
    // The name is free again.
    world.agent(&mut api, "two").await;
}

#[tokio::test]
async fn stopping_in_the_middle_of_a_tool_interrupts_the_turn_and_kills_the_tool() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let text = sh("(trap '' TERM; while :; do sleep 0.05; done) & echo begun > begun; wait");
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let queued = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "next"})).await;
    until("the tool runs", || root(&view).join("workspace/begun").exists().then_some(()));
    api.agent_is(&agent, "working").await;
    let processes = family(pid(&view));
    assert!(processes.len() >= 4, "{processes:?}");
    api.ok("agent/stop", json!({"agent": agent})).await;
    assert_eq!(processes.iter().filter(|pid| is_alive(**pid)).count(), 0);
    let turn = api.ended(id(&sent)).await;
    assert_eq!(
        (&turn["status"], &turn["steps"][1]["status"]),
        (&json!("interrupted"), &json!("interrupted")),
        "{turn:#}"
    );
    assert_eq!(api.ended(id(&queued)).await["status"], "interrupted");
    api.ok("agent/start", json!({"agent": agent})).await;
    api.agent_is(&agent, "ready").await;
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
}

#[tokio::test]
async fn interrupting_a_turn_kills_its_tool_and_leaves_the_agent_ready() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let idle = family(pid(&view)).len();
    let text = sh("echo begun > begun; sleep 600");
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    until("the tool runs", || root(&view).join("workspace/begun").exists().then_some(()));
    assert!(family(pid(&view)).len() > idle);
    api.ok("turn/interrupt", json!({"turn": id(&sent)})).await;
    api.agent_is(&agent, "ready").await;
    until("the tool is gone", || (family(pid(&view)).len() == idle).then_some(()));
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
    assert_eq!(
        pid(&api.ok("agent/get", json!({"agent": agent})).await),
        pid(&view),
        "the sandbox was replaced"
    );
}

#[tokio::test]
async fn a_runtime_that_exits_and_one_that_is_not_ready_in_time_are_distinguished() {
    let mut world = ApiWorld::asleep();
    world.lodge.start();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}EXEC [\"no-such-command\"]\n");
    api.ok("agent/create", json!({"content": content, "name": "exits"})).await;
    let view = api.agent_is("exits", "failed").await;
    assert_eq!(view["failure_reason"], "crashed", "{view:#}");
    assert!(view["failure_detail"].as_str().expect("a detail").contains("exited with code"), "{view:#}");
    assert!(
        !api.ok("agent/logs", json!({"agent": "exits"})).await["text"].as_str().expect("a log").is_empty()
    );
    api.ok("agent/remove", json!({"agent": "exits"})).await;
    // Without any time a runtime is late, unless its answer and the end of the time are seen together.
    world.lodge.kill9();
    world.lodge.set_env("LODGED_READINESS_TIMEOUT", "0ms");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let end = Instant::now() + PATIENCE;
    let view = loop {
        api.ok("agent/create", json!({"content": AGENTFILE, "name": "late"})).await;
        let settled = |view: &Value| view["status"] != "starting";
        let view = api.until("agent/get", json!({"agent": "late"}), settled).await;
        if view["status"] == "failed" {
            break view;
        }
        assert!(Instant::now() < end, "it was never late");
        api.ok("agent/remove", json!({"agent": "late", "force": true})).await;
    };
    assert_eq!(view["failure_reason"], "readiness_timeout", "{view:#}");
    assert!(view["failure_detail"].as_str().expect("a detail").contains("in time"), "{view:#}");
    until("nothing is left of it", || world.lodge.keepers().is_empty().then_some(()));
    let send = json!({"agent": "late", "text": "hi"});
    api.refused("turn/send", send, "agent.not_running").await;
}

#[tokio::test]
async fn mounts_are_shown_seen_and_there_again_after_a_restart() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let shared = world.lodge.dir().join("shared");
    fs::create_dir(&shared).expect("a directory");
    fs::write(shared.join("word"), "hello").expect("a file");
    let mounts = json!([{"host": shared, "target": "/data/in", "read_only": true}]);
    let created =
        api.ok("agent/create", json!({"content": AGENTFILE, "name": "one", "mounts": mounts})).await;
    let agent = id(&created).to_owned();
    for round in 0..2 {
        let view = api.agent_is(&agent, "ready").await;
        assert_eq!(view["mounts"][0], json!({"host": shared, "target": "/data/in", "read_only": true}));
        let script = "cat \"$LODGE_AGENT_ROOT\"/data/in/word; echo x > \"$LODGE_AGENT_ROOT\"/data/in/new || echo read-only";
        let text = format!("{} [[reply:{{{{tool}}}}]]", sh(script));
        let answer = api.answer(&agent, "s", &text).await;
        assert!(answer.contains("hello") && answer.contains("read-only"), "round {round}: {answer}");
        assert!(!shared.join("new").exists());
        api.ok("agent/stop", json!({"agent": agent})).await;
        api.ok("agent/start", json!({"agent": agent})).await;
    }
    api.ok("agent/remove", json!({"agent": agent, "force": true})).await;
    assert_eq!(
        fs::read_to_string(shared.join("word")).expect("a file"),
        "hello",
        "removing took the host's files"
    );
}
