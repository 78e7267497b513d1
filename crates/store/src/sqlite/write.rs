//! The one writer: everything that waits goes into one transaction and one fsync.

use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};

use lodge_core::agent::AgentState;
use lodge_core::limits::REQUEST_MEMORY_MS;
use lodge_core::park::{ParkReason, ParkRecord};
use lodge_core::record::{
    AgentRow, AgentWrite, EventRow, ImageWrite, LineageRow, MessageRow, RequestRow, ResidentIds,
    SessionWrite, StepRow, StoredState, TurnRow, TurnWrite, WorkWrite, Write,
};
use lodge_core::{Cause, Timestamp, TurnId};
use prost::Message;
use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use crate::sqlite::full::is_full;
use crate::sqlite::heads::Heads;
use crate::sqlite::{
    agent_images, conversation, epochs, images, jobs, load, paths, quarantine, sandboxes, tokens,
};
use crate::write::{BatchWriter, TestLimit, WalLimits, WriteError};

const WAL_LIMITS: WalLimits =
    WalLimits { checkpoint_pages: 2_048, rest_pages: 1_024, restart_pages: 16_384, stride_pages: 512 };
/// Old answers are looked for after this many new ones.
const PRUNE_EVERY: u32 = 512;

/// Holds the only connection that writes.
#[derive(Debug)]
pub(crate) struct SqliteWriter {
    connection: Connection,
    checkpoint: SyncSender<()>,
    side: Arc<Mutex<CheckpointFailure>>,
    wal_limits: WalLimits,
    /// The WAL's length, in pages, at which it is checked next.
    wal_attempt: u32,
    requests_since_prune: u32,
    heads: Heads,
}

impl SqliteWriter {
    pub(crate) fn new(connection: Connection, path: &Path, heads: Heads) -> Self {
        let (checkpoint, asked) = sync_channel(1);
        let side: Arc<Mutex<CheckpointFailure>> = Arc::default();
        let (path, failed) = (path.to_owned(), side.clone());
        // Ends when the writer, and with it the sender, is dropped. If it fails, the writer's own limit holds.
        let spawned = std::thread::Builder::new()
            .name("checkpoint".into())
            .stack_size(256 * 1024)
            .spawn(move || run_checkpoints(&path, &asked, &failed));
        drop(spawned);
        SqliteWriter {
            connection,
            checkpoint,
            side,
            wal_limits: WAL_LIMITS,
            wal_attempt: WAL_LIMITS.checkpoint_pages,
            requests_since_prune: PRUNE_EVERY,
            heads,
        }
    }

    fn refused(&self, cause: rusqlite::Error) -> WriteError {
        let full = is_full(&self.connection, &cause);
        let cause = cause.into();
        if full { WriteError::Full { cause } } else { WriteError::Failed { cause } }
    }

    fn apply_all(&mut self, writes: &[&Write]) -> rusqlite::Result<()> {
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
        Ok(())
    }

    /// Bounds the WAL's length. A flush that failed, here or on the checkpoint thread, is an error: the next one could
    /// succeed without the pages that this one lost.
    fn bound_wal(&mut self) -> rusqlite::Result<()> {
        if let Ok(mut side) = self.side.try_lock()
            && let Some(failed) = side.take()
        {
            return Err(failed);
        }
        // The file's length says nothing: a WAL that started over keeps it.
        let (pages, copied): (u32, u32) = self
            .connection
            .prepare_cached("PRAGMA wal_checkpoint(NOOP)")?
            .query_row([], |row| Ok((row.get(1)?, row.get(2)?)))?;
        if pages < self.wal_limits.checkpoint_pages {
            self.wal_attempt = self.wal_limits.checkpoint_pages;
        }
        if pages < self.wal_attempt {
            return Ok(());
        }
        self.wal_attempt = pages + self.wal_limits.stride_pages;
        if pages >= self.wal_limits.restart_pages {
            // Busy readers are waited for within the busy timeout; if they stay, a later commit tries again.
            let mut side = self.side.lock().unwrap_or_else(PoisonError::into_inner);
            checkpoint(&self.connection, "PRAGMA wal_checkpoint(TRUNCATE)", &mut side)
        } else if pages - copied.min(pages) <= self.wal_limits.rest_pages {
            match self.side.try_lock() {
                Ok(mut side) => checkpoint(&self.connection, "PRAGMA wal_checkpoint(PASSIVE)", &mut side),
                // The side is at it.
                Err(_) => Ok(()),
            }
        } else {
            match self.checkpoint.try_send(()) {
                // A full channel means that a checkpoint is requested already.
                Ok(()) | Err(_) => Ok(()),
            }
        }
    }
}

