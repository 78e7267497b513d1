//! Tokens: how they are issued and end, and that an invalid token gives no access, immediately and permanently.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use lodge_proto::client::{Client, ClientError, Target};
use lodge_testkit::lodge::{Lodge, PATIENCE, http, rpc, until};
use serde_json::{Value, json};

use crate::auth::holding;
use crate::checked::CheckedClient;
use crate::world::{ApiWorld, id};

/// A token's id and value.
pub async fn issue(api: &mut CheckedClient, params: Value) -> (String, String) {
    let issued = api.ok("token/issue", params).await;
    (id(&issued).to_owned(), issued["token"].as_str().expect("a value").to_owned())
}

/// The code with which a token is turned away, over plain HTTP and by a WebSocket.
async fn turned_away(lodge: &Lodge, token: &str) -> String {
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let (status, body) =
        http(&lodge.http_addr(), "POST", "/v1/rpc", &headers, &rpc("rpc/discover", &json!({})))
            .expect("an answer");
    assert_eq!(status, 401, "{body}");
    let code = serde_json::from_str::<Value>(&body).expect("JSON")["error"]["data"]["code"].clone();
    match Client::connect(&lodge.target(), token).await {
        Err(ClientError::Handshake { status: Some(401), body: Some(body), .. }) => {
            assert_eq!(body.data.code, code)
        }
        other => panic!("{other:?}"),
    }
    code.as_str().expect("a code").to_owned()
}

/// A client that came with this token and attached to all it may see.
pub async fn attached(world: &ApiWorld, token: &str) -> Client {
    let mut client = Client::connect(&world.lodge.target(), token).await.expect("a connection");
    client.call_value("client/attach", json!({"all": true})).await.expect("an attachment");
    client
}

/// An open stream of server-sent events.
pub fn events(lodge: &Lodge, token: &str) -> BufReader<TcpStream> {
    let addr = lodge.http_addr();
    let mut stream = TcpStream::connect(&addr).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(
        stream,
        "GET /v1/events?since=0 HTTP/1.1\r\nconnection: close\r\nhost: {addr}\r\nauthorization: Bearer {token}\r\n\r\n"
    )
    .expect("a request");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a status");
    assert!(line.contains("200"), "{line}");
    reader
}

/// Reads until the daemon closes the stream, and returns the bytes.
fn drained(mut stream: impl Read) -> String {
    let mut text = Vec::new();
    stream.read_to_end(&mut text).expect("the daemon closes the stream");
    String::from_utf8_lossy(&text).into_owned()
}

async fn closed(client: &mut Client) {
    let over = async { while client.next().await.is_ok() {} };
    tokio::time::timeout(PATIENCE, over).await.expect("the daemon closes the connection");
}

#[tokio::test]
async fn revoking_a_token_closes_every_connection_that_came_with_it_and_no_other() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    for params in [json!({"agent": agent}), json!({})] {
        let (token_id, token) = issue(&mut api, params.clone()).await;
        let (_, kept) = issue(&mut api, params).await;
        let mut idle = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
        let mut tcp =
            Client::connect(&Target::Tcp(world.lodge.http_addr()), &token).await.expect("a connection");
        let (mut watching, mut other) = (attached(&world, &token).await, attached(&world, &kept).await);
        let stream = events(&world.lodge, &token);
        let revoked = api.ok("token/revoke", json!({"token": token_id})).await;
        assert_eq!(revoked["status"], "revoked");
        for client in [&mut idle, &mut tcp, &mut watching] {
            closed(client).await;
        }
        drained(stream);
        assert_eq!(turned_away(&world.lodge, &token).await, "auth.revoked");
        // A second revocation is no error, and the first time is kept.
        assert_eq!(api.ok("token/revoke", json!({"token": token_id})).await, revoked);
        other.call_value("agent/list", json!({})).await.expect("the other token is as good as before");
    }
}

