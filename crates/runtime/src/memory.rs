//! How much of a session the model reads, and when the rest is compacted.
//!
//! Owns: when a conversation is compacted, and which turns stay. Never: the messages. The daemon has them, and reports
//! their weight with every turn.

use lodge_runtime_messages::{CompactStrategy, ConversationEpoch};

/// A message in, an answer out. Tool calls and results belong to the answer.
const MESSAGES_A_TURN: u64 = 2;
/// Near enough for a limit, and the same everywhere.
const BYTES_A_TOKEN: u64 = 4;

/// The limits of an agent's memory. A maximum of 0 means no limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) strategy: CompactStrategy,
    pub(crate) messages_max: u64,
    pub(crate) tokens_max: u64,
}

impl Memory {
    /// The first turn to keep, if the conversation is too long for turn `number`.
    ///
    /// It does not shrink by a turn each turn: when it would hold too much it is cut to half and grows again. Between
    /// cuts the prompt only gets longer at its end, so a provider's prefix cache stays useful.
    pub(crate) fn cut(&self, number: u32, epoch: &ConversationEpoch) -> Option<u32> {
        let cuts = [self.cut_by_messages(number, epoch), self.cut_by_tokens(number, epoch)];
        cuts.into_iter().flatten().max().filter(|from_turn| *from_turn > epoch.from_turn)
    }

    fn cut_by_messages(&self, number: u32, epoch: &ConversationEpoch) -> Option<u32> {
        let turns = number.saturating_add(1).saturating_sub(epoch.from_turn);
        // More turns than a session can have are no limit either.
        let turns_max = u32::try_from((self.messages_max / MESSAGES_A_TURN).max(1)).ok()?;
        let is_full = self.messages_max > 0 && turns > turns_max;
        is_full.then(|| number.saturating_add(1) - (turns_max / 2).max(1))
    }

    fn cut_by_tokens(&self, number: u32, epoch: &ConversationEpoch) -> Option<u32> {
        let bytes_max = self.tokens_max.saturating_mul(BYTES_A_TOKEN);
        if self.tokens_max == 0 || epoch.bytes <= bytes_max {
            return None;
        }
        // The turn itself is kept at any weight.
        let (mut kept, mut bytes) = (1, epoch.turns.last().copied().unwrap_or(0));
        for turn in epoch.turns.iter().rev().skip(1) {
            bytes = bytes.saturating_add(*turn);
            if bytes > bytes_max / 2 {
                break;
            }
            kept += 1;
        }
        Some(number.saturating_add(1).saturating_sub(kept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(messages_max: u64, tokens_max: u64) -> Memory {
        Memory { strategy: CompactStrategy::Sliding, messages_max, tokens_max }
    }

    fn epoch(from_turn: u32, turns: &[u64]) -> ConversationEpoch {
        let bytes = turns.iter().sum();
        ConversationEpoch { from_turn, bytes, turns: turns.to_vec(), ..ConversationEpoch::default() }
    }

    /// The first turns that are read with turns 1, 2, 3 and so on.
    fn check(messages_max: u64, expected: &[u32]) {
        let mut from_turn = 1;
        let firsts = (1..=u32::try_from(expected.len()).unwrap()).map(|number| {
            from_turn = memory(messages_max, 0).cut(number, &epoch(from_turn, &[])).unwrap_or(from_turn);
            from_turn
        });
        assert_eq!(firsts.collect::<Vec<_>>(), expected, "messages_max {messages_max}");
    }

    #[test]
    fn the_window_moves_in_steps_and_never_holds_too_much() {
        check(20, &[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 7, 7, 7, 7, 7, 13, 13, 13, 13, 13, 13, 19]);
        check(8, &[1, 1, 1, 1, 4, 4, 4, 7, 7, 7, 10]);
        check(5, &[1, 1, 3, 3, 5, 5, 7]);
        check(4, &[1, 1, 3, 3, 5, 5, 7]);
        check(2, &[1, 2, 3, 4]);
        check(1, &[1, 2, 3, 4]);
        check(0, &[1, 1, 1, 1]);
    }

    #[test]
    fn a_conversation_of_too_many_tokens_is_cut_to_half_of_them_by_what_its_turns_weigh() {
        // 100 tokens are 400 bytes; half of them are kept.
        assert_eq!(memory(0, 100).cut(4, &epoch(1, &[100, 100, 100, 100])), None);
        assert_eq!(memory(0, 100).cut(5, &epoch(1, &[100, 100, 100, 100, 4])), Some(4));
        assert_eq!(memory(0, 100).cut(3, &epoch(1, &[300, 90, 90])), Some(2));
        assert_eq!(memory(0, 100).cut(3, &epoch(1, &[10, 300, 100])), Some(3));
        assert_eq!(memory(0, 0).cut(3, &epoch(1, &[10_000, 10_000, 10_000])), None);
    }

    #[test]
    fn a_turn_that_is_too_large_by_itself_is_kept_and_not_cut_again() {
        assert_eq!(memory(0, 100).cut(3, &epoch(1, &[1, 1, 5_000])), Some(3));
        assert_eq!(memory(0, 100).cut(3, &epoch(3, &[5_000])), None);
    }

    #[test]
    fn the_stricter_limit_holds() {
        assert_eq!(memory(4, 100).cut(3, &epoch(1, &[1, 1, 1])), Some(3));
        assert_eq!(memory(20, 100).cut(3, &epoch(1, &[300, 190, 1])), Some(2));
    }

    #[test]
    fn absurd_numbers_do_not_overflow() {
        assert_eq!(memory(20, 1).cut(0, &epoch(u32::MAX, &[])), None);
        assert_eq!(memory(1, 0).cut(u32::MAX - 1, &epoch(1, &[])), Some(u32::MAX - 1));
        assert_eq!(memory(u64::MAX, 0).cut(u32::MAX, &epoch(1, &[])), None);
        let (bytes, turns) = (u64::MAX, vec![u64::MAX, u64::MAX]);
        let large = ConversationEpoch { bytes, turns, ..ConversationEpoch::default() };
        assert_eq!(memory(0, u64::MAX).cut(2, &large), None);
        assert_eq!(memory(0, 1).cut(2, &large), Some(2));
    }
}
