//! Daemons that are killed while they change, move or pack images: what was acknowledged is there and whole, what was not
//! is not there in part, and nothing of it is left in the store.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Instant;

use lodge_testkit::lodge::{Lodge, PATIENCE, until};
use lodge_testkit::registry::{FaultCount, MockRegistry, RegistryFault};
use serde_json::{Value, json};

use crate::bins::{platform, tool};
use crate::checked::CheckedClient;
use crate::images_archive::{export, import};
use crate::world::{AGENTFILE, ApiWorld};

/// What is recorded of images.
async fn recorded(api: &mut CheckedClient) -> Value {
    json!([api.ok("image/list", json!({})).await, api.ok("bin/list", json!({})).await])
}

fn in_store(lodge: &Lodge, place: &str) -> BTreeSet<String> {
    let found = std::fs::read_dir(lodge.home().join("registry").join(place)).expect("the store");
    found.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// Waits until a daemon has recorded its own start, so that the next commit is that of the request; false if it died.
async fn settled(lodge: &Lodge) -> bool {
    let Ok(mut client) = lodge.try_client().await else { return false };
    let Ok(info) = client.call_value("info", json!({})).await else { return false };
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let asked = json!({"kind": "daemon.started", "limit": 1, "before": i64::MAX});
        let Ok(log) = client.call_value("event/list", asked).await else { return false };
        if log["events"][0]["data"]["epoch"] == info["epoch"] {
            return true;
        }
    }
    panic!("the daemon never recorded its start:\n{}", lodge.log());
}

/// Does something once a daemon dies before its first commit, before its second, and so on, until it is done. What could
/// not be done leaves everything as it was. Returns how often that happened.
async fn struck(
    world: &mut ApiWorld,
    api: &mut CheckedClient,
    what: &str,
    mut ask: impl AsyncFnMut(&Lodge) -> bool,
) -> u32 {
    let (before, blobs) = (recorded(api).await, in_store(&world.lodge, "blobs/sha256"));
    let mut cut = 0;
    for nth in 1.. {
        world.lodge.kill9();
        world.lodge.set_env("LODGED_CRASH_AT", &format!("before_commit:{nth}"));
        world.lodge.spawn();
        let ready = world.lodge.try_wait_ready().is_ok() && settled(&world.lodge).await;
        let done = ready && ask(&world.lodge).await;
        world.lodge.unset_env("LODGED_CRASH_AT");
        if done {
            break;
        }
        if world.lodge.pid().is_some() {
            assert_eq!(world.lodge.wait_killed(PATIENCE), Some(true), "{what}");
        }
        cut += u32::from(ready);
        world.lodge.start();
        *api = api.again(&world.lodge).await;
        assert_eq!(recorded(api).await, before, "{what} is half done");
        let tidy = || (in_store(&world.lodge, "blobs/sha256") == blobs).then_some(());
        until(&format!("what came of {what} goes"), tidy);
        assert_eq!(in_store(&world.lodge, "temp"), BTreeSet::new(), "{what}");
    }
    world.lodge.kill9();
    world.lodge.start();
    *api = api.again(&world.lodge).await;
    assert_ne!(recorded(api).await, before, "{what} was acknowledged and is lost");
    cut
}

#[tokio::test]
async fn a_change_of_images_that_is_cut_before_its_commit_leaves_nothing_and_happens_once_when_asked_again() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    tool(&mut api, "show", "/bin/cat", &["show"]).await;
    let content = format!("{AGENTFILE}BIN show show\n");
    let programs = json!([{"platform": platform(), "path": "/bin/ls"}]);
    let changes = [
        ("image/build", json!({"content": content, "tags": ["a", "b"], "request_id": "r1"})),
        ("bin/build", json!({"name": "list", "programs": programs, "tags": ["list"], "request_id": "r2"})),
        ("image/tag", json!({"image": "a", "tags": ["c:1", "c:2"], "request_id": "r3"})),
        ("image/remove", json!({"image": "c:1", "request_id": "r4"})),
        ("bin/remove", json!({"bin": "list", "request_id": "r5"})),
    ];
    for (method, params) in changes {
        let ask = async |lodge: &Lodge| {
            let Ok(mut client) = lodge.try_client().await else { return false };
            client.call_value(method, params.clone()).await.is_ok()
        };
        assert!(struck(&mut world, &mut api, method, ask).await > 0, "{method} was never cut");
        let after = recorded(&mut api).await;
        api.ok(method, params.clone()).await;
        assert_eq!(recorded(&mut api).await, after, "{method} happened twice");
    }
    import(&ApiWorld::new().lodge, &export(&world.lodge, "image=a&image=c:2"));
}

