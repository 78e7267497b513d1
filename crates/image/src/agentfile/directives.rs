//! The instructions every Agentfile dialect has: FROM to CAPABILITY.
//!
//! Owns: what each takes and what it does to the document. Never: lexes, or looks beyond its own line.
//!
//! Each function returns `None` when the rest of its line cannot be judged; mistakes are noted in the cursor.

use super::bounds::LINE_MAX;
use super::cursor::{KeyValue, LocatedWord, PairValue, TokenCursor};
use super::document::{
    Add, Agentfile, Arg, BinSource, Config, ConfigValue, ContextSection, ContextSource, Env, Label, Parent,
    put,
};
use super::env_key::check_env_key;
use super::expand::ArgScope;
use super::lex::TokenKind;
use super::mistake::{FormMistake, NameOf, ValueMistake};
use super::names;
use super::rules;

pub(super) fn from(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let word = cursor.word("an image, a path, or `scratch`")?;
    let at = word.at;
    let value = if word.text == "scratch" {
        Parent::Scratch
    } else if names::dotted_path(&word.text) {
        Parent::Path(word.text)
    } else if word.text.starts_with(['/', '~']) {
        cursor.fault(at, ValueMistake::ParentPath { found: word.text });
        return Some(());
    } else {
        hold(cursor, at, rules::parent_image(&word.text));
        Parent::Image(word.text)
    };
    doc.from = cursor.at(at, value);
    Some(())
}

pub(super) fn runtime(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let word = cursor.word("an image or `host:program`")?;
    let at = word.at;
    let value = bin_source(cursor, word);
    doc.runtime = Some(cursor.at(at, value));
    // Settings belong to the runtime they were written for.
    doc.configs.clear();
    Some(())
}

pub(super) fn model(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let LocatedWord { at, text } = cursor.word("a model")?;
    match rules::model(&text) {
        Ok(value) => doc.model = Some(cursor.at(at, value)),
        Err(mistake) => cursor.fault(at, mistake),
    }
    Some(())
}

pub(super) fn name(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let word = cursor.word("a name")?;
    let at = word.at;
    let value = path_name(cursor, word, NameOf::Agent);
    doc.name = Some(cursor.at(at, value));
    Some(())
}

pub(super) fn context(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let word = cursor.word("a name")?;
    let name = path_name(cursor, word, NameOf::Context);
    let description = cursor.description();
    let file = match cursor.word_if_any() {
        Some(word) if word.text.starts_with("file://") => {
            let at = word.at;
            let path = file_path(cursor, word);
            Some(cursor.at(at, path))
        }
        Some(word) => {
            let (keyword, found) = (cursor.keyword, word.text);
            cursor.fault(word.at, FormMistake::Unexpected { keyword, found });
            return None;
        }
        None => None,
    };
    let source = match (cursor.body(), file) {
        (Some(body), None) => ContextSource::Inline(body.text),
        (None, Some(path)) => ContextSource::File(path),
        (Some(body), Some(_)) => {
            cursor.fault(body.at, FormMistake::ContextWithTwoTexts { name });
            return None;
        }
        (None, None) if cursor.is_empty() => {
            cursor.fault(cursor.end(), FormMistake::ContextWithoutText { name });
            return None;
        }
        // Another token is in the place of the text, and `finish` reports it.
        (None, None) => return Some(()),
    };
    put(&mut doc.contexts, ContextSection { line, name, description, source });
    Some(())
}

pub(super) fn config(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let KeyValue { key: LocatedWord { at, text }, value } = cursor.pair("a key")?;
    let (key, required) = match text.strip_suffix('!') {
        Some(key) => (key.to_owned(), true),
        None => (text, false),
    };
    hold(cursor, at, rules::config_key(&key));
    hold(cursor, at, rules::config_default(&key, required, value.as_ref()));
    let value = value.map(|value| match value {
        PairValue::Bare(text) => typed(text),
        PairValue::Quoted(text) => ConfigValue::String(text),
    });
    let description = cursor.description();
    put(&mut doc.configs, Config { line, key, value, required, description });
    Some(())
}

pub(super) fn env(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let (key, value) = full_pair(cursor, "`KEY=value`")?;
    if let Err(refused) = check_env_key(&key.text) {
        cursor.fault(key.at, refused);
    }
    let description = cursor.description();
    put(&mut doc.envs, Env { line, key: key.text, value, description });
    Some(())
}

pub(super) fn exec(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    #[derive(PartialEq)]
    enum ListState {
        Open,
        StringOrClose,
        String,
        CommaOrClose,
        Nothing,
    }
    let mut next = ListState::Open;
    let mut value = Vec::new();
    for token in cursor.take_rest() {
        match token.kind {
            TokenKind::Text(text) if matches!(next, ListState::StringOrClose | ListState::String) => {
                value.push(text);
                next = ListState::CommaOrClose;
            }
            TokenKind::Word(word) => {
                for (offset, c) in word.char_indices() {
                    next = match (next, c) {
                        (ListState::Open, '[') => ListState::StringOrClose,
                        (ListState::StringOrClose | ListState::CommaOrClose, ']') => ListState::Nothing,
                        (ListState::CommaOrClose, ',') => ListState::String,
                        _ => {
                            cursor.fault(token.at + offset, ValueMistake::Exec);
                            return None;
                        }
                    };
                }
            }
            TokenKind::Text(_) | TokenKind::Heredoc(_) | TokenKind::Body(_) => {
                cursor.fault(token.at, ValueMistake::Exec);
                return None;
            }
        }
    }
    if next != ListState::Nothing {
        cursor.fault(cursor.end(), ValueMistake::Exec);
    }
    doc.exec = Some(cursor.at(0, value));
    Some(())
}

