//! Work outlives its process: revival by policy, hang detection, and kills that stay.

use std::fs;

use lodge_testkit::lodge::{is_alive, until};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, family, id, kill, sh};

fn pid(view: &Value) -> i32 {
    i32::try_from(view["pid"].as_u64().expect("a pid")).expect("a pid")
}

fn is_runtime(pid: &i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("opt/lodge/runtime"))
}

fn runtime_of(view: &Value) -> i32 {
    family(pid(view)).into_iter().find(is_runtime).expect("a runtime")
}

async fn kinds(api: &mut CheckedClient) -> Vec<String> {
    let log = api.log().await;
    log.iter().map(|event| event["kind"].as_str().expect("a kind").to_owned()).collect()
}

/// A tool that waits for a file, and the turn that runs it.
async fn at_work(world: &ApiWorld, api: &mut CheckedClient, agent: &str) -> (Value, std::path::PathBuf) {
    let script = "echo begun >> begun; until test -e go; do sleep 0.02; done; echo finished";
    let text = format!("{} [[reply:{{{{tool}}}}]]", sh(script));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let workspace = world.lodge.home().join("agents").join(agent).join("workspace");
    let said = || fs::read_to_string(workspace.join("begun")).is_ok_and(|said| said == "begun\n");
    until("the tool runs", || said().then_some(()));
    (sent, workspace)
}

#[tokio::test]
async fn a_killed_runtime_is_replaced_beside_its_running_tool_and_the_turn_goes_on() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let before = api.ok("agent/get", json!({"agent": agent})).await;
    let (sent, workspace) = at_work(&world, &mut api, &agent).await;
    for runs in [2, 3] {
        let view = api.ok("agent/get", json!({"agent": agent})).await;
        kill(runtime_of(&view), libc::SIGKILL);
        let revived = |view: &Value| view["runs"] == runs && view["status"] == "working";
        let view = api.until("agent/get", json!({"agent": agent}), revived).await;
        assert_eq!(pid(&view), pid(&before), "the sandbox was replaced");
        assert_eq!(view["incarnation"], before["incarnation"]);
    }
    fs::write(workspace.join("go"), "").expect("a file");
    let turn = api.ended(id(&sent)).await;
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("finished\n")));
    assert_eq!(fs::read_to_string(workspace.join("begun")).expect("a file"), "begun\n", "it ran twice");
    let lineage = api.ok("lineage/get", json!({"lineage": agent})).await;
    assert_eq!(
        (&lineage["status"], &lineage["revivals"], &lineage["deaths"]),
        (&json!("active"), &json!(2), &json!(0))
    );
    assert_eq!((&lineage["id"], &lineage["last_turn"]), (&before["lineage"], &sent["id"]));
    let told = kinds(&mut api).await;
    assert_eq!(told.iter().filter(|kind| *kind == "lineage.revived").count(), 2);
}

#[tokio::test]
async fn a_killed_sandbox_is_replaced_and_its_tool_is_reported_as_unknown() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let before = api.ok("agent/get", json!({"agent": agent})).await;
    let (sent, workspace) = at_work(&world, &mut api, &agent).await;
    kill(pid(&before), libc::SIGKILL);
    let turn = api.ended(id(&sent)).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
    let tool =
        turn["steps"].as_array().expect("steps").iter().find(|step| step["kind"] == "tool").expect("a tool");
    assert_eq!(tool["status"], "unknown");
    assert!(turn["text"].as_str().expect("a text").contains("outcome unknown"), "{turn:#}");
    assert_eq!(fs::read_to_string(workspace.join("begun")).expect("a file"), "begun\n", "it ran twice");
    let after = api.ok("agent/get", json!({"agent": agent})).await;
    assert_eq!((&after["incarnation"], &after["lineage"]), (&json!(2), &before["lineage"]));
}

