//! The file as a whole: lines, comments, heredocs, order, and the collection of all mistakes.
//!
//! Owns: the walk over the file. Never: panics, loops without progress, or stops at the first mistake.

use std::collections::BTreeMap;

use super::bounds::{
    ERRORS_MAX, EXPANSION_MAX, FILE_MAX, HEREDOC_MAX, HEREDOCS_MAX, INSTRUCTIONS_MAX, LINE_MAX, LINES_MAX,
    WORDS_MAX,
};
use super::cursor::TokenCursor;
use super::directives;
use super::document::Agentfile;
use super::error::{AgentfileError, AgentfileErrors};
use super::expand::{ArgScope, ExpandedLine, ExpansionLimit};
use super::extensions;
use super::keyword::Keyword;
use super::lex::{AgentfileToken, TokenKind, lex};
use super::mistake::{BoundMistake, FormMistake, Mistake, TextMistake};
use super::tools;

const SYNTAXES: [&str; 2] = ["lodge/agentfile:1", "openotters/agentfile:1"];

/// Parses an Agentfile. `name` is how errors call the file; `args` are the build arguments.
///
/// Reports every mistake it finds, at least one of which is the reason for an `Err`.
pub fn parse(
    name: &str,
    source: &[u8],
    args: &BTreeMap<String, String>,
) -> Result<Agentfile, AgentfileErrors> {
    let ParsedAgentfile { agentfile, errors } = parse_all(name, source, args);
    match errors {
        Some(errors) => Err(errors),
        None => Ok(agentfile),
    }
}

/// The lines of BIN and SHELL by the names of their tools. Lines with mistakes are left out.
pub fn tool_lines(source: &[u8]) -> BTreeMap<String, u32> {
    let ParsedAgentfile { agentfile, .. } = parse_all("Agentfile", source, &BTreeMap::new());
    agentfile.bins.into_iter().map(|bin| (bin.name, bin.line)).collect()
}

/// An Agentfile without the lines that have mistakes, and those mistakes.
pub(super) struct ParsedAgentfile {
    pub agentfile: Agentfile,
    pub errors: Option<AgentfileErrors>,
}

/// Parses an Agentfile, and keeps what could be read of one with mistakes.
pub(super) fn parse_all(name: &str, source: &[u8], args: &BTreeMap<String, String>) -> ParsedAgentfile {
    parse_lines(name, source, args)
        .unwrap_or_else(|errors| ParsedAgentfile { agentfile: Agentfile::default(), errors: Some(errors) })
}

/// An error is about the file as a whole, of which no line was read.
fn parse_lines(
    name: &str,
    source: &[u8],
    args: &BTreeMap<String, String>,
) -> Result<ParsedAgentfile, AgentfileErrors> {
    let whole_file = |line, column, mistake: Mistake| {
        AgentfileErrors::one(AgentfileError { file: name.to_owned(), line, column, mistake })
    };
    if source.len() > FILE_MAX {
        return Err(whole_file(1, 1, BoundMistake::File { bytes: source.len(), max: FILE_MAX }.into()));
    }
    if source.starts_with("\u{feff}".as_bytes()) {
        return Err(whole_file(1, 1, TextMistake::ByteOrderMark.into()));
    }
    let text = std::str::from_utf8(source).map_err(|error| {
        let good = String::from_utf8_lossy(&source[..error.valid_up_to()]);
        let (line, column) =
            (good.split('\n').count(), good.rsplit('\n').next().unwrap_or_default().chars().count());
        whole_file(number(line), number(column + 1), TextMistake::NotUtf8.into())
    })?;
    let lines = SourceLines::of(text);
    if lines.starts.len() > LINES_MAX {
        let mistake = BoundMistake::Lines { lines: lines.starts.len(), max: LINES_MAX };
        return Err(whole_file(number(LINES_MAX + 1), 1, mistake.into()));
    }
    let mut parser = Parser::new(name, lines, args);
    while parser.step().is_some() {}
    Ok(parser.finish())
}

