//! Retries of requests to a registry.

use std::time::Duration;

use reqwest::header::{HeaderMap, RETRY_AFTER};

use super::RegistryTerms;
use super::error::{AttemptError, RegistryError, RetryAdvice};

/// So much further, and a transfer has all of its tries again. More than nothing, or a byte for each try would do.
const PROGRESS: u64 = 1 << 20;

/// The tries of one request or transfer.
#[derive(Debug)]
pub(super) struct RetryAttempts<'a> {
    terms: &'a RegistryTerms,
    made: u32,
    /// How far the transfer was when it last got all of its tries.
    mark: u64,
}

impl<'a> RetryAttempts<'a> {
    pub(super) fn new(terms: &'a RegistryTerms) -> RetryAttempts<'a> {
        RetryAttempts { terms, made: 0, mark: 0 }
    }

    /// Returns when it is time for another try, or gives the error back when there is none.
    pub(super) async fn wait_for_retry(&mut self, trouble: AttemptError) -> Result<(), RegistryError> {
        match self.pause(trouble.again) {
            Some(pause) => tokio::time::sleep(pause).await,
            None => return Err(trouble.error),
        }
        Ok(())
    }

    /// The transfer is at `at` now. Positions that it reached before are no progress; otherwise restarts could repeat
    /// without limit.
    pub(super) fn reached(&mut self, at: u64) {
        if at.saturating_sub(self.mark) >= PROGRESS {
            (self.made, self.mark) = (0, at);
        }
    }

    fn pause(&mut self, again: RetryAdvice) -> Option<Duration> {
        self.made += 1;
        if self.made >= self.terms.tries {
            return None;
        }
        match again {
            RetryAdvice::Never => None,
            RetryAdvice::Once => (self.made == 1).then_some(self.terms.pause),
            RetryAdvice::Soon => Some(self.terms.pause * 2_u32.saturating_pow(self.made - 1)),
            RetryAdvice::After(asked) => Some(asked),
        }
        .map(|pause| pause.min(self.terms.pause_max))
    }
}

/// What an answer says about another try. A date is not read: the pauses of our own do.
pub(super) fn retry_advice(headers: &HeaderMap) -> RetryAdvice {
    let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    seconds.map_or(RetryAdvice::Soon, |seconds| RetryAdvice::After(Duration::from_secs(seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(terms: &RegistryTerms, again: RetryAdvice) -> Vec<u64> {
        let mut tries = RetryAttempts::new(terms);
        std::iter::from_fn(|| tries.pause(again)).map(|pause| pause.as_millis() as u64).take(100).collect()
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_end() {
        let terms = RegistryTerms { tries: 5, pause: Duration::from_millis(10), ..RegistryTerms::default() };
        assert_eq!(pauses(&terms, RetryAdvice::Soon), [10, 20, 40, 80]);
        assert_eq!(pauses(&terms, RetryAdvice::Never), [0_u64; 0]);
        assert_eq!(pauses(&terms, RetryAdvice::Once), [10]);
        let terms = RegistryTerms { pause_max: Duration::from_millis(25), ..terms };
        assert_eq!(pauses(&terms, RetryAdvice::Soon), [10, 20, 25, 25]);
        assert_eq!(pauses(&terms, RetryAdvice::After(Duration::from_secs(u64::MAX))), [25; 4]);
        assert_eq!(pauses(&terms, RetryAdvice::After(Duration::from_millis(7))), [7; 4]);
    }

    #[test]
    fn progress_gives_the_tries_back_and_a_trickle_does_not() {
        let terms = RegistryTerms { tries: 3, ..RegistryTerms::default() };
        let mut tries = RetryAttempts::new(&terms);
        let mut given = 0;
        for step in 1.. {
            tries.reached(step);
            if tries.pause(RetryAdvice::Soon).is_none() {
                break;
            }
            given += 1;
        }
        assert_eq!(given, 2, "a byte each");
        let mut tries = RetryAttempts::new(&terms);
        for step in 1..50 {
            tries.reached(step * PROGRESS);
            assert!(tries.pause(RetryAdvice::Soon).is_some(), "{step}");
        }
        for step in 0.. {
            tries.reached(step % 49 * PROGRESS);
            if tries.pause(RetryAdvice::Soon).is_none() {
                break;
            }
            assert!(step < 49, "from the beginning again and again");
        }
    }
}
