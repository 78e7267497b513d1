//! Folds previews and durable text of one turn into printed text, each byte once.
//!
//! Owns: which bytes of which step were printed. Never: reading or writing. Pure.
//!
//! Events are complete and in order, previews are not. Only an event opens a step or an attempt. A preview beyond the
//! printed text waits until an event has filled the gap, and a text that contradicts the printed text starts over. A
//! new attempt at a step prints only the text beyond the previous attempt, as long as both are equal.

/// How much preview is kept beyond a gap. More previews are dropped: the events contain the bytes.
const AHEAD_BYTES_MAX: usize = 256 * 1024;

/// What to do, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FoldAction {
    Print(Vec<u8>),
    /// What was printed of this step is replaced by what follows.
    Restart,
    /// Another step's text follows.
    NewStep,
}

/// A model step's number and the attempt at it.
type StepAttempt = (u32, u32);

/// A part of a step's text.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepText<'a> {
    pub step: u32,
    pub attempt: u32,
    pub offset: u64,
    pub text: &'a str,
}

#[derive(Debug, Default)]
pub(crate) struct TextFold {
    /// The step and attempt whose text is being printed.
    open: Option<StepAttempt>,
    /// The event of the step does not name its attempt: the first text does.
    attempt_untold: bool,
    /// The text of the open attempt so far, which is on the screen.
    printed: Vec<u8>,
    /// What an earlier attempt at this step left on the screen, while the open one says the same and has not come as far.
    left: Vec<u8>,
    ahead: Option<DeferredText>,
    printed_earlier_step: bool,
}

/// Previews that stand beyond a hole, or belong to an attempt no event has opened yet.
#[derive(Debug)]
struct DeferredText {
    place: StepAttempt,
    offset: usize,
    bytes: Vec<u8>,
}

impl TextFold {
    /// An event says that this step begins.
    pub(crate) fn step_started(&mut self, step: u32, attempt: Option<u32>) -> Vec<FoldAction> {
        match attempt {
            Some(attempt) => self.step_restarted(step, attempt),
            None if self.open.is_some_and(|open| open.0 >= step) => Vec::new(),
            None => {
                let held =
                    self.ahead.as_ref().filter(|ahead| ahead.place.0 == step).map(|ahead| ahead.place.1);
                let actions = self.step_restarted(step, held.unwrap_or(0));
                self.attempt_untold = held.is_none();
                actions
            }
        }
    }

    /// An event says that the text of this step starts again.
    pub(crate) fn step_restarted(&mut self, step: u32, attempt: u32) -> Vec<FoldAction> {
        let mut actions = Vec::new();
        if self.open.is_none_or(|open| open < (step, attempt)) {
            self.enter((step, attempt), &mut actions);
            self.drain(&mut actions);
        }
        actions
    }

    /// Durable text: it opens its step when no other event has.
    pub(crate) fn durable(&mut self, piece: StepText<'_>) -> Vec<FoldAction> {
        let mut actions = Vec::new();
        let place = (piece.step, piece.attempt);
        self.learn_attempt(place);
        if self.open.is_some_and(|open| place < open) {
            return actions;
        }
        if self.open != Some(place) {
            self.enter(place, &mut actions);
        }
        self.place(usize_of(piece.offset), piece.text.as_bytes(), &mut actions);
        self.drain(&mut actions);
        actions
    }

    /// A preview: printed if it continues the open step, kept if it is early, dropped if it is late.
    pub(crate) fn preview(&mut self, piece: StepText<'_>) -> Vec<FoldAction> {
        let mut actions = Vec::new();
        let place = (piece.step, piece.attempt);
        self.learn_attempt(place);
        let offset = usize_of(piece.offset);
        let early = self.open.is_none_or(|open| open < place);
        if early || (self.open == Some(place) && offset > self.printed.len()) {
            self.hold(place, offset, piece.text.as_bytes());
        } else if self.open == Some(place) {
            self.place(offset, piece.text.as_bytes(), &mut actions);
        }
        actions
    }

