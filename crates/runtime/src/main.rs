//! The stock agent loop: a program in the sandbox that speaks JSON-RPC lines on stdin and stdout.
//!
//! The same program, under other names, is the file tools of `builtin:` (see `files`).
//!
//! Owns: the order of model calls and tool calls within a turn. Never: keys, history, files of its own, or a
//! connection to anything but the two pipes. The protocol is described in `docs/runtime-protocol.md`.

mod config;
mod files;
mod jobs;
mod lines;
mod log;
mod memory;
mod prompt;
mod refusal;
mod rounds;
mod serve;
mod tool;
mod turns;

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::files::FileTool;
use crate::log::RuntimeLogEvent;

const RUNTIME_NAME: &str = "lodge-runtime";
const RUNTIME_VERSION: &str = env!("CARGO_PKG_VERSION");
const USAGE: &str = "usage: runtime serve --root <directory>\n       runtime --version\n";

fn main() -> ExitCode {
    if let Some(tool) = file_tool() {
        return tool.run(std::env::args_os().skip(1).collect());
    }
    match command(std::env::args_os().skip(1)) {
        Ok(RuntimeCommand::Serve { root }) => serve_until_closed(root),
        Ok(RuntimeCommand::Version) => {
            println!("{} {}", RUNTIME_NAME, RUNTIME_VERSION);
            ExitCode::SUCCESS
        }
        Ok(RuntimeCommand::Help) => {
            print!("{USAGE}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprint!("error: {error}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// The file tool that this program was bound as, if it was.
fn file_tool() -> Option<FileTool> {
    FileTool::of_program(&std::env::current_exe().ok()?)
}

#[derive(Debug, PartialEq, Eq)]
enum RuntimeCommand {
    Serve { root: PathBuf },
    Version,
    Help,
}

#[derive(Debug, PartialEq, Eq)]
enum UsageError {
    NoCommand,
    NoRoot,
    Unexpected(OsString),
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsageError::NoCommand => f.write_str("no command given"),
            UsageError::NoRoot => f.write_str("`serve` needs `--root <directory>`"),
            UsageError::Unexpected(word) => write!(f, "`{}` is not expected here", word.display()),
        }
    }
}

fn command(mut words: impl Iterator<Item = OsString>) -> Result<RuntimeCommand, UsageError> {
    let first = words.next().ok_or(UsageError::NoCommand)?;
    let command = match first.to_str() {
        Some("serve") => {
            let flag = words.next().ok_or(UsageError::NoRoot)?;
            if flag != "--root" {
                return Err(UsageError::Unexpected(flag));
            }
            RuntimeCommand::Serve { root: words.next().ok_or(UsageError::NoRoot)?.into() }
        }
        Some("--version" | "-V") => RuntimeCommand::Version,
        Some("--help" | "-h") => RuntimeCommand::Help,
        Some(_) | None => return Err(UsageError::Unexpected(first)),
    };
    match words.next() {
        Some(word) => Err(UsageError::Unexpected(word)),
        None => Ok(command),
    }
}

fn serve_until_closed(root: PathBuf) -> ExitCode {
    prepare_process();
    match serve::serve(root) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            RuntimeLogEvent::PipeFailed { cause: &error }.emit();
            ExitCode::FAILURE
        }
    }
}

/// Lets SIGTERM end us, keeps other processes of the sandbox out of our memory, and keeps the heap small.
fn prepare_process() {
    // The process ends by the signal itself, because exit status 0 would mean that the runtime wanted to end. The
    // parent may have ignored the signal, which is inherited.
    // SAFETY: `signal` takes plain integers; no handler is installed.
    unsafe { libc::signal(libc::SIGTERM, libc::SIG_DFL) };
    #[cfg(target_os = "linux")]
    // SAFETY: PR_SET_DUMPABLE takes plain integers and touches no memory of ours.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0)
    };
    // A fixed threshold means that a large line lives in its own mapping and leaves with it, instead of
    // teaching the allocator to keep large blocks on the heap.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `mallopt` takes plain integers; no other thread exists.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
        libc::mallopt(libc::M_TOP_PAD, 4 * 1024)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<RuntimeCommand, UsageError> {
        command(words.iter().map(OsString::from))
    }

    #[test]
    fn serve_takes_a_root_and_nothing_else() {
        assert_eq!(parse(&["serve", "--root", "r"]), Ok(RuntimeCommand::Serve { root: "r".into() }));
        assert_eq!(parse(&["serve"]), Err(UsageError::NoRoot));
        assert_eq!(parse(&["serve", "--root"]), Err(UsageError::NoRoot));
        assert_eq!(parse(&["serve", "--port", "1"]), Err(UsageError::Unexpected("--port".into())));
        assert_eq!(parse(&["serve", "--root", "r", "x"]), Err(UsageError::Unexpected("x".into())));
        assert_eq!(parse(&[]), Err(UsageError::NoCommand));
        assert_eq!(parse(&["--version"]), Ok(RuntimeCommand::Version));
    }
}
