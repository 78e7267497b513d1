//! What is recorded: rows as the engine writes and reads them, and their variable parts as protobuf.
//!
//! Identifiers, numbers and states are columns and may change; protobuf parts are written once, so fields that
//! a newer release added survive an older one.

use std::collections::BTreeMap;

use crate::agent::AgentState;
use crate::event::{EventData, EventKind};
use crate::id::{AgentId, ExecId, LineageId, SandboxId, SessionId, StepId, TurnId};
use crate::lineage::{LineageState, Policy};
use crate::time::Timestamp;
use crate::turn::{StepState, TurnState};

/// An agent's image: everything of its Agentfile that is needed to make its root.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ImageRecord {
    #[prost(bytes = "vec", tag = "1")]
    pub agentfile: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    pub contexts: Vec<ContextRecord>,
    #[prost(message, repeated, tag = "3")]
    pub files: Vec<FileRecord>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub configs: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub env: Vec<EnvRecord>,
    #[prost(message, repeated, tag = "6")]
    pub bins: Vec<BinRecord>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub labels: BTreeMap<String, String>,
    #[prost(string, repeated, tag = "8")]
    pub exec: Vec<String>,
    #[prost(string, optional, tag = "9")]
    pub model: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ContextRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, optional, tag = "2")]
    pub description: Option<String>,
    #[prost(string, tag = "3")]
    pub text: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct FileRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub bytes: Vec<u8>,
    #[prost(string, optional, tag = "3")]
    pub description: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct EnvRecord {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
    #[prost(string, optional, tag = "3")]
    pub description: Option<String>,
}

/// A tool as the image names it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct BinRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    /// The program after `host:`.
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(bool, tag = "3")]
    pub safe: bool,
    #[prost(string, tag = "4")]
    pub description: String,
    #[prost(string, optional, tag = "5")]
    pub usage: Option<String>,
}

/// What one agent adds to its image; written once, when it is created.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AgentSpec {
    #[prost(string, tag = "1")]
    pub model: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub env: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub labels: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "4")]
    pub mounts: Vec<MountRecord>,
    #[prost(message, repeated, tag = "5")]
    pub tools: Vec<ToolRecord>,
    /// What happens when its process dies; absent: what the daemon is set to.
    #[prost(int32, optional, tag = "6")]
    pub revival_policy: Option<i32>,
}

impl AgentSpec {
    /// What happens when its process dies.
    pub fn policy(&self, daemon: Policy) -> Policy {
        self.revival_policy.and_then(Policy::from_code).unwrap_or(daemon)
    }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct MountRecord {
    #[prost(string, tag = "1")]
    pub host: String,
    #[prost(string, tag = "2")]
    pub target: String,
    #[prost(bool, tag = "3")]
    pub read_only: bool,
}

/// A tool as it was found on this host when the agent was created.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ToolRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub source: String,
    #[prost(string, tag = "3")]
    pub path: String,
    #[prost(string, tag = "4")]
    pub digest: String,
    #[prost(bool, tag = "5")]
    pub safe: bool,
    #[prost(string, tag = "6")]
    pub description: String,
    #[prost(string, optional, tag = "7")]
    pub usage: Option<String>,
}

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

/// What a tool call is about to run; written with its intent, so that it can be asked for again.
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
    pub input_tokens: u64,
    pub output_tokens: u64,
}

/// Who speaks. Codes are stored.
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
    /// Raised by every start of its runtime, of which a sandbox may see several.
    pub runs: u32,
    /// The sandbox's own user, when the daemon runs as root.
    pub uid: Option<u32>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
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
    /// How its process died last.
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
}

#[derive(Debug, Clone, PartialEq)]
pub struct TurnRow {
    pub id: TurnId,
    pub session: SessionId,
    pub agent: AgentId,
    /// Its place in the session, from 1.
    pub number: u32,
    pub state: TurnState,
    /// The `stream_seq` of its first event: its text is looked for from there.
    pub first_event: u64,
    /// The sequence of its first message in the session.
    pub first_message: u64,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
    pub usage: Usage,
    pub failure: Option<FailureRecord>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StepRow {
    pub id: StepId,
    pub turn: TurnId,
    /// The model call's number in its turn, from 1; tool calls carry the number of the answer that asked for them.
    pub step: u32,
    /// 0 for the model call, then its tool calls from 1.
    pub ordinal: u32,
    pub kind: StepKind,
    pub name: String,
    pub state: StepState,
    pub attempt: u32,
    pub call: Option<String>,
    pub exec: Option<ExecId>,
    pub request: Option<ExecRequest>,
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub started_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MessageRow {
    pub session: SessionId,
    /// Gap-free within its session, from 1.
    pub seq: u64,
    pub turn: TurnId,
    /// The turn's place in the session.
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
    pub kind: EventKind,
    pub data: EventData,
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

/// One change to what is stored. Batches of them are applied in one transaction, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    Image {
        digest: String,
        name: String,
        record: ImageRecord,
    },
    Agent(AgentRow),
    AgentState {
        id: AgentId,
        state: AgentState,
        detail: Option<String>,
        lineage: LineageId,
        incarnation: u32,
        runs: u32,
        started_at: Option<Timestamp>,
    },
    /// Whole, whether or not it is there.
    Lineage(LineageRow),
    Session(SessionRow),
    Turn(TurnRow),
    TurnState {
        id: TurnId,
        state: TurnState,
        ended_at: Option<Timestamp>,
        usage: Usage,
        failure: Option<FailureRecord>,
    },
    Step(StepRow),
    StepState {
        turn: TurnId,
        step: u32,
        ordinal: u32,
        state: StepState,
        attempt: u32,
        exit_code: Option<i32>,
        signal: Option<i32>,
        ended_at: Option<Timestamp>,
    },
    Message(MessageRow),
    Event(EventRow),
    Request(RequestRow),
}

/// A session as the store knows it, for an engine that does not hold it in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionFact {
    pub row: SessionRow,
    pub turns: u32,
    pub messages: u64,
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
}

/// Everything an engine needs to go on.
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    pub epoch: u64,
    pub seq: u64,
    pub streams: BTreeMap<String, u64>,
    pub agents: Vec<AgentRow>,
    /// The newest of each of them.
    pub lineages: Vec<LineageRow>,
    /// The newest user that was given to a sandbox, removed ones included.
    pub last_uid: Option<u32>,
    pub sessions: Vec<SessionFact>,
    pub turns: Vec<LiveTurn>,
}
