//! Full text of all messages: a separate database that can be deleted at any time.
//!
//! The index is updated and opened only for a search, so a turn pays nothing for it and an idle daemon has no memory in
//! it. Each hit is read from the store before it is returned: the index can miss messages, but not invent them.

use std::path::{Path, PathBuf};

use lodge_core::record::MessageRow;
use lodge_core::{AgentId, SessionId, Timestamp};
use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use crate::reads::{MessageWords, ReadError, Reader, SessionHead, WordsMax};
use crate::sqlite::full::is_full;
use crate::sqlite::pool::BUSY;
use crate::sqlite::query::Query;

/// Raised when the contents or the form of the index change: an index of another version is rebuilt.
const VERSION: u32 = 1;
/// Of one message; the rest of a longer one is not found.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// What one transaction takes in.
const BATCH_MAX: WordsMax = WordsMax { messages: 1_000, bytes: 4 << 20, message_bytes: TEXT_BYTES_MAX };
/// Sessions that are compared at a time.
const PAGE: u32 = 500;
/// Words around a hit.
const SNIPPET_WORDS: u32 = 24;
/// Messages of one millisecond that have different positions.
const PLACES_A_MS: i64 = 1 << 16;
/// Marks in snippets from the database.
const MARK_START: char = '\u{2}';
const MARK_END: char = '\u{3}';

const SCHEMA: &str = "
    CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize = 'unicode61 remove_diacritics 2');
    CREATE TABLE places (
        id INTEGER PRIMARY KEY, session TEXT NOT NULL, seq INTEGER NOT NULL, agent TEXT NOT NULL
    ) STRICT;
    CREATE UNIQUE INDEX places_session ON places (session, seq);
    CREATE TABLE heads (
        session TEXT PRIMARY KEY, created_at INTEGER NOT NULL, agent TEXT NOT NULL, seq INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE state (log TEXT NOT NULL, seq INTEGER NOT NULL) STRICT;";

#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    #[error("the store could not be searched")]
    Read(#[from] ReadError),
    #[error("there is no room for the index {}", path.display())]
    Full {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
    #[error("the index {} could not be used", path.display())]
    Index {
        path: PathBuf,
        #[source]
        cause: rusqlite::Error,
    },
}

/// The query and its scope.
#[derive(Debug, Clone, Copy)]
pub struct SearchRequest<'a> {
    pub query: &'a Query,
    pub agent: Option<&'a AgentId>,
    pub session: Option<&'a SessionId>,
    /// The position of the last hit of the previous page.
    pub after: Option<i64>,
    pub limit: u32,
}

/// A matching message.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchHit {
    pub agent: AgentId,
    pub message: MessageRow,
    pub active: bool,
    pub snippet: String,
    /// The positions of the words in the snippet, in characters.
    pub marks: Vec<(u32, u32)>,
    /// Newer messages have higher positions.
    pub place: i64,
}

/// The index of one state directory, closed.
#[derive(Debug, Clone)]
pub struct Search {
    path: PathBuf,
    /// Identifies the indexed log: another log has its own index.
    log: String,
}

impl Search {
    pub fn new(path: &Path, log: &str) -> Search {
        Search { path: path.to_owned(), log: log.to_owned() }
    }

    /// Indexes new messages, then searches. The newest hits come first.
    pub fn search(&self, reader: &Reader, wanted: SearchRequest<'_>) -> Result<Vec<SearchHit>, SearchError> {
        match self.attempt(reader, wanted) {
            Err(SearchError::Index { .. }) => {
                // A damaged index is derived data: it is rebuilt.
                self.forget_all()?;
                self.attempt(reader, wanted)
            }
            found => found,
        }
    }

