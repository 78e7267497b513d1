//! A model that thinks: its thoughts are kept with its answers, come back to it while tools run, and outlive the daemon.

use std::sync::{Arc, Mutex};

use lodge_testkit::lodge::until;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::world::{AGENTFILE, ApiWorld, KEY, id};

type Bodies = Arc<Mutex<Vec<Value>>>;

/// Speaks Messages: reasons and calls a tool, which waits for the file `go` and fails; after the result it answers.
async fn thinker() -> (String, Bodies) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let bodies = Bodies::default();
    let seen = bodies.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, seen.clone()));
        }
    });
    (url, bodies)
}

async fn serve(mut stream: TcpStream, bodies: Bodies) {
    let mut text = Vec::new();
    let body = loop {
        if stream.read_buf(&mut text).await.unwrap_or(0) == 0 {
            return;
        }
        let end = text.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        if let Some(body) = end.and_then(|end| serde_json::from_slice::<Value>(&text[end + 4..]).ok()) {
            break body;
        }
    };
    let messages = body["messages"].as_array().expect("messages");
    let last = &messages[messages.len() - 1]["content"][0];
    let usage = json!({"input_tokens": 100, "cache_read_input_tokens": 900, "output_tokens": 1});
    let mut events = vec![json!({"type": "message_start", "message": {"usage": usage}})];
    let block = |index: usize, block: Value| json!({"type": "content_block_start", "index": index, "content_block": block});
    let reason = if last["type"] == "tool_result" {
        events.push(block(0, json!({"type": "text", "text": "it is done"})));
        "end_turn"
    } else {
        let input = json!({"args": ["-c", "until [ -e go ]; do sleep 0.02; done; exit 3"]});
        events.push(block(0, json!({"type": "thinking", "thinking": "", "signature": ""})));
        let signature = json!({"type": "signature_delta", "signature": "c2lnbmF0dXJl"});
        events.push(json!({"type": "content_block_delta", "index": 0, "delta": signature}));
        events.push(block(1, json!({"type": "tool_use", "id": "toolu_1", "name": "sh", "input": input})));
        "tool_use"
    };
    events.push(
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 10}}),
    );
    events.push(json!({"type": "message_stop"}));
    bodies.lock().expect("bodies").push(body);
    let stream_of =
        |event: &Value| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default());
    let answer: String = events.iter().map(stream_of).collect();
    let head = format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        answer.len()
    );
    let _ = stream.write_all(format!("{head}{answer}").as_bytes()).await;
}

#[tokio::test]
async fn thoughts_come_back_to_their_model_although_the_daemon_was_killed_meanwhile() {
    let mut world = ApiWorld::asleep();
    let (url, bodies) = thinker().await;
    let deep = format!(
        "  - name: deep\n    kind: anthropic\n    base-url: {url}\n    api-key: {KEY}\n    prices: {{m: {{input: 2, output: 10, cached: 0.5}}}}\n"
    );
    world.put_providers(&format!("{}{deep}", world.provider("mock", &world.mock.base_url())));
    world.lodge.start();
    let mut api = world.checked().await;
    let agentfile = AGENTFILE.replace("mock/m", "deep/m");
    let created = api.ok("agent/create", json!({"content": agentfile, "name": "thinker"})).await;
    let agent = id(&created).to_owned();
    api.agent_is(&agent, "ready").await;
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": "think"})).await;
    let root = world.lodge.home().join("agents").join(&agent);
    api.until("turn/get", json!({"turn": id(&sent)}), |turn| {
        let steps = turn["steps"].as_array().expect("steps");
        steps.iter().any(|step| step["kind"] == "tool" && step["status"] == "intent")
    })
    .await;
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    std::fs::write(root.join("workspace/go"), "").expect("a file");
    let turn = api.ended(id(&sent)).await;
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("it is done")), "{turn:#}");
    // Two calls of 100 fresh and 900 cached tokens in and 10 out, at the prices of the file.
    let cost = 2.0 * (100.0 * 2.0 + 900.0 * 0.5 + 10.0 * 10.0) / 1e6;
    let usage = json!({"input_tokens": 2000, "output_tokens": 20, "cached_tokens": 1800, "cost_usd": cost});
    assert_eq!(turn["usage"], usage);
    let sent = until("the second request", || {
        let bodies = bodies.lock().expect("bodies");
        (bodies.len() == 2).then(|| bodies[1].clone())
    });
    let messages = &sent["messages"];
    let thought = json!({"type": "thinking", "thinking": "", "signature": "c2lnbmF0dXJl"});
    assert_eq!(messages[1]["content"][0], thought, "{messages:#}");
    assert_eq!(
        (&messages[2]["content"][0]["tool_use_id"], &messages[2]["content"][0]["is_error"]),
        (&json!("toolu_1"), &json!(true))
    );
    let log = api.log().await;
    let finished = log.iter().find(|event| event["kind"] == "turn.finished").expect("an event");
    assert_eq!(
        (&finished["data"]["cached_tokens"], &finished["data"]["cost_usd"]),
        (&json!(1800), &json!(cost))
    );
    // Reasoning is shown only to its model.
    let shown = api.ok("session/messages", json!({"session": "s"})).await.to_string();
    assert!(!shown.contains("c2lnbmF0dXJl"), "{shown}");
}