/// Frames of a WebSocket, by hand: a client that asks and never reads.
fn stubborn(lodge: &Lodge, token: &str) -> TcpStream {
    let addr = lodge.http_addr();
    let mut stream = TcpStream::connect(&addr).expect("a connection");
    write!(
        stream,
        "GET /v1/rpc HTTP/1.1\r\nhost: {addr}\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\nauthorization: Bearer {token}\r\n\r\n"
    )
    .expect("a request");
    stream.set_nonblocking(true).expect("a mode");
    let body = rpc("rpc/discover", &json!({}));
    let mut frame = vec![0x81, 0x80 | u8::try_from(body.len()).expect("a short body"), 0, 0, 0, 0];
    frame.extend(&body);
    let frames = frame.repeat(1_000);
    let (mut at, mut refused) = (0, 0);
    // Until nothing was taken for a while: then every buffer between the two of us is full.
    until("the daemon takes no more", || {
        loop {
            match stream.write(&frames[at..]) {
                Ok(written) => (at, refused) = ((at + written) % frames.len(), 0),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    refused += 1;
                    return (refused > 50).then_some(());
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    stream
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_shown_out_like_any_other() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (token_id, token) = issue(&mut api, json!({})).await;
    let lodge = &world.lodge;
    let stream = stubborn(lodge, &token);
    api.ok("token/revoke", json!({"token": token_id})).await;
    until("the connection is closed", || {
        // SAFETY: SO_ERROR and a zero-length send only ask the kernel about this test's own socket.
        let sent = unsafe {
            libc::send(
                std::os::fd::AsRawFd::as_raw_fd(&stream),
                [0_u8; 1].as_ptr().cast(),
                1,
                libc::MSG_NOSIGNAL,
            )
        };
        let error = std::io::Error::last_os_error().kind();
        (sent < 0 && error != std::io::ErrorKind::WouldBlock).then_some(())
    });
}

#[tokio::test]
async fn a_token_whose_time_is_over_is_shown_out_as_if_it_were_revoked() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (token_id, token) = issue(&mut api, json!({"expires_in_s": 4})).await;
    let mut watching = attached(&world, &token).await;
    let stream = events(&world.lodge, &token);
    closed(&mut watching).await;
    drained(stream);
    assert_eq!(turned_away(&world.lodge, &token).await, "auth.expired");
    let listed = |list: Value| -> Vec<(Value, Value)> {
        let tokens = list["tokens"].as_array().expect("tokens").clone();
        tokens.into_iter().map(|token| (token["id"].clone(), token["status"].clone())).collect()
    };
    assert!(listed(api.ok("token/list", json!({})).await).iter().all(|(found, _)| *found != json!(token_id)));
    assert!(
        listed(api.ok("token/list", json!({"all": true})).await)
            .contains(&(json!(token_id), json!("expired")))
    );
}

#[tokio::test]
async fn the_end_of_an_agent_is_the_end_of_its_tokens_and_of_nobody_elses() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (one, two) = (world.agent(&mut api, "one").await, world.agent(&mut api, "two").await);
    let (_, gone) = issue(&mut api, json!({"agent": one})).await;
    let (_, kept) = issue(&mut api, json!({"agent": two})).await;
    let mut watching = attached(&world, &gone).await;
    api.ok("agent/remove", json!({"agent": one, "force": true})).await;
    closed(&mut watching).await;
    assert_eq!(turned_away(&world.lodge, &gone).await, "auth.revoked");
    let mut own = Client::connect(&world.lodge.target(), &kept).await.expect("a connection");
    own.call_value("agent/get", json!({})).await.expect("its agent is there");
    api.refused("token/issue", json!({"agent": one}), "agent.not_found").await;
}

#[tokio::test]
async fn the_value_of_a_token_is_reported_once_per_request_and_kept_nowhere() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let params = json!({"agent": agent, "name": "mine", "request_id": "r1"});
    let first = api.ok("token/issue", params.clone()).await;
    assert_eq!(api.ok("token/issue", params.clone()).await, first, "the same request is one token");
    let token = first["token"].as_str().expect("a value").to_owned();
    let signature = token.rsplit('.').next().expect("a signature").to_owned();
    let mut own = Client::connect(&world.lodge.target(), &token).await.expect("a connection");
    own.call_value("turn/send", json!({"text": "[[reply:hi]]"})).await.expect("a turn");
    let listed = api.ok("token/list", json!({"all": true})).await.to_string();
    assert!(listed.contains("mine") && !listed.contains(&signature));
    for needle in [&token, &signature] {
        assert_eq!(holding(&world.lodge.home(), needle), [""; 0], "a value was stored");
        assert!(!world.lodge.log().contains(needle.as_str()), "a value was logged");
    }
    // A user gives the value instead of the id: it is neither repeated nor recorded.
    let refused = api.refused("token/revoke", json!({"token": token}), "token.not_found").await;
    assert!(!refused.to_string().contains(&signature), "{refused}");
    world.lodge.kill9();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.ok("token/issue", params).await, first, "also from the next daemon");
    assert_eq!(holding(&world.lodge.home(), &signature), [""; 0], "a value was stored");
}

