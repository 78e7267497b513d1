//! Records: rows as the engine writes and reads them, and their variable parts as protobuf.
//!
//! Identifiers, numbers and states are columns and may change. Protobuf parts are written as a whole, and all but an
//! agent's spec only once, so that fields of a newer release survive an older one.

mod bounds;
mod image;
mod target;
mod write;

use std::collections::{BTreeMap, BTreeSet};

use crate::Timestamp;
use crate::agent::AgentState;
use crate::cause::Cause;
use crate::epoch::Epoch;
use crate::event::EventBody;
use crate::id::{AgentId, LineageId, SandboxId, SessionId, StepId, TurnId};
use crate::job::JobRow;
use crate::lineage::LineageState;
use crate::park::ParkReason;
use crate::quarantine::QuarantineRow;
use crate::sandbox::{SandboxExecRow, SandboxRow};
use crate::session::{ForkPoint, TurnLinks};
use crate::token::TokenRow;
use crate::turn::{StepState, TurnState};

pub use self::bounds::{LimitsRecord, NetworkMode, NetworkRecord};
pub use self::image::{
    AgentSpec, BinImageRecord, BinPlatformRecord, BinRecord, ConfigRecord, ContextRecord, EnvRecord,
    FileRecord, HostProgramRecord, ImageContents, ImageFact, ImageKind, ImageRecord, ImageRow, ImageState,
    MountOwner, MountRecord, RuntimeRecord, ToolRecord, images_of, pinned_digest,
};

pub use self::target::{JobWait, JobWaitTool, StepTarget, StepTargetError};
pub use self::write::{AgentWrite, ImageWrite, SessionWrite, TurnWrite, WorkWrite, Write};

/// The stream of events that belong to no agent.
pub const DAEMON_STREAM: &str = "daemon";

/// One message of a conversation, its variable part.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MessageBody {
    #[prost(string, tag = "1")]
    pub text: String,
    #[prost(message, repeated, tag = "2")]
    pub calls: Vec<CallRecord>,
    /// For a tool's message: the call it answers.
    #[prost(string, optional, tag = "3")]
    pub call: Option<String>,
    /// For an assistant's message: the model's reasoning.
    #[prost(message, optional, tag = "4")]
    pub reasoning: Option<ReasoningRecord>,
    /// For a tool's message: the call failed.
    #[prost(bool, tag = "5")]
    pub failed: bool,
    /// For a user's message: the JSON schema that the answer must match.
    #[prost(string, optional, tag = "6")]
    pub schema: Option<String>,
    /// For an assistant's message: the turn ended before it was complete.
    #[prost(bool, tag = "7")]
    pub partial: bool,
    /// For a user's message: the note before it, such as a list of ended jobs.
    #[prost(string, optional, tag = "8")]
    pub note: Option<String>,
    /// For a tool's message: the turn ended before the call had a result.
    #[prost(bool, tag = "9")]
    pub cut: bool,
}

/// A model's reasoning before an answer, in the provider's own format. It is opaque, and is sent back only to the model
/// that produced it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ReasoningRecord {
    /// The provider's protocol.
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "2")]
    pub provider: String,
    #[prost(string, tag = "3")]
    pub model: String,
    #[prost(bytes = "vec", repeated, tag = "4")]
    pub blocks: Vec<Vec<u8>>,
}

impl MessageBody {
    /// Its share of a conversation, in bytes.
    pub fn weight(&self) -> u64 {
        prost::Message::encoded_len(self) as u64
    }
}

/// A tool call as the model wrote it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct CallRecord {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub arguments: String,
}

/// What a tool call is about to run. It is written with the intent, so that the exec can be requested again. Tag 6 is
/// taken: see `target.rs`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct ExecRequest {
    #[prost(string, tag = "1")]
    pub bin: String,
    #[prost(string, repeated, tag = "2")]
    pub args: Vec<String>,
    #[prost(bytes = "vec", tag = "3")]
    pub stdin: Vec<u8>,
    /// The boot in which the intent was written.
    #[prost(string, tag = "4")]
    pub boot: String,
    /// The timeout, counted from its start. 0: no limit.
    #[prost(uint64, tag = "5")]
    pub timeout_ms: u64,
}

/// Why a turn failed, for people and scripts.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FailureRecord {
    #[prost(string, tag = "1")]
    pub code: String,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(string, optional, tag = "3")]
    pub hint: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// All input, cached by the provider or not.
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// The part of the input that the provider had cached.
    pub cached_tokens: u64,
    /// The cost in millionths of a dollar; absent if a price is unknown.
    pub micro_usd: Option<u64>,
}