    fn attempt(&self, reader: &Reader, wanted: SearchRequest<'_>) -> Result<Vec<SearchHit>, SearchError> {
        let mut index = self.open()?;
        self.catch_up(&mut index, reader)?;
        let limit = wanted.limit as usize;
        let mut hits: Vec<SearchHit> = Vec::new();
        let mut after = wanted.after.unwrap_or(i64::MAX);
        while hits.len() < limit {
            let found = find(&index, wanted, after).map_err(|cause| self.failed(&index, cause))?;
            let Some(last) = found.last() else { break };
            after = last.place;
            for found in found {
                // Messages that were deleted meanwhile are skipped.
                if hits.len() < limit
                    && let Some(hit) = confirm(reader, found)?
                {
                    hits.push(hit);
                }
            }
        }
        Ok(hits)
    }

    /// Removes a deleted session at once. The next search finds leftovers missing.
    pub fn forget(&self, session: &SessionId) -> Result<(), SearchError> {
        if !self.path.exists() {
            return Ok(());
        }
        let mut index = self.open()?;
        let done = (|| {
            let tx = index.transaction()?;
            drop_session(&tx, session.as_str())?;
            tx.commit()
        })();
        done.map_err(|cause| self.failed(&index, cause))
    }

    fn open(&self) -> Result<Connection, SearchError> {
        match self.connect() {
            Ok(Some(index)) => return Ok(index),
            // It has another version or log, or is no database.
            Ok(None) => {}
            Err(rusqlite::Error::SqliteFailure(code, _))
                if matches!(
                    code.code,
                    rusqlite::ErrorCode::NotADatabase | rusqlite::ErrorCode::DatabaseCorrupt
                ) => {}
            Err(cause) => return Err(SearchError::Index { path: self.path.clone(), cause }),
        }
        self.forget_all()?;
        let index = self.connect().map_err(|cause| SearchError::Index { path: self.path.clone(), cause })?;
        index.ok_or_else(|| SearchError::Index {
            path: self.path.clone(),
            cause: rusqlite::Error::InvalidQuery,
        })
    }

