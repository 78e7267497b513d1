//! The store in SQLite: one database file, one writer, a few connections that read.

mod agent_images;
mod agents;
mod codes;
mod conversation;
mod epochs;
mod events;
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
mod paths;
mod pool;
mod quarantine;
mod query;
mod retry;
mod rows;
mod sandboxes;
mod schema;
mod search;
mod search_reads;
mod sessions;
mod snapshot;
mod snapshots;
mod tokens;
mod turns;
mod write;

pub use open::{Meta, OpenError, OpenedDatabase, SCHEMA_VERSION, open};
pub use output::{OutputOpenError, OutputOpened, OutputReader, OutputStore, UnusableArchive};
pub use query::{BadQuery, Query};
pub use search::{Search, SearchError, SearchHit, SearchRequest};

const _: () = assert!(
    rusqlite::ffi::SQLITE_VERSION_NUMBER >= 3_051_003,
    "older SQLite can corrupt a WAL database when two connections checkpoint at once"
);
