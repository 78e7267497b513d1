//! Sessions that are listed, searched and exported, and the commands for all that is done to them.

use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::world::{ApiWorld, id, sh};

async fn found(api: &mut CheckedClient, params: Value) -> Vec<(String, u64, String)> {
    let page = api.ok("session/search", params).await;
    let hits = page["hits"].as_array().expect("hits");
    let word = |hit: &Value, key: &str| hit[key].as_str().expect("a word").to_owned();
    hits.iter()
        .map(|hit| (word(hit, "session"), hit["number"].as_u64().expect("a number"), word(hit, "role")))
        .collect()
}

fn hit(session: &str, number: u64, role: &str) -> (String, u64, String) {
    (session.to_owned(), number, role.to_owned())
}

#[tokio::test]
async fn messages_are_found_by_words_phrases_and_beginnings_wherever_they_stand() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    api.answer(&one, "a", "where is the Harbour [[reply:past the old lighthouse]]").await;
    api.answer(&two, "b", "the HARBOUR again [[reply:lighthouse old and red]]").await;
    api.answer(&one, "a", &format!("{} [[reply:seen]]", sh("echo a harbourmaster"))).await;
    let all = found(&mut api, json!({"query": "harbour"})).await;
    assert_eq!(all, [hit("b", 1, "user"), hit("a", 1, "user")]);
    assert_eq!(
        found(&mut api, json!({"query": "\"old lighthouse\""})).await,
        [hit("a", 1, "user"), hit("a", 1, "assistant")][..].iter().rev().cloned().collect::<Vec<_>>()
    );
    let masters = found(&mut api, json!({"query": "harbourm*"})).await;
    assert!(
        masters.contains(&hit("a", 2, "tool")) && masters.contains(&hit("a", 2, "assistant")),
        "{masters:?}"
    );
    assert_eq!(found(&mut api, json!({"query": "harbour", "agent": "two"})).await, [hit("b", 1, "user")]);
    assert_eq!(found(&mut api, json!({"query": "harbour", "session": "a"})).await, [hit("a", 1, "user")]);
    assert!(found(&mut api, json!({"query": "nowhere"})).await.is_empty());
    // The snippet shows it, with its place.
    let page = api.ok("session/search", json!({"query": "again"})).await;
    let (snippet, mark) = (&page["hits"][0]["snippet"], &page["hits"][0]["marks"][0]);
    let snippet: Vec<char> = snippet.as_str().expect("a snippet").chars().collect();
    let place = |key: &str| usize::try_from(mark[key].as_u64().expect("a place")).expect("a place");
    assert_eq!(snippet[place("start")..place("end")].iter().collect::<String>(), "again");
    // In pages, each hit once.
    let (mut seen, mut after) = (Vec::new(), Value::Null);
    loop {
        let page = api.ok("session/search", json!({"query": "l*", "limit": 1, "after": after})).await;
        seen.extend(
            page["hits"]
                .as_array()
                .expect("hits")
                .iter()
                .map(|hit| hit["seq"].to_string() + &hit["session"].to_string()),
        );
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    let whole = api.ok("session/search", json!({"query": "l*"})).await;
    assert_eq!(seen.len(), whole["hits"].as_array().expect("hits").len());
}

#[tokio::test]
async fn a_query_that_says_nothing_is_refused_in_words() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for query in ["", "  ", "\"open", "***", "!?", "a*b", &"x ".repeat(40), &"y".repeat(2_000)] {
        let error = api.refused("session/search", json!({"query": query}), "search.bad_query").await;
        assert!(error["data"]["hint"].is_string(), "{error}");
        assert!(!error.to_string().to_lowercase().contains("sql"), "{error}");
    }
    // What another language would take for its own is looked for as it is.
    for query in ["a OR", "NOT", "NEAR(a b)", "text : x", "a) (b", "^x", "-y", "x;DROP TABLE y", "'; --z"] {
        api.ok("session/search", json!({"query": query})).await;
    }
    api.refused("session/search", json!({"query": "x", "agent": "nobody"}), "agent.not_found").await;
    api.refused("session/search", json!({"query": "x", "session": "none"}), "session.not_found").await;
    api.refused("session/search", json!({"query": "x", "after": "y"}), "params.invalid").await;
}

