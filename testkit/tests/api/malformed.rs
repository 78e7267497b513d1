//! Requests that are wrong, huge, many or endless: a clear answer, and the daemon continues.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;

use lodge_proto::client::{Client, ClientError, Target};
use lodge_testkit::lodge::{PATIENCE, http};
use serde_json::{Value, json};

use crate::world::{ApiWorld, told};

/// The daemon still does what it is for.
async fn still_works(world: &ApiWorld) {
    let mut api = world.checked().await;
    let name = format!("w{}", api.log().await.len());
    let agent = world.agent(&mut api, &name).await;
    assert_eq!(api.answer(&agent, &name, "[[reply:fine]]").await, "fine");
}

/// What is wrong, the code it is refused with, and a part of the message or hint.
const WRONG: &[(&str, &str, &str)] = &[
    ("", "request.malformed", "not JSON"),
    ("{", "request.malformed", "not JSON"),
    ("\u{feff}{}", "request.malformed", "not JSON"),
    ("[]", "request.invalid", "batches"),
    (r#"[{"jsonrpc":"2.0","id":1,"method":"info"}]"#, "request.invalid", "one request at a time"),
    ("42", "request.invalid", "2.0"),
    ("null", "request.invalid", "2.0"),
    ("{}", "request.invalid", "2.0"),
    (r#"{"jsonrpc":"1.0","id":1,"method":"info"}"#, "request.invalid", "2.0"),
    (r#"{"jsonrpc":2.0,"id":1,"method":"info"}"#, "request.invalid", "2.0"),
    (r#"{"jsonrpc":"2.0","method":"info"}"#, "request.invalid", "`id`"),
    (r#"{"jsonrpc":"2.0","id":null,"method":"info"}"#, "request.invalid", "`id`"),
    (r#"{"jsonrpc":"2.0","id":{},"method":"info"}"#, "request.invalid", "`id`"),
    (r#"{"jsonrpc":"2.0","id":1}"#, "request.invalid", "method"),
    (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, "request.invalid", ""),
    (r#"{"jsonrpc":"2.0","id":1,"method":"info","params":[1]}"#, "request.invalid", "`params`"),
    (r#"{"jsonrpc":"2.0","id":1,"method":"agent/lst"}"#, "method.not_found", "did you mean `agent/list`"),
    (r#"{"jsonrpc":"2.0","id":1,"method":"turn/sent"}"#, "method.not_found", "did you mean `turn/send`"),
    (r#"{"jsonrpc":"2.0","id":1,"method":"dance"}"#, "method.not_found", "rpc/discover"),
    (r#"{"jsonrpc":"2.0","id":1,"method":"agent/get","params":{"agnet":"x"}}"#, "params.invalid", "agnet"),
    (r#"{"jsonrpc":"2.0","id":1,"method":"agent/get","params":{"agent":7}}"#, "params.invalid", "string"),
    (r#"{"jsonrpc":"2.0","id":1,"method":"agent/list","params":{"limit":-1}}"#, "params.invalid", "u32"),
    (r#"{"jsonrpc":"2.0","id":1,"method":"info","params":{"x":1}}"#, "params.invalid", "x"),
    (r#"{"jsonrpc":"2.0","id":1,"method":"agent/get","params":{}}"#, "agent.not_found", ""),
];

#[tokio::test]
async fn a_malformed_call_is_answered_with_what_is_wrong_over_http() {
    let world = ApiWorld::new();
    let api = world.checked().await;
    let bearer = format!("Bearer {}", world.lodge.token());
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    for (body, code, part) in WRONG {
        let answer = http(&world.lodge.http_addr(), "POST", "/v1/rpc", &headers, body.as_bytes());
        let (status, text) = answer.expect("an answer");
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        api.schemas.error(&answer["error"]);
        assert_eq!((answer["error"]["data"]["code"].as_str(), status / 100), (Some(*code), 4), "{body}");
        assert!(text.contains(part), "{body}: {text}");
    }
    still_works(&world).await;
}

#[tokio::test]
async fn no_value_of_any_parameter_is_an_internal_error() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    api.answer(&agent, "s", "hi").await;
    let good = json!({"agent": agent, "session": "s", "text": "hi", "name": "one", "kind": "script", "turn": "trn_0"});
    let long = "x".repeat(100_000);
    let odd = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(u64::MAX),
        json!(i64::MAX),
        json!(1e308),
        json!(""),
        json!("\u{0}"),
        json!("a\u{0}b"),
        json!("💥"),
        json!("../../etc/passwd"),
        json!("%' OR 1=1 --"),
        json!(long),
        json!([]),
        json!({}),
        json!([[{"a": [null]}]]),
        json!({"": ""}),
    ];
    for method in api.schemas.discovery["methods"].as_array().expect("methods").clone() {
        let name = method["name"].as_str().expect("a name");
        if name == "daemon/shutdown" {
            continue;
        }
        let Some(known) = method["params"]["properties"].as_object() else { continue };
        for key in known.keys().filter(|key| *key != "request_id") {
            for value in &odd {
                let mut params: Value =
                    known.keys().filter_map(|key| Some((key.clone(), good.get(key)?.clone()))).collect();
                params[key] = value.clone();
                if let Err(error) = api.call(name, params.clone()).await {
                    assert_ne!(error["data"]["code"], "daemon.internal", "{name} {key} {value}: {error}");
                }
            }
        }
    }
    still_works(&world).await;
}

/// A WebSocket that sends arbitrary frames.
struct RawSocket(UnixStream);

impl RawSocket {
    fn open(world: &ApiWorld) -> RawSocket {
        let mut stream = UnixStream::connect(world.lodge.home().join("lodge.sock")).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let head = format!(
            "GET /v1/rpc HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
             sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nauthorization: Bearer {}\r\n\r\n",
            world.lodge.token()
        );
        stream.write_all(head.as_bytes()).expect("a request");
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            seen.push(byte[0]);
        }
        assert!(seen.starts_with(b"HTTP/1.1 101"));
        RawSocket(stream)
    }

    /// A frame with an empty mask.
    fn head(opcode: u8, length: usize) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode];
        match length {
            0..126 => frame.push(0x80 | length as u8),
            126..65536 => {
                frame.push(0x80 | 126);
                frame.extend((length as u16).to_be_bytes());
            }
            _ => {
                frame.push(0x80 | 127);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame
    }

    fn send(&mut self, opcode: u8, bytes: &[u8]) {
        let frame = [RawSocket::head(opcode, bytes.len()), bytes.to_vec()].concat();
        self.0.write_all(&frame).expect("a frame");
    }

    /// The opcode and content of the next frame.
    fn read(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).expect("a frame");
        let length = match head[1] & 0x7f {
            126 => {
                let mut bytes = [0; 2];
                self.0.read_exact(&mut bytes).expect("a length");
                u64::from(u16::from_be_bytes(bytes))
            }
            127 => {
                let mut bytes = [0; 8];
                self.0.read_exact(&mut bytes).expect("a length");
                u64::from_be_bytes(bytes)
            }
            short => u64::from(short),
        };
        let mut bytes = vec![0; usize::try_from(length).expect("a length")];
        self.0.read_exact(&mut bytes).expect("a frame");
        (head[0] & 0x0f, bytes)
    }
}

#[tokio::test]
async fn a_malformed_call_is_answered_with_what_is_wrong_over_a_websocket_which_stays_open() {
    let world = ApiWorld::new();
    let api = world.checked().await;
    let mut socket = RawSocket::open(&world);
    for (body, code, part) in WRONG {
        socket.send(1, body.as_bytes());
        let (_, bytes) = socket.read();
        let answer: Value = serde_json::from_slice(&bytes).expect("JSON");
        api.schemas.error(&answer["error"]);
        assert_eq!(answer["error"]["data"]["code"].as_str(), Some(*code), "{body}");
        assert!(answer.to_string().contains(part), "{body}: {answer}");
    }
    socket.send(1, br#"{"jsonrpc":"2.0","id":"abc","method":"info"}"#);
    let answer: Value = serde_json::from_slice(&socket.read().1).expect("JSON");
    assert_eq!((&answer["id"], answer["result"]["epoch"].as_u64()), (&json!("abc"), Some(1)));
    // What is not text ends this connection and no other.
    socket.send(1, &[0xff, 0xfe]);
    assert_eq!(socket.read().0, 8);
    still_works(&world).await;
}

#[tokio::test]
async fn a_hundred_megabytes_are_refused_with_the_limit_and_do_not_stay_in_memory() {
    let world = ApiWorld::new();
    let api = world.checked().await;
    let bearer = format!("Bearer {}", world.lodge.token());
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let huge = vec![b'x'; 100 << 20];
    let (status, text) =
        http(&world.lodge.http_addr(), "POST", "/v1/rpc", &headers, &huge).expect("an answer");
    let error = serde_json::from_str::<Value>(&text).expect("JSON")["error"].clone();
    api.schemas.error(&error);
    assert_eq!((status, error["data"]["code"].as_str()), (413, Some("request.too_large")));
    assert!(error["message"].as_str().expect("a message").contains("4194304"), "{error}");
    // As a WebSocket message: the connection closes with the reason that the standard has for it.
    let mut socket = RawSocket::open(&world);
    socket.0.write_all(&RawSocket::head(1, huge.len())).expect("a head");
    // The daemon may close before it has read everything.
    drop(socket.0.write_all(&huge[..1 << 20]));
    let (opcode, bytes) = socket.read();
    assert_eq!((opcode, bytes.get(..2)), (8, Some(&1009_u16.to_be_bytes()[..])), "{bytes:?}");
    assert!(String::from_utf8_lossy(&bytes[2..]).contains("4194304"), "{bytes:?}");
    let peak = std::fs::read_to_string(format!("/proc/{}/status", world.lodge.pid().expect("a daemon")))
        .expect("a process");
    let peak = peak.lines().find(|line| line.starts_with("VmHWM:")).expect("a size");
    let kb: u64 = peak.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    assert!(kb < 100 * 1024, "the daemon grew to {kb} kB");
    still_works(&world).await;
}

/// Raises this process's limit of descriptors, and returns how many connections it may open.
fn descriptors(wanted: u64) -> usize {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the structure they are given, which outlives them.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = wanted.min(limit.rlim_max);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
    usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).saturating_sub(64)
}

/// Opens connections that send nothing, and returns the answer to the first of them.
fn crowd(addr: &str, count: usize) -> (Vec<TcpStream>, String) {
    let open: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(addr).expect("a connection")).collect();
    let mut first = open.first().expect("a connection").try_clone().expect("a connection");
    first.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut told = Vec::new();
    first.read_to_end(&mut told).expect("an answer");
    (open, String::from_utf8_lossy(&told).into_owned())
}

#[tokio::test]
async fn of_two_thousand_connections_the_oldest_give_way_in_words_and_the_owner_always_finds_room() {
    let world = ApiWorld::new();
    let api = world.checked().await;
    let mut before = Client::connect(&Target::Tcp(world.lodge.http_addr()), &world.lodge.token())
        .await
        .expect("a connection");
    let count = descriptors(4096).min(2000);
    let addr = world.lodge.http_addr();
    let (open, answer) = crowd(&addr, count);
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let error = serde_json::from_str::<Value>(body).expect("JSON")["error"].clone();
    api.schemas.error(&error);
    assert_eq!(error["data"]["code"], "daemon.busy");
    // The other door is not concerned, nor who has shown a token, nor who is about to.
    still_works(&world).await;
    assert_eq!(before.call_value("info", json!({})).await.expect("info")["epoch"], 1);
    let mut client =
        Client::connect(&Target::Tcp(addr), &world.lodge.token()).await.expect("there is room for a token");
    assert_eq!(client.call_value("info", json!({})).await.expect("info")["epoch"], 1);
    drop(open);
}

#[tokio::test]
async fn a_unix_door_full_of_those_without_a_token_lets_the_command_line_in() {
    let world = ApiWorld::new();
    descriptors(4096);
    let socket = world.lodge.home().join("lodge.sock");
    let _open: Vec<UnixStream> =
        (0..1100).map(|_| UnixStream::connect(&socket).expect("a connection")).collect();
    for _ in 0..10 {
        let (code, _, err) = told(&world.lodge.cli_command(["ps"]).output().expect("lodge runs"));
        assert_eq!((code, err.as_str()), (0, ""));
    }
}

/// Opens WebSockets with a token until no more are accepted, and returns the answer to the next one.
async fn with_tokens(target: &Target, token: &str) -> (Vec<Client>, ClientError) {
    let mut open = Vec::new();
    loop {
        match Client::connect(target, token).await {
            Ok(client) => open.push(client),
            Err(error) => return (open, error),
        }
    }
}

#[tokio::test]
async fn a_listener_full_of_tokens_is_reported_by_the_command_line_and_a_revoked_one_makes_room() {
    let world = ApiWorld::new();
    descriptors(4096);
    let mut api = world.checked().await;
    let (id, token) = crate::tokens::issue(&mut api, json!({})).await;
    let (open, refused) = with_tokens(&world.lodge.target(), &token).await;
    assert_eq!((open.len(), refused.code()), (1_023, Some("daemon.busy")), "{refused:?}");
    let mut command = world.lodge.cli_command(["ps"]);
    let (code, out, err) = told(&command.env_remove("LODGE_NO_AUTOSTART").output().expect("lodge runs"));
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    let expected = "error: 1024 connections are open already\n\nhint: close some, or try again in a moment\n";
    assert_eq!(err, expected);
    api.ok("token/revoke", json!({"token": id})).await;
    assert_eq!(world.cli(&["ps"]).0, 0);
    drop(open);
}

#[tokio::test]
async fn clients_that_stall_in_the_middle_hold_up_nobody_and_those_that_say_nothing_are_let_go() {
    let world = ApiWorld::new();
    let addr = world.lodge.http_addr();
    let body = format!(
        "POST /v1/rpc HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
         content-length: 1000\r\n\r\n{{\"json",
        world.lodge.token()
    );
    let mut stalled = Vec::new();
    for half in ["", "POST /v1/rpc HTTP/1.1\r\nhost: localhost\r\nauthor", &body] {
        let mut stream = TcpStream::connect(&addr).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(half.as_bytes()).expect("half a request");
        stalled.push(stream);
    }
    still_works(&world).await;
    for stream in &mut stalled[..2] {
        // Closed, with or without a word.
        stream.read_to_end(&mut Vec::new()).expect("an end within the daemon's patience");
    }
    still_works(&world).await;
}
