//! The two outputs: data on stdout, messages on stderr.
//!
//! Owns: colour, `--quiet`, and which output a text belongs to. Never: the text, or escaping (see `screen`).

use std::borrow::Cow;
use std::cell::Cell;

use lodge_proto::visible::Colours;
use serde::Serialize;

use crate::failure::CommandFailure;
use crate::render::StatusColours;
use crate::screen::{self, Ink, TerminalStream, painted};

/// How to speak on stderr, and how to print on stdout.
#[derive(Debug)]
pub(crate) struct Words {
    pub quiet: bool,
    pub json: bool,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    colour: bool,
    dumb: bool,
    /// Whether the current line of stdout has text.
    line_open: Cell<bool>,
}

impl Words {
    pub(crate) fn new(quiet: bool, json: bool) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Words {
            quiet,
            json,
            stdout_is_terminal: TerminalStream::Stdout.is_terminal(),
            stderr_is_terminal: TerminalStream::Stderr.is_terminal(),
            colour: colours() == Colours::Pass,
            dumb,
            line_open: Cell::new(false),
        }
    }

    /// Something worth knowing; not with `-q`.
    pub(crate) fn print_note(&self, line: &str) {
        if !self.quiet {
            self.print_message(line);
        }
    }

    /// One line on stderr, also with `-q`. On a terminal it does not run into an open line of the answer.
    pub(crate) fn print_message(&self, line: &str) {
        let one_screen = self.stdout_is_terminal && self.stderr_is_terminal;
        let apart = one_screen && self.line_open.take();
        print_message(&format!("{}{line}", if apart { "\n" } else { "" }));
    }

    /// Like `say`, and set back from the data.
    pub(crate) fn print_dimmed_note(&self, line: &str) {
        self.print_note(&self.dim(line));
    }

    /// Progress: only for a person who watches.
    pub(crate) fn progress(&self, line: &str) {
        if self.watched() {
            self.print_message(&self.dim(line));
        }
    }

    /// Whether a user watches stderr and wants messages.
    pub(crate) fn watched(&self) -> bool {
        self.stderr_is_terminal && !self.quiet
    }

    /// Whether stderr can be redrawn, and whether in colour.
    pub(crate) fn canvas(&self) -> Canvas {
        match (self.stderr_is_terminal && !self.dumb, self.colour) {
            (false, _) => Canvas::Lines,
            (true, false) => Canvas::Plain,
            (true, true) => Canvas::Coloured,
        }
    }

    fn dim<'a>(&self, line: &'a str) -> Cow<'a, str> {
        if self.stderr_is_terminal && self.colour { painted(Ink::Dim, line).into() } else { line.into() }
    }

    /// Whether statuses in tables are coloured.
    pub(crate) fn status_colours(&self) -> StatusColours {
        if self.stdout_is_terminal && self.colour { StatusColours::On } else { StatusColours::Off }
    }

    /// A heading on stdout.
    pub(crate) fn bold<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.stdout_is_terminal && self.colour { painted(Ink::Bold, text).into() } else { text.into() }
    }

    /// A line on stdout about what is there, gone or other than before.
    pub(crate) fn marked(&self, mark: ChangeMark, text: &str) -> String {
        let (sign, ink) = match mark {
            ChangeMark::New => ('+', Ink::Green),
            ChangeMark::Gone => ('-', Ink::Red),
            ChangeMark::Changed => ('~', Ink::Yellow),
        };
        let line = format!("{sign} {text}");
        let line = line.trim_end();
        if self.stdout_is_terminal && self.colour { painted(ink, line) } else { line.to_owned() }
    }

    pub(crate) fn colours(&self) -> Colours {
        if self.colour { Colours::Pass } else { Colours::Drop }
    }

    pub(crate) fn stdout_is_terminal(&self) -> bool {
        self.stdout_is_terminal
    }

    /// How wide the terminal is, if stdout is one.
    pub(crate) fn columns(&self) -> Option<usize> {
        self.stdout_is_terminal.then(columns)
    }

    /// Prints a part of an answer, which may end in the middle of a line.
    pub(crate) fn part(&self, bytes: &[u8]) -> Result<(), CommandFailure> {
        if let Some(last) = bytes.last() {
            self.line_open.set(*last != b'\n');
        }
        screen::write_bytes(TerminalStream::Stdout, bytes).map_err(CommandFailure::output)
    }

    /// Ends the current line of the answer, if it has text.
    pub(crate) fn end_line(&self) -> Result<(), CommandFailure> {
        if self.line_open.take() { put("\n") } else { Ok(()) }
    }

    /// Prints one thing as JSON.
    pub(crate) fn json<T: Serialize>(&self, thing: &T) -> Result<(), CommandFailure> {
        let text = serde_json::to_string_pretty(thing).map_err(unencodable)?;
        put_json(&format!("{text}\n"))
    }

    /// Prints one line of JSON Lines.
    pub(crate) fn json_line<T: Serialize>(&self, thing: &T) -> Result<(), CommandFailure> {
        let text = serde_json::to_string(thing).map_err(unencodable)?;
        put_json(&format!("{text}\n"))
    }
}

