//! The lifecycles of standalone sandboxes and of the execs in them, as tables, and their records.
//!
//! A standalone sandbox belongs to no agent. Its rows and those of its execs are never deleted, so that no id is used
//! twice.

use std::collections::BTreeMap;

use crate::Timestamp;
use crate::cause::Cause;
use crate::id::{ExecId, SandboxId};
use crate::job::JobStreamBytes;
use crate::record::{LimitsRecord, MountRecord, NetworkRecord, ToolRecord};

/// The state of a standalone sandbox. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// It is being started.
    Pending,
    Ready,
    /// Its processes are being ended.
    Stopping,
    Stopped,
    Failed,
    /// Its processes are being ended and its files removed.
    Deleting,
    Deleted,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxEvent {
    /// Its keeper is connected.
    Started,
    StartFailed,
    /// Its keeper is proven dead.
    Died,
    StopAsked,
    /// None of its processes is left.
    Ended,
    EndFailed,
    ResumeAsked,
    DeleteAsked,
    /// Nothing of it is left on the host.
    Cleared,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {} cannot take `{event:?}`", .state.word())]
pub struct SandboxTransitionError {
    pub state: SandboxState,
    pub event: SandboxEvent,
}

impl SandboxState {
    pub const ALL: [SandboxState; 7] = [
        SandboxState::Pending,
        SandboxState::Ready,
        SandboxState::Stopping,
        SandboxState::Stopped,
        SandboxState::Failed,
        SandboxState::Deleting,
        SandboxState::Deleted,
    ];

    /// The only function that changes the state of a standalone sandbox.
    pub fn next(self, event: SandboxEvent) -> Result<SandboxState, SandboxTransitionError> {
        use SandboxEvent as E;
        use SandboxState as S;
        Ok(match (self, event) {
            // An adopted sandbox is connected again.
            (S::Pending | S::Ready, E::Started) => S::Ready,
            (S::Pending | S::Ready, E::StartFailed | E::Died) => S::Failed,
            (S::Pending | S::Ready, E::StopAsked) => S::Stopping,
            (S::Stopping, E::Ended) => S::Stopped,
            (S::Stopping, E::EndFailed) => S::Failed,
            (S::Stopped | S::Failed, E::ResumeAsked) => S::Pending,
            // Asking again repeats a removal that failed.
            (S::Pending | S::Ready | S::Stopping | S::Stopped | S::Failed | S::Deleting, E::DeleteAsked) => {
                S::Deleting
            }
            (S::Deleting, E::Cleared) => S::Deleted,

            (S::Stopping | S::Stopped | S::Failed | S::Deleting | S::Deleted, E::Started)
            | (
                S::Stopping | S::Stopped | S::Failed | S::Deleting | S::Deleted,
                E::StartFailed | E::Died | E::StopAsked,
            )
            | (
                S::Pending | S::Ready | S::Stopped | S::Failed | S::Deleting | S::Deleted,
                E::Ended | E::EndFailed,
            )
            | (S::Pending | S::Ready | S::Stopping | S::Deleting | S::Deleted, E::ResumeAsked)
            | (S::Deleted, E::DeleteAsked)
            | (S::Pending | S::Ready | S::Stopping | S::Stopped | S::Failed | S::Deleted, E::Cleared) => {
                return Err(SandboxTransitionError { state: self, event });
            }
        })
    }

    /// Whether something happens with it that no client asked for: a start loads it.
    pub fn is_live(self) -> bool {
        match self {
            SandboxState::Pending | SandboxState::Ready | SandboxState::Stopping | SandboxState::Deleting => {
                true
            }
            SandboxState::Stopped | SandboxState::Failed | SandboxState::Deleted => false,
        }
    }

    /// The word that people see. One that is being stopped is still `ready`, with a mark of its own.
    pub fn word(self) -> &'static str {
        match self {
            SandboxState::Pending => "pending",
            SandboxState::Ready | SandboxState::Stopping => "ready",
            SandboxState::Stopped => "stopped",
            SandboxState::Failed => "failed",
            SandboxState::Deleting => "deleting",
            SandboxState::Deleted => "deleted",
        }
    }

    /// The states that people call by this word; none if it is not one.
    pub fn from_word(word: &str) -> Vec<SandboxState> {
        SandboxState::ALL.into_iter().filter(|state| state.word() == word).collect()
    }

    /// Live states have the codes below 10, so that the store can index them.
    pub const fn code(self) -> i64 {
        match self {
            SandboxState::Pending => 1,
            SandboxState::Ready => 2,
            SandboxState::Stopping => 3,
            SandboxState::Deleting => 4,
            SandboxState::Stopped => 10,
            SandboxState::Failed => 11,
            SandboxState::Deleted => 12,
        }
    }

    pub fn from_code(code: i64) -> Option<SandboxState> {
        SandboxState::ALL.into_iter().find(|state| state.code() == code)
    }
}

