//! A text as one who looks for a key in one form sees it: character by character, without what may stand between them.

use std::ops::Range;

/// In which form a key is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyView {
    /// As it is or percent-encoded.
    Plain,
    Hex,
    Base64,
}

/// A character that no key has in this form.
pub(super) const OTHER: u8 = 0xff;

/// One character of a view, and its position in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ViewedByte {
    pub byte: u8,
    pub place: Range<usize>,
}

/// The characters of a text in one view.
pub(super) struct ViewedText<'t> {
    view: KeyView,
    bytes: &'t [u8],
    at: usize,
    ending: TextEnd,
    /// Where something begins whose meaning depends on what follows the text.
    undecided: usize,
}

/// What comes behind a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextEnd {
    Nothing,
    /// Perhaps more: what it would decide is not seen yet.
    More,
}

impl<'t> ViewedText<'t> {
    pub(super) fn of(view: KeyView, text: &'t str, ending: TextEnd) -> ViewedText<'t> {
        ViewedText { view, bytes: text.as_bytes(), at: 0, ending, undecided: text.len() }
    }

    /// Whether the text here is incomplete.
    fn waits(&self) -> bool {
        self.ending == TextEnd::More && self.undecided < self.bytes.len()
    }

    /// Where the text ends, or something that may go on.
    pub(super) fn undecided(&self) -> usize {
        self.undecided
    }

    fn ahead(&self, by: usize) -> Option<u8> {
        self.bytes.get(self.at + by).copied()
    }

    /// Notes that this many more bytes are needed to read the text here.
    fn look(&mut self, by: usize) -> Option<u8> {
        let found = self.ahead(by);
        if found.is_none() {
            self.undecided = self.undecided.min(self.at);
        }
        found
    }

    /// How many bytes stand here that may stand between two characters of a key.
    fn between(&mut self) -> usize {
        let Some(byte) = self.ahead(0) else { return 0 };
        match byte {
            b'\\' => match self.look(1) {
                Some(b'n' | b'r' | b't') => 2,
                Some(b'x') if self.view == KeyView::Hex => 2,
                Some(_) | None => 1,
            },
            b'0' if self.view == KeyView::Hex => match self.look(1) {
                Some(b'x' | b'X') => 2,
                Some(_) | None => 0,
            },
            b':' | b'-' if self.view == KeyView::Hex => 1,
            b'+' if self.view == KeyView::Base64 => 0,
            b' ' | b'\t' | b'\r' | b'\n' | b'"' | b'\'' | b'`' | b'+' | b',' | b'(' | b')' | b'[' | b']' => 1,
            // Zero-width space and joiners, word joiner, byte order mark. Text is UTF-8, so they are whole.
            0xe2 => match (self.ahead(1), self.ahead(2)) {
                (Some(0x80), Some(0x8b..=0x8d)) | (Some(0x81), Some(0xa0)) => 3,
                _other => 0,
            },
            0xef => match (self.ahead(1), self.ahead(2)) {
                (Some(0xbb), Some(0xbf)) => 3,
                _other => 0,
            },
            _other => 0,
        }
    }

    /// The byte that a percent sign and two digits stand for.
    fn percent(&mut self) -> Option<u8> {
        let (high, low) = (self.look(1)?, self.look(2)?);
        let digit = |byte: u8| char::from(byte).to_digit(16);
        u8::try_from(digit(high)? << 4 | digit(low)?).ok()
    }

    fn as_seen(&self, byte: u8) -> u8 {
        match self.view {
            KeyView::Plain => byte,
            KeyView::Hex if byte.is_ascii_hexdigit() => byte.to_ascii_lowercase(),
            KeyView::Base64 if byte.is_ascii_alphanumeric() => byte,
            KeyView::Base64 if matches!(byte, b'+' | b'-') => b'+',
            KeyView::Base64 if matches!(byte, b'/' | b'_') => b'/',
            KeyView::Hex | KeyView::Base64 => OTHER,
        }
    }
}

impl Iterator for ViewedText<'_> {
    type Item = ViewedByte;

    fn next(&mut self) -> Option<ViewedByte> {
        loop {
            let between = self.between();
            if self.waits() {
                return None;
            }
            if between == 0 {
                break;
            }
            self.at += between;
        }
        let start = self.at;
        let byte = self.ahead(0)?;
        let decoded = if byte == b'%' && self.view != KeyView::Hex { self.percent() } else { None };
        if self.waits() {
            return None;
        }
        let (byte, len) = decoded.map_or((byte, 1), |decoded| (decoded, 3));
        // A character of several bytes is no part of a key. It counts as a unit, so that no position is inside it.
        let len = if byte < 0x80 || decoded.is_some() { len } else { char_len(byte) };
        self.at += len;
        let seen = if byte < 0x80 { self.as_seen(byte) } else { self.wide(byte) };
        Some(ViewedByte { byte: seen, place: start..self.at.min(self.bytes.len()) })
    }
}

impl ViewedText<'_> {
    fn wide(&self, byte: u8) -> u8 {
        if self.view == KeyView::Plain { byte } else { OTHER }
    }
}

/// How many bytes a character has that begins with this one.
fn char_len(first: u8) -> usize {
    match first {
        0xf0.. => 4,
        0xe0..0xf0 => 3,
        _other => 2,
    }
}
