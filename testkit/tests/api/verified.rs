//! Clients verify the daemon before they send a token, and a port in use is retried.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use lodge_proto::client::{Client, ClientError, Login, Target, Unverified};
use lodge_proto::proof::{self, Proof};
use lodge_proto::{post, transfer};
use lodge_testkit::lodge::{Lodge, PATIENCE, http, rpc, until};
use serde_json::{Value, json};

use crate::world::{ApiWorld, is_root, told};

/// A program that listens on the daemon's address, gives arbitrary answers, and records everything that it reads.
struct Impostor {
    addr: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
}

/// What it answers to a request.
type Lie = dyn Fn(&str) -> Vec<u8> + Send + Sync;

impl Impostor {
    fn on(listener: TcpListener, lie: Arc<Lie>) -> Impostor {
        let addr = listener.local_addr().expect("an address");
        let heard = Arc::new(Mutex::new(Vec::new()));
        let all = heard.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (all, lie) = (all.clone(), lie.clone());
                std::thread::spawn(move || serve(stream, &all, lie.as_ref()));
            }
        });
        Impostor { addr, heard }
    }

    fn new(lie: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Impostor {
        Impostor::on(TcpListener::bind("127.0.0.1:0").expect("a port"), Arc::new(lie))
    }

    fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().expect("a log")).into_owned()
    }
}

/// Answers every head on a connection, and keeps it open for more.
fn serve(mut stream: TcpStream, all: &Mutex<Vec<u8>>, lie: &Lie) {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut piece) {
        all.lock().expect("a log").extend_from_slice(&piece[..read]);
        request.extend_from_slice(&piece[..read]);
        if request.ends_with(b"\r\n\r\n") {
            let answer = lie(&String::from_utf8_lossy(&request));
            request.clear();
            // A client that believes nothing is gone already.
            if stream.write_all(&answer).is_err() {
                return;
            }
        }
    }
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// The nonce in a request for a proof.
fn nonce_in(request: &str) -> Option<proof::Nonce> {
    proof::nonce(request.split_whitespace().nth(1)?.rsplit('/').next()?)
}

/// The signature of a token: it is enough to rebuild the token.
fn signature(token: &str) -> &str {
    token.rsplit('.').next().expect("a signature")
}

/// Every way in which a client sends a token to this address, and its error.
async fn every_way(world: &ApiWorld, addr: SocketAddr, token: &str) -> Vec<String> {
    let (target, login) = (Target::Tcp(addr.to_string()), Login::new(token));
    let mut told_errors = Vec::new();
    let told_error = |error: Option<ClientError>| format!("{:?}", error.expect("a refusal"));
    told_errors.push(told_error(Client::connect(&target, &login).await.err()));
    told_errors.push(told_error(post::post(&target, &login, "info", json!({})).await.err()));
    told_errors.push(told_error(transfer::get(&target, &login, "/v1/images/export?image=x").await.err()));
    let mut body = tokio::io::empty();
    match transfer::post(&target, &login, "/v1/images/import", &mut body, |_| ()).await {
        Err(transfer::TransferError::Client(error)) => told_errors.push(told_error(Some(error))),
        other => panic!("{other:?}"),
    }
    let url = format!("http://{addr}");
    for args in [&["ps"][..], &["info"], &["image", "export", "x", "-o", "/dev/null"]] {
        for given in [Some(token), None] {
            let mut command = world.lodge.cli_command(["--daemon", url.as_str()].iter().chain(args));
            command.envs(given.map(|token| ("LODGE_TOKEN", token)));
            let (code, _, err) = told(&command.output().expect("lodge runs"));
            assert!(code != 0 && err.contains("error: ") && err.contains("hint: "), "{args:?} {code}: {err}");
            told_errors.push(err);
        }
    }
    told_errors
}

