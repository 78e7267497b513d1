//! The only door to SQLite.
//!
//! Owns: the schema, the pragmas, the one writer, the readers. Never: decisions (see `core`), and never a type of
//! the API.

mod full;
mod heads;
mod lineages;
mod load;
mod open;
mod read;
mod rows;
mod schema;
mod snapshots;
mod write;

pub use lineages::{LineageFilter, LineageSummary};
pub use open::{Meta, OpenError, Opened, SCHEMA_VERSION, open};
pub use read::{AgentFound, AgentSummary, ReadError, Reader, SessionSummary, TurnFull};
pub use snapshots::{AtBoundary, Boundary, MessagePage, Place, Wanted};
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
