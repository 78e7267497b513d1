//! The lifecycle of an agent, as one table.
//!
//! `working` is not a separate state here: it is `Ready` with a turn in flight.

use std::fmt;

/// The state of an agent. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentState {
    Pulling,
    Starting,
    Ready,
    Stopped,
    Failed(FailReason),
    Removing,
    Removed,
}

/// Why an agent failed. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FailReason {
    Pull,
    Init,
    Model,
    ReadinessTimeout,
    Crashed,
    Config,
    Oom,
}

/// Events in the life of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentEvent {
    StartAsked,
    /// Replaces the current process in one step.
    RestartAsked,
    /// The pause after a temporary failure is over.
    RetryDue,
    ImageReady,
    ImageFailed,
    /// No provider offers the agent's model.
    ModelUnknown,
    /// A required setting of the image has no value.
    ConfigUnset,
    SpawnFailed,
    ProbeAnswered,
    ProbeTimedOut,
    /// The runtime or its keeper is proven dead, and a new process will take over its work.
    Died,
    /// The runtime or its keeper ended unexpectedly, and the lineage is not revived.
    Exited {
        clean: bool,
    },
    /// The runtime ran out of memory: a new one would fail in the same way.
    OutOfMemory,
    StopAsked,
    RemoveAsked,
    /// Nothing of the agent is left on the host.
    Cleared,
}

/// A transition that is not in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an agent that is {} cannot take `{event:?}`", .state.word())]
pub struct AgentTransitionError {
    pub state: AgentState,
    pub event: AgentEvent,
}

use AgentEvent as E;
use AgentState as S;

impl AgentState {
    /// The only function that changes the state of an agent.
    pub fn next(self, event: AgentEvent) -> Result<AgentState, AgentTransitionError> {
        Ok(match (self, event) {
            (S::Stopped | S::Failed(_), E::StartAsked) => S::Pulling,
            (S::Pulling | S::Starting | S::Ready | S::Stopped | S::Failed(_), E::RestartAsked) => S::Pulling,
            (S::Failed(reason), E::RetryDue) if reason.passes_by_itself() => S::Pulling,
            (S::Pulling, E::ImageReady) => S::Starting,
            (S::Pulling, E::ImageFailed) => S::Failed(FailReason::Pull),
            // A missing image may be found only when the agent's root is created.
            (S::Starting, E::ImageFailed) => S::Failed(FailReason::Pull),
            (S::Starting, E::ModelUnknown) => S::Failed(FailReason::Model),
            (S::Starting, E::ConfigUnset) => S::Failed(FailReason::Config),
            (S::Starting, E::ProbeAnswered) => S::Ready,
            (S::Starting, E::SpawnFailed) => S::Failed(FailReason::Init),
            // An agent that was ready and cannot be reached waits for an operator.
            (S::Ready, E::SpawnFailed) => S::Failed(FailReason::Crashed),
            (S::Starting, E::ProbeTimedOut) => S::Failed(FailReason::ReadinessTimeout),
            (S::Starting | S::Ready, E::Died) => S::Pulling,
            (S::Starting | S::Ready, E::Exited { clean: false }) => S::Failed(FailReason::Crashed),
            (S::Starting | S::Ready, E::Exited { clean: true }) => S::Stopped,
            (S::Starting | S::Ready, E::OutOfMemory) => S::Failed(FailReason::Oom),
            (S::Pulling | S::Starting | S::Ready | S::Failed(_), E::StopAsked) => S::Stopped,
            (S::Stopped | S::Failed(_) | S::Removing, E::RemoveAsked) => S::Removing,
            (S::Removing, E::Cleared) => S::Removed,
            // An adopted agent answers its probe again, and a stopped one ends: neither changes the state.
            (S::Ready, E::ProbeAnswered) => S::Ready,
            (S::Stopped, E::Exited { .. }) => S::Stopped,
            (S::Failed(reason), E::Exited { .. }) => S::Failed(reason),
            (S::Removing, E::Exited { .. }) => S::Removing,

            // Refusals are spelled out, so a new state or event must be placed by hand.
            (S::Pulling | S::Starting | S::Ready | S::Removing | S::Removed, E::StartAsked)
            | (S::Removing | S::Removed, E::RestartAsked)
            | (
                S::Pulling | S::Starting | S::Ready | S::Stopped | S::Failed(_) | S::Removing | S::Removed,
                E::RetryDue,
            )
            | (S::Starting | S::Ready | S::Stopped | S::Failed(_) | S::Removing | S::Removed, E::ImageReady)
            | (S::Ready | S::Stopped | S::Failed(_) | S::Removing | S::Removed, E::ImageFailed)
            // An existing sandbox continues: its model calls report the problem.
            | (
                S::Pulling | S::Ready | S::Stopped | S::Failed(_) | S::Removing | S::Removed,
                E::ModelUnknown | E::ConfigUnset,
            )
            | (
                S::Pulling | S::Stopped | S::Failed(_) | S::Removing | S::Removed,
                E::SpawnFailed | E::ProbeAnswered | E::ProbeTimedOut | E::Died | E::OutOfMemory,
            )
            // `liveness` counts the silence of a runtime that was ready.
            | (S::Ready, E::ProbeTimedOut)
            | (S::Pulling | S::Removed, E::Exited { .. })
            | (S::Stopped | S::Removing | S::Removed, E::StopAsked)
            | (S::Pulling | S::Starting | S::Ready | S::Removed, E::RemoveAsked)
            | (S::Pulling | S::Starting | S::Ready | S::Stopped | S::Failed(_) | S::Removed, E::Cleared) => {
                return Err(AgentTransitionError { state: self, event });
            }
        })
    }