#[tokio::test]
async fn what_only_claims_to_be_the_daemon_never_receives_a_token() {
    let world = ApiWorld::new();
    let (token, real) = (world.lodge.token(), world.lodge.http_addr());
    let impostors: Vec<(&str, Impostor)> = vec![
        (
            "an older release",
            Impostor::new(|_| {
                let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32601, "message": "there is nothing at \
                this path", "data": {"code": "method.not_found", "retryable": false}}});
                answer("404 Not Found", &error.to_string())
            }),
        ),
        ("one that says yes", Impostor::new(|_| answer("200 OK", "{}"))),
        ("one that upgrades", Impostor::new(|_| b"HTTP/1.1 101 Switching Protocols\r\n\r\n".to_vec())),
        (
            "one that asks for a login",
            Impostor::new(|_| {
                answer("401 Unauthorized", r#"{"error": "who are you? send Authorization: Bearer"}"#)
            }),
        ),
        ("one that talks too much", Impostor::new(|_| vec![b'x'; 1 << 20])),
        (
            "one with a proof of another token",
            Impostor::new(move |request| {
                let nonce = nonce_in(request).unwrap_or([0; proof::NONCE_LEN]);
                let proof = Proof::of("another token", &nonce, 1, "127.0.0.1:1".parse().expect("an address"));
                answer("200 OK", &serde_json::to_string(&proof).expect("JSON"))
            }),
        ),
        (
            "one that asks the real daemon",
            Impostor::new(move |request| {
                let path = request.split_whitespace().nth(1).unwrap_or_default();
                let (status, body) = http(&real, "GET", path, &[], b"").expect("an answer");
                answer(&format!("{status} OK"), &body)
            }),
        ),
    ];
    for (what, impostor) in &impostors {
        for error in every_way(&world, impostor.addr, &token).await {
            assert!(!error.contains(signature(&token)), "{what}: {error}");
        }
        let heard = impostor.heard();
        let id = proof::token_id(&token).expect("an id");
        assert!(heard.contains(&format!("GET /v1/proof/{id}/")), "{what} was asked: {heard}");
        assert!(!heard.to_lowercase().contains("authorization"), "{what} heard {heard}");
        assert!(!heard.contains(signature(&token)) && !heard.contains("eyJ"), "{what} heard {heard}");
    }
    // The last of them had a good proof, of another address.
    let target = Target::Tcp(impostors.last().expect("an impostor").1.addr.to_string());
    match Client::connect(&target, &token).await {
        Err(ClientError::Unverified { why: Unverified::OtherAddress { told, .. }, .. }) => {
            assert_eq!(told.to_string(), world.lodge.http_addr());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_real_daemon_is_believed_on_every_way_and_with_tokens_of_all_kinds() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let addr = world.lodge.http_addr();
    let port = addr.rsplit_once(':').expect("a port").1;
    for params in [json!({}), json!({"agent": agent})] {
        let (_, token) = crate::tokens::issue(&mut api, params).await;
        for dialled in [addr.clone(), format!("localhost:{port}"), format!("LOCALHOST:{port}")] {
            let (target, login) = (Target::Tcp(dialled), Login::new(&token));
            let mut client = Client::connect(&target, &login).await.expect("a connection");
            client.call_value("agent/list", json!({})).await.expect("a list");
            post::post(&target, &login, "agent/list", json!({})).await.expect("a list");
        }
    }
    let url = format!("http://localhost:{port}");
    // The token of the state directory, and one that is given.
    let token = world.lodge.token();
    for given in [None, Some(("LODGE_TOKEN", token.as_str()))] {
        for via in [("LODGE_DAEMON", url.as_str()), ("LODGE_DAEMON", &format!("http://{addr}"))] {
            let mut command = world.lodge.cli_command(["-q", "ps"]);
            let (code, out, err) = told(&command.envs([via]).envs(given).output().expect("lodge runs"));
            assert_eq!((code, out.trim(), err.as_str()), (0, agent.as_str(), ""));
        }
    }
    // Who sends the token at once is served as before.
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    assert_eq!(http(&addr, "POST", "/v1/rpc", &headers, &rpc("info", &json!({}))).expect("an answer").0, 200);
}

#[tokio::test]
async fn a_proof_is_asked_for_without_a_token_and_tells_nothing_else() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let (id, token) = crate::tokens::issue(&mut api, json!({})).await;
    let addr = world.lodge.http_addr();
    let nonce = [9; proof::NONCE_LEN];
    let (status, body) = http(&addr, "GET", &proof::path(&id, &nonce), &[], b"").expect("an answer");
    let given: Proof = serde_json::from_str(&body).expect("a proof");
    assert_eq!((status, given.addr.to_string()), (200, addr.clone()));
    assert!(given.is_right(&token, &nonce) && !given.is_right(&world.lodge.token(), &nonce));
    for (path, status, code) in [
        (proof::path("tok_0", &nonce), 401, "auth.invalid"),
        (proof::path("nonsense", &nonce), 401, "auth.invalid"),
        (format!("/v1/proof/{id}/00"), 400, "request.invalid"),
        ("/v1/proof".to_owned(), 404, "method.not_found"),
    ] {
        let (got, body) = http(&addr, "GET", &path, &[], b"").expect("an answer");
        let error = serde_json::from_str::<Value>(&body).expect("JSON")["error"].clone();
        api.schemas.error(&error);
        assert_eq!((got, error["data"]["code"].as_str()), (status, Some(code)), "{path}");
    }
    // Two questions on one connection are more than a client needs to authenticate.
    let mut stream = TcpStream::connect(&addr).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let asked = format!("GET {} HTTP/1.1\r\nhost: localhost\r\n\r\n", proof::path(&id, &nonce));
    stream.write_all(asked.repeat(3).as_bytes()).expect("questions");
    let mut all = String::new();
    stream.read_to_string(&mut all).expect("the connection is closed");
    assert_eq!(all.matches("HTTP/1.1 200").count(), 2, "{all}");
    // A token that is over is not proved.
    api.ok("token/revoke", json!({"token": id})).await;
    let (status, body) = http(&addr, "GET", &proof::path(&id, &nonce), &[], b"").expect("an answer");
    assert!(status == 401 && body.contains("auth.revoked"), "{status} {body}");
    match Client::connect(&Target::Tcp(addr), &token).await {
        Err(ClientError::Handshake { status: Some(401), body: Some(body), .. }) => {
            assert_eq!(body.data.code, "auth.revoked");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn localhost_is_the_daemons_address_and_not_the_one_an_impostor_has() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_HTTP_ADDR", "localhost:0");
    world.lodge.start();
    let (addr, token) = (world.lodge.http_addr(), world.lodge.token());
    let (host, port) = addr.rsplit_once(':').expect("a port");
    assert_eq!(host, "127.0.0.1");
    // Without IPv6 there is no such address.
    let Ok(listener) = TcpListener::bind(format!("[::1]:{port}")) else { return };
    let real = addr.clone();
    let impostor = Impostor::on(
        listener,
        Arc::new(move |request: &str| {
            let path = request.split_whitespace().nth(1).unwrap_or_default();
            let (status, body) = http(&real, "GET", path, &[], b"").expect("an answer");
            answer(&format!("{status} OK"), &body)
        }),
    );
    let url = format!("http://localhost:{port}");
    assert_eq!(world.lodge.cli(["--daemon", &url, "ps"]).status.code(), Some(0));
    assert_eq!(impostor.heard(), "", "nobody asks there");
    // Asked by its own address it is found out, although it passes the question on to the daemon.
    let (code, _, err) = told(&world.lodge.cli(["--daemon", &format!("http://[::1]:{port}"), "ps"]));
    assert!(code == 1 && err.contains(&format!("the daemon listens on {addr}")), "{code}: {err}");
    assert!(err.contains("hint: ") && !impostor.heard().contains(signature(&token)), "{err}");
}

#[tokio::test]
async fn a_tunnel_is_believed_when_the_user_says_where_it_leads() {
    let world = ApiWorld::new();
    let real = world.lodge.http_addr();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let tunnel = listener.local_addr().expect("an address");
    let to = real.clone();
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let far = TcpStream::connect(&to).expect("a connection");
            for (mut from, mut to) in
                [(near.try_clone().expect("a stream"), far.try_clone().expect("a stream")), (far, near)]
            {
                std::thread::spawn(move || {
                    drop(std::io::copy(&mut from, &mut to));
                    drop(to.shutdown(Shutdown::Write));
                });
            }
        }
    });
    let url = format!("http://{tunnel}");
    let run = |told_addr: Option<&str>| {
        let mut command = world.lodge.cli_command(["--daemon", url.as_str(), "-q", "ps"]);
        told(&command.envs(told_addr.map(|addr| ("LODGE_DAEMON_ADDR", addr))).output().expect("lodge runs"))
    };
    let (code, _, err) = run(None);
    assert!(code == 1 && err.contains("LODGE_DAEMON_ADDR"), "{code}: {err}");
    assert_eq!(run(Some(&real)), (0, String::new(), String::new()));
    assert_eq!(run(Some("127.0.0.1:1")).0, 1);
    assert_eq!(run(Some("nonsense")).0, 2);
}

