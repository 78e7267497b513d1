//! Reads the messages of a session: its path, or all of them, in pages.

use lodge_core::record::{MessageRow, Role, TurnRow};
use lodge_core::summary::TurnDetail;
use lodge_core::{SessionId, TurnId};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, params};

use super::snapshot::SqliteSnapshot;
use crate::reads::{
    ConversationReads, EpochPlacement, MessageExport, PAGE_BYTES_MAX, Result, SessionMessage, TurnCursor,
    TurnScope,
};
use crate::sqlite::turns::full;
use crate::sqlite::{epochs, rows};

impl ConversationReads for SqliteSnapshot<'_> {
    fn newest_message(&self, session: &SessionId) -> Result<u64> {
        self.with(|c| {
            let newest: Option<i64> = c
                .prepare_cached("SELECT max(seq) FROM messages WHERE session = ?1")?
                .query_row([session.as_str()], |row| row.get(0))?;
            Ok(newest.unwrap_or(0).cast_unsigned())
        })
    }

    fn context(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<MessageRow>> {
        self.with(|c| {
            let first: Option<i64> = c
                .prepare_cached("SELECT first_message FROM turns WHERE session = ?1 AND dropped = 0 AND number >= ?2 ORDER BY number LIMIT 1")?
                .query_row(params![session.as_str(), from], |row| row.get(0))
                .optional()?;
            let mut messages: Vec<MessageRow> = c
                .prepare_cached(
                    "SELECT * FROM messages WHERE session = ?1 AND seq >= ?2 AND number >= ?3 AND number <= ?4 \
                     AND EXISTS (SELECT 1 FROM turns WHERE id = messages.turn AND dropped = 0)",
                )?
                .query_map(params![session.as_str(), first.unwrap_or(0), from, upto], rows::message_row)?
                .collect::<rusqlite::Result<_>>()?;
            messages.sort_by_key(|message| (message.number, message.seq));
            Ok(messages)
        })
    }

    fn messages(
        &self,
        session: &SessionId,
        which: TurnScope,
        before: Option<u64>,
        limit: u32,
    ) -> Result<(Vec<SessionMessage>, bool)> {
        self.with(|c| {
            // The order is found without the messages' texts, which may be much larger than a page.
            let mut statement = c.prepare_cached(
                "SELECT m.seq FROM messages AS m JOIN turns AS t ON t.id = m.turn \
                 WHERE m.session = ?1 AND t.dropped <= ?2 \
                 AND (?3 IS NULL OR (m.number, m.turn, m.seq) < (?3, ?4, ?5)) \
                 ORDER BY m.number DESC, m.turn DESC, m.seq DESC LIMIT ?6",
            )?;
            let (number, turn, seq) = position(c, session, before)?;
            let order: Vec<i64> = statement
                .query_map(params![session.as_str(), highest(which), number, turn, seq, limit], |row| {
                    row.get(0)
                })?
                .collect::<rusqlite::Result<_>>()?;
            let (mut newest, mut bytes) = (Vec::new(), 0);
            for seq in order {
                if bytes >= PAGE_BYTES_MAX {
                    break;
                }
                let told = read_message(c, session, seq)?;
                bytes += told.row.body.encoded_len();
                newest.push(told);
            }
            let more = newest.len() == limit as usize || bytes >= PAGE_BYTES_MAX;
            newest.reverse();
            Ok((newest, more))
        })
    }

    fn turns(
        &self,
        session: &SessionId,
        which: TurnScope,
        after: &TurnCursor,
        limit: u32,
    ) -> Result<(Vec<TurnDetail>, bool)> {
        self.with(|c| {
            let found: Vec<TurnRow> = c
                .prepare_cached(match which {
                    TurnScope::Path => {
                        "SELECT * FROM turns WHERE session = ?1 AND dropped = 0 AND number > ?2 AND ?3 IS NOT NULL \
                         ORDER BY number LIMIT ?4"
                    }
                    TurnScope::All => {
                        "SELECT * FROM turns WHERE session = ?1 AND (number, id) > (?2, ?3) ORDER BY number, id LIMIT ?4"
                    }
                })?
                .query_map(params![session.as_str(), after.number, after.id, limit], rows::turn)?
                .collect::<rusqlite::Result<_>>()?;
            let (mut turns, mut bytes) = (Vec::new(), 0);
            for row in found {
                let turn = full(c, row)?;
                bytes += turn.text.len();
                turns.push(turn);
                if bytes >= PAGE_BYTES_MAX {
                    break;
                }
            }
            let more = turns.len() == limit as usize || bytes >= PAGE_BYTES_MAX;
            Ok((turns, more))
        })
    }

    fn exported(
        &self,
        session: &SessionId,
        after: u64,
        messages_max: u32,
        bytes_max: usize,
    ) -> Result<(Vec<MessageExport>, bool)> {
        self.with(|c| {
            let mut statement = c.prepare_cached(
                "SELECT m.seq FROM messages AS m JOIN turns AS t ON t.id = m.turn WHERE m.session = ?1 \
                 AND (?2 IS NULL OR (m.number, m.turn, m.seq) > (?2, ?3, ?4)) \
                 ORDER BY m.number, m.turn, m.seq LIMIT ?5",
            )?;
            let (number, turn, seq) = position(c, session, Some(after).filter(|after| *after > 0))?;
            if after > 0 && number.is_none() {
                return Ok((Vec::new(), false));
            }
            let order: Vec<i64> = statement
                .query_map(
                    params![session.as_str(), number, turn, seq, i64::from(messages_max) + 1],
                    |row| row.get(0),
                )?
                .collect::<rusqlite::Result<_>>()?;
            let (mut page, mut bytes) = (Vec::new(), 0);
            for seq in order {
                if page.len() == messages_max as usize || bytes >= bytes_max {
                    return Ok((page, true));
                }
                let told = read_message(c, session, seq)?;
                bytes += told.row.body.text.len();
                bytes += told.row.body.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
                page.push(with_facts(c, told)?);
            }
            Ok((page, false))
        })
    }

    fn summary(&self, session: &SessionId, epoch: u32) -> Result<Option<String>> {
        self.with(|c| {
            let found = c
                .prepare_cached("SELECT summary FROM epochs WHERE session = ?1 AND epoch = ?2")?
                .query_row(params![session.as_str(), epoch], |row| row.get(0))
                .optional()?;
            Ok(found.flatten())
        })
    }

    fn epochs(&self, session: &SessionId, from: u32, upto: u32) -> Result<Vec<EpochPlacement>> {
        self.with(|c| {
            let mut statement = c.prepare_cached(
                "SELECT * FROM epochs WHERE session = ?1 AND turn BETWEEN ?2 AND ?3 AND dropped = 0 ORDER BY epoch",
            )?;
            let found = statement.query_map(params![session.as_str(), from, upto], rows::epoch)?;
            found
                .map(|row| {
                    let row = row?;
                    let seq = epochs::first_message(c, session.as_str(), row.turn)?;
                    Ok(EpochPlacement { seq, row })
                })
                .collect()
        })
    }
}

