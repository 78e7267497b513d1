//! Callers without a token, and calls that are too much: neither takes anything from those who were invited.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use lodge_proto::REQUEST_BYTES_MAX;
use lodge_testkit::lodge::PATIENCE;
use serde_json::json;

use crate::world::{World, told};

fn connect(world: &World) -> TcpStream {
    let stream = TcpStream::connect(world.lodge.http_addr()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Everything that is said on a connection until it is closed.
fn hear_out(mut stream: TcpStream) -> String {
    let mut all = String::new();
    stream.read_to_string(&mut all).expect("the connection is closed");
    all
}

#[tokio::test]
async fn a_connection_is_kept_for_those_who_have_a_token_and_for_nobody_else() {
    let world = World::new();
    let token = world.lodge.token();
    for (line, head, status) in [
        ("GET /healthz", "", "200"),
        ("POST /healthz", "", "405"),
        ("GET /nowhere", "", "404"),
        ("GET /v1/events", "", "401"),
        ("GET /v1/events", "authorization: Bearer x\r\n", "401"),
        ("GET /v1/events", "origin: http://evil.example\r\n", "403"),
        ("GET /v1/events?token=x", "", "400"),
        // Its body would never come.
        ("POST /v1/rpc", "content-length: 1000\r\n", "401"),
    ] {
        let mut stream = connect(&world);
        write!(stream, "{line} HTTP/1.1\r\nhost: localhost\r\n{head}\r\n").expect("a request");
        let heard = hear_out(stream);
        assert!(heard.starts_with(&format!("HTTP/1.1 {status}")), "{line} {head}: {heard}");
    }
    let mut stream = connect(&world);
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"rpc/discover"}"#;
    for last in ["", "connection: close\r\n"] {
        write!(
            stream,
            "POST /v1/rpc HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\ncontent-type: \
             application/json\r\n{last}content-length: {}\r\n\r\n{body}",
            body.len()
        )
        .expect("a request");
    }
    assert_eq!(hear_out(stream).matches("HTTP/1.1 200").count(), 2);
}

#[tokio::test]
async fn a_host_or_an_origin_that_stands_there_twice_or_cannot_be_read_is_refused() {
    let world = World::new();
    for head in [
        &b"host: localhost\r\nhost: evil.example\r\n"[..],
        b"host: localhost\r\norigin: http://localhost\r\norigin: http://evil.example\r\n",
        b"host: localhost\r\norigin: \xff\xfehttp://evil.example\r\n",
    ] {
        let mut stream = connect(&world);
        stream.write_all(&[b"GET /healthz HTTP/1.1\r\n", head, b"\r\n"].concat()).expect("a request");
        let heard = hear_out(stream);
        assert!(heard.starts_with("HTTP/1.1 403"), "{}: {heard}", String::from_utf8_lossy(head));
    }
}

#[tokio::test]
async fn a_line_longer_than_any_call_is_refused_and_the_conversation_goes_on() {
    let world = World::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let mut command = world.lodge.cli_command(["chat", "one"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("lodge");
    let mut stdin = child.stdin.take().expect("a pipe");
    // Somebody reads meanwhile what is said about it.
    let told = tokio::task::spawn_blocking(move || told(&child.wait_with_output().expect("lodge")));
    stdin.write_all(&vec![b'x'; REQUEST_BYTES_MAX + 1]).expect("a pipe");
    stdin.write_all(b"\n[[reply:still here]]\n").expect("a pipe");
    drop(stdin);
    let (code, stdout, stderr) = told.await.expect("lodge");
    assert_eq!((code, stdout.trim()), (1, "still here"), "{stderr}");
    assert!(stderr.contains("the call is over") && !stderr.contains("reconnecting"), "{stderr}");
}

#[tokio::test]
async fn a_schema_larger_than_models_are_told_is_refused_however_it_comes() {
    let world = World::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let schema = json!({"description": "x".repeat(300_000)});
    let given = json!({"agent": agent, "text": "x", "schema": schema});
    api.refused("turn/send", given, "turn.bad_schema").await;
}
