//! The log, and the answers to requests.

use lodge_core::event::EventKind;
use lodge_core::record::{EventRow, RequestRow};
use lodge_core::{AgentId, Timestamp};

use super::Result;

pub trait EventReads {
    /// The newest sequence.
    fn head(&self) -> Result<u64>;
    /// A page of the log after a sequence, and the last sequence that was read.
    fn events(&self, since: u64, stream: Option<&str>, limit: u32) -> Result<(Vec<EventRow>, u64)>;
    /// The newest events before `before`, newest first, and the sequence of the last one that was read.
    fn events_before(&self, before: u64, stream: Option<&str>, limit: u32) -> Result<(Vec<EventRow>, u64)>;
    /// The time of the last event of this kind of an agent.
    fn last_at(&self, agent: &AgentId, kind: EventKind) -> Result<Option<Timestamp>>;
    fn request(&self, caller: &str, request_id: &str) -> Result<Option<RequestRow>>;
    /// SQLite's own check of the whole file.
    fn integrity(&self) -> Result<String>;
}
