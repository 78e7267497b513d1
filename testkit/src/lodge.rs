//! A real daemon on a state directory of its own, for tests and benchmarks.
//!
//! Owns: the directory, the daemon's process, and everything it started; nothing is left when it is dropped.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lodge_proto::client::{Client, ClientError, Target};
use serde_json::{Value, json};

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(30);

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
pub struct Lodge {
    dir: tempfile::TempDir,
    child: Option<Child>,
    env: Vec<(String, String)>,
}

impl Default for Lodge {
    fn default() -> Self {
        Lodge::new()
    }
}

impl Lodge {
    /// A state directory without a daemon.
    pub fn new() -> Lodge {
        let dir =
            tempfile::Builder::new().prefix("lodge-").tempdir().expect("a temporary directory can be made");
        Lodge { dir, child: None, env: Vec::new() }
    }

    /// A state directory with a daemon that answers.
    pub fn started() -> Lodge {
        let mut lodge = Lodge::new();
        lodge.start();
        lodge
    }

    /// The temporary directory that holds the state directory; files of the test's own go here.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Sets a variable for every daemon started after.
    pub fn set_env(&mut self, key: &str, value: &str) {
        self.unset_env(key);
        self.env.push((key.to_owned(), value.to_owned()));
    }

    pub fn unset_env(&mut self, key: &str) {
        self.env.retain(|(known, _)| known != key);
    }

    /// The daemon's command, with nothing inherited but what it needs.
    pub fn daemon_command(&self) -> Command {
        let mut command = Command::new(bin("lodged"));
        command
            .env_clear()
            .env("LODGE_HOME", self.home())
            .env("HOME", self.dir())
            .env("LODGED_HTTP_ADDR", "127.0.0.1:0")
            .env("LODGED_LOG_LEVEL", "debug")
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null());
        command
    }

    /// Starts the daemon and waits until it answers. Panics with its log when it does not.
    pub fn start(&mut self) {
        self.spawn();
        self.wait_ready();
    }

    /// Starts the daemon and does not wait.
    pub fn spawn(&mut self) {
        assert!(self.child.is_none(), "a daemon is running already");
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .expect("the log can be opened");
        let mut command = self.daemon_command();
        command.stdout(Stdio::null()).stderr(log);
        // SAFETY: prctl with PR_SET_PDEATHSIG only sets a property of the calling process; it is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // A test that is killed must not leave its daemon behind.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        self.child = Some(command.spawn().expect("lodged runs"));
    }

    /// Waits until the daemon answers, or returns how it ended.
    pub fn try_wait_ready(&mut self) -> Result<(), std::process::ExitStatus> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) =
                self.child.as_mut().and_then(|child| child.try_wait().expect("a child can be waited for"))
            {
                self.child = None;
                return Err(status);
            }
            if std::os::unix::net::UnixStream::connect(self.home().join("lodge.sock")).is_ok() {
                return Ok(());
            }
            assert!(Instant::now() < until, "the daemon did not answer:\n{}", self.log());
            pause();
        }
    }

    pub fn wait_ready(&mut self) {
        if let Err(status) = self.try_wait_ready() {
            panic!("the daemon ended with {status}:\n{}", self.log());
        }
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Ends the daemon as a power switch would, and waits until it is gone.
    pub fn kill9(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our child can be killed");
            child.wait().expect("our child can be waited for");
        }
    }

    /// Waits until the daemon has ended by itself; true when SIGKILL ended it.
    pub fn wait_killed(&mut self, within: Duration) -> Option<bool> {
        let until = Instant::now() + within;
        loop {
            let child = self.child.as_mut()?;
            if let Some(status) = child.try_wait().expect("our child can be waited for") {
                self.child = None;
                return Some(status.signal() == Some(libc::SIGKILL));
            }
            if Instant::now() >= until {
                return None;
            }
            pause();
        }
    }

    pub fn log_path(&self) -> PathBuf {
        self.dir.path().join("lodged.log")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    pub fn token(&self) -> String {
        let bytes =
            fs::read(self.home().join("credentials.json")).expect("the daemon writes its credentials");
        let value: Value = serde_json::from_slice(&bytes).expect("credentials are JSON");
        value["token"].as_str().expect("credentials have a token").to_owned()
    }

    /// `host:port` of the TCP listener.
    pub fn http_addr(&self) -> String {
        let bytes =
            fs::read(self.home().join("credentials.json")).expect("the daemon writes its credentials");
        let value: Value = serde_json::from_slice(&bytes).expect("credentials are JSON");
        value["http"].as_str().expect("credentials have an address").trim_start_matches("http://").to_owned()
    }

    pub fn target(&self) -> Target {
        Target::Unix(self.home().join("lodge.sock"))
    }

    pub async fn client(&self) -> Client {
        self.try_client().await.unwrap_or_else(|error| panic!("{error:?}\n{}", self.log()))
    }

    pub async fn try_client(&self) -> Result<Client, ClientError> {
        Client::connect(&self.target(), &self.token()).await
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

    /// Writes an agent's directory: an Agentfile and the files beside it.
    pub fn agent_dir(&self, name: &str, agentfile: &str, files: &[(&str, &str)]) -> PathBuf {
        let dir = self.dir.path().join(format!("src-{name}"));
        fs::create_dir_all(&dir).expect("a directory can be made");
        fs::write(dir.join("Agentfile"), agentfile).expect("a file can be written");
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("a file can be written");
        }
        dir
    }

    /// Every process of this state directory's sandboxes that is still alive, by the keepers' own notes.
    pub fn keepers(&self) -> Vec<i32> {
        let Ok(boxes) = fs::read_dir(self.home().join("run")) else { return Vec::new() };
        boxes
            .flatten()
            .filter_map(|entry| fs::read_to_string(entry.path().join("pid")).ok())
            .filter_map(|text| text.split_whitespace().next()?.parse().ok())
            .filter(|pid| is_alive(*pid))
            .collect()
    }
}

impl Drop for Lodge {
    fn drop(&mut self) {
        self.kill9();
        for pid in self.keepers() {
            // SAFETY: sending a signal touches no memory of ours; the pid is of a keeper of this directory, which
            // nobody else starts or ends.
            unsafe {
                libc::kill(pid, libc::SIGKILL);
            }
        }
        let until = Instant::now() + PATIENCE;
        while !self.keepers().is_empty() && Instant::now() < until {
            pause();
        }
    }
}

/// Whether a process is there and not a zombie.
pub fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with('Z')))
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

/// As [`until`], for conditions that are asked over a connection.
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