/// A Unix socket that another user listens on.
fn socket_of_another_user(path: &Path) -> UnixListener {
    const NOBODY: libc::c_long = 65_534;
    let path = path.to_owned();
    let bound = std::thread::spawn(move || {
        // SAFETY: the bare system call changes this thread alone, which ends right after.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1_i64, NOBODY, -1_i64) };
        assert_eq!(changed, 0, "root may be anybody");
        UnixListener::bind(path).expect("a socket")
    });
    bound.join().expect("a listener")
}

#[tokio::test]
async fn a_socket_of_another_user_gets_no_token() {
    if !is_root() {
        // Only root can create a socket of another user.
        return;
    }
    let world = ApiWorld::new();
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .expect("a mode");
    let path = dir.path().join("lodge.sock");
    let listener = socket_of_another_user(&path);
    let (token, socket) = (world.lodge.token(), path.to_str().expect("UTF-8"));
    let heard = Arc::new(Mutex::new(String::new()));
    let all = heard.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut said = String::new();
            stream.read_to_string(&mut said).expect("an end");
            all.lock().expect("a log").push_str(&said);
        }
    });
    for given in [None, Some(("LODGE_TOKEN", token.as_str()))] {
        for command in ["ps", "info"] {
            let mut command = world.lodge.cli_command(["--socket", socket, command]);
            let (code, _, err) = told(&command.envs(given).output().expect("lodge runs"));
            assert!(
                code == 1
                    && err.starts_with(&format!(
                        "error: the token was not sent: another user listens on the socket {socket}\n"
                    ))
                    && err.contains("runs as uid 65534; the daemon would run as root\n")
                    && err.contains("hint: if it is the daemon of user 65534, run this as that user"),
                "{code}: {err}"
            );
        }
    }
    // Connections are read in order: this is read last.
    UnixStream::connect(&path).expect("a connection").write_all(b"END").expect("words");
    let all = until("everything is read", || {
        let all = heard.lock().expect("a log").clone();
        all.ends_with("END").then_some(all)
    });
    assert_eq!(all, "END", "not a byte was sent before");
}

