//! Following what happens: everything once, in order, from any point, at any speed.

use std::collections::BTreeMap;

use lodge_testkit::lodge::PATIENCE;
use serde_json::{Value, json};

use crate::world::{ApiWorld, id, sh};

fn seqs(events: &[Value]) -> Vec<u64> {
    events.iter().map(|event| event["seq"].as_u64().expect("a sequence")).collect()
}

#[tokio::test]
async fn without_a_cursor_there_is_the_state_and_then_what_happens() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let slow = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "[[hang]]"})).await;
    let begun = json!({"kind": "turn.step_started"});
    api.until("event/list", begun, |page| !page["events"].as_array().expect("events").is_empty()).await;
    let before = api.log().await.len() as u64;
    let mut other = api.again(&world.lodge).await;
    let attached = other.ok("client/attach", json!({"agent": "one"})).await;
    assert_eq!(attached["seq"], json!(before));
    assert_eq!(attached["state"]["agents"][0]["id"], json!(agent));
    assert_eq!(attached["state"]["turns"][0]["id"], slow["id"]);
    assert_eq!(attached["epoch"], 1);
    api.ok("turn/interrupt", json!({"turn": id(&slow)})).await;
    let events = other.events_to("agent.ready").await;
    assert_eq!(seqs(&events), (before + 1..=before + events.len() as u64).collect::<Vec<_>>());
    assert!(events.iter().any(|event| event["kind"] == "turn.interrupted"), "{events:#?}");
}

#[tokio::test]
async fn with_a_cursor_everything_after_it_comes_once_and_only_of_what_was_asked_for() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    for (agent, session) in [(&one, "a"), (&two, "b"), (&one, "c")] {
        api.answer(agent, session, &format!("{} [[reply:x]]", sh("echo hi"))).await;
    }
    api.agent_is(&one, "ready").await;
    let log = api.log().await;
    for since in [0, 1, log.len() as u64 / 2] {
        for (target, wanted) in [
            (json!({"all": true}), None),
            (json!({"agent": one}), Some(("stream", json!(one)))),
            (json!({"session": "b"}), Some(("session", json!("b")))),
        ] {
            let expected: Vec<&Value> = log
                .iter()
                .filter(|event| event["seq"].as_u64() > Some(since))
                .filter(|event| match &wanted {
                    None => true,
                    Some(("stream", stream)) => event["stream"] == *stream,
                    Some((_, session)) => event["data"]["session"] == *session,
                })
                .collect();
            let mut params = target.clone();
            params["since"] = json!(since);
            let mut other = api.again(&world.lodge).await;
            other.ok("client/attach", params).await;
            for known in expected {
                assert_eq!(other.event().await, *known, "{target} since {since}");
            }
        }
    }
    // A stream's own numbers have no gaps.
    let mut heads: BTreeMap<&str, u64> = BTreeMap::new();
    for event in &log {
        let head = heads.entry(event["stream"].as_str().expect("a stream")).or_default();
        *head += 1;
        assert_eq!(event["stream_seq"], json!(*head), "{event}");
    }
}

#[tokio::test]
async fn cursors_of_the_future_and_of_other_logs_and_unclear_targets_are_refused() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let future = json!({"all": true, "since": 1_000_000});
    let error = api.refused("client/attach", future, "cursor.future").await;
    assert!(error["data"]["hint"].is_string());
    let other = json!({"all": true, "since": 0, "log": "0123456789abcdef"});
    api.refused("client/attach", other, "cursor.other_log").await;
    for target in [json!({}), json!({"all": true, "session": "s"})] {
        api.refused("client/attach", target, "attach.bad_target").await;
    }
    api.refused("client/attach", json!({"agent": "nobody"}), "agent.not_found").await;
    api.refused("event/list", json!({"since": 1_000_000}), "cursor.future").await;
    let log = api.ok("info", json!({})).await["log"].clone();
    api.ok("client/attach", json!({"all": true, "since": 0, "log": log})).await;
    assert_eq!(api.event().await["kind"], "daemon.started");
}