#[tokio::test]
async fn a_lineage_that_asks_waits_through_restarts_and_is_settled_once() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = format!("{AGENTFILE}LIMIT revival_policy ask\n");
    let agent = id(&api.ok("agent/create", json!({"content": content, "name": "one"})).await).to_owned();
    let view = api.agent_is(&agent, "ready").await;
    assert_eq!(api.ok("agent/get", json!({"agent": agent})).await["revival_policy"], "ask");
    let (sent, _) = at_work(&world, &mut api, &agent).await;
    kill(runtime_of(&view), libc::SIGKILL);
    let failed = api.agent_is(&agent, "failed").await;
    assert_eq!((&failed["failure_reason"], &failed["liveness"]), (&json!("crashed"), &json!("crashed")));
    until("nothing of it runs", || world.lodge.keepers().is_empty().then_some(()));
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let waiting = api.ok("lineage/list", json!({"status": "ask_pending"})).await;
    assert_eq!(waiting["lineages"][0]["id"], failed["lineage"]);
    assert_eq!(api.ok("turn/get", json!({"turn": id(&sent)})).await["status"], "waiting");
    for (method, params) in [
        ("agent/start", json!({"agent": "one"})),
        ("agent/stop", json!({"agent": "one"})),
        ("agent/remove", json!({"agent": "one"})),
        ("turn/send", json!({"agent": "one", "text": "more"})),
    ] {
        api.refused(method, params, "lineage.ask_pending").await;
    }
    let lineage = failed["lineage"].clone();
    api.refused("agent/create", json!({"content": AGENTFILE, "name": "one"}), "agent.name_taken").await;
    api.refused("lineage/resolve", json!({"lineage": lineage, "decision": "ask"}), "params.invalid").await;
    let settled = api.ok("lineage/resolve", json!({"lineage": lineage, "decision": "revive"})).await;
    assert_eq!(settled["status"], "active");
    assert_eq!(api.ended(id(&sent)).await["status"], "done");
    for decision in ["revive", "reap"] {
        let again = json!({"lineage": lineage, "decision": decision});
        api.refused("lineage/resolve", again, "lineage.settled").await;
    }
}

#[tokio::test]
async fn under_the_policy_reap_the_turn_is_dropped_and_a_start_begins_another_lineage() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let create = json!({"content": AGENTFILE, "name": "one", "revival_policy": "reap"});
    let agent = id(&api.ok("agent/create", create).await).to_owned();
    let view = api.agent_is(&agent, "ready").await;
    let (sent, _) = at_work(&world, &mut api, &agent).await;
    kill(pid(&view), libc::SIGKILL);
    api.agent_is(&agent, "failed").await;
    assert_eq!(api.ended(id(&sent)).await["status"], "interrupted");
    assert_eq!(api.ok("lineage/get", json!({"lineage": view["lineage"]})).await["status"], "reaped");
    api.ok("agent/start", json!({"agent": agent})).await;
    let again = api.agent_is(&agent, "ready").await;
    assert_ne!(again["lineage"], view["lineage"]);
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
}

#[tokio::test]
async fn a_killed_agent_leaves_no_process_and_its_lineage_is_never_revived() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let (sent, _) = at_work(&world, &mut api, &agent).await;
    assert_eq!(api.ok("agent/kill", json!({"agent": agent})).await["status"], "stopped");
    assert!(world.lodge.keepers().is_empty(), "it lives");
    assert_eq!(api.ended(id(&sent)).await["status"], "interrupted");
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let lineage = api.ok("lineage/get", json!({"lineage": view["lineage"]})).await;
    assert_eq!((&lineage["status"], &lineage["ended_reason"]), (&json!("ended"), &json!("killed")));
    assert_eq!(api.ok("agent/get", json!({"agent": agent})).await["status"], "stopped");
    api.ok("agent/start", json!({"agent": agent})).await;
    assert_ne!(api.agent_is(&agent, "ready").await["lineage"], view["lineage"]);
}

#[tokio::test]
async fn an_agent_whose_lock_somebody_took_away_is_ended_all_the_same() {
    for taken in ["lock", ""] {
        let world = ApiWorld::new();
        let mut api = world.checked().await;
        let agent = world.agent(&mut api, "one").await;
        let view = api.ok("agent/get", json!({"agent": agent})).await;
        at_work(&world, &mut api, &agent).await;
        let processes = family(pid(&view));
        assert!(processes.len() > 2, "a keeper, a runtime and a tool: {processes:?}");
        let run = world.lodge.home().join("run").join(view["sandbox"].as_str().expect("a sandbox"));
        match taken {
            "" => fs::remove_dir_all(run).expect("a directory"),
            file => fs::remove_file(run.join(file)).expect("a file"),
        }
        api.ok("agent/kill", json!({"agent": agent})).await;
        let left: Vec<&i32> = processes.iter().filter(|pid| is_alive(**pid)).collect();
        assert!(left.is_empty(), "without `{taken}`: {left:?} live on");
    }
}