    /// None: the file is not an index of this release.
    fn connect(&self) -> rusqlite::Result<Option<Connection>> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY)?;
        // A power failure may lose the newest part, which is then indexed again.
        connection.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA cache_size = -2048",
        )?;
        let version: u32 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        if version == 0 {
            let tx = connection.unchecked_transaction()?;
            tx.execute_batch(SCHEMA)?;
            tx.execute("INSERT INTO state (log, seq) VALUES (?1, 0)", [&self.log])?;
            tx.pragma_update(None, "user_version", VERSION)?;
            tx.commit()?;
            return Ok(Some(connection));
        }
        if version != VERSION {
            return Ok(None);
        }
        let log: String = connection.query_row("SELECT log FROM state", [], |row| row.get(0))?;
        Ok((log == self.log).then_some(connection))
    }

    fn forget_all(&self) -> Result<(), SearchError> {
        for tail in ["", "-wal", "-shm", "-journal"] {
            let mut path = self.path.as_os_str().to_owned();
            path.push(tail);
            match std::fs::remove_file(&path) {
                Ok(()) => {}
                Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {}
                Err(cause) => {
                    return Err(SearchError::Index {
                        path: self.path.clone(),
                        cause: rusqlite::Error::ToSqlConversionFailure(Box::new(cause)),
                    });
                }
            }
        }
        Ok(())
    }

    fn failed(&self, index: &Connection, cause: rusqlite::Error) -> SearchError {
        let path = self.path.clone();
        if is_full(index, &cause) {
            SearchError::Full { path, cause }
        } else {
            SearchError::Index { path, cause }
        }
    }

    /// Indexes missing messages and removes deleted sessions. Without new events there is nothing to do.
    fn catch_up(&self, index: &mut Connection, reader: &Reader) -> Result<(), SearchError> {
        // Read first: the next search sees events during this one.
        let head = reader.here(|store| store.head())?.cast_signed();
        let seen: i64 = index
            .query_row("SELECT seq FROM state", [], |row| row.get(0))
            .map_err(|cause| self.failed(index, cause))?;
        if seen == head {
            return Ok(());
        }
        let behind = self.compare(index, reader)?;
        let mut batch = IndexBatch::default();
        for session in behind {
            let mut from = session.seq;
            loop {
                let texts = reader.here(|store| store.message_words(&session.id, from, BATCH_MAX))?;
                let Some(last) = texts.last() else { break };
                from = last.seq;
                batch.add(&session, texts);
                if batch.is_full() {
                    self.write(index, std::mem::take(&mut batch))?;
                }
            }
        }
        self.write(index, batch)?;
        index.execute("UPDATE state SET seq = ?1", [head]).map_err(|cause| self.failed(index, cause))?;
        Ok(())
    }

    /// Removes deleted sessions, and returns those with missing messages.
    fn compare(&self, index: &mut Connection, reader: &Reader) -> Result<Vec<SessionHead>, SearchError> {
        let mut gone: Vec<String> = Vec::new();
        let mut after = String::new();
        loop {
            let known = heads_after(index, &after).map_err(|cause| self.failed(index, cause))?;
            let Some(last) = known.last() else { break };
            after.clone_from(&last.0);
            gone.extend(reader.here(|store| store.sessions_gone(&known))?);
        }
        let dropped = (|| {
            let tx = index.transaction()?;
            gone.iter().try_for_each(|session| drop_session(&tx, session))?;
            tx.commit()
        })();
        dropped.map_err(|cause| self.failed(index, cause))?;
        let (mut behind, mut after) = (Vec::new(), String::new());
        loop {
            let page = reader.here(|store| store.session_heads(&after, PAGE))?;
            let Some(last) = page.last() else { return Ok(behind) };
            after.clone_from(&last.id);
            for mut session in page {
                let known: Option<i64> = index
                    .prepare_cached("SELECT seq FROM heads WHERE session = ?1")
                    .and_then(|mut head| head.query_row([&session.id], |row| row.get(0)).optional())
                    .map_err(|cause| self.failed(index, cause))?;
                let known = known.unwrap_or(0);
                if known < session.seq {
                    session.seq = known;
                    behind.push(session);
                }
            }
        }
    }

    fn write(&self, index: &mut Connection, mut batch: IndexBatch) -> Result<(), SearchError> {
        // In the order of positions. Otherwise the index would be fragmented by session.
        batch.texts.sort_by(|a, b| (a.at, &a.session, a.seq).cmp(&(b.at, &b.session, b.seq)));
        let written = (|| {
            let tx = index.transaction()?;
            batch.texts.iter().try_for_each(|text| insert(&tx, text))?;
            for (session, seq) in &batch.heads {
                tx.prepare_cached(
                    "INSERT INTO heads (session, created_at, agent, seq) VALUES (?1, ?2, ?3, ?4) \
                     ON CONFLICT (session) DO UPDATE SET seq = excluded.seq",
                )?
                .execute(params![session.id, session.created_at, session.agent, seq])?;
            }
            tx.commit()
        })();
        written.map_err(|cause| self.failed(index, cause))
    }
}

/// A message to index.
#[derive(Debug)]
struct IndexedMessage {
    session: String,
    agent: String,
    seq: i64,
    at: i64,
    text: String,
}

#[derive(Debug, Default)]
struct IndexBatch {
    texts: Vec<IndexedMessage>,
    bytes: usize,
    heads: Vec<(SessionHead, i64)>,
}

impl IndexBatch {
    fn add(&mut self, session: &SessionHead, words: Vec<MessageWords>) {
        let Some(last) = words.last() else { return };
        self.heads.push((session.clone(), last.seq));
        self.bytes += words.iter().map(|words| words.text.len()).sum::<usize>();
        self.texts.extend(words.into_iter().map(|MessageWords { seq, at, text }| IndexedMessage {
            session: session.id.clone(),
            agent: session.agent.clone(),
            seq,
            at,
            text,
        }));
    }

    fn is_full(&self) -> bool {
        self.texts.len() >= BATCH_MAX.messages || self.bytes >= BATCH_MAX.bytes
    }
}