impl BatchWriter for SqliteWriter {
    fn write(&mut self, writes: &[&Write]) -> Result<(), WriteError> {
        self.apply_all(writes).map_err(|cause| self.refused(cause))?;
        // The batch is on disk, so a later failure is no reason to write it again.
        self.bound_wal().map_err(|cause| WriteError::Failed { cause: cause.into() })
    }

    fn reload(&mut self, epoch: u64, remembered: &ResidentIds) -> Result<StoredState, WriteError> {
        let read = (|| {
            let (mut loaded, heads) =
                load::load(&self.connection, epoch, &remembered.agents, &remembered.sandboxes)
                    .map_err(load::RowLoadError::into_inner)?;
            for id in &remembered.sessions {
                let known = loaded.sessions.iter().any(|fact| fact.row.id == *id);
                let fact = if known { None } else { load::session_fact(&self.connection, id.as_str())? };
                loaded.sessions.extend(fact);
            }
            Ok((loaded, heads))
        })();
        let (loaded, heads) = read.map_err(|cause| self.refused(cause))?;
        self.heads = heads;
        Ok(loaded)
    }

    /// The next commits read what they need again, from the kernel's cache.
    fn rest(&self) {
        self.connection.flush_prepared_statement_cache();
        // A failure is harmless: the memory stays in use.
        drop(self.connection.execute_batch("PRAGMA shrink_memory"));
    }

    fn limit(&mut self, limit: TestLimit) {
        match limit {
            // A limit that was not taken shows as a commit that does not fail.
            TestLimit::Pages(pages) => drop(self.connection.pragma_update(None, "max_page_count", pages)),
            TestLimit::Wal(limits) => (self.wal_limits, self.wal_attempt) = (limits, limits.checkpoint_pages),
        }
    }
}

/// The first failure of a checkpoint other than a full disk. It is locked during a checkpoint, so that no other thread
/// flushes again what this one could not.
type CheckpointFailure = Option<rusqlite::Error>;

/// Copies the WAL back, unless an earlier attempt failed. Without room the pages stay in the WAL for a later one.
fn checkpoint(connection: &Connection, pragma: &str, failed: &mut CheckpointFailure) -> rusqlite::Result<()> {
    if let Some(failed) = failed.take() {
        return Err(failed);
    }
    match connection.query_row(pragma, [], |_| Ok(())) {
        Err(cause) if is_full(connection, &cause) => Ok(()),
        passed => passed,
    }
}

/// Runs checkpoints without blocking the writer, and reports a failure to it.
fn run_checkpoints(path: &Path, asked: &Receiver<()>, failed: &Mutex<CheckpointFailure>) {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    while asked.recv().is_ok() {
        let Ok(connection) = Connection::open_with_flags(path, flags) else { continue };
        let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
        *failed =
            checkpoint(&connection, "PRAGMA wal_checkpoint(PASSIVE)", &mut failed).err().filter(|cause| {
                // Another connection's lock is no failure: the checkpoint is requested again.
                cause.sqlite_error_code() != Some(rusqlite::ErrorCode::DatabaseBusy)
            });
    }
}

fn apply(tx: &Connection, write: &Write) -> rusqlite::Result<()> {
    match write {
        Write::Image(write) => apply_image(tx, write),
        Write::Agent(write) => apply_agent(tx, write),
        Write::Session(write) => apply_session(tx, write),
        Write::Turn(write) => apply_turn(tx, write),
        Write::Event(row) => insert_event(tx, row),
        Write::Request(row) => insert_request(tx, row),
        Write::Token(row) => tokens::put(tx, row),
        Write::Job(write) => jobs::apply(tx, write),
        Write::Sandbox(write) => sandboxes::apply(tx, write),
        Write::Work(write) => apply_work(tx, write),
    }
}

