//! What to do about a tool call whose outcome is not recorded.
//!
//! A tool's intent is durable before it starts, and the keeper claims before it spawns, so what is found on
//! disk decides. Never a blind second run.

/// What the host shows of an exec whose intent is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Its keeper lives: it knows what it did under this id, and asking again is harmless.
    KeeperLives,
    /// Its keeper is gone and left an exit record.
    Ended,
    /// Its keeper is gone; it had claimed the exec and no end is recorded.
    ClaimedOnly,
    /// Its keeper is gone and never claimed it, and this is still the boot in which the intent was written.
    NeverClaimed,
    /// Nothing is there, but the machine was restarted in between: files may be missing.
    Nothing,
}

/// Whether running the tool twice does no harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    Safe,
    Unsafe,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settle {
    /// Ask the keeper for this id: it starts it, or tells how it stands.
    Ask,
    /// Take the recorded end.
    Adopt,
    /// Start it under the same id: it never ran.
    Start,
    /// Run it again under a new id.
    Rerun,
    /// Tell the model that nobody knows.
    Unknown,
}

pub fn settle(seen: Seen, repeat: Repeat) -> Settle {
    match (seen, repeat) {
        (Seen::KeeperLives, Repeat::Safe | Repeat::Unsafe) => Settle::Ask,
        (Seen::Ended, Repeat::Safe | Repeat::Unsafe) => Settle::Adopt,
        (Seen::NeverClaimed, Repeat::Safe | Repeat::Unsafe) => Settle::Start,
        (Seen::ClaimedOnly | Seen::Nothing, Repeat::Safe) => Settle::Rerun,
        (Seen::ClaimedOnly | Seen::Nothing, Repeat::Unsafe) => Settle::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsafe_tool_is_never_started_a_second_time() {
        for seen in [Seen::ClaimedOnly, Seen::Nothing, Seen::Ended] {
            assert!(!matches!(settle(seen, Repeat::Unsafe), Settle::Start | Settle::Rerun), "{seen:?}");
        }
    }
}
