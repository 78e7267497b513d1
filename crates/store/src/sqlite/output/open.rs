//! Opens `output.db`: an unusable file is moved aside, and a new one is created.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use lodge_core::Timestamp;
use rusqlite::{Connection, OptionalExtension};

use super::read::OutputReader;
use super::{ArchiveHealth, OutputStore, is_damage};
use crate::sqlite::full::is_full;
use crate::sqlite::open::connect;
use crate::sqlite::schema::{pack_version, unpack_version};

const FILE: &str = "output.db";
/// Marks the file as ours, under any name.
const APPLICATION_ID: i64 = 0x4c64_674f;
const VERSION: u32 = 1;
/// The oldest version that may still use the files of this one.
const MIN_READER: u32 = 1;
const PAGE_BYTES: u32 = 16_384;
/// A marker beside the database: a write found damage, so the next opening checks the whole file.
const SUSPECT: &str = "-suspect";

/// Positions and bytes are in separate tables: a lookup in one table would read the whole chunks on its way.
const SCHEMA: &str = "
    CREATE TABLE outputs (id INTEGER PRIMARY KEY, job TEXT NOT NULL UNIQUE) STRICT;
    CREATE TABLE chunks (
        id INTEGER PRIMARY KEY, output INTEGER NOT NULL, stream INTEGER NOT NULL, offset INTEGER NOT NULL,
        bytes BLOB NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX places ON chunks (output, stream, offset);";

#[derive(Debug, thiserror::Error)]
pub enum OutputOpenError {
    #[error("the archive {} was written by a newer Lodge (it asks for version {needs}, this one knows {known})", path.display())]
    FromTheFuture { path: PathBuf, needs: u32, known: u32 },
    #[error("there is no room to open the archive {}", path.display())]
    Full {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    #[error("the archive {} cannot use a write-ahead log (it stays in mode `{mode}`)", path.display())]
    NoWal { path: PathBuf, mode: String },
    #[error("the archive {} cannot be used and could not be moved aside", path.display())]
    NotSetAside {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("could not open the archive {}", path.display())]
    Sqlite {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
}

impl OutputOpenError {
    /// Stable, never reused.
    pub fn code(&self) -> &'static str {
        match self {
            OutputOpenError::FromTheFuture { .. } => "archive.from_the_future",
            OutputOpenError::Full { .. } => "archive.full",
            OutputOpenError::NoWal { .. } => "archive.no_wal",
            OutputOpenError::NotSetAside { .. } => "archive.not_set_aside",
            OutputOpenError::Sqlite { .. } => "archive.not_opened",
        }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            OutputOpenError::FromTheFuture { .. } => "start the newer release again; nothing was changed",
            OutputOpenError::Full { .. } => "the disk is full: free space and start it again",
            OutputOpenError::NoWal { .. } => "put the state directory on a local file system",
            OutputOpenError::NotSetAside { .. } | OutputOpenError::Sqlite { .. } => {
                "check the owner and mode of the state directory, and the disk"
            }
        }
    }
}

/// An archive that could not be used. Nothing of it is lost: it is beside the new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableArchive {
    pub to: PathBuf,
    pub why: String,
}

#[derive(Debug)]
pub struct OutputOpened {
    pub store: OutputStore,
    pub reader: OutputReader,
    /// The previous archive, if it was unusable. Its outputs are lost.
    pub set_aside: Option<UnusableArchive>,
}

enum OpenAttempt {
    Opened(Connection),
    Unusable(String),
}

impl OutputStore {
    /// Opens or creates the archive of a state directory. `now` names one that must be moved aside.
    pub fn open(dir: &Path, now: Timestamp) -> Result<OutputOpened, OutputOpenError> {
        let path = dir.join(FILE);
        let (connection, set_aside) = match attempt(&path)? {
            OpenAttempt::Opened(connection) => (connection, None),
            OpenAttempt::Unusable(why) => {
                let to = set_aside(&path, now)
                    .map_err(|cause| OutputOpenError::NotSetAside { path: path.clone(), cause })?;
                match attempt(&path)? {
                    OpenAttempt::Opened(connection) => (connection, Some(UnusableArchive { to, why })),
                    OpenAttempt::Unusable(_) => {
                        let cause = io::Error::other("a new one cannot be used either");
                        return Err(OutputOpenError::NotSetAside { path, cause });
                    }
                }
            }
        };
        let page_bytes = connection
            .query_row("PRAGMA page_size", [], |row| row.get::<_, u32>(0))
            .map_err(|cause| OutputOpenError::Sqlite { path: path.clone(), cause })?;
        let reader = OutputReader::new(&path);
        let store =
            OutputStore { connection, path, page_bytes: page_bytes.into(), health: ArchiveHealth::Sound };
        Ok(OutputOpened { store, reader, set_aside })
    }
}

