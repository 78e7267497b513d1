//! Opens the database: version check, migration, epoch, and the state that an engine needs to continue.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use lodge_core::record::StoredState;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use crate::reads::Reader;
use crate::sqlite::agent_images;
use crate::sqlite::full::is_full;
use crate::sqlite::heads::Heads;
use crate::sqlite::load::{RowLoadError, load};
use crate::sqlite::pool::{BUSY, keep_statements};
use crate::sqlite::schema::{self, MIGRATIONS};
use crate::sqlite::snapshot::SqliteSource;
use crate::sqlite::write::SqliteWriter;
use crate::write::Writer;

/// The newest schema this release knows.
pub const SCHEMA_VERSION: u32 = MIGRATIONS.len() as u32;

const PAGE_BYTES: u32 = 2_048;

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("the database {} was written by a newer Lodge (it asks for a reader of schema {needs}, this one knows {known})", path.display())]
    FromTheFuture { path: PathBuf, needs: u32, known: u32 },
    #[error("{} is not a Lodge database", path.display())]
    Foreign { path: PathBuf },
    #[error("could not read {}", path.display())]
    Unreadable {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("there is no room to open the database {}", path.display())]
    Full {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    #[error("could not open the database {}", path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    #[error("the database {} cannot use a write-ahead log (it stays in mode `{mode}`)", path.display())]
    NoWal { path: PathBuf, mode: String },
    #[error("the database {} holds a value this release does not know: {what}", path.display())]
    Corrupt { path: PathBuf, what: String },
}

impl OpenError {
    pub fn hint(&self) -> &'static str {
        match self {
            OpenError::FromTheFuture { .. } => {
                "start the newer release again, or use another state directory; nothing was changed"
            }
            OpenError::Foreign { .. } => "move that file away or use another state directory",
            OpenError::NoWal { .. } => "put the state directory on a local file system",
            OpenError::Unreadable { .. } => "check the owner and mode of the state directory",
            OpenError::Full { .. } => {
                "the disk is full: free space and start it again; acknowledged changes are safe"
            }
            OpenError::Sqlite { .. } | OpenError::Corrupt { .. } => {
                "check free space and the disk, then restore from a backup if it persists"
            }
        }
    }
}

/// Facts about the database that never change after its creation.
#[derive(Clone)]
pub struct Meta {
    /// Identifies the log, so that a cursor of another log is detected.
    pub log: String,
    /// From which every secret of this state directory is derived.
    pub state_key: [u8; 32],
}

impl std::fmt::Debug for Meta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meta").field("log", &self.log).field("state_key", &"[secret]").finish()
    }
}

#[derive(Debug)]
pub struct OpenedDatabase {
    pub writer: Writer,
    pub reader: Reader,
    pub meta: Meta,
    pub loaded: StoredState,
}

/// Opens or creates the database and raises the epoch, durably, before it returns.
///
/// `entropy` seeds the identity of a database that does not exist yet.
pub fn open(path: &Path, entropy: &[u8; 64]) -> Result<OpenedDatabase, OpenError> {
    refuse_newer_database(path)?;
    let mut connection = connect(path).map_err(|cause| OpenError::Sqlite { path: path.to_owned(), cause })?;
    match open_connected(&mut connection, path, entropy) {
        Ok((meta, loaded, heads, reader)) => Ok(OpenedDatabase {
            writer: Writer::new(SqliteWriter::new(connection, path, heads)),
            reader,
            meta,
            loaded,
        }),
        Err(OpenError::Sqlite { path, cause }) if is_full(&connection, &cause) => {
            Err(OpenError::Full { path, cause })
        }
        Err(error) => Err(error),
    }
}

fn open_connected(
    connection: &mut Connection,
    path: &Path,
    entropy: &[u8; 64],
) -> Result<(Meta, StoredState, Heads, Reader), OpenError> {
    let sqlite = |cause| OpenError::Sqlite { path: path.to_owned(), cause };
    let packed: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(sqlite)?;
    check_version(path, packed)?;
    let (schema, _) = schema::unpack_version(packed);
    if schema == 0 {
        if has_tables(connection).map_err(sqlite)? {
            return Err(OpenError::Foreign { path: path.to_owned() });
        }
        prepare_empty(connection).map_err(sqlite)?;
    }
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(sqlite)?;
    if mode != "wal" {
        return Err(OpenError::NoWal { path: path.to_owned(), mode });
    }
    configure(connection).map_err(sqlite)?;
    let (meta, epoch) = migrate_and_raise_epoch(connection, schema, entropy)
        .map_err(|cause| RowLoadError::from(cause).into_open(path))?;
    let meta = meta.ok_or_else(|| OpenError::Corrupt {
        path: path.to_owned(),
        what: "a state key of another length".to_owned(),
    })?;
    let (loaded, heads) = load(connection, epoch, &[], &[]).map_err(|error| error.into_open(path))?;
    let reader = Reader::new(SqliteSource::new(path).map_err(sqlite)?);
    Ok((meta, loaded, heads, reader))
}

