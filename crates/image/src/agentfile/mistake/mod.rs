//! What can be wrong with an Agentfile: one typed mistake, its stable code, what was expected, and the fix.
//!
//! Owns: the families of mistakes and the bounds among them. Never: the position of a mistake (see `error`).

mod file;
mod form;
mod text;
mod value;

pub use file::FileMistake;
pub use form::FormMistake;
pub use text::TextMistake;
pub use value::{NameOf, PathFault, ValueMistake};

use super::env_key::EnvKeyError;

/// Pairs each variant with its code once, so the list of codes cannot miss one.
macro_rules! codes {
    ($mistake:ident: $($variant:ident => $code:literal,)*) => {
        impl $mistake {
            /// Every code of this family. Codes are stable and never reused.
            pub const CODES: &'static [&'static str] = &[$($code),*];

            pub fn code(&self) -> &'static str {
                match self { $($mistake::$variant { .. } => $code,)* }
            }
        }
    };
}
use codes;

/// One mistake, of one family.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mistake {
    /// Something is larger than we hold.
    #[error(transparent)]
    Bound(#[from] BoundMistake),
    /// The characters do not form tokens.
    #[error(transparent)]
    Text(#[from] TextMistake),
    /// The tokens do not form instructions.
    #[error(transparent)]
    Form(#[from] FormMistake),
    /// An instruction's value is not one it takes.
    #[error(transparent)]
    Value(#[from] ValueMistake),
    /// An ENV key is refused.
    #[error(transparent)]
    EnvKey(#[from] EnvKeyError),
    /// A file or a parent is not available.
    #[error(transparent)]
    File(#[from] FileMistake),
}

impl Mistake {
    pub fn code(&self) -> &'static str {
        match self {
            Mistake::Bound(mistake) => mistake.code(),
            Mistake::Text(mistake) => mistake.code(),
            Mistake::Form(mistake) => mistake.code(),
            Mistake::Value(mistake) => mistake.code(),
            Mistake::EnvKey(mistake) => mistake.code(),
            Mistake::File(mistake) => mistake.code(),
        }
    }

    pub fn expected(&self) -> String {
        match self {
            Mistake::Bound(mistake) => mistake.expected(),
            Mistake::Text(mistake) => mistake.expected(),
            Mistake::Form(mistake) => mistake.expected(),
            Mistake::Value(mistake) => mistake.expected(),
            Mistake::EnvKey(mistake) => mistake.expected(),
            Mistake::File(mistake) => mistake.expected(),
        }
    }

    /// The way out.
    pub fn hint(&self) -> String {
        match self {
            Mistake::Bound(mistake) => mistake.hint(),
            Mistake::Text(mistake) => mistake.hint(),
            Mistake::Form(mistake) => mistake.hint(),
            Mistake::Value(mistake) => mistake.hint(),
            Mistake::EnvKey(mistake) => mistake.hint(),
            Mistake::File(mistake) => mistake.hint(),
        }
    }
}

/// Something is larger than we hold; see `bounds`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BoundMistake {
    #[error("the file is too large: {bytes} bytes")]
    File { bytes: usize, max: usize },
    #[error("the file has too many lines: {lines}")]
    Lines { lines: usize, max: usize },
    #[error("the line is too long: {bytes} bytes")]
    Line { bytes: usize, max: usize },
    #[error("the line has too many words: {words}")]
    Words { words: usize, max: usize },
    #[error("the file has too many instructions")]
    Instructions { max: usize },
    #[error("the file has too many heredocs")]
    Heredocs { max: usize },
    #[error("the heredoc is too large: {bytes} bytes")]
    Heredoc { bytes: usize, max: usize },
    #[error("the line is too long once `${{…}}` is replaced")]
    ExpandedLine { max: usize },
    #[error("the file is too large once `${{…}}` is replaced")]
    Expansion { max: usize },
    #[error("too many mistakes; the rest of the file was not read")]
    Errors { max: usize },
}

codes! { BoundMistake:
    File => "agentfile.file_too_large",
    Lines => "agentfile.too_many_lines",
    Line => "agentfile.line_too_long",
    Words => "agentfile.too_many_words",
    Instructions => "agentfile.too_many_instructions",
    Heredocs => "agentfile.too_many_heredocs",
    Heredoc => "agentfile.heredoc_too_large",
    ExpandedLine => "agentfile.expanded_line_too_long",
    Expansion => "agentfile.expansion_too_large",
    Errors => "agentfile.too_many_errors",
}

impl BoundMistake {
    pub fn expected(&self) -> String {
        match self {
            BoundMistake::File { max, .. }
            | BoundMistake::Line { max, .. }
            | BoundMistake::Heredoc { max, .. }
            | BoundMistake::ExpandedLine { max }
            | BoundMistake::Expansion { max } => format!("at most {max} bytes"),
            BoundMistake::Lines { max, .. } => format!("at most {max} lines"),
            BoundMistake::Words { max, .. } => format!("at most {max} words"),
            BoundMistake::Instructions { max } => format!("at most {max} instructions"),
            BoundMistake::Heredocs { max } => format!("at most {max} heredocs"),
            BoundMistake::Errors { max } => format!("fewer than {max} mistakes"),
        }
    }

    pub fn hint(&self) -> String {
        match self {
            BoundMistake::File { .. } | BoundMistake::Lines { .. } | BoundMistake::Heredoc { .. } => {
                "move long texts to files: `CONTEXT NAME file://path`"
            }
            BoundMistake::Words { .. } => {
                "split the line, or put words that belong together into double quotes"
            }
            BoundMistake::Line { .. } => "move the text to a heredoc or a file",
            BoundMistake::Instructions { .. } | BoundMistake::Heredocs { .. } => {
                "split the agent: put what is shared into a parent image and name it in FROM"
            }
            BoundMistake::ExpandedLine { .. } | BoundMistake::Expansion { .. } => {
                "shorten the ARG values, or use them less often"
            }
            BoundMistake::Errors { .. } => "fix those above and build again",
        }
        .to_owned()
    }
}
