//! Turning columns into rows of `core`, in one place.

use std::str::FromStr;

use lodge_core::agent::AgentState;
use lodge_core::lineage::LineageState;
use lodge_core::record::{
    AgentRow, AgentSpec, EventRow, ExecRequest, FailureRecord, LineageRow, MessageBody, MessageRow,
    RequestRow, Role, SessionRow, StepKind, StepRow, TurnRow, Usage,
};
use lodge_core::turn::{StepState, TurnState};
use lodge_core::{EventData, EventKind, Timestamp};
use prost::Message;
use rusqlite::Row;
use rusqlite::types::Type;

#[derive(Debug, thiserror::Error)]
#[error("column `{column}` holds {value}, which this release does not know")]
struct UnknownValue {
    column: &'static str,
    value: String,
}

fn unknown(row: &Row<'_>, column: &'static str, value: impl ToString) -> rusqlite::Error {
    let index = row.as_ref().column_index(column).unwrap_or(0);
    rusqlite::Error::FromSqlConversionFailure(
        index,
        Type::Integer,
        Box::new(UnknownValue { column, value: value.to_string() }),
    )
}

fn id<T: FromStr>(row: &Row<'_>, column: &'static str) -> rusqlite::Result<T> {
    let text: String = row.get(column)?;
    text.parse().map_err(|_| unknown(row, column, text))
}

fn optional_id<T: FromStr>(row: &Row<'_>, column: &'static str) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| text.parse().map_err(|_| unknown(row, column, text))).transpose()
}

fn message<T: Message + Default>(row: &Row<'_>, column: &'static str) -> rusqlite::Result<T> {
    let bytes = row.get_ref(column)?.as_blob()?;
    T::decode(bytes).map_err(|cause| unknown(row, column, cause))
}

fn optional_message<T: Message + Default>(
    row: &Row<'_>,
    column: &'static str,
) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)?.as_blob_or_null()? {
        None => Ok(None),
        Some(bytes) => T::decode(bytes).map(Some).map_err(|cause| unknown(row, column, cause)),
    }
}

fn time(row: &Row<'_>, column: &'static str) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp::from_ms)
}

fn optional_time(row: &Row<'_>, column: &'static str) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_ms))
}

/// SQLite has signed integers; sequences and counters never reach the sign.
pub(crate) fn unsigned(row: &Row<'_>, column: &'static str) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

pub(crate) fn agent(row: &Row<'_>) -> rusqlite::Result<AgentRow> {
    let (state, reason): (i64, Option<i64>) = (row.get("state")?, row.get("failure_reason")?);
    Ok(AgentRow {
        id: id(row, "id")?,
        name: row.get("name")?,
        image: row.get("image")?,
        image_digest: row.get("image_digest")?,
        lineage: id(row, "lineage")?,
        sandbox: id(row, "sandbox")?,
        state: AgentState::from_codes(state, reason).ok_or_else(|| unknown(row, "state", state))?,
        failure_detail: row.get("failure_detail")?,
        incarnation: row.get("incarnation")?,
        runs: row.get("runs")?,
        uid: row.get("uid")?,
        created_at: time(row, "created_at")?,
        started_at: optional_time(row, "started_at")?,
        spec: message::<AgentSpec>(row, "spec")?,
    })
}

pub(crate) fn lineage(row: &Row<'_>) -> rusqlite::Result<LineageRow> {
    let (state, reason): (i64, Option<i64>) = (row.get("state")?, row.get("ended_reason")?);
    Ok(LineageRow {
        id: id(row, "id")?,
        agent: id(row, "agent")?,
        state: LineageState::from_codes(state, reason).ok_or_else(|| unknown(row, "state", state))?,
        revivals: row.get("revivals")?,
        deaths: row.get("deaths")?,
        detail: row.get("detail")?,
        created_at: time(row, "created_at")?,
        ended_at: optional_time(row, "ended_at")?,
    })
}

pub(crate) fn session(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        id: id(row, "id")?,
        agent: id(row, "agent")?,
        sender: row.get("sender")?,
        created_at: time(row, "created_at")?,
    })
}

pub(crate) fn turn(row: &Row<'_>) -> rusqlite::Result<TurnRow> {
    let state: i64 = row.get("state")?;
    Ok(TurnRow {
        id: id(row, "id")?,
        session: id(row, "session")?,
        agent: id(row, "agent")?,
        number: row.get("number")?,
        state: TurnState::from_code(state).ok_or_else(|| unknown(row, "state", state))?,
        first_event: unsigned(row, "first_event")?,
        first_message: unsigned(row, "first_message")?,
        created_at: time(row, "created_at")?,
        ended_at: optional_time(row, "ended_at")?,
        usage: Usage {
            input_tokens: unsigned(row, "input_tokens")?,
            output_tokens: unsigned(row, "output_tokens")?,
        },
        failure: optional_message::<FailureRecord>(row, "failure")?,
    })
}

pub(crate) fn step(row: &Row<'_>) -> rusqlite::Result<StepRow> {
    let (kind, state): (i64, i64) = (row.get("kind")?, row.get("state")?);
    Ok(StepRow {
        id: id(row, "id")?,
        turn: id(row, "turn")?,
        step: row.get("step")?,
        ordinal: row.get("ordinal")?,
        kind: StepKind::from_code(kind).ok_or_else(|| unknown(row, "kind", kind))?,
        name: row.get("name")?,
        state: StepState::from_code(state).ok_or_else(|| unknown(row, "state", state))?,
        attempt: row.get("attempt")?,
        call: row.get("call")?,
        exec: optional_id(row, "exec")?,
        request: optional_message::<ExecRequest>(row, "request")?,
        exit_code: row.get("exit_code")?,
        signal: row.get("signal")?,
        started_at: time(row, "started_at")?,
        ended_at: optional_time(row, "ended_at")?,
    })
}

pub(crate) fn message_row(row: &Row<'_>) -> rusqlite::Result<MessageRow> {
    let role: i64 = row.get("role")?;
    Ok(MessageRow {
        session: id(row, "session")?,
        seq: unsigned(row, "seq")?,
        turn: id(row, "turn")?,
        number: row.get("number")?,
        step: row.get("step")?,
        role: Role::from_code(role).ok_or_else(|| unknown(row, "role", role))?,
        at: time(row, "at")?,
        body: message::<MessageBody>(row, "body")?,
    })
}

/// `None` for a kind that a newer release wrote: readers pass over it.
pub(crate) fn event(row: &Row<'_>) -> rusqlite::Result<Option<EventRow>> {
    let Some(kind) = EventKind::from_code(row.get("kind")?) else { return Ok(None) };
    Ok(Some(EventRow {
        seq: unsigned(row, "seq")?,
        stream: row.get("stream")?,
        stream_seq: unsigned(row, "stream_seq")?,
        at: time(row, "at")?,
        kind,
        data: message::<EventData>(row, "data")?,
    }))
}

pub(crate) fn request(row: &Row<'_>) -> rusqlite::Result<RequestRow> {
    let bytes: Vec<u8> = row.get("digest")?;
    let digest = bytes.try_into().map_err(|_| unknown(row, "digest", "another length"))?;
    Ok(RequestRow {
        caller: row.get("caller")?,
        request_id: row.get("request_id")?,
        digest,
        answer: row.get("answer")?,
        at: time(row, "at")?,
    })
}
