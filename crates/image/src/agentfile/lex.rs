//! One instruction line into words, strings and heredoc markers.
//!
//! Owns: quoting and escapes. Never: knows any instruction.

use super::mistake::{Mistake, TextMistake};

/// A mistake and its byte in the expanded line.
pub(super) type LineFault = (usize, Mistake);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AgentfileToken {
    pub(super) at: usize,
    /// No space separates this token from the one before.
    pub(super) glued: bool,
    pub(super) kind: TokenKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenKind {
    /// A run without spaces or quotes.
    Word(String),
    /// What stood between double quotes, escapes resolved.
    Text(String),
    /// The marker of a heredoc.
    Heredoc(String),
    /// The body of a heredoc, once it has been read.
    Body(String),
}

pub(super) fn lex(line: &str) -> Result<Vec<AgentfileToken>, LineFault> {
    let mut tokens: Vec<AgentfileToken> = Vec::new();
    let mut at = 0;
    let mut end_of_last = 0;
    while let Some(first) = line[at..].chars().next() {
        if first == ' ' || first == '\t' {
            at += 1;
            continue;
        }
        let (kind, end) = if first == '"' { string(line, at)? } else { word(line, at)? };
        tokens.push(AgentfileToken { at, glued: !tokens.is_empty() && end_of_last == at, kind });
        end_of_last = end;
        at = end;
    }
    Ok(tokens)
}

fn word(line: &str, start: usize) -> Result<(TokenKind, usize), LineFault> {
    let mut end = line.len();
    for (offset, c) in line[start..].char_indices() {
        if matches!(c, ' ' | '\t' | '"') {
            end = start + offset;
            break;
        }
        if invisible(c) {
            return Err((start + offset, TextMistake::BadCharacter { character: c }.into()));
        }
    }
    let text = &line[start..end];
    let kind = match text.strip_prefix("<<") {
        Some("") => return Err((start, TextMistake::HeredocMarkerMissing.into())),
        Some(marker) => TokenKind::Heredoc(marker.to_owned()),
        None => TokenKind::Word(text.to_owned()),
    };
    Ok((kind, end))
}

/// Characters that look like nothing or like a space and would make a word lie about itself.
pub(super) fn invisible(c: char) -> bool {
    c.is_control()
        || c.is_whitespace()
        || matches!(c, '\u{ad}' | '\u{feff}' | '\u{200b}'..='\u{200f}')
        || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

fn string(line: &str, start: usize) -> Result<(TokenKind, usize), LineFault> {
    let mut text = String::new();
    let mut at = start + 1;
    while let Some(c) = line[at..].chars().next() {
        match c {
            '"' => return Ok((TokenKind::Text(text), at + 1)),
            '\\' => {
                let (c, length) = escape(&line[at + 1..]).ok_or_else(|| {
                    let found: String = line[at..].chars().take(2).collect();
                    (at, TextMistake::BadEscape { found }.into())
                })?;
                text.push(c);
                at += 1 + length;
            }
            _ if c.is_control() && c != '\t' => {
                return Err((at, TextMistake::BadCharacter { character: c }.into()));
            }
            _ => {
                text.push(c);
                at += c.len_utf8();
            }
        }
    }
    Err((start, TextMistake::UnterminatedString.into()))
}

/// The character of an escape, and its length after the backslash.
fn escape(rest: &str) -> Option<(char, usize)> {
    let simple = |c| Some((c, 1));
    match rest.bytes().next()? {
        b'"' => simple('"'),
        b'\'' => simple('\''),
        b'\\' => simple('\\'),
        b'/' => simple('/'),
        b'a' => simple('\u{7}'),
        b'b' => simple('\u{8}'),
        b'f' => simple('\u{c}'),
        b'n' => simple('\n'),
        b'r' => simple('\r'),
        b't' => simple('\t'),
        b'v' => simple('\u{b}'),
        b'0'..=b'7' => scalar(rest.get(..3)?, 8, 0x7f).map(|c| (c, 3)),
        b'x' => scalar(rest.get(1..3)?, 16, 0x7f).map(|c| (c, 3)),
        b'u' => unicode(rest),
        b'U' => scalar(rest.get(1..9)?, 16, u32::from(char::MAX)).map(|c| (c, 9)),
        _ => None,
    }
}

/// `\uHHHH`, or two of them that form a surrogate pair, as JSON writes characters beyond the first plane.
fn unicode(rest: &str) -> Option<(char, usize)> {
    let high = number(rest.get(1..5)?, 16)?;
    if !(0xd800..0xdc00).contains(&high) {
        return char::from_u32(high).filter(|c| *c != '\0').map(|c| (c, 5));
    }
    let low = number(rest.get(5..11)?.strip_prefix("\\u")?, 16)?;
    if !(0xdc00..0xe000).contains(&low) {
        return None;
    }
    char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00)).map(|c| (c, 11))
}

/// NUL is never meant: no argument or environment value can hold it.
fn scalar(digits: &str, radix: u32, max: u32) -> Option<char> {
    number(digits, radix).filter(|n| (1..=max).contains(n)).and_then(char::from_u32)
}

fn number(digits: &str, radix: u32) -> Option<u32> {
    digits.chars().all(|c| c.is_digit(radix)).then(|| u32::from_str_radix(digits, radix).ok()).flatten()
}
