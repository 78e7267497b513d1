//! The file tools that ship with the daemon: read, write, replace, list and search.
//!
//! Owns: what a call of one of them does, its limits, and words that help a model to correct a call. Never: a way out of the
//! sandbox. They are ordinary programs in it, with the rights of the agent's user and no others.
//!
//! Each is this program under another name: the daemon binds it as `opt/lodge/builtin/<tool>`. Their descriptions for models are
//! in `crates/image/src/agentfile/builtin.rs`.

mod error;
mod lines;
mod list;
mod lock;
mod options;
mod read;
mod replace;
mod search;
mod walk;
mod write;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;
use std::process::ExitCode;

pub(crate) use self::error::FileError;

/// The directory that the programs are bound in.
const BUILTIN_DIR: &str = "builtin";
/// What one call prints at most; the head of a tool result that a model sees is a little longer.
const OUTPUT_BYTES_MAX: usize = 44 * 1024;
/// A file with a NUL among its first bytes is not text.
const PROBE_BYTES: usize = 8 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileTool {
    Read,
    Write,
    Replace,
    List,
    Search,
}

impl FileTool {
    pub(crate) const ALL: [FileTool; 5] =
        [FileTool::Read, FileTool::Write, FileTool::Replace, FileTool::List, FileTool::Search];

    pub(crate) fn name(self) -> &'static str {
        match self {
            FileTool::Read => "read",
            FileTool::Write => "write",
            FileTool::Replace => "replace",
            FileTool::List => "list",
            FileTool::Search => "search",
        }
    }

    /// The tool that this process is, by the path of its program. The name it was called by may be any.
    pub(crate) fn of_program(program: &Path) -> Option<FileTool> {
        let dir = program.parent().and_then(Path::file_name)?;
        let name = program.file_name().filter(|_| dir == BUILTIN_DIR)?;
        FileTool::ALL.into_iter().find(|tool| name == tool.name())
    }

    /// Runs one call and reports as programs do: results on stdout, errors on stderr.
    pub(crate) fn run(self, args: Vec<OsString>) -> ExitCode {
        let mut out = BufWriter::new(io::stdout().lock());
        let ended = self.call(args, &mut io::stdin().lock(), &mut out).and_then(|()| match out.flush() {
            Ok(()) => Ok(()),
            Err(cause) => Err(FileError::Output { cause }),
        });
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            // The reader of a pipe may stop early.
            Err(FileError::Output { cause }) if cause.kind() == io::ErrorKind::BrokenPipe => {
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: {error}");
                if let Some(hint) = error.hint() {
                    eprintln!("hint: {hint}");
                }
                ExitCode::from(error.exit_code())
            }
        }
    }

    fn call(self, args: Vec<OsString>, stdin: &mut dyn Read, out: &mut dyn Write) -> Result<(), FileError> {
        match self {
            FileTool::Read => read::read(args, out),
            FileTool::Write => write::write(args, stdin, out),
            FileTool::Replace => replace::replace(args, stdin, out),
            FileTool::List => list::list(args, out),
            FileTool::Search => search::search(args, out),
        }
    }
}

/// Opens a regular file. Anything else would block, or would not be what a caller means by a file.
fn open_file(path: &Path) -> Result<File, FileError> {
    let failed = |cause| FileError::Io { what: "read", path: path.to_owned(), cause };
    let found = path.metadata().map_err(failed)?;
    if found.is_dir() {
        return Err(FileError::IsDirectory { path: path.to_owned() });
    }
    if !found.is_file() {
        return Err(FileError::NotRegular { path: path.to_owned() });
    }
    File::open(path).map_err(failed)
}

/// Text for a tool result, with what it replaced.
fn put(out: &mut dyn Write, text: &str) -> Result<(), FileError> {
    out.write_all(text.as_bytes()).map_err(|cause| FileError::Output { cause })
}

fn is_binary(beginning: &[u8]) -> bool {
    beginning[..beginning.len().min(PROBE_BYTES)].contains(&0)
}

#[cfg(test)]
mod tests;