fn unencodable(cause: serde_json::Error) -> CommandFailure {
    CommandFailure::refused("could not write the output").because(cause)
}

/// Writes to stdout at once.
pub(crate) fn put(text: &str) -> Result<(), CommandFailure> {
    screen::write(TerminalStream::Stdout, text).map_err(CommandFailure::output)
}

/// Writes JSON, or a part of it, to stdout at once.
pub(crate) fn put_json(text: &str) -> Result<(), CommandFailure> {
    screen::write_json(text).map_err(CommandFailure::output)
}

/// Whether people want colours.
pub(crate) fn colours() -> Colours {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    if unwanted || dumb { Colours::Drop } else { Colours::Pass }
}

/// One line on stderr. A closed stderr is no reason to stop.
pub(crate) fn print_message(line: &str) {
    drop(screen::write(TerminalStream::Stderr, &format!("{line}\n")));
}

/// Words that wait for something to be typed behind them.
pub(crate) fn prompt_for(words: &str) {
    drop(screen::write(TerminalStream::Stderr, words));
}

/// The mark of a changed item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeMark {
    New,
    Gone,
    Changed,
}

/// What stderr is to draw on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Canvas {
    /// Lines go there one after the other, and stay.
    Lines,
    Plain,
    Coloured,
}

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TerminalSize {
    pub columns: usize,
    pub rows: usize,
}

impl TerminalSize {
    pub(crate) fn of_stderr() -> TerminalSize {
        TerminalSize::of(libc::STDERR_FILENO)
    }

    fn of(terminal: libc::c_int) -> TerminalSize {
        const USUAL: TerminalSize = TerminalSize { columns: 80, rows: 24 };
        // SAFETY: `winsize` is plain data, for which all zeroes are a value; the kernel fills it.
        let mut size: libc::winsize = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live `winsize`, which is what this request writes.
        let asked = unsafe { libc::ioctl(terminal, libc::TIOCGWINSZ, &raw mut size) };
        match (asked, usize::from(size.ws_col), usize::from(size.ws_row)) {
            (0, columns @ 8.., 0) => TerminalSize { columns, ..USUAL },
            (0, columns @ 8.., rows) => TerminalSize { columns, rows },
            (_, _, _) => USUAL,
        }
    }
}

/// How wide the terminal on stdout is.
pub(crate) fn columns() -> usize {
    TerminalSize::of(libc::STDOUT_FILENO).columns
}

/// While it lives, the terminal shows nothing of what is typed.
#[derive(Debug)]
pub(crate) struct HiddenInput {
    before: Option<libc::termios>,
}

impl HiddenInput {
    pub(crate) fn begin() -> Self {
        // SAFETY: `termios` is plain data, for which all zeroes are a value; the kernel fills it.
        let mut now: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a live `termios`, and descriptor 0 is only asked.
        if unsafe { libc::tcgetattr(0, &raw mut now) } != 0 {
            return HiddenInput { before: None };
        }
        let before = Some(now);
        now.c_lflag &= !libc::ECHO;
        // SAFETY: as above; it changes how the terminal echoes, and nothing in memory.
        unsafe { libc::tcsetattr(0, libc::TCSANOW, &raw const now) };
        HiddenInput { before }
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: restores the settings that `tcgetattr` returned.
            unsafe { libc::tcsetattr(0, libc::TCSANOW, &raw const before) };
        }
    }
}