#[tokio::test]
async fn a_runtime_that_always_dies_is_given_up_and_a_start_goes_on_with_its_turns() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_BACKOFF_BASE", "20ms");
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let (sent, workspace) = at_work(&world, &mut api, &agent).await;
    let queued =
        api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "[[reply:after it]]"})).await;
    for runs in 1..=6 {
        let there = |view: &Value| view["runs"] == runs && view["status"] == "working";
        let view = api.until("agent/get", json!({"agent": agent}), there).await;
        kill(runtime_of(&view), libc::SIGKILL);
    }
    let failed = api.agent_is(&agent, "failed").await;
    assert_eq!(failed["failure_reason"], "crashed");
    let detail = failed["failure_detail"].as_str().expect("a detail");
    assert!(detail.ends_with("it died 6 times in a row"), "{detail}");
    let lineage = api.ok("lineage/get", json!({"lineage": failed["lineage"]})).await;
    assert_eq!((&lineage["ended_reason"], &lineage["revivals"]), (&json!("exhausted"), &json!(5)));
    until("nothing of it runs", || world.lodge.keepers().is_empty().then_some(()));
    // The work is not lost, even if the daemon dies before an operator acts.
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    for (turn, status) in [(id(&sent), "waiting"), (id(&queued), "queued")] {
        let view = api.ok("turn/get", json!({"turn": turn})).await;
        assert_eq!((&view["status"], &view["waits_for"]), (&json!(status), &json!("agent")), "{view:#}");
    }
    fs::write(workspace.join("go"), "").expect("a file");
    api.ok("agent/start", json!({"agent": agent})).await;
    let turn = api.ended(id(&sent)).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
    assert_ne!(turn["text"], "finished\n", "its tool ended with the sandbox, and is not run again");
    assert_eq!(api.ended(id(&queued)).await["text"], "after it");
}

/// Thresholds that a hang exceeds during the test, and a process that only waits for a processor does not.
fn impatient() -> ApiWorld {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_HEARTBEAT_STALE", "2s");
    world.lodge.set_env("LODGED_HEARTBEAT_CRASHED", "4s");
    world.lodge.start();
    world
}

#[tokio::test]
async fn a_runtime_that_stands_still_is_stale_then_killed_and_its_turn_goes_on() {
    let world = impatient();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let (sent, workspace) = at_work(&world, &mut api, &agent).await;
    kill(runtime_of(&view), libc::SIGSTOP);
    api.until("agent/get", json!({"agent": agent}), |view| view["liveness"] == "stale").await;
    let revived = |view: &Value| view["runs"] == 2 && view["status"] == "working";
    let again = api.until("agent/get", json!({"agent": agent}), revived).await;
    assert_eq!(pid(&again), pid(&view), "its sandbox was replaced");
    assert!(again["last_heartbeat_at"].is_string());
    fs::write(workspace.join("go"), "").expect("a file");
    assert_eq!(api.ended(id(&sent)).await["text"], "finished\n");
    let told = api.log().await;
    let levels: Vec<&Value> = told
        .iter()
        .filter(|event| event["kind"] == "agent.liveness")
        .map(|event| &event["data"]["status"])
        .collect();
    assert_eq!(levels, ["stale", "crashed", "active"]);
}

#[tokio::test]
async fn a_keeper_that_stands_still_is_killed_and_its_turn_goes_on() {
    let world = impatient();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let (sent, _) = at_work(&world, &mut api, &agent).await;
    kill(pid(&view), libc::SIGSTOP);
    let turn = api.ended(id(&sent)).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
    assert!(turn["text"].as_str().expect("a text").contains("outcome unknown"), "{turn:#}");
    let after = api.ok("agent/get", json!({"agent": agent})).await;
    assert_eq!(after["incarnation"], 2);
    until("the old one is gone", || (world.lodge.keepers().len() == 1).then_some(()));
}

#[tokio::test]
async fn a_keeper_that_stands_still_while_the_daemon_comes_back_is_shown_as_stale_and_replaced() {
    let mut world = impatient();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    world.lodge.kill9();
    kill(pid(&view), libc::SIGSTOP);
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.until("agent/get", json!({"agent": agent}), |view| view["liveness"] == "stale").await;
    let replaced = |view: &Value| view["incarnation"] == 2 && view["status"] == "ready";
    api.until("agent/get", json!({"agent": agent}), replaced).await;
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
}

#[tokio::test]
async fn a_long_tool_call_is_no_hang_and_an_idle_agent_is_not_asked() {
    let world = impatient();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let (sent, workspace) = at_work(&world, &mut api, &agent).await;
    // Longer than a silent runtime would have.
    let heard = |view: &Value| view["last_heartbeat_at"].as_str().map(str::to_owned);
    let mut last = heard(&api.ok("agent/get", json!({"agent": agent})).await);
    for _ in 0..10 {
        let view = api.until("agent/get", json!({"agent": agent}), |view| heard(view) != last).await;
        assert_eq!((&view["liveness"], &view["runs"]), (&json!("active"), &json!(1)));
        last = heard(&view);
    }
    fs::write(workspace.join("go"), "").expect("a file");
    assert_eq!(api.ended(id(&sent)).await["text"], "finished\n");
    assert!(!kinds(&mut api).await.iter().any(|kind| kind == "agent.liveness"));
}
