//! The instructions that give an agent its tools: BIN and SHELL.
//!
//! Owns: what each takes and what it does to the document. Never: looks for programs or images.

use super::builtin::BUILTIN_PREFIX;
use super::cursor::{LocatedWord, TokenCursor};
use super::directives::{bin_source, hold, path_name};
use super::document::{Agentfile, Bin, BinSource, SHELL_NAME, ShellKind, put};
use super::keyword::Keyword;
use super::mistake::{FormMistake, NameOf, ValueMistake};
use super::rules;

pub(super) fn bin(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let word = cursor.word("a name")?;
    let at = word.at;
    let name = path_name(cursor, word, NameOf::Tool);
    let word = cursor.word("an image, `host:program` or `builtin:program`")?;
    let source = tool_source(cursor, word);
    let safe = cursor.flag("safe");
    let description = cursor.description();
    let usage = cursor.body().map(|body| body.text);
    if let Some(first) = doc.bins.iter().find(|bin| bin.shell && bin.name == name) {
        let first_line = first.line;
        cursor.fault(at, FormMistake::SecondShell { first: Keyword::Shell, first_line });
        return Some(());
    }
    put(&mut doc.bins, Bin { line, name, source, safe, description, usage, shell: false });
    Some(())
}

/// The tool `sh`, whose command lines find the ordinary utilities.
pub(super) fn shell(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let LocatedWord { at, text } = cursor.word("`host` or `stock`")?;
    let Some(kind) = ShellKind::from_word(&text) else {
        cursor.fault(at, ValueMistake::Shell { found: text });
        return None;
    };
    let safe = cursor.flag("safe");
    let description = cursor.description();
    if let Some(first) = doc.bins.iter().find(|bin| bin.name == SHELL_NAME) {
        let first_line = first.line;
        let mistake = if first.shell {
            FormMistake::Repeated { keyword: Keyword::Shell, key: None, first_line }
        } else {
            FormMistake::SecondShell { first: Keyword::Bin, first_line }
        };
        cursor.fault(at, mistake);
        return Some(());
    }
    let (name, source) = (SHELL_NAME.to_owned(), kind.source());
    put(&mut doc.bins, Bin { line, name, source, safe, description, usage: None, shell: true });
    Some(())
}

fn tool_source(cursor: &mut TokenCursor<'_>, word: LocatedWord) -> BinSource {
    let Some(program) = word.text.strip_prefix(BUILTIN_PREFIX) else {
        return bin_source(cursor, word);
    };
    let source = BinSource::Builtin(program.to_owned());
    hold(cursor, word.at, rules::bin_source(&source));
    source
}
