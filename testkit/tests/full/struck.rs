//! The n-th write fails for lack of room, for every n; the n-th flush fails, and the daemon ends.

use std::fs::File;
use std::process::Stdio;
use std::time::{Duration, Instant};

use lodge_testkit::lodge::{PATIENCE, until};
use serde_json::{Value, json};

use crate::strike::{FailingCall, FailingThread, StruckDaemon};
use crate::world::{AttachedListener, FullDiskWorld, effect};

/// Between two looks at a turn.
const LOOK: Duration = Duration::from_millis(2);
/// More writes than any scenario here makes.
pub const WRITES_MAX: u64 = 2_000;

pub fn start(world: &FullDiskWorld) -> StruckDaemon {
    let log = File::options().create(true).append(true).open(world.lodge.log_path()).expect("a log");
    let mut command = world.lodge.daemon_command();
    command.stdout(Stdio::null()).stderr(log);
    let daemon = StruckDaemon::start(command);
    until("the daemon answers", || {
        std::os::unix::net::UnixStream::connect(world.lodge.home().join("lodge.sock")).ok()
    });
    daemon
}

/// The expected log of events after this many acknowledged turns.
fn assert_whole(log: &[Value], turns: usize) {
    let count = |kind: &str| log.iter().filter(|event| event["kind"] == kind).count();
    for kind in ["turn.accepted", "turn.started", "turn.finished"] {
        assert_eq!(count(kind), turns, "{kind}");
    }
    assert_eq!((count("turn.failed"), count("turn.tool_result")), (0, turns));
}

/// One failure is absorbed by the reserve. With two, the daemon is read-only and resumes immediately. With four, this
/// happens again to its first work.
async fn every_write_of_a_turn_fails(times: u64) {
    let world = FullDiskWorld::asleep(None);
    let daemon = start(&world);
    let (mut api, mut listener) = (world.api().await, AttachedListener::new(&world).await);
    let agent = api.agent("one").await;
    let mut turns = 0;
    for skip in 0..WRITES_MAX {
        daemon.arm(FailingCall::Write, FailingThread::Anybody, skip, times);
        let (name, text) = (format!("e{skip}"), format!("{}[[reply:r{skip}]]", effect(&format!("e{skip}"))));
        let params = json!({"agent": agent, "session": "s", "text": text, "request_id": name});
        let sent = api.insist("turn/send", params).await;
        let done = api.done(sent["id"].as_str().expect("an id")).await;
        turns += 1;
        assert_eq!(
            (done["text"].as_str(), world.effects(&agent, &name)),
            (Some(&*format!("r{skip}")), 1),
            "write {skip}"
        );
        if daemon.disarm() == 0 {
            println!("{times} failures at each of {skip} writes");
            assert!(skip > 10, "a turn makes more writes than {skip}");
            let log = api.log().await;
            assert_whole(&log, turns);
            listener.heard_all(&log).await;
            api.storage_is("enough").await;
            let read_only = world.lodge.log().matches("storage.read_only").count() as u64;
            assert!(
                read_only >= (times / 2) * skip / 2 && (times > 1 || read_only == 0),
                "{read_only} times"
            );
            drop(daemon);
            return assert_sound(&world, "daemon.db");
        }
    }
    panic!("a turn has no end of writes");
}

