//! One model call: assembles the context, streams the text, and reports one answer or one failure.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lodge_core::quarantine::WorkKind;
use lodge_core::record::{CallRecord, FailureRecord, MessageBody, MessageRow, ReasoningRecord, Role, Usage};
use lodge_model::schema::{SCHEMA_BYTES_MAX, Schema};
use lodge_model::{
    CallAnswer, CallError, ModelMessage, ModelRequest, ProviderKind, Reasoning, RedactedStream, Redactor,
    Repetition, ToolCall, ToolOutcome,
};
use lodge_proto::Delta;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::context::ActContext;
use super::history::history;
use super::ports::{ModelReply, ReadSize};
use super::runtime::Profile;
use crate::chain;
use crate::compute::{Charge, ComputeError};
use crate::crash;
use lodge_engine::{
    AnswerMismatch, AutoRetry, CallRetry, ModelAnswer, ModelFailure, ModelOrder, Observation, Purpose,
    TurnObservation, pieces,
};

/// How often streamed text is recorded as an event.
const TEXT_EVERY: Duration = Duration::from_millis(300);

/// The most bytes of one live notice. A thousand notices may wait for a slow client.
const DELTA_BYTES_MAX: usize = 64 << 10;

/// Makes the call and reports its outcome to the engine. A cancelled call reports nothing.
pub(super) async fn call(context: Arc<ActContext>, order: ModelOrder, cancel: CancellationToken) {
    let made = async {
        if order.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(order.delay_ms)).await;
        }
        let watched = context.suspects.begin(WorkKind::ModelCall, order.turn.as_str(), "");
        watched.watch(call_model(&context, &order)).await
    };
    let seen = tokio::select! {
        biased;
        () = cancel.cancelled() => return,
        seen = made => seen,
    };
    context.actors.call_ended(&order.turn, &cancel);
    crash::point(match order.purpose {
        Purpose::Step => "before_answer",
        Purpose::Summary { .. } => "before_summary",
    });
    context.report(seen).await;
}

async fn call_model(context: &Arc<ActContext>, order: &ModelOrder) -> Observation {
    let failed = |failure: ModelFailure| {
        Observation::Turn(TurnObservation::ModelFailed {
            turn: order.turn.clone(),
            step: order.step,
            attempt: order.attempt,
            failure,
        })
    };
    let request = match assemble(context, order).await {
        Ok(request) => request,
        Err(failure) => return failed(failure),
    };
    let shown: Arc<Mutex<StreamedText>> = Arc::default();
    let schema = request.schema.clone();
    let model = match context.models.find(order) {
        Ok(model) => model,
        Err(failure) => return failed(failure),
    };
    let redactor = model.redactor();
    let mut redacted = RedactedStream::default();
    let mut on_text = |part: &str| stream_text(context, order, &shown, &redacted.push(&redactor, part));
    let called = {
        let mut call = model.call(request, &mut on_text);
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TEXT_EVERY, TEXT_EVERY);
        loop {
            tokio::select! {
                biased;
                called = &mut call => break called,
                _ = tick.tick() => store_text(context, order, &shown).await,
            }
        }
    };
    stream_text(context, order, &shown, &redacted.finish(&redactor));
    match called {
        Ok(ModelReply { answer, micro_usd }) => {
            // Reasoning is signed, so it is not redacted.
            let calls = answer.calls.into_iter().map(|call| redact_call(&redactor, call)).collect();
            let answer = CallAnswer { text: redactor.redact(answer.text), calls, ..answer };
            match check_answer(context, order, schema, &answer).await {
                Ok(misfit) => Observation::Turn(TurnObservation::ModelAnswered {
                    turn: order.turn.clone(),
                    step: order.step,
                    attempt: order.attempt,
                    answer: model_answer(answer, micro_usd, misfit),
                }),
                Err(failure) => failed(failure),
            }
        }
        Err(failure) => {
            // Text of a failed call that clients saw stays readable.
            store_text(context, order, &shown).await;
            failed(failure)
        }
    }
}

/// An answer in the engine's form, with its price.
fn model_answer(answer: CallAnswer, micro_usd: Option<u64>, misfit: Option<AnswerMismatch>) -> ModelAnswer {
    ModelAnswer {
        misfit,
        usage: Usage {
            input_tokens: answer.usage.input_tokens,
            output_tokens: answer.usage.output_tokens,
            cached_tokens: answer.usage.cached_tokens,
            micro_usd,
        },
        text: answer.text,
        calls: answer.calls.into_iter().map(record).collect(),
        reasoning: answer.reasoning.map(|reasoning| ReasoningRecord {
            kind: reasoning.kind.as_str().to_owned(),
            provider: reasoning.provider,
            model: reasoning.model,
            blocks: reasoning.blocks,
        }),
    }
}