/// Why a sandbox failed, or could not be removed. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxFailReason {
    /// It could not be started.
    Start,
    /// It ended by itself, or was killed.
    Died,
    /// Its processes could not be ended.
    NotEnded,
    /// Its files could not be removed.
    NotRemoved,
}

impl SandboxFailReason {
    pub const ALL: [SandboxFailReason; 4] = [
        SandboxFailReason::Start,
        SandboxFailReason::Died,
        SandboxFailReason::NotEnded,
        SandboxFailReason::NotRemoved,
    ];

    pub fn word(self) -> &'static str {
        match self {
            SandboxFailReason::Start => "start",
            SandboxFailReason::Died => "died",
            SandboxFailReason::NotEnded => "not_ended",
            SandboxFailReason::NotRemoved => "not_removed",
        }
    }

    pub fn code(self) -> i64 {
        match self {
            SandboxFailReason::Start => 1,
            SandboxFailReason::Died => 2,
            SandboxFailReason::NotEnded => 3,
            SandboxFailReason::NotRemoved => 4,
        }
    }

    pub fn from_code(code: i64) -> Option<SandboxFailReason> {
        SandboxFailReason::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

/// The resolved settings of a sandbox; written once.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SandboxRecord {
    #[prost(btree_map = "string, string", tag = "1")]
    pub env: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub labels: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "3")]
    pub mounts: Vec<MountRecord>,
    #[prost(message, repeated, tag = "4")]
    pub tools: Vec<ToolRecord>,
    #[prost(message, optional, tag = "5")]
    pub limits: Option<LimitsRecord>,
    #[prost(message, optional, tag = "6")]
    pub network: Option<NetworkRecord>,
    /// The executor that runs it.
    #[prost(string, tag = "7")]
    pub executor: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRow {
    pub id: SandboxId,
    pub state: SandboxState,
    /// Raised by every start; an adopted keeper keeps its own.
    pub incarnation: u32,
    /// Its own user, when the daemon runs as root.
    pub uid: Option<u32>,
    pub created_at: Timestamp,
    /// When its state changed last.
    pub changed_at: Timestamp,
    pub ready_at: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
    pub failure: Option<SandboxFailure>,
    pub record: SandboxRecord,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFailure {
    pub reason: SandboxFailReason,
    pub detail: String,
}

/// A sandbox in the store, for an engine that does not have it in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxFact {
    pub row: SandboxRow,
    /// The newest number in its stream of events.
    pub head: u64,
}

