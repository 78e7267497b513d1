//! `/v1/images/export` and `/v1/images/import`: images as one file.

use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};

use lodge_testkit::lodge::{Lodge, PATIENCE, until};
use serde_json::{Value, json};

use crate::bins::tool;
use crate::tokens::issue;
use crate::world::{AGENTFILE, ApiWorld};

/// One exchange: the status and the body.
fn exchange(lodge: &Lodge, token: &str, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let addr = lodge.http_addr();
    let mut stream = TcpStream::connect(&addr).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    write!(
        stream,
        "{method} {path} HTTP/1.0\r\nhost: {addr}\r\nauthorization: Bearer {token}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .expect("a request");
    // A server that refuses early may close before everything was sent.
    drop(stream.write_all(body));
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert!(!answer.is_empty(), "no answer: {error}");
    }
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let body = answer.split_off(end);
    let head = String::from_utf8(answer).expect("a head");
    (head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"), body)
}

pub fn export(lodge: &Lodge, query: &str) -> Vec<u8> {
    let (status, body) = exchange(lodge, &lodge.token(), "GET", &format!("/v1/images/export?{query}"), b"");
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&body));
    body
}

pub fn import(lodge: &Lodge, archive: &[u8]) -> Value {
    let (status, body) = exchange(lodge, &lodge.token(), "POST", "/v1/images/import", archive);
    let body = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(status, 200, "{body}");
    body
}

pub fn refused(lodge: &Lodge, method: &str, path: &str, body: &[u8]) -> (u16, String) {
    let (status, body) = exchange(lodge, &lodge.token(), method, path, body);
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    assert!(body["error"]["data"]["hint"].is_string(), "{body}");
    (status, body["error"]["data"]["code"].as_str().expect("a code").to_owned())
}

#[tokio::test]
async fn an_agent_comes_out_of_an_archive_with_its_tools_as_it_went_in() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let bin = tool(&mut api, "show", "/bin/cat", &["show"]).await;
    let source = "FROM scratch\nNAME reader\nMODEL mock/m\nBIN show show\nADD data.txt\nADD noise\n";
    let dir = world.lodge.agent_dir("reader", source, &[("data.txt", "facts")]);
    // Larger than a call may be.
    let noise: Vec<u8> = (0..6_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(dir.join("noise"), noise).expect("a file");
    let built = api.ok("image/build", json!({"path": dir, "tags": ["reader", "reader:v1"]})).await;
    let archive = export(&world.lodge, "image=reader&image=reader:v1");
    assert_eq!(
        export(&world.lodge, "image=reader&image=reader:v1"),
        archive,
        "the same images, the same archive"
    );
    let other = ApiWorld::new();
    let imported = import(&other.lodge, &archive);
    assert_eq!(imported["bins"], json!([]), "a tool that an agent needs is not named: {imported:#}");
    assert_eq!(imported["tools"], 1, "and yet it came along");
    assert_eq!(imported["images"][0]["digest"], built["digest"]);
    assert_eq!(imported["images"][0]["refs"], json!(["reader:latest", "reader:v1"]));
    let mut api = other.checked().await;
    let bins = api.ok("bin/list", json!({})).await;
    assert_eq!((&bins["bins"][0]["digest"], &bins["bins"][0]["refs"]), (&bin["digest"], &json!([])));
    api.ok("agent/create", json!({"image": "reader", "name": "one"})).await;
    api.agent_is("one", "ready").await;
    let turn =
        api.say("one", "s", &format!("[[tool:show|{}]] [[reply:done]]", json!(["etc/agent.yaml"]))).await;
    assert_eq!(turn["status"], "done", "{turn:#}");
    // A repeated import changes nothing, and a name that is taken moves only on request.
    assert_eq!(import(&other.lodge, &archive)["images"][0]["digest"], built["digest"]);
    let own = api.ok("image/build", json!({"content": AGENTFILE, "tags": ["reader:v1"]})).await;
    for path in ["/v1/images/import", "/v1/images/import?move=false&claim=true"] {
        assert_eq!(refused(&other.lodge, "POST", path, &archive), (409, "image.name_moves".to_owned()));
    }
    assert_eq!(api.ok("image/inspect", json!({"image": "reader:v1"})).await["digest"], own["digest"]);
    let (status, _) =
        exchange(&other.lodge, &other.lodge.token(), "POST", "/v1/images/import?move=true", &archive);
    assert_eq!(status, 200);
    assert_eq!(api.ok("image/inspect", json!({"image": "reader:v1"})).await["digest"], built["digest"]);
    let tools = export(&world.lodge, &format!("image={}", bin["digest"].as_str().expect("a digest")));
    let third = ApiWorld::new();
    let imported = import(&third.lodge, &tools);
    assert_eq!(
        (&imported["bins"][0]["refs"], &imported["images"]),
        (&json!(["show:latest"]), &json!([])),
        "{imported:#}"
    );
}

