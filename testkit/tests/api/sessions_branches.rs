//! Sessions that are rewound, forked, done again and deleted: what the model reads is their path, and nothing is lost.

use std::path::Path;
use std::process::Command;

use lodge_testkit::lodge::{Lodge, PATIENCE};
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, id, sh};

/// How many messages of the user the model reads with the next turn of a session, that one included.
async fn heard(api: &mut CheckedClient, agent: &str, session: &str) -> u32 {
    let text = api.answer(agent, session, "[[reply:{{turn}}]]").await;
    text.parse().expect("a number")
}

async fn answers(api: &mut CheckedClient, session: &str) -> Vec<String> {
    let turns = api.ok("turn/list", json!({"session": session})).await;
    let turns = turns["turns"].as_array().expect("turns");
    turns.iter().map(|turn| turn["text"].as_str().expect("a text").to_owned()).collect()
}

fn texts(page: &Value) -> Vec<&str> {
    let messages = page["messages"].as_array().expect("messages");
    messages.iter().map(|message| message["text"].as_str().expect("a text")).collect()
}

/// A session of three turns.
async fn three(world: &ApiWorld, api: &mut CheckedClient) -> String {
    let agent = world.agent(api, "one").await;
    for n in 1..=3 {
        api.answer(&agent, "s", &format!("q{n} [[reply:a{n}]]")).await;
    }
    agent
}

#[tokio::test]
async fn a_rewound_session_goes_on_from_its_turn_also_in_the_next_daemon() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = three(&world, &mut api).await;
    let view = api.ok("session/rewind", json!({"session": "s", "turn": "1"})).await;
    assert_eq!((&view["turns"], &view["id"], &view["agent_name"]), (&json!(1), &json!("s"), &json!("one")));
    assert_eq!(heard(&mut api, &agent, "s").await, 2);
    assert_eq!(answers(&mut api, "s").await, ["a1", "2"]);
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.agent_is(&agent, "ready").await;
    assert_eq!(heard(&mut api, &agent, "s").await, 3);
    assert_eq!(answers(&mut api, "s").await, ["a1", "2", "3"]);
    // Everything is listed, and turns off the path are marked.
    let all = api.ok("turn/list", json!({"session": "s", "all": true})).await;
    let all: Vec<(u64, bool)> = all["turns"]
        .as_array()
        .expect("turns")
        .iter()
        .map(|turn| (turn["number"].as_u64().expect("a number"), turn["active"] == true))
        .collect();
    assert_eq!(all, [(1, true), (2, false), (2, true), (3, false), (3, true)]);
    assert_eq!(api.ok("session/get", json!({"session": "s"})).await["inactive_turns"], 2);
    let path = api.ok("session/messages", json!({"session": "s"})).await;
    assert_eq!(texts(&path).len(), 6);
    let all = api.ok("session/messages", json!({"session": "s", "all": true})).await;
    assert_eq!(texts(&all).len(), 10);
    // To before the first.
    api.ok("session/rewind", json!({"session": "s", "turn": "0"})).await;
    assert_eq!(heard(&mut api, &agent, "s").await, 1);
}