    /// The open step's text is complete: excess text of an earlier attempt is removed.
    pub(crate) fn settle(&mut self) -> Vec<FoldAction> {
        if self.left.len() <= self.printed.len() {
            return Vec::new();
        }
        self.left.clear();
        let whole = self.printed.clone();
        if whole.is_empty() {
            vec![FoldAction::Restart]
        } else {
            vec![FoldAction::Restart, FoldAction::Print(whole)]
        }
    }

    fn learn_attempt(&mut self, place: StepAttempt) {
        if self.attempt_untold && self.open.is_some_and(|open| open.0 == place.0) {
            self.open = Some(place);
            self.attempt_untold = false;
        }
    }

    fn enter(&mut self, place: StepAttempt, actions: &mut Vec<FoldAction>) {
        let same_step = self.open.is_some_and(|open| open.0 == place.0);
        if same_step {
            if self.left.len() < self.printed.len() {
                self.left.clone_from(&self.printed);
            }
        } else {
            actions.extend(self.settle());
            self.left.clear();
            self.printed_earlier_step |= !self.printed.is_empty();
        }
        self.open = Some(place);
        self.attempt_untold = false;
        self.printed.clear();
        if self.ahead.as_ref().is_some_and(|ahead| ahead.place < place) {
            self.ahead = None;
        }
    }

    /// Prints what of `bytes` is new. A hole before it can only mean lost durable text; it is then dropped.
    fn place(&mut self, offset: usize, bytes: &[u8], actions: &mut Vec<FoldAction>) {
        let Some(known) = self.printed.get(offset..) else { return };
        let overlap = known.len().min(bytes.len());
        let fresh = if known[..overlap] == bytes[..overlap] {
            bytes[overlap..].to_vec()
        } else {
            actions.push(FoldAction::Restart);
            let mut whole = self.printed[..offset].to_vec();
            whole.extend_from_slice(bytes);
            self.printed.clear();
            self.left.clear();
            whole
        };
        if fresh.is_empty() {
            return;
        }
        if self.printed.is_empty() && std::mem::take(&mut self.printed_earlier_step) {
            actions.push(FoldAction::NewStep);
        }
        self.printed.extend_from_slice(&fresh);
        self.print_unseen(fresh, actions);
    }

    /// Prints `fresh`, the end of the text so far, unless an earlier attempt has put it on the screen already.
    fn print_unseen(&mut self, fresh: Vec<u8>, actions: &mut Vec<FoldAction>) {
        if self.left.is_empty() {
            return actions.push(FoldAction::Print(fresh));
        }
        if self.left.starts_with(&self.printed) {
            return;
        }
        let left = std::mem::take(&mut self.left);
        match self.printed.strip_prefix(left.as_slice()) {
            Some(rest) => actions.push(FoldAction::Print(rest.to_vec())),
            None => actions.extend([FoldAction::Restart, FoldAction::Print(self.printed.clone())]),
        }
    }

    fn hold(&mut self, place: StepAttempt, offset: usize, bytes: &[u8]) {
        match &mut self.ahead {
            Some(ahead) if ahead.place == place && ahead.offset + ahead.bytes.len() == offset => {
                if ahead.bytes.len() + bytes.len() <= AHEAD_BYTES_MAX {
                    ahead.bytes.extend_from_slice(bytes);
                }
            }
            _ => self.ahead = Some(DeferredText { place, offset, bytes: bytes.to_vec() }),
        }
    }

    /// Prints the kept previews once there is no gap before them.
    fn drain(&mut self, actions: &mut Vec<FoldAction>) {
        let fits =
            |ahead: &mut DeferredText| self.open == Some(ahead.place) && ahead.offset <= self.printed.len();
        if let Some(ahead) = self.ahead.take_if(fits) {
            self.place(ahead.offset, &ahead.bytes, actions);
        }
    }
}

