//! What each issuer's tokens may do, and that an agent's reaches that agent alone.

use std::collections::BTreeSet;
use std::io::BufRead;

use lodge_proto::client::{Client, ClientError};
use lodge_testkit::lodge::PATIENCE;
use serde_json::{Value, json};

use crate::checked::CheckedClient;
use crate::tokens::{attached, events, issue};
use crate::world::{ApiWorld, id};

/// What a token of an agent may call, as the documents say.
const AGENT_MAY: &[&str] = &[
    "rpc/discover",
    "agent/list",
    "agent/get",
    "turn/send",
    "turn/get",
    "turn/list",
    "turn/interrupt",
    "session/list",
    "session/get",
    "session/messages",
    "session/export",
    "session/search",
    "job/submit",
    "job/list",
    "job/get",
    "job/wait",
    "job/cancel",
    "job/output",
    "event/list",
    "client/attach",
    "client/detach",
];

/// Two agents with a session and a turn each: (agent, session, turn).
async fn two_agents(world: &ApiWorld, api: &mut CheckedClient) -> [(String, String, String); 2] {
    let mut made = Vec::new();
    for name in ["one", "two"] {
        let agent = world.agent(api, name).await;
        let turn = api.say(&agent, &format!("of-{name}"), "[[reply:hello]]").await;
        made.push((agent, format!("of-{name}"), id(&turn).to_owned()));
    }
    made.try_into().expect("two agents")
}

#[tokio::test]
async fn an_agents_token_may_call_its_list_and_a_refusal_names_that_list() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let (_, token) = issue(&mut api, json!({"agent": "one", "name": "laptop"})).await;
    let mut own = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
    let all = api.schemas.methods();
    let may: BTreeSet<String> = AGENT_MAY.iter().map(|name| (*name).to_owned()).collect();
    assert!(may.is_subset(&all));
    for method in all.difference(&may) {
        // Forbidden for all parameters, before they are read.
        for params in [json!({}), json!({"agent": agent}), json!({"no_such": 1}), json!({"request_id": "r"})]
        {
            match own.call_value(method, params).await {
                Err(ClientError::Refused(body)) => {
                    assert_eq!(body.data.code, "auth.forbidden", "{method}");
                    let hint = body.data.hint.unwrap_or_default();
                    assert!(AGENT_MAY.iter().all(|name| hint.contains(name)), "{method}: {hint}");
                }
                other => panic!("{method}: {other:?}"),
            }
        }
    }
    for method in &may {
        if let Err(ClientError::Refused(body)) = own.call_value(method, json!({})).await {
            assert_ne!(body.data.code, "auth.forbidden", "{method}");
        }
    }
}

#[tokio::test]
async fn an_agents_token_sees_and_changes_its_own_agent() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let [(agent, session, turn), _] = two_agents(&world, &mut api).await;
    let (_, token) = issue(&mut api, json!({"agent": agent})).await;
    let mut own = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
    let listed = own.call_value("agent/list", json!({"all": true})).await.expect("a list");
    let names: Vec<&Value> =
        listed["agents"].as_array().expect("agents").iter().map(|a| &a["name"]).collect();
    assert_eq!(names, [&json!("one")]);
    let sessions = own.call_value("session/list", json!({})).await.expect("a list");
    let ids: Vec<&Value> =
        sessions["sessions"].as_array().expect("sessions").iter().map(|s| &s["id"]).collect();
    assert_eq!(ids, [&json!(session)]);
    for (method, params) in [
        ("agent/get", json!({"agent": "one"})),
        ("agent/get", json!({"agent": agent})),
        ("agent/get", json!({"agent": agent[..agent.len() - 1]})),
        ("agent/get", json!({})),
        ("turn/get", json!({"turn": turn})),
        ("turn/list", json!({"session": session})),
        ("session/get", json!({"session": session})),
        ("session/messages", json!({"session": session})),
        ("session/list", json!({"agent": "one"})),
        ("event/list", json!({"agent": "one", "session": session})),
    ] {
        own.call_value(method, params.clone())
            .await
            .unwrap_or_else(|error| panic!("{method} {params}: {error:?}"));
    }
    let params = json!({"agent": "one", "session": "mine", "text": "[[reply:hi]]", "request_id": "r"});
    let sent = own.call_value("turn/send", params.clone()).await.expect("a turn");
    assert_eq!(own.call_value("turn/send", params).await.expect("the same turn")["id"], sent["id"]);
    assert_eq!(api.ended(id(&sent)).await["text"], "hi");
    let slow =
        own.call_value("turn/send", json!({"session": "mine", "text": "[[hang]]"})).await.expect("a turn");
    let stopped =
        own.call_value("turn/interrupt", json!({"turn": id(&slow)})).await.expect("an interruption");
    assert_eq!(stopped["status"], "interrupted");
}