#[tokio::test]
async fn a_turn_is_done_again_in_its_place_and_its_branch_can_come_back() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "[[reply:first]]").await;
    // The tool answers otherwise every time.
    let text = format!("{} [[reply:{{{{tool}}}} of {{{{turn}}}}]]", sh("printf x >> n; cat n"));
    let old = api.say(&agent, "s", &text).await;
    let attached = api.ok("client/attach", json!({"session": "s"})).await;
    let again = api.ok("session/regenerate", json!({"session": "s"})).await;
    assert_eq!(
        (&again["replaces"], &again["number"], &again["active"]),
        (&old["id"], &json!(2), &json!(true))
    );
    let accepted = api.events_to("turn.accepted").await;
    assert_eq!(accepted.last().expect("an event")["data"]["replaces"], old["id"]);
    api.ok("client/detach", json!({"attachment": attached["attachment"]})).await;
    let new = api.ended(id(&again)).await;
    assert_ne!(new["text"], old["text"]);
    assert!(new["text"].as_str().expect("a text").ends_with("of 2"), "{new}");
    let old_now = api.ok("turn/get", json!({"turn": old["id"]})).await;
    assert_eq!((&old_now["active"], &old_now["text"]), (&json!(false), &old["text"]));
    // An earlier turn by its number: what followed it leaves with it.
    let first = api.ok("session/regenerate", json!({"session": "s", "turn": "1"})).await;
    api.ended(id(&first)).await;
    assert_eq!(answers(&mut api, "s").await, ["first"]);
    // Back to the second answer, with the first one before it.
    let view = api.ok("session/branches/activate", json!({"session": "s", "turn": new["id"]})).await;
    assert_eq!(view["turns"], 2);
    assert_eq!(answers(&mut api, "s").await, ["first", new["text"].as_str().expect("a text")]);
    api.ok("session/branches/activate", json!({"session": "s", "turn": old["id"]})).await;
    assert_eq!(answers(&mut api, "s").await, ["first", old["text"].as_str().expect("a text")]);
    assert_eq!(heard(&mut api, &agent, "s").await, 3);
    // Activating the current path changes nothing, and creates no event.
    let seq = api.log().await.len();
    api.ok("session/branches/activate", json!({"session": "s", "turn": old["id"]})).await;
    api.ok("session/rewind", json!({"session": "s", "turn": "3"})).await;
    assert_eq!(api.log().await.len(), seq);
}

#[tokio::test]
async fn a_fork_begins_as_its_origin_and_goes_its_own_way() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = three(&world, &mut api).await;
    let fork = api.ok("session/fork", json!({"session": "s", "turn": "2", "to": "copy"})).await;
    assert_eq!((&fork["id"], &fork["turns"]), (&json!("copy"), &json!(2)));
    assert_eq!(fork["forked_from"], json!({"session": "s", "turn": 2}));
    assert_eq!(answers(&mut api, "copy").await, ["a1", "a2"]);
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.agent_is(&agent, "ready").await;
    assert_eq!(heard(&mut api, &agent, "copy").await, 3);
    assert_eq!(heard(&mut api, &agent, "s").await, 4, "the origin is as it was");
    let whole = api.ok("session/fork", json!({"session": "s"})).await;
    assert!(id(&whole).starts_with("ses_") && whole["turns"] == 4, "{whole}");
    api.ok("session/rewind", json!({"session": "copy", "turn": "1"})).await;
    assert_eq!(heard(&mut api, &agent, "copy").await, 2);
    // The origin goes, the copies stay.
    api.ok("session/delete", json!({"session": "s"})).await;
    assert_eq!(answers(&mut api, "copy").await, ["a1", "2"]);
    assert_eq!(api.ok("session/get", json!({"session": "copy"})).await["forked_from"]["session"], "s");
}

#[tokio::test]
async fn a_deleted_session_is_gone_twice_is_no_error_and_its_events_stay() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = three(&world, &mut api).await;
    let events = api.ok("event/list", json!({"session": "s", "limit": 500})).await;
    assert_eq!(
        api.ok("session/delete", json!({"session": "s"})).await,
        json!({"session": "s", "deleted": true})
    );
    assert_eq!(api.ok("session/delete", json!({"session": "s"})).await["deleted"], false);
    for method in ["session/get", "session/messages", "turn/list", "session/export", "session/fork"] {
        api.refused(method, json!({"session": "s"}), "session.not_found").await;
    }
    let after = api.ok("event/list", json!({"session": "s", "limit": 500})).await;
    let (before, after) = (events["events"].as_array(), after["events"].as_array());
    let (before, after) = (before.expect("events"), after.expect("events"));
    assert_eq!(after[..before.len()], before[..]);
    assert_eq!(after.last().expect("an event")["kind"], "session.deleted");
    // The name can be used again, at once and by the next daemon.
    assert_eq!(heard(&mut api, &agent, "s").await, 1);
    api.ok("session/delete", json!({"session": "s"})).await;
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.agent_is(&agent, "ready").await;
    assert_eq!(heard(&mut api, &agent, "s").await, 1);
    // A sender whose session was deleted gets a new one.
    let send = json!({"agent": agent, "sender": "ann", "text": "[[reply:{{turn}}]]"});
    let first = api.ok("turn/send", send.clone()).await;
    api.ended(id(&first)).await;
    api.ok("session/delete", json!({"session": first["session"]})).await;
    let second = api.ok("turn/send", send).await;
    assert_eq!(api.ended(id(&second)).await["text"], "1");
}

