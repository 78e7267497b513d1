//! What can fail in a file tool, in words for a model.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Lines that are named when a text is not unique.
const LINES_SHOWN_MAX: usize = 10;

#[derive(Debug)]
pub(crate) enum FileError {
    /// The arguments do not fit. `usage` is the form that does.
    Usage {
        problem: String,
        usage: &'static str,
    },
    Io {
        what: &'static str,
        path: PathBuf,
        cause: io::Error,
    },
    Output {
        cause: io::Error,
    },
    Input {
        cause: io::Error,
    },
    /// Another program has locked it.
    InUse {
        path: PathBuf,
    },
    IsDirectory {
        path: PathBuf,
    },
    NotRegular {
        path: PathBuf,
    },
    NotText {
        path: PathBuf,
    },
    TooLarge {
        path: PathBuf,
        bytes: u64,
        bytes_max: u64,
    },
    BeyondEnd {
        path: PathBuf,
        lines: u64,
    },
    NoContent,
    NothingToFind,
    NothingToChange,
    /// `near`: a line where the text occurs with other spaces at the ends of lines.
    NoSuchText {
        path: PathBuf,
        near: Option<u64>,
        change: Option<usize>,
    },
    NotUnique {
        path: PathBuf,
        lines: Vec<u64>,
        change: Option<usize>,
    },
    BadBlocks {
        line: u64,
        expected: &'static str,
    },
    Pattern {
        cause: regex_lite::Error,
    },
}

impl FileError {
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            FileError::Usage { .. }
            | FileError::NoContent
            | FileError::NothingToFind
            | FileError::NothingToChange
            | FileError::BadBlocks { .. }
            | FileError::Pattern { .. } => 2,
            FileError::Io { .. }
            | FileError::Output { .. }
            | FileError::Input { .. }
            | FileError::InUse { .. }
            | FileError::IsDirectory { .. }
            | FileError::NotRegular { .. }
            | FileError::NotText { .. }
            | FileError::TooLarge { .. }
            | FileError::BeyondEnd { .. }
            | FileError::NoSuchText { .. }
            | FileError::NotUnique { .. } => 1,
        }
    }

    pub(super) fn hint(&self) -> Option<String> {
        Some(match self {
            FileError::Usage { usage, .. } => format!("usage: {usage}"),
            FileError::Io { cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
                "check the path; relative paths start in the directory that the tool runs in".to_owned()
            }
            FileError::InUse { .. } => "try again when the other program is done with it".to_owned(),
            FileError::IsDirectory { .. } => "list the directory, and name one of its files".to_owned(),
            FileError::NoContent => {
                "pass the text in `stdin`, or as the second argument; an empty second argument empties the file"
                    .to_owned()
            }
            FileError::NothingToFind => "the text to replace must not be empty; use `write` for a new file".to_owned(),
            FileError::NoSuchText { near: Some(line), .. } => {
                format!("at line {line} it occurs with other spaces or indentation: read the file and copy the text exactly")
            }
            FileError::NoSuchText { near: None, .. } => {
                "read the file and copy the text exactly, without the line numbers".to_owned()
            }
            FileError::NotUnique { change: None, .. } => {
                "add lines before or after it until it is unique, or replace all with `--all`".to_owned()
            }
            FileError::NotUnique { change: Some(_), .. } => {
                "add lines before or after it until it is unique".to_owned()
            }
            FileError::BadBlocks { .. } => {
                "write each change as `<<<<<<< SEARCH`, old lines, `=======`, new lines, `>>>>>>> REPLACE`".to_owned()
            }
            FileError::Pattern { .. } => "use `--literal` to search for plain text".to_owned(),
            FileError::Io { .. }
            | FileError::Output { .. }
            | FileError::Input { .. }
            | FileError::NotRegular { .. }
            | FileError::NotText { .. }
            | FileError::TooLarge { .. }
            | FileError::BeyondEnd { .. }
            | FileError::NothingToChange => return None,
        })
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Usage { problem, .. } => f.write_str(problem),
            FileError::Io { what, path, cause } => {
                write!(f, "could not {what} `{}`: {cause}", path.display())
            }
            FileError::Output { cause } => write!(f, "could not write the result: {cause}"),
            FileError::Input { cause } => write!(f, "could not read `stdin`: {cause}"),
            FileError::InUse { path } => {
                write!(f, "`{}` is locked by another program; nothing was changed", path.display())
            }
            FileError::IsDirectory { path } => write!(f, "`{}` is a directory", path.display()),
            FileError::NotRegular { path } => write!(f, "`{}` is not a regular file", path.display()),
            FileError::NotText { path } => {
                write!(f, "`{}` is not text: it contains NUL bytes", path.display())
            }
            FileError::TooLarge { path, bytes, bytes_max } => {
                write!(f, "`{}` has {bytes} bytes, the most is {bytes_max}", path.display())
            }
            FileError::BeyondEnd { path, lines } => write!(f, "`{}` has only {lines} lines", path.display()),
            FileError::NoContent => f.write_str("there is no text to write"),
            FileError::NothingToFind => f.write_str("there is no text to replace"),
            FileError::NothingToChange => f.write_str("the old and the new text are the same"),
            FileError::NoSuchText { path, change, .. } => {
                write!(
                    f,
                    "the old text{} does not occur in `{}`; nothing was changed",
                    of(*change),
                    path.display()
                )
            }
            FileError::NotUnique { path, lines, change } => {
                let shown: Vec<String> = lines.iter().take(LINES_SHOWN_MAX).map(u64::to_string).collect();
                let more = if lines.len() > LINES_SHOWN_MAX { ", …" } else { "" };
                write!(
                    f,
                    "the old text{} occurs {} times in `{}` (lines {}{more}); nothing was changed",
                    of(*change),
                    lines.len(),
                    path.display(),
                    shown.join(", ")
                )
            }
            FileError::BadBlocks { line, expected } => {
                write!(f, "line {line} of `stdin` is not {expected}; nothing was changed")
            }
            FileError::Pattern { cause } => write!(f, "the pattern is not a regular expression: {cause}"),
        }
    }
}

fn of(change: Option<usize>) -> String {
    change.map(|number| format!(" of change {number}")).unwrap_or_default()
}