#[tokio::test]
async fn the_token_in_credentials_json_is_a_token_like_any_other_and_a_start_replaces_it() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let first = world.lodge.token();
    let listed = api.ok("token/list", json!({})).await;
    let [only] = &listed["tokens"].as_array().expect("tokens")[..] else { panic!("{listed}") };
    assert_eq!((&only["name"], &only["issuer"]), (&json!("credentials.json"), &json!("lodge:operator")));
    // A caller that revokes its own token gets the reply.
    assert_eq!(api.ok("token/revoke", json!({"token": id(only)})).await["status"], "revoked");
    assert_eq!(turned_away(&world.lodge, &first).await, "auth.revoked");
    let (code, _, words) = world.cli(&["info"]);
    assert!(code == 1 && words.contains("revoked") && words.contains("hint:"), "{code} {words}");
    world.lodge.kill9();
    world.lodge.start();
    let second = world.lodge.token();
    assert_ne!(second, first);
    assert_eq!(world.cli(&["info"]).0, 0);
    // Without the file the next daemon cannot know who has the old one.
    std::fs::remove_file(world.lodge.home().join("credentials.json")).expect("a file");
    world.lodge.kill9();
    world.lodge.start();
    assert_ne!(world.lodge.token(), second);
    for old in [first, second] {
        assert_eq!(turned_away(&world.lodge, &old).await, "auth.revoked");
    }
    let mut api = api.again(&world.lodge).await;
    let live = api.ok("token/list", json!({})).await;
    assert_eq!(live["tokens"].as_array().expect("tokens").len(), 1, "{live}");
}

#[tokio::test]
async fn every_answer_about_a_token_holds_after_a_kill_at_any_commit() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let schemas = api.again(&world.lodge).await;
    for commit in 1..=6 {
        let (token_id, token) = issue(&mut api, json!({"name": format!("t{commit}")})).await;
        drop(api);
        world.lodge.kill9();
        world.lodge.set_env("LODGED_CRASH_AT", &format!("before_commit:{commit}"));
        world.lodge.spawn();
        let acknowledged = match world.lodge.try_wait_ready() {
            Err(_) => false,
            Ok(()) => {
                // The daemon may die before, in or after this; only what it says counts.
                match world.lodge.try_client().await {
                    Err(_) => false,
                    Ok(mut client) => client
                        .call_value("token/revoke", json!({"token": token_id, "request_id": token_id}))
                        .await
                        .is_ok(),
                }
            }
        };
        world.lodge.kill9();
        world.lodge.unset_env("LODGED_CRASH_AT");
        world.lodge.start();
        let works = Client::connect(&world.lodge.target(), &token).await.is_ok();
        assert!(!(acknowledged && works), "commit {commit}: a revoked token works");
        api = schemas.again(&world.lodge).await;
        let again = api.ok("token/revoke", json!({"token": token_id, "request_id": token_id})).await;
        assert_eq!(again["status"], "revoked");
        assert_eq!(turned_away(&world.lodge, &token).await, "auth.revoked");
    }
}

