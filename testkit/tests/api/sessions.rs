//! Conversations: how they are addressed, and that their turns run in order.

use serde_json::{Value, json};

use crate::world::{ApiWorld, id, sh};

/// How long the provider takes for each answer of a test.
const DELAY_MS: u64 = 20;

#[tokio::test]
async fn a_session_is_found_by_its_id_or_by_who_speaks_to_whom() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    // A fresh one gets an id of its own.
    let fresh = api.ok("turn/send", json!({"agent": one, "text": "hi"})).await;
    assert!(fresh["session"].as_str().expect("an id").starts_with("ses_"), "{fresh}");
    // A chosen id is kept as it is.
    let chosen = "Team:42/".trim_end_matches('/');
    assert_eq!(api.say(&one, chosen, "[[reply:{{turn}}]]").await["text"], "1");
    assert_eq!(api.say(&one, chosen, "[[reply:{{turn}}]]").await["text"], "2");
    // The sender is enough, with no token to carry; each pair has a session of its own.
    let mut sessions = Vec::new();
    for (agent, sender) in [(&one, "ann"), (&one, "ann"), (&one, "bob"), (&two, "ann")] {
        let params = json!({"agent": agent, "sender": sender, "text": "[[reply:{{turn}}]]"});
        let sent = api.ok("turn/send", params).await;
        let turn = api.ended(id(&sent)).await;
        sessions.push((turn["session"].as_str().expect("an id").to_owned(), turn["text"].clone()));
    }
    assert_eq!(sessions[0].0, sessions[1].0);
    let texts: Vec<&Value> = sessions.iter().map(|(_, text)| text).collect();
    assert_eq!(texts, ["1", "2", "1", "1"]);
    assert_ne!(sessions[0].0, sessions[2].0);
    assert_ne!(sessions[0].0, sessions[3].0);
    let view = api.ok("session/get", json!({"session": sessions[0].0})).await;
    assert_eq!((&view["sender"], &view["turns"], &view["agent"]), (&json!("ann"), &json!(2), &json!(one)));
    assert!(view["id"].as_str().expect("an id").starts_with("ses_"));
}

#[tokio::test]
async fn a_sender_keeps_the_session_across_a_restart() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let params = json!({"agent": agent, "sender": "ann", "text": "[[reply:{{turn}}]]"});
    let first = api.ok("turn/send", params.clone()).await;
    api.ended(id(&first)).await;
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let second = api.ok("turn/send", params).await;
    assert_eq!(second["session"], first["session"]);
    assert_eq!(api.ended(id(&second)).await["text"], "2");
}

#[tokio::test]
async fn a_session_of_another_agent_and_ids_that_are_none_are_refused() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    api.answer(&one, "mine", "hi").await;
    let send = |agent: &str, session: &str| json!({"agent": agent, "session": session, "text": "hi"});
    let error = api.refused("turn/send", send(&two, "mine"), "session.other_agent").await;
    assert_eq!(error["message"], "session `mine` belongs to the agent `one`");
    assert!(
        error["data"]["hint"].as_str().is_some_and(|hint| hint.contains("lodge prompt one -s mine")),
        "{error}"
    );
    let long = "x".repeat(129);
    for bad in ["", "a b", "a/b", "ü", "a\n", long.as_str()] {
        api.refused("turn/send", send(&one, bad), "session.bad_id").await;
        api.refused("session/get", json!({"session": bad}), "session.bad_id").await;
    }
    assert_eq!(api.answer(&one, &"x".repeat(128), "[[reply:ok]]").await, "ok");
    let both = json!({"agent": one, "session": "a", "sender": "b", "text": "hi"});
    api.refused("turn/send", both, "params.invalid").await;
    for method in ["session/get", "session/messages", "turn/list"] {
        api.refused(method, json!({"session": "none"}), "session.not_found").await;
    }
    for text in ["", " \n"] {
        api.refused("turn/send", json!({"agent": one, "text": text}), "turn.empty").await;
    }
    let big = json!({"agent": one, "text": "x".repeat(1024 * 1024 + 1)});
    api.refused("turn/send", big, "turn.too_large").await;
    let sessions = api.ok("session/list", json!({})).await;
    assert_eq!(sessions["sessions"].as_array().expect("sessions").len(), 2, "a refusal made a session");
}

