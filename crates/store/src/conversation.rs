//! Reading what was said in a session: its path, or everything, page after page.

use lodge_core::record::{MessageRow, Role, StepRow, TurnRow};
use lodge_core::summary::TurnFull;
use lodge_core::{SessionId, TurnId};
use prost::Message;
use rusqlite::{Connection, OptionalExtension, params};

use crate::read::{PAGE_BYTES_MAX, Reader, Result, full};
use crate::rows;

/// Which turns of a session are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those on its path.
    Path,
    /// Those that left it too.
    All,
}

/// A message, and whether its turn is on the path.
#[derive(Debug, Clone, PartialEq)]
pub struct Told {
    pub row: MessageRow,
    pub active: bool,
}

/// A message with what is known of its turn or its tool call.
#[derive(Debug, Clone)]
pub struct Exported {
    pub told: Told,
    /// With the message that began it: its turn.
    pub turn: Option<TurnFull>,
    /// With a tool's result: the call's outcome.
    pub outcome: Option<StepRow>,
}

/// After which turn a page goes on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnCursor {
    pub number: u32,
    /// Turns of one number are told apart by their ids.
    pub id: String,
}

impl Reader {
    /// The newest messages before a sequence, oldest first. A page ends with the message that reaches one of its bounds;
    /// whether there may be more comes with it.
    pub fn messages(
        &self,
        session: &SessionId,
        which: Which,
        before: Option<u64>,
        limit: u32,
    ) -> Result<(Vec<Told>, bool)> {
        self.with(|c| {
            let before = before.map_or(i64::MAX, u64::cast_signed);
            let mut statement = c.prepare_cached(
                "SELECT m.*, t.dropped FROM messages AS m JOIN turns AS t ON t.id = m.turn \
                 WHERE m.session = ?1 AND m.seq < ?2 AND t.dropped <= ?4 ORDER BY m.seq DESC LIMIT ?3",
            )?;
            let mut found = statement.query(params![session.as_str(), before, limit, highest(which)])?;
            let (mut newest, mut bytes) = (Vec::new(), 0);
            while bytes < PAGE_BYTES_MAX
                && let Some(row) = found.next()?
            {
                let told = told(row)?;
                bytes += told.row.body.encoded_len();
                newest.push(told);
            }
            let more = newest.len() == limit as usize || bytes >= PAGE_BYTES_MAX;
            newest.reverse();
            Ok((newest, more))
        })
    }

    /// Turns of a session in order; those of one number in the order in which they were accepted. Bounded as
    /// [`Reader::messages`] is.
    pub fn turns(
        &self,
        session: &SessionId,
        which: Which,
        after: &TurnCursor,
        limit: u32,
    ) -> Result<(Vec<TurnFull>, bool)> {
        self.with(|c| {
            let found: Vec<TurnRow> = c
                .prepare_cached(match which {
                    Which::Path => {
                        "SELECT * FROM turns WHERE session = ?1 AND dropped = 0 AND number > ?2 AND ?3 IS NOT NULL \
                         ORDER BY number LIMIT ?4"
                    }
                    Which::All => {
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

    /// Everything that was said after a sequence, on and off the path, in the order in which it was recorded. A page
    /// ends with the message that reaches one of the bounds; whether there is more comes with it.
    pub fn exported(
        &self,
        session: &SessionId,
        after: u64,
        messages_max: u32,
        bytes_max: usize,
    ) -> Result<(Vec<Exported>, bool)> {
        self.with(|c| {
            let c = &*c.unchecked_transaction()?;
            let mut statement = c.prepare_cached(
                "SELECT m.*, t.dropped FROM messages AS m JOIN turns AS t ON t.id = m.turn \
                 WHERE m.session = ?1 AND m.seq > ?2 ORDER BY m.seq",
            )?;
            let mut found = statement.query(params![session.as_str(), after.cast_signed()])?;
            let (mut page, mut bytes) = (Vec::new(), 0);
            while let Some(row) = found.next()? {
                if page.len() == messages_max as usize || bytes >= bytes_max {
                    return Ok((page, true));
                }
                let told = told(row)?;
                bytes += told.row.body.text.len();
                bytes += told.row.body.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
                page.push(with_facts(c, told)?);
            }
            Ok((page, false))
        })
    }
}

/// Puts what a turn is told before the message that began it.
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
fn highest(which: Which) -> u32 {
    match which {
        Which::Path => 0,
        Which::All => u32::MAX,
    }
}

fn told(row: &rusqlite::Row<'_>) -> rusqlite::Result<Told> {
    Ok(Told { row: rows::message_row(row)?, active: row.get::<_, u32>("dropped")? == 0 })
}

fn with_facts(c: &Connection, told: Told) -> rusqlite::Result<Exported> {
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
    Ok(Exported { told, turn, outcome })
}
