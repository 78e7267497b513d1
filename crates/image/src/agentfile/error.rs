//! A mistake with its place, and the report of all of them.
//!
//! Owns: how a report reads. Never: decides what is a mistake.

use std::fmt;

use super::mistake::Mistake;

const SHOWN_MAX: usize = 60;
/// A path is of use only whole.
const PATH_SHOWN_MAX: usize = 1024;
/// Bytes from the start and from the end of a cause, which may be a chain: the root cause is last.
const CAUSE_SHOWN_MAX: [usize; 2] = [80, 320];

/// One mistake and its position. Lines and columns count from 1; columns count characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentfileError {
    pub file: String,
    pub line: u32,
    pub column: u32,
    pub mistake: Mistake,
}

impl AgentfileError {
    pub fn code(&self) -> &'static str {
        self.mistake.code()
    }

    pub fn hint(&self) -> String {
        self.mistake.hint()
    }
}

impl fmt::Display for AgentfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}:{}:{}: {}",
            shown_up_to(&self.file, PATH_SHOWN_MAX),
            self.line,
            self.column,
            self.mistake
        )?;
        writeln!(f, "  expected {}", self.mistake.expected())?;
        write!(f, "  hint: {}", self.hint())
    }
}

impl std::error::Error for AgentfileError {}

/// Every mistake found in an Agentfile and its parents, in the order of their lines. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentfileErrors {
    first: AgentfileError,
    rest: Vec<AgentfileError>,
}

impl AgentfileErrors {
    pub(super) fn one(error: AgentfileError) -> Self {
        Self { first: error, rest: Vec::new() }
    }

    /// `None` when there is nothing to report.
    pub(super) fn collect(mut errors: Vec<AgentfileError>) -> Option<Self> {
        errors.sort_by_key(|error| (error.line, error.column));
        AgentfileErrors::of(errors)
    }

    /// Those of several files, in their order; `None` when there is nothing to report.
    pub(super) fn of(errors: Vec<AgentfileError>) -> Option<Self> {
        let mut errors = errors.into_iter();
        let first = errors.next()?;
        Some(Self { first, rest: errors.collect() })
    }

    pub fn first(&self) -> &AgentfileError {
        &self.first
    }

    pub fn iter(&self) -> impl Iterator<Item = &AgentfileError> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

impl fmt::Display for AgentfileErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.rest.iter().try_for_each(|error| write!(f, "\n{error}"))
    }
}

impl std::error::Error for AgentfileErrors {}

/// A stranger's text made fit for a terminal: short, on one line, with invisible characters spelled out.
pub fn shown(text: &str) -> String {
    shown_up_to(text, SHOWN_MAX)
}

/// As [`shown`], of what a cause says: it is left out in the middle when it is long.
pub(super) fn shown_cause(text: &str) -> String {
    let [begin, end] = CAUSE_SHOWN_MAX;
    let count = text.chars().count();
    if count <= begin + end {
        return shown_up_to(text, begin + end);
    }
    let last: String = text.chars().skip(count - end).collect();
    shown_up_to(text, begin) + &shown_up_to(&last, end)
}

fn shown_up_to(text: &str, chars_max: usize) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == chars_max {
            out.push('…');
            break;
        }
        match c {
            '"' | '\'' | '\\' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_chain_of_causes_the_first_and_the_last_are_shown() {
        let inner = "the registry `r.example` has no image of that name";
        let mut told = inner.to_owned();
        for parent in 0..20 {
            let image = format!("r.example/agents/parent-{parent}:latest");
            let cause = shown_cause(&told);
            assert!(cause.chars().count() < 500 && cause.ends_with(inner), "{cause}");
            told = format!("the image `{image}` could not be read: Agentfile:1:6: {cause}");
        }
        assert!(shown_cause(&told).starts_with("the image `r.example/agents/parent-19:latest`"), "{told}");
        assert_eq!(shown_cause("a\u{1b}b"), "a\\u{1b}b");
    }
}