#[tokio::test]
async fn the_index_can_be_lost_and_what_was_deleted_or_rewound_is_reported_as_it_is() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for session in ["a", "b"] {
        api.answer(&agent, session, "a walrus").await;
        api.answer(&agent, session, "a second walrus").await;
    }
    assert_eq!(found(&mut api, json!({"query": "walrus", "session": "a"})).await.len(), 2);
    let whole = found(&mut api, json!({"query": "walrus"})).await;
    for name in ["search.db", "search.db-wal", "search.db-shm"] {
        drop(std::fs::remove_file(world.lodge.home().join(name)));
    }
    assert_eq!(found(&mut api, json!({"query": "walrus"})).await, whole);
    world.lodge.kill9();
    std::fs::write(world.lodge.home().join("search.db"), "not a database at all").expect("a file");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(found(&mut api, json!({"query": "walrus"})).await, whole);
    // Turns off the path are found, and marked.
    api.ok("session/rewind", json!({"session": "a", "turn": "1"})).await;
    let page = api.ok("session/search", json!({"query": "second walrus", "session": "a"})).await;
    assert_eq!(page["hits"][0]["active"], false, "{page}");
    // Deleted messages are not found, whether or not the index existed at that time.
    api.ok("session/delete", json!({"session": "b"})).await;
    assert!(found(&mut api, json!({"query": "walrus"})).await.iter().all(|(session, ..)| session == "a"));
    let bytes = std::fs::read(world.lodge.home().join("search.db")).expect("an index");
    assert!(!bytes.is_empty());
    api.ok("session/delete", json!({"session": "a"})).await;
    assert!(found(&mut api, json!({"query": "walrus"})).await.is_empty());
}

