//! The one writer: everything that waits goes into one transaction and one fsync.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use lodge_core::Timestamp;
use lodge_core::limits::REQUEST_MEMORY_MS;
use lodge_core::record::{AgentRow, EventRow, MessageRow, RequestRow, StepRow, TurnRow, Write};
use prost::Message;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use crate::heads::Heads;

/// From this many pages on the WAL is copied back on the side …
const CHECKPOINT_PAGES: u32 = 2_048;
/// … what was written meanwhile by the writer, when it is no more than this, so that the WAL starts over …
const REST_PAGES: u32 = 1_024;
/// … and from here on all of it by the writer, which then waits for readers.
const RESTART_PAGES: u32 = 16_384;
/// Pages between two attempts.
const STRIDE_PAGES: u32 = 512;
/// Old answers are looked for after this many new ones.
const PRUNE_EVERY: u32 = 512;

/// On disk, flushed. Only the store can build one.
#[derive(Debug)]
#[must_use]
pub struct Committed<T>(T);

impl<T> Committed<T> {
    pub fn into_inner(self) -> T {
        self.0
    }
}

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("the disk is full")]
    Full {
        #[source]
        cause: rusqlite::Error,
    },
    #[error("the database could not be written")]
    Sqlite {
        #[source]
        cause: rusqlite::Error,
    },
}

impl From<rusqlite::Error> for WriteError {
    fn from(cause: rusqlite::Error) -> Self {
        match cause.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DiskFull) => WriteError::Full { cause },
            Some(_) | None => WriteError::Sqlite { cause },
        }
    }
}

/// Holds the only connection that writes.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    checkpoint: SyncSender<()>,
    /// The WAL's length, in pages, at which it is looked after next.
    wal_attempt: u32,
    requests_since_prune: u32,
    heads: Heads,
}

impl Writer {
    pub(crate) fn new(connection: Connection, path: &Path, heads: Heads) -> Self {
        let (checkpoint, asked) = sync_channel(1);
        let path = path.to_owned();
        // Ends when the writer, and with it the sender, is dropped. If it fails, the writer's own limit holds.
        let spawned = std::thread::Builder::new()
            .name("checkpoint".into())
            .stack_size(256 * 1024)
            .spawn(move || checkpoint_on_the_side(&path, &asked));
        drop(spawned);
        Writer {
            connection,
            checkpoint,
            wal_attempt: CHECKPOINT_PAGES,
            requests_since_prune: PRUNE_EVERY,
            heads,
        }
    }