#[tokio::test]
async fn nothing_changes_a_session_while_a_turn_of_it_waits_or_runs_and_its_queue_is_shown() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = three(&world, &mut api).await;
    let send = json!({"agent": agent, "session": "s", "text": "[[hang]]"});
    let mut live = Vec::new();
    for _ in 0..3 {
        live.push(id(&api.ok("turn/send", send.clone()).await).to_owned());
    }
    let view = api.until("session/get", json!({"session": "s"}), |view| !view["running"].is_null()).await;
    assert_eq!((&view["running"], &view["queued"]), (&json!(live[0]), &json!(live[1..])));
    let listed = api.ok("session/list", json!({})).await;
    assert_eq!(listed["sessions"][0]["queued"], json!(live[1..]));
    for (method, params) in [
        ("session/rewind", json!({"session": "s", "turn": "1"})),
        ("session/fork", json!({"session": "s", "turn": "1"})),
        ("session/regenerate", json!({"session": "s", "turn": "1"})),
        ("session/delete", json!({"session": "s"})),
    ] {
        let error = api.refused(method, params, "session.busy").await;
        assert!(error["data"]["hint"].is_string(), "{error}");
    }
    for turn in live.iter().rev() {
        api.ok("turn/interrupt", json!({"turn": turn})).await;
    }
    assert_eq!(api.ok("session/rewind", json!({"session": "s", "turn": "1"})).await["turns"], 1);
    assert_eq!(heard(&mut api, &agent, "s").await, 2);
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_with_the_way_out() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = three(&world, &mut api).await;
    api.answer(&agent, "other", "hi").await;
    let turns = api.ok("turn/list", json!({"session": "s"})).await;
    let last = turns["turns"][2]["id"].as_str().expect("an id").to_owned();
    let stranger = api.ok("turn/list", json!({"session": "other"})).await["turns"][0]["id"].clone();
    api.ok("session/rewind", json!({"session": "s", "turn": "2"})).await;
    for (method, params, code) in [
        ("session/rewind", json!({"session": "s", "turn": last}), "turn.inactive"),
        ("session/fork", json!({"session": "s", "turn": last}), "turn.inactive"),
        ("session/regenerate", json!({"session": "s", "turn": last}), "turn.inactive"),
        ("session/rewind", json!({"session": "s", "turn": "3"}), "turn.not_found"),
        ("session/rewind", json!({"session": "s", "turn": stranger}), "turn.not_found"),
        ("session/rewind", json!({"session": "s", "turn": "-1"}), "params.invalid"),
        ("session/rewind", json!({"session": "s"}), "params.invalid"),
        ("session/branches/activate", json!({"session": "s", "turn": "2"}), "turn.not_found"),
        ("session/branches/activate", json!({"session": "s", "turn": stranger}), "turn.not_found"),
        ("session/fork", json!({"session": "s", "to": "other"}), "session.exists"),
        ("session/fork", json!({"session": "s", "to": "s"}), "session.exists"),
        ("session/fork", json!({"session": "s", "to": "a b"}), "session.bad_id"),
        ("session/rewind", json!({"session": "none", "turn": "1"}), "session.not_found"),
        ("session/regenerate", json!({"session": "none"}), "session.not_found"),
    ] {
        let error = api.refused(method, params, code).await;
        assert!(error["data"]["hint"].is_string() || code == "session.bad_id", "{error}");
    }
    // Nothing to do again, and nothing to copy.
    api.ok("session/rewind", json!({"session": "s", "turn": "0"})).await;
    api.refused("session/regenerate", json!({"session": "s"}), "turn.not_found").await;
    api.refused("session/fork", json!({"session": "s"}), "turn.not_found").await;
    // An agent that is stopped answers nothing again, and nothing is lost by asking.
    api.ok("session/branches/activate", json!({"session": "s", "turn": last})).await;
    api.ok("agent/stop", json!({"agent": agent})).await;
    api.refused("session/regenerate", json!({"session": "s"}), "agent.not_running").await;
    assert_eq!(answers(&mut api, "s").await, ["a1", "a2", "a3"]);
}