impl std::ops::AddAssign for Usage {
    /// A sum has a cost only if all of its parts have one.
    fn add_assign(&mut self, more: Usage) {
        self.micro_usd = match (self.micro_usd, more.micro_usd) {
            (Some(before), Some(more)) => Some(before.saturating_add(more)),
            (None, cost) if *self == Usage::default() => cost,
            (cost, None) if more == Usage::default() => cost,
            (None, Some(_)) | (Some(_), None) | (None, None) => None,
        };
        self.input_tokens = self.input_tokens.saturating_add(more.input_tokens);
        self.output_tokens = self.output_tokens.saturating_add(more.output_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(more.cached_tokens);
    }
}

/// The author of a message. Codes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    User,
    Assistant,
    Tool,
}

impl Role {
    pub fn code(self) -> i64 {
        match self {
            Role::User => 1,
            Role::Assistant => 2,
            Role::Tool => 3,
        }
    }

    pub fn from_code(code: i64) -> Option<Role> {
        [Role::User, Role::Assistant, Role::Tool].into_iter().find(|role| role.code() == code)
    }

    pub fn word(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepKind {
    Model,
    Tool,
}

impl StepKind {
    pub fn code(self) -> i64 {
        match self {
            StepKind::Model => 1,
            StepKind::Tool => 2,
        }
    }

    pub fn from_code(code: i64) -> Option<StepKind> {
        [StepKind::Model, StepKind::Tool].into_iter().find(|kind| kind.code() == code)
    }

    pub fn word(self) -> &'static str {
        match self {
            StepKind::Model => "model",
            StepKind::Tool => "tool",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct AgentRow {
    pub id: AgentId,
    pub name: String,
    pub image: String,
    pub image_digest: String,
    pub lineage: LineageId,
    pub sandbox: SandboxId,
    pub state: AgentState,
    pub failure_detail: Option<String>,
    /// Raised by every new sandbox; an adopted keeper keeps its own.
    pub incarnation: u32,
    /// Raised by every start of its runtime; a sandbox may have several.
    pub runs: u32,
    /// The sandbox's own user, when the daemon runs as root.
    pub uid: Option<u32>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub spec: AgentSpec,
    pub retry: StartRetry,
    pub next: Option<NextSpec>,
}

impl AgentRow {
    /// Whether the agent changes only by a request, apart from open turns, jobs, quarantined work and output that is
    /// not archived.
    pub fn is_at_rest(&self) -> bool {
        let ended = match self.state {
            AgentState::Stopped | AgentState::Failed(_) => true,
            AgentState::Pulling
            | AgentState::Starting
            | AgentState::Ready
            | AgentState::Removing
            | AgentState::Removed => false,
        };
        ended && self.retry.at.is_none() && self.next.is_none()
    }
}

/// An agent in the store, for an engine that does not have it in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentFact {
    pub row: AgentRow,
    /// Its newest one.
    pub lineage: LineageRow,
    /// The newest number in its stream of events.
    pub head: u64,
}

/// The state of automatic restarts after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StartRetry {
    /// Failures in a row, without an operator between them.
    pub failures: u32,
    /// The time of the next attempt.
    pub at: Option<Timestamp>,
}

/// A pending update, which applies after the running turns.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NextSpec {
    #[prost(string, tag = "1")]
    pub image: String,
    #[prost(string, tag = "2")]
    pub image_digest: String,
    #[prost(message, required, tag = "3")]
    pub spec: AgentSpec,
}

/// The identity of an agent's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineageRow {
    pub id: LineageId,
    pub agent: AgentId,
    pub state: LineageState,
    /// How often a new process took over.
    pub revivals: u32,
    /// Deaths in a row, without a finished turn between them.
    pub deaths: u32,
    /// How its last process died.
    pub detail: Option<String>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionRow {
    pub id: SessionId,
    pub agent: AgentId,
    pub sender: Option<String>,
    pub created_at: Timestamp,
    pub forked: Option<ForkPoint>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TurnRow {
    pub id: TurnId,
    pub session: SessionId,
    pub agent: AgentId,
    /// Its position in the path of its session, from 1.
    pub number: u32,
    pub place: TurnLinks,
    pub state: TurnState,
    /// The `stream_seq` of its first event, where the search for its text begins.
    pub first_event: u64,
    /// The sequence of its first message in the session.
    pub first_message: u64,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub usage: Usage,
    pub failure: Option<FailureRecord>,
    /// What it waits for, apart from its agent and its slot.
    pub park: Option<ParkReason>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StepRow {
    pub id: StepId,
    pub turn: TurnId,
    /// The model call's number in its turn, from 1. Tool calls carry the number of the answer that contains them.
    pub step: u32,
    /// 0 for the model call, then its tool calls from 1.
    pub ordinal: u32,
    pub target: StepTarget,
    pub name: String,
    pub state: StepState,
    pub attempt: u32,
    pub call: Option<String>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    /// The limit that it hit.
    pub cause: Option<Cause>,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

impl StepRow {
    pub fn kind(&self) -> StepKind {
        self.target.kind()
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct MessageRow {
    pub session: SessionId,
    /// Gap-free within its session, from 1.
    pub seq: u64,
    pub turn: TurnId,
    /// The turn's position in the session.
    pub number: u32,
    pub step: u32,
    pub role: Role,
    pub at: Timestamp,
    pub body: MessageBody,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    pub seq: u64,
    pub stream: String,
    pub stream_seq: u64,
    pub at: Timestamp,
    pub body: EventBody,
}

/// A request that changed something, and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRow {
    pub caller: String,
    pub request_id: String,
    /// Of method and parameters.
    pub digest: [u8; 32],
    pub answer: Vec<u8>,
    pub at: Timestamp,
}

/// A name of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRefRow {
    /// `name:tag`.
    pub reference: String,
    pub digest: String,
    /// When it was given.
    pub at: Timestamp,
}

/// A session in the store, for an engine that does not have it in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFact {
    pub row: SessionRow,
    /// Of its path.
    pub turns: u32,
    /// On and off its path.
    pub messages: u64,
    /// How often its path was cut.
    pub cuts: u32,
    /// The last turn of its path.
    pub tip: Option<TurnId>,
    pub epoch: Epoch,
}

/// A turn that was in flight when the daemon ended.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveTurn {
    pub row: TurnRow,
    pub steps: Vec<StepRow>,
    /// The tool calls of its newest stored answer.
    pub calls: Vec<CallRecord>,
    /// Calls whose result message is stored.
    pub answered: Vec<String>,
    /// The note before its user's message so far.
    pub note: Option<String>,
}

/// Everything that an engine needs to continue.
#[derive(Debug, Clone, Default)]
pub struct StoredState {
    pub epoch: u64,
    pub seq: u64,
    /// The newest numbers in the streams of the daemon and of `agents`.
    pub streams: BTreeMap<String, u64>,
    /// Agents that are not at rest, ordered by id.
    pub agents: Vec<AgentRow>,
    /// The newest lineage of each of them.
    pub lineages: Vec<LineageRow>,
    /// The names of all agents, including those at rest.
    pub names: Vec<String>,
    /// How many agents that are not among `agents` have each image.
    pub resting_images: BTreeMap<String, u64>,
    /// The newest user of a sandbox, removed ones included.
    pub last_uid: Option<u32>,
    pub sessions: Vec<SessionFact>,
    pub turns: Vec<LiveTurn>,
    /// Tokens that are not revoked.
    pub tokens: Vec<TokenRow>,
    pub image_refs: Vec<ImageRefRow>,
    pub images: Vec<ImageFact>,
    /// Jobs that are pending or running, not archived, or not reported to their session; oldest first.
    pub jobs: Vec<JobRow>,
    /// Work in quarantine.
    pub quarantine: Vec<QuarantineRow>,
    /// Standalone sandboxes that are live or have an open exec, and those that were remembered; ordered by id.
    pub sandboxes: Vec<SandboxRow>,
    /// The open execs in them.
    pub execs: Vec<SandboxExecRow>,
}

impl StoredState {
    /// Adds an agent that was left out because it is at rest.
    pub fn add(&mut self, fact: AgentFact) {
        let used: BTreeSet<&str> = fact.row.images().collect();
        for digest in used {
            if let Some(count) = self.resting_images.get_mut(digest) {
                *count = count.saturating_sub(1);
            }
        }
        self.resting_images.retain(|_, count| *count > 0);
        self.streams.insert(fact.row.id.to_string(), fact.head);
        self.lineages.push(fact.lineage);
        self.agents.push(fact.row);
    }
}

/// The ids of agents, sessions and standalone sandboxes in an engine's memory, beyond the live ones.
#[derive(Debug, Clone, Default)]
pub struct ResidentIds {
    pub agents: Vec<AgentId>,
    pub sessions: Vec<SessionId>,
    /// Standalone sandboxes.
    pub sandboxes: Vec<SandboxId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_has_a_cost_only_if_all_of_its_parts_have_one() {
        let usage = |input_tokens, micro_usd| Usage { input_tokens, micro_usd, ..Usage::default() };
        let sum = |parts: &[Usage]| {
            let mut sum = Usage::default();
            parts.iter().for_each(|part| sum += *part);
            (sum.input_tokens, sum.micro_usd)
        };
        assert_eq!(sum(&[]), (0, None));
        assert_eq!(sum(&[usage(1, Some(2)), usage(3, Some(4))]), (4, Some(6)));
        assert_eq!(sum(&[usage(1, Some(2)), usage(3, None), usage(5, Some(6))]), (9, None));
        assert_eq!(sum(&[usage(1, None), usage(3, Some(4))]), (4, None));
        assert_eq!(sum(&[Usage::default(), usage(3, Some(4)), Usage::default()]), (3, Some(4)));
    }
}