#[tokio::test]
async fn to_an_agents_token_what_belongs_to_others_looks_as_if_it_were_not_there() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let [(agent, _, _), (other, session, turn)] = two_agents(&world, &mut api).await;
    let (_, token) = issue(&mut api, json!({"agent": agent})).await;
    let mut own = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
    // An object of another owner, and one that does not exist.
    for (method, theirs, nobodys) in [
        ("agent/get", json!({"agent": other}), json!({"agent": "agt_0"})),
        ("agent/get", json!({"agent": "two"}), json!({"agent": "six"})),
        // The beginning of every id.
        ("agent/get", json!({"agent": ""}), json!({"agent": "agt_zzz"})),
        ("turn/get", json!({"turn": turn}), json!({"turn": "trn_0"})),
        ("turn/interrupt", json!({"turn": turn}), json!({"turn": "trn_0"})),
        ("turn/list", json!({"session": session}), json!({"session": "none"})),
        ("session/get", json!({"session": session}), json!({"session": "none"})),
        ("session/messages", json!({"session": session}), json!({"session": "none"})),
        ("session/export", json!({"session": session}), json!({"session": "none"})),
        (
            "session/search",
            json!({"agent": "two", "query": "hello"}),
            json!({"agent": "six", "query": "hello"}),
        ),
        ("session/list", json!({"agent": "two"}), json!({"agent": "six"})),
        ("event/list", json!({"agent": "two"}), json!({"agent": "six"})),
        ("client/attach", json!({"agent": "two"}), json!({"agent": "six"})),
        ("turn/send", json!({"agent": "two", "text": "hi"}), json!({"agent": "six", "text": "hi"})),
    ] {
        let mut told = Vec::new();
        for params in [theirs, nobodys] {
            match own.call_value(method, params.clone()).await {
                Err(ClientError::Refused(body)) => {
                    assert!(body.data.code.ends_with(".not_found"), "{method} {params}: {body:?}");
                    let named = ["agent", "turn", "session"].iter().find_map(|key| params[*key].as_str());
                    let words = body.message.replace(&format!("`{}`", named.expect("a name")), "it");
                    told.push((body.data.code, words, body.data.cause, body.data.hint));
                }
                got => panic!("{method} {params}: {got:?}"),
            }
        }
        assert_eq!(told[0], told[1], "{method} tells the two apart");
    }
    // Without a session it lists the turns of its own agent.
    let listed = own.call_value("turn/list", json!({})).await.expect("turns");
    let listed = listed["turns"].as_array().expect("turns").clone();
    assert!(!listed.is_empty() && listed.iter().all(|turn| turn["agent"] == json!(agent)), "{listed:?}");
    assert_eq!(
        api.ok("turn/list", json!({"session": session})).await["turns"].as_array().expect("turns").len(),
        1
    );
}

