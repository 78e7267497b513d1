//! A real disk that is really full: while idle, during a turn with tools, while a model streams, and at start.

use std::fs;

use lodge_testkit::lodge::{http, until};
use serde_json::{Value, json};

use crate::disk::{SmallDisk, with_disk};
use crate::world::{AttachedListener, FullDiskWorld, effect, waiting_effect};

const MIB: u64 = 1 << 20;

fn started(disk: &SmallDisk) -> FullDiskWorld {
    let mut world = FullDiskWorld::asleep(Some(&disk.home()));
    world.lodge.start();
    world
}

fn count(log: &[Value], kind: &str) -> usize {
    log.iter().filter(|event| event["kind"] == kind).count()
}

#[test]
fn with_little_room_nothing_new_is_begun_and_everything_else_is_possible() {
    with_disk(
        "space::with_little_room_nothing_new_is_begun_and_everything_else_is_possible",
        |disk| async move {
            let world = started(&disk);
            let mut api = world.api().await;
            let (one, two) = (api.agent("one").await, api.agent("two").await);
            let held = api.send(&one, "held", &format!("{}[[reply:end]]", waiting_effect("held"))).await;
            let cut = api.send(&two, "cut", "[[hang]]").await;
            until("the tool runs", || (world.effects(&one, "held") == 1).then_some(()));
            disk.fill(8 * MIB);
            let storage = api.storage_is("low").await;
            assert!(storage["since"].is_string() && storage["reserve_bytes"] == 4 * MIB, "{storage}");
            let refused =
                api.no_room("turn/send", json!({"agent": one, "session": "new", "text": "hi"})).await;
            assert!(refused["data"]["cause"].as_str().expect("a cause").contains("MiB free"), "{refused}");
            api.no_room("agent/create", json!({"content": "FROM scratch\nMODEL mock/m\n"})).await;
            api.no_room("provider/add", json!({"name": "p", "kind": "script"})).await;
            assert!(world.lodge.cli_ok(["info"]).contains("low since"));
            assert_eq!(
                http(&world.lodge.http_addr(), "GET", "/healthz", &[], b"").expect("an answer").0,
                200
            );
            // Running work continues, and requests that end something succeed.
            world.go(&one, "held");
            assert_eq!(api.done(&held).await["text"], "end");
            api.ok("turn/interrupt", json!({"turn": cut})).await;
            api.ok("agent/stop", json!({"agent": one})).await;
            api.no_room("agent/start", json!({"agent": one})).await;
            api.ok("agent/remove", json!({"agent": two, "force": true})).await;
            disk.free();
            api.insist("agent/start", json!({"agent": one})).await;
            let turn = api.send(&one, "new", "[[reply:again]]").await;
            assert_eq!(api.done(&turn).await["text"], "again");
            assert_eq!(api.storage_is("enough").await["since"], Value::Null);
            let log = world.lodge.log();
            assert_eq!(
                (log.matches("storage.low").count(), log.matches("storage.enough").count()),
                (1, 1),
                "{log}"
            );
        },
    );
}

#[test]
fn an_answer_for_which_there_is_no_room_is_recorded_with_the_reserve() {
    with_disk(
        "space::an_answer_for_which_there_is_no_room_is_recorded_with_the_reserve",
        |disk| async move {
            let world = started(&disk);
            let (mut api, mut listener) = (world.api().await, AttachedListener::new(&world).await);
            let agent = api.agent("one").await;
            let text = format!("{}[[big:1000000]]", waiting_effect("held"));
            let turn = api.send(&agent, "s", &text).await;
            until("the tool runs", || (world.effects(&agent, "held") == 1).then_some(()));
            disk.fill(MIB / 2);
            world.go(&agent, "held");
            let done = api.done(&turn).await;
            assert_eq!(done["text"].as_str().expect("a text").len(), 1_000_000);
            let log = world.lodge.log();
            assert!(log.contains("storage.reserve_used") && !log.contains("storage.read_only"), "{log}");
            api.no_room("turn/send", json!({"agent": agent, "session": "s", "text": "hi"})).await;
            disk.free();
            let turn =
                api.insist("turn/send", json!({"agent": agent, "session": "s", "text": "[[reply:x]]"})).await;
            api.done(turn["id"].as_str().expect("an id")).await;
            assert_eq!(api.storage_is("enough").await["reserve_bytes"], 4 * MIB, "there is a reserve again");
            assert_eq!(world.effects(&agent, "held"), 1);
            let log = api.log().await;
            listener.heard_all(&log).await;
            assert_eq!((count(&log, "turn.finished"), count(&log, "turn.step_restarted")), (2, 0));
        },
    );
}

