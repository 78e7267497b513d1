//! The lifecycle of a job, as a table, and its records.

use std::collections::BTreeMap;

use crate::Timestamp;
use crate::cause::Cause;
use crate::id::{AgentId, JobId, SessionId};

/// The label with the session of a job. Only the daemon sets it.
pub const SESSION_LABEL: &str = "io.lodge.session-id";
/// Keys with this prefix are reserved for the daemon.
pub const RESERVED_LABELS: &str = "io.lodge.";

/// The state of a job. Codes are stored: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobState {
    Pending,
    Running,
    /// It ran and ended, with any exit code.
    Done,
    /// It could not be started, timed out or was lost.
    Error,
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JobEvent {
    Started,
    Ended,
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {} cannot take `{event:?}`", .state.word())]
pub struct JobTransitionError {
    pub state: JobState,
    pub event: JobEvent,
}

impl JobState {
    pub const ALL: [JobState; 5] =
        [JobState::Pending, JobState::Running, JobState::Done, JobState::Error, JobState::Cancelled];

    pub fn next(self, event: JobEvent) -> Result<JobState, JobTransitionError> {
        use JobEvent as E;
        use JobState as S;
        Ok(match (self, event) {
            (S::Pending, E::Started) => S::Running,
            (S::Running, E::Ended) => S::Done,
            (S::Pending | S::Running, E::Failed) => S::Error,
            (S::Pending | S::Running, E::Cancelled) => S::Cancelled,

            (S::Running | S::Done | S::Error | S::Cancelled, E::Started)
            | (S::Pending | S::Done | S::Error | S::Cancelled, E::Ended)
            | (S::Done | S::Error | S::Cancelled, E::Failed | E::Cancelled) => {
                return Err(JobTransitionError { state: self, event });
            }
        })
    }

    /// Whether it is pending or running.
    pub fn is_open(self) -> bool {
        match self {
            JobState::Pending | JobState::Running => true,
            JobState::Done | JobState::Error | JobState::Cancelled => false,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            JobState::Pending => "pending",
            JobState::Running => "running",
            JobState::Done => "done",
            JobState::Error => "error",
            JobState::Cancelled => "cancelled",
        }
    }

    pub fn from_word(word: &str) -> Option<JobState> {
        JobState::ALL.into_iter().find(|state| state.word() == word)
    }

    /// Open states have the codes below 10, so that the store can index them.
    pub const fn code(self) -> i64 {
        match self {
            JobState::Pending => 1,
            JobState::Running => 2,
            JobState::Done => 10,
            JobState::Error => 11,
            JobState::Cancelled => 12,
        }
    }

    pub fn from_code(code: i64) -> Option<JobState> {
        JobState::ALL.into_iter().find(|state| state.code() == code)
    }
}

/// The variable part of a job's request; written once. Its stdin is stored separately and read at its start.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct JobRequest {
    #[prost(string, tag = "1")]
    pub bin: String,
    #[prost(string, repeated, tag = "2")]
    pub args: Vec<String>,
    /// The timeout, counted from its start. 0: no limit.
    #[prost(uint64, tag = "3")]
    pub timeout_ms: u64,
    /// Most bytes that are kept of each stream.
    #[prost(uint64, tag = "4")]
    pub output_bytes: u64,
    /// The requested labels. The daemon derives its own.
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: BTreeMap<String, String>,
    /// The turn whose tool submitted it.
    #[prost(string, optional, tag = "6")]
    pub turn: Option<String>,
}

/// Byte counts of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobStreamBytes {
    /// All that was written.
    pub seen: u64,
    /// The part that was kept.
    pub kept: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    pub id: JobId,
    pub agent: AgentId,
    pub session: Option<SessionId>,
    pub priority: i32,
    pub created_at: Timestamp,
    pub request: JobRequest,
    pub progress: JobProgress,
    /// Its output is only in the archive.
    pub archived: bool,
    /// The job's end is reported to its session.
    pub told: bool,
    /// Its output was removed.
    pub output_removed: bool,
}

/// The state of a job: the part of a row that changes, always written as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobProgress {
    pub state: JobState,
    /// Why the job is being cancelled, once a cancel was requested.
    pub cancel: Option<String>,
    /// The boot in which it was started.
    pub boot: Option<String>,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The limit that it hit.
    pub cause: Option<Cause>,
    /// Why it has failed, or was cancelled.
    pub error: Option<String>,
    pub stdout: JobStreamBytes,
    pub stderr: JobStreamBytes,
}

impl JobProgress {
    pub fn pending() -> JobProgress {
        JobProgress {
            state: JobState::Pending,
            cancel: None,
            boot: None,
            started_at: None,
            finished_at: None,
            exit_code: None,
            signal: None,
            cause: None,
            error: None,
            stdout: JobStreamBytes::default(),
            stderr: JobStreamBytes::default(),
        }
    }
}

impl JobRow {
    /// All labels, the daemon's own included.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.request.labels.clone();
        if let Some(session) = &self.session {
            labels.insert(SESSION_LABEL.to_owned(), session.to_string());
        }
        labels
    }
}

/// One change of the stored jobs.
#[derive(Debug, Clone, PartialEq)]
pub enum JobWrite {
    New {
        row: Box<JobRow>,
        stdin: Vec<u8>,
    },
    Progress {
        id: JobId,
        progress: Box<JobProgress>,
    },
    /// Its output is only in the archive.
    Archived {
        id: JobId,
    },
    /// The job's end is reported to its session.
    Told {
        id: JobId,
    },
    /// Its output must be removed from the archive.
    OutputRemoved {
        id: JobId,
    },
    /// The job is deleted with its labels, and its output must be removed from the archive.
    Gone {
        id: JobId,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_jobs_is_the_checked_in_one() {
        use JobEvent as E;
        let mut table = String::new();
        for state in JobState::ALL {
            for event in [E::Started, E::Ended, E::Failed, E::Cancelled] {
                let next = state.next(event).map_or("-", JobState::word);
                table.push_str(&format!("{:<14}{:<18}{next}\n", state.word(), format!("{event:?}")));
            }
        }
        crate::turn::tests::compare_table("job_table.txt", include_str!("job_table.txt"), &table);
    }

    #[test]
    fn what_ended_never_changes() {
        let events = [JobEvent::Started, JobEvent::Ended, JobEvent::Failed, JobEvent::Cancelled];
        for state in JobState::ALL.into_iter().filter(|state| !state.is_open()) {
            for event in events {
                assert_eq!(state.next(event), Err(JobTransitionError { state, event }));
            }
        }
    }

    #[test]
    fn every_state_survives_being_stored_and_being_said() {
        for state in JobState::ALL {
            assert_eq!(JobState::from_code(state.code()), Some(state));
            assert_eq!(JobState::from_word(state.word()), Some(state));
            assert_eq!(state.code() < 10, state.is_open());
        }
    }
}
