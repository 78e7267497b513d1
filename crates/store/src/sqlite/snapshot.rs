//! One read transaction, and the connections that make them.

use std::path::Path;

use rusqlite::Connection;

use super::pool::Pool;
use crate::reads::{ReadError, Result, SnapshotSource, StoreSnapshot};

/// The read connections of a database.
#[derive(Debug)]
pub(crate) struct SqliteSource {
    pool: Pool,
}

impl SqliteSource {
    pub(crate) fn new(path: &Path) -> rusqlite::Result<Self> {
        Ok(SqliteSource { pool: Pool::connected(path)? })
    }
}

impl SnapshotSource for SqliteSource {
    fn snapshot(&self, read: &mut dyn FnMut(&dyn StoreSnapshot)) -> Result<()> {
        self.pool.with(|connection| -> rusqlite::Result<()> {
            connection.prepare_cached("BEGIN")?.execute([])?;
            let _end = ReadTransaction(connection);
            read(&SqliteSnapshot { connection });
            Ok(())
        })??;
        Ok(())
    }

    fn is_near(&self) -> bool {
        true
    }

    fn rest(&self) {
        self.pool.rest();
    }
}

/// Ends the transaction, even if the reading code panics: an open one would block checkpoints.
struct ReadTransaction<'c>(&'c Connection);

impl Drop for ReadTransaction<'_> {
    fn drop(&mut self) {
        // Nothing was written. A connection on which this fails finds itself in a transaction when it is used next, and
        // that is an error then.
        drop(self.0.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])));
    }
}

/// A connection inside a read transaction.
pub(crate) struct SqliteSnapshot<'c> {
    connection: &'c Connection,
}

impl SqliteSnapshot<'_> {
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        Ok(read(self.connection)?)
    }
}

impl From<rusqlite::Error> for ReadError {
    fn from(cause: rusqlite::Error) -> Self {
        ReadError::failed(cause)
    }
}