#[tokio::test]
async fn an_import_that_is_cut_before_its_commit_leaves_nothing() {
    let archive = {
        let world = ApiWorld::new();
        let mut api = world.checked().await;
        tool(&mut api, "show", "/bin/cat", &["show"]).await;
        api.ok("image/build", json!({"content": format!("{AGENTFILE}BIN show show\n"), "tags": ["a"]})).await;
        export(&world.lodge, "image=a")
    };
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    // Creates the store.
    tool(&mut api, "list", "/bin/ls", &["list"]).await;
    let ask = async |lodge: &Lodge| {
        let mut stream = begun(lodge, archive.len());
        let mut answer = Vec::new();
        stream.write_all(&archive).is_ok()
            && stream.read_to_end(&mut answer).is_ok()
            && answer.windows(12).any(|word| word == b"HTTP/1.1 200")
    };
    assert!(struck(&mut world, &mut api, "the import", ask).await > 0);
    assert_eq!(export(&world.lodge, "image=a"), archive, "and then everything of it is here");
}

/// An import whose body is still to come.
fn begun(lodge: &Lodge, length: usize) -> TcpStream {
    let mut stream = TcpStream::connect(lodge.http_addr()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(
        stream,
        "POST /v1/images/import HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         connection: close\r\nexpect: 100-continue\r\ncontent-length: {length}\r\n\r\n",
        lodge.token()
    )
    .expect("a request");
    stream
}

/// Waits until a daemon reads what is sent to it.
fn is_read(stream: &mut TcpStream) {
    let mut head = [0; 25];
    stream.read_exact(&mut head).expect("a daemon that reads");
    assert_eq!(&head, b"HTTP/1.1 100 Continue\r\n\r\n");
}

// The push needs a thread of its own while this one looks at the registry.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_whose_daemon_dies_leaves_no_name_in_the_registry_and_sends_only_the_rest_when_asked_again() {
    let registry = MockRegistry::start().expect("a registry");
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    tool(&mut api, "show", "/bin/cat", &["show"]).await;
    api.ok("image/build", json!({"content": format!("{AGENTFILE}BIN show show\n"), "tags": ["a"]})).await;
    // The tool goes first, by its digest, and its contents before that.
    registry.fault("PUT", "/manifests/sha256:", FaultCount::Always, RegistryFault::Silence);
    let asked = json!({"image": "a", "to": format!("{}/team/a:v1", registry.host()), "request_id": "p"});
    let mut client = world.lodge.client().await;
    let params = asked.clone();
    let pushing = tokio::spawn(async move { client.call_value("image/push", params).await });
    until("the tool is being put", || (registry.count("PUT", "/manifests/sha256:") > 0).then_some(()));
    world.lodge.kill9();
    assert!(pushing.await.expect("a task").is_err(), "nobody acknowledged it");
    assert!(registry.manifest("team/a", "v1").is_none(), "half an image has a name");
    registry.forget_faults();
    world.lodge.start();
    let mut api = api.again(&world.lodge).await;
    let pushed = api.ok("image/push", asked).await;
    let fresh = MockRegistry::start().expect("another registry");
    api.ok("image/push", json!({"image": "a", "to": format!("{}/team/a:v1", fresh.host())})).await;
    let uploads = |registry: &MockRegistry| registry.count("POST", "/blobs/uploads");
    assert_eq!(uploads(&registry), uploads(&fresh), "contents that were there came again");
    let other = ApiWorld::new();
    let mut api = other.checked().await;
    let name = format!("{}/team/a:v1", registry.host());
    assert_eq!(api.ok("image/pull", json!({"image": name})).await["digest"], pushed["digest"]);
}