/// A page of the sessions that are indexed, with the time they were made.
fn heads_after(index: &Connection, after: &str) -> rusqlite::Result<Vec<(String, i64)>> {
    index
        .prepare_cached("SELECT session, created_at FROM heads WHERE session > ?1 ORDER BY session LIMIT ?2")?
        .query_map(params![after, PAGE], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

fn insert(tx: &Connection, text: &IndexedMessage) -> rusqlite::Result<()> {
    let first = text.at.saturating_mul(PLACES_A_MS);
    let taken: Option<i64> = tx
        .prepare_cached("SELECT max(id) FROM places WHERE id >= ?1 AND id < ?1 + ?2")?
        .query_row(params![first, PLACES_A_MS], |row| row.get(0))?;
    let place = taken.map_or(first, |taken| taken + 1);
    if place >= first.saturating_add(PLACES_A_MS) {
        // This many messages in one millisecond mean that the clock stands still. The rest of them is not found.
        return Ok(());
    }
    tx.prepare_cached("INSERT INTO places (id, session, seq, agent) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![place, text.session, text.seq, text.agent])?;
    tx.prepare_cached("INSERT INTO texts (rowid, text) VALUES (?1, ?2)")?
        .execute(params![place, text.text])?;
    Ok(())
}

fn drop_session(tx: &Connection, session: &str) -> rusqlite::Result<()> {
    for part in [
        "DELETE FROM texts WHERE rowid IN (SELECT id FROM places WHERE session = ?1)",
        "DELETE FROM places WHERE session = ?1",
        "DELETE FROM heads WHERE session = ?1",
    ] {
        tx.prepare_cached(part)?.execute([session])?;
    }
    Ok(())
}

/// What the index found.
struct IndexHit {
    place: i64,
    session: String,
    seq: i64,
    snippet: String,
}

fn find(index: &Connection, wanted: SearchRequest<'_>, before: i64) -> rusqlite::Result<Vec<IndexHit>> {
    index
        .prepare_cached(
            "SELECT texts.rowid, p.session, p.seq, snippet(texts, 0, ?6, ?7, '…', ?8) FROM texts \
             CROSS JOIN places AS p ON p.id = texts.rowid WHERE texts MATCH ?1 AND texts.rowid < ?2 \
             AND (?3 IS NULL OR p.agent = ?3) AND (?4 IS NULL OR p.session = ?4) \
             ORDER BY texts.rowid DESC LIMIT ?5",
        )?
        .query_map(
            params![
                wanted.query.expression(),
                before,
                wanted.agent.map(AgentId::as_str),
                wanted.session.map(SessionId::as_str),
                wanted.limit,
                MARK_START.to_string(),
                MARK_END.to_string(),
                SNIPPET_WORDS,
            ],
            |row| {
                Ok(IndexHit {
                    place: row.get(0)?,
                    session: row.get(1)?,
                    seq: row.get(2)?,
                    snippet: row.get(3)?,
                })
            },
        )?
        .collect()
}

/// The store's message for a hit. None: it was deleted.
fn confirm(reader: &Reader, found: IndexHit) -> Result<Option<SearchHit>, ReadError> {
    let row = reader.here(|store| store.message(&found.session, found.seq))?;
    let Some((message, agent, active)) = row else { return Ok(None) };
    let at = Timestamp::from_ms(found.place / PLACES_A_MS);
    let Some(agent) = agent.parse().ok().filter(|_| message.at == at) else { return Ok(None) };
    let (snippet, marks) = unmark(&found.snippet);
    Ok(Some(SearchHit { agent, message, active, snippet, marks, place: found.place }))
}

/// Removes the marks from a snippet and returns their positions.
fn unmark(marked: &str) -> (String, Vec<(u32, u32)>) {
    let (mut snippet, mut marks, mut at) = (String::new(), Vec::new(), 0);
    let mut start = None;
    for character in marked.chars() {
        match character {
            MARK_START => start = Some(at),
            MARK_END => marks.extend(start.take().map(|start| (start, at))),
            other => {
                snippet.push(other);
                at += 1;
            }
        }
    }
    (snippet, marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_counted_in_characters_and_leave_the_text_as_it_was() {
        assert_eq!(unmark("…ä \u{2}b\u{3} c\u{2}d\u{3}"), ("…ä b cd".to_owned(), vec![(3, 4), (6, 7)]));
        assert_eq!(unmark("plain"), ("plain".to_owned(), Vec::new()));
    }
}
