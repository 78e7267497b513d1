//! A stopped process is not dead: which processes are awaited, replaced, or can still be ended.

use lodge_testkit::lodge::{is_alive, until};
use serde_json::{Value, json};

use crate::processes::{at_work, daemon, events, let_go, lines, pid, runtime_of, workspace};
use crate::world::{ApiWorld, family, kill};

/// Thresholds that a hang passes, or does not, while the test waits.
fn patient(stale: &str, crashed: &str) -> ApiWorld {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_HEARTBEAT_STALE", stale);
    world.lodge.set_env("LODGED_HEARTBEAT_CRASHED", crashed);
    world.lodge.start();
    world
}

#[tokio::test]
async fn a_daemon_that_stood_still_for_longer_than_anybody_may_be_silent_kills_nobody() {
    let world = patient("2s", "4s");
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let sent = at_work(&world, &mut api, &agent).await;
    let before = api.ok("agent/get", json!({"agent": agent})).await;
    kill(daemon(&world.lodge), libc::SIGSTOP);
    // The tool's own time: seven seconds, of which the daemon lived none.
    let ticks = workspace(&world, &agent).join("ticks");
    let from = lines(&ticks);
    until("the tool went on", || (lines(&ticks) >= from + 70).then_some(()));
    kill(daemon(&world.lodge), libc::SIGCONT);
    let heard = |view: &Value| view["last_heartbeat_at"].clone();
    let mut last = heard(&before);
    for _ in 0..5 {
        let view = api.until("agent/get", json!({"agent": agent}), |view| heard(view) != last).await;
        for same in ["pid", "runs", "incarnation"] {
            assert_eq!(view[same], before[same], "{same}");
        }
        last = heard(&view);
    }
    let_go(&world, &mut api, &sent).await;
    let levels = events(&mut api, "agent.liveness").await;
    assert!(!levels.iter().any(|event| event["data"]["status"] == "crashed"), "{levels:#?}");
}

#[tokio::test]
async fn a_runtime_that_goes_on_in_time_was_stale_and_is_not_replaced() {
    let world = patient("1s", "10m");
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let sent = at_work(&world, &mut api, &agent).await;
    let before = api.ok("agent/get", json!({"agent": agent})).await;
    let runtime = runtime_of(pid(&before));
    for _ in 0..2 {
        kill(runtime, libc::SIGSTOP);
        api.until("agent/get", json!({"agent": agent}), |view| view["liveness"] == "stale").await;
        kill(runtime, libc::SIGCONT);
        api.until("agent/get", json!({"agent": agent}), |view| view["liveness"] == "active").await;
    }
    let after = api.ok("agent/get", json!({"agent": agent})).await;
    assert_eq!((&after["runs"], runtime_of(pid(&after))), (&json!(1), runtime));
    let_go(&world, &mut api, &sent).await;
    let told = events(&mut api, "agent.liveness").await;
    let mut levels = told.iter().map(|event| &event["data"]["status"]);
    for level in ["stale", "active", "stale", "active"] {
        assert!(levels.any(|told| told == level), "{level} is not told in its place: {told:#?}");
    }
    assert!(!told.iter().any(|event| event["data"]["status"] == "crashed"), "{told:#?}");
}

#[tokio::test]
async fn a_runtime_that_stood_still_at_rest_is_found_out_by_the_next_message_which_is_answered() {
    let world = patient("2s", "4s");
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let before = api.ok("agent/get", json!({"agent": agent})).await;
    kill(runtime_of(pid(&before)), libc::SIGSTOP);
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
    let after = api.agent_is(&agent, "ready").await;
    assert_eq!((&after["runs"], pid(&after)), (&json!(2), pid(&before)), "{after:#}");
    assert_eq!(world.mock.requests().expect("a log").len(), 1, "the model was asked twice");
}

#[tokio::test]
async fn an_agent_whose_keeper_stands_still_can_be_stopped_killed_and_removed() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let mut asked = Vec::new();
    for method in ["stop", "kill", "remove"] {
        let agent = world.agent(&mut api, method).await;
        let view = api.ok("agent/get", json!({"agent": agent})).await;
        kill(pid(&view), libc::SIGSTOP);
        let mut own = api.again(&world.lodge).await;
        let mut params = json!({"agent": agent});
        if method == "remove" {
            params["force"] = true.into();
        }
        let processes = family(pid(&view));
        assert!(processes.len() >= 2, "{processes:?}");
        // All three at once: each takes as long as a keeper may take to answer.
        let answer = tokio::spawn(async move { own.ok(&format!("agent/{method}"), params).await });
        asked.push((answer, processes));
    }
    for (answer, processes) in asked {
        let view = answer.await.expect("an answer");
        let over = if view["name"] == "remove" { "removed" } else { "stopped" };
        assert_eq!(view["status"], over, "{view:#}");
        assert_eq!(processes.iter().filter(|pid| is_alive(**pid)).count(), 0, "{view:#}");
    }
    assert!(world.lodge.keepers().is_empty());
}

#[tokio::test]
async fn an_agent_whose_keeper_stood_still_when_the_daemon_came_can_be_stopped() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let processes = family(pid(&view));
    world.lodge.kill9();
    kill(pid(&view), libc::SIGSTOP);
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.ok("agent/stop", json!({"agent": agent})).await["status"], "stopped");
    assert_eq!(processes.iter().filter(|pid| is_alive(**pid)).count(), 0);
    api.ok("agent/start", json!({"agent": agent})).await;
    api.agent_is(&agent, "ready").await;
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
}
