//! Iterates over the words of one instruction and collects mistakes.
//!
//! Owns: the difference between a mistake that ends the line (`None`) and one that does not. Never: the meaning of a
//! word.

use std::iter::Peekable;
use std::vec::IntoIter;

use super::document::Located;
use super::expand::ExpandedLine;
use super::keyword::Keyword;
use super::lex::{AgentfileToken, LineFault, TokenKind};
use super::mistake::{FormMistake, Mistake};

pub(super) struct TokenCursor<'a> {
    pub(super) keyword: Keyword,
    line: u32,
    expanded: &'a ExpandedLine<'a>,
    tokens: Peekable<IntoIter<AgentfileToken>>,
    end: usize,
    faults: Vec<LineFault>,
}

/// A word and its position.
pub(super) struct LocatedWord {
    pub(super) at: usize,
    pub(super) text: String,
}

/// `key`, `key=value` or `key="value"`.
pub(super) struct KeyValue {
    pub(super) key: LocatedWord,
    pub(super) value: Option<PairValue>,
}

pub(super) enum PairValue {
    Bare(String),
    Quoted(String),
}

impl PairValue {
    pub(super) fn into_string(self) -> String {
        match self {
            PairValue::Bare(text) | PairValue::Quoted(text) => text,
        }
    }
}

impl<'a> TokenCursor<'a> {
    /// `tokens` are those after the keyword.
    pub(super) fn new(
        keyword: Keyword,
        line: u32,
        expanded: &'a ExpandedLine<'a>,
        tokens: IntoIter<AgentfileToken>,
    ) -> Self {
        let end = expanded.text.trim_end().len();
        Self { keyword, line, expanded, tokens: tokens.peekable(), end, faults: Vec::new() }
    }

    /// A value with the place in the source that gave it.
    pub(super) fn at<T>(&self, at: usize, value: T) -> Located<T> {
        Located { line: self.line, column: self.expanded.column(at), value }
    }

    pub(super) fn fault(&mut self, at: usize, mistake: impl Into<Mistake>) {
        self.faults.push((at, mistake.into()));
    }

    /// Whether the rest of the line has anything left.
    pub(super) fn is_empty(&mut self) -> bool {
        self.tokens.peek().is_none()
    }

    pub(super) fn into_faults(self) -> Vec<LineFault> {
        self.faults
    }

    /// Refuses everything that is left on the line.
    pub(super) fn finish(&mut self) {
        if let Some(token) = self.next() {
            self.unexpected::<()>(token);
        }
    }

    /// The next token must be an unquoted word.
    pub(super) fn word(&mut self, what: &'static str) -> Option<LocatedWord> {
        match self.next() {
            Some(AgentfileToken { at, kind: TokenKind::Word(text), .. }) => Some(LocatedWord { at, text }),
            Some(other) => self.unexpected(other),
            None => self.missing(what),
        }
    }

    /// The next token must be a word, quoted or not.
    pub(super) fn word_or_text(&mut self, what: &'static str) -> Option<LocatedWord> {
        match self.next() {
            Some(AgentfileToken { at, kind: TokenKind::Word(text) | TokenKind::Text(text), .. }) => {
                Some(LocatedWord { at, text })
            }
            Some(other) => self.unexpected(other),
            None => self.missing(what),
        }
    }

    /// The next token must be a quoted text or a heredoc.
    pub(super) fn text_or_body(&mut self, what: &'static str) -> Option<LocatedWord> {
        match self.next() {
            Some(AgentfileToken { at, kind: TokenKind::Text(text) | TokenKind::Body(text), .. }) => {
                Some(LocatedWord { at, text })
            }
            Some(other) => self.unexpected(other),
            None => self.missing(what),
        }
    }

    /// An unquoted word, if one is next.
    pub(super) fn word_if_any(&mut self) -> Option<LocatedWord> {
        match self.next_if(|kind| matches!(kind, TokenKind::Word(_)))? {
            AgentfileToken { at, kind: TokenKind::Word(text), .. } => Some(LocatedWord { at, text }),
            _ => None,
        }
    }

    /// Takes the next word when it is exactly `word`.
    pub(super) fn flag(&mut self, word: &str) -> bool {
        self.next_if(|kind| matches!(kind, TokenKind::Word(text) if text == word)).is_some()
    }

