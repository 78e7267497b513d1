//! Answers to callers. The API renders them; the engine knows no wire formats.

use lodge_core::job::JobRow;
use lodge_core::lineage::Policy;
use lodge_core::quarantine::QuarantineRow;
use lodge_core::record::{AgentRow, BinImageRecord, LineageRow};
use lodge_core::sandbox::{SandboxExecRow, SandboxRow};
use lodge_core::summary::{SessionSummary, TurnDetail};
use lodge_core::token::TokenRow;
use lodge_core::{SessionId, Timestamp, TurnId};

use crate::agents::UpdateTiming;
use crate::quarantine::Release;

#[derive(Debug, Clone)]
pub enum Answer {
    Agent(Box<AgentAnswer>),
    Lineage(Box<LineageAnswer>),
    Turn(Box<TurnDetail>),
    Session(Box<SessionSummary>),
    SessionDeleted(SessionId),
    Job(Box<JobAnswer>),
    Sandbox(Box<SandboxRow>),
    SandboxExec(Box<SandboxExecRow>),
    Image(Box<ImageAnswer>),
    ImageRemoved(ImageRemoval),
    Token(Box<TokenAnswer>),
    Work(Box<ReleasedWork>),
    Rendered(RenderedAnswer),
}

/// An answer as a client reads it, rendered by the API: now, or when the request was first decided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedAnswer(pub Box<str>);

/// Renders an answer, to be recorded with the id of its request.
pub type AnswerRenderer = fn(&Answer) -> RenderedAnswer;

#[derive(Debug, Clone)]
pub struct AgentAnswer {
    pub row: AgentRow,
    /// It has a turn or a job in flight.
    pub at_work: bool,
    pub quarantine: Vec<QuarantineRow>,
    /// For an update: when it takes effect.
    pub in_force: Option<UpdateTiming>,
}

#[derive(Debug, Clone)]
pub struct LineageAnswer {
    pub row: LineageRow,
    pub agent_name: String,
    pub policy: Policy,
    pub last_turn: Option<TurnId>,
}

#[derive(Debug, Clone)]
pub struct JobAnswer {
    pub row: JobRow,
    pub agent_name: String,
}

#[derive(Debug, Clone)]
pub struct ImageAnswer {
    pub digest: String,
    pub refs: Vec<String>,
    /// The names that this request added.
    pub named: Vec<String>,
    pub bytes: u64,
    /// How many agents use it.
    pub agents: u64,
    pub named_at: Timestamp,
    pub complete: bool,
    /// For a tool image.
    pub bin: Option<BinAnswer>,
}

#[derive(Debug, Clone)]
pub struct BinAnswer {
    pub record: BinImageRecord,
    /// How many agents and images use it.
    pub users: u64,
}

#[derive(Debug, Clone)]
pub struct ImageRemoval {
    pub digest: String,
    pub untagged: Vec<String>,
    /// The image was removed with its last name.
    pub removed: bool,
}

#[derive(Debug, Clone)]
pub struct TokenAnswer {
    pub row: TokenRow,
    /// The time of the request, which decides whether the token has expired.
    pub at: Timestamp,
}

#[derive(Debug, Clone)]
pub struct ReleasedWork {
    pub row: QuarantineRow,
    pub release: Release,
}