/// Puts the note of a turn before its first message.
pub(crate) fn set_note(tx: &Connection, turn: &TurnId, note: &str) -> rusqlite::Result<()> {
    let mut row = tx
        .prepare_cached(
            "SELECT m.* FROM turns AS t JOIN messages AS m ON m.session = t.session AND m.seq = t.first_message \
             WHERE t.id = ?1",
        )?
        .query_row([turn.as_str()], rows::message_row)?;
    row.body.note = Some(note.to_owned());
    tx.prepare_cached("UPDATE messages SET body = ?3 WHERE session = ?1 AND seq = ?2")?.execute(params![
        row.session.as_str(),
        row.seq.cast_signed(),
        row.body.encode_to_vec()
    ])?;
    Ok(())
}

/// The highest number of a cut whose turns are read.
pub(crate) fn highest(which: TurnScope) -> u32 {
    match which {
        TurnScope::Path => 0,
        TurnScope::All => u32::MAX,
    }
}

/// Where a message is in its conversation: turns by number, branches of one number by age. Without a message: nowhere.
fn position(
    c: &Connection,
    session: &SessionId,
    seq: Option<u64>,
) -> rusqlite::Result<(Option<u32>, Option<String>, i64)> {
    let Some(seq) = seq.map(|seq| i64::try_from(seq).unwrap_or(i64::MAX)) else { return Ok((None, None, 0)) };
    let found: Option<(u32, String)> = c
        .prepare_cached("SELECT number, turn FROM messages WHERE session = ?1 AND seq = ?2")?
        .query_row(params![session.as_str(), seq], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (number, turn) = found.unzip();
    Ok((number, turn, seq))
}

fn read_message(c: &Connection, session: &SessionId, seq: i64) -> rusqlite::Result<SessionMessage> {
    c.prepare_cached(
        "SELECT m.*, t.dropped FROM messages AS m JOIN turns AS t ON t.id = m.turn WHERE m.session = ?1 AND m.seq = ?2",
    )?
    .query_row(params![session.as_str(), seq], session_message)
}

fn session_message(row: &rusqlite::Row<'_>) -> rusqlite::Result<SessionMessage> {
    Ok(SessionMessage { row: rows::message_row(row)?, active: row.get::<_, u32>("dropped")? == 0 })
}

fn with_facts(c: &Connection, told: SessionMessage) -> rusqlite::Result<MessageExport> {
    let (mut turn, mut outcome) = (None, None);
    match told.row.role {
        Role::User => {
            let row = c
                .prepare_cached("SELECT * FROM turns WHERE id = ?1 AND first_message = ?2")?
                .query_row(params![told.row.turn.as_str(), told.row.seq.cast_signed()], rows::turn)
                .optional()?;
            turn = row.map(|row| full(c, row)).transpose()?;
        }
        Role::Tool => {
            outcome = c
                .prepare_cached("SELECT * FROM steps WHERE turn = ?1 AND step = ?2 AND call = ?3")?
                .query_row(params![told.row.turn.as_str(), told.row.step, told.row.body.call], rows::step)
                .optional()?;
        }
        Role::Assistant => {}
    }
    Ok(MessageExport { told, turn, outcome })
}
