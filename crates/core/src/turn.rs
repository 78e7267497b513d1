//! The lifecycles of turns and steps, as tables.

/// The state of a turn. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnState {
    Queued,
    Running,
    Waiting,
    Done,
    Interrupted,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnEvent {
    Started,
    /// It waits for its provider, a person or another agent, its own agent failed, or it released its slot while it waits
    /// for jobs.
    Parked,
    Resumed,
    Answered,
    Failed,
    InterruptAsked,
}

/// The state of a step. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepState {
    Intent,
    Done,
    Failed,
    Interrupted,
    Unknown,
    Fenced,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepEvent {
    Succeeded,
    Failed,
    Interrupted,
    /// The outcome is unknown.
    Lost,
    /// The context's state forbade it.
    Fenced,
    /// A model call is repeated.
    Restarted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a turn that is {} cannot take `{event:?}`", .state.word())]
pub struct TurnTransitionError {
    pub state: TurnState,
    pub event: TurnEvent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a step that is {} cannot take `{event:?}`", .state.word())]
pub struct StepTransitionError {
    pub state: StepState,
    pub event: StepEvent,
}

impl TurnState {
    pub const ALL: [TurnState; 6] = [
        TurnState::Queued,
        TurnState::Running,
        TurnState::Waiting,
        TurnState::Done,
        TurnState::Interrupted,
        TurnState::Failed,
    ];

    pub fn next(self, event: TurnEvent) -> Result<TurnState, TurnTransitionError> {
        use TurnEvent as E;
        use TurnState as S;
        Ok(match (self, event) {
            (S::Queued, E::Started) => S::Running,
            (S::Running, E::Parked) => S::Waiting,
            (S::Waiting, E::Resumed) => S::Running,
            // A model call that was in flight when its turn was parked is still answered.
            (S::Running | S::Waiting, E::Answered) => S::Done,
            (S::Queued | S::Running | S::Waiting, E::Failed) => S::Failed,
            (S::Queued | S::Running | S::Waiting, E::InterruptAsked) => S::Interrupted,

            (S::Running | S::Waiting | S::Done | S::Interrupted | S::Failed, E::Started)
            | (S::Queued | S::Waiting | S::Done | S::Interrupted | S::Failed, E::Parked)
            | (S::Queued | S::Running | S::Done | S::Interrupted | S::Failed, E::Resumed)
            | (S::Queued | S::Done | S::Interrupted | S::Failed, E::Answered)
            | (S::Done | S::Interrupted | S::Failed, E::Failed | E::InterruptAsked) => {
                return Err(TurnTransitionError { state: self, event });
            }
        })
    }

    pub fn is_live(self) -> bool {
        match self {
            TurnState::Queued | TurnState::Running | TurnState::Waiting => true,
            TurnState::Done | TurnState::Interrupted | TurnState::Failed => false,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            TurnState::Queued => "queued",
            TurnState::Running => "running",
            TurnState::Waiting => "waiting",
            TurnState::Done => "done",
            TurnState::Interrupted => "interrupted",
            TurnState::Failed => "failed",
        }
    }

    /// Live states have the codes below 10, so that the store can index them.
    pub const fn code(self) -> i64 {
        match self {
            TurnState::Queued => 1,
            TurnState::Running => 2,
            TurnState::Waiting => 3,
            TurnState::Done => 10,
            TurnState::Interrupted => 11,
            TurnState::Failed => 12,
        }
    }

    pub fn from_code(code: i64) -> Option<TurnState> {
        TurnState::ALL.into_iter().find(|state| state.code() == code)
    }
}

impl StepState {
    pub const ALL: [StepState; 6] = [
        StepState::Intent,
        StepState::Done,
        StepState::Failed,
        StepState::Interrupted,
        StepState::Unknown,
        StepState::Fenced,
    ];

    pub fn next(self, event: StepEvent) -> Result<StepState, StepTransitionError> {
        use StepEvent as E;
        use StepState as S;
        Ok(match (self, event) {
            (S::Intent, E::Succeeded) => S::Done,
            (S::Intent, E::Failed) => S::Failed,
            (S::Intent, E::Interrupted) => S::Interrupted,
            (S::Intent, E::Lost) => S::Unknown,
            (S::Intent, E::Fenced) => S::Fenced,
            (S::Intent, E::Restarted) => S::Intent,

            (
                S::Done | S::Failed | S::Interrupted | S::Unknown | S::Fenced,
                E::Succeeded | E::Failed | E::Interrupted | E::Lost | E::Fenced | E::Restarted,
            ) => return Err(StepTransitionError { state: self, event }),
        })
    }

    pub fn word(self) -> &'static str {
        match self {
            StepState::Intent => "intent",
            StepState::Done => "done",
            StepState::Failed => "failed",
            StepState::Interrupted => "interrupted",
            StepState::Unknown => "unknown",
            StepState::Fenced => "fenced",
        }
    }

    pub fn code(self) -> i64 {
        match self {
            StepState::Intent => 1,
            StepState::Done => 10,
            StepState::Failed => 11,
            StepState::Interrupted => 12,
            StepState::Unknown => 13,
            StepState::Fenced => 14,
        }
    }

    pub fn from_code(code: i64) -> Option<StepState> {
        StepState::ALL.into_iter().find(|state| state.code() == code)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Compares a printed table with the checked-in one; `UPDATE_TABLES=1` writes it instead.
    pub(crate) fn compare_table(file: &str, checked_in: &str, printed: &str) {
        if std::env::var_os("UPDATE_TABLES").is_some() {
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
            std::fs::write(path, printed).unwrap();
            return;
        }
        assert_eq!(checked_in, printed, "{file} differs: read both, then run the tests with UPDATE_TABLES=1");
    }

    #[test]
    fn the_table_of_turns_is_the_checked_in_one() {
        use TurnEvent as E;
        let mut table = String::new();
        for state in TurnState::ALL {
            for event in [E::Started, E::Parked, E::Resumed, E::Answered, E::Failed, E::InterruptAsked] {
                let next = state.next(event).map_or("-", TurnState::word);
                table.push_str(&format!("{:<14}{:<18}{next}\n", state.word(), format!("{event:?}")));
            }
        }
        compare_table("turn_table.txt", include_str!("turn_table.txt"), &table);
    }

    #[test]
    fn the_table_of_steps_is_the_checked_in_one() {
        use StepEvent as E;
        let mut table = String::new();
        for state in StepState::ALL {
            for event in [E::Succeeded, E::Failed, E::Interrupted, E::Lost, E::Fenced, E::Restarted] {
                let next = state.next(event).map_or("-", StepState::word);
                table.push_str(&format!("{:<14}{:<18}{next}\n", state.word(), format!("{event:?}")));
            }
        }
        compare_table("step_table.txt", include_str!("step_table.txt"), &table);
    }

    #[test]
    fn every_state_survives_being_stored() {
        for state in TurnState::ALL {
            assert_eq!(TurnState::from_code(state.code()), Some(state));
            assert_eq!(state.is_live(), state.code() < 10);
        }
        for state in StepState::ALL {
            assert_eq!(StepState::from_code(state.code()), Some(state));
        }
    }
}