#[tokio::test]
async fn sessions_of_a_stopped_or_removed_agent_can_be_read_and_tidied() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = three(&world, &mut api).await;
    api.ok("agent/stop", json!({"agent": agent})).await;
    assert_eq!(api.ok("session/rewind", json!({"session": "s", "turn": "2"})).await["turns"], 2);
    assert_eq!(api.ok("session/fork", json!({"session": "s", "to": "kept"})).await["turns"], 2);
    assert_eq!(
        api.ok("session/search", json!({"query": "q1"})).await["hits"].as_array().expect("hits").len(),
        2
    );
    api.ok("agent/remove", json!({"agent": agent})).await;
    let view = api.ok("session/get", json!({"session": "s"})).await;
    assert_eq!((&view["agent_name"], &view["agent_removed"]), (&json!("one"), &json!(true)));
    assert_eq!(answers(&mut api, "s").await, ["a1", "a2"]);
    assert_eq!(api.ok("session/rewind", json!({"session": "s", "turn": "1"})).await["agent_removed"], true);
    api.refused("session/fork", json!({"session": "s"}), "agent.not_found").await;
    api.refused("session/regenerate", json!({"session": "s"}), "agent.not_found").await;
    assert_eq!(api.ok("session/delete", json!({"session": "s"})).await["deleted"], true);
    let left = api.ok("session/list", json!({})).await;
    assert_eq!(left["sessions"].as_array().expect("sessions").len(), 1);
}

#[tokio::test]
async fn each_change_is_one_change_however_often_it_is_asked_for() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = three(&world, &mut api).await;
    let changes = [
        ("session/fork", json!({"session": "s", "request_id": "r1"})),
        ("session/rewind", json!({"session": "s", "turn": "2", "request_id": "r2"})),
        ("session/regenerate", json!({"session": "s", "request_id": "r3"})),
    ];
    let mut told = Vec::new();
    for (method, params) in &changes {
        told.push(api.ok(method, params.clone()).await);
        assert_eq!(api.ok(method, params.clone()).await, told[told.len() - 1], "{method}");
    }
    api.ended(id(&told[2])).await;
    let gone = json!({"session": id(&told[0]), "request_id": "r4"});
    let deleted = api.ok("session/delete", gone.clone()).await;
    let log = api.log().await;
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    api.agent_is(&agent, "ready").await;
    for ((method, params), first) in changes.iter().zip(&told) {
        assert_eq!(api.ok(method, params.clone()).await, *first, "{method} after a restart");
    }
    assert_eq!(api.ok("session/delete", gone).await, deleted);
    let kinds = |log: &[Value]| {
        let session =
            |event: &&Value| event["kind"].as_str().is_some_and(|kind| kind.starts_with("session."));
        log.iter().filter(session).map(|event| event["kind"].to_string()).collect::<Vec<_>>()
    };
    let now = api.log().await;
    assert_eq!(kinds(&now), kinds(&log));
    assert_eq!(kinds(&now).len(), 3, "{:?}", kinds(&now));
    api.refused("session/rewind", json!({"session": "s", "turn": "1", "request_id": "r2"}), "request.reused")
        .await;
}