#[tokio::test]
async fn an_export_has_everything_line_by_line_and_page_after_page() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let text = format!("{} [[usage:7:3]] [[reply:ok]]", sh("echo out; exit 3"));
    api.answer(&agent, "s", &text).await;
    let cut = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "[[hang]]"})).await;
    api.until("turn/get", json!({"turn": id(&cut)}), |turn| turn["status"] == "running").await;
    api.ok("turn/interrupt", json!({"turn": id(&cut)})).await;
    let again = api.ok("session/regenerate", json!({"session": "s", "turn": "1"})).await;
    api.ended(id(&again)).await;
    let lines = world.lodge.cli_ok(["session", "export", "s"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (head, messages) = (&lines[0], &lines[1..]);
    assert_eq!(
        (&head["type"], &head["id"], &head["version"], &head["turns"]),
        (&json!("session"), &json!("s"), &json!(1), &json!(1))
    );
    assert!(messages.iter().all(|line| line["type"] == "message"));
    let roles: Vec<&str> = messages.iter().map(|line| line["role"].as_str().expect("a role")).collect();
    assert_eq!(
        roles,
        ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant", "user"]
    );
    let active: Vec<bool> = messages.iter().map(|line| line["active"] == true).collect();
    assert_eq!(active.iter().filter(|active| **active).count(), 4);
    assert!(active[..4].iter().chain(&active[8..]).all(|active| !active));
    let calls = &messages[1]["calls"][0];
    assert_eq!((&calls["name"], &messages[2]["call"]), (&json!("sh"), &calls["id"]));
    assert_eq!(messages[2]["result"], json!({"status": "done", "exit_code": 3, "signal": null}));
    assert!(messages[2]["text"].as_str().expect("a text").contains("out"));
    assert_eq!(
        (&messages[0]["usage"]["output_tokens"], &messages[0]["outcome"]["status"]),
        (&json!(6), &json!("done"))
    );
    assert_eq!(messages[8]["outcome"]["status"], "interrupted");
    assert_eq!(messages[4]["outcome"]["replaces"], messages[0]["turn"]);
    assert_eq!((&messages[4]["number"], &messages[8]["number"]), (&json!(1), &json!(2)));
    // Small pages give the same lines.
    let (mut paged, mut after) = (Vec::new(), Value::Null);
    loop {
        let page = api.ok("session/export", json!({"session": "s", "limit": 2, "after": after})).await;
        paged.extend(page["lines"].as_array().expect("lines").iter().cloned());
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(paged, lines);
    assert_eq!(world.cli(&["session", "export", "none"]).0, 1);
}

#[tokio::test]
async fn sessions_are_listed_with_the_newest_first() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for session in ["a", "b", "c"] {
        api.answer(&agent, session, "hi").await;
    }
    api.answer(&agent, "a", "hi").await;
    assert_eq!(world.lodge.cli_ok(["-q", "session", "ls"]), "a\nc\nb\n");
    assert_eq!(world.lodge.cli_ok(["-q", "session", "ls", "--limit", "2"]), "a\nc\n");
    assert_eq!(world.lodge.cli_ok(["-q", "session", "ls", "--agent", "one", "--limit", "1"]), "a\n");
    assert_eq!(world.cli_json(&["--json", "session", "ls", "--limit", "1"])[0]["agent_name"], "one");
    api.refused("session/list", json!({"after": "x"}), "params.invalid").await;
}

#[tokio::test]
async fn every_change_of_a_session_has_a_command() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let count = format!("{} [[reply:answer {{{{tool}}}}]]", sh("printf x >> n; cat n"));
    world.lodge.cli_ok(["prompt", "one", "--sender", "ann", "hello [[reply:hi]]"]);
    world.lodge.cli_ok(["prompt", "one", "--sender", "ann", &count]);
    let session = world.lodge.cli_ok(["-q", "session", "ls"]).trim().to_owned();
    assert_eq!(world.lodge.cli_ok(["-q", "session", "ls"]).lines().count(), 1, "one sender, one session");
    let again = world.lodge.cli_ok(["session", "regenerate", "--yes", &session]);
    assert!(again.contains("answer xx"), "{again}");
    let shown = world.lodge.cli_ok(["session", "show", &session]);
    for part in ["with ann", "turn 2 has other branches: trn_", "on other branches", "⚙ sh", "answer xx"] {
        assert!(shown.contains(part), "`{part}` is missing: {shown}");
    }
    assert!(!shown.contains("answer x\n"), "{shown}");
    let all = world.lodge.cli_ok(["session", "show", "--all", &session]);
    assert!(all.contains("answer x\n") && all.contains("is not on the path"), "{all}");
    let turns = api.ok("turn/list", json!({"session": session, "all": true})).await;
    let old = turns["turns"].as_array().expect("turns").iter().find(|turn| turn["active"] == false);
    let old = id(old.expect("a branch")).to_owned();
    assert_eq!(world.cli_json(&["--json", "session", "activate", &session, &old])["turns"], 2);
    assert!(world.lodge.cli_ok(["session", "show", &session]).contains("answer x\n"));
    let fork = world.lodge.cli_ok(["session", "fork", &session, "--at", "1", "--as", "copy"]);
    assert_eq!(fork, "copy\n");
    let shown = world.lodge.cli_ok(["session", "show", "copy"]);
    assert!(shown.contains(&format!("forked from {session} at turn 1")), "{shown}");
    assert_eq!(world.cli_json(&["--json", "session", "rewind", &session, "1"])["turns"], 1);
    let hits = world.cli_json(&["--json", "session", "search", "hello"]);
    assert_eq!(hits.as_array().expect("hits").len(), 2);
    let (code, out, _) = world.cli(&["session", "search", "hello", "--session", "copy"]);
    assert!(code == 0 && out.starts_with("copy  turn 1  user"), "{out}");
    assert_eq!(world.cli(&["session", "search", "!!"]).0, 1);
    let (code, out, err) = world.cli(&["session", "rm", "copy", "never-was"]);
    assert_eq!((code, out.as_str()), (0, "copy\nnever-was\n"));
    assert!(err.contains("there was no session never-was"), "{err}");
    let gone = world.cli_json(&["--json", "session", "rm", &session]);
    assert_eq!(gone, json!({"session": session, "deleted": true}), "an object for one thing");
    let gone = world.cli_json(&["--json", "session", "rm", &session, "never-was"]);
    assert_eq!(gone.as_array().expect("an array for several").len(), 2);
    assert_eq!(world.cli_json(&["--json", "session", "ls"]), json!([]));
    let turn = world.lodge.cli_ok(["prompt", "one", "-s", "x", "--detach", "[[reply:y]]"]);
    api.ended(turn.trim()).await;
    let detached = world.lodge.cli_ok(["session", "regenerate", "x", "--detach"]);
    assert_eq!(api.ended(detached.trim()).await["status"], "done");
}
