//! Lineages, and a lineage as it was at its last turn boundary.

use lodge_core::record::{AgentRow, LineageRow, MessageRow, SessionRow, Usage};
use lodge_core::{AgentId, LineageId, SessionId, Timestamp, TurnId};

use super::Result;

/// A lineage, its agent, and the newest turn of that agent while it had this lineage.
#[derive(Debug, Clone, PartialEq)]
pub struct LineageSummary {
    pub row: LineageRow,
    pub agent: AgentRow,
    pub last_turn: Option<TurnId>,
}

/// Which lineages a listing is about.
#[derive(Debug, Clone, Copy, Default)]
pub struct LineageFilter<'a> {
    pub agent: Option<&'a AgentId>,
    /// The stored number of its state.
    pub state: Option<i64>,
    pub after: Option<&'a str>,
}

/// A lineage at its boundary, with a page of its sessions.
#[derive(Debug, Clone, PartialEq)]
pub struct LineageBoundary {
    pub lineage: LineageRow,
    pub agent: AgentRow,
    /// When the last turn before the boundary ended, or the lineage began.
    pub written_at: Timestamp,
    /// Of the daemon that ran then.
    pub epoch: Option<u64>,
    pub sessions: Vec<Boundary>,
    pub more: bool,
}

/// The part of a session before the boundary; never empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Boundary {
    pub session: SessionRow,
    pub turns: u32,
    pub ended_at: Timestamp,
}

/// The message after which a page begins: the turn's number, and the message's sequence in the session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct MessageCursor {
    pub number: u32,
    pub seq: u64,
}

/// Which messages of a session to read.
#[derive(Debug, Clone, Copy)]
pub struct MessageRange {
    /// Of at most this many turns, and never beyond the boundary.
    pub turns_max: u32,
    pub after: MessageCursor,
    pub messages_max: u32,
    /// A page ends with the message that reaches this.
    pub bytes_max: usize,
}

/// Messages in the order of turns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MessagePage {
    pub messages: Vec<MessageRow>,
    /// Of those turns of the lineage whose first message is on this page.
    pub usage: Usage,
    pub next: Option<MessageCursor>,
}

pub trait LineageReads {
    fn lineages(&self, filter: LineageFilter<'_>, limit: u32) -> Result<Vec<LineageSummary>>;
    /// The lineages with this id prefix, at most [`ID_MATCHES_MAX`](super::ID_MATCHES_MAX).
    fn find_lineages(&self, given: &str) -> Result<Vec<LineageId>>;
    fn lineage(&self, id: &LineageId) -> Result<Option<LineageSummary>>;
}

pub trait BoundaryReads {
    /// A lineage at its boundary, with its sessions after the one with id `after`. `daemon` is the stream with the
    /// start events of daemons.
    fn at_boundary(
        &self,
        id: &LineageId,
        daemon: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Option<LineageBoundary>>;
    /// A page of a session's messages before the boundary of a lineage. None: it is no session of its agent.
    fn boundary_messages(
        &self,
        id: &LineageId,
        session: &SessionId,
        wanted: MessageRange,
    ) -> Result<Option<MessagePage>>;
}