/// With a stopped agent the daemon commits only requested changes.
async fn quiet(world: &mut ApiWorld, api: &mut CheckedClient) -> String {
    let agent = three(world, api).await;
    api.answer(&agent, "s", "[[reply:a4]]").await;
    api.ok("session/rewind", json!({"session": "s", "turn": "3"})).await;
    api.ok("agent/stop", json!({"agent": agent})).await;
    agent
}

/// Everything that the API shows of all sessions, except their last use.
async fn everything(api: &mut CheckedClient) -> Value {
    let mut all = json!({});
    let sessions = api.ok("session/list", json!({})).await;
    for session in sessions["sessions"].as_array().expect("sessions") {
        let mut view = api.ok("session/get", json!({"session": id(session)})).await;
        view.as_object_mut().expect("an object").remove("last_active");
        let whole = json!({"session": id(session), "all": true});
        all[id(session)] = json!({
            "view": view,
            "turns": api.ok("turn/list", whole.clone()).await,
            "messages": api.ok("session/messages", whole).await,
        });
    }
    all
}

/// The state directory of a daemon that does not run, to begin from once more.
struct SavedHome(tempfile::TempDir);

impl SavedHome {
    fn of(lodge: &Lodge) -> SavedHome {
        let dir = tempfile::tempdir().expect("a directory");
        copy(&lodge.home(), &dir.path().join("home"));
        SavedHome(dir)
    }

    fn restore(&self, lodge: &Lodge) {
        std::fs::remove_dir_all(lodge.home()).expect("a state directory");
        copy(&self.0.path().join("home"), &lodge.home());
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().expect("cp runs");
    assert!(copied.success(), "{}", from.display());
}

#[tokio::test]
async fn a_daemon_that_dies_between_decision_and_commit_leaves_a_session_as_it_was() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    quiet(&mut world, &mut api).await;
    let turns = api.ok("turn/list", json!({"session": "s", "all": true})).await;
    let dropped = turns["turns"][3]["id"].clone();
    let changes = [
        ("session/rewind", json!({"session": "s", "turn": "1", "request_id": "r1"})),
        ("session/branches/activate", json!({"session": "s", "turn": dropped, "request_id": "r2"})),
        ("session/fork", json!({"session": "s", "to": "f", "request_id": "r3"})),
        ("session/delete", json!({"session": "s", "request_id": "r4"})),
    ];
    for (method, params) in changes {
        let before = everything(&mut api).await;
        world.lodge.kill9();
        let saved = SavedHome::of(&world.lodge);
        // Some commits belong to the start; the first one after them is the change's.
        let (mut struck, mut nth) = (false, 0);
        loop {
            nth += 1;
            world.lodge.kill9();
            world.lodge.set_env("LODGED_CRASH_AT", &format!("before_commit:{nth}"));
            world.lodge.spawn();
            if world.lodge.try_wait_ready().is_err() {
                continue;
            }
            let Ok(mut client) = world.lodge.try_client().await else { continue };
            let answer = client.call_value(method, params.clone()).await;
            world.lodge.unset_env("LODGED_CRASH_AT");
            if answer.is_ok() {
                world.lodge.kill9();
                // On a busy machine the start has one commit less than the last time, so that none was struck.
                if !struck {
                    saved.restore(&world.lodge);
                    nth = 0;
                    continue;
                }
                world.lodge.start();
                break;
            }
            struck = true;
            assert_eq!(world.lodge.wait_killed(PATIENCE), Some(true), "{method}: {answer:?}");
            world.lodge.start();
            api = api.again(&world.lodge).await;
            assert_eq!(everything(&mut api).await, before, "{method} is half done");
        }
        api = api.again(&world.lodge).await;
        let after = everything(&mut api).await;
        assert_ne!(after, before, "{method} was acknowledged and is lost");
        // Asked again it is answered as the first time, and nothing happens.
        api.ok(method, params).await;
        assert_eq!(everything(&mut api).await, after, "{method} happened twice");
    }
    assert!(api.ok("session/list", json!({})).await["sessions"].as_array().is_some_and(|all| all.len() == 1));
}