#[tokio::test]
async fn what_keeps_a_provider_from_working_is_said_in_words() {
    let world = ApiWorld::new();
    let free = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").port()
    };
    let entries = [
        world.provider("mock", &world.mock.base_url()),
        world.provider("nobody", &format!("http://127.0.0.1:{free}/v1")),
        world.provider("nowhere", "http://no-such-host.invalid/v1"),
        world.provider("wrong", &world.mock.base_url().replace("/v1", "/v9")),
        world.provider("locked", &world.mock.base_url()).replace(KEY, "another-key"),
        world.provider("unset", "http://127.0.0.1:1/v1").replace(KEY, "${NO_SUCH_VARIABLE}"),
    ];
    world.put_providers(&entries.concat());
    let (code, out, err) = world.cli(&["provider", "test", "mock", "--model", "m"]);
    assert_eq!((code, out.as_str()), (0, "mock\n"), "{err}");
    assert!(err.starts_with("m of mock answered in "), "{err}");
    let (code, out, err) = world.cli(&["provider", "test", "mock"]);
    assert_eq!((code, out.as_str()), (0, "mock\n"), "{err}");
    assert!(err.contains("lodge provider test mock --model MODEL"), "{err}");
    for (name, what, hint) in [
        ("nobody", "nothing listens there", "check the port"),
        ("nowhere", "the name of the host has no address", "check the host"),
        ("wrong", "status 404", "base-url"),
        ("locked", "refused the key (status 401)", "check `api-key` of `locked`"),
        (
            "unset",
            "`NO_SUCH_VARIABLE`, which is not set",
            "set `NO_SUCH_VARIABLE` in the daemon's environment",
        ),
    ] {
        let (code, out, err) = world.cli(&["provider", "test", name, "--model", "m"]);
        assert_eq!((code, out.as_str()), (1, ""), "{name}: {err}");
        assert!(err.contains(what) && err.contains("hint: ") && err.contains(hint), "{name}: {err}");
        assert!(!err.contains("another-key"), "{name}: {err}");
    }
    let list = world.cli_json(&["--json", "provider", "ls"]);
    let unset =
        list.as_array().expect("a list").iter().find(|one| one["name"] == "unset").expect("it is listed");
    assert!(unset["problem"].as_str().expect("a problem").contains("NO_SUCH_VARIABLE"), "{unset}");
    let (_, table, _) = world.cli(&["provider", "ls"]);
    assert!(table.contains("PROBLEM") && table.contains("which is not set"), "{table}");
}
