//! Keys of providers in text, however they are written there, replaced by `[secret]`.
//!
//! Owns: which forms of a key are found, and where they begin and end. Never: which texts are looked at.
//!
//! A key is found as it is, percent-encoded, in hexadecimal, in base64 (both alphabets, at any of the three places that a byte can
//! have in it), and each of these also when it is split: by white space, line ends, quotes, backslashes, `+`, commas or
//! brackets between its characters. What is compressed, encrypted, reversed, spelled out or encoded twice is not found.
//!
//! The text is read once, in three views: as it is, as hexadecimal digits and as letters of base64. Each leaves out what may stand between
//! two characters of a key, and is searched for all keys at once; the time grows with the length of the text alone.

mod views;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use self::views::{KeyView, TextEnd, ViewedByte, ViewedText};

/// Shorter keys are found as they are and in no other form: ordinary text would look like them.
const TRANSFORMED_BYTES_MIN: usize = 8;
/// The shortest key that is looked for at all.
const PLAIN_BYTES_MIN: usize = 4;
/// Bytes that may separate two characters of a key.
const GAP_BYTES_MAX: usize = 32;
const SHOWN: &str = "[secret]";
const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Finds keys in texts.
#[derive(Default)]
pub struct Redactor {
    /// Keys that are too short to be looked for in other forms.
    short: Vec<String>,
    plain: KeyAutomaton,
    hex: KeyAutomaton,
    base64: KeyAutomaton,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

/// What was found in a text.
struct SecretMatches {
    /// In order; none is in another.
    spans: Vec<Range<usize>>,
    /// From here on there may be the beginning of a key.
    open: usize,
}

impl Redactor {
    pub fn new<'k>(keys: impl IntoIterator<Item = &'k str>) -> Redactor {
        let mut redactor = Redactor::default();
        for key in keys {
            match key.len() {
                ..PLAIN_BYTES_MIN => {}
                PLAIN_BYTES_MIN..TRANSFORMED_BYTES_MIN => redactor.short.push(key.to_owned()),
                TRANSFORMED_BYTES_MIN.. => redactor.add(key),
            }
        }
        redactor.plain.link();
        redactor.hex.link();
        redactor.base64.link();
        redactor
    }

    fn add(&mut self, key: &str) {
        let plain: Vec<u8> =
            ViewedText::of(KeyView::Plain, key, TextEnd::Nothing).map(|seen| seen.byte).collect();
        // A key of which too little is left is found as it is.
        if plain.len() < TRANSFORMED_BYTES_MIN {
            return self.short.push(key.to_owned());
        }
        self.plain.add(&plain, MatchExtent::default());
        let hex: String = key.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.hex.add(hex.as_bytes(), MatchExtent::default());
        for before in 0..3 {
            let (letters, wider) = base64_at(key.as_bytes(), before);
            self.base64.add(&letters, wider);
        }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.short.is_empty() && self.plain.is_empty()
    }

    /// The text without the keys.
    pub fn redact(&self, text: String) -> String {
        if self.is_empty() {
            return text;
        }
        let found = self.find(&text, TextEnd::Nothing);
        if found.spans.is_empty() { text } else { replaced(&text, &found.spans) }
    }

    fn find(&self, text: &str, ending: TextEnd) -> SecretMatches {
        let mut found = SecretMatches { spans: Vec::new(), open: text.len() };
        self.plain.search(ViewedText::of(KeyView::Plain, text, ending), text.len(), &mut found);
        self.hex.search(ViewedText::of(KeyView::Hex, text, ending), text.len(), &mut found);
        self.base64.search(ViewedText::of(KeyView::Base64, text, ending), text.len(), &mut found);
        for key in &self.short {
            found.spans.extend(text.match_indices(key).map(|(at, key)| at..at + key.len()));
            let begins = |len: &usize| key.get(..*len).is_some_and(|begin| text.ends_with(begin));
            let cut = (1..key.len()).rev().find(begins).unwrap_or(0);
            found.open = found.open.min(text.len() - cut);
        }
        found.spans.sort_by_key(|span| span.start);
        let mut apart: Vec<Range<usize>> = Vec::new();
        for span in found.spans {
            match apart.last_mut() {
                Some(last) if span.start < last.end => last.end = last.end.max(span.end),
                Some(_) | None => apart.push(span),
            }
        }
        SecretMatches { spans: apart, open: found.open }
    }
}

fn replaced(text: &str, spans: &[Range<usize>]) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for span in spans {
        out.push_str(&text[at..span.start]);
        out.push_str(SHOWN);
        at = span.end;
    }
    out.push_str(&text[at..]);
    out
}

/// Text that comes in parts: what may be the beginning of a key waits for the next one.
#[derive(Debug, Default)]
pub struct RedactedStream {
    waiting: String,
}

impl RedactedStream {
    /// What may be shown by now.
    pub fn push(&mut self, redactor: &Redactor, part: &str) -> String {
        if redactor.is_empty() {
            return std::mem::take(&mut self.waiting) + part;
        }
        self.waiting.push_str(part);
        let SecretMatches { spans, open } = redactor.find(&self.waiting, TextEnd::More);
        // A key that was found may go on: it is the beginning of a longer one, or letters of it follow.
        let open = spans.iter().find(|span| span.end >= open).map_or(open, |span| span.start.min(open));
        let whole: Vec<Range<usize>> = spans.into_iter().filter(|span| span.end <= open).collect();
        let rest = self.waiting.split_off(open);
        let shown = replaced(&self.waiting, &whole);
        self.waiting = rest;
        shown
    }

