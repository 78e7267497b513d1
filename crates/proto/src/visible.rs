//! Text of strangers, so that people see all of it.
//!
//! Owns: which characters steer a terminal or hide, and how they are shown instead. Never: writing, or what is a terminal.
//!
//! A character is hidden when it moves the cursor, changes the order or the look of other characters, or has no width of its
//! own: controls (C0, DEL, C1), line separators, bidirectional controls, zero-width and other format characters, fillers, variation selectors,
//! and tag characters. Joiners and selectors that make up an emoji are not hidden: they are seen in it.

use std::borrow::Cow;
use std::fmt::Write;

/// The longest colour sequence that passes. Longer ones are no colours.
const SGR_BYTES_MAX: usize = 48;
const ESCAPE: char = '\x1b';
const RESET: &str = "\x1b[0m";
const JOINER: char = '\u{200d}';

/// Whether a character must not reach a terminal as it is. Line ends and tabs count, too.
pub fn is_hidden(letter: char) -> bool {
    matches!(letter,
        '\0'..='\x1f' | '\x7f'..='\u{9f}'
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
        | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// The text with every hidden character written out, as in `\x1b` or `\u{202e}`. Lines and tabs stay; `\r\n` ends a line.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !needs_change(text, |letter| matches!(letter, '\n' | '\t')) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    push_visible(&mut out, text);
    out.into()
}

/// The same on one line: line ends and tabs are spaces, so that no text looks like two.
pub fn visible_line(text: &str) -> Cow<'_, str> {
    if !needs_change(text, |_| false) {
        return text.into();
    }
    let flat = text.replace("\r\n", " ").replace(['\n', '\t'], " ");
    visible(&flat).into_owned().into()
}

/// JSON with every hidden character in its strings as `\u…`: it means the same.
pub fn visible_json(json: &str) -> Cow<'_, str> {
    if !needs_change(json, |letter| matches!(letter, '\n' | '\t' | '\r')) {
        return json.into();
    }
    let mut out = String::with_capacity(json.len() + 16);
    for letter in json.chars() {
        // Between strings JSON has only line ends and tabs, and inside strings both are escaped.
        if !is_hidden(letter) || matches!(letter, '\n' | '\t' | '\r') {
            out.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            push(&mut out, format_args!("\\u{unit:04x}"));
        }
    }
    out.into()
}

fn needs_change(text: &str, stays: impl Fn(char) -> bool) -> bool {
    // Most text is plain, and most of it ASCII.
    text.bytes().any(|byte| !(b' '..0x7f).contains(&byte))
        && text.chars().any(|letter| is_hidden(letter) && !stays(letter))
}

fn push_visible(out: &mut String, text: &str) {
    let mut before = '\0';
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let next = letters.peek().copied();
        match letter {
            '\n' | '\t' => out.push(letter),
            '\r' if next == Some('\n') => {}
            _seen if !is_hidden(letter) || is_part_of_emoji(before, letter, next) => out.push(letter),
            _hidden => push_escaped(out, letter),
        }
        before = letter;
    }
}

fn push_escaped(out: &mut String, letter: char) {
    match letter {
        '\r' => out.push_str("\\r"),
        '\0'..='\x7f' => push(out, format_args!("\\x{:02x}", u32::from(letter))),
        _other => push(out, format_args!("\\u{{{:x}}}", u32::from(letter))),
    }
}

fn push(out: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    if out.write_fmt(words).is_err() {}
}

/// Whether a joiner or a selector is seen, because it makes one picture of those around it.
fn is_part_of_emoji(before: char, letter: char, next: Option<char>) -> bool {
    match letter {
        '\u{fe0e}' | '\u{fe0f}' => {
            is_picture(before) || matches!((before, next), ('0'..='9' | '#' | '*', Some('\u{20e3}')))
        }
        JOINER => (is_picture(before) || before == '\u{fe0f}') && next.is_some_and(is_picture),
        _other => false,
    }
}

