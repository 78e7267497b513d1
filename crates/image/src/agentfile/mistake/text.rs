//! Mistakes in the characters: encoding, quotes, escapes and heredocs.
//!
//! Owns: their words. Never: finds them (see `lex` and `parse`).

use super::codes;
use crate::agentfile::error::shown;

/// The characters do not form tokens.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextMistake {
    #[error("the file starts with a byte order mark")]
    ByteOrderMark,
    #[error("the file is not UTF-8")]
    NotUtf8,
    #[error("the syntax line is not the first line")]
    SyntaxLineMisplaced,
    #[error("unknown syntax `{}`", shown(found))]
    SyntaxVersion { found: String },
    #[error("the character U+{:04X} is not allowed here", u32::from(*character))]
    BadCharacter { character: char },
    #[error("the string is not closed")]
    UnterminatedString,
    #[error("unknown escape `{}`", shown(found))]
    BadEscape { found: String },
    #[error("the heredoc has no marker")]
    HeredocMarkerMissing,
    #[error("the heredoc `<<{}` is not closed", shown(marker))]
    HeredocUnterminated { marker: String },
    #[error("the heredoc `<<{}` is not the last word of its line", shown(marker))]
    HeredocNotLast { marker: String },
    #[error("an instruction does not continue on the next line")]
    LineContinued,
}

codes! { TextMistake:
    ByteOrderMark => "agentfile.byte_order_mark",
    NotUtf8 => "agentfile.not_utf8",
    SyntaxLineMisplaced => "agentfile.syntax_line_misplaced",
    SyntaxVersion => "agentfile.unknown_syntax",
    BadCharacter => "agentfile.bad_character",
    UnterminatedString => "agentfile.string_not_closed",
    BadEscape => "agentfile.bad_escape",
    HeredocMarkerMissing => "agentfile.heredoc_marker_missing",
    HeredocUnterminated => "agentfile.heredoc_not_closed",
    HeredocNotLast => "agentfile.heredoc_not_last",
    LineContinued => "agentfile.line_continued",
}

impl TextMistake {
    pub fn expected(&self) -> String {
        match self {
            TextMistake::ByteOrderMark => "UTF-8 without a byte order mark".to_owned(),
            TextMistake::NotUtf8 => "UTF-8 text".to_owned(),
            TextMistake::SyntaxLineMisplaced => "`# syntax=…` on line 1 or not at all".to_owned(),
            TextMistake::SyntaxVersion { .. } => {
                "`# syntax=lodge/agentfile:1` or `# syntax=openotters/agentfile:1`".to_owned()
            }
            TextMistake::BadCharacter { .. } => "visible characters, spaces and tabs".to_owned(),
            TextMistake::UnterminatedString => "a closing `\"` on the same line".to_owned(),
            TextMistake::BadEscape { .. } => {
                r#"one of \" \\ \' \/ \a \b \f \n \r \t \v \xHH \ooo \uHHHH \UHHHHHHHH, and not NUL"#
                    .to_owned()
            }
            TextMistake::HeredocMarkerMissing => "a marker right after `<<`, such as `<<EOF`".to_owned(),
            TextMistake::HeredocUnterminated { marker } => {
                format!("a line with nothing but `{}`", shown(marker))
            }
            TextMistake::HeredocNotLast { .. } => "nothing after the marker".to_owned(),
            TextMistake::LineContinued => "the whole instruction on one line".to_owned(),
        }
    }

    pub fn hint(&self) -> String {
        match self {
            TextMistake::ByteOrderMark => "save the file as UTF-8 without BOM".to_owned(),
            TextMistake::NotUtf8 => "save the file as UTF-8".to_owned(),
            TextMistake::SyntaxLineMisplaced => "move it to line 1, or remove it".to_owned(),
            TextMistake::SyntaxVersion { .. } => {
                "remove the line: version 1 is what is assumed without it".to_owned()
            }
            TextMistake::BadCharacter { character } if character.is_whitespace() => {
                "replace it with an ordinary space".to_owned()
            }
            TextMistake::BadCharacter { .. } => {
                r#"remove it, or write it as an escape such as `\u00AD` in a quoted string"#.to_owned()
            }
            TextMistake::UnterminatedString => {
                r#"close the string, write a quote in it as `\"`, or use a heredoc for several lines"#
                    .to_owned()
            }
            TextMistake::BadEscape { .. } => r"write a backslash as `\\`".to_owned(),
            TextMistake::HeredocMarkerMissing => "write `<<EOF`, without space or quotes".to_owned(),
            TextMistake::HeredocUnterminated { marker } => {
                format!("add a line `{}` after the text", shown(marker))
            }
            TextMistake::HeredocNotLast { .. } => "move the heredoc to the end of the line".to_owned(),
            TextMistake::LineContinued => {
                r"join the lines and remove the `\`; a text of several lines goes into a heredoc: `<<EOF`, the text, a line `EOF`"
                    .to_owned()
            }
        }
    }
}