#[tokio::test]
async fn bad_wishes_for_tokens_are_refused_one_by_one() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let long = "x".repeat(129);
    for (params, code) in [
        (json!({"expires_in_s": 0}), "token.bad_expiry"),
        (json!({"expires_in_s": 3_650_u64 * 86_400 + 1}), "token.bad_expiry"),
        (json!({"expires_in_s": u64::MAX}), "token.bad_expiry"),
        (json!({"expires_in_s": -1}), "params.invalid"),
        (json!({"expires_in_s": "90d"}), "params.invalid"),
        (json!({"agent": "nobody"}), "agent.not_found"),
        (json!({"agent": ""}), "agent.not_found"),
        (json!({"name": ""}), "token.bad_name"),
        (json!({"name": long}), "token.bad_name"),
        (json!({"name": "a\nb"}), "token.bad_name"),
        (json!({"name": "credentials.json"}), "token.bad_name"),
        (json!({"issuer": "lodge:operator"}), "params.invalid"),
    ] {
        api.refused("token/issue", params, code).await;
    }
    for token in ["", "tok", "tok_0", "nobody", "tok_%"] {
        api.refused("token/revoke", json!({"token": token}), "token.not_found").await;
    }
    api.refused("token/revoke", json!({"token": "tok_"}), "token.not_found").await;
}

#[tokio::test]
async fn a_person_issues_lists_and_revokes_tokens_on_the_command_line() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let (code, out, words) =
        world.cli(&["token", "issue", "--agent", "one", "--name", "phone", "--expires", "2h"]);
    assert_eq!(code, 0, "{words}");
    let token = out.trim();
    assert!(
        out.ends_with('\n') && token.split('.').count() == 3 && words.contains("not shown again"),
        "{out}{words}"
    );
    let asked = world
        .lodge
        .cli_command(["prompt", "one", "[[reply:hello]]"])
        .env("LODGE_TOKEN", token)
        .output()
        .expect("lodge runs");
    assert_eq!(
        String::from_utf8_lossy(&asked.stdout),
        "hello\n",
        "{}",
        String::from_utf8_lossy(&asked.stderr)
    );
    let refused =
        world.lodge.cli_command(["logs", "one"]).env("LODGE_TOKEN", token).output().expect("lodge runs");
    assert_eq!(refused.status.code(), Some(1));
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(words.contains("may not call `agent/logs`") && words.contains("turn/send"), "{words}");
    let table = world.lodge.cli_ok(["token", "ls"]);
    assert!(table.contains("phone") && table.contains(" one ") && !table.contains(token), "{table}");
    let listed = world.cli_json(&["token", "ls", "--json"]);
    let phone = listed.as_array().expect("tokens").iter().find(|token| token["name"] == "phone").expect("it");
    assert_eq!(world.lodge.cli_ok(["token", "revoke", id(phone)]), format!("{}\n", id(phone)));
    assert!(!world.lodge.cli_ok(["token", "ls"]).contains("phone"));
    assert!(world.lodge.cli_ok(["token", "ls", "-a"]).contains("revoked"));
    assert_eq!(world.cli(&["token", "revoke", "tok_0"]).0, 1);
    // A typing mistake before it saves no token.
    let leaked = world.cli_json(&["token", "issue", "--json"]);
    let (code, out, err) = world.cli(&["token", "revoke", "tok_0", id(&leaked)]);
    assert_eq!((code, out.trim_end()), (1, id(&leaked)), "{err}");
    assert!(err.contains("no token `tok_0`"), "{err}");
    assert_eq!(world.cli_json(&["token", "revoke", "--json", id(&leaked)])["status"], "revoked");
    assert_eq!(world.cli(&["token", "issue", "--expires", "soon"]).0, 2);
    let (code, _, err) = world.cli(&["token", "issue", "--expires", "100000d"]);
    assert!(code == 1 && err.contains("3650 days at most"), "{err}");
}