fn is_picture(letter: char) -> bool {
    matches!(letter, '\u{203c}' | '\u{2049}' | '\u{2122}' | '\u{2139}' | '\u{2194}'..='\u{21aa}' | '\u{231a}'..='\u{23ff}'
        | '\u{24c2}' | '\u{25aa}'..='\u{27bf}' | '\u{2934}' | '\u{2935}' | '\u{2b05}'..='\u{2b55}' | '\u{3030}' | '\u{303d}'
        | '\u{3297}' | '\u{3299}' | '\u{1f000}'..='\u{1faff}')
}

/// How colours are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    Pass,
    /// They are left out, as people ask for with `NO_COLOR`.
    Drop,
}

/// Output of a program on its way to a terminal: colours may pass, everything else that is hidden is written out.
///
/// Text comes in parts, and a sequence may be cut anywhere.
#[derive(Debug)]
pub struct ColourFilter {
    colours: Colours,
    /// A sequence whose end is to come.
    begun: String,
    /// Whether a colour is on.
    is_on: bool,
}

impl ColourFilter {
    pub fn new(colours: Colours) -> ColourFilter {
        ColourFilter { colours, begun: String::new(), is_on: false }
    }

    /// What may be shown of the text so far.
    pub fn feed(&mut self, text: &str) -> String {
        let text =
            if self.begun.is_empty() { text.to_owned() } else { std::mem::take(&mut self.begun) + text };
        let mut out = String::with_capacity(text.len());
        let mut rest = text.as_str();
        // A line end may be cut in two.
        if let Some(whole) = rest.strip_suffix('\r') {
            (rest, self.begun) = (whole, "\r".to_owned());
        }
        while let Some(at) = rest.find(ESCAPE) {
            push_visible(&mut out, &rest[..at]);
            rest = &rest[at..];
            match sequence(rest) {
                Sequence::Colour(len) => {
                    self.pass(&mut out, &rest[..len]);
                    rest = &rest[len..];
                }
                Sequence::Cut => {
                    self.begun.insert_str(0, rest);
                    return out;
                }
                Sequence::Other => {
                    push_escaped(&mut out, ESCAPE);
                    rest = &rest[ESCAPE.len_utf8()..];
                }
            }
        }
        push_visible(&mut out, rest);
        out
    }

    /// What is left, and the end of a colour that is on.
    pub fn finish(&mut self) -> String {
        let mut out = String::new();
        push_visible(&mut out, &std::mem::take(&mut self.begun));
        if std::mem::take(&mut self.is_on) {
            out.push_str(RESET);
        }
        out
    }

    fn pass(&mut self, out: &mut String, sequence: &str) {
        if self.colours == Colours::Drop {
            return;
        }
        self.is_on = !matches!(sequence, RESET | "\x1b[m");
        out.push_str(sequence);
    }
}

enum Sequence {
    /// A colour sequence of this many bytes.
    Colour(usize),
    /// The beginning of what may be one.
    Cut,
    Other,
}

/// The sequence at the start of a text that begins with an escape.
fn sequence(text: &str) -> Sequence {
    let bytes = text.as_bytes();
    match bytes.get(1) {
        None => return Sequence::Cut,
        Some(b'[') => {}
        Some(_) => return Sequence::Other,
    }
    let within = &bytes[2..bytes.len().min(SGR_BYTES_MAX)];
    match within.iter().position(|byte| !(byte.is_ascii_digit() || matches!(byte, b';' | b':'))) {
        Some(end) if within[end] == b'm' && !conceals(&text[2..2 + end]) => Sequence::Colour(2 + end + 1),
        Some(_) => Sequence::Other,
        None if bytes.len() < SGR_BYTES_MAX => Sequence::Cut,
        None => Sequence::Other,
    }
}