#[derive(Debug, Default)]
struct StreamedText {
    offset: u64,
    /// Text that was streamed to clients and not reported to the engine yet.
    waiting: String,
}

fn stream_text(context: &ActContext, order: &ModelOrder, shown: &Mutex<StreamedText>, text: &str) {
    // The redactor holds text back that may be the start of a key.
    if text.is_empty() {
        return;
    }
    match order.purpose {
        Purpose::Step => {}
        // A summary is for the model. Clients do not see it.
        Purpose::Summary { .. } => return crash::point("during_summary"),
    }
    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
    let mut offset = shown.offset + shown.waiting.len() as u64;
    shown.waiting.push_str(text);
    drop(shown);
    for piece in pieces(text, DELTA_BYTES_MAX) {
        context.hub.publish_text(Delta {
            agent: order.agent.to_string(),
            session: order.session.to_string(),
            turn: order.turn.to_string(),
            step: order.step,
            attempt: order.attempt,
            offset,
            text: piece.to_owned(),
        });
        offset += piece.len() as u64;
    }
    crash::point("during_model");
}

async fn store_text(context: &ActContext, order: &ModelOrder, shown: &Mutex<StreamedText>) {
    let (offset, text) = {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let text = std::mem::take(&mut shown.waiting);
        let offset = shown.offset;
        shown.offset += text.len() as u64;
        (offset, text)
    };
    if !text.is_empty() {
        let (turn, step, attempt) = (order.turn.clone(), order.step, order.attempt);
        context
            .report(Observation::Turn(TurnObservation::ModelText { turn, step, attempt, offset, text }))
            .await;
    }
}

/// Conversations up to this many bytes and turns are a few rows. Assembling them takes about 100 µs.
const SHORT_BYTES: u64 = 32 << 10;
const SHORT_TURNS: u32 = 32;

/// How long the message that a call needs may take to be recorded.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);

/// Why no request was assembled. The same call may succeed in a moment.
#[derive(Debug, thiserror::Error)]
enum AssemblyFault {
    #[error("message {message} of the session is not recorded yet")]
    NotRecorded { message: u64 },
    /// The runtime may have been replaced since, and a repeated call names the context of the new one.
    #[error("the runtime named a context it did not register")]
    UnknownContext,
    #[error(transparent)]
    NotComputed(#[from] ComputeError),
}

impl AssemblyFault {
    fn code(&self) -> &'static str {
        match self {
            AssemblyFault::NotRecorded { .. } => "daemon.internal",
            AssemblyFault::UnknownContext => "turn.unknown_context",
            AssemblyFault::NotComputed(error) => error.code(),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            AssemblyFault::NotRecorded { .. } | AssemblyFault::UnknownContext => None,
            AssemblyFault::NotComputed(error) => error.hint(),
        }
    }
}

impl From<AssemblyFault> for ModelFailure {
    fn from(fault: AssemblyFault) -> ModelFailure {
        let failure = final_failure(fault.code(), &chain(&fault), fault.hint());
        ModelFailure { retry: CallRetry::Own, ..failure }
    }
}

/// Assembles the request. Waits until the message that it needs is recorded.
async fn assemble(context: &Arc<ActContext>, order: &ModelOrder) -> Result<ModelRequest, ModelFailure> {
    let late = tokio::time::sleep(RECORDED_WITHIN);
    tokio::pin!(late);
    loop {
        // Subscribe before the read, so that no commit is missed in between.
        let published = context.hub.next_publication();
        if let Some(request) = assemble_now(context, order).await? {
            return Ok(request);
        }
        tokio::select! {
            biased;
            () = &mut late => {
                return Err(AssemblyFault::NotRecorded { message: order.message }.into());
            }
            () = published => {}
        }
    }
}

