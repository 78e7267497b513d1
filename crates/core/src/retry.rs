//! Whether and when to retry.

use std::time::Duration;

use crate::limits::{MODEL_ATTEMPTS_MAX, REVIVALS_MAX};

/// The decision after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    After { delay_ms: u64 },
    GiveUp,
}

const CALL_BASE_MS: u64 = 500;
const CALL_CAP_MS: u64 = 30_000;

/// The pause before a model call is repeated after the `failures`-th failure in a row: between half of a time that doubles
/// and all of it, as `spread` says, so that daemons that failed together do not call together. A provider that asks for
/// a longer pause gets it.
pub fn call_pause(failures: u32, asked_ms: Option<u64>, spread: u64) -> u64 {
    let doubled = CALL_BASE_MS.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(CALL_CAP_MS);
    let pause = doubled / 2 + spread % (doubled / 2 + 1);
    asked_ms.map_or(pause, |asked_ms| asked_ms.max(pause))
}

/// Decides after a model call failed for the `failures`-th time in a way that says nothing about an outage: the daemon could
/// not make it, or its answer was of no use.
pub fn own_call(failures: u32, spread: u64) -> RetryDecision {
    if failures >= MODEL_ATTEMPTS_MAX {
        return RetryDecision::GiveUp;
    }
    RetryDecision::After { delay_ms: call_pause(failures, None, spread) }
}

/// The first and the longest pause before a process is restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub base: Duration,
    pub cap: Duration,
}

impl Backoff {
    fn doubled_ms(self, doublings: u32) -> u64 {
        let pause = self.base.saturating_mul(1 << doublings.min(16)).min(self.cap);
        u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Decides after the `deaths`-th death in a row of a lineage's process. The first revival does not wait.
pub fn revival(deaths: u32, backoff: Backoff) -> RetryDecision {
    if deaths > REVIVALS_MAX {
        return RetryDecision::GiveUp;
    }
    RetryDecision::After {
        delay_ms: deaths.checked_sub(2).map_or(0, |doublings| backoff.doubled_ms(doublings)),
    }
}

/// The pause before an agent is restarted after the `failures`-th failure in a row; there is no limit of attempts.
pub fn restart(failures: u32, backoff: Backoff) -> u64 {
    backoff.doubled_ms(failures.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lineage_is_revived_at_once_then_with_growing_pauses_and_then_no_more() {
        let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(5) };
        let pauses: Vec<RetryDecision> = (1..=6).map(|deaths| revival(deaths, backoff)).collect();
        let after = |delay_ms| RetryDecision::After { delay_ms };
        assert_eq!(
            pauses,
            [after(0), after(1_000), after(2_000), after(4_000), after(5_000), RetryDecision::GiveUp]
        );
    }

    #[test]
    fn an_agent_is_started_again_with_doubling_pauses_up_to_the_cap_and_never_given_up() {
        let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(10) };
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, 5, 11, 34, u32::MAX].map(|n| restart(n, backoff)).into();
        assert_eq!(pauses, [1_000, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000, 10_000]);
    }

    #[test]
    fn pauses_between_model_calls_grow_are_spread_and_never_shorter_than_the_provider_asks() {
        let pauses =
            |spread| [1, 2, 3, 6, 7, 40, u32::MAX].map(|failures| call_pause(failures, None, spread));
        assert_eq!(pauses(0), [250, 500, 1_000, 8_000, 15_000, 15_000, 15_000]);
        for spread in [1, 12_345, u64::MAX] {
            for (pause, shortest) in pauses(spread).into_iter().zip(pauses(0)) {
                assert!((shortest..=2 * shortest).contains(&pause), "{pause} after {shortest}");
            }
        }
        assert_eq!(call_pause(1, Some(20_000), 7), 20_000);
        assert_eq!(call_pause(1, Some(3_600_000), 7), 3_600_000);
        assert_eq!(call_pause(4, Some(5), 0), 2_000, "a provider cannot have itself called in a loop");
    }

    #[test]
    fn a_call_that_the_daemon_cannot_make_is_tried_a_bounded_number_of_times() {
        let gives_up = [1, 2, 3, 4, 5].map(|failures| own_call(failures, 0) == RetryDecision::GiveUp);
        assert_eq!(gives_up, [false, false, false, true, true]);
    }
}
