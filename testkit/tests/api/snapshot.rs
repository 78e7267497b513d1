//! A lineage at its last turn boundary: one document, put together when it is read.

use std::fs;
use std::path::{Path, PathBuf};

use lodge_testkit::lodge::until;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{AGENTFILE, ApiWorld, id, sh, told};

/// The document, as the command line prints it.
fn document(world: &ApiWorld, lineage: &str) -> String {
    world.lodge.cli_ok(["lineage", "show", lineage, "--snapshot"])
}

fn parsed(document: &str) -> Value {
    serde_json::from_str(document).expect("a JSON document")
}

fn texts(session: &Value) -> Vec<&str> {
    let messages = session["messages"].as_array().expect("messages").iter();
    messages.map(|message| message["text"].as_str().expect("a text")).collect()
}

/// Begins a turn whose tool waits for a file, which is returned.
async fn hold(world: &ApiWorld, api: &mut CheckedClient, agent: &str, session: &str) -> (Value, PathBuf) {
    let script = format!("echo begun > begun-{session}; until test -e go-{session}; do sleep 0.02; done");
    let text = format!("held {} [[reply:let go]]", sh(&script));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": session, "text": text})).await;
    let workspace = world.lodge.home().join("agents").join(agent).join("workspace");
    until("the tool runs", || workspace.join(format!("begun-{session}")).exists().then_some(()));
    (sent, workspace.join(format!("go-{session}")))
}

#[tokio::test]
async fn a_turn_in_flight_leaves_no_byte_in_the_snapshot_also_when_the_daemon_is_killed_in_it() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let began = parsed(&document(&world, "one"));
    assert_eq!((&began["sessions"], &began["usage"]["input_tokens"]), (&json!([]), &json!(0)));
    api.answer(&agent, "s", "first [[reply:a]] [[usage:7:2]]").await;
    let sent = json!({"agent": agent, "sender": "ann", "text": "second [[reply:b]] [[usage:5:1]]"});
    let sent = api.ok("turn/send", sent).await;
    let ended = api.ended(id(&sent)).await;
    let before = document(&world, "one");
    assert_eq!(parsed(&before)["usage"], json!({"input_tokens": 12, "output_tokens": 3}));
    assert_eq!(parsed(&before)["written_at"], ended["ended_at"]);
    // One that runs, one that waits behind it, one that was given up while it waited, and a session that begins.
    let (held, go) = hold(&world, &mut api, &agent, "s").await;
    let behind = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "[[reply:c]]"})).await;
    let dropped = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "never"})).await;
    api.ok("turn/interrupt", json!({"turn": id(&dropped)})).await;
    let (_, go_too) = hold(&world, &mut api, &agent, "new").await;
    assert_eq!(document(&world, "one"), before);
    world.lodge.kill9();
    world.lodge.start();
    assert_eq!(document(&world, "one"), before, "after another daemon took over");
    let mut api = api.again(&world.lodge).await;
    fs::write(go, "").expect("a file");
    fs::write(go_too, "").expect("a file");
    assert_eq!(api.ended(id(&held)).await["text"], "let go");
    assert_eq!(api.ended(id(&behind)).await["text"], "c");
    let over = |page: &Value| page["sessions"].as_array().is_some_and(|sessions| sessions.len() == 3);
    api.until("lineage/snapshot", json!({"lineage": "one"}), over).await;
    let after = parsed(&document(&world, "one"));
    assert_eq!(after["epoch"], 2, "another daemon recorded this boundary");
    let mut ends = Vec::new();
    for session in after["sessions"].as_array().expect("sessions") {
        let page = api.ok("turn/list", json!({"session": id(session)})).await;
        ends.extend(page["turns"].as_array().expect("turns").iter().map(|turn| turn["ended_at"].to_string()));
    }
    assert_eq!(ends.into_iter().max(), Some(after["written_at"].to_string()));
    let session = after["sessions"].as_array().expect("sessions").iter().find(|session| id(session) == "s");
    let session = session.expect("the session");
    assert_eq!(session["turns"], 4);
    let said: Vec<&str> = texts(session).into_iter().filter(|text| text.len() < 20).collect();
    // In the order of turns, although `behind` was recorded before `held` was answered.
    assert_eq!(said, ["a", "", "let go", "[[reply:c]]", "c", "never"], "{session:#}");
}