#[tokio::test]
async fn deltas_by_their_offsets_are_the_text_that_is_kept() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let mut other = api.again(&world.lodge).await;
    other.ok("client/attach", json!({"agent": agent})).await;
    let text = "[[chunks:40:5]][[reply:zwölf Boxkämpfer jagen Viktor quer über den Sylter Deich, täglich]]";
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let (mut live, mut kept) = (Vec::new(), Vec::new());
    loop {
        let (method, params) = other.next().await;
        let data = if method == "delta" { &params } else { &params["data"] };
        let into = if method == "delta" { &mut live } else { &mut kept };
        if method == "delta" || params["kind"] == "turn.text" {
            let (offset, text) = (data["offset"].as_u64(), data["text"].as_str().expect("a text"));
            assert_eq!(offset, Some(into.len() as u64), "{method}");
            into.extend_from_slice(text.as_bytes());
        }
        if params["kind"] == "turn.finished" {
            break;
        }
    }
    let turn = api.ended(id(&sent)).await;
    let text = turn["text"].as_str().expect("a text");
    assert!(text.starts_with("zwölf") && text.ends_with("täglich"));
    assert_eq!((live.as_slice(), kept.as_slice()), (text.as_bytes(), text.as_bytes()));
}

/// Memory of the daemon that is its own, in kilobytes.
fn rss_kb(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a size");
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_previews_and_no_event_and_costs_little() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut other = api.again(&world.lodge).await;
        other.ok("client/attach", json!({"agent": agent})).await;
        slow.push(other);
    }
    api.answer(&agent, "warm", "[[big:400000]][[chunks:2000:0]]").await;
    let before = rss_kb(world.lodge.pid().expect("a daemon"));
    for n in 0..6 {
        let text = api.answer(&agent, &format!("s{n}"), "[[big:400000]][[chunks:4000:0]]").await;
        assert_eq!(text.len(), 400_000);
    }
    let after = rss_kb(world.lodge.pid().expect("a daemon"));
    // Eight clients times six answers would be 20 MB of text, and several times that as JSON.
    assert!(after < before + 16 * 1024, "from {before} kB to {after} kB");
    let log = api.log().await;
    for mut other in slow {
        let (mut events, mut lost) = (Vec::new(), 0);
        let read = async {
            let last = &log[log.len() - 1]["seq"];
            while lost == 0 || events.last().is_none_or(|event: &Value| event["seq"] != *last) {
                let (method, params) = other.next().await;
                match method.as_str() {
                    "event" => events.push(params),
                    "gap" => lost += params["dropped"].as_u64().expect("a number"),
                    _ => {}
                }
            }
        };
        tokio::time::timeout(PATIENCE, read)
            .await
            .expect("every event, and the tidings of lost previews, in time");
        let first = events[0]["seq"].as_u64().expect("a sequence");
        assert_eq!(seqs(&events), (first..first + events.len() as u64).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn after_a_kill_a_client_that_attaches_again_misses_nothing_and_sees_nothing_twice() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let attached = api.ok("client/attach", json!({"agent": agent, "since": 0})).await;
    let text = format!("{} [[reply:done]]", sh("until test -e go; do sleep 0.02; done; echo out"));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let mut seen = api.events_to("turn.tool_call").await;
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let cursor = seen[seen.len() - 1]["seq"].clone();
    let again = json!({"agent": agent, "since": cursor, "log": attached["log"]});
    let epoch = api.ok("client/attach", again).await["epoch"].clone();
    assert_eq!(epoch, 2);
    std::fs::write(world.lodge.home().join("agents").join(&agent).join("workspace/go"), "").expect("a file");
    seen.extend(api.events_to("turn.finished").await);
    let mut known = api.log().await;
    known.retain(|event| {
        event["stream"] == json!(agent) && event["seq"].as_u64() <= seen[seen.len() - 1]["seq"].as_u64()
    });
    assert_eq!(seen, known);
    let turn = api.ended(id(&sent)).await;
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("done")));
}