fn apply_image(tx: &Connection, write: &ImageWrite) -> rusqlite::Result<()> {
    match write {
        ImageWrite::Here(row) => images::put(tx, row)?,
        ImageWrite::Named(row) => images::put_ref(tx, row)?,
        ImageWrite::Unnamed { reference } => images::remove_ref(tx, reference)?,
        ImageWrite::Gone { digest } => images::remove(tx, digest)?,
    }
    Ok(())
}

fn apply_agent(tx: &Connection, write: &AgentWrite) -> rusqlite::Result<()> {
    match write {
        AgentWrite::New(row) => insert_agent(tx, row)?,
        AgentWrite::State { id, state, detail, lineage, incarnation, runs, started_at, retry } => {
            let (code, reason) = state.codes();
            tx.prepare_cached(
                "UPDATE agents SET state = ?2, failure_reason = ?3, failure_detail = ?4, lineage = ?5, incarnation = ?6, \
                 runs = ?7, started_at = ?8, failures = ?9, retry_at = ?10 WHERE id = ?1",
            )?
            .execute(params![
                id.as_str(),
                code,
                reason,
                detail,
                lineage.as_str(),
                incarnation,
                runs,
                started_at.map(Timestamp::ms),
                retry.failures,
                retry.at.map(Timestamp::ms)
            ])?;
        }
        AgentWrite::Spec { id, image, image_digest, spec, next } => {
            tx.prepare_cached(
                "UPDATE agents SET image = ?2, image_digest = ?3, spec = ?4, next = ?5, next_digest = ?6 WHERE id = ?1",
            )?
            .execute(params![
                id.as_str(),
                image,
                image_digest,
                spec.encode_to_vec(),
                next.as_ref().map(|next| next.encode_to_vec()),
                next.as_ref().map(|next| &next.image_digest),
            ])?;
            agent_images::put(tx, id, image_digest, spec, next.as_deref())?;
        }
        AgentWrite::Lineage(row) => put_lineage(tx, row)?,
    }
    Ok(())
}

fn apply_session(tx: &Connection, write: &SessionWrite) -> rusqlite::Result<()> {
    match write {
        SessionWrite::New(row) => paths::insert(tx, row)?,
        SessionWrite::Path(change) => paths::change(tx, change)?,
        SessionWrite::Fork(fork) => paths::fork(tx, fork)?,
        SessionWrite::Deleted { id } => paths::delete(tx, id)?,
        SessionWrite::Epoch(row) => epochs::put(tx, row)?,
    }
    Ok(())
}

fn apply_turn(tx: &Connection, write: &TurnWrite) -> rusqlite::Result<()> {
    match write {
        TurnWrite::New(row) => insert_turn(tx, row)?,
        TurnWrite::State { id, state, ended_at, usage, failure } => {
            tx.prepare_cached(
                "UPDATE turns SET state = ?2, ended_at = ?3, input_tokens = ?4, output_tokens = ?5, failure = ?6, \
                 cached_tokens = ?7, micro_usd = ?8 WHERE id = ?1",
            )?
            .execute(params![
                id.as_str(),
                state.code(),
                ended_at.map(Timestamp::ms),
                usage.input_tokens.cast_signed(),
                usage.output_tokens.cast_signed(),
                failure.as_ref().map(Message::encode_to_vec),
                usage.cached_tokens.cast_signed(),
                usage.micro_usd.map(u64::cast_signed),
            ])?;
            if let Some(ended_at) = ended_at {
                paths::touch(tx, id, *ended_at)?;
            }
        }
        TurnWrite::Park { turn, park } => {
            tx.prepare_cached("UPDATE turns SET park = ?2 WHERE id = ?1")?
                .execute(params![turn.as_str(), encode_park(park.as_ref())])?;
        }
        TurnWrite::Step(row) => insert_step(tx, row)?,
        TurnWrite::StepState { turn, step, ordinal, state, attempt, exit_code, signal, cause, ended_at } => {
            tx.prepare_cached(
                "UPDATE steps SET state = ?4, attempt = ?5, exit_code = ?6, signal = ?7, ended_at = ?8, cause = ?9 \
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
                ended_at.map(Timestamp::ms),
                cause.map(Cause::code)
            ])?;
        }
        TurnWrite::Message(row) => insert_message(tx, row)?,
        TurnWrite::Note { turn, note } => conversation::set_note(tx, turn, note)?,
    }
    Ok(())
}