struct Parser<'a> {
    file: &'a str,
    lines: SourceLines<'a>,
    scope: ArgScope<'a>,
    doc: Agentfile,
    errors: Vec<AgentfileError>,
    instructions: usize,
    heredocs: usize,
    first: Option<Keyword>,
    from: FromState,
}

/// What is known about FROM so far.
#[derive(Clone, Copy)]
enum FromState {
    No,
    /// A word that can only have meant FROM; reporting it missing as well would be noise.
    Misspelt,
    Yes {
        line: u32,
    },
}

/// The reader has seen enough of a hopeless file when a step returns `None`.
type ParseStep = Option<()>;

impl<'a> Parser<'a> {
    fn new(file: &'a str, lines: SourceLines<'a>, args: &'a BTreeMap<String, String>) -> Self {
        Self {
            file,
            lines,
            scope: ArgScope::new(args),
            doc: Agentfile::default(),
            errors: Vec::new(),
            instructions: 0,
            heredocs: 0,
            first: None,
            from: FromState::No,
        }
    }

    /// Reads one line, and the heredoc that belongs to it. `None` at the end of the file or of our patience.
    fn step(&mut self) -> ParseStep {
        let (line, raw) = self.lines.next()?;
        let trimmed = raw.trim_start_matches([' ', '\t']);
        if let Some(comment) = trimmed.strip_prefix('#') {
            return self.comment(line, raw.len() - trimmed.len(), comment);
        }
        if raw.len() > LINE_MAX {
            self.abandon(line, raw);
            return self.report(line, 1, BoundMistake::Line { bytes: raw.len(), max: LINE_MAX });
        }
        let expanded = match self.scope.expand(raw) {
            Ok(expanded) => expanded,
            Err(ExpansionLimit::Line) => {
                self.abandon(line, raw);
                return self.report(line, 1, BoundMistake::ExpandedLine { max: LINE_MAX });
            }
            Err(ExpansionLimit::File) => {
                self.report(line, 1, BoundMistake::Expansion { max: EXPANSION_MAX });
                return None;
            }
        };
        if expanded.text.trim_matches([' ', '\t']).is_empty() {
            return Some(());
        }
        self.instructions += 1;
        if self.instructions > INSTRUCTIONS_MAX {
            self.report(line, 1, BoundMistake::Instructions { max: INSTRUCTIONS_MAX });
            return None;
        }
        self.instruction(line, &expanded)
    }

    fn comment(&mut self, line: u32, indent: usize, comment: &str) -> ParseStep {
        let Some(value) =
            comment.trim().strip_prefix("syntax").and_then(|rest| rest.trim_start().strip_prefix('='))
        else {
            return Some(());
        };
        let column = number(indent + 1);
        let found = value.trim();
        if line != 1 {
            self.report(line, column, TextMistake::SyntaxLineMisplaced)
        } else if !SYNTAXES.contains(&found) {
            self.report(line, column, TextMistake::SyntaxVersion { found: found.to_owned() })
        } else {
            Some(())
        }
    }

    fn instruction(&mut self, line: u32, expanded: &ExpandedLine<'_>) -> ParseStep {
        let mut tokens = match lex(&expanded.text) {
            Ok(tokens) => tokens,
            Err((at, mistake)) => {
                self.abandon(line, &expanded.text);
                return self.report(line, expanded.column(at), mistake);
            }
        };
        self.read_heredoc(line, expanded, &mut tokens)?;
        if tokens.len() > WORDS_MAX {
            let mistake = BoundMistake::Words { words: tokens.len(), max: WORDS_MAX };
            return self.report(line, 1, mistake);
        }
        let continued = self.skip_continuation(&mut tokens);
        let mut tokens = tokens.into_iter();
        let Some(first) = tokens.next() else {
            return self.report(line, expanded.column(continued.unwrap_or(0)), TextMistake::LineContinued);
        };
        let found = match first.kind {
            TokenKind::Word(word) => word,
            TokenKind::Text(text) => format!("\"{text}\""),
            TokenKind::Heredoc(marker) => format!("<<{marker}"),
            TokenKind::Body(_) => "<<".to_owned(),
        };
        let column = expanded.column(first.at);
        let Some(keyword) = Keyword::read(&found) else {
            self.note_keyword(line, &found);
            return self.report(line, column, FormMistake::UnknownInstruction { found });
        };
        if keyword == Keyword::From {
            self.check_from(line, column)?;
        }
        self.note_keyword(line, &found);
        if let Some(at) = continued {
            return self.report(line, expanded.column(at), TextMistake::LineContinued);
        }
        let mut cursor = TokenCursor::new(keyword, line, expanded, tokens);
        if self.dispatch(line, &mut cursor).is_some() {
            cursor.finish();
        }
        for (at, mistake) in cursor.into_faults() {
            self.report(line, expanded.column(at), mistake)?;
        }
        Some(())
    }

