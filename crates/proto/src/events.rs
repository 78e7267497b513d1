//! Events and live text, as clients see them.

use lodge_events::{EventBody, EventKind};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Something that happened. It is durable before it is published.
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

impl Event {
    /// The event's body. `None`: a newer daemon sends a kind that this release does not know.
    pub fn body(&self) -> Option<EventBody> {
        EventBody::from_data(&self.kind, &self.data)
    }

    pub fn is(&self, kind: EventKind) -> bool {
        self.kind == kind.word()
    }

    pub fn is_any(&self, kinds: &[EventKind]) -> bool {
        kinds.iter().any(|kind| self.is(*kind))
    }
}

/// Live text: a preview without sequence, never replayed. Replaced by `turn.text`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Delta {
    pub agent: String,
    pub session: String,
    pub turn: String,
    pub step: u32,
    pub attempt: u32,
    /// The position of `text` in the step's text, in bytes.
    pub offset: u64,
    pub text: String,
}

/// A job has written more. Sent at once, without sequence, and never replayed. `job.output` events report the same
/// durably and less often. `job/output` reads the bytes.
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