fn apply_work(tx: &Connection, write: &WorkWrite) -> rusqlite::Result<()> {
    match write {
        WorkWrite::Quarantined(row) => quarantine::put(tx, row)?,
        WorkWrite::Released { id } => quarantine::remove(tx, id)?,
    }
    Ok(())
}

fn insert_agent(tx: &Connection, row: &AgentRow) -> rusqlite::Result<()> {
    let (code, reason) = row.state.codes();
    tx.prepare_cached(
        "INSERT INTO agents (id, name, image, image_digest, lineage, sandbox, state, failure_reason, failure_detail, \
         incarnation, runs, uid, created_at, started_at, spec, failures, retry_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17)",
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
        row.runs,
        row.uid,
        row.created_at.ms(),
        row.started_at.map(Timestamp::ms),
        row.spec.encode_to_vec(),
        row.retry.failures,
        row.retry.at.map(Timestamp::ms),
    ])?;
    if row.state == AgentState::Removed {
        return Ok(());
    }
    agent_images::put(tx, &row.id, &row.image_digest, &row.spec, None)
}

fn put_lineage(tx: &Connection, row: &LineageRow) -> rusqlite::Result<()> {
    let (code, reason) = row.state.codes();
    tx.prepare_cached(
        "INSERT INTO lineages (id, agent, state, ended_reason, revivals, deaths, detail, created_at, ended_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) ON CONFLICT (id) DO UPDATE SET state = excluded.state, \
         ended_reason = excluded.ended_reason, revivals = excluded.revivals, deaths = excluded.deaths, \
         detail = excluded.detail, ended_at = excluded.ended_at",
    )?
    .execute(params![
        row.id.as_str(),
        row.agent.as_str(),
        code,
        reason,
        row.revivals,
        row.deaths,
        row.detail,
        row.created_at.ms(),
        row.ended_at.map(Timestamp::ms),
    ])?;
    Ok(())
}

fn insert_turn(tx: &Connection, row: &TurnRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO turns (id, session, agent, number, state, first_event, first_message, created_at, ended_at, \
         input_tokens, output_tokens, failure, cached_tokens, micro_usd, dropped, parent, replaces, origin, park) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19)",
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
        row.usage.cached_tokens.cast_signed(),
        row.usage.micro_usd.map(u64::cast_signed),
        row.place.dropped,
        row.place.parent.as_ref().map(TurnId::as_str),
        row.place.replaces.as_ref().map(TurnId::as_str),
        row.place.origin.as_ref().map(TurnId::as_str),
        encode_park(row.park.as_ref()),
    ])?;
    Ok(())
}

fn encode_park(park: Option<&ParkReason>) -> Option<Vec<u8>> {
    park.map(|park| ParkRecord { reason: Some(park.clone()) }.encode_to_vec())
}

fn insert_step(tx: &Connection, row: &StepRow) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "INSERT INTO steps (turn, step, ordinal, id, kind, name, state, attempt, call, exec, request, exit_code, \
         signal, started_at, ended_at, cause) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
    )?
    .execute(params![
        row.turn.as_str(),
        row.step,
        row.ordinal,
        row.id.as_str(),
        row.kind().code(),
        row.name,
        row.state.code(),
        row.attempt,
        row.call,
        row.target.exec().map(lodge_core::ExecId::as_str),
        row.target.encode_request(),
        row.exit_code,
        row.signal,
        row.started_at.ms(),
        row.ended_at.map(Timestamp::ms),
        row.cause.map(Cause::code),
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
        row.body.kind().code(),
        row.body.encode(),
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