/// Whether one of the parameters hides text. An 8 that chooses a colour does not.
fn conceals(parameters: &str) -> bool {
    let mut parameters = parameters.split([';', ':']).map(|number| number.parse::<u32>().unwrap_or(0));
    while let Some(parameter) = parameters.next() {
        match parameter {
            8 => return true,
            38 | 48 | 58 => match parameters.next() {
                Some(5) => drop(parameters.next()),
                Some(2) => drop(parameters.by_ref().take(3).count()),
                Some(_) | None => {}
            },
            _other => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_or_hides_is_written_out_and_lines_and_letters_stay() {
        assert_eq!(visible("a\x1b[31mb\tc\nd\u{9b}é\r\n\r\x7f"), "a\\x1b[31mb\tc\nd\\u{9b}é\n\\r\\x7f");
        assert_eq!(visible("host:\u{202e}hs\u{202c} \u{2066}x"), "host:\\u{202e}hs\\u{202c} \\u{2066}x");
        assert_eq!(
            visible("a\u{200b}b\u{e0041}c\u{feff}\u{2028}"),
            "a\\u{200b}b\\u{e0041}c\\u{feff}\\u{2028}"
        );
        assert_eq!(visible("plain é 日本\n"), "plain é 日本\n");
        assert!(matches!(visible("plain é"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_makes_up_an_emoji_stays_and_the_same_elsewhere_does_not() {
        for whole in
            ["\u{1f469}\u{200d}\u{1f4bb} שלום", "\u{2764}\u{fe0f}\u{200d}\u{1f525}", "1\u{fe0f}\u{20e3}"]
        {
            assert_eq!(visible(whole), whole);
        }
        assert_eq!(visible("a\u{200d}b\u{fe0f}1\u{fe0f}"), "a\\u{200d}b\\u{fe0f}1\\u{fe0f}");
        assert_eq!(visible("\u{1f469}\u{200d}x"), "\u{1f469}\\u{200d}x");
    }

    #[test]
    fn one_line_stays_one() {
        assert_eq!(visible_line("a\nhint: b\tc\r\nd\re\u{85}f"), "a hint: b c d\\re\\u{85}f");
        assert_eq!(visible_line("plain"), "plain");
    }

    #[test]
    fn json_means_the_same_and_has_nothing_hidden() {
        let value = serde_json::json!({"a\u{202e}": "\x1b\u{9b}\u{7f}\u{e0041}\u{200d}\n", "b": ["é"]});
        for json in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
            let shown = visible_json(&json);
            assert!(!shown.chars().any(|letter| is_hidden(letter) && letter != '\n'), "{shown}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
        }
    }

    #[test]
    fn colours_pass_and_nothing_else_wherever_the_text_is_cut() {
        let text = "a\x1b[1;31mred\x1b[0m\x1b[2J\x1b]0;title\x07\x1b[38;5;8mx\x1b[8mhid\r\nend\ry\x1b[m\x1b[38:2:1:2:3mz";
        let shown = "a\x1b[1;31mred\x1b[0m\\x1b[2J\\x1b]0;title\\x07\x1b[38;5;8mx\\x1b[8mhid\nend\\ry\x1b[m\x1b[38:2:1:2:3mz\x1b[0m";
        for cut in 0..=text.len() {
            let mut output = ColourFilter::new(Colours::Pass);
            let whole = output.feed(&text[..cut]) + &output.feed(&text[cut..]) + &output.finish();
            assert_eq!(whole, shown, "cut at {cut}");
        }
        let mut plain = ColourFilter::new(Colours::Drop);
        assert_eq!(plain.feed("\x1b[31mred\x1b[0m\x1b[") + &plain.finish(), "red\\x1b[");
        let mut long = ColourFilter::new(Colours::Pass);
        let endless = format!("\x1b[{}", "1;".repeat(100));
        assert!(long.feed(&endless).starts_with("\\x1b[1;1"));
    }
}
