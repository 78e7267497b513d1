//! Decides about a tool call whose outcome is not recorded and cannot be determined.
//!
//! A tool's intent is durable before it starts, and its keeper claims it before it spawns it. So the keeper settles
//! most cases: the daemon requests the same id again, and the keeper starts the exec or reports its state. This module
//! decides the rest. It never repeats an unsafe call.

/// Why the outcome of an exec is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnknownOutcome {
    /// A keeper claimed it and died, and no end is recorded.
    ClaimedOnly,
    /// No claim exists, but the machine was restarted since the intent: files may be missing.
    OtherBoot,
}

/// Whether a repeated run of the tool is harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatSafety {
    Safe,
    Unsafe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LedgerDecision {
    /// Drop the claim, if there is one, and run it again.
    Rerun,
    /// Report the unknown outcome to the model.
    Unknown,
}

pub fn decide_unknown_outcome(doubt: UnknownOutcome, repeat: RepeatSafety) -> LedgerDecision {
    match (doubt, repeat) {
        (UnknownOutcome::ClaimedOnly | UnknownOutcome::OtherBoot, RepeatSafety::Safe) => {
            LedgerDecision::Rerun
        }
        (UnknownOutcome::ClaimedOnly | UnknownOutcome::OtherBoot, RepeatSafety::Unsafe) => {
            LedgerDecision::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsafe_tool_is_never_started_a_second_time() {
        for doubt in [UnknownOutcome::ClaimedOnly, UnknownOutcome::OtherBoot] {
            assert_eq!(decide_unknown_outcome(doubt, RepeatSafety::Unsafe), LedgerDecision::Unknown);
            assert_eq!(decide_unknown_outcome(doubt, RepeatSafety::Safe), LedgerDecision::Rerun);
        }
    }
}
