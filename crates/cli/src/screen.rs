//! The only module that writes to stdout and stderr.
//!
//! Owns: both streams, whether each is a terminal, and the escaping of control characters on a terminal, except those
//! that this program draws. Never: the text. A pipe or a file gets every byte unchanged.
//!
//! Clippy refuses other ways to write: see `clippy.toml` of this crate.

#![expect(clippy::disallowed_methods, reason = "this is the one place that writes")]

use std::borrow::Cow;
use std::collections::hash_map::RandomState;
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use lodge_proto::visible::{ColourFilter, Colours, visible, visible_json};

/// A letter for private use, with which a mark begins and ends.
const MARK: char = '\u{10fe01}';

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TerminalStream {
    Stdout,
    Stderr,
}

impl TerminalStream {
    pub(crate) fn is_terminal(self) -> bool {
        static TERMINALS: OnceLock<(bool, bool)> = OnceLock::new();
        let (stdout, stderr) =
            *TERMINALS.get_or_init(|| (io::stdout().is_terminal(), io::stderr().is_terminal()));
        match self {
            TerminalStream::Stdout => stdout,
            TerminalStream::Stderr => stderr,
        }
    }

    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            TerminalStream::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            TerminalStream::Stderr => io::stderr().lock().write_all(bytes),
        }
    }
}

/// How this program sets off a part of its own output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ink {
    Bold,
    Dim,
    Red,
    Green,
    Yellow,
}

impl Ink {
    const ALL: [Ink; 5] = [Ink::Bold, Ink::Dim, Ink::Red, Ink::Green, Ink::Yellow];

    fn number(self) -> u8 {
        match self {
            Ink::Bold => 1,
            Ink::Dim => 2,
            Ink::Red => 31,
            Ink::Green => 32,
            Ink::Yellow => 33,
        }
    }
}

/// The text in that ink, once [`write`] writes it to a terminal.
pub(crate) fn painted(ink: Ink, text: &str) -> String {
    let secret = secret();
    format!("{MARK}{secret}{:02}{MARK}{text}{MARK}{secret}00{MARK}", ink.number())
}

/// Distinguishes our marks from untrusted text, which cannot contain this secret.
fn secret() -> &'static str {
    static SECRET: OnceLock<String> = OnceLock::new();
    SECRET.get_or_init(|| {
        let random = || RandomState::new().build_hasher().finish();
        format!("{:016x}{:016x}", random(), random())
    })
}

/// Text, as the stream may show it.
pub(crate) fn write(stream: TerminalStream, text: &str) -> io::Result<()> {
    let shown = if stream.is_terminal() { inked(text) } else { text.into() };
    stream.write(shown.as_bytes())
}

/// Text that may be cut in the middle of a letter, which only a pipe can put together again.
pub(crate) fn write_bytes(stream: TerminalStream, bytes: &[u8]) -> io::Result<()> {
    if stream.is_terminal() { write(stream, &String::from_utf8_lossy(bytes)) } else { stream.write(bytes) }
}

/// JSON, which stays JSON.
pub(crate) fn write_json(text: &str) -> io::Result<()> {
    let shown = if TerminalStream::Stdout.is_terminal() { visible_json(text) } else { text.into() };
    TerminalStream::Stdout.write(shown.as_bytes())
}

/// The help of the command line, which is all our own.
pub(crate) fn write_help(plain: &str, coloured: &str, colours: Colours) -> io::Result<()> {
    let text = match (TerminalStream::Stdout.is_terminal(), colours) {
        (true, Colours::Pass) => {
            let mut help = ColourFilter::new(colours);
            help.feed(coloured) + &help.finish()
        }
        (true, Colours::Drop) | (false, _) => plain.to_owned(),
    };
    TerminalStream::Stdout.write(text.as_bytes())
}

/// Stdout for what is no text. None when it is a terminal.
pub(crate) fn binary() -> Option<impl Write> {
    (!TerminalStream::Stdout.is_terminal()).then(|| io::stdout().lock())
}

/// Our marks as a terminal knows them, and everything else visible.
fn inked(text: &str) -> Cow<'_, str> {
    if !text.contains(MARK) {
        return visible(text);
    }
    let open = format!("{MARK}{}", secret());
    let mut out = String::with_capacity(text.len());
    let mut parts = text.split(open.as_str());
    out.push_str(&visible(parts.next().unwrap_or_default()));
    for part in parts {
        let mark = part.split_once(MARK).filter(|(number, _)| is_ink(number));
        match mark {
            Some((number, text)) => {
                out.push_str(&format!("\x1b[{}m", number.trim_start_matches('0').parse::<u8>().unwrap_or(0)));
                out.push_str(&visible(text));
            }
            None => out.push_str(&visible(part)),
        }
    }
    out.into()
}

fn is_ink(number: &str) -> bool {
    number == "00" || Ink::ALL.iter().any(|ink| format!("{:02}", ink.number()) == number)
}