fn info(lodge: &Lodge) -> Value {
    serde_json::from_str(&lodge.cli_ok(["--json", "info"])).expect("JSON")
}

fn credentials_http(lodge: &Lodge) -> Value {
    lodge.credentials().expect("credentials")["http"].clone()
}

#[tokio::test]
async fn a_taken_port_does_not_keep_the_daemon_down_and_is_taken_when_it_is_free() {
    let mut world = ApiWorld::asleep();
    let impostor = Arc::new(TcpListener::bind("127.0.0.1:0").expect("a port"));
    let addr = impostor.local_addr().expect("an address").to_string();
    world.lodge.set_env("LODGED_HTTP_ADDR", &addr);
    // Killed and started while it is taken, it is the same again.
    for _ in 0..2 {
        world.lodge.start();
        let told = info(&world.lodge);
        assert_eq!(told["http_addr"], Value::Null, "no other port was taken");
        assert_eq!(
            (&told["http"]["state"], &told["http"]["addr"]),
            (&json!("taken"), &json!(addr)),
            "{told}"
        );
        assert!(told["http"]["reason"].as_str().is_some_and(|reason| reason.contains("in use")), "{told}");
        let warned = told["warnings"].to_string();
        assert!(warned.contains(&addr) && warned.contains("cannot be listened on"), "{warned}");
        assert!(world.lodge.cli_ok(["info"]).contains(&format!("{addr} is taken: ")), "in words, too");
        assert_eq!(credentials_http(&world.lodge), Value::Null, "clients are not sent to somebody else");
        assert!(world.lodge.log().contains("http.taken"));
        world.lodge.kill9();
    }
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    assert_eq!(api.answer(&agent, "s", "[[reply:fine]]").await, "fine");
    drop(impostor);
    let url = json!(format!("http://{addr}"));
    until("the port is taken", || (credentials_http(&world.lodge) == url).then_some(()));
    let told = info(&world.lodge);
    assert_eq!((&told["http_addr"], &told["http"]["state"]), (&json!(addr), &json!("listening")), "{told}");
    assert!(!told["warnings"].to_string().contains("cannot be listened on"), "{told}");
    let token = world.lodge.token();
    let mut client = Client::connect(&Target::Tcp(addr.clone()), &token).await.expect("a connection");
    assert_eq!(client.call_value("info", json!({})).await.expect("info")["http_addr"], json!(addr));
    // The next daemon has it from the start, with the same token.
    world.lodge.kill9();
    world.lodge.start();
    assert_eq!(
        (info(&world.lodge)["http"]["state"].clone(), credentials_http(&world.lodge)),
        (json!("listening"), url)
    );
    assert_eq!(world.lodge.token(), token);
}

#[tokio::test]
async fn a_daemon_that_waits_for_its_port_ends_when_it_is_asked_to() {
    let mut world = ApiWorld::asleep();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    world.lodge.set_env("LODGED_HTTP_ADDR", &taken.local_addr().expect("an address").to_string());
    world.lodge.start();
    assert_eq!(world.cli(&["shutdown"]).0, 0);
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false));
}
