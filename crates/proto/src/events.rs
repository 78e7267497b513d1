//! Events and live text, as clients see them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Something that happened, durable before anybody hears of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// One sequence for the whole daemon; the cursor.
    pub seq: u64,
    /// The agent's id, or `daemon`.
    pub stream: String,
    /// Gap-free within its stream, from 1.
    pub stream_seq: u64,
    pub at: String,
    pub kind: String,
    pub data: Map<String, Value>,
}

/// Live text: a preview without sequence, never replayed. Replaced by `turn.text`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delta {
    pub agent: String,
    pub session: String,
    pub turn: String,
    pub step: u32,
    pub attempt: u32,
    /// Where `text` stands in the step's text, in bytes.
    pub offset: u64,
    pub text: String,
}

/// A job has written more: told at once, without sequence, never replayed. `job.output` events tell the same durably, and
/// less often. The bytes are read with `job/output`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    pub agent: String,
    pub session: Option<String>,
    pub job: String,
    /// All that it has written by now, kept or not.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// Some deltas and outputs were dropped because this client reads too slowly. No event was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    pub dropped: u64,
}

/// The kinds of events that this daemon writes.
pub const EVENT_KINDS: &[&str] = &[
    "daemon.started",
    "daemon.reloaded",
    "agent.pulling",
    "agent.starting",
    "agent.ready",
    "agent.working",
    "agent.stopped",
    "agent.failed",
    "agent.removing",
    "agent.removed",
    "agent.liveness",
    "agent.updated",
    "lineage.adopted",
    "lineage.orphaned",
    "lineage.revived",
    "lineage.reaped",
    "lineage.ask",
    "lineage.ended",
    "turn.accepted",
    "turn.started",
    "turn.step_started",
    "turn.step_restarted",
    "turn.text",
    "turn.tool_call",
    "turn.tool_result",
    "turn.step_finished",
    "turn.finished",
    "turn.interrupted",
    "turn.failed",
    "session.compacted",
    "session.forked",
    "session.rewound",
    "session.branch_activated",
    "session.deleted",
    "job.submitted",
    "job.started",
    "job.output",
    "job.finished",
    "job.cancelled",
    "work.quarantined",
    "work.released",
];
