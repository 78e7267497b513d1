//! What the index of all words reads from the store.

use lodge_core::record::MessageRow;
use rusqlite::{OptionalExtension, params};

use super::rows;
use super::snapshot::SqliteSnapshot;
use crate::reads::{MessageWords, Result, SearchReads, SessionHead, WordsMax};

impl SearchReads for SqliteSnapshot<'_> {
    fn sessions_gone(&self, known: &[(String, i64)]) -> Result<Vec<String>> {
        self.with(|c| {
            let mut statement =
                c.prepare_cached("SELECT EXISTS (SELECT 1 FROM sessions WHERE id = ?1 AND created_at = ?2)")?;
            let mut gone = Vec::new();
            for (session, created_at) in known {
                if !statement.query_row(params![session, created_at], |row| row.get::<_, bool>(0))? {
                    gone.push(session.clone());
                }
            }
            Ok(gone)
        })
    }

    fn session_heads(&self, after: &str, limit: u32) -> Result<Vec<SessionHead>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT id, created_at, agent, (SELECT max(seq) FROM messages WHERE session = sessions.id) \
                 FROM sessions WHERE id > ?1 ORDER BY id LIMIT ?2",
            )?
            .query_map(params![after, limit], |row| {
                let seq: Option<i64> = row.get(3)?;
                let seq = seq.unwrap_or(0);
                Ok(SessionHead { id: row.get(0)?, created_at: row.get(1)?, agent: row.get(2)?, seq })
            })?
            .collect()
        })
    }

    fn message_words(&self, session: &str, after: i64, most: WordsMax) -> Result<Vec<MessageWords>> {
        self.with(|c| {
            let mut statement =
                c.prepare_cached("SELECT * FROM messages WHERE session = ?1 AND seq > ?2 ORDER BY seq")?;
            let mut found = statement.query(params![session, after])?;
            let (mut words, mut bytes) = (Vec::new(), 0);
            while bytes < most.bytes
                && words.len() < most.messages
                && let Some(row) = found.next()?
            {
                let message = rows::message_row(row)?;
                let mut text = message.body.text;
                for call in message.body.calls {
                    text.push_str(&format!("\n{} {}", call.name, call.arguments));
                }
                text.truncate(text.floor_char_boundary(most.message_bytes));
                bytes += text.len();
                words.push(MessageWords { seq: message.seq.cast_signed(), at: message.at.ms(), text });
            }
            Ok(words)
        })
    }

    fn message(&self, session: &str, seq: i64) -> Result<Option<(MessageRow, String, bool)>> {
        self.with(|c| {
            c.prepare_cached(
                "SELECT m.*, t.dropped, t.agent FROM messages AS m JOIN turns AS t ON t.id = m.turn \
                 WHERE m.session = ?1 AND m.seq = ?2",
            )?
            .query_row(params![session, seq], |row| {
                Ok((rows::message_row(row)?, row.get("agent")?, row.get::<_, u32>("dropped")? == 0))
            })
            .optional()
        })
    }
}
