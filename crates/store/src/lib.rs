//! The only door to SQLite.
//!
//! Owns: the schema, the pragmas, the one writer, the readers. Never: decisions (see `core`), and never a type of
//! the API.

mod conversation;
mod epochs;
mod full;
mod heads;
mod images;
mod job_list;
mod job_upkeep;
mod job_walk;
mod jobs;
mod lineages;
mod load;
mod open;
mod output;
mod past;
mod paths;
mod pool;
mod quarantine;
mod query;
mod read;
mod rows;
mod schema;
mod search;
mod sessions;
mod snapshots;
mod tokens;
mod write;

pub use conversation::{Exported, Told, TurnCursor, Which};
pub use epochs::PlacedEpoch;
pub use images::ImageSummary;
pub use job_list::{JobFilter, JobPage, JobSummary, OpenJobs};
pub use job_upkeep::OutputFate;
pub use lineages::{LineageFilter, LineageSummary};
pub use open::{Meta, OpenError, Opened, SCHEMA_VERSION, open};
pub use output::{
    GivenBack, OutputChunk, OutputEnds, OutputError, OutputOpenError, OutputOpened, OutputPiece,
    OutputReader, OutputStore, OutputStream, SetAside,
};
pub use query::{BadQuery, Query};
pub use read::{AgentFound, AgentSummary, PAGE_BYTES_MAX, ReadError, Reader};
pub use search::{Hit, Search, SearchError, Wanted as SearchWanted};
pub use sessions::{NoTurn, Repeat, SessionPlace, Standing, TurnPick};
pub use snapshots::{AtBoundary, Boundary, MessagePage, Place, Wanted};
pub use tokens::TokenFilter;
#[doc(hidden)]
pub use write::WalLimits;
pub use write::{Committed, Unwritten, WriteError, Writer};

/// A record as it is stored.
pub fn encode<M: prost::Message>(record: &M) -> Vec<u8> {
    record.encode_to_vec()
}

const _: () = assert!(
    rusqlite::ffi::SQLITE_VERSION_NUMBER >= 3_051_003,
    "older SQLite can corrupt a WAL database when two connections checkpoint at once"
);
