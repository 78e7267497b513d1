//! Whether and when to try again.

use std::time::Duration;

use crate::limits::{MODEL_ATTEMPTS_MAX, REVIVALS_MAX};

/// What to do about something that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    After { delay_ms: u64 },
    GiveUp,
}

const MODEL_BASE_MS: u64 = 250;
const MODEL_CAP_MS: u64 = 8_000;

/// Decides after the `failures`-th failure. `asked_ms` is the provider's own wish, when it gave one.
pub fn model(failures: u32, retryable: bool, asked_ms: Option<u64>) -> Again {
    if !retryable || failures >= MODEL_ATTEMPTS_MAX {
        return Again::GiveUp;
    }
    let doubled = MODEL_BASE_MS.saturating_mul(1 << failures.saturating_sub(1).min(16));
    Again::After { delay_ms: asked_ms.unwrap_or(doubled).min(MODEL_CAP_MS) }
}

/// First and longest pause before a process is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    pub base: Duration,
    pub cap: Duration,
}

/// Decides after the `deaths`-th death in a row of a lineage's process. The first revival does not wait.
pub fn revival(deaths: u32, backoff: Backoff) -> Again {
    if deaths > REVIVALS_MAX {
        return Again::GiveUp;
    }
    let pause = match deaths.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => backoff.base.saturating_mul(1 << doublings.min(16)).min(backoff.cap),
    };
    Again::After { delay_ms: u64::try_from(pause.as_millis()).unwrap_or(u64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lineage_is_revived_at_once_then_with_growing_pauses_and_then_no_more() {
        let backoff = Backoff { base: Duration::from_secs(1), cap: Duration::from_secs(5) };
        let pauses: Vec<Again> = (1..=6).map(|deaths| revival(deaths, backoff)).collect();
        let after = |delay_ms| Again::After { delay_ms };
        assert_eq!(pauses, [after(0), after(1_000), after(2_000), after(4_000), after(5_000), Again::GiveUp]);
    }

    #[test]
    fn a_model_call_is_tried_a_bounded_number_of_times_with_growing_pauses() {
        let delays: Vec<Again> = (1..=5).map(|attempt| model(attempt, true, None)).collect();
        assert_eq!(
            delays,
            [
                Again::After { delay_ms: 250 },
                Again::After { delay_ms: 500 },
                Again::After { delay_ms: 1_000 },
                Again::GiveUp,
                Again::GiveUp
            ]
        );
    }

    #[test]
    fn a_final_failure_is_not_tried_again_and_a_provider_cannot_stall_a_turn_for_long() {
        assert_eq!(model(1, false, None), Again::GiveUp);
        assert_eq!(model(1, true, Some(3_600_000)), Again::After { delay_ms: 8_000 });
    }
}
