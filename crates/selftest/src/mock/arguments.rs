//! The server as a program: its arguments, and its life.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, LocalOptions};

use super::server::{MockOptions, ScriptLine, serve};
use crate::role::{end_with_stdin, listening};

const USAGE: &str = "usage: [--port N] [--log FILE] [--script FILE] [--key KEY] [--models A,B] [--threads N]
       [--until-stdin-closes]
The script is a JSON list (so also YAML) of {\"when\": \"part of a message\", \"do\": \"[[reply:hi]]\"}.";

struct MockArguments {
    port: u16,
    threads: usize,
    until_stdin_closes: bool,
    options: MockOptions,
}

/// Serves as the arguments say, on as many threads, until the process ends. Wrong ones are `InvalidInput`.
pub fn run(given: &[String]) -> io::Result<()> {
    let arguments = arguments(given)?;
    let runtime = Builder::new_multi_thread().worker_threads(arguments.threads).enable_all().build()?;
    runtime.block_on(served(arguments))
}

/// As [`run`], on this thread alone: a program that has other things to do carries nothing for several.
pub(crate) fn run_here(given: &[String]) -> io::Result<()> {
    let arguments = arguments(given)?;
    let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
    runtime.block_on(served(arguments))
}

async fn served(arguments: MockArguments) -> io::Result<()> {
    if arguments.until_stdin_closes {
        end_with_stdin();
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port)).await?;
    listening(listener.local_addr()?)?;
    serve(listener, arguments.options).await
}

fn arguments(given: &[String]) -> io::Result<MockArguments> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut arguments =
        MockArguments { port: 0, threads, until_stdin_closes: false, options: MockOptions::default() };
    let mut given = given.iter();
    while let Some(name) = given.next() {
        if name == "--until-stdin-closes" {
            arguments.until_stdin_closes = true;
            continue;
        }
        let value = given.next().ok_or_else(|| bad(format!("`{name}` needs a value, or is unknown")))?;
        let number = || value.parse().map_err(|_| bad(format!("`{name}` needs a number")));
        match name.as_str() {
            "--port" => arguments.port = number()?,
            "--threads" => arguments.threads = usize::from(number()?).max(1),
            "--log" => arguments.options.log = Some(PathBuf::from(value)),
            "--key" => arguments.options.key = Some(value.clone()),
            "--models" => arguments.options.models = value.split(',').map(str::to_owned).collect(),
            "--script" => arguments.options.script = script(value)?,
            _ => return Err(bad(format!("unknown option `{name}`"))),
        }
    }
    Ok(arguments)
}

fn script(path: &str) -> io::Result<Vec<ScriptLine>> {
    let text = std::fs::read_to_string(path)?;
    serde_json::from_str(&text).map_err(|error| bad(format!("{path}: {error}")))
}

fn bad(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{why}\n{USAGE}"))
}
