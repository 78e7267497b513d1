//! Turning columns into rows of `core`, in one place.

use std::str::FromStr;

use lodge_core::agent::AgentState;
use lodge_core::epoch::{EpochRow, Strategy, Summary};
use lodge_core::lineage::LineageState;
use lodge_core::record::{
    AgentRow, AgentSpec, EventRow, ExecRequest, FailureRecord, LineageRow, MessageBody, MessageRow, NextSpec,
    RequestRow, Retry, Role, SessionRow, StepKind, StepRow, TurnRow, Usage,
};
use lodge_core::session::{ForkPoint, TurnPlace};
use lodge_core::token::{Holder, TokenRow};
use lodge_core::turn::{StepState, TurnState};
use lodge_core::{Cause, EventData, EventKind, Timestamp};
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
        retry: Retry { failures: row.get("failures")?, at: optional_time(row, "retry_at")? },
        next: optional_message::<NextSpec>(row, "next")?,
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

pub(crate) fn token(row: &Row<'_>) -> rusqlite::Result<TokenRow> {
    let (issuer, agent) = (row.get("issuer")?, optional_id(row, "agent")?);
    Ok(TokenRow {
        id: id(row, "jti")?,
        holder: Holder::from_code(issuer, agent).ok_or_else(|| unknown(row, "issuer", issuer))?,
        name: row.get("name")?,
        issued_at: time(row, "issued_at")?,
        expires_at: time(row, "expires_at")?,
        revoked_at: optional_time(row, "revoked_at")?,
    })
}

pub(crate) fn epoch(row: &Row<'_>) -> rusqlite::Result<EpochRow> {
    let strategy: i64 = row.get("strategy")?;
    Ok(EpochRow {
        session: id(row, "session")?,
        number: row.get("epoch")?,
        turn: row.get("turn")?,
        from_turn: row.get("from_turn")?,
        strategy: Strategy::from_code(strategy).ok_or_else(|| unknown(row, "strategy", strategy))?,
        summary: row.get::<_, Option<String>>("summary")?.map_or(Summary::Nothing, Summary::Text),
        at: time(row, "at")?,
    })
}

pub(crate) fn session(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        id: id(row, "id")?,
        agent: id(row, "agent")?,
        sender: row.get("sender")?,
        created_at: time(row, "created_at")?,
        forked: forked(row)?,
    })
}

fn forked(row: &Row<'_>) -> rusqlite::Result<Option<ForkPoint>> {
    let Some(session) = optional_id(row, "forked_from")? else { return Ok(None) };
    Ok(Some(ForkPoint { session, turn: row.get("forked_at")? }))
}

pub(crate) fn turn(row: &Row<'_>) -> rusqlite::Result<TurnRow> {
    let state: i64 = row.get("state")?;
    Ok(TurnRow {
        id: id(row, "id")?,
        session: id(row, "session")?,
        agent: id(row, "agent")?,
        number: row.get("number")?,
        place: TurnPlace {
            dropped: row.get("dropped")?,
            parent: optional_id(row, "parent")?,
            replaces: optional_id(row, "replaces")?,
            origin: optional_id(row, "origin")?,
        },
        state: TurnState::from_code(state).ok_or_else(|| unknown(row, "state", state))?,
        first_event: unsigned(row, "first_event")?,
        first_message: unsigned(row, "first_message")?,
        created_at: time(row, "created_at")?,
        ended_at: optional_time(row, "ended_at")?,
        usage: Usage {
            input_tokens: unsigned(row, "input_tokens")?,
            output_tokens: unsigned(row, "output_tokens")?,
            cached_tokens: unsigned(row, "cached_tokens")?,
            micro_usd: row.get::<_, Option<i64>>("micro_usd")?.map(i64::cast_unsigned),
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
        // One that a newer release wrote is none that this one could tell.
        cause: row.get::<_, Option<i64>>("cause")?.and_then(Cause::from_code),
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
