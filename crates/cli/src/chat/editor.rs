//! The line editor and its history.
//!
//! Owns: the text, the cursor, the history. Never: the terminal. Pure.

use super::keys::Key;

/// Lines of history.
const HISTORY_MAX: usize = 500;

/// What a key led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum EditorOutcome {
    /// The line changed, or may have.
    Edited,
    /// This was sent.
    Sent(String),
    /// Ctrl-C on an empty line.
    Cancelled,
    /// Ctrl-D on an empty line.
    Ended,
    ClearScreen,
}

#[derive(Debug, Default)]
pub(super) struct Editor {
    text: Vec<char>,
    cursor: usize,
    history: Vec<String>,
    /// Which line of the history is shown, and what was typed before it was.
    recalled: Option<(usize, Vec<char>)>,
}

impl Editor {
    pub(super) fn text(&self) -> String {
        self.text.iter().collect()
    }

    /// The text before the cursor.
    pub(super) fn before_cursor(&self) -> String {
        self.text[..self.cursor].iter().collect()
    }

    pub(super) fn apply_key(&mut self, key: Key) -> EditorOutcome {
        match key {
            Key::Char(letter) => self.insert([letter]),
            Key::NewLine => self.insert(['\n']),
            Key::Tab => self.insert([' ', ' ']),
            Key::Paste(text) => {
                let shown = text.chars().filter(|letter| *letter == '\n' || !letter.is_control());
                self.insert(shown.collect::<Vec<_>>());
            }
            Key::Enter => return self.send(),
            Key::Backspace | Key::Ctrl('h') => {
                if self.cursor > 0 {
                    self.cut(self.cursor - 1, self.cursor);
                }
            }
            Key::Ctrl('d') if self.text.is_empty() => return EditorOutcome::Ended,
            Key::Delete | Key::Ctrl('d') => self.cut(self.cursor, (self.cursor + 1).min(self.text.len())),
            Key::Ctrl('c') if self.text.is_empty() => return EditorOutcome::Cancelled,
            Key::Ctrl('c') => self.set(Vec::new()),
            Key::Ctrl('l') => return EditorOutcome::ClearScreen,
            Key::Left | Key::Ctrl('b') => self.cursor = self.cursor.saturating_sub(1),
            Key::Right | Key::Ctrl('f') => self.cursor = (self.cursor + 1).min(self.text.len()),
            Key::WordLeft => self.cursor = self.word_start(),
            Key::WordRight => self.cursor = self.word_end(),
            Key::Home | Key::Ctrl('a') => self.cursor = 0,
            Key::End | Key::Ctrl('e') => self.cursor = self.text.len(),
            Key::Ctrl('u') => self.cut(0, self.cursor),
            Key::Ctrl('k') => self.cut(self.cursor, self.text.len()),
            Key::Ctrl('w') => self.cut(self.word_start(), self.cursor),
            Key::Up | Key::Ctrl('p') => self.older(),
            Key::Down | Key::Ctrl('n') => self.newer(),
            Key::Escape | Key::Ctrl(_) => {}
        }
        EditorOutcome::Edited
    }

    fn insert(&mut self, letters: impl IntoIterator<Item = char>) {
        let before = self.text.len();
        self.text.splice(self.cursor..self.cursor, letters);
        self.cursor += self.text.len() - before;
    }

    fn cut(&mut self, from: usize, to: usize) {
        self.text.drain(from..to);
        self.cursor = from;
    }

    fn set(&mut self, text: Vec<char>) {
        self.cursor = text.len();
        self.text = text;
    }

    fn send(&mut self) -> EditorOutcome {
        let line = self.text();
        self.set(Vec::new());
        self.recalled = None;
        if !line.trim().is_empty() && self.history.last() != Some(&line) {
            if self.history.len() == HISTORY_MAX {
                self.history.remove(0);
            }
            self.history.push(line.clone());
        }
        EditorOutcome::Sent(line)
    }

    fn older(&mut self) {
        let shown = match &self.recalled {
            Some((at, _)) => *at,
            None => self.history.len(),
        };
        let Some(at) = shown.checked_sub(1) else { return };
        let typed = match self.recalled.take() {
            Some((_, typed)) => typed,
            None => std::mem::take(&mut self.text),
        };
        self.set(self.history[at].chars().collect());
        self.recalled = Some((at, typed));
    }