/// A writing connection. Opening and closing it changes nothing.
pub(super) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // Closing must not change a database of a newer release or of another program.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(BUSY)?;
    Ok(connection)
}

/// Settings that must precede the first page of a database.
fn prepare_empty(connection: &Connection) -> rusqlite::Result<()> {
    // A commit writes whole pages, most of them for a row or two: small pages halve the bytes of a turn.
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    // An empty database has nothing to roll back to: no journal and its flushes on the way to the WAL.
    connection.pragma_update(None, "journal_mode", "MEMORY")
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cache_size", -512)?;
    // Another thread makes the checkpoints, see `write`.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", 8 * 1024 * 1024)?;
    keep_statements(connection)
}

/// Migrates if needed, raises the epoch and creates missing indexes: one transaction, one fsync.
fn migrate_and_raise_epoch(
    connection: &mut Connection,
    schema: u32,
    entropy: &[u8; 64],
) -> rusqlite::Result<(Option<Meta>, u64)> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if schema < SCHEMA_VERSION {
        schema::migrate(&tx, schema)?;
    }
    schema::make_indexes(&tx)?;
    agent_images::catch_up(&tx)?;
    if schema == 0 {
        let log: String = entropy[32..40].iter().map(|byte| format!("{byte:02x}")).collect();
        tx.execute(
            "INSERT INTO meta (key, value) VALUES ('state-key', ?1), ('log', ?2)",
            (&entropy[..32], log.as_bytes()),
        )?;
    }
    tx.execute(
        "INSERT INTO counters (key, value) VALUES ('epoch', 1) ON CONFLICT (key) DO UPDATE SET value = value + 1",
        [],
    )?;
    let epoch: i64 = tx.query_row("SELECT value FROM counters WHERE key = 'epoch'", [], |row| row.get(0))?;
    let state_key: Vec<u8> =
        tx.query_row("SELECT value FROM meta WHERE key = 'state-key'", [], |row| row.get(0))?;
    let log: Vec<u8> = tx.query_row("SELECT value FROM meta WHERE key = 'log'", [], |row| row.get(0))?;
    tx.commit()?;
    let meta = state_key.try_into().ok().map(|state_key| {
        let log = String::from_utf8_lossy(&log).into_owned();
        Meta { log, state_key }
    });
    Ok((meta, epoch.cast_unsigned()))
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    let first: Option<String> =
        connection.query_row("SELECT name FROM sqlite_schema LIMIT 1", [], |row| row.get(0)).optional()?;
    Ok(first.is_some())
}

/// Reads the version from the file's header, so that a newer database is never opened. A database whose creation was
/// interrupted becomes empty again.
fn refuse_newer_database(path: &Path) -> Result<(), OpenError> {
    let unreadable = |cause| OpenError::Unreadable { path: path.to_owned(), cause };
    let mut header = [0; 100];
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(unreadable(cause)),
    };
    let mut filled = 0;
    while filled < header.len() {
        match file.read(&mut header[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(cause) => return Err(unreadable(cause)),
        }
    }
    if filled == 0 {
        return Ok(());
    }
    if filled == header.len() && header.starts_with(b"SQLite format 3\0") {
        return check_version(path, u32::from_be_bytes([header[60], header[61], header[62], header[63]]));
    }
    if is_half_made(path, PAGE_BYTES).map_err(unreadable)? {
        // SQLite treats an empty file as a new database, and zeros as a foreign one.
        return File::options().write(true).open(path).and_then(|file| file.set_len(0)).map_err(unreadable);
    }
    Err(OpenError::Foreign { path: path.to_owned() })
}

/// Whether the power failed before the first page arrived: a file that grew without its data, and no WAL with data.
///
/// The WAL is created only after that page was flushed, so nothing was ever committed.
pub(crate) fn is_half_made(path: &Path, page_bytes: u32) -> std::io::Result<bool> {
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    match std::fs::metadata(wal) {
        Ok(meta) if meta.len() > 0 => return Ok(false),
        Ok(_) => {}
        Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
        Err(cause) => return Err(cause),
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(u64::from(page_bytes) + 1).read_to_end(&mut bytes)?;
    Ok(bytes.len() <= page_bytes as usize && bytes.iter().all(|byte| *byte == 0))
}

fn check_version(path: &Path, packed: u32) -> Result<(), OpenError> {
    let (_, needs) = schema::unpack_version(packed);
    if needs > SCHEMA_VERSION {
        return Err(OpenError::FromTheFuture { path: path.to_owned(), needs, known: SCHEMA_VERSION });
    }
    Ok(())
}