#[test]
fn a_daemon_without_any_room_is_read_only_and_goes_on_by_itself_when_there_is_some() {
    with_disk(
        "space::a_daemon_without_any_room_is_read_only_and_goes_on_by_itself_when_there_is_some",
        |disk| async move {
            let world = started(&disk);
            let (mut api, mut listener) = (world.api().await, AttachedListener::new(&world).await);
            let (tools, model) = (api.agent("tools").await, api.agent("model").await);
            let before = api.send(&tools, "s", &format!("{}[[reply:one]]", effect("before"))).await;
            api.done(&before).await;
            let held = api.send(&tools, "s", &format!("{}[[reply:two]]", waiting_effect("held"))).await;
            let queued = api.send(&tools, "s", &format!("{}[[reply:three]]", effect("queued"))).await;
            until("the tool runs", || (world.effects(&tools, "held") == 1).then_some(()));
            // Streams for longer than the disk stays full, and is cut by it.
            let streamed = api.send(&model, "m", "[[big:30000]][[chunks:600:10]]").await;
            let speaks = |turn: &Value| turn["text"].as_str().is_some_and(|text| !text.is_empty());
            api.until("turn/get", json!({"turn": streamed}), speaks).await;
            let head = api.log().await.len();
            disk.fill(0);
            disk.steal_reserve();
            disk.fill(0);
            api.storage_is("read_only").await;
            read_only(&world, &mut api, &tools, &before).await;
            let written = api.log().await.len();
            assert!(written >= head);
            disk.free();
            api.until("info", json!({}), |info| info["storage"]["state"] != "read_only").await;
            world.go(&tools, "held");
            for (turn, text) in [(&held, "two"), (&queued, "three")] {
                assert_eq!(api.done(turn).await["text"], text);
            }
            assert_eq!(api.done(&streamed).await["text"].as_str().expect("a text").len(), 30_000);
            for name in ["before", "held", "queued"] {
                assert_eq!(world.effects(&tools, name), 1, "{name}");
            }
            let late = api
                .insist("turn/send", json!({"agent": model, "session": "m", "text": "[[reply:late]]"}))
                .await;
            api.done(late["id"].as_str().expect("an id")).await;
            let log = api.log().await;
            listener.heard_all(&log).await;
            assert_eq!((count(&log, "turn.finished"), count(&log, "daemon.started")), (5, 1));
            let said = world.lodge.log();
            assert_eq!(said.matches("storage.read_only").count(), 1, "{said}");
        },
    );
}

/// What a daemon that can record nothing still does.
async fn read_only(world: &FullDiskWorld, api: &mut crate::world::ApiConnection, agent: &str, turn: &str) {
    for (method, params) in [
        ("turn/send", json!({"agent": agent, "text": "hi"})),
        ("agent/stop", json!({"agent": agent})),
        ("turn/interrupt", json!({"turn": turn})),
        ("provider/add", json!({"name": "p", "kind": "script"})),
    ] {
        api.no_room(method, params).await;
    }
    assert_eq!(api.ok("turn/get", json!({"turn": turn})).await["text"], "one");
    assert!(world.lodge.cli_ok(["ps"]).contains("tools"));
    assert!(world.lodge.cli_ok(["session", "show", "s"]).contains("one"));
    assert!(world.lodge.cli_ok(["info"]).contains("read_only since"));
    let (status, body) = http(&world.lodge.http_addr(), "GET", "/healthz", &[], b"").expect("an answer");
    assert!(status == 503 && body.contains("disk is full"), "{status} {body}");
}

#[test]
fn a_read_only_daemon_can_be_ended() {
    with_disk("space::a_read_only_daemon_can_be_ended", |disk| async move {
        let mut world = started(&disk);
        let mut api = world.api().await;
        let agent = api.agent("one").await;
        let turn = api.send(&agent, "s", "[[big:30000]][[chunks:600:10]]").await;
        let speaks = |turn: &Value| turn["text"].as_str().is_some_and(|text| !text.is_empty());
        api.until("turn/get", json!({"turn": turn}), speaks).await;
        disk.fill(0);
        disk.steal_reserve();
        disk.fill(0);
        api.storage_is("read_only").await;
        world.lodge.cli_ok(["shutdown"]);
        assert_eq!(world.lodge.wait_killed(lodge_testkit::lodge::PATIENCE), Some(false));
        disk.free();
        world.lodge.start();
        let mut api = world.api().await;
        assert_eq!(api.done(&turn).await["text"].as_str().expect("a text").len(), 30_000);
        api.log().await;
    });
}