/// What is drawn on a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ScreenOp<'a> {
    Text(&'a str),
    Up(usize),
    Right(usize),
    /// To the first column.
    Return,
    /// A line end where the terminal waits with the next row.
    Wrap,
    ClearBelow,
    ClearLine,
    ClearScreen,
    PasteMarks(bool),
}

/// Draws at once. A terminal that is gone is noticed elsewhere.
pub(crate) fn draw(stream: TerminalStream, pieces: &[ScreenOp<'_>]) {
    let mut out = String::new();
    for piece in pieces {
        match piece {
            ScreenOp::Text(text) => out.push_str(&inked(text)),
            ScreenOp::Up(0) | ScreenOp::Right(0) => {}
            ScreenOp::Up(rows) => out.push_str(&format!("\x1b[{rows}A")),
            ScreenOp::Right(columns) => out.push_str(&format!("\x1b[{columns}C")),
            ScreenOp::Return => out.push('\r'),
            ScreenOp::Wrap => out.push_str(" \r"),
            ScreenOp::ClearBelow => out.push_str("\x1b[J"),
            ScreenOp::ClearLine => out.push_str("\x1b[2K"),
            ScreenOp::ClearScreen => out.push_str("\x1b[2J\x1b[H"),
            ScreenOp::PasteMarks(true) => out.push_str("\x1b[?2004h"),
            ScreenOp::PasteMarks(false) => out.push_str("\x1b[?2004l"),
        }
    }
    drop(stream.write(out.as_bytes()));
}

/// What a program wrote, on its way to a stream. A terminal gets its colours and nothing else that steers.
#[derive(Debug)]
pub(crate) struct ProgramOutput {
    to: TerminalStream,
    /// The beginning of a letter whose rest is in the next part.
    begun: Vec<u8>,
    coloured: ColourFilter,
}

impl ProgramOutput {
    pub(crate) fn new(to: TerminalStream, colours: Colours) -> ProgramOutput {
        ProgramOutput { to, begun: Vec::new(), coloured: ColourFilter::new(colours) }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.to.is_terminal() {
            return self.to.write(bytes);
        }
        self.begun.extend_from_slice(bytes);
        let whole = complete_chars(&self.begun);
        let rest = self.begun.split_off(whole);
        let text = String::from_utf8_lossy(&std::mem::replace(&mut self.begun, rest)).into_owned();
        self.to.write(self.coloured.feed(&text).as_bytes())
    }

    /// Writes what is left of a letter that will not be whole.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.begun);
        let text = self.coloured.feed(&String::from_utf8_lossy(&rest)) + &self.coloured.finish();
        self.to.write(text.as_bytes())
    }
}

/// How many bytes are there without a letter at the end that is only begun.
fn complete_chars(bytes: &[u8]) -> usize {
    const LETTER_BYTES_MAX: usize = 4;
    let from = bytes.len().saturating_sub(LETTER_BYTES_MAX);
    let begins = (from..bytes.len()).rev().find(|at| bytes[*at] & 0b1100_0000 != 0b1000_0000);
    let is_cut =
        |at: &usize| std::str::from_utf8(&bytes[*at..]).is_err_and(|error| error.error_len().is_none());
    begins.filter(is_cut).unwrap_or(bytes.len())
}

/// Whether stdout and stderr are the same terminal, file or pipe.
pub(crate) fn is_one_place() -> bool {
    let place = |descriptor: &dyn AsFd| {
        let file = File::from(descriptor.as_fd().try_clone_to_owned()?);
        file.metadata().map(|meta| (meta.dev(), meta.ino()))
    };
    match (place(&io::stdout()), place(&io::stderr())) {
        (Ok(stdout), Ok(stderr)) => stdout == stderr,
        (Ok(_) | Err(_), _) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_program_colours_its_words() {
        let text = format!("{} \x1b[31mnot {MARK}31{MARK}", painted(Ink::Bold, "yes\x1b[2J"));
        assert_eq!(inked(&text), format!("\x1b[1myes\\x1b[2J\x1b[0m \\x1b[31mnot {MARK}31{MARK}"));
        assert_eq!(inked("plain\n"), "plain\n");
        // A mark that was cut does nothing.
        let half = &painted(Ink::Red, "x")[..20];
        assert!(!inked(half).contains('\x1b'));
    }

    #[test]
    fn a_letter_that_is_cut_waits_for_its_rest() {
        let check = |bytes: &[u8], whole: usize| assert_eq!(complete_chars(bytes), whole, "{bytes:?}");
        check(b"", 0);
        check(b"abc", 3);
        check("é".as_bytes(), 2);
        check(&"aé".as_bytes()[..2], 1);
        check(&"€€".as_bytes()[..5], 3);
        check(&"a😀".as_bytes()[..4], 1);
        check("a😀".as_bytes(), 5);
        // What is no text is not waited with.
        check(&[0xff, 0xfe], 2);
        check(&[b'a', 0x80, 0x80, 0x80], 4);
    }
}