#[tokio::test]
async fn an_agents_token_can_neither_find_out_nor_take_a_session_id_of_others() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let [(agent, session, _), (other, theirs, _)] = two_agents(&world, &mut api).await;
    let (_, token) = issue(&mut api, json!({"agent": agent})).await;
    let (_, others_token) = issue(&mut api, json!({"agent": other})).await;
    let mut own = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
    let mut their = Client::connect(&world.lodge.target(), &others_token).await.expect("a connection");
    // The id of another agent's object and an unused id look the same to it.
    for given in [theirs.as_str(), "nobodys"] {
        let own_id = format!("{agent}:{given}");
        own.call_value("client/attach", json!({"session": given})).await.expect("an attachment");
        let events = own.call_value("event/list", json!({"session": given})).await.expect("events");
        assert_eq!(events["events"], json!([]), "{given}");
        let jobs = own.call_value("job/list", json!({"session": given})).await.expect("jobs");
        assert_eq!(jobs["jobs"], json!([]), "{given}");
        let job = json!({"bin": "sh", "args": ["-c", "true"], "session": given});
        let job = own.call_value("job/submit", job).await.expect("a job");
        assert_eq!(job["session"], json!(own_id));
        let sent = own.call_value("turn/send", json!({"session": given, "text": "[[reply:mine]]"})).await;
        let sent = sent.expect("a turn");
        assert_eq!((&sent["session"], &sent["agent"]), (&json!(own_id), &json!(agent)), "{given}");
        assert_eq!(api.ended(id(&sent)).await["text"], "mine");
        // By either id, for reads and writes with such a token.
        for name in [given, &own_id] {
            let got = own.call_value("session/get", json!({"session": name})).await.expect("a session");
            assert_eq!(got["id"], json!(own_id), "{name}");
            let again =
                own.call_value("turn/send", json!({"session": name, "text": "[[reply:again]]"})).await;
            let again = again.expect("a turn");
            assert_eq!(again["session"], json!(own_id), "{name}");
            api.ended(id(&again)).await;
        }
        for method in ["turn/list", "session/messages", "session/export"] {
            let got = own.call_value(method, json!({"session": given})).await.expect("a session");
            assert!(!got.to_string().contains("hello"), "{method}: {got}");
        }
    }
    // What it used is still free for others: for their tokens, and for operators.
    let sent = their.call_value("turn/send", json!({"session": "nobodys", "text": "[[reply:x]]"})).await;
    assert_eq!(sent.expect("a turn")["session"], json!(format!("{other}:nobodys")));
    assert_eq!(api.answer(&other, "nobodys", "[[reply:y]]").await, "y");
    // Another agent's prefix is a name like any other.
    let foreign = format!("{other}:nobodys");
    match own.call_value("session/get", json!({"session": foreign})).await {
        Err(ClientError::Refused(body)) => {
            assert_eq!(
                (body.data.code.as_str(), body.message),
                ("session.not_found", format!("no session `{foreign}`"))
            );
        }
        got => panic!("{got:?}"),
    }
    // A session that an operator began for its agent is its own, by the id it has.
    let sent = own.call_value("turn/send", json!({"session": session, "text": "[[reply:z]]"})).await;
    assert_eq!(sent.expect("a turn")["session"], json!(session));
    assert_eq!(
        api.ok("turn/list", json!({"session": theirs})).await["turns"].as_array().expect("turns").len(),
        1
    );
    match own.call_value("turn/send", json!({"session": "x".repeat(128), "text": "hi"})).await {
        Err(ClientError::Refused(body)) => assert_eq!(body.data.code, "session.bad_id"),
        got => panic!("{got:?}"),
    }
}

#[tokio::test]
async fn an_agents_token_hears_of_its_own_agent_alone_wherever_it_listens() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let [(agent, ..), (other, session, _)] = two_agents(&world, &mut api).await;
    let (_, token) = issue(&mut api, json!({"agent": agent})).await;
    let mut all = attached(&world, &token).await;
    let mut own = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
    let state =
        own.call_value("client/attach", json!({"all": true, "since": 0})).await.expect("an attachment");
    assert_eq!(state["state"]["agents"].as_array().expect("agents").len(), 1);
    // A session that is unused, and then belongs to another agent.
    let mut early = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
    early.call_value("client/attach", json!({"session": "later"})).await.expect("an attachment");
    api.answer(&other, "later", "[[reply:secret]]").await;
    api.answer(&other, &session, "[[reply:secret]]").await;
    api.answer(&agent, "mine", "[[reply:end]]").await;
    for client in [&mut all, &mut own] {
        loop {
            let note =
                tokio::time::timeout(PATIENCE, client.next()).await.expect("in time").expect("a connection");
            let stream = &note.params[if note.method == "delta" { "agent" } else { "stream" }];
            assert_eq!(stream, &json!(agent), "{note:?}");
            if note.params["kind"] == "turn.finished" && note.params["data"]["session"] == "mine" {
                break;
            }
        }
    }
    let listed = own.call_value("event/list", json!({"limit": 500})).await.expect("events");
    assert!(!listed.to_string().contains(&other));
    let later = own.call_value("event/list", json!({"session": "of-nobody"})).await.expect("events");
    assert_eq!(later["events"], json!([]));
    let (listener, stream) = (world.lodge.http_addr(), events(&world.lodge, &token));
    let mut seen = String::new();
    for line in stream.lines() {
        let line = line.expect("a line");
        seen.push_str(&line);
        if line.starts_with("data:") && line.contains("turn.finished") && line.contains("\"mine\"") {
            break;
        }
    }
    assert!(
        seen.contains(&agent) && !seen.contains(&other) && !seen.contains("\"daemon\""),
        "{listener}: {seen}"
    );
    let heard = tokio::time::timeout(std::time::Duration::from_millis(1), early.next()).await;
    assert!(heard.is_err(), "{heard:?}");
}
