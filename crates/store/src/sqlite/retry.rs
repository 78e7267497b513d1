//! Reads a turn that is continued by another one: what it finished.

use lodge_core::TurnId;
use lodge_core::record::StepRow;
use rusqlite::{Connection, OptionalExtension, params};

use crate::reads::{SessionBase, TurnRemains, TurnSelectionError};
use crate::sqlite::rows;
use crate::sqlite::sessions::{cut, turn_of};

pub(crate) fn remains(
    c: &Connection,
    base: &SessionBase,
    id: &TurnId,
) -> rusqlite::Result<Result<TurnRemains, TurnSelectionError>> {
    let Some(turn) = turn_of(c, base, id)? else { return Ok(Err(TurnSelectionError::Unknown)) };
    if turn.place.dropped > 0 {
        return Ok(Err(TurnSelectionError::Inactive));
    }
    // A copy has no steps of its own.
    let ran = turn.place.origin.as_ref().unwrap_or(&turn.id);
    let steps: Vec<StepRow> = c
        .prepare_cached("SELECT * FROM steps WHERE turn = ?1 ORDER BY step, ordinal")?
        .query_map([ran.as_str()], rows::step)?
        .collect::<rusqlite::Result<_>>()?;
    let messages = c
        .prepare_cached("SELECT * FROM messages WHERE session = ?1 AND seq >= ?2 AND turn = ?3 ORDER BY seq")?
        .query_map(
            params![turn.session.as_str(), turn.first_message.cast_signed(), turn.id.as_str()],
            rows::message_row,
        )?
        .collect::<rusqlite::Result<_>>()?;
    let epoch = c
        .prepare_cached(
            "SELECT * FROM epochs WHERE session = ?1 AND dropped = 0 AND turn = ?2 ORDER BY epoch DESC LIMIT 1",
        )?
        .query_row(params![turn.session.as_str(), turn.number], rows::epoch)
        .optional()?;
    let plan = cut(c, base, turn.number)?;
    Ok(Ok(TurnRemains { turn, steps, messages, epoch, plan }))
}
