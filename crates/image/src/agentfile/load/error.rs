//! Why an Agentfile could not be loaded, and the mistakes of one file while they are collected.

use super::files;
use crate::agentfile::bounds::ERRORS_MAX;
use crate::agentfile::error::{AgentfileError, AgentfileErrors, shown};
use crate::agentfile::mistake::{BoundMistake, FileMistake, Mistake};

/// Why an Agentfile could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The Agentfile itself is not available.
    #[error("{0}")]
    Source(FileMistake),
    /// Every mistake of it, and of its parents on disk.
    #[error(transparent)]
    Mistakes(#[from] AgentfileErrors),
    #[error("no ARG declares {}", listed(unknown))]
    UndeclaredArgs { unknown: Vec<String>, declared: Vec<String> },
}

impl LoadError {
    /// The code; that of the first mistake when the Agentfile itself is wrong.
    pub fn code(&self) -> &'static str {
        match self {
            LoadError::Source(mistake) => mistake.code(),
            LoadError::Mistakes(errors) => errors.first().code(),
            LoadError::UndeclaredArgs { .. } => "agentfile.undeclared_arg",
        }
    }

    pub fn hint(&self) -> String {
        match self {
            LoadError::Source(FileMistake::NoAgentfile { .. }) => {
                format!("name a directory with a file called `{}`, or the file itself", files::FILE_NAME)
            }
            LoadError::Source(FileMistake::NotRegular { .. }) => {
                "name a plain file; to read an Agentfile from a pipe, pass `-`".to_owned()
            }
            LoadError::Source(mistake) => mistake.hint(),
            LoadError::Mistakes(errors) => errors.first().hint(),
            LoadError::UndeclaredArgs { declared, .. } if declared.is_empty() => {
                "the Agentfile has no ARG: add `ARG key=default`, or leave the build argument out".to_owned()
            }
            LoadError::UndeclaredArgs { declared, .. } => {
                format!("these are declared: {}", listed(declared))
            }
        }
    }
}

/// The mistakes of one file, reported in the order of its lines.
pub(super) struct FileFaults {
    file: String,
    found: Vec<AgentfileError>,
}

impl FileFaults {
    pub(super) fn new(file: &str) -> Self {
        FileFaults { file: file.to_owned(), found: Vec::new() }
    }

    pub(super) fn add(&mut self, line: u32, column: u32, mistake: impl Into<Mistake>) {
        let mistake = match self.found.len() {
            ..ERRORS_MAX => mistake.into(),
            ERRORS_MAX => BoundMistake::Errors { max: ERRORS_MAX }.into(),
            _ => return,
        };
        self.found.push(AgentfileError { file: self.file.clone(), line, column, mistake });
    }

    pub(super) fn sorted(mut self) -> Vec<AgentfileError> {
        self.found.sort_by_key(|error| (error.line, error.column));
        self.found
    }
}

fn listed(words: &[String]) -> String {
    words.iter().map(|word| format!("`{}`", shown(word))).collect::<Vec<_>>().join(", ")
}
