//! A real daemon on a state directory of its own, for tests and benchmarks: what cannot be done panics, with the log.

use std::ffi::OsStr;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use lodge_proto::client::Client;
use lodge_selftest::DaemonStatus;
pub use lodge_selftest::{PATIENCE, is_alive, processes_of};
use serde_json::{Value, json};

/// Where the programs under test are: `LODGE_BIN_DIR`, or beside the running test.
pub fn bin(name: &str) -> PathBuf {
    let dir = std::env::var_os("LODGE_BIN_DIR").map_or_else(
        || {
            let exe = std::env::current_exe().expect("a running program has a path");
            let dir = exe.parent().expect("a program lies in a directory");
            if dir.ends_with("deps") {
                dir.parent().expect("deps has a parent").to_owned()
            } else {
                dir.to_owned()
            }
        },
        PathBuf::from,
    );
    let path = dir.join(name);
    assert!(
        path.exists(),
        "{} is not built: run `make test`, or `cargo build --workspace --bins`",
        path.display()
    );
    path
}

/// One state directory and, most of the time, one daemon.
#[derive(Debug)]
pub struct Lodge(lodge_selftest::Lodge);

impl Deref for Lodge {
    type Target = lodge_selftest::Lodge;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Lodge {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Default for Lodge {
    fn default() -> Self {
        Lodge::new()
    }
}

impl Lodge {
    /// A state directory without a daemon.
    pub fn new() -> Lodge {
        Lodge::of(bin("lodged"))
    }

    /// The same, for daemons of this program.
    pub fn of(lodged: PathBuf) -> Lodge {
        Lodge(lodge_selftest::Lodge::new(lodged).expect("a temporary directory can be made"))
    }

    /// A state directory with a daemon that answers.
    pub fn started() -> Lodge {
        let mut lodge = Lodge::new();
        lodge.start();
        lodge
    }

    /// Starts the daemon and waits until it answers. Panics with its log when it does not.
    pub fn start(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// Starts the daemon and does not wait.
    pub fn spawn(&mut self) {
        assert!(self.pid().is_none(), "a daemon is running already");
        self.0.spawn().unwrap_or_else(|trouble| panic!("{}", trouble.whole()));
    }

    /// Waits until the daemon answers, or returns how it ended.
    pub fn try_wait_ready(&mut self) -> Result<(), ExitStatus> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.look().expect("a child can be looked at") {
                DaemonStatus::Answers => return Ok(()),
                DaemonStatus::Ended(status) => return Err(status),
                DaemonStatus::Starting => {}
            }
            assert!(Instant::now() < end, "the daemon did not answer:\n{}", self.log());
            pause();
        }
    }

    pub fn wait_ready(&mut self) {
        if let Err(status) = self.try_wait_ready() {
            panic!("the daemon ended with {status}:\n{}", self.log());
        }
    }

    /// Ends the daemon as a power switch would, and waits until it is gone.
    pub fn kill9(&mut self) {
        self.0.kill9().expect("our child can be killed");
    }

    /// Waits until the daemon has ended by itself; true when SIGKILL ended it.
    pub fn wait_killed(&mut self, within: Duration) -> Option<bool> {
        let end = Instant::now() + within;
        while self.pid().is_some() {
            if let Some(status) = self.ended().expect("our child can be waited for") {
                return Some(status.signal() == Some(libc::SIGKILL));
            }
            if Instant::now() >= end {
                return None;
            }
            pause();
        }
        None
    }

    fn credential(&self, key: &str) -> String {
        let known = self.credentials().expect("the daemon writes its credentials");
        known[key].as_str().expect("credentials are whole").to_owned()
    }

    pub fn token(&self) -> String {
        self.credential("token")
    }

    /// `host:port` of the TCP listener.
    pub fn http_addr(&self) -> String {
        self.credential("http").trim_start_matches("http://").to_owned()
    }

    pub async fn client(&self) -> Client {
        self.try_client().await.unwrap_or_else(|error| panic!("{error:?}\n{}", self.log()))
    }

    /// Writes an agent's directory: an Agentfile and the files beside it.
    pub fn agent_dir(&self, name: &str, agentfile: &str, files: &[(&str, &str)]) -> PathBuf {
        self.write_agent(name, agentfile, files).expect("files can be written")
    }

    /// The CLI on this state directory, without autostart.
    pub fn cli_command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(bin("lodge"));
        command
            .env_clear()
            .env("LODGE_HOME", self.home())
            .env("HOME", self.dir())
            .env("LODGE_NO_AUTOSTART", "1")
            .env("NO_COLOR", "1")
            .args(args)
            .stdin(Stdio::null());
        command
    }

    pub fn cli<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Output {
        self.cli_command(args).output().expect("lodge runs")
    }

    /// Runs the CLI, which must succeed, and returns its stdout.
    pub fn cli_ok<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> String {
        let output = self.cli(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}\n{out}\n{err}\n{}", output.status, self.log());
        out.into_owned()
    }
}

/// Between two looks at a condition.
pub fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Looks at a condition until it holds, and panics when it does not within [`PATIENCE`].
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {} s: {what}", PATIENCE.as_secs());
        pause();
    }
}

/// As [`until`], for conditions that are read over a connection.
pub async fn until_async<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "not within {} s: {what}", PATIENCE.as_secs());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Calls a method over plain HTTP, with the headers a test wants to be wrong.
pub fn http(
    addr: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<(u16, String)> {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("host: {addr}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    // A server that refuses a large body closes early; its answer is what matters.
    let sent = stream.write_all(body);
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer);
    if answer.is_empty() {
        sent.and(read.map(|_| ()))?;
    }
    let text = String::from_utf8_lossy(&answer).into_owned();
    let status = text.split_whitespace().nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
    Ok((status, body))
}

/// A JSON-RPC request body.
pub fn rpc(method: &str, params: &Value) -> Vec<u8> {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string().into_bytes()
}
