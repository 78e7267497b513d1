//! `mock-llm --port 0 --log FILE`: an OpenAI-compatible model server that does as the messages say.

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::ExitCode;

use lodge_testkit::mock::{self, Options, ScriptLine};
use tokio::net::TcpListener;

const USAGE: &str = "usage: mock-llm [--port N] [--log FILE] [--script FILE] [--key KEY] [--models A,B]
                [--threads N] [--until-stdin-closes]
The script is a JSON list (so also YAML) of {\"when\": \"part of a message\", \"do\": \"[[reply:hi]]\"}.";

struct Arguments {
    port: u16,
    threads: usize,
    until_stdin_closes: bool,
    options: Options,
}

fn main() -> ExitCode {
    let arguments = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> io::Result<()> {
    if arguments.until_stdin_closes {
        // Whoever started this holds the other end: when they are gone, so is the need for a server.
        std::thread::spawn(|| {
            let _ = io::stdin().read_to_end(&mut Vec::new());
            std::process::exit(0);
        });
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(arguments.threads).enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, arguments.port)).await?;
        println!("listening {}", listener.local_addr()?);
        io::stdout().flush()?;
        mock::serve(listener, arguments.options).await
    })
}

fn arguments(mut given: impl Iterator<Item = String>) -> io::Result<Arguments> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut arguments =
        Arguments { port: 0, threads, until_stdin_closes: false, options: Options::default() };
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
            "--key" => arguments.options.key = Some(value),
            "--models" => arguments.options.models = value.split(',').map(str::to_owned).collect(),
            "--script" => arguments.options.script = script(&value)?,
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
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