    /// Applies all writes in order, in one transaction, and returns what was carried once they are on disk.
    pub fn commit<'w, T>(
        &mut self,
        writes: impl IntoIterator<Item = &'w Write>,
        carried: T,
    ) -> Result<Committed<T>, WriteError> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut newest_request: Option<Timestamp> = None;
        let mut events: Vec<&EventRow> = Vec::new();
        let heads_written = self.heads.write(&tx)?;
        for write in writes {
            apply(&tx, write)?;
            if let Write::Request(request) = write {
                self.requests_since_prune += 1;
                newest_request = Some(request.at);
            }
            if let Write::Event(event) = write {
                events.push(event);
            }
        }
        if let Some(now) = newest_request
            && self.requests_since_prune >= PRUNE_EVERY
        {
            self.requests_since_prune = 0;
            tx.execute("DELETE FROM requests WHERE at < ?1", [now.plus_ms(-REQUEST_MEMORY_MS).ms()])?;
        }
        tx.commit()?;
        if heads_written {
            self.heads.written();
        }
        events.into_iter().for_each(|event| self.heads.note(event));
        self.bound_wal()?;
        Ok(Committed(carried))
    }

    /// Gives back the page cache. The next commits read what they need again, from the kernel's.
    pub fn rest(&self) {
        // What cannot be given back is kept, which harms nobody.
        drop(self.connection.execute_batch("PRAGMA shrink_memory"));
    }

    /// Lets the file grow no further, as a full disk would; for tests.
    #[doc(hidden)]
    pub fn limit_pages(&mut self, pages: u32) {
        // A limit that was not taken shows as a commit that does not fail.
        drop(self.connection.pragma_update(None, "max_page_count", pages));
    }

    fn bound_wal(&mut self) -> Result<(), WriteError> {
        // The file's length says nothing: a WAL that started over keeps it.
        let (pages, copied): (u32, u32) = self
            .connection
            .prepare_cached("PRAGMA wal_checkpoint(NOOP)")?
            .query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
        if pages < CHECKPOINT_PAGES {
            self.wal_attempt = CHECKPOINT_PAGES;
        }
        if pages < self.wal_attempt {
            return Ok(());
        }
        self.wal_attempt = pages + STRIDE_PAGES;
        if pages >= RESTART_PAGES {
            // Busy readers are waited for within the busy timeout; if they stay, a later commit tries again.
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        } else if pages - copied.min(pages) <= REST_PAGES {
            self.connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
        } else {
            match self.checkpoint.try_send(()) {
                // A full channel means that one is asked for already.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Copies the WAL back without holding up the writer.
fn checkpoint_on_the_side(path: &Path, asked: &Receiver<()>) {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    while asked.recv().is_ok() {
        let Ok(connection) = Connection::open_with_flags(path, flags) else { continue };
        // A passive checkpoint that does not get through is repeated at the next request.
        let passed = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| row.get::<_, i64>(0));
        drop(passed);
    }
}

fn apply(tx: &Connection, write: &Write) -> rusqlite::Result<()> {
    match write {
        Write::Image { digest, name, record } => {
            tx.prepare_cached("INSERT OR IGNORE INTO images (digest, name, record) VALUES (?1, ?2, ?3)")?
                .execute(params![digest, name, record.encode_to_vec()])?;
        }
        Write::Agent(row) => insert_agent(tx, row)?,
        Write::AgentState { id, state, detail, incarnation, started_at } => {
            let (code, reason) = state.codes();
            tx.prepare_cached(
                "UPDATE agents SET state = ?2, failure_reason = ?3, failure_detail = ?4, incarnation = ?5, started_at = ?6 \
                 WHERE id = ?1",
            )?
            .execute(params![id.as_str(), code, reason, detail, incarnation, started_at.map(Timestamp::ms)])?;
        }
        Write::Session(row) => {
            tx.prepare_cached(
                "INSERT INTO sessions (id, agent, sender, created_at) VALUES (?1, ?2, ?3, ?4)",
            )?
            .execute(params![
                row.id.as_str(),
                row.agent.as_str(),
                row.sender,
                row.created_at.ms()
            ])?;
        }
        Write::Turn(row) => insert_turn(tx, row)?,
        Write::TurnState { id, state, ended_at, usage, failure } => {
            tx.prepare_cached(
                "UPDATE turns SET state = ?2, ended_at = ?3, input_tokens = ?4, output_tokens = ?5, failure = ?6 \
                 WHERE id = ?1",
            )?
            .execute(params![
                id.as_str(),
                state.code(),
                ended_at.map(Timestamp::ms),
                usage.input_tokens.cast_signed(),
                usage.output_tokens.cast_signed(),
                failure.as_ref().map(Message::encode_to_vec),
            ])?;
        }
        Write::Step(row) => insert_step(tx, row)?,
        Write::StepState { turn, step, ordinal, state, attempt, exit_code, signal, ended_at } => {
            tx.prepare_cached(
                "UPDATE steps SET state = ?4, attempt = ?5, exit_code = ?6, signal = ?7, ended_at = ?8 \
                 WHERE turn = ?1 AND step = ?2 AND ordinal = ?3",
            )?
            .execute(params![
                turn.as_str(),
                step,
                ordinal,
                state.code(),
                attempt,
                exit_code,
                signal,
                ended_at.map(Timestamp::ms)
            ])?;
        }
        Write::Message(row) => insert_message(tx, row)?,
        Write::Event(row) => insert_event(tx, row)?,
        Write::Request(row) => insert_request(tx, row)?,
    }
    Ok(())
}

fn insert_agent(tx: &Connection, row: &AgentRow) -> rusqlite::Result<()> {
    let (code, reason) = row.state.codes();
    tx.prepare_cached(
        "INSERT INTO agents (id, name, image, image_digest, lineage, sandbox, state, failure_reason, failure_detail, \
         incarnation, uid, created_at, started_at, spec) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?
    .execute(params![
        row.id.as_str(),
        row.name,
        row.image,
        row.image_digest,
        row.lineage.as_str(),
        row.sandbox.as_str(),
        code,
        reason,
        row.failure_detail,
        row.incarnation,
        row.uid,
        row.created_at.ms(),
        row.started_at.map(Timestamp::ms),
        row.spec.encode_to_vec(),
    ])?;
    Ok(())
}

fn insert_turn(tx: &Connection, row: &TurnRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO turns (id, session, agent, number, state, first_event, first_message, created_at, ended_at, \
         input_tokens, output_tokens, failure) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?
    .execute(params![
        row.id.as_str(),
        row.session.as_str(),
        row.agent.as_str(),
        row.number,
        row.state.code(),
        row.first_event.cast_signed(),
        row.first_message.cast_signed(),
        row.created_at.ms(),
        row.ended_at.map(Timestamp::ms),
        row.usage.input_tokens.cast_signed(),
        row.usage.output_tokens.cast_signed(),
        row.failure.as_ref().map(Message::encode_to_vec),
    ])?;
    Ok(())
}

fn insert_step(tx: &Connection, row: &StepRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO steps (turn, step, ordinal, id, kind, name, state, attempt, call, exec, request, exit_code, \
         signal, started_at, ended_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
    )?
    .execute(params![
        row.turn.as_str(),
        row.step,
        row.ordinal,
        row.id.as_str(),
        row.kind.code(),
        row.name,
        row.state.code(),
        row.attempt,
        row.call,
        row.exec.as_ref().map(lodge_core::ExecId::as_str),
        row.request.as_ref().map(Message::encode_to_vec),
        row.exit_code,
        row.signal,
        row.started_at.ms(),
        row.ended_at.map(Timestamp::ms),
    ])?;
    Ok(())
}

fn insert_message(tx: &Connection, row: &MessageRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO messages (session, seq, turn, number, step, role, at, body) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?
    .execute(params![
        row.session.as_str(),
        row.seq.cast_signed(),
        row.turn.as_str(),
        row.number,
        row.step,
        row.role.code(),
        row.at.ms(),
        row.body.encode_to_vec(),
    ])?;
    Ok(())
}

fn insert_event(tx: &Connection, row: &EventRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO events (seq, stream, stream_seq, at, kind, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![
        row.seq.cast_signed(),
        row.stream,
        row.stream_seq.cast_signed(),
        row.at.ms(),
        row.kind.code(),
        row.data.encode_to_vec(),
    ])?;
    Ok(())
}

fn insert_request(tx: &Connection, row: &RequestRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO requests (caller, request_id, digest, answer, at) VALUES (?1, ?2, ?3, ?4, ?5) \
         ON CONFLICT (caller, request_id) DO UPDATE SET digest = excluded.digest, answer = excluded.answer, at = excluded.at",
    )?
    .execute(params![row.caller, row.request_id, row.digest, row.answer, row.at.ms()])?;
    Ok(())
}