    fn dispatch(&mut self, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
        let doc = &mut self.doc;
        match cursor.keyword {
            Keyword::From => directives::from(doc, cursor),
            Keyword::Runtime => directives::runtime(doc, cursor),
            Keyword::Model => directives::model(doc, cursor),
            Keyword::Name => directives::name(doc, cursor),
            Keyword::Context => directives::context(doc, line, cursor),
            Keyword::Config => directives::config(doc, line, cursor),
            Keyword::Env => directives::env(doc, line, cursor),
            Keyword::Bin => tools::bin(doc, line, cursor),
            Keyword::Shell => tools::shell(doc, line, cursor),
            Keyword::Exec => directives::exec(doc, cursor),
            Keyword::Add => directives::add(doc, line, cursor),
            Keyword::Label => directives::label(doc, line, cursor),
            Keyword::Arg => directives::arg(doc, &mut self.scope, line, cursor),
            Keyword::Capability => directives::capability(doc, cursor),
            Keyword::Limit => extensions::limit(doc, cursor),
            Keyword::Network => extensions::network(doc, cursor),
            Keyword::Mcp => extensions::mcp(doc, line, cursor),
            Keyword::Skill => extensions::skill(doc, cursor),
            Keyword::Service => extensions::service(doc, line, cursor),
            Keyword::Schedule => extensions::schedule(doc, line, cursor),
            Keyword::On => extensions::on(doc, line, cursor),
        }
    }

    fn check_from(&mut self, line: u32, column: u32) -> ParseStep {
        match (self.from, self.first) {
            (FromState::Yes { line: first_line }, _) => {
                let mistake = FormMistake::Repeated { keyword: Keyword::From, key: None, first_line };
                self.report(line, column, mistake)
            }
            (FromState::No | FromState::Misspelt, Some(before)) => {
                self.report(line, column, FormMistake::FromNotFirst { before })
            }
            (FromState::No | FromState::Misspelt, None) => Some(()),
        }
    }

    /// Remembers what order and presence of FROM depend on.
    fn note_keyword(&mut self, line: u32, word: &str) {
        match (Keyword::read(word), self.from) {
            (Some(Keyword::From), FromState::No | FromState::Misspelt) => self.from = FromState::Yes { line },
            (None, FromState::No) if Keyword::guess(word) == Some(Keyword::From) => {
                self.from = FromState::Misspelt
            }
            _ => {}
        }
        self.first = self.first.or(Keyword::read(word));
    }

    /// Replaces the heredoc marker among the tokens by the body that follows the line.
    fn read_heredoc(
        &mut self,
        line: u32,
        expanded: &ExpandedLine<'_>,
        tokens: &mut Vec<AgentfileToken>,
    ) -> ParseStep {
        let Some(index) = tokens.iter().position(|token| matches!(token.kind, TokenKind::Heredoc(_))) else {
            return Some(());
        };
        let column = expanded.column(tokens[index].at);
        let TokenKind::Heredoc(marker) = tokens[index].kind.clone() else { return Some(()) };
        if index + 1 != tokens.len() {
            self.report(line, column, TextMistake::HeredocNotLast { marker: marker.clone() })?;
            tokens.truncate(index + 1);
        }
        self.heredocs += 1;
        if self.heredocs > HEREDOCS_MAX {
            self.report(line, column, BoundMistake::Heredocs { max: HEREDOCS_MAX });
            return None;
        }
        let Some(body) = self.lines.take_heredoc(&marker) else {
            self.report(line, column, TextMistake::HeredocUnterminated { marker });
            return None;
        };
        if body.len() > HEREDOC_MAX {
            let mistake = BoundMistake::Heredoc { bytes: body.len(), max: HEREDOC_MAX };
            self.report(line, column, mistake)?;
        }
        tokens[index].kind = TokenKind::Body(body.to_owned());
        Some(())
    }

