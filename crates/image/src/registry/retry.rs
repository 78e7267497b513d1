//! When to ask a registry again.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::Terms;
use super::error::{Again, RegistryError, Trouble};

/// So much further, and a transfer has all of its tries again. More than nothing, or a byte for each try would do.
const PROGRESS: u64 = 1 << 20;

/// The tries of one request or transfer.
#[derive(Debug)]
pub(super) struct Tries<'a> {
    terms: &'a Terms,
    made: u32,
    /// How far the transfer was when it last got all of its tries.
    mark: u64,
}

impl<'a> Tries<'a> {
    pub(super) fn new(terms: &'a Terms) -> Tries<'a> {
        Tries { terms, made: 0, mark: 0 }
    }

    /// Returns when it is time for another try, or gives the error back when there is none.
    pub(super) async fn again(&mut self, trouble: Trouble) -> Result<(), RegistryError> {
        match self.pause(trouble.again) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(trouble.error),
        }
        Ok(())
    }

    /// The transfer is at `at` now. Where it has been before is no progress, or starting anew would go on for ever.
    pub(super) fn reached(&mut self, at: u64) {
        if at.saturating_sub(self.mark) >= PROGRESS {
            (self.made, self.mark) = (0, at);
        }
    }

    fn pause(&mut self, again: Again) -> Option<Duration> {
        self.made += 1;
        if self.made >= self.terms.tries {
            return None;
        }
        match again {
            Again::Never => None,
            Again::Once => (self.made == 1).then_some(self.terms.pause),
            Again::Soon => Some(self.terms.pause * 2_u32.saturating_pow(self.made - 1)),
            Again::After(asked) => Some(asked),
        }
        .map(|pause| pause.min(self.terms.pause_max))
    }
}

/// What an answer says about another try. A date is not read: the pauses of our own do.
pub(super) fn when_again(headers: &HeaderMap) -> Again {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    seconds.map_or(Again::Soon, |seconds| Again::After(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(terms: &Terms, again: Again) -> Vec<u64> {
        let mut tries = Tries::new(terms);
        std::iter::from_fn(|| tries.pause(again)).map(|pause| pause.as_millis() as u64).take(100).collect()
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_end() {
        let terms = Terms { tries: 5, pause: Duration::from_millis(10), ..Terms::default() };
        assert_eq!(pauses(&terms, Again::Soon), [10, 20, 40, 80]);
        assert_eq!(pauses(&terms, Again::Never), [0_u64; 0]);
        assert_eq!(pauses(&terms, Again::Once), [10]);
        let terms = Terms { pause_max: Duration::from_millis(25), ..terms };
        assert_eq!(pauses(&terms, Again::Soon), [10, 20, 25, 25]);
        assert_eq!(pauses(&terms, Again::After(Duration::from_secs(u64::MAX))), [25; 4]);
        assert_eq!(pauses(&terms, Again::After(Duration::from_millis(7))), [7; 4]);
    }

    #[test]
    fn progress_gives_the_tries_back_and_a_trickle_does_not() {
        let terms = Terms { tries: 3, ..Terms::default() };
        let mut tries = Tries::new(&terms);
        let mut given = 0;
        for step in 1.. {
            tries.reached(step);
            if tries.pause(Again::Soon).is_none() {
                break;
            }
            given += 1;
        }
        assert_eq!(given, 2, "a byte each");
        let mut tries = Tries::new(&terms);
        for step in 1..50 {
            tries.reached(step * PROGRESS);
            assert!(tries.pause(Again::Soon).is_some(), "{step}");
        }
        for step in 0.. {
            tries.reached(step % 49 * PROGRESS);
            if tries.pause(Again::Soon).is_none() {
                break;
            }
            assert!(step < 49, "from the beginning again and again");
        }
    }
}