/// Assembles the request from one snapshot. None: the message that it needs is not recorded yet.
async fn assemble_now(
    context: &Arc<ActContext>,
    order: &ModelOrder,
) -> Result<Option<ModelRequest>, ModelFailure> {
    let Some(profile) = context.actors.profile(&order.agent).filter(|profile| is_registered(profile, order))
    else {
        return Err(AssemblyFault::UnknownContext.into());
    };
    let turns = order.number.saturating_sub(order.from_turn);
    let is_short = order.bytes.is_some_and(|bytes| bytes <= SHORT_BYTES) && turns <= SHORT_TURNS;
    let size = match is_short {
        true => ReadSize::Few,
        false => ReadSize::Conversation { agent: order.agent.clone(), bytes: order.bytes },
    };
    let wanted = order.clone();
    let read = context.read(size, move |store| {
        let rows = match history(store, &wanted) {
            Ok(Some(rows)) => rows,
            Ok(None) => return (Ok(None), 0),
            Err(error) => return (Err(error), 0),
        };
        let bytes = rows.iter().map(|row| row.body.text.len() as u64).sum();
        let request = request(&wanted, &profile, rows);
        if let Some(ModelMessage::User { text }) = request.messages.last() {
            crash::pill(WorkKind::ModelCall, text);
        }
        (Ok(Some(request)), bytes)
    });
    Ok(read.await.map_err(AssemblyFault::from)?)
}

/// The request, from what the runtime registered and what the store has.
fn request(order: &ModelOrder, profile: &Profile, rows: Vec<MessageRow>) -> ModelRequest {
    ModelRequest {
        model: String::new(),
        system: profile.system.clone(),
        schema: answer_schema(order, &rows),
        messages: rows.into_iter().map(message).collect(),
        tools: profile.tools(),
        params: profile.params.clone(),
    }
}

/// A step needs the context that its runtime registered. A summary needs none.
fn is_registered(profile: &Profile, order: &ModelOrder) -> bool {
    match order.purpose {
        Purpose::Step => profile.context == order.context,
        Purpose::Summary { .. } => true,
    }
}

/// The schema that this turn's answer must match. It is part of the message that started the turn.
fn answer_schema(order: &ModelOrder, rows: &[MessageRow]) -> Option<Value> {
    match order.purpose {
        Purpose::Step => {}
        Purpose::Summary { .. } => return None,
    }
    let text = rows.iter().find_map(|row| row.body.schema.as_ref().filter(|_| row.number == order.number))?;
    serde_json::from_str(text).ok()
}

/// Checks an answer against its schema, off the async workers. An answer with tool calls is not final and not checked.
async fn check_answer(
    context: &Arc<ActContext>,
    order: &ModelOrder,
    schema: Option<Value>,
    answer: &CallAnswer,
) -> Result<Option<AnswerMismatch>, ModelFailure> {
    let Some(schema) = schema.filter(|_| answer.calls.is_empty()) else { return Ok(None) };
    let text = answer.text.clone();
    let check = move |charge: &Charge| {
        charge.add(text.len() as u64);
        crash::pill(WorkKind::SchemaCheck, &text);
        misfit(schema, &text)
    };
    // Marked separately from the model call that it is part of, so that a crash counts against the check.
    let watched = context.suspects.begin(WorkKind::SchemaCheck, order.turn.as_str(), "");
    let judged = watched.watch(context.compute(order.agent.as_str(), SCHEMA_BYTES_MAX, check)).await;
    Ok(judged.map_err(AssemblyFault::from)?)
}

fn misfit(schema: Value, answer: &str) -> Option<AnswerMismatch> {
    match Schema::new(schema) {
        Ok(schema) => schema.check(answer.trim()).err().map(|misfit| {
            let again = if misfit.gave_up { AutoRetry::Never } else { AutoRetry::Later };
            AnswerMismatch { why: misfit.to_string(), again }
        }),
        // The schema was valid when it was recorded, but another release may support other keywords.
        Err(error) => Some(AnswerMismatch { why: error.to_string(), again: AutoRetry::Never }),
    }
}

/// The text of a message, with its schema appended as text: not every provider has a field for it.
fn message_text(body: MessageBody) -> String {
    match body.schema {
        Some(schema) => format!(
            "{}\n\n[Answer with one JSON value and nothing else, no code fence. It must fit this JSON schema:\n{schema}]",
            body.text
        ),
        None => body.text,
    }
}

fn message(row: MessageRow) -> ModelMessage {
    match row.role {
        Role::User => ModelMessage::User { text: message_text(row.body) },
        Role::Assistant => ModelMessage::Assistant {
            text: row.body.text,
            calls: row
                .body
                .calls
                .into_iter()
                .map(|call| ToolCall { id: call.id, name: call.name, arguments: call.arguments })
                .collect(),
            reasoning: row.body.reasoning.and_then(reasoning),
        },
        Role::Tool => ModelMessage::ToolResult {
            call_id: row.body.call.unwrap_or_default(),
            text: row.body.text,
            outcome: if row.body.failed { ToolOutcome::Failed } else { ToolOutcome::Succeeded },
        },
    }
}

