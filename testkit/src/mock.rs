//! A scripted model server in a process of its own, so that model requests are counted outside Lodge.
//!
//! What it does is said by the last user message of each request, in commands such as `[[reply:hello]]`
//! or `[[cut:3]]`; `command` has the list. Every request is written to a log before it is answered.

mod command;
mod connection;
mod journal;
mod reply;
mod server;

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub use self::journal::{Outcome, RequestLine};
pub use self::server::{Options, ScriptLine, serve};

const PROGRAM: &str = "mock-llm";
/// Asking for this model gives what a provider says of a model it does not have.
pub const UNKNOWN_MODEL: &str = "no-such-model";

/// A running `mock-llm`. Dropping it kills the process; it also ends when this process does.
#[derive(Debug)]
pub struct MockLlm {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl MockLlm {
    /// Starts one that logs to `dir` and answers to any key.
    pub fn spawn(dir: &Path) -> io::Result<Self> {
        Self::spawn_with(dir, &[])
    }

    /// Starts one with further arguments, such as `["--key", "k"]`.
    pub fn spawn_with(dir: &Path, arguments: &[&str]) -> io::Result<Self> {
        let log = dir.join("mock-llm.log");
        let mut child = Command::new(program()?)
            .args(["--port", "0", "--until-stdin-closes", "--log"])
            .arg(&log)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let address = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe.into()).and_then(|stdout| {
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line)?;
            let address = line.trim().strip_prefix("listening ").and_then(|text| text.parse().ok());
            address.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("it said {line:?}")))
        });
        match address {
            Ok(address) => Ok(Self { child, address, log }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For `base-url` in `providers.yaml`.
    pub fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Every request so far, in order of arrival.
    pub fn requests(&self) -> io::Result<Vec<RequestLine>> {
        journal::read(&self.log)
    }

    /// The requests so far whose last user message contains `part`.
    pub fn requests_for(&self, part: &str) -> io::Result<Vec<RequestLine>> {
        Ok(self.requests()?.into_iter().filter(|line| line.user.contains(part)).collect())
    }
}

impl Drop for MockLlm {
    fn drop(&mut self) {
        // It may have ended by itself; there is nothing to do about that here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program beside the running test, built now if nobody asked cargo for it.
fn program() -> io::Result<PathBuf> {
    let test = std::env::current_exe()?;
    // A test lies in `<profile>/deps`, an example in `<profile>/examples`, a program in `<profile>`.
    let found = test.ancestors().skip(1).take(2).map(|dir| dir.join(PROGRAM)).find(|path| path.is_file());
    match found {
        Some(program) => Ok(program),
        None => build(&test),
    }
}

fn build(test: &Path) -> io::Result<PathBuf> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "no mock-llm: `cargo build -p lodge-testkit`");
    let profile = test.ancestors().nth(2).ok_or_else(missing)?;
    let target = profile.parent().ok_or_else(missing)?;
    let cargo = std::env::var_os("CARGO").ok_or_else(missing)?;
    let name = match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(name) => name,
        None => return Err(missing()),
    };
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "-p",
            "lodge-testkit",
            "--bin",
            PROGRAM,
            "--profile",
            name,
            "--target-dir",
        ])
        .arg(target)
        .status()?;
    let program = profile.join(PROGRAM);
    if status.success() && fs::exists(&program)? { Ok(program) } else { Err(missing()) }
}
