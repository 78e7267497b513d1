//! Mistakes in the form: unknown, missing, repeated or misplaced instructions and words.
//!
//! Owns: their words. Never: finds them (see `parse`, `cursor` and the directives).

use super::codes;
use crate::agentfile::error::shown;
use crate::agentfile::keyword::{Keyword, foreign};

/// The tokens do not form instructions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormMistake {
    #[error("unknown instruction `{}`", shown(found))]
    UnknownInstruction { found: String },
    #[error("{keyword} lacks {what}")]
    Missing { keyword: Keyword, what: &'static str },
    #[error("unexpected `{}` after {keyword}", shown(found))]
    Unexpected { keyword: Keyword, found: String },
    #[error("no space before `{}`", shown(found))]
    MissingSpace { found: String },
    #[error("spaces around `=` in {keyword}")]
    SpacesAroundEquals { keyword: Keyword },
    #[error("there is no FROM")]
    FromMissing,
    #[error("FROM is after {before}")]
    FromNotFirst { before: Keyword },
    /// `key` is `None` for an instruction that a file has once at most.
    #[error("{} was already given on line {first_line}", named(*keyword, key.as_deref()))]
    Repeated { keyword: Keyword, key: Option<String>, first_line: u32 },
    /// SHELL and `BIN sh` in one file.
    #[error("the tool `sh` was already given by {first} on line {first_line}")]
    SecondShell { first: Keyword, first_line: u32 },
    #[error("CONTEXT `{}` has no text", shown(name))]
    ContextWithoutText { name: String },
    #[error("CONTEXT `{}` has two texts", shown(name))]
    ContextWithTwoTexts { name: String },
    /// In the language, and not in what the builder can do.
    #[error("{what} is not supported by this release")]
    Unsupported { what: &'static str },
}

codes! { FormMistake:
    UnknownInstruction => "agentfile.unknown_instruction",
    Missing => "agentfile.missing_word",
    Unexpected => "agentfile.unexpected_word",
    MissingSpace => "agentfile.missing_space",
    SpacesAroundEquals => "agentfile.spaces_around_equals",
    FromMissing => "agentfile.from_missing",
    FromNotFirst => "agentfile.from_not_first",
    Repeated => "agentfile.repeated",
    SecondShell => "agentfile.second_shell",
    ContextWithoutText => "agentfile.context_without_text",
    ContextWithTwoTexts => "agentfile.context_with_two_texts",
    Unsupported => "agentfile.unsupported",
}

impl FormMistake {
    pub fn expected(&self) -> String {
        match self {
            FormMistake::UnknownInstruction { .. } => {
                let words: Vec<&str> = Keyword::ALL.iter().map(|keyword| keyword.word()).collect();
                format!("one of {}", words.join(", "))
            }
            FormMistake::Missing { keyword, .. }
            | FormMistake::Unexpected { keyword, .. }
            | FormMistake::SpacesAroundEquals { keyword } => format!("`{}`", keyword.usage()),
            FormMistake::MissingSpace { .. } => "a space between words".to_owned(),
            FormMistake::FromMissing | FormMistake::FromNotFirst { .. } => {
                format!("`{}` as the first instruction", Keyword::From.usage())
            }
            FormMistake::Repeated { .. } => "it once".to_owned(),
            FormMistake::SecondShell { .. } => "either SHELL or `BIN sh`".to_owned(),
            FormMistake::ContextWithoutText { .. } | FormMistake::ContextWithTwoTexts { .. } => {
                "either a heredoc or a `file://path`".to_owned()
            }
            FormMistake::Unsupported { .. } => "an instruction that this release carries out".to_owned(),
        }
    }

    pub fn hint(&self) -> String {
        match self {
            FormMistake::UnknownInstruction { found } => match (foreign(found), Keyword::guess(found)) {
                (Some(advice), _) => advice.to_owned(),
                (None, Some(keyword)) => format!("did you mean `{keyword}`?"),
                (None, None) => {
                    "instructions are one per line; longer texts go into a heredoc, comments start with `#`"
                        .to_owned()
                }
            },
            FormMistake::Missing { what, .. } => format!("add {what}"),
            FormMistake::Unexpected { found, .. } if found.starts_with('#') => {
                "put comments on separate lines".to_owned()
            }
            FormMistake::Unexpected { .. } => {
                "remove it, or put words that belong together into double quotes".to_owned()
            }
            FormMistake::MissingSpace { .. } => {
                r#"add a space, or put the whole value into quotes and write a quote in it as `\"`"#
                    .to_owned()
            }
            FormMistake::SpacesAroundEquals { .. } => "write `key=value` without spaces".to_owned(),
            FormMistake::FromMissing => "start the file with `FROM scratch`".to_owned(),
            FormMistake::FromNotFirst { .. } => "move FROM to the top of the file".to_owned(),
            FormMistake::Repeated { first_line, .. } => {
                format!("remove this one or the one on line {first_line}")
            }
            FormMistake::SecondShell { first_line, .. } => {
                format!(
                    "SHELL comes with the utilities, `BIN sh` has none: remove this line or line {first_line}"
                )
            }
            FormMistake::ContextWithoutText { name } => {
                format!("write `CONTEXT {} <<EOF`, the text, and a line `EOF`", shown(name))
            }
            FormMistake::ContextWithTwoTexts { .. } => "remove one of the two".to_owned(),
            FormMistake::Unsupported { .. } => "remove that line".to_owned(),
        }
    }
}

fn named(keyword: Keyword, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("{keyword} `{}`", shown(key)),
        None => keyword.to_string(),
    }
}