#[tokio::test]
async fn a_tool_without_a_name_gets_one_that_no_program_of_the_host_has() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    let bin = tool(&mut api, "host", "/bin/cat", &["my/host"]).await;
    api.ok("image/build", json!({"content": format!("{AGENTFILE}BIN h my/host\n"), "tags": ["a"]})).await;
    // Its name moves on, and the agent still has it.
    tool(&mut api, "host", "/bin/ls", &["my/host"]).await;
    let digest = bin["digest"].as_str().expect("a digest");
    let other = ApiWorld::new();
    let imported = import(&other.lodge, &export(&world.lodge, &format!("image={digest}")));
    let name = format!("imported/host:{}", &digest["sha256:".len()..][..12]);
    assert_eq!(imported["bins"][0]["refs"], json!([name]), "{imported:#}");
}

#[tokio::test]
async fn an_archive_that_is_cut_damaged_or_none_records_nothing() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    tool(&mut api, "show", "/bin/cat", &["show"]).await;
    api.ok("image/build", json!({"content": format!("{AGENTFILE}BIN show show\n"), "tags": ["a"]})).await;
    let good = export(&world.lodge, "image=a");
    let other = ApiWorld::new();
    let mut api = other.checked().await;
    let mut damaged = good.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let cut = &good[..good.len() / 2];
    let zeros = vec![0; 10_240];
    for (what, archive) in
        [("nothing", &b""[..]), ("text", b"hello"), ("zeros", &zeros), ("damaged", &damaged), ("cut", cut)]
    {
        assert_eq!(
            refused(&other.lodge, "POST", "/v1/images/import", archive),
            (400, "image.invalid".to_owned()),
            "{what}"
        );
        assert_eq!(api.ok("image/list", json!({})).await["images"], json!([]), "{what}");
        assert_eq!(api.ok("bin/list", json!({})).await["bins"], json!([]), "{what}");
    }
    let blobs = other.lodge.home().join("registry/blobs/sha256");
    let is_empty = || std::fs::read_dir(&blobs).ok()?.next().is_none().then_some(());
    until("what came of them goes", is_empty);
    // A connection that is cut in the middle, by its length.
    let mut stream = TcpStream::connect(other.lodge.http_addr()).expect("a connection");
    write!(
        stream,
        "POST /v1/images/import HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n\r\n",
        other.lodge.token(),
        good.len()
    )
    .expect("a request");
    stream.write_all(cut).expect("half of it");
    drop(stream);
    assert_eq!(import(&other.lodge, &good)["images"].as_array().map(Vec::len), Some(1), "and then whole");
}

