//! Shutdown of the daemon: requests get their time, and agents keep running by default.

use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};

use lodge_proto::client::ClientError;
use lodge_testkit::lodge::{PATIENCE, is_alive, until};
use serde_json::json;

use crate::world::{ApiWorld, family, id, kill, sh};

/// Ends the daemon and starts the next one, which must find the agent as it was.
async fn survives(how: impl FnOnce(&ApiWorld)) {
    let mut world = ApiWorld::asleep();
    // A daemon that waited for a client would not end in time.
    world.lodge.set_env("LODGED_SHUTDOWN_TIMEOUT", "10m");
    world.lodge.start();
    let mut api = world.checked().await;
    let agent = world.agent(&mut api, "one").await;
    let text = format!("{} [[reply:done]]", sh("echo begun > begun; until test -e go; do sleep 0.02; done"));
    let sent = api.ok("turn/send", json!({"agent": agent, "session": "s", "text": text})).await;
    let workspace = world.lodge.home().join("agents").join(&agent).join("workspace");
    until("the tool runs", || workspace.join("begun").exists().then_some(()));
    let before = api.ok("agent/get", json!({"agent": agent})).await;
    how(&world);
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false), "it was not its own end");
    assert!(!world.lodge.home().join("lodge.sock").exists(), "a socket without a daemon");
    let pid = i32::try_from(before["pid"].as_u64().expect("a pid")).expect("a pid");
    assert!(is_alive(pid), "the agent ended with the daemon");
    assert!(family(pid).len() >= 3, "the tool ended with the daemon");
    std::fs::write(workspace.join("go"), "").expect("a file");
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let turn = api.ended(id(&sent)).await;
    assert_eq!((&turn["status"], &turn["text"]), (&json!("done"), &json!("done")), "{turn:#}");
    let after = api.agent_is(&agent, "ready").await;
    for same in ["pid", "incarnation", "started_at", "liveness"] {
        assert_eq!(after[same], before[same], "{same}");
    }
    let adopted = api.log().await.iter().filter(|event| event["kind"] == "lineage.adopted").count();
    assert_eq!(adopted, 1);
}

#[tokio::test]
async fn a_termination_signal_ends_the_daemon_and_no_agent() {
    survives(|world| {
        kill(i32::try_from(world.lodge.pid().expect("a daemon")).expect("a pid"), libc::SIGTERM)
    })
    .await;
}

#[tokio::test]
async fn an_interrupt_ends_the_daemon_and_no_agent() {
    survives(|world| kill(i32::try_from(world.lodge.pid().expect("a daemon")).expect("a pid"), libc::SIGINT))
        .await;
}

#[tokio::test]
async fn the_shutdown_command_ends_the_daemon_and_no_agent() {
    survives(|world| {
        let info: serde_json::Value = serde_json::from_str(&world.cli(&["info", "--json"]).1).expect("JSON");
        let pid = info["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("a pid");
        let (code, out, err) = world.cli(&["shutdown"]);
        assert_eq!((code, out.as_str()), (0, ""), "{err}");
        assert!(!is_alive(pid), "it still writes to its directory");
    })
    .await;
}

#[tokio::test]
async fn a_shutdown_through_a_forwarded_socket_does_not_wait_for_the_forwarder() {
    let world = ApiWorld::new();
    let (forwarded, socket) =
        (world.lodge.dir().join("forwarded.sock"), world.lodge.home().join("lodge.sock"));
    let listener = UnixListener::bind(&forwarded).expect("a socket");
    // This process is what the client sees at the other end, and it lives on.
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = UnixStream::connect(&socket) else { continue };
            let ends = [(near.try_clone(), far.try_clone()), (far.try_clone(), near.try_clone())];
            for (from, to) in ends {
                let (mut from, mut to) = (from.expect("a socket"), to.expect("a socket"));
                std::thread::spawn(move || {
                    // A side that closed needs nothing more.
                    drop(std::io::copy(&mut from, &mut to));
                    drop(to.shutdown(Shutdown::Write));
                });
            }
        }
    });
    let (code, _, err) = world.cli(&["--socket", forwarded.to_str().expect("text"), "shutdown"]);
    assert_eq!(code, 0, "{err}");
}

#[tokio::test]
async fn shutdown_with_agents_leaves_no_process() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    for name in ["one", "two"] {
        world.agent(&mut api, name).await;
    }
    let text = sh("echo begun > begun; sleep 600");
    let sent = api.ok("turn/send", json!({"agent": "one", "session": "s", "text": text})).await;
    let agent = sent["agent"].as_str().expect("an agent");
    let workspace = world.lodge.home().join("agents").join(agent).join("workspace");
    until("the tool runs", || workspace.join("begun").exists().then_some(()));
    let processes: Vec<i32> = world.lodge.keepers().into_iter().flat_map(family).collect();
    assert!(processes.len() >= 5, "{processes:?}");
    let (code, _, err) = world.cli(&["shutdown", "--agents"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false));
    assert_eq!(processes.iter().filter(|pid| is_alive(**pid)).count(), 0);
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    assert_eq!(api.ok("agent/get", json!({"agent": "one"})).await["status"], "stopped");
    assert_eq!(api.ok("turn/get", json!({"turn": id(&sent)})).await["status"], "interrupted");
    // A daemon is not started only to be shut down.
    world.lodge.kill9();
    assert_eq!(world.cli(&["shutdown"]).0, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_agent_outlives_a_shutdown_with_agents_although_clients_start_agents_meanwhile() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let mut starts = Vec::new();
    for name in ["one", "two", "three", "four"] {
        world.agent(&mut api, name).await;
        let mut client = world.lodge.client().await;
        starts.push(tokio::spawn(async move {
            // A refusal is an answer; the daemon is gone when there is none.
            while matches!(
                client.call_value("agent/restart", json!({"agent": name})).await,
                Ok(_) | Err(ClientError::Refused(_))
            ) {}
        }));
    }
    let (code, _, err) = world.cli(&["shutdown", "--agents"]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false));
    for start in starts {
        start.await.expect("it ends with the daemon");
    }
    assert_eq!(world.lodge.keepers(), Vec::<i32>::new(), "agents live on");
}

#[tokio::test]
async fn open_streams_and_stalled_requests_do_not_hold_up_the_end() {
    let mut world = ApiWorld::asleep();
    world.lodge.set_env("LODGED_SHUTDOWN_TIMEOUT", "500ms");
    world.lodge.start();
    let mut api = world.checked().await;
    api.ok("client/attach", json!({"all": true})).await;
    let mut half = std::net::TcpStream::connect(world.lodge.http_addr()).expect("a connection");
    let head = format!(
        "POST /v1/rpc HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{{",
        world.lodge.token()
    );
    std::io::Write::write_all(&mut half, head.as_bytes()).expect("half a request");
    let mut stream = std::net::TcpStream::connect(world.lodge.http_addr()).expect("a connection");
    let head = format!(
        "GET /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
        world.lodge.token()
    );
    std::io::Write::write_all(&mut stream, head.as_bytes()).expect("a request");
    let mut first = [0; 12];
    std::io::Read::read_exact(&mut stream, &mut first).expect("an answer");
    kill(i32::try_from(world.lodge.pid().expect("a daemon")).expect("a pid"), libc::SIGTERM);
    assert_eq!(world.lodge.wait_killed(PATIENCE), Some(false));
}
