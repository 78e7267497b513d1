//! Turning columns into rows of `core`, in one place.

use std::str::FromStr;

use lodge_core::agent::AgentState;
use lodge_core::epoch::{EpochRow, Strategy, Summary};
use lodge_core::lineage::LineageState;
use lodge_core::park::ParkRecord;
use lodge_core::quarantine::{QuarantineRow, Work, WorkKind};
use lodge_core::record::{
    AgentRow, AgentSpec, EventRow, FailureRecord, LineageRow, MessageBody, MessageRow, NextSpec, RequestRow,
    Role, SessionRow, StartRetry, StepKind, StepRow, StepTarget, TurnRow, Usage,
};
use lodge_core::session::{ForkPoint, TurnLinks};
use lodge_core::token::{TokenHolder, TokenRow};
use lodge_core::turn::{StepState, TurnState};
use lodge_core::{Cause, EventBody, EventKind, Timestamp};
use prost::Message;
use rusqlite::types::Type;
use rusqlite::{Row, RowIndex, Statement};

#[derive(Debug, thiserror::Error)]
#[error("column `{column}` holds {value}, which this release does not know")]
struct UnknownValue {
    column: String,
    value: String,
}

pub(crate) fn unknown(row: &Row<'_>, column: impl RowIndex, value: impl ToString) -> rusqlite::Error {
    let index = column.idx(row.as_ref()).unwrap_or(0);
    let column = row.as_ref().column_name(index).unwrap_or_default().to_owned();
    rusqlite::Error::FromSqlConversionFailure(
        index,
        Type::Integer,
        Box::new(UnknownValue { column, value: value.to_string() }),
    )
}

pub(crate) fn id<T: FromStr>(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<T> {
    let text = row.get_ref(column)?.as_str()?;
    text.parse().map_err(|_| unknown(row, column, text))
}

/// The columns of `USAGE_SUM`. A sum has a cost only if all of its parts have one.
pub(crate) fn usage_sum(row: &Row<'_>) -> rusqlite::Result<Usage> {
    let cost = unsigned(row, "micro_usd")?;
    Ok(Usage {
        input_tokens: unsigned(row, "input_tokens")?,
        output_tokens: unsigned(row, "output_tokens")?,
        cached_tokens: unsigned(row, "cached_tokens")?,
        micro_usd: Some(cost).filter(|_| row.get::<_, i64>("unpriced").is_ok_and(|unpriced| unpriced == 0)),
    })
}

pub(crate) fn optional_id<T: FromStr>(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Option<T>> {
    let text: Option<String> = row.get(column)?;
    text.map(|text| text.parse().map_err(|_| unknown(row, column, text))).transpose()
}

pub(crate) fn message<T: Message + Default>(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<T> {
    let bytes = row.get_ref(column)?.as_blob()?;
    T::decode(bytes).map_err(|cause| unknown(row, column, cause))
}

pub(crate) fn optional_message<T: Message + Default>(
    row: &Row<'_>,
    column: impl RowIndex,
) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)?.as_blob_or_null()? {
        None => Ok(None),
        Some(bytes) => T::decode(bytes).map(Some).map_err(|cause| unknown(row, column, cause)),
    }
}

pub(crate) fn time(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp::from_ms)
}

pub(crate) fn optional_time(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(Timestamp::from_ms))
}

/// SQLite has signed integers; sequences and counters never reach the sign.
pub(crate) fn unsigned(row: &Row<'_>, column: &'static str) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

/// The positions of a table's columns in the rows of a statement. A lookup by name is expensive for thousands of rows:
/// a start reads every agent.
macro_rules! places {
    ($places:ident { $($column:ident),+ $(,)? }) => {
        #[derive(Debug)]
        pub(crate) struct $places { $($column: usize),+ }

        impl $places {
            pub(crate) fn of(statement: &Statement<'_>) -> rusqlite::Result<Self> {
                Ok($places { $($column: statement.column_index(stringify!($column))?),+ })
            }
        }
    };
}

places!(AgentPlaces {
    id,
    name,
    image,
    image_digest,
    lineage,
    sandbox,
    state,
    failure_reason,
    failure_detail,
    incarnation,
    runs,
    uid,
    created_at,
    started_at,
    spec,
    failures,
    retry_at,
    next,
});
places!(LineagePlaces { id, agent, state, ended_reason, revivals, deaths, detail, created_at, ended_at });

pub(crate) fn agent(row: &Row<'_>) -> rusqlite::Result<AgentRow> {
    agent_at(row, &AgentPlaces::of(row.as_ref())?)
}

