//! Whether and when to retry.

use std::time::Duration;

use crate::limits::{MODEL_ATTEMPTS_MAX, REVIVALS_MAX};

/// The decision after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryDecision {
    After { delay_ms: u64 },
    GiveUp,
}

const MODEL_BASE_MS: u64 = 250;
const MODEL_CAP_MS: u64 = 8_000;
/// A limit per minute is over within one; a longer `StartRetry-After` is not honoured.
const MODEL_ASKED_CAP_MS: u64 = 60_000;

/// Decides after the `failures`-th failure. `asked_ms` is the provider's requested pause, if it sent one.
pub fn model(failures: u32, retryable: bool, asked_ms: Option<u64>) -> RetryDecision {
    if !retryable || failures >= MODEL_ATTEMPTS_MAX {
        return RetryDecision::GiveUp;
    }
    let doubled = MODEL_BASE_MS.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let delay_ms = asked_ms.map_or(doubled.min(MODEL_CAP_MS), |asked_ms| asked_ms.min(MODEL_ASKED_CAP_MS));
    RetryDecision::After { delay_ms }
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
    fn a_model_call_is_tried_a_bounded_number_of_times_with_growing_pauses() {
        let delays: Vec<RetryDecision> = (1..=5).map(|attempt| model(attempt, true, None)).collect();
        assert_eq!(
            delays,
            [
                RetryDecision::After { delay_ms: 250 },
                RetryDecision::After { delay_ms: 500 },
                RetryDecision::After { delay_ms: 1_000 },
                RetryDecision::GiveUp,
                RetryDecision::GiveUp
            ]
        );
    }

    #[test]
    fn a_final_failure_is_not_tried_again_and_a_provider_cannot_stall_a_turn_for_long() {
        assert_eq!(model(1, false, None), RetryDecision::GiveUp);
        assert_eq!(model(1, true, Some(20_000)), RetryDecision::After { delay_ms: 20_000 });
        assert_eq!(model(1, true, Some(3_600_000)), RetryDecision::After { delay_ms: 60_000 });
    }
}