#[test]
fn a_daemon_starts_on_a_full_disk_with_its_reserve_and_goes_on_when_there_is_room() {
    with_disk(
        "space::a_daemon_starts_on_a_full_disk_with_its_reserve_and_goes_on_when_there_is_room",
        |disk| async move {
            let mut world = started(&disk);
            let mut api = world.api().await;
            let agent = api.agent("one").await;
            let turn = api.send(&agent, "s", &format!("{}[[reply:end]]", waiting_effect("held"))).await;
            until("the tool runs", || (world.effects(&agent, "held") == 1).then_some(()));
            world.lodge.kill9();
            disk.fill(0);
            world.lodge.start();
            let mut api = world.api().await;
            api.no_room("turn/send", json!({"agent": agent, "text": "hi"})).await;
            assert_eq!(api.ok("turn/get", json!({"turn": turn})).await["status"], "running");
            disk.free();
            world.go(&agent, "held");
            assert_eq!(api.done(&turn).await["text"], "end");
            assert_eq!((world.effects(&agent, "held"), count(&api.log().await, "daemon.started")), (1, 2));
        },
    );
}

#[test]
fn a_start_without_any_room_is_refused_with_a_way_out_and_changes_nothing() {
    with_disk(
        "space::a_start_without_any_room_is_refused_with_a_way_out_and_changes_nothing",
        |disk| async move {
            let mut world = started(&disk);
            let agent = world.api().await.agent("one").await;
            world.lodge.kill9();
            disk.steal_reserve();
            disk.fill(0);
            let files = ["daemon.db", "credentials.json", "anchor.lock"];
            let state = || files.map(|name| fs::read(disk.home().join(name)).unwrap_or_default());
            // The last page of a file may have room for an epoch or two.
            let mut starts = 1;
            let (refused, before) = loop {
                let before = state();
                world.lodge.spawn();
                match world.lodge.try_wait_ready() {
                    Ok(()) => starts += 1,
                    Err(status) => break (status, before),
                }
                world.lodge.kill9();
                assert!(starts < 8, "there is no end of room");
            };
            let words = world.lodge.log();
            assert_eq!(refused.code(), Some(1), "{words}");
            assert!(words.contains("error: there is no room to open the database"), "{words}");
            assert!(words.ends_with(
                "hint: the disk is full: free space and start it again; acknowledged changes are safe\n"
            ));
            assert!(state() == before, "something was changed");
            disk.free();
            world.lodge.start();
            let mut api = world.api().await;
            api.agent_is(&agent, "ready").await;
            assert_eq!(api.ok("info", json!({})).await["epoch"], starts + 1);
        },
    );
}

#[test]
fn an_agent_that_finds_no_room_to_start_has_failed_and_the_daemon_has_not() {
    with_disk(
        "space::an_agent_that_finds_no_room_to_start_has_failed_and_the_daemon_has_not",
        |disk| async move {
            let mut world = started(&disk);
            let agent = world.api().await.agent("one").await;
            let keepers = world.lodge.keepers();
            world.lodge.kill9();
            for keeper in keepers {
                // SAFETY: sending a signal touches no memory; the pid is of a keeper of this test's own daemon.
                unsafe { libc::kill(keeper, libc::SIGKILL) };
            }
            until("the keeper is gone", || world.lodge.keepers().is_empty().then_some(()));
            // Its programs and its root have to be written again, and there is room for the outcome alone.
            for program in fs::read_dir(disk.home().join("bin")).expect("programs").flatten() {
                fs::remove_file(program.path()).expect("a program");
            }
            disk.fill(MIB / 2);
            world.lodge.start();
            let mut api = world.api().await;
            let failed = api.agent_is(&agent, "failed").await;
            assert!(failed["failure_detail"].to_string().contains("No space left"), "{failed:#}");
            let half: Vec<_> = fs::read_dir(disk.home().join("bin")).expect("programs").flatten().collect();
            assert!(half.is_empty(), "half a program is left: {half:?}");
            disk.free();
            api.insist("agent/start", json!({"agent": agent})).await;
            api.agent_is(&agent, "ready").await;
        },
    );
}