    /// What is left.
    pub fn finish(&mut self, redactor: &Redactor) -> String {
        redactor.redact(std::mem::take(&mut self.waiting))
    }
}

/// The base64 characters that do not depend on the text around the key, if this many bytes precede it in its group.
fn base64_at(key: &[u8], before: usize) -> (Vec<u8>, MatchExtent) {
    let mut bytes = vec![0; before];
    bytes.extend_from_slice(key);
    let bits = bytes.len() * 8;
    bytes.extend([0, 0]);
    let letter = |at: usize| {
        let (byte, shift) = (at * 6 / 8, at * 6 % 8);
        let pair = u16::from(bytes[byte]) << 8 | u16::from(bytes[byte + 1]);
        BASE64[usize::from(pair >> (10 - shift) & 63)]
    };
    let (first, end) = ((before * 8).div_ceil(6), bits / 6);
    // Letters at both ends have bits of the key as well.
    let wider = MatchExtent { before: before > 0, after: !bits.is_multiple_of(6) };
    ((first..end).map(letter).collect(), wider)
}

/// Whether the characters around what was found belong to it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct MatchExtent {
    before: bool,
    after: bool,
}

/// All keys of one view, as a tree of their bytes with a way back for each failure (Aho and Corasick).
#[derive(Default)]
struct KeyAutomaton {
    nodes: Vec<AutomatonNode>,
    longest: usize,
}

#[derive(Default)]
struct AutomatonNode {
    next: BTreeMap<u8, usize>,
    /// The longest end of this that is a beginning.
    back: usize,
    depth: usize,
    /// The longest key that ends here.
    ends: Option<(usize, MatchExtent)>,
}

impl KeyAutomaton {
    fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    fn add(&mut self, key: &[u8], wider: MatchExtent) {
        if self.nodes.is_empty() {
            self.nodes.push(AutomatonNode::default());
        }
        let mut at = 0;
        for (depth, byte) in key.iter().enumerate() {
            at = match self.nodes[at].next.get(byte) {
                Some(next) => *next,
                None => {
                    let new = self.nodes.len();
                    self.nodes[at].next.insert(*byte, new);
                    self.nodes.push(AutomatonNode { depth: depth + 1, ..AutomatonNode::default() });
                    new
                }
            };
        }
        self.nodes[at].ends = Some((key.len(), wider));
        self.longest = self.longest.max(key.len());
    }

    /// Finds the ways back, from the shortest beginnings to the longest.
    fn link(&mut self) {
        let mut waiting: VecDeque<usize> =
            self.nodes.first().map(|root| root.next.values().copied().collect()).unwrap_or_default();
        while let Some(at) = waiting.pop_front() {
            let next: Vec<(u8, usize)> = self.nodes[at].next.iter().map(|(byte, to)| (*byte, *to)).collect();
            for (byte, to) in next {
                let back = self.step(self.nodes[at].back, byte);
                self.nodes[to].back = back;
                if self.nodes[to].ends.is_none() {
                    self.nodes[to].ends = self.nodes[back].ends;
                }
                waiting.push_back(to);
            }
        }
    }

    fn step(&self, mut at: usize, byte: u8) -> usize {
        loop {
            if let Some(next) = self.nodes[at].next.get(&byte) {
                return *next;
            }
            if at == 0 {
                return 0;
            }
            at = self.nodes[at].back;
        }
    }

    fn search(&self, mut viewed: ViewedText<'_>, text_len: usize, found: &mut SecretMatches) {
        let Some(root) = self.nodes.first() else { return };
        // The newest characters of the view, as many as a key has and the one before it.
        let mut newest: VecDeque<ViewedByte> = VecDeque::with_capacity(self.longest + 2);
        let (mut at, mut widen) = (0, None::<usize>);
        for seen in viewed.by_ref() {
            let last_end = newest.back().map_or(0, |last| last.place.end);
            if seen.place.start - last_end > GAP_BYTES_MAX {
                (at, widen) = (0, None);
                newest.clear();
            }
            if let Some(span) = widen.take()
                && seen.byte != views::OTHER
            {
                found.spans[span].end = seen.place.end;
            }
            if newest.len() > self.longest {
                newest.pop_front();
            }
            let (byte, end) = (seen.byte, seen.place.end);
            newest.push_back(seen);
            if at == 0 && !root.next.contains_key(&byte) {
                continue;
            }
            at = self.step(at, byte);
            if let Some((len, wider)) = self.nodes[at].ends {
                found.spans.push(start_of(&newest, len, wider.before)..end);
                widen = wider.after.then(|| found.spans.len() - 1);
            }
        }
        let last_end = newest.back().map_or(0, |last| last.place.end);
        let depth = self.nodes[at].depth;
        if depth > 0 && text_len - last_end <= GAP_BYTES_MAX {
            found.open = found.open.min(start_of(&newest, depth, true));
        }
        if let Some(span) = widen {
            found.open = found.open.min(found.spans[span].start);
        }
        found.open = found.open.min(viewed.undecided());
    }
}

/// Where the last `len` characters begin, or the one before them when that may belong to them.
fn start_of(newest: &VecDeque<ViewedByte>, len: usize, wider: bool) -> usize {
    let first = newest.len().saturating_sub(len);
    let before = first.checked_sub(1).and_then(|before| newest.get(before));
    match before.filter(|before| wider && before.byte != views::OTHER) {
        Some(before) => before.place.start,
        None => newest.get(first).map_or(0, |seen| seen.place.start),
    }
}

#[cfg(test)]
mod tests;
