//! Connections that read, for any number of threads.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

/// Connections that stay open while there is work: one for each reader thread and async worker. Creating one costs more
/// than most reads.
const IDLE_READERS_MAX: usize = 6;
/// Connections kept open at rest.
const RESTING_READERS_MAX: usize = 2;
/// Compiled statements that a connection keeps: most cost more to compile than to run.
const STATEMENTS_MAX: usize = 64;
/// How long a connection waits for the lock.
pub(crate) const BUSY: Duration = Duration::from_secs(5);

/// The readers of one database. None sees uncommitted data.
#[derive(Debug)]
pub(crate) struct Pool {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

impl Pool {
    pub(crate) fn new(path: &Path) -> Pool {
        Pool { path: path.to_owned(), idle: Mutex::default() }
    }

    /// Opens one connection, so that an unreadable database is detected at once.
    pub(crate) fn connected(path: &Path) -> rusqlite::Result<Pool> {
        let pool = Pool::new(path);
        pool.idle().push(connect(path)?);
        Ok(pool)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// An error: there is no connection. The result of `read` is inside the returned value.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&Connection) -> T) -> rusqlite::Result<T> {
        let kept = self.idle().pop();
        let connection = match kept {
            Some(connection) => connection,
            None => connect(&self.path)?,
        };
        let result = read(&connection);
        let mut idle = self.idle();
        if idle.len() < IDLE_READERS_MAX {
            idle.push(connection);
        }
        Ok(result)
    }

    /// Closes most unused connections, and releases the page caches and statements of the others.
    pub(crate) fn rest(&self) {
        let mut idle = self.idle();
        idle.truncate(RESTING_READERS_MAX);
        for connection in idle.iter() {
            connection.flush_prepared_statement_cache();
            // A failure is harmless: the memory stays in use.
            drop(connection.execute_batch("PRAGMA shrink_memory"));
        }
    }

    /// Closes unused connections.
    pub(crate) fn close(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // Read-write, because a WAL database's readers share its memory file; `query_only` forbids the rest.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "query_only", "ON")?;
    connection.pragma_update(None, "cache_size", -256)?;
    keep_statements(&connection)?;
    Ok(connection)
}

/// Lets a connection compile its statements once.
pub(crate) fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    // Otherwise the planner uses bound values, and compiles a statement again whenever they change.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}
