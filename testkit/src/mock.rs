//! The scripted model server, as the program `mock-llm` beside the tests.

use std::fs;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

pub use lodge_selftest::mock::{
    MockOptions, RequestLine, RequestOutcome, ScriptLine, UNKNOWN_MODEL, run, serve,
};

const PROGRAM: &str = "mock-llm";

/// A running `mock-llm`. Dropping it kills the process; it also ends when this process does.
#[derive(Debug)]
pub struct MockLlm(lodge_selftest::mock::MockLlm);

impl MockLlm {
    /// Starts one that logs to `dir` and answers to any key.
    pub fn spawn(dir: &Path) -> io::Result<Self> {
        Self::spawn_with(dir, &[])
    }

    /// Starts one with further arguments, such as `["--key", "k"]`.
    pub fn spawn_with(dir: &Path, arguments: &[&str]) -> io::Result<Self> {
        let mut command = Command::new(program()?);
        command.args(arguments);
        lodge_selftest::mock::MockLlm::start(command, dir).map(MockLlm)
    }
}

impl Deref for MockLlm {
    type Target = lodge_selftest::mock::MockLlm;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The program beside the running test, built now if cargo has not built it.
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
