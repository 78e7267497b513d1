//! The lifecycle of a lineage, as one table, and the policies for work whose process died.
//!
//! A lineage is the identity of an agent's work across processes. It is `Orphaned` from the moment its process is known
//! to be dead until its policy is applied.

use std::fmt;

/// The state of a lineage. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LineageState {
    Active,
    Orphaned,
    AskPending,
    Reaped,
    Ended(EndReason),
}

/// Why a lineage ended. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndReason {
    Killed,
    Exhausted,
    Removed,
}

/// Events in the life of a lineage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LineageEvent {
    /// Its process is proven dead, and no request ended it.
    Died,
    /// A new process takes over its work.
    Revived,
    /// An operator has to decide.
    Asked,
    /// Its open work is dropped.
    Reaped,
    /// An operator stopped the agent. Nothing is revived, and a start continues the lineage.
    Stopped,
    /// It died once too often.
    Exhausted,
    Killed,
    Removed,
}

/// A transition that is not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a lineage that is {} cannot take `{event:?}`", .state.word())]
pub struct LineageTransitionError {
    pub state: LineageState,
    pub event: LineageEvent,
}

use LineageEvent as E;
use LineageState as S;

impl LineageState {
    /// The only function that changes the state of a lineage.
    pub fn next(self, event: LineageEvent) -> Result<LineageState, LineageTransitionError> {
        Ok(match (self, event) {
            (S::Active, E::Died) => S::Orphaned,
            (S::Orphaned | S::AskPending, E::Revived) => S::Active,
            (S::Orphaned, E::Asked) => S::AskPending,
            (S::Orphaned | S::AskPending, E::Reaped) => S::Reaped,
            (S::Active | S::Orphaned, E::Stopped) => S::Active,
            (S::Orphaned, E::Exhausted) => S::Ended(EndReason::Exhausted),
            (S::Active | S::Orphaned | S::AskPending, E::Killed) => S::Ended(EndReason::Killed),
            (S::Active | S::Orphaned | S::AskPending, E::Removed) => S::Ended(EndReason::Removed),

            // Refusals are spelled out, so a new state or event must be placed by hand.
            (S::Orphaned | S::AskPending, E::Died)
            | (S::Active, E::Revived | E::Asked | E::Reaped | E::Exhausted)
            | (S::AskPending, E::Asked | E::Stopped | E::Exhausted)
            | (
                S::Reaped | S::Ended(_),
                E::Died
                | E::Revived
                | E::Asked
                | E::Reaped
                | E::Stopped
                | E::Exhausted
                | E::Killed
                | E::Removed,
            ) => return Err(LineageTransitionError { state: self, event }),
        })
    }

    /// Whether it can never change again: a start of its agent opens another one.
    pub fn is_over(self) -> bool {
        match self {
            S::Reaped | S::Ended(_) => true,
            S::Active | S::Orphaned | S::AskPending => false,
        }
    }

    /// The word people see.
    pub fn word(self) -> &'static str {
        match self {
            S::Active => "active",
            S::Orphaned => "orphaned",
            S::AskPending => "ask_pending",
            S::Reaped => "reaped",
            S::Ended(_) => "ended",
        }
    }

    /// The stored number and, for an ended lineage, the stored reason.
    pub fn codes(self) -> (i64, Option<i64>) {
        match self {
            S::Active => (1, None),
            S::Orphaned => (2, None),
            S::AskPending => (3, None),
            S::Reaped => (4, None),
            S::Ended(reason) => (5, Some(reason.code())),
        }
    }

    pub fn from_codes(state: i64, reason: Option<i64>) -> Option<LineageState> {
        Some(match (state, reason) {
            (1, None) => S::Active,
            (2, None) => S::Orphaned,
            (3, None) => S::AskPending,
            (4, None) => S::Reaped,
            (5, Some(reason)) => S::Ended(EndReason::from_code(reason)?),
            (_, _) => return None,
        })
    }
}

impl EndReason {
    pub const ALL: [EndReason; 3] = [EndReason::Killed, EndReason::Exhausted, EndReason::Removed];

    pub fn word(self) -> &'static str {
        match self {
            EndReason::Killed => "killed",
            EndReason::Exhausted => "exhausted",
            EndReason::Removed => "removed",
        }
    }

    fn code(self) -> i64 {
        match self {
            EndReason::Killed => 1,
            EndReason::Exhausted => 2,
            EndReason::Removed => 3,
        }
    }

    fn from_code(code: i64) -> Option<EndReason> {
        EndReason::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl fmt::Display for LineageState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            S::Ended(reason) => write!(f, "ended({})", reason.word()),
            S::Active | S::Orphaned | S::AskPending | S::Reaped => f.write_str(self.word()),
        }
    }
}

/// The policy for work whose process died. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// A new process continues from the last finished step.
    Revive,
    /// Open work is dropped.
    Reap,
    /// An operator decides.
    Ask,
}

impl Policy {
    pub const ALL: [Policy; 3] = [Policy::Revive, Policy::Reap, Policy::Ask];

    pub fn word(self) -> &'static str {
        match self {
            Policy::Revive => "revive",
            Policy::Reap => "reap",
            Policy::Ask => "ask",
        }
    }

    pub fn from_word(word: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.word() == word)
    }

    pub fn code(self) -> i32 {
        match self {
            Policy::Revive => 1,
            Policy::Reap => 2,
            Policy::Ask => 3,
        }
    }

    pub fn from_code(code: i32) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<LineageState> {
        let mut states = vec![S::Active, S::Orphaned, S::AskPending, S::Reaped];
        states.extend(EndReason::ALL.map(S::Ended));
        states
    }

    #[test]
    fn the_whole_table_is_the_checked_in_one() {
        let events =
            [E::Died, E::Revived, E::Asked, E::Reaped, E::Stopped, E::Exhausted, E::Killed, E::Removed];
        let mut table = String::new();
        for state in states() {
            for event in events {
                let next = state.next(event).map_or_else(|_| "-".to_owned(), |next| next.to_string());
                table.push_str(&format!("{:<20}{:<20}{next}\n", state.to_string(), format!("{event:?}")));
            }
        }
        crate::turn::tests::compare_table("lineage_table.txt", include_str!("lineage_table.txt"), &table);
    }

    #[test]
    fn every_state_and_policy_survives_being_stored() {
        for state in states() {
            let (code, reason) = state.codes();
            assert_eq!(LineageState::from_codes(code, reason), Some(state));
        }
        for policy in Policy::ALL {
            assert_eq!(Policy::from_code(policy.code()), Some(policy));
            assert_eq!(Policy::from_word(policy.word()), Some(policy));
        }
    }

    #[test]
    fn what_is_over_takes_nothing() {
        let events =
            [E::Died, E::Revived, E::Asked, E::Reaped, E::Stopped, E::Exhausted, E::Killed, E::Removed];
        for state in states() {
            let takes_nothing = events.iter().all(|event| state.next(*event).is_err());
            assert_eq!(state.is_over(), takes_nothing, "{state}");
        }
    }
}
