//! The mock server as a process: what it says, what it logs, how it ends.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use lodge_testkit::lodge::until;
use lodge_testkit::mock::{MockLlm, RequestOutcome};

/// Sends one request on `stream` and reads its chunked reply to the end.
fn exchange(stream: &mut TcpStream, text: &str) -> String {
    let body =
        serde_json::json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": text}]});
    let body = body.to_string();
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).expect("a request");
    let mut reply = Vec::new();
    while !reply.ends_with(b"0\r\n\r\n") {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).expect("a reply");
        assert!(count > 0, "cut: {}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&bytes[..count]);
    }
    String::from_utf8(reply).expect("text")
}

#[test]
fn one_connection_carries_many_requests_and_each_is_logged_before_its_answer() {
    let dir = tempfile::tempdir().expect("a directory");
    let mock = MockLlm::spawn(dir.path()).expect("a server");
    let mut stream = TcpStream::connect(mock.address()).expect("a connection");
    for number in 1..=100 {
        let reply = exchange(&mut stream, &format!("say [[reply:number {number}]]"));
        assert!(reply.contains(&format!(r#""content":"number {number}""#)), "{reply}");
        let log = mock.requests().expect("a log");
        assert_eq!((log.len(), log[number - 1].number), (number, number as u64));
    }
    until("every request has an end", || {
        mock.requests()
            .expect("a log")
            .iter()
            .all(|line| line.outcome == Some(RequestOutcome::Done))
            .then_some(())
    });
}

#[test]
fn equal_requests_have_equal_digests_and_others_do_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let mock = MockLlm::spawn(dir.path()).expect("a server");
    let mut stream = TcpStream::connect(mock.address()).expect("a connection");
    for text in ["a", "a", "b"] {
        exchange(&mut stream, text);
    }
    let log = mock.requests().expect("a log");
    assert_eq!(log[0].digest, log[1].digest);
    assert_ne!(log[0].digest, log[2].digest);
    assert_eq!(mock.requests_for("a").expect("a log").len(), 2);
}

#[test]
fn a_script_gives_commands_to_messages_without_any() {
    let dir = tempfile::tempdir().expect("a directory");
    let script = dir.path().join("script.yaml");
    fs::write(&script, r#"[{"when": "weather", "do": "[[reply:sunny]]"}]"#).expect("a script");
    let mock =
        MockLlm::spawn_with(dir.path(), &["--script", script.to_str().expect("a name")]).expect("a server");
    let mut stream = TcpStream::connect(mock.address()).expect("a connection");
    assert!(exchange(&mut stream, "what is the weather?").contains("sunny"));
    assert!(exchange(&mut stream, "weather? [[reply:rain]]").contains("rain"));
    assert!(exchange(&mut stream, "hello").contains(r#""content":"ok 1""#));
}

#[test]
fn a_dropped_server_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mock = MockLlm::spawn(dir.path()).expect("a server");
    let address = mock.address();
    drop(mock);
    assert!(TcpStream::connect(address).is_err());
}