pub(super) fn add(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let word = cursor.word_or_text("a path")?;
    let at = word.at;
    let src = file_path(cursor, word);
    // `/dst/name` is an older form whose directory means nothing; `/dst/` keeps the file's own name.
    let given =
        cursor.word_if_any().map(|word| LocatedWord { at: word.at, text: last_part(&word.text).to_owned() });
    let name = match given {
        Some(given) if !given.text.is_empty() => given,
        Some(_) | None => LocatedWord { at, text: last_part(src.trim_end_matches('/')).to_owned() },
    };
    // A path that was refused has no name worth judging.
    let name = match names::relative_path(&src) {
        Ok(()) => path_name(cursor, name, NameOf::AddedFile),
        Err(_) => name.text,
    };
    let description = cursor.description();
    let src = cursor.at(at, src);
    put(&mut doc.adds, Add { line, src, name, description });
    Some(())
}

pub(super) fn label(doc: &mut Agentfile, line: u32, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let (key, value) = full_pair(cursor, "`key=value`")?;
    hold(cursor, key.at, rules::label_key(&key.text));
    put(&mut doc.labels, Label { line, key: key.text, value });
    Some(())
}

pub(super) fn arg(
    doc: &mut Agentfile,
    scope: &mut ArgScope<'_>,
    line: u32,
    cursor: &mut TokenCursor<'_>,
) -> Option<()> {
    let KeyValue { key: LocatedWord { at, text: key }, value } = cursor.pair("a key")?;
    if let Err(mistake) = rules::arg_key(&key) {
        cursor.fault(at, mistake);
        return Some(());
    }
    let default = value.map(PairValue::into_string);
    let one_line =
        |text: &str| text.len() <= LINE_MAX && !text.contains(|c: char| c.is_control() && c != '\t');
    if scope.build_arg(&key).is_some_and(|given| !one_line(given)) {
        cursor.fault(at, ValueMistake::BuildArg { key: key.clone() });
        return Some(());
    }
    let value = scope.build_arg(&key).map(str::to_owned).or_else(|| default.clone());
    scope.declare(&key, value.as_deref());
    put(&mut doc.args, Arg { line, key, default, value });
    Some(())
}

pub(super) fn capability(doc: &mut Agentfile, cursor: &mut TokenCursor<'_>) -> Option<()> {
    let mut next = Some(cursor.word("a capability name")?);
    while let Some(LocatedWord { at, text }) = next {
        if text.starts_with('#') {
            let keyword = cursor.keyword;
            cursor.fault(at, FormMistake::Unexpected { keyword, found: text });
            return None;
        }
        match rules::capability(&text) {
            Ok(()) => put(&mut doc.capabilities, cursor.at(at, text)),
            Err(mistake) => cursor.fault(at, mistake),
        }
        next = cursor.word_if_any();
    }
    Some(())
}

/// Notes what a value breaks, if it breaks anything.
pub(super) fn hold(cursor: &mut TokenCursor<'_>, at: usize, rule: Result<(), ValueMistake>) {
    if let Err(mistake) = rule {
        cursor.fault(at, mistake);
    }
}

pub(super) fn path_name(cursor: &mut TokenCursor<'_>, word: LocatedWord, of: NameOf) -> String {
    hold(cursor, word.at, rules::name(of, &word.text));
    word.text
}

pub(super) fn image_ref(cursor: &mut TokenCursor<'_>, word: LocatedWord) -> String {
    hold(cursor, word.at, rules::image(&word.text));
    word.text
}

pub(super) fn bin_source(cursor: &mut TokenCursor<'_>, word: LocatedWord) -> BinSource {
    let source = match word.text.strip_prefix("host:") {
        Some(program) => BinSource::Host(program.to_owned()),
        None => BinSource::Image(word.text),
    };
    hold(cursor, word.at, rules::bin_source(&source));
    source
}

fn file_path(cursor: &mut TokenCursor<'_>, word: LocatedWord) -> String {
    let path = word.text.strip_prefix("file://").unwrap_or(&word.text).to_owned();
    hold(cursor, word.at, rules::path(&path));
    path
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// A pair whose `=` may not be left out.
fn full_pair(cursor: &mut TokenCursor<'_>, what: &'static str) -> Option<(LocatedWord, String)> {
    let pair = cursor.pair(what)?;
    match pair.value {
        Some(value) => Some((pair.key, value.into_string())),
        None => {
            let keyword = cursor.keyword;
            let at = pair.key.at + pair.key.text.len();
            cursor.fault(at, FormMistake::Missing { keyword, what: "`=` and a value" });
            None
        }
    }
}

/// An unquoted literal. Numbers keep their type only in the form they would be printed in, so `007`, `+1` and
/// numbers too large to hold stay the text they were.
fn typed(text: String) -> ConfigValue {
    match text.as_str() {
        "true" => return ConfigValue::Bool(true),
        "false" => return ConfigValue::Bool(false),
        _ => {}
    }
    let digits = text.strip_prefix('-').unwrap_or(&text);
    let whole = digits.bytes().all(|b| b.is_ascii_digit());
    let padded = digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit();
    if !digits.starts_with(|c: char| c.is_ascii_digit()) || padded {
        return ConfigValue::String(text);
    }
    if whole {
        return text.parse().map_or_else(|_| ConfigValue::String(text.clone()), ConfigValue::Int);
    }
    let numeric = digits.bytes().all(|b| b.is_ascii_digit() || b".eE+-".contains(&b)) && !text.ends_with('.');
    match text.parse::<f64>() {
        Ok(value) if numeric && value.is_finite() => ConfigValue::Float(value),
        Ok(_) | Err(_) => ConfigValue::String(text),
    }
}