pub(crate) fn agent_at(row: &Row<'_>, at: &AgentPlaces) -> rusqlite::Result<AgentRow> {
    let (state, reason): (i64, Option<i64>) = (row.get(at.state)?, row.get(at.failure_reason)?);
    Ok(AgentRow {
        id: id(row, at.id)?,
        name: row.get(at.name)?,
        image: row.get(at.image)?,
        image_digest: row.get(at.image_digest)?,
        lineage: id(row, at.lineage)?,
        sandbox: id(row, at.sandbox)?,
        state: AgentState::from_codes(state, reason).ok_or_else(|| unknown(row, at.state, state))?,
        failure_detail: row.get(at.failure_detail)?,
        incarnation: row.get(at.incarnation)?,
        runs: row.get(at.runs)?,
        uid: row.get(at.uid)?,
        created_at: time(row, at.created_at)?,
        started_at: optional_time(row, at.started_at)?,
        spec: message::<AgentSpec>(row, at.spec)?,
        retry: StartRetry { failures: row.get(at.failures)?, at: optional_time(row, at.retry_at)? },
        next: optional_message::<NextSpec>(row, at.next)?,
    })
}

pub(crate) fn lineage(row: &Row<'_>) -> rusqlite::Result<LineageRow> {
    lineage_at(row, &LineagePlaces::of(row.as_ref())?)
}

pub(crate) fn lineage_at(row: &Row<'_>, at: &LineagePlaces) -> rusqlite::Result<LineageRow> {
    let (state, reason): (i64, Option<i64>) = (row.get(at.state)?, row.get(at.ended_reason)?);
    Ok(LineageRow {
        id: id(row, at.id)?,
        agent: id(row, at.agent)?,
        state: LineageState::from_codes(state, reason).ok_or_else(|| unknown(row, at.state, state))?,
        revivals: row.get(at.revivals)?,
        deaths: row.get(at.deaths)?,
        detail: row.get(at.detail)?,
        created_at: time(row, at.created_at)?,
        ended_at: optional_time(row, at.ended_at)?,
    })
}

pub(crate) fn token(row: &Row<'_>) -> rusqlite::Result<TokenRow> {
    let (issuer, agent) = (row.get("issuer")?, optional_id(row, "agent")?);
    Ok(TokenRow {
        id: id(row, "jti")?,
        holder: TokenHolder::from_code(issuer, agent).ok_or_else(|| unknown(row, "issuer", issuer))?,
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
        place: TurnLinks {
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
        park: optional_message::<ParkRecord>(row, "park")?.and_then(|record| record.reason),
    })
}

pub(crate) fn step(row: &Row<'_>) -> rusqlite::Result<StepRow> {
    let (kind, state): (i64, i64) = (row.get("kind")?, row.get("state")?);
    let kind = StepKind::from_code(kind).ok_or_else(|| unknown(row, "kind", kind))?;
    let request = row.get_ref("request")?.as_blob_or_null()?;
    let target = StepTarget::decode(kind, optional_id(row, "exec")?, request);
    Ok(StepRow {
        id: id(row, "id")?,
        turn: id(row, "turn")?,
        step: row.get("step")?,
        ordinal: row.get("ordinal")?,
        target: target.map_err(|cause| unknown(row, "request", cause))?,
        name: row.get("name")?,
        state: StepState::from_code(state).ok_or_else(|| unknown(row, "state", state))?,
        attempt: row.get("attempt")?,
        call: row.get("call")?,
        exit_code: row.get("exit_code")?,
        signal: row.get("signal")?,
        // A code of a newer release is unknown here.
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

/// `None` for a kind of a newer release: readers skip it.
pub(crate) fn event(row: &Row<'_>) -> rusqlite::Result<Option<EventRow>> {
    let Some(kind) = EventKind::from_code(row.get("kind")?) else { return Ok(None) };
    let data = row.get_ref("data")?.as_blob()?;
    let body = EventBody::decode(kind, data).map_err(|cause| unknown(row, "data", cause))?;
    Ok(Some(EventRow {
        seq: unsigned(row, "seq")?,
        stream: row.get("stream")?,
        stream_seq: unsigned(row, "stream_seq")?,
        at: time(row, "at")?,
        body,
    }))
}

pub(crate) fn quarantine(row: &Row<'_>) -> rusqlite::Result<QuarantineRow> {
    let kind: i64 = row.get("kind")?;
    Ok(QuarantineRow {
        id: id(row, "id")?,
        work: Work {
            kind: WorkKind::from_code(kind).ok_or_else(|| unknown(row, "kind", kind))?,
            subject: row.get("subject")?,
        },
        agent: optional_id(row, "agent")?,
        detail: row.get("detail")?,
        deaths: row.get("deaths")?,
        since: time(row, "since")?,
    })
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
