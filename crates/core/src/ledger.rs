//! What to do about a tool call whose outcome is not recorded and cannot be found out.
//!
//! A tool's intent is durable before it starts, and its keeper claims it before it spawns. So most cases settle
//! themselves: the keeper is asked for the same id again and starts it, or tells how it stands. What is decided here is
//! the rest. Never a blind second run.

/// Why nobody knows how an exec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// A keeper claimed it and died, and no end is recorded.
    ClaimedOnly,
    /// Nothing is there, but the machine was restarted since the intent: files may be missing.
    OtherBoot,
}

/// Whether running the tool twice does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    Safe,
    Unsafe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// Forget the claim, if there is one, and run it again.
    Rerun,
    /// Tell the model that nobody knows.
    Unknown,
}

pub fn settle(doubt: Doubt, repeat: Repeat) -> Settle {
    match (doubt, repeat) {
        (Doubt::ClaimedOnly | Doubt::OtherBoot, Repeat::Safe) => Settle::Rerun,
        (Doubt::ClaimedOnly | Doubt::OtherBoot, Repeat::Unsafe) => Settle::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsafe_tool_is_never_started_a_second_time() {
        for doubt in [Doubt::ClaimedOnly, Doubt::OtherBoot] {
            assert_eq!(settle(doubt, Repeat::Unsafe), Settle::Unknown);
            assert_eq!(settle(doubt, Repeat::Safe), Settle::Rerun);
        }
    }
}
