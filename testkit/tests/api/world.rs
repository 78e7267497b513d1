//! A state directory, a scripted provider, and agents that use both.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;

use lodge_testkit::lodge::{Lodge, PATIENCE, is_alive};
use lodge_testkit::mock::MockLlm;
use serde_json::{Value, json};

use crate::checked::CheckedClient;

/// A token of no daemon: {"alg":"HS256"}, {"jti":"tok_01"} and what is no signature.
pub const A_TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9.eyJqdGkiOiJ0b2tfMDEifQ.x";

pub const KEY: &str = "sk-canary-0123456789abcdef";

/// Programs of the host that every agent of these tests has.
pub const AGENTFILE: &str = "FROM scratch\nNAME tester\nMODEL mock/m\n\
    BIN sh host:sh \"a shell\"\nBIN env host:env \"the environment\"\nBIN cat host:cat \"files\"\n\
    BIN id host:id \"who\"\nBIN ls host:ls \"names\"\nBIN sleep host:sleep \"wait\"\nBIN touch host:touch \"make\"\n";

/// A daemon with a scripted provider.
#[derive(Debug)]
pub struct ApiWorld {
    pub lodge: Lodge,
    pub mock: MockLlm,
}

impl ApiWorld {
    /// Everything but the daemon.
    pub fn asleep() -> ApiWorld {
        ApiWorld::with(Lodge::new())
    }

    /// The same, around a state directory that is still empty.
    pub fn with(lodge: Lodge) -> ApiWorld {
        fs::DirBuilder::new().mode(0o700).create(lodge.home()).expect("a state directory");
        let mock = MockLlm::spawn_with(lodge.dir(), &["--key", KEY]).expect("a provider");
        let world = ApiWorld { lodge, mock };
        world.put_providers(&world.provider("mock", &world.mock.base_url()));
        world
    }

    pub fn new() -> ApiWorld {
        let mut world = ApiWorld::asleep();
        world.lodge.start();
        world
    }

    /// One entry of `providers.yaml`.
    pub fn provider(&self, name: &str, base_url: &str) -> String {
        format!("  - name: {name}\n    kind: openai\n    base-url: {base_url}\n    api-key: {KEY}\n")
    }

    /// Replaces `providers.yaml` as an editor would.
    pub fn put_providers(&self, entries: &str) {
        let (path, new) = (self.lodge.home().join("providers.yaml"), self.lodge.home().join("providers.new"));
        fs::write(&new, format!("providers:\n{entries}")).expect("a file");
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).expect("a mode");
        fs::rename(new, path).expect("a file");
    }

    pub async fn checked(&self) -> CheckedClient {
        CheckedClient::new(&self.lodge).await
    }

    /// Creates an agent with the usual tools and waits until it is ready.
    pub async fn agent(&self, api: &mut CheckedClient, name: &str) -> String {
        let created = api.ok("agent/create", json!({"content": AGENTFILE, "name": name})).await;
        let id = created["id"].as_str().expect("an id").to_owned();
        api.agent_is(&id, "ready").await;
        id
    }

    /// What a CLI command gave: exit code, stdout, stderr.
    pub fn cli(&self, args: &[&str]) -> (i32, String, String) {
        told(&self.lodge.cli(args))
    }

    pub fn cli_json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.lodge.cli_ok(args)).expect("stdout is JSON")
    }
}

pub fn told(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

pub fn id(view: &Value) -> &str {
    view["id"].as_str().expect("an id")
}

pub fn is_root() -> bool {
    // SAFETY: geteuid only reads a property of the process.
    unsafe { libc::geteuid() == 0 }
}

/// A command line for the shell tool, as the scripted provider reads it.
pub fn sh(script: &str) -> String {
    format!("[[tool:sh|{}]]", json!(["-c", script]))
}

/// Every process below `pid`, and itself, that is alive.
pub fn family(pid: i32) -> Vec<i32> {
    let all: Vec<(i32, i32)> = fs::read_dir("/proc")
        .expect("processes")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut found = vec![pid];
    let mut at = 0;
    while at < found.len() {
        let children = all.iter().filter(|(_, parent)| *parent == found[at]).map(|(pid, _)| *pid);
        found.extend(children.collect::<Vec<_>>());
        at += 1;
    }
    found.retain(|pid| is_alive(*pid));
    found
}

/// Asked of each process: the kernel's list of a process's children leaves some out while others end.
fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_whitespace().nth(1)?.parse().ok()
}

pub fn kill(pid: i32, signal: i32) {
    // SAFETY: sending a signal touches no memory; the pid is of a process that this test's daemon started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "{pid} could not be signalled");
}

/// Calls over HTTP through the Unix socket.
pub fn http_unix(
    socket: &Path,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> (u16, String) {
    let mut stream = UnixStream::connect(socket).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).expect("a request");
    // A server that refuses by the head alone closes early; its answer is what matters.
    drop(stream.write_all(body));
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert!(!answer.is_empty(), "no answer: {error}");
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, text.split_once("\r\n\r\n").expect("a head").1.to_owned())
}
