//! Decodes terminal input to keys.
//!
//! Owns: incomplete sequences. Never: reading, or what a key does. Pure.

/// More than this in one unfinished sequence is no key.
const SEQUENCE_BYTES_MAX: usize = 32;
/// A paste is cut here: longer than any prompt that is taken.
const PASTE_BYTES_MAX: usize = 4 * 1024 * 1024;
const PASTE_BEGIN: &[u8] = b"\x1b[200~";
const PASTE_END: &[u8] = b"\x1b[201~";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    /// Typed with Ctrl, as the letter.
    Ctrl(char),
    Enter,
    /// A line end that does not send: Alt and Enter.
    NewLine,
    Backspace,
    Delete,
    Left,
    Right,
    Up,
    Down,
    Home,
    End,
    WordLeft,
    WordRight,
    Tab,
    Escape,
    /// Pasted text, including line ends.
    Paste(String),
}

/// Takes bytes as they come and gives out whole keys.
#[derive(Debug, Default)]
pub(super) struct KeyDecoder {
    bytes: Vec<u8>,
    /// What there is of a paste whose end has not come.
    paste: Option<Vec<u8>>,
}

impl KeyDecoder {
    /// Every key that is complete with these bytes.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Key> {
        self.bytes.extend_from_slice(bytes);
        let mut keys = Vec::new();
        loop {
            if self.paste.is_none() && self.bytes.starts_with(PASTE_BEGIN) {
                self.bytes.drain(..PASTE_BEGIN.len());
                self.paste = Some(Vec::new());
            }
            if let Some(paste) = &mut self.paste {
                if !take_pasted(&mut self.bytes, paste) {
                    return keys;
                }
                keys.extend(self.paste.take().map(|paste| Key::Paste(text_of(&paste))));
                continue;
            }
            let Some((key, used)) = first(&self.bytes) else { return keys };
            self.bytes.drain(..used);
            keys.extend(key);
        }
    }

    /// Whether an Escape may be the first byte of something that is still on its way.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.paste.is_none() && self.bytes.starts_with(b"\x1b")
    }

    /// Nothing more came for a while: an Escape that stood alone was the key itself.
    pub(super) fn settle(&mut self) -> Vec<Key> {
        if !self.is_in_doubt() {
            return Vec::new();
        }
        self.bytes.remove(0);
        let mut keys = vec![Key::Escape];
        keys.extend(self.feed(&[]));
        keys
    }
}

/// Moves pasted text out of `bytes`, and returns whether the paste is complete. Text beyond the limit is dropped up to
/// the end of the paste: pasted bytes never count as keys.
fn take_pasted(bytes: &mut Vec<u8>, paste: &mut Vec<u8>) -> bool {
    let end = bytes.windows(PASTE_END.len()).position(|window| window == PASTE_END);
    let (taken, used) = match end {
        Some(end) => (end, end + PASTE_END.len()),
        // The last bytes may be the first ones of the end.
        None => {
            let taken = bytes.len().saturating_sub(PASTE_END.len() - 1);
            (taken, taken)
        }
    };
    let room = PASTE_BYTES_MAX - paste.len();
    paste.extend_from_slice(&bytes[..taken.min(room)]);
    bytes.drain(..used);
    end.is_some()
}

fn text_of(paste: &[u8]) -> String {
    String::from_utf8_lossy(paste).replace("\r\n", "\n").replace('\r', "\n")
}

/// The first key and how many bytes it took; nothing when more bytes are needed.
fn first(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match *bytes.first()? {
        b'\r' | b'\n' => Some((Some(Key::Enter), 1)),
        b'\t' => Some((Some(Key::Tab), 1)),
        0x08 | 0x7f => Some((Some(Key::Backspace), 1)),
        0x1b => escape(bytes),
        control @ 0x01..=0x1a => Some((Some(Key::Ctrl(char::from(control - 1 + b'a'))), 1)),
        0x00..=0x1f => Some((None, 1)),
        _ => letter(bytes),
    }
}

fn letter(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let want = match bytes[0] {
        0xf0..=0xf7 => 4,
        0xe0..=0xef => 3,
        0xc0..=0xdf => 2,
        _ => 1,
    };
    let got = bytes.get(..want)?;
    match std::str::from_utf8(got) {
        Ok(text) => Some((text.chars().next().map(Key::Char), want)),
        // What is no letter is dropped byte by byte, so that the next one is found.
        Err(_) => Some((None, 1)),
    }
}

fn escape(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    match *bytes.get(1)? {
        b'[' => sequence(bytes),
        b'O' => {
            let key = match bytes.get(2)? {
                b'A' => Some(Key::Up),
                b'B' => Some(Key::Down),
                b'C' => Some(Key::Right),
                b'D' => Some(Key::Left),
                b'H' => Some(Key::Home),
                b'F' => Some(Key::End),
                _ => None,
            };
            Some((key, 3))
        }
        b'\r' | b'\n' => Some((Some(Key::NewLine), 2)),
        b'b' => Some((Some(Key::WordLeft), 2)),
        b'f' => Some((Some(Key::WordRight), 2)),
        0x7f => Some((Some(Key::Ctrl('w')), 2)),
        // Escape, and then another key.
        _ => Some((Some(Key::Escape), 1)),
    }
}