/// None if this release does not know the kind: no provider takes it.
fn reasoning(record: ReasoningRecord) -> Option<Reasoning> {
    let ReasoningRecord { kind, provider, model, blocks } = record;
    Some(Reasoning { kind: ProviderKind::named(&kind)?, provider, model, blocks })
}

/// Redacts the arguments of a tool call. The tool is called with the redacted arguments, too.
fn redact_call(redactor: &Redactor, call: ToolCall) -> ToolCall {
    let arguments = redact_texts(redactor, &call.arguments);
    let arguments = match serde_json::from_str::<IgnoredAny>(&arguments) {
        Ok(IgnoredAny) => arguments,
        // The arguments are not JSON, so redaction cannot break their syntax.
        Err(_) => redactor.redact(arguments),
    };
    ToolCall { arguments, name: redactor.redact(call.name), ..call }
}

/// Redacts each string of a JSON document separately, including strings that a parser drops, such as the first of two fields
/// with the same name. Everything else stays unchanged.
fn redact_texts(redactor: &Redactor, json: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(json.len()), json);
    while let Some(start) = rest.find('"') {
        let Some(len) = text_len(&rest[start..]) else { break };
        let (before, after) = rest.split_at(start);
        let (written, after) = after.split_at(len);
        out.push_str(before);
        let text = serde_json::from_str::<String>(written).ok();
        let redacted = text.map(|text| (redactor.redact(text.clone()), text));
        match redacted {
            Some((redacted, text)) if redacted != text => out.push_str(&Value::String(redacted).to_string()),
            Some(_) | None => out.push_str(written),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// The length of the JSON string at the start of `json`, with both quotes. None: it does not end.
fn text_len(json: &str) -> Option<usize> {
    let mut bytes = json.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at + 1),
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    None
}

fn record(call: ToolCall) -> CallRecord {
    CallRecord { id: call.id, name: call.name, arguments: call.arguments }
}

/// The failure of a call, in the engine's form.
pub(super) fn model_failure(error: &CallError, retry_for: Duration) -> ModelFailure {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let retry = match error.repetition() {
        Repetition::Patient => {
            CallRetry::Provider { after_ms: error.retry_after().map(ms), retry_for_ms: ms(retry_for) }
        }
        // `retry-for: 0` asks for the first failure.
        Repetition::Brief if retry_for.is_zero() => CallRetry::Never,
        Repetition::Brief => CallRetry::Own,
        Repetition::Never => CallRetry::Never,
    };
    let record = FailureRecord { code: error.code().to_owned(), message: chain(error), hint: error.hint() };
    ModelFailure { record, retry }
}

pub(super) fn final_failure(code: &str, message: &str, hint: Option<String>) -> ModelFailure {
    ModelFailure {
        record: FailureRecord { code: code.to_owned(), message: message.to_owned(), hint },
        retry: CallRetry::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redaction_removes_keys_from_every_argument_string_and_keeps_the_rest() {
        const KEY: &str = "sk-0123456789abcdef";
        let redactor = Redactor::new([KEY]);
        let redacted = |arguments: &str| {
            let call = ToolCall { id: "1".into(), name: "sh".into(), arguments: arguments.to_owned() };
            redact_call(&redactor, call).arguments
        };
        let untouched = r#"{"a":"x \" \\","a":1.50,"b":["\u00e9",{}]}"#;
        assert_eq!(redacted(untouched), untouched);
        let escaped: String = KEY.chars().map(|letter| format!("\\u{:04x}", u32::from(letter))).collect();
        let deep = format!("{}\"{escaped}\"{}", "[".repeat(200), "]".repeat(200));
        for arguments in [
            format!(r#"{{"a":"{KEY}","a":"x"}}"#),
            format!(r#"{{"{KEY}":1}}"#),
            format!(r#"["\\","{escaped}"]"#),
            deep,
            format!("no JSON {KEY}"),
            format!(r#"{{"a":"{KEY}"#),
        ] {
            let out = redacted(&arguments);
            assert!(!out.contains(KEY) && !out.contains(&escaped), "{out}");
            assert!(out.contains("[secret]"), "{out}");
        }
    }
}
