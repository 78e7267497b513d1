//! YAML errors with a position, and without the text at that position: it may be a key.

use std::fmt;

use serde::de::DeserializeOwned;
use serde_saphyr::Error;

/// A mistake in a YAML file, described without quoting values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YamlProblem {
    UnknownKey {
        key: String,
        known: Vec<&'static str>,
    },
    MissingKey {
        key: &'static str,
    },
    /// A key that is indented unlike the others of its entry, and so is not a part of it.
    Misaligned {
        key: &'static str,
        /// The line of the entry.
        entry: u64,
    },
    RepeatedKey,
    UnknownWord {
        /// The key that it is the value of, where that is known.
        key: Option<&'static str>,
        /// `…` unless it is one of the known words, misspelt.
        word: String,
        known: Vec<&'static str>,
    },
    WrongType {
        expected: String,
    },
    /// A value of the right type that this release cannot use.
    Unusable {
        why: String,
    },
    /// Too deep, too many nodes, too many aliases.
    TooComplex,
    Syntax,
}

/// Where a mistake is; lines and columns begin at 1, and 0 means unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct YamlFault {
    pub(crate) line: u64,
    pub(crate) column: u64,
    pub(crate) problem: YamlProblem,
}

/// How deep a file may be nested.
const DEPTH_MAX: usize = 64;
/// Aliases in a file, and the size of its text with every alias expanded: a few lines could expand to gigabytes.
const ALIASES_MAX: usize = 1_000;
const SCALAR_BYTES_MAX: usize = 16 << 20;
const KEY_SHOWN_MAX: usize = 24;
/// Letters by which a misspelt word differs at most from the one that was meant.
const MISSPELT_MAX: usize = 2;

impl YamlProblem {
    pub(crate) fn unknown_word(key: Option<&'static str>, word: &str, known: Vec<&'static str>) -> Self {
        let is_misspelt = known.iter().any(|known| is_near(word, known));
        let word = if is_misspelt { word } else { "…" };
        Self::UnknownWord { key, word: word.to_owned(), known }
    }
}

/// Whether two words have the same letters but for a few at one place.
fn is_near(a: &str, b: &str) -> bool {
    let prefix = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    let (rest_a, rest_b) = (&a.as_bytes()[prefix..], &b.as_bytes()[prefix..]);
    let suffix = rest_a.iter().rev().zip(rest_b.iter().rev()).take_while(|(x, y)| x == y).count();
    let differ = rest_a.len().max(rest_b.len()) - suffix;
    differ <= MISSPELT_MAX && prefix + suffix > MISSPELT_MAX
}

pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, YamlFault> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_depth: DEPTH_MAX,
            max_aliases: ALIASES_MAX,
            max_total_scalar_bytes: SCALAR_BYTES_MAX,
        },
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| fault(&error))
}

fn fault(error: &Error) -> YamlFault {
    let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
    YamlFault { line, column, problem: problem(error) }
}

fn problem(error: &Error) -> YamlProblem {
    match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => problem(error),
        Error::SerdeUnknownField { field, expected, .. } => {
            YamlProblem::UnknownKey { key: shown(field), known: expected.clone() }
        }
        Error::SerdeMissingField { field, .. } => YamlProblem::MissingKey { key: field },
        Error::DuplicateMappingKey { .. } => YamlProblem::RepeatedKey,
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            YamlProblem::unknown_word(None, variant, expected.clone())
        }
        Error::SerdeInvalidType { expected, .. }
        | Error::SerdeInvalidValue { expected, .. }
        | Error::SerdeInvalidLength { expected, .. } => YamlProblem::WrongType { expected: expected.clone() },
        Error::Unexpected { expected, .. } => YamlProblem::WrongType {
            expected: match *expected {
                "sequence start" => "a list, each entry of which begins with `-`",
                "mapping start" => "keys with values, as in `key: value`",
                other => other,
            }
            .to_owned(),
        },
        Error::InvalidScalar { ty, .. } => YamlProblem::WrongType { expected: (*ty).to_owned() },
        Error::NullIntoString { .. } => YamlProblem::WrongType { expected: "text".to_owned() },
        // Only our own checks produce free messages, and they do not quote values.
        Error::Message { msg, .. } => YamlProblem::Unusable { why: msg.clone() },
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => YamlProblem::TooComplex,
        // The library's list is open: everything else is a syntax error.
        _ => YamlProblem::Syntax,
    }
}

/// A key of a mapping, unless it looks like something that slipped out of a value.
fn shown(key: &str) -> String {
    let plain = key.len() <= KEY_SHOWN_MAX
        && key.bytes().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_'));
    if plain { key.to_owned() } else { "…".to_owned() }
}

impl fmt::Display for YamlProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey { key, known } => {
                write!(f, "unknown key `{key}`, expected one of: {}", known.join(", "))
            }
            Self::MissingKey { key } => write!(f, "`{key}` is missing"),
            Self::Misaligned { key, entry } => write!(
                f,
                "`{key}` is not aligned with the other keys of the entry on line {entry}, so it does not belong to it"
            ),
            Self::RepeatedKey => f.write_str("a key is there twice"),
            Self::UnknownWord { key, word, known } => {
                let key = key.map(|key| format!("{key}: ")).unwrap_or_default();
                write!(f, "`{key}{word}` is unknown, expected one of: {}", known.join(", "))
            }
            Self::WrongType { expected } => write!(f, "expected {expected}"),
            Self::Unusable { why } => f.write_str(why),
            Self::TooComplex => f.write_str("nested or repeated beyond the limits"),
            Self::Syntax => f.write_str("this is not valid YAML"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_is_repeated_and_nothing_else_is() {
        for (word, told) in
            [("opnai", "opnai"), ("opeanai", "opeanai"), ("sk-x", "…"), ("olllama", "olllama"), ("", "…")]
        {
            let problem = YamlProblem::unknown_word(Some("kind"), word, vec!["openai", "ollama"]);
            let words = format!("`kind: {told}` is unknown, expected one of: openai, ollama");
            assert_eq!(problem.to_string(), words);
        }
    }

    #[test]
    fn aliases_and_depth_cannot_make_a_small_file_large() {
        let problem = |text: &str| parse::<serde_json::Value>(text).map_err(|fault| fault.problem).err();
        let long = "x".repeat(100_000);
        let repeated = |times: usize| format!("a: &a {long}\nb: [{}]\n", vec!["*a"; times].join(", "));
        assert_eq!(problem(&repeated(10)), None);
        assert_eq!(problem(&repeated(500)), Some(YamlProblem::TooComplex), "50 MB");
        let ten = |of: &str| vec![format!("*{of}"); 10].join(", ");
        let laughs = format!("a: &a {long}\nb: &b [{}]\nc: &c [{}]\nd: [{}]\n", ten("a"), ten("b"), ten("c"));
        assert_eq!(problem(&laughs), Some(YamlProblem::TooComplex), "100 MB");
        let deep = "[".repeat(5_000) + &"]".repeat(5_000);
        assert!(problem(&deep).is_some());
    }
}