/// A database is sound once the daemon is gone.
pub fn assert_sound(world: &FullDiskWorld, name: &str) {
    let database = rusqlite::Connection::open(world.lodge.home().join(name)).expect("a database");
    let told: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
    assert_eq!(told, "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_survives_one_failure_at_every_write_of_it() {
    every_write_of_a_turn_fails(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_survives_a_read_only_daemon_at_every_write_of_it() {
    every_write_of_a_turn_fails(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_survives_a_daemon_that_is_read_only_twice_at_every_write_of_it() {
    every_write_of_a_turn_fails(4).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agents_life_survives_a_read_only_daemon_at_every_write_of_it() {
    let world = FullDiskWorld::asleep(None);
    let daemon = start(&world);
    let mut api = world.api().await;
    for skip in 0..WRITES_MAX {
        daemon.arm(FailingCall::Write, FailingThread::Anybody, skip, 2);
        let name = format!("a{skip}");
        let agent = api.agent(&name).await;
        api.insist("agent/stop", json!({"agent": agent})).await;
        api.agent_is(&agent, "stopped").await;
        api.insist("agent/start", json!({"agent": agent})).await;
        api.agent_is(&agent, "ready").await;
        let force = json!({"agent": agent, "force": true, "request_id": format!("{name}-rm")});
        api.insist("agent/remove", force).await;
        api.agent_is(&agent, "removed").await;
        assert!(!world.lodge.home().join("agents").join(&agent).exists(), "files are left");
        assert_eq!(world.lodge.keepers(), Vec::<i32>::new(), "a sandbox is left");
        if daemon.disarm() == 0 {
            println!("an agent's life has {skip} writes");
            api.log().await;
            drop(daemon);
            return assert_sound(&world, "daemon.db");
        }
    }
    panic!("an agent's life has no end of writes");
}

/// The kernel has one listener for a tree of processes, and here this test has it.
#[tokio::test(flavor = "multi_thread")]
async fn where_somebody_else_answers_the_calls_of_programs_an_agent_gets_a_proxy_and_says_why() {
    let world = FullDiskWorld::asleep(None);
    let daemon = start(&world);
    let mut api = world.api().await;
    let agent = api.agent("one").await;
    let view = api.ok("agent/get", json!({"agent": agent})).await;
    let layers = view["isolation"].as_array().expect("layers");
    let guard = layers.iter().find(|layer| layer["name"] == "network_landlock").expect("a layer");
    assert_eq!(guard["in_force"], false, "{guard}");
    assert!(guard["why"].as_str().is_some_and(|why| why.contains("reported to it already")), "{guard}");
    let call = json!(["-c", "echo proxy $HTTP_PROXY"]);
    let text = format!("[[tool:sh|{call}]] [[reply:{{{{tool}}}}]]");
    let turn = api.send(&agent, "s", &text).await;
    let done = api.done(&turn).await;
    assert!(done["text"].as_str().is_some_and(|text| text.contains("proxy http://127.0.0.1:")), "{done:#}");
    drop(daemon);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_fails_ends_the_daemon_and_what_was_acknowledged_is_there() {
    let mut world = FullDiskWorld::asleep(None);
    let mut acknowledged: Vec<(String, String)> = Vec::new();
    for skip in 0..4 {
        let mut daemon = start(&world);
        let mut api = world.api().await;
        let agent = api.agent("one").await;
        // The archive of jobs may still be opened, and survives a flush that fails.
        daemon.arm(FailingCall::Flush, FailingThread::Writer, skip, 1);
        // Commits follow one another until one of them cannot be flushed.
        for n in 0.. {
            let text = format!("t{skip}.{n}");
            let params = json!({"agent": agent, "session": "s", "text": format!("[[reply:{text}]]")});
            match api.client.call_value("turn/send", params).await {
                Ok(turn) => acknowledged.push((turn["id"].as_str().expect("an id").to_owned(), text)),
                Err(_) => break,
            }
        }
        assert_eq!(daemon.wait().code(), Some(74), "{}", world.lodge.log());
        assert_eq!(daemon.disarm(), 1, "a flush was tried again");
        drop(daemon);
        world.lodge.start();
        let mut api = world.api().await;
        for (turn, text) in &acknowledged {
            assert_eq!(api.done(turn).await["text"], **text);
        }
        api.log().await;
        world.lodge.kill9();
    }
    assert!(!acknowledged.is_empty(), "nothing was acknowledged before");
}

/// Sends turns with large writes until checkpoints have made this many calls fail.
async fn fill_log(world: &FullDiskWorld, daemon: &StruckDaemon, times: u64) -> Vec<String> {
    let mut api = world.api().await;
    let agent = api.agent("one").await;
    daemon.arm(FailingCall::Write, FailingThread::Checkpoint, 0, times);
    let mut turns = Vec::new();
    while daemon.struck() < times {
        let turn = api.send(&agent, "s", "[[big:200000]]").await;
        api.done(&turn).await;
        turns.push(turn);
        assert!(turns.len() < 500, "the log is never copied back");
    }
    turns
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_finds_no_room_to_be_copied_back_is_copied_later_and_nobody_notices() {
    let world = FullDiskWorld::asleep(None);
    let daemon = start(&world);
    let turns = fill_log(&world, &daemon, 3).await;
    let mut api = world.api().await;
    assert_eq!(api.storage_is("enough").await["since"], Value::Null);
    assert!(!world.lodge.log().contains("storage."), "a commit was in the way");
    let log = api.log().await;
    assert_eq!(log.iter().filter(|event| event["kind"] == "turn.finished").count(), turns.len());
    drop(daemon);
    assert_sound(&world, "daemon.db");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_that_fails_while_the_log_is_copied_back_ends_the_daemon_too() {
    let mut world = FullDiskWorld::asleep(None);
    let mut daemon = start(&world);
    let mut api = world.api().await;
    let agent = api.agent("one").await;
    daemon.arm(FailingCall::Flush, FailingThread::Checkpoint, 0, 1);
    let mut acknowledged = Vec::new();
    let params = json!({"agent": agent, "session": "s", "text": "[[big:200000]]"});
    while let Ok(turn) = api.client.call_value("turn/send", params.clone()).await {
        acknowledged.push(turn["id"].as_str().expect("an id").to_owned());
        assert!(acknowledged.len() < 500, "the log is never copied back");
        // One at a time, so that the session's queue stays short. A daemon that is gone has answered, too.
        let end = json!({"turn": acknowledged.last()});
        let until = Instant::now() + PATIENCE;
        while let Ok(turn) = api.client.call_value("turn/get", end.clone()).await
            && turn["ended_at"].is_null()
        {
            assert!(Instant::now() < until, "neither the turn nor its daemon ends: {turn:#}");
            tokio::time::sleep(LOOK).await;
        }
    }
    assert_eq!(daemon.wait().code(), Some(74), "{}", world.lodge.log());
    drop(daemon);
    world.lodge.start();
    let mut api = world.api().await;
    for turn in &acknowledged {
        api.done(turn).await;
    }
    api.log().await;
}
