//! Refusals of requests about agents and their lineages.

use lodge_core::agent::AgentState;
use lodge_core::record::{AgentRow, FailureRecord, LineageRow};
use lodge_core::{LineageId, Timestamp};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AgentRefusal {
    #[error("no agent `{given}`")]
    NotFound { given: String },
    #[error("`{name}` cannot be an agent's name")]
    BadName { name: String },
    #[error("another agent is named `{name}`")]
    NameTaken { name: String },
    #[error("agent `{name}` is {}", state.word())]
    WrongState { name: String, state: AgentState },
    /// It runs, and only a stopped agent can be removed.
    #[error("agent `{name}` is {}", state.word())]
    NotStopped { name: String, state: AgentState },
    #[error("agent `{name}` is {}", state.word())]
    NotRunning { name: String, state: AgentState, why: Option<String>, retry_at: Option<Timestamp> },
    #[error("agent `{name}` has running jobs: {running}")]
    JobsRunning { name: String, running: usize },
    #[error("agent `{name}` could not be ended")]
    NotEnded { name: String, cause: String },
    #[error("the files of agent `{name}` could not be removed")]
    NotCleared { name: String, cause: String },
}

impl AgentRefusal {
    pub(crate) fn wrong_state(row: &AgentRow, state: AgentState) -> Self {
        AgentRefusal::WrongState { name: row.name.clone(), state }
    }

    pub(crate) fn code(&self) -> &'static str {
        match self {
            AgentRefusal::NotFound { .. } => "agent.not_found",
            AgentRefusal::BadName { .. } => "agent.bad_name",
            AgentRefusal::NameTaken { .. } => "agent.name_taken",
            AgentRefusal::WrongState { .. } | AgentRefusal::NotStopped { .. } => "agent.wrong_state",
            AgentRefusal::NotRunning { .. } => "agent.not_running",
            AgentRefusal::JobsRunning { .. } => "agent.jobs_running",
            AgentRefusal::NotEnded { .. } => "agent.not_ended",
            AgentRefusal::NotCleared { .. } => "agent.not_cleared",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            AgentRefusal::NotFound { .. } => "`lodge ps -a` lists all agents".to_owned(),
            AgentRefusal::BadName { .. } => {
                "1 to 63 letters, digits, `.`, `_` or `-`, starting with a letter or digit, and not with `agt_`"
                    .to_owned()
            }
            AgentRefusal::NameTaken { name } => {
                format!("choose another name, or remove that one with `lodge rm {name}`")
            }
            AgentRefusal::WrongState { name, state } => match state {
                AgentState::Pulling | AgentState::Starting | AgentState::Ready => {
                    format!("it runs already; `lodge agent inspect {name}` shows it")
                }
                AgentState::Stopped | AgentState::Failed(_) => {
                    format!("start it with `lodge start {name}`")
                }
                AgentState::Removing | AgentState::Removed => "it is being removed".to_owned(),
            },
            AgentRefusal::NotStopped { name, .. } => format!("stop it first, or run `lodge rm -f {name}`"),
            AgentRefusal::NotRunning { name, retry_at: Some(at), .. } => {
                format!("it is tried again at {at}; `lodge start {name}` tries now")
            }
            AgentRefusal::NotRunning { name, state: AgentState::Failed(_), .. } => format!(
                "its start is not tried again by itself: fix the cause, then run `lodge start {name}`; \
                 `lodge logs {name}` shows its log"
            ),
            AgentRefusal::NotRunning { name, retry_at: None, .. } => {
                format!("start it with `lodge start {name}`")
            }
            AgentRefusal::JobsRunning { .. } => {
                "try again when they have ended, or set `jobs` to `cancel` to cancel them".to_owned()
            }
            AgentRefusal::NotEnded { name, .. } => {
                format!("inspect its process with `lodge agent inspect {name}`, then try again")
            }
            AgentRefusal::NotCleared { name, .. } => format!("fix that, then run `lodge rm {name}` again"),
        }
    }

    pub(crate) fn cause(&self) -> Option<&str> {
        match self {
            AgentRefusal::NotEnded { cause, .. } | AgentRefusal::NotCleared { cause, .. } => Some(cause),
            AgentRefusal::NotRunning { why, .. } => why.as_deref(),
            AgentRefusal::NotFound { .. }
            | AgentRefusal::BadName { .. }
            | AgentRefusal::NameTaken { .. }
            | AgentRefusal::WrongState { .. }
            | AgentRefusal::NotStopped { .. }
            | AgentRefusal::JobsRunning { .. } => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineageRefusal {
    /// An operator has to decide first.
    #[error("the work of agent `{name}` waits for your decision")]
    AskPending { lineage: LineageId, name: String, cause: String },
    #[error("lineage {lineage} is {state}: there is nothing to resolve")]
    Settled { lineage: LineageId, state: &'static str },
}

impl LineageRefusal {
    pub(crate) fn ask_pending(lineage: &LineageRow, name: &str) -> Self {
        let cause = lineage.detail.clone().unwrap_or_default();
        LineageRefusal::AskPending { lineage: lineage.id.clone(), name: name.to_owned(), cause }
    }

    pub(crate) fn settled(lineage: &LineageId, state: &'static str) -> Self {
        LineageRefusal::Settled { lineage: lineage.clone(), state }
    }

    pub(crate) fn code(&self) -> &'static str {
        match self {
            LineageRefusal::AskPending { .. } => "lineage.ask_pending",
            LineageRefusal::Settled { .. } => "lineage.settled",
        }
    }

    pub(crate) fn hint(&self) -> String {
        match self {
            LineageRefusal::AskPending { lineage, .. } => {
                format!("`lodge lineage resolve {lineage} --revive` continues it, `--reap` drops it")
            }
            LineageRefusal::Settled { .. } => {
                "`lodge lineage ls` shows which lineages wait for a decision".to_owned()
            }
        }
    }

    pub(crate) fn cause(&self) -> Option<&str> {
        match self {
            LineageRefusal::AskPending { cause, .. } => Some(cause),
            LineageRefusal::Settled { .. } => None,
        }
    }
}

/// Why the turns of an agent fail with it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentFault {
    #[error("{detail}")]
    OutOfMemory { detail: String },
}

impl AgentFault {
    pub(crate) fn record(&self) -> FailureRecord {
        let (code, hint) = match self {
            AgentFault::OutOfMemory { .. } => {
                ("agent.oom", "raise `LIMIT memory`, then `lodge start` the agent")
            }
        };
        FailureRecord { code: code.to_owned(), message: self.to_string(), hint: Some(hint.to_owned()) }
    }
}