#[tokio::test]
async fn a_snapshot_has_its_documented_fields_and_nothing_of_the_place_where_it_runs() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let content = AGENTFILE
        .replace("BIN cat host:cat", "CONFIG temperature=0.5\nCONFIG notes=x\nBIN cat host:cat safe");
    let create = json!({"content": content, "name": "one", "env": {"TOKEN": "canary-0123"}});
    let agent = id(&api.ok("agent/create", create).await).to_owned();
    let view = api.agent_is(&agent, "ready").await;
    api.answer(&agent, "s", "hi [[reply:hello]]").await;
    let document = document(&world, &agent);
    let info = api.ok("info", json!({})).await;
    let whole = parsed(&document);
    let mut keys: Vec<&str> = whole.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    let fields = "anchor_id config epoch lineage_id llm model sessions usage version written_at";
    assert_eq!(keys.join(" "), fields);
    assert_eq!(
        (&whole["version"], &whole["lineage_id"], &whole["anchor_id"], &whole["epoch"]),
        (&json!(2), &view["lineage"], &info["log"], &json!(1))
    );
    assert_eq!((&whole["model"], &whole["llm"]), (&json!("mock/m"), &json!({"temperature": "0.5"})));
    let config = &whole["config"];
    assert_eq!(config["configs"], json!({"notes": "x", "temperature": "0.5"}));
    assert_eq!(config["limits"]["revival_policy"], "revive");
    assert_eq!(config["permissions"]["env_keys"], json!(["TOKEN"]));
    let safe = |name: &str| {
        let tools = config["tools"].as_array().expect("tools");
        tools.iter().find(|tool| tool["name"] == name).expect("the tool")["safe"].clone()
    };
    assert_eq!((safe("cat"), safe("sh")), (json!(true), json!(false)));
    let home = world.lodge.home();
    for absent in [
        home.to_str().expect("UTF-8"),
        id(&view),
        view["sandbox"].as_str().expect("an id"),
        "canary-0123",
        "\"pid\"",
    ] {
        assert!(!document.contains(absent), "{absent} is in {document}");
    }
    assert_eq!(self::document(&world, "one"), document, "the same state gives the same bytes");
}

/// Turns that are given up while they wait.
const GIVEN_UP: u64 = 70;

#[tokio::test]
async fn pages_hold_every_message_once_in_the_order_of_turns_and_no_page_is_large() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let (held, go) = hold(&world, &mut api, &agent, "s").await;
    // More than can wait at once: each is given up before the first is answered.
    for _ in 0..GIVEN_UP {
        let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "never"})).await;
        api.ok("turn/interrupt", json!({"turn": id(&sent)})).await;
    }
    let mut last = held;
    for _ in 0..3 {
        let text = json!({"agent": agent, "session": "s", "text": "[[big:600000]] [[usage:10:20]]"});
        last = api.ok("turn/send", text).await;
    }
    fs::write(go, "").expect("a file");
    api.ended(id(&last)).await;
    let turns = api.ok("turn/list", json!({"session": "s"})).await;
    let tokens = |kind: &str| -> u64 {
        let turns = turns["turns"].as_array().expect("turns").iter();
        turns.map(|turn| turn["usage"][kind].as_u64().expect("a number")).sum()
    };
    let known = api.ok("session/messages", json!({"session": "s", "limit": 500})).await["messages"].clone();
    // The turn `held` with its tool, the dropped ones, and three answered ones.
    let mut expected = vec![1, 1, 1, 1];
    expected.extend(2..=GIVEN_UP + 1);
    expected.extend((1..=3).flat_map(|number| [GIVEN_UP + 1 + number; 2]));
    for limit in [1, 3, 50, 500] {
        let (mut messages, mut usage, mut after): (Vec<Value>, (u64, u64), Value) = Default::default();
        loop {
            let page = json!({"lineage": "one", "session": "s", "after": after, "limit": limit});
            let page = api.ok("lineage/messages", page).await;
            assert!(page.to_string().len() < 2 * 1024 * 1024, "a page is larger than it should be");
            let found = page["messages"].as_array().expect("messages").clone();
            assert!(found.len() <= limit);
            messages.extend(found);
            usage.0 += page["usage"]["input_tokens"].as_u64().expect("a number");
            usage.1 += page["usage"]["output_tokens"].as_u64().expect("a number");
            after = page["next"].clone();
            if after.is_null() {
                break;
            }
        }
        assert_eq!(usage, (tokens("input_tokens"), tokens("output_tokens")), "pages of {limit}");
        let numbers: Vec<u64> =
            messages.iter().map(|message| message["turn"].as_u64().expect("a number")).collect();
        assert_eq!(numbers, expected, "pages of {limit}");
        let times: Vec<&Value> = known.as_array().expect("messages").iter().map(|one| &one["at"]).collect();
        assert!(messages.iter().all(|message| times.contains(&&message["at"])));
    }
    api.refused("lineage/messages", json!({"lineage": "one", "session": "none"}), "session.not_found").await;
    let wrong = json!({"lineage": "one", "session": "s", "after": "x"});
    api.refused("lineage/messages", wrong, "params.invalid").await;
    api.refused("lineage/snapshot", json!({"lineage": "lin_0"}), "lineage.not_found").await;
}

#[tokio::test]
async fn sessions_are_paged_without_loss_or_repetition() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for session in ["a", "b", "c", "d", "e"] {
        api.answer(&agent, session, "[[reply:x]]").await;
    }
    let (mut seen, mut after) = (Vec::new(), Value::Null);
    loop {
        let page = api.ok("lineage/snapshot", json!({"lineage": "one", "after": after, "limit": 2})).await;
        seen.extend(page["sessions"].as_array().expect("sessions").iter().map(|one| id(one).to_owned()));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
}

