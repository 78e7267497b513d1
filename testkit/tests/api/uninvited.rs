//! Callers without a token, and too many calls: neither affects authenticated callers.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use lodge_proto::REQUEST_BYTES_MAX;
use lodge_proto::client::{Client, Target};
use lodge_testkit::lodge::{PATIENCE, http, rpc, until};
use serde_json::json;

use crate::world::{ApiWorld, told};

fn connect(world: &ApiWorld) -> TcpStream {
    let stream = TcpStream::connect(world.lodge.http_addr()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream
}

/// Everything that a connection receives until it is closed.
fn hear_out(mut stream: TcpStream) -> String {
    let mut all = String::new();
    stream.read_to_string(&mut all).expect("the connection is closed");
    all
}

#[tokio::test]
async fn a_connection_is_kept_for_those_who_have_a_token_and_for_nobody_else() {
    let world = ApiWorld::new();
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

/// What slow clients send again and again: ends of lines, ends of heads, a head that never ends, requests without a token.
const TRICKLES: [&[u8]; 4] = [
    b"\r\n\r\n",
    b"\r\n",
    b"x-header: y\r\n",
    b"GET /v1/rpc HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n",
];

/// Sends a little on each connection; those that were closed are opened again.
fn trickle<S: Read + Write>(crowd: &mut [S], connect: impl Fn() -> S) {
    for (at, stream) in crowd.iter_mut().enumerate() {
        if stream.write_all(TRICKLES[at % TRICKLES.len()]).is_err() {
            *stream = connect();
        }
    }
}

#[tokio::test]
async fn slow_clients_without_a_token_leave_room_for_those_who_have_one() {
    const CROWD: usize = 700;
    let world = ApiWorld::new();
    let (addr, socket) = (world.lodge.http_addr(), world.lodge.home().join("lodge.sock"));
    let (tcp_target, unix_target, token) =
        (Target::Tcp(addr.clone()), world.lodge.target(), world.lodge.token());
    let mut early = [
        Client::connect(&tcp_target, &token).await.expect("a connection"),
        Client::connect(&unix_target, &token).await.expect("a connection"),
    ];
    let by_tcp = || TcpStream::connect(&addr).expect("a connection");
    let by_unix = || UnixStream::connect(&socket).expect("a connection");
    let mut tcp: Vec<TcpStream> = (0..CROWD).map(|_| by_tcp()).collect();
    let mut unix: Vec<UnixStream> = (0..CROWD).map(|_| by_unix()).collect();
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    for _ in 0..5 {
        trickle(&mut tcp, by_tcp);
        trickle(&mut unix, by_unix);
        for client in &mut early {
            client.call_value("info", json!({})).await.expect("who was there first is served");
        }
        for target in [&tcp_target, &unix_target] {
            let mut late = Client::connect(target, &token).await.expect("there is room");
            late.call_value("info", json!({})).await.expect("an answer");
        }
        let call = rpc("info", &json!({}));
        assert_eq!(http(&addr, "POST", "/v1/rpc", &headers, &call).expect("an answer").0, 200);
        assert_eq!(http(&addr, "GET", "/healthz", &[], b"").expect("an answer").0, 200);
        assert_eq!(http(&addr, "GET", "/v2/", &headers, b"").expect("an answer").0, 200);
        assert_eq!(world.cli(&["ps"]).0, 0);
    }
}

/// Whether a connection is open, as a write or a read finds out.
fn is_open(stream: &mut TcpStream, bytes: &[u8]) -> bool {
    let would_block = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
    let writes = stream.write(bytes).map_or_else(|error| would_block(&error), |_| true);
    writes && stream.read(&mut [0; 256]).map_or_else(|error| would_block(&error), |read| read > 0)
}

#[tokio::test]
async fn nothing_that_trickles_in_keeps_a_connection_without_a_token_open() {
    let world = ApiWorld::new();
    let mut open: Vec<(TcpStream, &[u8])> = TRICKLES.iter().map(|bytes| (connect(&world), *bytes)).collect();
    for (stream, _) in &open {
        stream.set_nonblocking(true).expect("a mode");
    }
    until("all of them are closed", || {
        open.retain_mut(|(stream, bytes)| is_open(stream, bytes));
        open.is_empty().then_some(())
    });
}

#[tokio::test]
async fn a_refusal_reaches_a_client_that_sends_everything_before_it_reads() {
    let world = ApiWorld::new();
    let (socket, body) = (world.lodge.home().join("lodge.sock"), vec![b'x'; 8 * 1024 * 1024]);
    let token = format!("authorization: Bearer {}\r\n", world.lodge.token());
    for (path, head, status) in [
        ("/v1/rpc", "content-type: application/json\r\n", "401"),
        ("/v1/rpc", "authorization: Bearer x\r\n", "401"),
        ("/v1/images/import", "", "401"),
        ("/v2/x/blobs/uploads/", "", "401"),
        ("/nowhere", "", "404"),
        ("/v1/rpc", "origin: http://evil.example\r\n", "403"),
        // Over the limit, from an authenticated caller.
        ("/v1/rpc", &format!("{token}content-type: application/json\r\n"), "413"),
    ] {
        let length = body.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{head}content-length: {length}\r\n\r\n");
        let tcp = connect(&world);
        let unix = UnixStream::connect(&socket).expect("a connection");
        unix.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut heard = vec![("TCP", send_all(tcp, &head, &body))];
        if !head.contains("origin:") {
            heard.push(("the socket", send_all(unix, &head, &body)));
        }
        for (by, heard) in heard {
            let (first, answer) =
                heard.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{path} by {by}: {heard}"));
            assert!(first.starts_with(&format!("HTTP/1.1 {status}")), "{path} by {by}: {heard}");
            serde_json::from_str::<serde_json::Value>(answer).expect("the whole answer");
        }
    }
}

/// Sends a whole request, and only then listens.
fn send_all<S: Read + Write>(mut stream: S, head: &str, body: &[u8]) -> String {
    stream.write_all(head.as_bytes()).expect("a head");
    stream.write_all(body).expect("everything is taken");
    let mut all = String::new();
    stream.read_to_string(&mut all).expect("the connection is closed in order");
    all
}

#[tokio::test]
async fn a_host_or_an_origin_that_stands_there_twice_or_cannot_be_read_is_refused() {
    let world = ApiWorld::new();
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
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let mut command = world.lodge.cli_command(["chat", "one"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("lodge");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A reader consumes its output meanwhile.
    let told = tokio::task::spawn_blocking(move || told(&child.wait_with_output().expect("lodge")));
    stdin.write_all(&vec![b'x'; REQUEST_BYTES_MAX + 1]).expect("a pipe");
    stdin.write_all(b"\n[[reply:still here]]\n").expect("a pipe");
    drop(stdin);
    let (code, stdout, stderr) = told.await.expect("lodge");
    assert_eq!((code, stdout.trim()), (1, "still here"), "{stderr}");
    assert!(stderr.contains("1048576 is the most") && !stderr.contains("reconnecting"), "{stderr}");
}

#[tokio::test]
async fn a_schema_larger_than_the_limit_is_refused_however_it_comes() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let schema = json!({"description": "x".repeat(300_000)});
    let given = json!({"agent": agent, "text": "x", "schema": schema});
    api.refused("turn/send", given, "turn.bad_schema").await;
}
