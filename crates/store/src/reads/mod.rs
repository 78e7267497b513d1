//! The interface for reading: snapshots, and the threads that answers are read on.
//!
//! One answer reads one [`StoreSnapshot`]: everything in it belongs to one commit, and no snapshot shows uncommitted
//! data. A snapshot blocks while it reads. So an async worker hands long reads to [`Reader::read`], and for a few rows
//! lets the source decide ([`Reader::read_few`]).

mod agents;
mod conversation;
mod events;
mod images;
mod jobs;
mod lineages;
mod reader;
mod sandboxes;
mod search;
mod sessions;
mod tokens;
mod turns;

pub use agents::{AgentMatch, AgentReads, AgentSummary};
pub use conversation::{
    ConversationReads, EpochPlacement, MessageExport, SessionMessage, TurnCursor, TurnScope,
};
pub use events::EventReads;
pub use images::{ImageReads, ImageSummary};
pub use jobs::{JobFilter, JobPage, JobReads, JobSummary, JobUpkeepReads, OpenJobs, OutputFate};
pub use lineages::{
    Boundary, BoundaryReads, LineageBoundary, LineageFilter, LineageReads, LineageSummary, MessageCursor,
    MessagePage, MessageRange,
};
pub use reader::{READ_QUEUE_MAX, Reader};
pub use sandboxes::{ExecFilter, SandboxFilter, SandboxReads};
pub use search::{MessageWords, SearchReads, SessionHead, WordsMax};
pub use sessions::{
    SessionBase, SessionCursor, SessionReads, TurnRemains, TurnRepeat, TurnSelectionError, TurnSelector,
};
pub use tokens::{QuarantineReads, TokenFilter, TokenReads};
pub use turns::{TurnFilter, TurnPage, TurnReads};

/// A page of a listing ends with the row that reaches this many bytes: a row can have megabytes, and a page hundreds of
/// rows.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// Most ids that are found by a prefix: enough to name what an ambiguous one may mean.
pub const ID_MATCHES_MAX: u32 = 5;

#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Refused: too many reads wait already.
    #[error("{READ_QUEUE_MAX} reads wait already")]
    Busy,
    #[error("the database could not be read")]
    Failed {
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ReadError {
    pub fn failed(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        ReadError::Failed { cause: cause.into() }
    }
}

pub type Result<T> = std::result::Result<T, ReadError>;

/// The committed state at one moment.
pub trait StoreSnapshot:
    AgentReads
    + BoundaryReads
    + ConversationReads
    + EventReads
    + ImageReads
    + JobReads
    + JobUpkeepReads
    + LineageReads
    + QuarantineReads
    + SandboxReads
    + SearchReads
    + SessionReads
    + TokenReads
    + TurnReads
{
}

impl<S> StoreSnapshot for S where
    S: AgentReads
        + BoundaryReads
        + ConversationReads
        + EventReads
        + ImageReads
        + JobReads
        + JobUpkeepReads
        + LineageReads
        + QuarantineReads
        + SandboxReads
        + SearchReads
        + SessionReads
        + TokenReads
        + TurnReads
{
}

/// Creates snapshots, for any number of threads at the same time.
pub trait SnapshotSource: std::fmt::Debug + Send + Sync {
    /// Calls `read` once, with a snapshot that ends when `read` returns. An error: there was no snapshot, and `read` was not
    /// called.
    fn snapshot(&self, read: &mut dyn FnMut(&dyn StoreSnapshot)) -> Result<()>;
    /// Whether a snapshot of a few rows takes microseconds. Such a snapshot is read on the caller's thread: a thread
    /// switch costs more.
    fn is_near(&self) -> bool;
    /// Releases memory that only saves time.
    fn rest(&self);
}
