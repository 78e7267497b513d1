//! Events and live text, as clients see them.

use lodge_events::{EventBody, EventKind};
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

impl Event {
    /// What happened. `None`: a newer daemon tells of something that this release does not know.
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