    /// The word people see.
    pub fn word(self) -> &'static str {
        match self {
            S::Pulling => "pulling",
            S::Starting => "starting",
            S::Ready => "ready",
            S::Stopped => "stopped",
            S::Failed(_) => "failed",
            S::Removing => "removing",
            S::Removed => "removed",
        }
    }

    /// Whether turns are accepted: they run now or as soon as the agent is ready.
    pub fn takes_turns(self) -> bool {
        match self {
            S::Pulling | S::Starting | S::Ready => true,
            S::Stopped | S::Failed(_) | S::Removing | S::Removed => false,
        }
    }

    /// Whether its sandbox may be alive: between two processes, tools may still run.
    pub fn wants_sandbox(self) -> bool {
        match self {
            S::Pulling | S::Starting | S::Ready => true,
            S::Stopped | S::Failed(_) | S::Removing | S::Removed => false,
        }
    }

    /// The stored number and, for a failed agent, the stored reason.
    pub const fn codes(self) -> (i64, Option<i64>) {
        match self {
            S::Pulling => (1, None),
            S::Starting => (2, None),
            S::Ready => (3, None),
            S::Stopped => (4, None),
            S::Failed(reason) => (5, Some(reason.code())),
            S::Removing => (6, None),
            S::Removed => (7, None),
        }
    }

    pub fn from_codes(state: i64, reason: Option<i64>) -> Option<AgentState> {
        Some(match (state, reason) {
            (1, None) => S::Pulling,
            (2, None) => S::Starting,
            (3, None) => S::Ready,
            (4, None) => S::Stopped,
            (5, Some(reason)) => S::Failed(FailReason::from_code(reason)?),
            (6, None) => S::Removing,
            (7, None) => S::Removed,
            (_, _) => return None,
        })
    }
}

impl FailReason {
    pub const ALL: [FailReason; 7] = [
        FailReason::Pull,
        FailReason::Init,
        FailReason::Model,
        FailReason::ReadinessTimeout,
        FailReason::Crashed,
        FailReason::Config,
        FailReason::Oom,
    ];

    /// Whether the agent is restarted automatically, because the cause may be temporary. Other failures would repeat,
    /// or have their own policy.
    pub fn passes_by_itself(self) -> bool {
        match self {
            FailReason::Pull | FailReason::Init | FailReason::Model => true,
            FailReason::ReadinessTimeout | FailReason::Crashed | FailReason::Config | FailReason::Oom => {
                false
            }
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            FailReason::Pull => "pull",
            FailReason::Init => "init",
            FailReason::Model => "model",
            FailReason::ReadinessTimeout => "readiness_timeout",
            FailReason::Crashed => "crashed",
            FailReason::Config => "config",
            FailReason::Oom => "oom",
        }
    }

    const fn code(self) -> i64 {
        match self {
            FailReason::Pull => 1,
            FailReason::Init => 2,
            FailReason::Model => 3,
            FailReason::ReadinessTimeout => 4,
            FailReason::Crashed => 5,
            FailReason::Config => 6,
            FailReason::Oom => 7,
        }
    }

    fn from_code(code: i64) -> Option<FailReason> {
        FailReason::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl fmt::Display for AgentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            S::Failed(reason) => write!(f, "failed({})", reason.word()),
            S::Pulling | S::Starting | S::Ready | S::Stopped | S::Removing | S::Removed => {
                f.write_str(self.word())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<AgentState> {
        let mut states = vec![S::Pulling, S::Starting, S::Ready, S::Stopped];
        states.extend(FailReason::ALL.map(S::Failed));
        states.extend([S::Removing, S::Removed]);
        states
    }

    #[test]
    fn the_whole_table_is_the_checked_in_one() {
        let events = [
            E::StartAsked,
            E::RestartAsked,
            E::RetryDue,
            E::ImageReady,
            E::ImageFailed,
            E::ModelUnknown,
            E::ConfigUnset,
            E::SpawnFailed,
            E::ProbeAnswered,
            E::ProbeTimedOut,
            E::Died,
            E::Exited { clean: true },
            E::Exited { clean: false },
            E::OutOfMemory,
            E::StopAsked,
            E::RemoveAsked,
            E::Cleared,
        ];
        let mut table = String::new();
        for state in states() {
            for event in events {
                let next = state.next(event).map_or_else(|_| "-".to_owned(), |next| next.to_string());
                table.push_str(&format!("{:<26}{:<26}{next}\n", state.to_string(), format!("{event:?}")));
            }
        }
        crate::turn::tests::compare_table("agent_table.txt", include_str!("agent_table.txt"), &table);
    }

    #[test]
    fn every_state_survives_being_stored() {
        for state in states() {
            let (code, reason) = state.codes();
            assert_eq!(AgentState::from_codes(code, reason), Some(state));
        }
    }
}
