//! Replaces `${key}` by the values of ARG, and maps positions back to the columns of the source.
//!
//! Owns: the values in scope and the limit of their expansion. Never: expands its own output, so a value that
//! contains `${…}` cannot grow.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::bounds::{EXPANSION_MAX, LINE_MAX};
use super::names;

/// The values of `${key}` on the lines below.
pub(super) struct ArgScope<'a> {
    given: &'a BTreeMap<String, String>,
    values: BTreeMap<String, String>,
    spent: usize,
}

/// Why a line could not be expanded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExpansionLimit {
    Line,
    File,
}

/// One line after replacement.
pub(super) struct ExpandedLine<'a> {
    source: &'a str,
    pub(super) text: Cow<'a, str>,
    /// Where pieces start, in order; empty when nothing was replaced.
    pieces: Vec<ExpandedSpan>,
}

struct ExpandedSpan {
    out: usize,
    source: usize,
    replaced: bool,
}

impl<'a> ArgScope<'a> {
    pub(super) fn new(given: &'a BTreeMap<String, String>) -> Self {
        Self { given, values: BTreeMap::new(), spent: 0 }
    }

    /// The build argument of that name, if one was given.
    pub(super) fn build_arg(&self, key: &str) -> Option<&'a str> {
        self.given.get(key).map(String::as_str)
    }

    /// Declares `key` for the lines below; without a value `${key}` stays as it is.
    pub(super) fn declare(&mut self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => self.values.insert(key.to_owned(), value.to_owned()),
            None => self.values.remove(key),
        };
    }

    pub(super) fn expand<'l>(&mut self, line: &'l str) -> Result<ExpandedLine<'l>, ExpansionLimit> {
        let mut out = String::new();
        let mut pieces = Vec::new();
        let (mut copied, mut from) = (0, 0);
        while let Some(open) = line[from..].find("${").map(|found| from + found) {
            let Some((value, end)) = self.value_at(line, open) else {
                from = open + 2;
                continue;
            };
            pieces.push(ExpandedSpan { out: out.len(), source: copied, replaced: false });
            out.push_str(&line[copied..open]);
            pieces.push(ExpandedSpan { out: out.len(), source: open, replaced: true });
            out.push_str(value);
            if out.len() > LINE_MAX {
                return Err(ExpansionLimit::Line);
            }
            (copied, from) = (end, end);
        }
        if pieces.is_empty() {
            return Ok(ExpandedLine { source: line, text: Cow::Borrowed(line), pieces });
        }
        pieces.push(ExpandedSpan { out: out.len(), source: copied, replaced: false });
        out.push_str(&line[copied..]);
        self.spent += out.len();
        if self.spent > EXPANSION_MAX {
            Err(ExpansionLimit::File)
        } else if out.len() > LINE_MAX {
            Err(ExpansionLimit::Line)
        } else {
            Ok(ExpandedLine { source: line, text: Cow::Owned(out), pieces })
        }
    }

    /// The value of the `${key}` that opens at `open`, and where it ends.
    fn value_at(&self, line: &str, open: usize) -> Option<(&str, usize)> {
        // Keys are short, so the search for `}` is too: a line of `${${${` costs no more than its length.
        let rest = &line.as_bytes()[open + 2..];
        let close = rest.iter().take(64).position(|b| *b == b'}')?;
        let key = std::str::from_utf8(&rest[..close]).ok().filter(|key| names::arg_key(key))?;
        Some((self.values.get(key)?, open + 2 + close + 1))
    }
}

impl ExpandedLine<'_> {
    /// The column in the source of a byte in the expanded text.
    pub(super) fn column(&self, at: usize) -> u32 {
        let source = match self.pieces.iter().rev().find(|piece| piece.out <= at) {
            Some(piece) if piece.replaced => piece.source,
            Some(piece) => piece.source + (at - piece.out),
            None => at,
        };
        let before = self.source.char_indices().take_while(|(index, _)| *index < source).count();
        u32::try_from(before + 1).unwrap_or(u32::MAX)
    }
}