#[tokio::test]
async fn an_archive_takes_no_name_twice_and_none_of_a_tool() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for name in ["one", "two"] {
        let content = format!("{AGENTFILE}LABEL which={name}\n");
        api.ok("image/build", json!({"content": content, "tags": [name]})).await;
    }
    let good = export(&world.lodge, "image=one&image=two");
    let mut twice = good.clone();
    let (old, new) = (b"two:latest", b"one:latest");
    for at in 0..twice.len() - old.len() {
        if twice[at..].starts_with(old) {
            twice[at..at + new.len()].copy_from_slice(new);
        }
    }
    assert_ne!(twice, good);
    let other = ApiWorld::new();
    let mut api = other.checked().await;
    let refusal = |archive: &[u8]| refused(&other.lodge, "POST", "/v1/images/import", archive);
    assert_eq!(refusal(&twice), (400, "image.invalid".to_owned()));
    tool(&mut api, "show", "/bin/cat", &["two"]).await;
    assert_eq!(refusal(&good), (409, "image.name_taken".to_owned()));
    assert_eq!(api.ok("image/list", json!({})).await["images"], json!([]));
    api.ok("bin/remove", json!({"bin": "two"})).await;
    assert_eq!(import(&other.lodge, &good)["images"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn names_of_stock_tools_and_registries_are_taken_only_if_that_is_asked_for() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    for name in ["stock/rg", "rg:v1", "registry.example/team/show:v1"] {
        tool(&mut api, "show", "/bin/cat", &[name]).await;
        let archive = export(&world.lodge, &format!("image={name}"));
        let other = ApiWorld::new();
        let claimed = refused(&other.lodge, "POST", "/v1/images/import", &archive);
        assert_eq!(claimed, (409, "image.name_claimed".to_owned()), "{name}");
        let claimed = refused(&other.lodge, "POST", "/v1/images/import?move=true", &archive);
        assert_eq!(claimed.0, 409, "{name}");
        let mut there = other.checked().await;
        assert_eq!(there.ok("bin/list", json!({})).await["bins"], json!([]), "{name}");
        let path = "/v1/images/import?claim=true";
        assert_eq!(exchange(&other.lodge, &other.lodge.token(), "POST", path, &archive).0, 200, "{name}");
        // The same again claims nothing.
        import(&other.lodge, &archive);
        let wrong = refused(&other.lodge, "POST", "/v1/images/import?claim=yes", &archive);
        assert_eq!(wrong, (400, "params.invalid".to_owned()));
    }
}

#[tokio::test]
async fn exports_and_imports_are_refused_like_everything_else() {
    let world = ApiWorld::new();
    let mut api = world.checked().await;
    world.agent(&mut api, "one").await;
    let many = vec!["image=tester"; 65].join("&");
    for (query, status, code) in [
        ("", 400, "params.invalid"),
        ("?image=nobody", 404, "image.not_found"),
        ("?image=..%2Fx", 400, "image.bad_ref"),
        ("?image=", 400, "image.bad_ref"),
        ("?name=tester", 400, "params.invalid"),
        ("?image=tester&image=nobody", 404, "image.not_found"),
        (&format!("?{many}"), 400, "params.invalid"),
    ] {
        let path = format!("/v1/images/export{query}");
        assert_eq!(refused(&world.lodge, "GET", &path, b""), (status, code.to_owned()), "{query}");
    }
    let (_, of_agent) = issue(&mut api, json!({"agent": "one"})).await;
    for (method, path) in [("GET", "/v1/images/export?image=tester"), ("POST", "/v1/images/import")] {
        assert_eq!(exchange(&world.lodge, &of_agent, method, path, b"").0, 403, "{path}");
        assert_eq!(exchange(&world.lodge, "nobody", method, path, b"").0, 401, "{path}");
    }
}

/// Starts to send an archive of this length, and sends nothing of it. A server that will read it answers `100
/// Continue`.
fn begun(lodge: &Lodge, length: u64) -> TcpStream {
    let mut stream = TcpStream::connect(lodge.http_addr()).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let token = lodge.token();
    write!(
        stream,
        "POST /v1/images/import HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nexpect: 100-continue\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n",
    )
    .expect("a request");
    stream
}

/// Whether an archive that is so long has no room. Nothing of it comes.
fn has_no_room(lodge: &Lodge, length: u64) -> bool {
    let mut stream = begun(lodge, length);
    stream.shutdown(Shutdown::Write).expect("no more is sent");
    let mut answer = Vec::new();
    // A request that is not refused was cut, and needs no answer.
    drop(stream.read_to_end(&mut answer));
    String::from_utf8_lossy(&answer).contains("image.no_room")
}

/// Bytes that are free where a daemon keeps its images.
fn free_bytes(lodge: &Lodge) -> u64 {
    let path = CString::new(lodge.home().as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: the path ends with a zero, and the struct is there to be written to.
    let found = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        assert_eq!(libc::statvfs(path.as_ptr(), &raw mut found), 0, "{}", std::io::Error::last_os_error());
        found
    };
    found.f_bavail * found.f_frsize
}

#[test]
fn archives_that_come_together_do_not_count_on_the_same_room() {
    let world = ApiWorld::new();
    // Others write to this disk, too: most of it is not all of it.
    let most = free_bytes(&world.lodge) / 3 * 2;
    assert!(has_no_room(&world.lodge, u64::MAX / 2), "not for so much alone");
    let mut first = begun(&world.lodge, most);
    let mut head = [0; 12];
    first.read_exact(&mut head).expect("a head");
    assert_eq!(&head, b"HTTP/1.1 100", "it is going to be read");
    assert!(has_no_room(&world.lodge, most), "not for two");
    drop(first);
    until("what the first needed is free again", || (!has_no_room(&world.lodge, most)).then_some(()));
}