fn usize_of(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(step: u32, attempt: u32, offset: u64, text: &str) -> StepText<'_> {
        StepText { step, attempt, offset, text }
    }

    fn print(text: &str) -> FoldAction {
        FoldAction::Print(text.as_bytes().to_vec())
    }

    fn opened() -> TextFold {
        let mut fold = TextFold::default();
        assert_eq!(fold.step_started(1, Some(1)), []);
        fold
    }

    #[test]
    fn previews_are_printed_as_they_come_and_the_event_adds_nothing() {
        let mut fold = opened();
        assert_eq!(fold.preview(piece(1, 1, 0, "hello ")), [print("hello ")]);
        assert_eq!(fold.preview(piece(1, 1, 6, "world")), [print("world")]);
        assert_eq!(fold.durable(piece(1, 1, 0, "hello world")), []);
    }

    #[test]
    fn a_preview_sent_twice_is_printed_once() {
        let mut fold = opened();
        assert_eq!(fold.preview(piece(1, 1, 0, "abc")), [print("abc")]);
        assert_eq!(fold.preview(piece(1, 1, 0, "abc")), []);
        assert_eq!(fold.preview(piece(1, 1, 1, "bcd")), [print("d")]);
    }

    #[test]
    fn a_hole_in_the_previews_is_filled_by_the_event_in_order() {
        let mut fold = opened();
        assert_eq!(fold.preview(piece(1, 1, 0, "ab")), [print("ab")]);
        assert_eq!(fold.preview(piece(1, 1, 5, "fg")), []);
        assert_eq!(fold.preview(piece(1, 1, 7, "h")), []);
        assert_eq!(fold.durable(piece(1, 1, 0, "abcdef")), [print("cdef"), print("gh")]);
        assert_eq!(fold.preview(piece(1, 1, 8, "i")), [print("i")]);
    }

    #[test]
    fn a_restart_that_says_something_else_says_so_and_prints_the_new_text_from_its_beginning() {
        let mut fold = opened();
        fold.preview(piece(1, 1, 0, "the first"));
        assert_eq!(fold.step_restarted(1, 2), []);
        assert_eq!(fold.preview(piece(1, 1, 9, " late")), []);
        assert_eq!(fold.durable(piece(1, 2, 0, "the ")), []);
        assert_eq!(fold.durable(piece(1, 2, 4, "second")), [FoldAction::Restart, print("the second")]);
        assert_eq!(fold.durable(piece(1, 2, 10, "!")), [print("!")]);
        assert_eq!(fold.settle(), []);
    }

    #[test]
    fn a_restart_that_says_the_same_again_prints_only_what_is_new() {
        let mut fold = opened();
        fold.preview(piece(1, 1, 0, "one two"));
        assert_eq!(fold.step_restarted(1, 2), []);
        assert_eq!(fold.preview(piece(1, 2, 0, "one")), []);
        // Cut once more before it came as far: the screen still has what the first attempt left.
        assert_eq!(fold.step_restarted(1, 3), []);
        assert_eq!(fold.durable(piece(1, 3, 0, "one ")), []);
        assert_eq!(fold.durable(piece(1, 3, 4, "two three")), [print(" three")]);
        assert_eq!(fold.preview(piece(1, 3, 13, " four")), [print(" four")]);
        assert_eq!(fold.settle(), []);
    }

    #[test]
    fn a_restart_that_ends_earlier_takes_back_what_went_beyond_it() {
        let mut fold = opened();
        fold.preview(piece(1, 1, 0, "yes and no"));
        fold.step_restarted(1, 2);
        assert_eq!(fold.durable(piece(1, 2, 0, "yes")), []);
        assert_eq!(fold.settle(), [FoldAction::Restart, print("yes")]);
        assert_eq!(fold.settle(), []);
        // The beginning of the next step ends this one as well.
        fold.step_restarted(1, 3);
        assert_eq!(fold.step_started(2, Some(1)), [FoldAction::Restart]);
        assert_eq!(fold.durable(piece(2, 1, 0, "then")), [print("then")]);
    }

    #[test]
    fn a_restart_of_a_step_that_showed_nothing_is_silent() {
        let mut fold = opened();
        assert_eq!(fold.step_restarted(1, 2), []);
        assert_eq!(fold.preview(piece(1, 2, 0, "x")), [print("x")]);
    }

    #[test]
    fn the_same_restart_seen_twice_happens_once() {
        let mut fold = opened();
        fold.preview(piece(1, 1, 0, "a"));
        assert_eq!(fold.step_restarted(1, 2), []);
        assert_eq!(fold.preview(piece(1, 2, 0, "b")), [FoldAction::Restart, print("b")]);
        assert_eq!(fold.step_restarted(1, 2), []);
        assert_eq!(fold.preview(piece(1, 2, 0, "b")), []);
        assert_eq!(fold.step_started(1, Some(1)), []);
    }

    #[test]
    fn text_that_contradicts_what_was_printed_starts_over_with_the_whole_text() {
        let mut fold = opened();
        fold.preview(piece(1, 1, 0, "the cat sat"));
        assert_eq!(fold.durable(piece(1, 1, 4, "dog ran")), [FoldAction::Restart, print("the dog ran")]);
        assert_eq!(fold.preview(piece(1, 1, 11, "!")), [print("!")]);
    }

    #[test]
    fn after_a_reconnect_repeated_previews_that_match_are_not_printed_again() {
        let mut fold = opened();
        fold.durable(piece(1, 1, 0, "one "));
        fold.preview(piece(1, 1, 4, "two "));
        assert_eq!(fold.durable(piece(1, 1, 0, "one ")), []);
        assert_eq!(fold.preview(piece(1, 1, 4, "two three")), [print("three")]);
    }

    #[test]
    fn the_next_steps_text_is_set_apart_once() {
        let mut fold = opened();
        fold.durable(piece(1, 1, 0, "looking"));
        assert_eq!(fold.step_started(3, Some(1)), []);
        assert_eq!(fold.preview(piece(3, 1, 0, "found")), [FoldAction::NewStep, print("found")]);
        assert_eq!(fold.preview(piece(3, 1, 5, " it")), [print(" it")]);
    }

    #[test]
    fn a_preview_that_overtakes_its_steps_event_waits_for_it() {
        let mut fold = opened();
        fold.preview(piece(1, 1, 0, "a"));
        assert_eq!(fold.preview(piece(3, 1, 0, "early")), []);
        assert_eq!(fold.durable(piece(1, 1, 0, "ab")), [print("b")]);
        assert_eq!(fold.step_started(3, Some(1)), [FoldAction::NewStep, print("early")]);
    }

    #[test]
    fn durable_text_opens_its_step_when_nothing_else_did() {
        let mut fold = TextFold::default();
        assert_eq!(fold.preview(piece(1, 1, 0, "ab")), []);
        assert_eq!(fold.durable(piece(1, 1, 0, "abc")), [print("abc")]);
        assert_eq!(fold.durable(piece(1, 2, 0, "xyz")), [FoldAction::Restart, print("xyz")]);
    }

    #[test]
    fn a_step_that_does_not_tell_its_attempt_takes_the_one_of_its_first_text() {
        let mut fold = TextFold::default();
        assert_eq!(fold.step_started(1, None), []);
        assert_eq!(fold.preview(piece(1, 4, 0, "a")), [print("a")]);
        assert_eq!(fold.preview(piece(1, 3, 0, "z")), []);
        assert_eq!(fold.preview(piece(2, 1, 0, "b")), []);
        assert_eq!(fold.step_started(2, None), [FoldAction::NewStep, print("b")]);
        assert_eq!(fold.step_started(2, None), []);
    }

    #[test]
    fn offsets_count_bytes_and_survive_letters_of_several_bytes() {
        let mut fold = opened();
        assert_eq!(fold.preview(piece(1, 1, 0, "né")), [print("né")]);
        assert_eq!(fold.preview(piece(1, 1, 3, "e")), [print("e")]);
        assert_eq!(fold.durable(piece(1, 1, 0, "née!")), [print("!")]);
    }

    #[test]
    fn held_previews_are_bounded() {
        let mut fold = opened();
        let block = "x".repeat(100 * 1024);
        for turn in 0..5_u64 {
            fold.preview(piece(1, 1, 1 + turn * block.len() as u64, &block));
        }
        assert!(fold.ahead.as_ref().is_some_and(|ahead| ahead.bytes.len() <= AHEAD_BYTES_MAX));
    }
}