#[tokio::test]
async fn turns_of_one_session_never_interleave() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let mut turns = Vec::new();
    for n in 0..5 {
        let tool = sh(&format!("echo out{n}"));
        let text = format!("n{n} {tool} [[delay:{DELAY_MS}]][[reply:n{n}:{{{{tool}}}}]]");
        let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
        turns.push(id(&sent).to_owned());
    }
    for (n, turn) in turns.iter().enumerate() {
        let text = api.ended(turn).await["text"].as_str().expect("a text").to_owned();
        assert!(text.starts_with(&format!("n{n}:")) && text.contains(&format!("out{n}")), "{text}");
    }
    // The provider saw two requests a turn, each begun after the one before was answered.
    let requests = world.mock.requests().expect("a log");
    let users: Vec<String> = requests.iter().map(|line| line.user[..2].to_owned()).collect();
    assert_eq!(users, ["n0", "n0", "n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4"]);
    // Its own note of an answer may come behind the next request: what is certain is how long each took at least.
    for (before, request) in requests.iter().zip(&requests[1..]) {
        assert!(before.at_us + DELAY_MS * 1_000 <= request.at_us, "{before:#?} {request:#?}");
    }
    let messages = api.ok("session/messages", json!({"session": "s"})).await;
    let messages = messages["messages"].as_array().expect("messages");
    let order: Vec<(&str, &str)> = messages
        .iter()
        .map(|message| (message["turn"].as_str().expect("a turn"), message["role"].as_str().expect("a role")))
        .collect();
    let expected: Vec<(&str, &str)> = turns
        .iter()
        .flat_map(|turn| ["user", "assistant", "tool", "assistant"].map(|role| (turn.as_str(), role)))
        .collect();
    // A message is kept when it is accepted, so those that waited stand before the answers they waited for.
    let mut sorted = order.clone();
    sorted.sort_by_key(|(turn, _)| turns.iter().position(|known| known == turn));
    assert_eq!(sorted, expected);
}

#[tokio::test]
async fn a_full_session_refuses_and_says_so() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let send = json!({"agent": agent, "session": "s", "text": "[[hang]]"});
    for _ in 0..65 {
        api.ok("turn/send", send.clone()).await;
    }
    let error = api.refused("turn/send", send, "session.queue_full").await;
    assert!(error["data"]["hint"].is_string());
    // Another session is not concerned.
    assert_eq!(api.answer(&agent, "other", "[[reply:ok]]").await, "ok");
}

#[tokio::test]
async fn a_conversation_is_readable_while_its_agent_is_stopped() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "remember [[reply:this]]").await;
    api.ok("agent/stop", json!({"agent": agent})).await;
    let messages = api.ok("session/messages", json!({"session": "s"})).await;
    assert_eq!(messages["messages"][0]["text"], "remember [[reply:this]]");
    assert_eq!(messages["messages"][1]["text"], "this");
    assert_eq!(api.ok("turn/list", json!({"session": "s"})).await["turns"][0]["text"], "this");
    let send = json!({"agent": agent, "session": "s", "text": "hi"});
    let error = api.refused("turn/send", send, "agent.not_running").await;
    assert!(error["data"]["hint"].as_str().expect("a hint").contains("lodge start"), "{error}");
}

#[tokio::test]
async fn messages_are_paged_backwards_to_the_first() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for n in 0..6 {
        api.answer(&agent, "s", &format!("m{n}")).await;
    }
    let (mut seen, mut before) = (Vec::new(), Value::Null);
    loop {
        let params = json!({"session": "s", "limit": 5, "before": before});
        let page = api.ok("session/messages", params).await;
        let items: Vec<u64> = page["messages"]
            .as_array()
            .expect("messages")
            .iter()
            .map(|message| message["seq"].as_u64().expect("a sequence"))
            .collect();
        seen.splice(0..0, items);
        before = page["next"].clone();
        if before.is_null() {
            break;
        }
    }
    assert_eq!(seen, (1..=12).collect::<Vec<u64>>());
}