    /// The place of a `\` that ends the line, as in other languages. The lines that it would continue are skipped, so that
    /// they are not reported as instructions.
    fn skip_continuation(&mut self, tokens: &mut Vec<AgentfileToken>) -> Option<usize> {
        let is_backslash = |token: &AgentfileToken| token.kind == TokenKind::Word("\\".to_owned());
        let at = tokens.pop_if(|token| is_backslash(token))?.at;
        while self.lines.next().is_some_and(|(_, line)| line.trim_end().ends_with('\\')) {}
        Some(at)
    }

    /// Gives up on a line that made no tokens, without taking the text of its heredoc for instructions.
    fn abandon(&mut self, number: u32, line: &str) {
        self.note_keyword(number, line.split_whitespace().next().unwrap_or_default());
        if let Some(marker) = line.split_whitespace().next_back().and_then(|word| word.strip_prefix("<<"))
            && !marker.is_empty()
        {
            self.lines.take_heredoc(marker);
        }
    }

    /// Notes a mistake. `None` when that makes too many.
    fn report(&mut self, line: u32, column: u32, mistake: impl Into<Mistake>) -> ParseStep {
        let file = self.file.to_owned();
        self.errors.push(AgentfileError { file, line, column, mistake: mistake.into() });
        if self.errors.len() < ERRORS_MAX {
            return Some(());
        }
        let mistake = BoundMistake::Errors { max: ERRORS_MAX }.into();
        self.errors.push(AgentfileError { file: self.file.to_owned(), line, column, mistake });
        None
    }

    fn finish(mut self) -> ParsedAgentfile {
        let gave_up = self.errors.len() > ERRORS_MAX;
        if matches!(self.from, FromState::No) && !gave_up {
            self.report(1, 1, FormMistake::FromMissing);
        }
        ParsedAgentfile { agentfile: self.doc, errors: AgentfileErrors::collect(self.errors) }
    }
}

/// The text by lines, keeping offsets so that a heredoc is a slice of the source.
struct SourceLines<'a> {
    text: &'a str,
    starts: Vec<usize>,
    next: usize,
}

impl<'a> SourceLines<'a> {
    fn of(text: &'a str) -> Self {
        let after_breaks = text.match_indices('\n').map(|(at, _)| at + 1).filter(|at| *at < text.len());
        let starts =
            if text.is_empty() { Vec::new() } else { std::iter::once(0).chain(after_breaks).collect() };
        Self { text, starts, next: 0 }
    }

    fn line(&self, index: usize) -> Option<&'a str> {
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index + 1).copied().unwrap_or(self.text.len());
        let line = &self.text[start..end];
        let line = line.strip_suffix('\n').unwrap_or(line);
        Some(line.strip_suffix('\r').unwrap_or(line))
    }

    fn next(&mut self) -> Option<(u32, &'a str)> {
        let line = self.line(self.next)?;
        self.next += 1;
        Some((number(self.next), line))
    }

    /// The text up to the line that is the marker. Without such a line, nothing is taken.
    fn take_heredoc(&mut self, marker: &str) -> Option<&'a str> {
        let start = self.next;
        let end = (start..self.starts.len())
            .find(|index| self.line(*index).is_some_and(|line| line.trim() == marker))?;
        self.next = end + 1;
        Some(self.text[self.starts[start]..self.starts[end]].trim_end_matches(['\r', '\n']))
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}