#[tokio::test]
async fn an_export_whose_daemon_dies_is_no_success() {
    let mut world = ApiWorld::new();
    let mut api = world.checked().await;
    let dir = world.lodge.agent_dir("large", &format!("{AGENTFILE}ADD noise\n"), &[]);
    // More than what is on its way between the two.
    std::fs::write(dir.join("noise"), vec![7; 12 << 20]).expect("a file");
    api.ok("image/build", json!({"path": dir, "tags": ["large"]})).await;
    let mut command = world.lodge.cli_command(["image", "export", "large"]);
    let mut exporting =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("an export begins");
    let mut out = exporting.stdout.take().expect("its stdout");
    out.read_exact(&mut [0; 512]).expect("its begin");
    world.lodge.kill9();
    let rest = std::io::copy(&mut out, &mut std::io::sink()).expect("what was on its way");
    let told = exporting.wait_with_output().expect("its end");
    let err = String::from_utf8_lossy(&told.stderr);
    assert!(rest < 12 << 20 && !told.status.success(), "{rest} {} {err}", told.status);
    assert!(err.contains("error: ") && err.contains("hint: "), "{err}");
    world.lodge.start();
    let whole = world.lodge.dir().join("whole.tar");
    world.lodge.cli_ok(["image", "export", "large", "-o", whole.to_str().expect("a path")]);
    assert_eq!(std::fs::read(whole).expect("an archive"), export(&world.lodge, "image=large"));
}

#[tokio::test]
async fn an_export_of_damaged_contents_says_so_also_when_it_was_begun() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let dir = world.lodge.agent_dir("parts", &format!("{AGENTFILE}ADD data\n"), &[("data", "facts")]);
    api.ok("image/build", json!({"path": dir, "tags": ["parts"]})).await;
    let detail = api.ok("image/inspect", json!({"image": "parts"})).await;
    let blobs = detail["blobs"].as_array().expect("blobs");
    let data = blobs.iter().find(|blob| blob["title"] == "data").expect("the file");
    let digest = data["digest"].as_str().expect("a digest").trim_start_matches("sha256:");
    let path = world.lodge.home().join("registry/blobs/sha256").join(digest);
    let mode = std::fs::metadata(&path).expect("a blob").permissions();
    std::fs::remove_file(&path).expect("a blob");
    std::fs::write(&path, "lies!").expect("another one");
    std::fs::set_permissions(&path, mode).expect("its mode");
    let file = world.lodge.dir().join("parts.tar");
    let (code, _, err) = world.cli(&["image", "export", "parts", "-o", file.to_str().expect("a path")]);
    assert_eq!((code, file.exists()), (1, false), "{err}");
    assert!(err.contains(digest) && err.contains("hint: pull it again, or build it again"), "{err}");
}

/// As many archives as may come and go at once.
const ARCHIVES: usize = 16;
/// As many changes as are prepared at once.
const PREPARED: usize = 32;

#[tokio::test]
async fn more_archives_than_may_come_at_once_wait_for_their_turn() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let mut first: Vec<TcpStream> = (0..ARCHIVES).map(|_| begun(&world.lodge, 10_240)).collect();
    first.iter_mut().for_each(is_read);
    let mut last = begun(&world.lodge, 10_240);
    // The daemon has it, and answers others.
    api.ok("info", json!({})).await;
    api.ok("image/list", json!({})).await;
    last.set_nonblocking(true).expect("a socket");
    let early = last.read(&mut [0; 25]);
    assert!(early.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it did not wait");
    last.set_nonblocking(false).expect("a socket");
    drop(first.pop());
    is_read(&mut last);
}

#[tokio::test]
async fn more_builds_than_are_prepared_at_once_wait_for_their_turn_and_hold_up_nothing_else() {
    let registry = MockRegistry::start().expect("a registry");
    registry.fault("GET", "/manifests/", FaultCount::Always, RegistryFault::Silence);
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let build = |n: usize| {
        let content = format!("FROM {}/base{n}:v1\n", registry.host());
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "image/build",
            "params": {"content": content, "tags": [format!("b{n}")]}});
        let body = body.to_string();
        let mut stream = TcpStream::connect(world.lodge.http_addr()).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(
            stream,
            "POST /v1/rpc HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            world.lodge.token(),
            body.len()
        )
        .expect("a request");
        stream
    };
    let building: Vec<TcpStream> = (0..=PREPARED).map(build).collect();
    let asked = || registry.count("GET", "/manifests/");
    until("all but one have begun", || (asked() >= PREPARED).then_some(()));
    api.ok("info", json!({})).await;
    api.ok("image/list", json!({})).await;
    assert_eq!(asked(), PREPARED, "the last one did not wait");
    // The registry is gone, and all clients get an error, including the waiting one.
    drop(registry);
    for mut stream in building {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.contains("agentfile.invalid") || answer.contains("registry."), "{answer}");
    }
    api.ok("image/build", json!({"content": AGENTFILE, "tags": ["a"]})).await;
}
