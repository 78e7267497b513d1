//! Which turns of a session the model still sees.
//!
//! Owns: the sliding window, as a function of the turn's number alone, so that two processes agree without
//! sharing state. Never: the messages themselves.

/// A message in, an answer out. Tool results belong to the answer.
const MESSAGES_A_TURN: u64 = 2;

/// The first turn that is sent to the model with turn `number` (both count from 1).
///
/// The window does not slide by one each turn: when it would hold more than `messages_max`, it is cut to half and
/// grows again. Between cuts the prompt only gets longer at its end, so a provider's prefix cache stays useful.
/// A `messages_max` of 0 means that nothing is ever cut.
pub(crate) fn from_turn(number: u64, messages_max: u64) -> u64 {
    if messages_max == 0 {
        return 1;
    }
    let turns_max = (messages_max / MESSAGES_A_TURN).max(1);
    let turns_after_cut = (turns_max / 2).max(1);
    let turns_between_cuts = turns_max - turns_after_cut + 1;
    let cuts = number.saturating_sub(turns_max).div_ceil(turns_between_cuts);
    1 + cuts * turns_between_cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(messages_max: u64, expected: &[u64]) {
        let firsts: Vec<u64> = (1..=expected.len() as u64).map(|n| from_turn(n, messages_max)).collect();
        assert_eq!(firsts, expected, "messages_max {messages_max}");
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
    fn a_window_holds_the_turn_itself_and_at_most_the_maximum() {
        for messages_max in 2..60 {
            for number in 1..500 {
                let held = number + 1 - from_turn(number, messages_max);
                assert!(held >= 1 && held * MESSAGES_A_TURN <= messages_max, "{number} {messages_max}");
            }
        }
    }

    #[test]
    fn absurd_numbers_do_not_overflow() {
        assert_eq!(from_turn(0, 20), 1);
        assert_eq!(from_turn(u64::MAX, 1), u64::MAX);
        assert!(from_turn(u64::MAX, u64::MAX) > u64::MAX / 2);
    }
}