fn attempt(path: &Path) -> Result<OpenAttempt, OutputOpenError> {
    let sqlite = |cause| OutputOpenError::Sqlite { path: path.to_owned(), cause };
    if crate::sqlite::open::is_half_made(path, PAGE_BYTES).unwrap_or(false) {
        // SQLite treats an empty file as a new database, and zeros as a foreign one.
        let emptied = File::options().write(true).open(path).and_then(|file| file.set_len(0));
        emptied.map_err(|cause| OutputOpenError::NotSetAside { path: path.to_owned(), cause })?;
    }
    let mut connection = connect(path).map_err(sqlite)?;
    match prepare(&mut connection, path) {
        Ok(None) => Ok(OpenAttempt::Opened(connection)),
        Ok(Some(why)) => Ok(OpenAttempt::Unusable(why)),
        Err(OutputOpenError::Sqlite { cause, .. }) if is_damage(&cause) => {
            Ok(OpenAttempt::Unusable(cause.to_string()))
        }
        Err(OutputOpenError::Sqlite { path, cause }) if is_full(&connection, &cause) => {
            Err(OutputOpenError::Full { path, cause })
        }
        Err(error) => Err(error),
    }
}

/// Prepares a connection for writing. Some: why the file cannot be used.
fn prepare(connection: &mut Connection, path: &Path) -> Result<Option<String>, OutputOpenError> {
    let sqlite = |cause| OutputOpenError::Sqlite { path: path.to_owned(), cause };
    let number = |c: &Connection, pragma: &str| -> Result<i64, OutputOpenError> {
        c.query_row(&format!("PRAGMA {pragma}"), [], |row| row.get(0)).map_err(sqlite)
    };
    let packed = u32::try_from(number(connection, "user_version")?).unwrap_or(0);
    let (_, needs) = unpack_version(packed);
    let empty = is_empty(connection).map_err(sqlite)?;
    if !empty && number(connection, "application_id")? != APPLICATION_ID {
        return Ok(Some("it is not an archive of job output".to_owned()));
    }
    if needs > VERSION {
        return Err(OutputOpenError::FromTheFuture { path: path.to_owned(), needs, known: VERSION });
    }
    if empty {
        // Fixed with the first page: incremental vacuum, and pages for long chunks.
        connection.pragma_update(None, "page_size", PAGE_BYTES).map_err(sqlite)?;
        connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(sqlite)?;
        connection.pragma_update(None, "journal_mode", "MEMORY").map_err(sqlite)?;
    }
    let mode: String =
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(sqlite)?;
    if mode != "wal" {
        return Err(OutputOpenError::NoWal { path: path.to_owned(), mode });
    }
    configure(connection).map_err(sqlite)?;
    if empty {
        make(connection).map_err(sqlite)?;
    }
    if let Some(why) = find_damage(connection, path).map_err(sqlite)? {
        return Ok(Some(why));
    }
    Ok(None)
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cache_size", -1024)?;
    // The writer bounds the WAL itself.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    // A restarted WAL keeps the space that it will need again.
    connection.pragma_update(None, "journal_size_limit", 24 * 1024 * 1024)
}

fn make(connection: &mut Connection) -> rusqlite::Result<()> {
    let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    tx.execute_batch(SCHEMA)?;
    tx.pragma_update(None, "application_id", APPLICATION_ID)?;
    tx.pragma_update(None, "user_version", pack_version(VERSION, MIN_READER))?;
    tx.commit()
}

fn is_empty(connection: &Connection) -> rusqlite::Result<bool> {
    let first: Option<String> =
        connection.query_row("SELECT name FROM sqlite_schema LIMIT 1", [], |row| row.get(0)).optional()?;
    Ok(first.is_none())
}

fn beside(path: &Path, tail: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(tail);
    beside.into()
}

/// Records that a write found damage.
pub(super) fn suspect(path: &Path) {
    // Without the marker, the next opening finds the damage at its first write, as this one did.
    drop(File::create(beside(path, SUSPECT)));
}

/// Only a file with known damage is worth a complete read.
fn find_damage(connection: &Connection, path: &Path) -> rusqlite::Result<Option<String>> {
    let note = beside(path, SUSPECT);
    if !note.exists() {
        return Ok(None);
    }
    let said: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if said != "ok" {
        return Ok(Some(said));
    }
    // If the marker stays, the file is checked again.
    drop(std::fs::remove_file(note));
    Ok(None)
}

/// Moves the database and its files aside.
fn set_aside(path: &Path, now: Timestamp) -> io::Result<PathBuf> {
    let to = beside(path, &format!(".broken-{}", now.ms()));
    // The WAL first: after an interruption here, the next opening moves the rest. SQLite deletes a WAL without a
    // database.
    for tail in ["-wal", "-shm", "", SUSPECT] {
        match std::fs::rename(beside(path, tail), beside(&to, tail)) {
            Ok(()) => {}
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            Err(cause) => return Err(cause),
        }
    }
    Ok(to)
}