/// The state of an exec in a standalone sandbox. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxExecState {
    Running,
    /// It ran and ended, with any exit code.
    Finished,
    /// It could not be started, or was lost.
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SandboxExecEvent {
    Ended,
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an exec that is {} cannot take `{event:?}`", .state.word())]
pub struct SandboxExecTransitionError {
    pub state: SandboxExecState,
    pub event: SandboxExecEvent,
}

impl SandboxExecState {
    pub const ALL: [SandboxExecState; 4] = [
        SandboxExecState::Running,
        SandboxExecState::Finished,
        SandboxExecState::Failed,
        SandboxExecState::Cancelled,
    ];

    pub fn next(self, event: SandboxExecEvent) -> Result<SandboxExecState, SandboxExecTransitionError> {
        use SandboxExecEvent as E;
        use SandboxExecState as S;
        Ok(match (self, event) {
            (S::Running, E::Ended) => S::Finished,
            (S::Running, E::Failed) => S::Failed,
            (S::Running, E::Cancelled) => S::Cancelled,

            (S::Finished | S::Failed | S::Cancelled, E::Ended | E::Failed | E::Cancelled) => {
                return Err(SandboxExecTransitionError { state: self, event });
            }
        })
    }

    pub fn is_open(self) -> bool {
        match self {
            SandboxExecState::Running => true,
            SandboxExecState::Finished | SandboxExecState::Failed | SandboxExecState::Cancelled => false,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            SandboxExecState::Running => "running",
            SandboxExecState::Finished => "finished",
            SandboxExecState::Failed => "failed",
            SandboxExecState::Cancelled => "cancelled",
        }
    }

    pub fn from_word(word: &str) -> Option<SandboxExecState> {
        SandboxExecState::ALL.into_iter().find(|state| state.word() == word)
    }

    /// Open states have the codes below 10.
    pub const fn code(self) -> i64 {
        match self {
            SandboxExecState::Running => 1,
            SandboxExecState::Finished => 10,
            SandboxExecState::Failed => 11,
            SandboxExecState::Cancelled => 12,
        }
    }

    pub fn from_code(code: i64) -> Option<SandboxExecState> {
        SandboxExecState::ALL.into_iter().find(|state| state.code() == code)
    }
}

/// Why an exec failed. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExecFailReason {
    /// There is no such program in the sandbox.
    NotFound,
    /// The program cannot be executed.
    NotExecutable,
    NotStarted,
    /// Its outcome is unknown.
    Lost,
}

impl ExecFailReason {
    pub const ALL: [ExecFailReason; 4] = [
        ExecFailReason::NotFound,
        ExecFailReason::NotExecutable,
        ExecFailReason::NotStarted,
        ExecFailReason::Lost,
    ];

    pub fn word(self) -> &'static str {
        match self {
            ExecFailReason::NotFound => "not_found",
            ExecFailReason::NotExecutable => "not_executable",
            ExecFailReason::NotStarted => "not_started",
            ExecFailReason::Lost => "lost",
        }
    }

    pub fn code(self) -> i64 {
        match self {
            ExecFailReason::NotFound => 1,
            ExecFailReason::NotExecutable => 2,
            ExecFailReason::NotStarted => 3,
            ExecFailReason::Lost => 4,
        }
    }

    pub fn from_code(code: i64) -> Option<ExecFailReason> {
        ExecFailReason::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

/// The request of an exec; written once. Its stdin is stored separately and read at its start.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SandboxExecRequest {
    /// The program and its arguments.
    #[prost(string, repeated, tag = "1")]
    pub command: Vec<String>,
    /// Absent: the workspace.
    #[prost(string, optional, tag = "2")]
    pub cwd: Option<String>,
    /// Takes precedence over the environment of the sandbox.
    #[prost(btree_map = "string, string", tag = "3")]
    pub env: BTreeMap<String, String>,
    /// Most bytes that are kept of each stream.
    #[prost(uint64, tag = "4")]
    pub output_bytes: u64,
    /// The boot in which it was accepted.
    #[prost(string, tag = "5")]
    pub boot: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SandboxExecRow {
    pub id: ExecId,
    pub sandbox: SandboxId,
    pub created_at: Timestamp,
    pub request: SandboxExecRequest,
    pub progress: SandboxExecProgress,
}

/// The part of the row of an exec that changes, always written as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxExecProgress {
    pub state: SandboxExecState,
    /// Why it is being cancelled, once a cancel was requested.
    pub cancel: Option<String>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The limit that it hit.
    pub cause: Option<Cause>,
    pub reason: Option<ExecFailReason>,
    /// Why it has failed or was cancelled.
    pub error: Option<String>,
    pub stdout: JobStreamBytes,
    pub stderr: JobStreamBytes,
}

