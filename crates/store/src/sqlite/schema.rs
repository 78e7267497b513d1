//! The tables, as numbered migrations. A released migration is never edited.

use rusqlite::{Connection, Transaction};

use crate::sqlite::codes::{AGENT_LIVE, AGENT_REMOVED, EXEC_OVER, JOB_OVER, SANDBOX_RESTS, TURN_OVER};

/// Each entry takes the schema from its index to the next version.
pub(crate) const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
    include_str!("migrations/0006.sql"),
    include_str!("migrations/0007.sql"),
    include_str!("migrations/0008.sql"),
];

/// The oldest schema number that may still read the files of this one.
pub(crate) const MIN_READER: u32 = 5;

/// Indexes, and a table like one, exist for speed only: they are derived, and created again when they are missing. They
/// contain states by the names of `codes`.
const INDEXES: &str = include_str!("indexes.sql");
const AGENT_IMAGES: &str = include_str!("agent_images.sql");

/// `user_version` carries both numbers, so that they can be read from the file's header without opening it.
pub(crate) fn pack_version(schema: u32, min_reader: u32) -> u32 {
    (min_reader << 16) | schema
}

pub(crate) fn unpack_version(packed: u32) -> (u32, u32) {
    (packed & 0xffff, packed >> 16)
}

/// Applies the missing migrations, in the caller's transaction.
pub(crate) fn migrate(tx: &Transaction<'_>, from: u32) -> rusqlite::Result<()> {
    for migration in &MIGRATIONS[from as usize..] {
        tx.execute_batch(migration)?;
    }
    let version = pack_version(u32::try_from(MIGRATIONS.len()).unwrap_or(u32::MAX), MIN_READER);
    tx.pragma_update(None, "user_version", version)
}

pub(crate) fn make_indexes(connection: &Connection) -> rusqlite::Result<()> {
    let named = [
        ("{AGENT_LIVE}", AGENT_LIVE),
        ("{AGENT_REMOVED}", AGENT_REMOVED),
        ("{TURN_OVER}", TURN_OVER),
        ("{JOB_OVER}", JOB_OVER),
        ("{SANDBOX_RESTS}", SANDBOX_RESTS),
        ("{EXEC_OVER}", EXEC_OVER),
    ];
    let indexes =
        named.iter().fold(format!("{AGENT_IMAGES}{INDEXES}"), |text, (name, code)| text.replace(name, code));
    connection.execute_batch(&indexes)
}