#[tokio::test]
async fn a_lineage_that_is_over_keeps_its_snapshot_and_the_next_one_counts_only_its_own_tokens() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "[[reply:a]] [[usage:7:2]]").await;
    let first = api.ok("agent/get", json!({"agent": agent})).await["lineage"].clone();
    api.ok("agent/kill", json!({"agent": agent})).await;
    let over = document(&world, first.as_str().expect("an id"));
    api.ok("agent/start", json!({"agent": agent})).await;
    api.agent_is(&agent, "ready").await;
    api.answer(&agent, "s", "[[reply:b]] [[usage:5:1]]").await;
    api.answer(&agent, "t", "[[reply:c]] [[usage:1:1]]").await;
    assert_eq!(document(&world, first.as_str().expect("an id")), over);
    let next = parsed(&document(&world, "one"));
    assert_ne!(next["lineage_id"], first);
    assert_eq!(next["usage"], json!({"input_tokens": 6, "output_tokens": 2}));
    // It continues the existing conversation.
    assert_eq!(next["sessions"][0]["turns"], 2);
}

/// Pages in the write-ahead log, and the identity of the log.
fn log_of(home: &Path) -> (u64, u64) {
    let bytes = fs::read(home.join("daemon.db-wal")).expect("a log");
    let word =
        |at: usize| bytes.get(at..at + 4).map(|word| u32::from_be_bytes(word.try_into().expect("four")));
    let salt = |at: usize| Some((u64::from(word(at)?) << 32) | u64::from(word(at + 4)?));
    let page = word(8).expect("a header") as usize;
    let (own, mut at, mut pages) = (salt(16), 32, 0);
    while own.is_some() && salt(at + 8) == own {
        (at, pages) = (at + 24 + page, pages + 1);
    }
    (own.expect("a header"), pages)
}

/// What some turns wrote, the middle of them.
async fn pages_a_turn(world: &ApiWorld, api: &mut CheckedClient, agent: &str) -> u64 {
    let mut written = Vec::new();
    while written.len() < 9 {
        let (log, before) = log_of(&world.lodge.home());
        api.answer(agent, "s", "[[big:20000]]").await;
        let (same, after) = log_of(&world.lodge.home());
        // A log that was restarted in the meantime cannot be compared; the next turn can.
        if log == same {
            written.push(after - before);
        }
    }
    written.sort_unstable();
    written[written.len() / 2]
}

#[tokio::test]
async fn a_turn_writes_no_more_when_the_conversation_is_long() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let young = pages_a_turn(&world, &mut api, &agent).await;
    let files = |dir: &Path| -> Vec<String> {
        let entries = fs::read_dir(dir).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    };
    let before = files(&world.lodge.home());
    for _ in 0..60 {
        api.answer(&agent, "s", "[[big:20000]]").await;
    }
    let old = pages_a_turn(&world, &mut api, &agent).await;
    // The whole conversation would be hundreds of pages by now; a tree that grew by a level is a few.
    assert!(old <= young + 8, "{young} pages a turn became {old}");
    assert_eq!(files(&world.lodge.home()), before, "a turn leaves a file");
    assert!(document(&world, "one").len() > 60 * 20_000);
}

#[tokio::test]
async fn a_document_from_a_file_is_shown_and_upgraded_without_a_daemon() {
    let world = ApiWorld::asleep();
    let file = world.lodge.dir().join("snapshot.json");
    let path = file.to_str().expect("UTF-8");
    fs::write(&file, include_bytes!("../../fixtures/snapshot-v1.json")).expect("a file");
    let shown = world.lodge.cli_ok(["lineage", "show", "--file", path]);
    for line in ["policy       ask", "usage        41 tokens in, 17 tokens out", "version      2"] {
        assert!(shown.contains(line), "`{line}` is missing: {shown}");
    }
    let today = world.lodge.cli_ok(["lineage", "show", "--file", path, "--snapshot"]);
    assert_eq!(parsed(&today)["config"]["limits"]["revival_policy"], "ask");
    fs::write(&file, &today).expect("a file");
    assert_eq!(world.lodge.cli_ok(["--json", "lineage", "show", "--file", path]), today);
    fs::write(&file, r#"{"version": 9, "sessions": []}"#).expect("a file");
    let (code, out, err) = told(&world.lodge.cli(["lineage", "show", "--file", path]));
    let expected = "error: the snapshot has version 9, and this release reads versions 1 to 2\n\n\
        hint: a newer release wrote it: read it with that one\n";
    assert_eq!((code, out.as_str(), err.as_str()), (1, "", expected));
    let (code, _, err) = world.cli(&["lineage", "show", "--file", "/no/such/file"]);
    assert!(code == 1 && err.contains("because: no such file or directory"), "{err}");
}