/// `ESC [ digits ; digits letter`.
fn sequence(bytes: &[u8]) -> Option<(Option<Key>, usize)> {
    let end = bytes.iter().skip(2).position(|byte| (0x40..=0x7e).contains(byte));
    let Some(end) = end.map(|end| end + 2) else {
        return (bytes.len() > SEQUENCE_BYTES_MAX).then_some((None, bytes.len()));
    };
    let arguments = &bytes[2..end];
    let with_ctrl = arguments.ends_with(b";5") || arguments.ends_with(b";3");
    let key = match (bytes[end], arguments) {
        (b'A', _) => Some(Key::Up),
        (b'B', _) => Some(Key::Down),
        (b'C', _) if with_ctrl => Some(Key::WordRight),
        (b'D', _) if with_ctrl => Some(Key::WordLeft),
        (b'C', _) => Some(Key::Right),
        (b'D', _) => Some(Key::Left),
        (b'H', _) | (b'~', b"1" | b"7") => Some(Key::Home),
        (b'F', _) | (b'~', b"4" | b"8") => Some(Key::End),
        (b'~', b"3") => Some(Key::Delete),
        (_, _) => None,
    };
    Some((key, end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &[u8], expected: &[Key]) {
        let mut whole = KeyDecoder::default();
        assert_eq!(whole.feed(bytes), expected, "{bytes:?} at once");
        let mut split = KeyDecoder::default();
        let keys: Vec<Key> = bytes.iter().flat_map(|byte| split.feed(&[*byte])).collect();
        assert_eq!(keys, expected, "{bytes:?} byte by byte");
    }

    #[test]
    fn keys_are_the_same_in_one_piece_and_byte_by_byte() {
        check(b"a\r", &[Key::Char('a'), Key::Enter]);
        check("né€🙂".as_bytes(), &[Key::Char('n'), Key::Char('é'), Key::Char('€'), Key::Char('🙂')]);
        check(b"\x1b[A\x1bOB\x1b[1;5C\x1b[3~", &[Key::Up, Key::Down, Key::WordRight, Key::Delete]);
        check(b"\x01\x03\x04\x7f", &[Key::Ctrl('a'), Key::Ctrl('c'), Key::Ctrl('d'), Key::Backspace]);
        check(b"\x1b\r\x1bb", &[Key::NewLine, Key::WordLeft]);
        check(
            b"\x1b[200~one\r\ntwo\x1b[A\x1b[201~x",
            &[Key::Paste("one\ntwo\u{1b}[A".to_owned()), Key::Char('x')],
        );
    }

    #[test]
    fn what_is_no_key_is_dropped_and_the_next_one_is_found() {
        check(b"\xffa\xc3(b", &[Key::Char('a'), Key::Char('('), Key::Char('b')]);
        check(b"\x1b[99;99Za", &[Key::Char('a')]);
    }

    #[test]
    fn an_escape_alone_is_a_key_once_nothing_follows() {
        let mut decoder = KeyDecoder::default();
        assert_eq!(decoder.feed(b"\x1b"), []);
        assert!(decoder.is_in_doubt());
        assert_eq!(decoder.settle(), [Key::Escape]);
        assert_eq!(decoder.feed(b"x"), [Key::Char('x')]);
        assert!(!decoder.is_in_doubt());
        // In the middle of a paste nothing is in doubt, however long it takes.
        assert_eq!(decoder.feed(b"\x1b[200~slow"), []);
        assert!(!decoder.is_in_doubt());
        assert_eq!(decoder.settle(), []);
        assert_eq!(decoder.feed(b" paste\x1b[201~"), [Key::Paste("slow paste".to_owned())]);
    }

    #[test]
    fn nothing_of_a_paste_that_is_too_long_is_taken_for_keys() {
        let mut decoder = KeyDecoder::default();
        let line = b"rm everything\r";
        let mut keys = decoder.feed(PASTE_BEGIN);
        for _ in 0..2 * PASTE_BYTES_MAX / line.len() {
            keys.extend(decoder.feed(line));
            assert!(decoder.bytes.len() < PASTE_END.len());
        }
        assert_eq!(keys, []);
        for byte in PASTE_END {
            keys.extend(decoder.feed(&[*byte]));
        }
        keys.extend(decoder.feed(b"x\x1b[200~y\x1b[201~"));
        let [Key::Paste(first), rest @ ..] = &keys[..] else { panic!("{} keys", keys.len()) };
        assert_eq!(first.len(), PASTE_BYTES_MAX);
        assert_eq!(rest, [Key::Char('x'), Key::Paste("y".to_owned())]);
    }

    #[test]
    fn a_sequence_without_end_does_not_grow_endlessly() {
        let mut decoder = KeyDecoder::default();
        decoder.feed(b"\x1b[");
        for _ in 0..100 {
            decoder.feed(b"1;");
        }
        assert!(decoder.bytes.len() <= SEQUENCE_BYTES_MAX + 2);
        assert_eq!(decoder.feed(b"mx").last(), Some(&Key::Char('x')));
    }
}