impl SandboxExecProgress {
    pub fn running() -> SandboxExecProgress {
        SandboxExecProgress {
            state: SandboxExecState::Running,
            cancel: None,
            finished_at: None,
            exit_code: None,
            signal: None,
            cause: None,
            reason: None,
            error: None,
            stdout: JobStreamBytes::default(),
            stderr: JobStreamBytes::default(),
        }
    }
}

/// One change of the stored sandboxes.
#[derive(Debug, Clone, PartialEq)]
pub enum SandboxWrite {
    New(Box<SandboxRow>),
    /// Everything of a row that changes.
    Progress(Box<SandboxRow>),
    NewExec {
        row: Box<SandboxExecRow>,
        stdin: Vec<u8>,
    },
    ExecProgress {
        id: ExecId,
        progress: Box<SandboxExecProgress>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_sandboxes_and_of_their_execs_are_the_checked_in_ones() {
        use SandboxEvent as E;
        let events = [
            E::Started,
            E::StartFailed,
            E::Died,
            E::StopAsked,
            E::Ended,
            E::EndFailed,
            E::ResumeAsked,
            E::DeleteAsked,
            E::Cleared,
        ];
        let mut table = String::new();
        for state in SandboxState::ALL {
            for event in events {
                let next = state.next(event).map_or("-".to_owned(), |next| format!("{next:?}"));
                table.push_str(&format!("{:<14}{:<18}{next}\n", format!("{state:?}"), format!("{event:?}")));
            }
        }
        for state in SandboxExecState::ALL {
            for event in [SandboxExecEvent::Ended, SandboxExecEvent::Failed, SandboxExecEvent::Cancelled] {
                let next = state.next(event).map_or("-", SandboxExecState::word);
                let (state, event) = (format!("exec {}", state.word()), format!("{event:?}"));
                table.push_str(&format!("{state:<16}{event:<16}{next}\n"));
            }
        }
        crate::turn::tests::compare_table("sandbox_table.txt", include_str!("sandbox_table.txt"), &table);
    }

    #[test]
    fn a_deleted_sandbox_never_changes_and_every_other_one_can_be_deleted() {
        use SandboxEvent as E;
        for event in [E::Started, E::StopAsked, E::ResumeAsked, E::DeleteAsked, E::Cleared] {
            assert!(SandboxState::Deleted.next(event).is_err(), "{event:?}");
        }
        for state in SandboxState::ALL.into_iter().filter(|state| *state != SandboxState::Deleted) {
            assert_eq!(state.next(E::DeleteAsked), Ok(SandboxState::Deleting));
        }
    }

    #[test]
    fn every_state_and_reason_survives_being_stored() {
        for state in SandboxState::ALL {
            assert_eq!(SandboxState::from_code(state.code()), Some(state));
            assert_eq!(state.code() < 10, state.is_live());
            assert!(SandboxState::from_word(state.word()).contains(&state));
        }
        for state in SandboxExecState::ALL {
            assert_eq!(SandboxExecState::from_code(state.code()), Some(state));
            assert_eq!(SandboxExecState::from_word(state.word()), Some(state));
            assert_eq!(state.code() < 10, state.is_open());
        }
        for reason in SandboxFailReason::ALL {
            assert_eq!(SandboxFailReason::from_code(reason.code()), Some(reason));
        }
        for reason in ExecFailReason::ALL {
            assert_eq!(ExecFailReason::from_code(reason.code()), Some(reason));
        }
    }
}
