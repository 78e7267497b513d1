//! The terminal of a chat: its mode, its keys, and the input line.
//!
//! Owns: drawing and removing the input line. Never: its text (see `editor`).

use std::io::Read;
use std::time::Duration;

use lodge_proto::visible::visible;
use tokio::sync::mpsc;
use unicode_width::UnicodeWidthChar;

use super::editor::Editor;
use super::keys::{Key, KeyDecoder};
use crate::screen::{ScreenOp, TerminalStream, draw};
use crate::words::columns;

const PROMPT: &str = "› ";
/// Keys that wait to be looked at.
const KEYS_MAX: usize = 256;
/// How long the rest of a sequence may be on its way before an Escape counts as the key.
const ESCAPE_PAUSE: Duration = Duration::from_millis(40);

/// While it lives, keys are read one by one and not echoed; output is unchanged, and Ctrl-Z stops the program.
#[derive(Debug)]
pub(super) struct Terminal {
    before: libc::termios,
    /// The row of the drawn text that has the cursor.
    row: usize,
    bytes: mpsc::Receiver<Vec<u8>>,
    decoder: KeyDecoder,
    keys: std::collections::VecDeque<Key>,
}

impl Terminal {
    /// Nothing when stdin is no terminal, or stdout is none: what is drawn is not data.
    pub(super) fn open() -> Option<Terminal> {
        let before = attributes().filter(|_| TerminalStream::Stdout.is_terminal())?;
        let (sender, bytes) = mpsc::channel(KEYS_MAX);
        // A thread, because reading a terminal cannot be called off. It ends with the program.
        std::thread::spawn(move || read_keys(&sender));
        let terminal =
            Terminal { before, row: 0, bytes, decoder: KeyDecoder::default(), keys: Default::default() };
        terminal.enter();
        Some(terminal)
    }

    /// Also after the program was stopped and continued: the shell has restored its own mode.
    pub(super) fn enter(&self) {
        let mut mode = self.before;
        mode.c_lflag &= !(libc::ICANON | libc::ECHO);
        // Ctrl-C is a key here; Ctrl-Z stays a signal.
        mode.c_cc[libc::VINTR] = libc::_POSIX_VDISABLE;
        mode.c_cc[libc::VMIN] = 1;
        mode.c_cc[libc::VTIME] = 0;
        set(&mode);
        draw(TerminalStream::Stdout, &[ScreenOp::PasteMarks(true)]);
    }

    /// The next key; nothing when the terminal is gone.
    pub(super) async fn key(&mut self) -> Option<Key> {
        loop {
            if let Some(key) = self.keys.pop_front() {
                return Some(key);
            }
            let more = if self.decoder.is_in_doubt() {
                match tokio::time::timeout(ESCAPE_PAUSE, self.bytes.recv()).await {
                    Ok(bytes) => bytes,
                    Err(_) => {
                        self.keys.extend(self.decoder.settle());
                        continue;
                    }
                }
            } else {
                self.bytes.recv().await
            };
            self.keys.extend(self.decoder.feed(&more?));
        }
    }

    /// Draws the line in place of what was drawn of it before.
    pub(super) fn draw(&mut self, editor: &Editor) {
        let width = columns();
        // What was pasted may have anything in it; places are counted in what is shown of it.
        let before = format!("{PROMPT}{}", visible(&editor.before_cursor()));
        let whole = format!("{PROMPT}{}", visible(&editor.text()));
        let (cursor, end) = (place(&before, width), place(&whole, width));
        let mut pieces = self.back().to_vec();
        pieces.push(ScreenOp::Text(&whole));
        // At the right edge the terminal waits with the next row; it is drawn, so that rows can be counted.
        if end.column == 0 && end.row > 0 && !whole.ends_with('\n') {
            pieces.push(ScreenOp::Wrap);
        }
        pieces.extend([
            ScreenOp::Up(end.row.saturating_sub(cursor.row)),
            ScreenOp::Return,
            ScreenOp::Right(cursor.column),
        ]);
        self.row = cursor.row;
        draw(TerminalStream::Stdout, &pieces);
    }

    /// Leaves the line unchanged and moves below it.
    pub(super) fn leave_line(&mut self, text: &str) {
        let whole = format!("{PROMPT}{text}\n");
        let mut pieces = self.back().to_vec();
        pieces.push(ScreenOp::Text(&whole));
        self.row = 0;
        draw(TerminalStream::Stdout, &pieces);
    }

    /// Takes away what was drawn of the line.
    pub(super) fn erase(&mut self) {
        draw(TerminalStream::Stdout, &self.back());
        self.row = 0;
    }

    pub(super) fn clear(&mut self) {
        self.row = 0;
        draw(TerminalStream::Stdout, &[ScreenOp::ClearScreen]);
    }

    /// To the first row of what was drawn, and everything from there on cleared.
    fn back(&self) -> [ScreenOp<'static>; 3] {
        [ScreenOp::Up(self.row), ScreenOp::Return, ScreenOp::ClearBelow]
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        draw(TerminalStream::Stdout, &[ScreenOp::PasteMarks(false)]);
        set(&self.before);
    }
}

#[derive(Debug, PartialEq, Eq)]
struct CellPosition {
    row: usize,
    column: usize,
}

/// The position of the cursor after a text that began in the first column.
fn place(text: &str, width: usize) -> CellPosition {
    let mut place = CellPosition { row: 0, column: 0 };
    for letter in text.chars() {
        if letter == '\n' {
            place = CellPosition { row: place.row + 1, column: 0 };
            continue;
        }
        let cells = letter.width().unwrap_or(0);
        // A wide letter that does not fit goes to the next row whole.
        if place.column + cells > width {
            place = CellPosition { row: place.row + 1, column: 0 };
        }
        place.column += cells;
        if place.column == width {
            place = CellPosition { row: place.row + 1, column: 0 };
        }
    }
    place
}

fn read_keys(sender: &mpsc::Sender<Vec<u8>>) {
    let mut stdin = std::io::stdin().lock();
    let mut buffer = [0_u8; 4096];
    loop {
        match stdin.read(&mut buffer) {
            Ok(0) => return,
            Ok(read) => {
                if sender.blocking_send(buffer[..read].to_vec()).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn attributes() -> Option<libc::termios> {
    // SAFETY: `termios` is plain data, for which all zeroes are a value; the kernel fills it.
    let mut now: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live `termios`, and descriptor 0 is only asked.
    (unsafe { libc::tcgetattr(0, &raw mut now) } == 0).then_some(now)
}

fn set(mode: &libc::termios) {
    // SAFETY: the pointer is to a live `termios`; it changes the terminal, and nothing in memory.
    unsafe { libc::tcsetattr(0, libc::TCSADRAIN, mode) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cursor_is_counted_through_wraps_wide_letters_and_line_ends() {
        let check =
            |text: &str, row, column| assert_eq!(place(text, 4), CellPosition { row, column }, "{text:?}");
        check("", 0, 0);
        check("abc", 0, 3);
        check("abcd", 1, 0);
        check("abcde", 1, 1);
        check("ab\nc", 1, 1);
        check("日本", 1, 0);
        check("a日本", 1, 2);
        check("e\u{301}", 0, 1);
    }
}