    fn newer(&mut self) {
        let Some((at, typed)) = self.recalled.take() else { return };
        match self.history.get(at + 1) {
            Some(line) => {
                self.set(line.chars().collect());
                self.recalled = Some((at + 1, typed));
            }
            None => self.set(typed),
        }
    }

    fn word_start(&self) -> usize {
        let before = &self.text[..self.cursor];
        let word = before.iter().rposition(|letter| !letter.is_whitespace()).map_or(0, |last| last + 1);
        before[..word].iter().rposition(|letter| letter.is_whitespace()).map_or(0, |space| space + 1)
    }

    fn word_end(&self) -> usize {
        let after = &self.text[self.cursor..];
        let skipped = after.iter().take_while(|letter| letter.is_whitespace()).count();
        self.cursor + skipped + after[skipped..].iter().take_while(|letter| !letter.is_whitespace()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(text: &str) -> Editor {
        let mut editor = Editor::default();
        for letter in text.chars() {
            editor.apply_key(Key::Char(letter));
        }
        editor
    }

    #[track_caller]
    fn check(text: &str, keys: &[Key], expected: &str) {
        let mut editor = typed(text);
        for key in keys {
            editor.apply_key(key.clone());
        }
        // A bar shows the cursor.
        let (whole, before) = (editor.text(), editor.before_cursor());
        assert_eq!(format!("{before}|{}", &whole[before.len()..]), expected, "{text} {keys:?}");
    }

    #[test]
    fn keys_edit_where_the_cursor_stands() {
        check("née", &[Key::Left, Key::Backspace], "n|e");
        check("one two", &[Key::WordLeft, Key::Char('x')], "one x|two");
        check("one two ", &[Key::Ctrl('w')], "one |");
        check("one two", &[Key::Home, Key::WordRight, Key::Ctrl('k')], "one|");
        check("abc", &[Key::Left, Key::Ctrl('u')], "|c");
        check("abc", &[Key::Home, Key::Delete, Key::Backspace], "|bc");
        check("a", &[Key::Paste("x\ny\u{1b}[2J".into())], "ax\ny[2J|");
        check("a", &[Key::Right, Key::Right, Key::Delete], "a|");
    }

    #[test]
    fn what_was_typed_is_still_there_after_a_look_at_the_history() {
        let mut editor = typed("one");
        assert_eq!(editor.apply_key(Key::Enter), EditorOutcome::Sent("one".into()));
        for letter in "two".chars() {
            editor.apply_key(Key::Char(letter));
        }
        editor.apply_key(Key::Enter);
        editor.apply_key(Key::Char('d'));
        for (key, expected) in [
            (Key::Up, "two"),
            (Key::Up, "one"),
            (Key::Up, "one"),
            (Key::Down, "two"),
            (Key::Down, "d"),
            (Key::Down, "d"),
        ] {
            editor.apply_key(key.clone());
            assert_eq!(editor.text(), expected, "{key:?}");
        }
    }

    #[test]
    fn an_empty_line_is_left_by_ctrl_d_and_a_full_one_is_emptied_by_ctrl_c() {
        let mut editor = typed("x");
        assert_eq!(editor.apply_key(Key::Ctrl('c')), EditorOutcome::Edited);
        assert_eq!(editor.text(), "");
        assert_eq!(editor.apply_key(Key::Ctrl('c')), EditorOutcome::Cancelled);
        assert_eq!(editor.apply_key(Key::Ctrl('d')), EditorOutcome::Ended);
    }

    #[test]
    fn the_history_is_bounded_and_keeps_no_line_twice_in_a_row() {
        let mut editor = Editor::default();
        for number in 0..HISTORY_MAX + 10 {
            for _ in 0..2 {
                editor.apply_key(Key::Paste(number.to_string()));
                editor.apply_key(Key::Enter);
            }
        }
        assert_eq!(editor.history.len(), HISTORY_MAX);
        assert_eq!(editor.history[0], "10");
    }
}