    /// A description, if one is next.
    pub(super) fn description(&mut self) -> Option<String> {
        match self.next_if(|kind| matches!(kind, TokenKind::Text(_)))?.kind {
            TokenKind::Text(text) => Some(text),
            _ => None,
        }
    }

    /// A heredoc, if one is next.
    pub(super) fn body(&mut self) -> Option<LocatedWord> {
        match self.next_if(|kind| matches!(kind, TokenKind::Body(_)))? {
            AgentfileToken { at, kind: TokenKind::Body(text), .. } => Some(LocatedWord { at, text }),
            _ => None,
        }
    }

    /// The next token must start a pair; a value right after `=` may be quoted.
    pub(super) fn pair(&mut self, what: &'static str) -> Option<KeyValue> {
        let word = self.word(what)?;
        let keyword = self.keyword;
        let Some((key, bare)) = word.text.split_once('=') else {
            if let Some(next) = self.tokens.peek()
                && matches!(&next.kind, TokenKind::Word(text) if text.starts_with('='))
            {
                let at = next.at;
                self.fault(at, FormMistake::SpacesAroundEquals { keyword });
                return None;
            }
            return Some(KeyValue { key: word, value: None });
        };
        let key = LocatedWord { at: word.at, text: key.to_owned() };
        let quoted = match self.tokens.peek() {
            Some(AgentfileToken { glued: true, kind: TokenKind::Text(_), .. }) if bare.is_empty() => {
                self.tokens.next()
            }
            _ => None,
        };
        let value = match quoted {
            Some(AgentfileToken { kind: TokenKind::Text(text), .. }) => PairValue::Quoted(text),
            _ => PairValue::Bare(bare.to_owned()),
        };
        Some(KeyValue { key, value: Some(value) })
    }

    /// All remaining words, joined where no space separates them, as a shell would.
    pub(super) fn arguments(&mut self) -> Option<Vec<String>> {
        let mut arguments: Vec<String> = Vec::new();
        while let Some(token) = self.tokens.next() {
            let glued = token.glued;
            let text = match &token.kind {
                TokenKind::Word(text) if glued || !text.starts_with('#') => text,
                TokenKind::Text(text) => text,
                TokenKind::Word(_) | TokenKind::Heredoc(_) | TokenKind::Body(_) => {
                    return self.unexpected(token);
                }
            };
            match arguments.last_mut() {
                Some(last) if glued => last.push_str(text),
                _ => arguments.push(text.clone()),
            }
        }
        Some(arguments)
    }

    /// All tokens that are left, for an instruction with a grammar of its own.
    pub(super) fn take_rest(&mut self) -> Vec<AgentfileToken> {
        self.tokens.by_ref().collect()
    }

    pub(super) fn end(&self) -> usize {
        self.end
    }

    pub(super) fn missing<T>(&mut self, what: &'static str) -> Option<T> {
        let keyword = self.keyword;
        self.fault(self.end, FormMistake::Missing { keyword, what });
        None
    }

    fn unexpected<T>(&mut self, token: AgentfileToken) -> Option<T> {
        let found = match token.kind {
            TokenKind::Word(text) => text,
            TokenKind::Text(text) => format!("\"{text}\""),
            TokenKind::Heredoc(marker) => format!("<<{marker}"),
            TokenKind::Body(_) => "<<".to_owned(),
        };
        let keyword = self.keyword;
        // A token that lacked its space was reported for that; once is enough.
        if self.faults.last().is_none_or(|(at, _)| *at != token.at) {
            self.fault(token.at, FormMistake::Unexpected { keyword, found });
        }
        None
    }

    fn next(&mut self) -> Option<AgentfileToken> {
        let token = self.tokens.next()?;
        if token.glued {
            let found = match &token.kind {
                TokenKind::Word(text)
                | TokenKind::Text(text)
                | TokenKind::Heredoc(text)
                | TokenKind::Body(text) => text.clone(),
            };
            self.fault(token.at, FormMistake::MissingSpace { found });
        }
        Some(token)
    }

    fn next_if(&mut self, wanted: impl Fn(&TokenKind) -> bool) -> Option<AgentfileToken> {
        if wanted(&self.tokens.peek()?.kind) { self.next() } else { None }
    }
}
