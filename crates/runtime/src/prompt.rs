//! The system prompt, assembled from the agent's context files.
//!
//! Owns: the order, headings and limits of the files under `<root>/etc/context`. Never: keeps the text; after
//! it was sent once it is named by its id.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};

use lodge_runtime_messages::{ContextFile, SystemPrompt};

use crate::log::RuntimeLogEvent;

/// Together, so that the reply fits a line even if every byte needs a six-byte escape.
const CONTEXT_BYTES_MAX: usize = 2 * 1024 * 1024;

const RULE: &str = "\n\n---\n\n";

#[derive(Debug)]
pub(crate) enum ContextError {
    Outside { file: String },
    Unreadable { file: String, cause: io::Error },
    NotAFile { file: String },
    TooLarge { file: String },
}

impl ContextError {
    pub(crate) fn code(&self) -> &'static str {
        match self {
            ContextError::Outside { .. } => "context.outside",
            ContextError::Unreadable { .. } | ContextError::NotAFile { .. } => "context.unreadable",
            ContextError::TooLarge { .. } => "context.too_large",
        }
    }
}

impl fmt::Display for ContextError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContextError::Outside { file } => {
                write!(f, "context file `{file}` is not a path beneath `etc/context`")
            }
            // The cause is part of the message because only the message crosses the pipe.
            ContextError::Unreadable { file, cause } => {
                write!(f, "could not read context file `{file}`: {cause}")
            }
            ContextError::NotAFile { file } => {
                write!(f, "could not read context file `{file}`: it is not a regular file")
            }
            ContextError::TooLarge { file } => {
                write!(f, "context files are larger than {CONTEXT_BYTES_MAX} bytes together, at `{file}`")
            }
        }
    }
}

impl std::error::Error for ContextError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ContextError::Unreadable { cause, .. } => Some(cause),
            ContextError::Outside { .. } | ContextError::NotAFile { .. } | ContextError::TooLarge { .. } => {
                None
            }
        }
    }
}

/// Reads the files in the order given. Missing and blank files are skipped; any other failure names its file.
pub(crate) fn assemble(root: &Path, files: &[ContextFile]) -> Result<SystemPrompt, ContextError> {
    let directory = root.join("etc/context");
    let mut system = String::new();
    for entry in files {
        let room = CONTEXT_BYTES_MAX.saturating_sub(system.len());
        let text = read(&directory, &entry.file, room)?;
        let Some(text) = text.as_deref().map(str::trim).filter(|text| !text.is_empty()) else {
            RuntimeLogEvent::ContextSkipped { file: &entry.file }.emit();
            continue;
        };
        if !system.is_empty() {
            system.push_str(RULE);
        }
        system.push_str("# ");
        system.push_str(entry.name.trim());
        system.push_str("\n\n");
        if let Some(description) = entry.description.as_deref().map(str::trim).filter(|text| !text.is_empty())
        {
            system.push_str("> ");
            system.push_str(description);
            system.push_str("\n\n");
        }
        system.push_str(text);
    }
    Ok(SystemPrompt { id: format!("{:016x}", fnv1a(system.as_bytes())), system })
}

/// `None` when there is no such file.
fn read(directory: &Path, file: &str, room: usize) -> Result<Option<String>, ContextError> {
    let relative = Path::new(file);
    if file.is_empty() || !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(ContextError::Outside { file: file.to_owned() });
    }
    let unreadable = |cause| ContextError::Unreadable { file: file.to_owned(), cause };
    let opened = match open(&directory.join(relative)) {
        Ok(opened) => opened,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(unreadable(cause)),
    };
    if !opened.metadata().map_err(unreadable)?.is_file() {
        return Err(ContextError::NotAFile { file: file.to_owned() });
    }
    let mut bytes = Vec::new();
    opened.take(room as u64 + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > room {
        return Err(ContextError::TooLarge { file: file.to_owned() });
    }
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Without waiting: a tool may have put a pipe where the file was.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)
}

/// FNV-1a, 64 bits: stable across versions and machines, which is all that a name of a text needs.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn a_path_that_leaves_the_context_directory_is_refused_before_it_is_opened() {
        for file in ["../agent.yaml", "/etc/passwd", "a/../../b", "", "."] {
            let refused = read(Path::new("/nonexistent"), file, 10).unwrap_err();
            assert_eq!(refused.code(), "context.outside", "{file}");
        }
    }
}
