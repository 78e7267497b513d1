//! One model call: context by reference in, text as it comes, one answer or one failure out.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lodge_core::quarantine::WorkKind;
use lodge_core::record::{CallRecord, FailureRecord, MessageBody, MessageRow, ReasoningRecord, Role, Usage};
use lodge_model::schema::{SCHEMA_BYTES_MAX, Schema};
use lodge_model::{
    CallAnswer, ModelMessage, ModelRequest, Provider, ProviderKind, Reasoning, RedactedStream, Redactor,
    ToolCall, ToolOutcome,
};
use lodge_proto::Delta;
use serde::de::IgnoredAny;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::history::history;
use super::runtime::Profile;
use crate::chain;
use crate::compute::{Charge, ComputeError};
use crate::crash;
use crate::read_view::ReadView;
use crate::shell::Shell;
use lodge_engine::{Again, Misfit, ModelAnswer, ModelFailure, ModelOrder, Purpose, Seen, TurnSeen, pieces};

/// How often text that was shown becomes an event.
const TEXT_EVERY: Duration = Duration::from_millis(300);

/// Bytes of live text that are told at once: a thousand of these may wait for a client that reads slowly.
const DELTA_BYTES_MAX: usize = 64 << 10;

/// Makes the call and tells the engine how it went. Cancelled, it tells nothing.
pub(super) async fn call(shell: Arc<Shell>, order: ModelOrder, cancel: CancellationToken) {
    let made = async {
        if order.delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(order.delay_ms)).await;
        }
        let watched = shell.suspects.begin(WorkKind::ModelCall, order.turn.as_str(), "");
        watched.watch(attempt(&shell, &order)).await
    };
    let seen = tokio::select! {
        () = cancel.cancelled() => return,
        seen = made => seen,
    };
    shell.actors.call_ended(&order.turn);
    crash::point(match order.purpose {
        Purpose::Step => "before_answer",
        Purpose::Summary { .. } => "before_summary",
    });
    shell.tell(seen).await;
}

async fn attempt(shell: &Arc<Shell>, order: &ModelOrder) -> Seen {
    let failed = |failure: ModelFailure| {
        Seen::Turn(TurnSeen::ModelFailed {
            turn: order.turn.clone(),
            step: order.step,
            attempt: order.attempt,
            failure,
        })
    };
    let request = match assembled(shell, order).await {
        Ok(request) => request,
        Err(failure) => return failed(failure),
    };
    let resolved = match shell.providers.resolve(&order.model) {
        Ok(resolved) => resolved,
        Err(error) => return failed(final_failure(error.code(), &chain(&error), error.hint())),
    };
    let request = ModelRequest { model: resolved.model, ..request };
    let data = shell.config.data_dir.join("agents").join(order.agent.as_str()).join("etc/data");
    let context = shell.calls.at(data);
    let shown: Arc<Mutex<Shown>> = Arc::default();
    let redactor = shell.providers.redactor();
    let mut redacted = RedactedStream::default();
    let mut on_text = |part: &str| show(shell, order, &shown, &redacted.push(&redactor, part));
    let called = {
        let call = lodge_model::call(&resolved.provider, &request, &context, &mut on_text);
        tokio::pin!(call);
        let mut tick = tokio::time::interval_at(tokio::time::Instant::now() + TEXT_EVERY, TEXT_EVERY);
        loop {
            tokio::select! {
                called = &mut call => break called,
                _ = tick.tick() => store_text(shell, order, &shown).await,
            }
        }
    };
    show(shell, order, &shown, &redacted.finish(&redactor));
    match called {
        Ok(answer) => {
            // What the model thought is signed, and stays as it is.
            let calls = answer.calls.into_iter().map(|call| redact_call(&redactor, call)).collect();
            let answer = CallAnswer { text: redactor.redact(answer.text), calls, ..answer };
            match judged(shell, order, request.schema.clone(), &answer).await {
                Ok(misfit) => Seen::Turn(TurnSeen::ModelAnswered {
                    turn: order.turn.clone(),
                    step: order.step,
                    attempt: order.attempt,
                    answer: told(&resolved.provider, &request, answer, misfit),
                }),
                Err(failure) => failed(failure),
            }
        }
        Err(error) => {
            // What people saw of a call that broke off stays readable.
            store_text(shell, order, &shown).await;
            failed(ModelFailure {
                record: FailureRecord {
                    code: error.code().to_owned(),
                    message: chain(&error),
                    hint: error.hint(),
                },
                retryable: error.retryable(),
                after_ms: error
                    .retry_after()
                    .map(|after| u64::try_from(after.as_millis()).unwrap_or(u64::MAX)),
            })
        }
    }
}

/// An answer as the engine takes it, with its price.
fn told(
    provider: &Provider,
    request: &ModelRequest,
    answer: CallAnswer,
    misfit: Option<Misfit>,
) -> ModelAnswer {
    ModelAnswer {
        misfit,
        usage: Usage {
            input_tokens: answer.usage.input_tokens,
            output_tokens: answer.usage.output_tokens,
            cached_tokens: answer.usage.cached_tokens,
            micro_usd: provider.cost(&request.model, &answer.usage),
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
struct Shown {
    offset: u64,
    /// Shown and not yet told to the engine.
    waiting: String,
}

fn show(shell: &Shell, order: &ModelOrder, shown: &Mutex<Shown>, text: &str) {
    // All of it may be the beginning of a key, which waits.
    if text.is_empty() {
        return;
    }
    match order.purpose {
        Purpose::Step => {}
        // It is written for the model, and nobody asked for it.
        Purpose::Summary { .. } => return crash::point("during_summary"),
    }
    let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
    let mut offset = shown.offset + shown.waiting.len() as u64;
    shown.waiting.push_str(text);
    drop(shown);
    for piece in pieces(text, DELTA_BYTES_MAX) {
        shell.hub.preview(Delta {
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

async fn store_text(shell: &Shell, order: &ModelOrder, shown: &Mutex<Shown>) {
    let (offset, text) = {
        let mut shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        let text = std::mem::take(&mut shown.waiting);
        let offset = shown.offset;
        shown.offset += text.len() as u64;
        (offset, text)
    };
    if !text.is_empty() {
        let (turn, step, attempt) = (order.turn.clone(), order.step, order.attempt);
        shell.tell(Seen::Turn(TurnSeen::ModelText { turn, step, attempt, offset, text })).await;
    }
}

/// Conversations up to this many bytes and turns are a few rows, assembled in some 100 µs.
const SHORT_BYTES: u64 = 32 << 10;
const SHORT_TURNS: u32 = 32;
/// What a conversation is taken to weigh whose size is not known.
const CONVERSATION_BYTES: u64 = 64 << 10;

/// How long the message that a call needs may take to be recorded.
const RECORDED_WITHIN: Duration = Duration::from_secs(10);

/// The request, once the message that it needs is recorded.
async fn assembled(shell: &Arc<Shell>, order: &ModelOrder) -> Result<ModelRequest, ModelFailure> {
    let mut published = shell.hub.watch();
    let late = tokio::time::sleep(RECORDED_WITHIN);
    tokio::pin!(late);
    loop {
        // Before the read, so that a commit in between is not missed.
        published.mark_unchanged();
        if let Some(request) = assembled_now(shell, order).await? {
            return Ok(request);
        }
        tokio::select! {
            () = &mut late => {
                let message = format!("message {} of the session is not recorded yet", order.message);
                let mut failure = final_failure("daemon.internal", &message, None);
                failure.retryable = true;
                return Err(failure);
            }
            _ = published.changed() => {}
        }
    }
}

/// The request, from one snapshot. A conversation can be megabytes: then callers share the threads that assemble them.
/// None: the message that it needs is not recorded yet.
async fn assembled_now(shell: &Arc<Shell>, order: &ModelOrder) -> Result<Option<ModelRequest>, ModelFailure> {
    let wanted = order.clone();
    let assemble = move |at: &ReadView<'_>| {
        let request = request(at, &wanted);
        if let Ok(Some(request)) = &request
            && let Some(ModelMessage::User { text }) = request.messages.last()
        {
            crash::pill(WorkKind::ModelCall, text);
        }
        Ok(request)
    };
    let bytes = order.bytes.unwrap_or(CONVERSATION_BYTES);
    let turns = order.number.saturating_sub(order.from_turn);
    if bytes <= SHORT_BYTES && turns <= SHORT_TURNS {
        return shell.read_few(assemble).await.unwrap_or_else(|error| Err(not_computed(&error)));
    }
    let (is_guess, reader) = (order.bytes.is_none(), shell.clone());
    let assemble = move |charge: &Charge| {
        let request = reader.read_here(assemble)?;
        if let Ok(Some(request)) = &request
            && is_guess
        {
            charge.add(weight(request) as u64);
        }
        Ok(request)
    };
    let assembled = shell.compute.run(order.agent.as_str(), bytes as usize, assemble).await;
    assembled.flatten().unwrap_or_else(|error| Err(not_computed(&error)))
}

fn weight(request: &ModelRequest) -> usize {
    let of = |message: &ModelMessage| match message {
        ModelMessage::User { text }
        | ModelMessage::ToolResult { text, .. }
        | ModelMessage::Assistant { text, .. } => text.len(),
    };
    request.messages.iter().map(of).sum()
}

/// The same call may find a processor in a moment.
fn not_computed(error: &ComputeError) -> ModelFailure {
    let mut failure = final_failure(error.code(), &error.to_string(), error.hint());
    failure.retryable = true;
    failure
}

/// The request, from what the runtime registered and what the store holds. None: the store lacks a message.
fn request(at: &ReadView<'_>, order: &ModelOrder) -> Result<Option<ModelRequest>, ModelFailure> {
    let registered = |profile: &Arc<Profile>| match order.purpose {
        Purpose::Step => profile.context == order.context,
        Purpose::Summary { .. } => true,
    };
    let profile = at.actors.profile(&order.agent).filter(registered);
    let Some(profile) = profile else {
        return Err(final_failure(
            "turn.unknown_context",
            "the runtime named a context it did not register",
            None,
        ));
    };
    let rows = history(at.store, order);
    let Some(rows) = rows.map_err(|error| final_failure("daemon.internal", &chain(&error), None))? else {
        return Ok(None);
    };
    Ok(Some(ModelRequest {
        model: String::new(),
        system: profile.system.clone(),
        schema: wanted_schema(order, &rows),
        messages: rows.into_iter().map(message).collect(),
        tools: profile.tools(),
        params: profile.params.clone(),
    }))
}

/// The schema that this turn's answer must fit. It stands with the message that asked for it.
fn wanted_schema(order: &ModelOrder, rows: &[MessageRow]) -> Option<Value> {
    match order.purpose {
        Purpose::Step => {}
        Purpose::Summary { .. } => return None,
    }
    let text = rows.iter().find_map(|row| row.body.schema.as_ref().filter(|_| row.number == order.number))?;
    serde_json::from_str(text).ok()
}

/// Why an answer does not fit its schema, checked off the async workers. One that asks for tools is no answer yet.
async fn judged(
    shell: &Arc<Shell>,
    order: &ModelOrder,
    schema: Option<Value>,
    answer: &CallAnswer,
) -> Result<Option<Misfit>, ModelFailure> {
    let Some(schema) = schema.filter(|_| answer.calls.is_empty()) else { return Ok(None) };
    let text = answer.text.clone();
    let check = move |charge: &Charge| {
        charge.add(text.len() as u64);
        crash::pill(WorkKind::SchemaCheck, &text);
        misfit(schema, &text)
    };
    // Within the model call, and apart from it: what is computed here is the innermost.
    let watched = shell.suspects.begin(WorkKind::SchemaCheck, order.turn.as_str(), "");
    let judged = watched.watch(shell.compute.run(order.agent.as_str(), SCHEMA_BYTES_MAX, check)).await;
    judged.map_err(|error| not_computed(&error))
}

fn misfit(schema: Value, answer: &str) -> Option<Misfit> {
    match Schema::new(schema) {
        Ok(schema) => schema.check(answer.trim()).err().map(|misfit| {
            let again = if misfit.gave_up { Again::Never } else { Again::Later };
            Misfit { why: misfit.to_string(), again }
        }),
        // It was checked when it was recorded; another release may know other keywords.
        Err(error) => Some(Misfit { why: error.to_string(), again: Again::Never }),
    }
}

/// What a person asked, and what the answer must look like: in words, because not every protocol has a place for it.
fn asked(body: MessageBody) -> String {
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
        Role::User => ModelMessage::User { text: asked(row.body) },
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

/// Of a kind that this release does not know there is nobody to send it to.
fn reasoning(record: ReasoningRecord) -> Option<Reasoning> {
    let ReasoningRecord { kind, provider, model, blocks } = record;
    Some(Reasoning { kind: ProviderKind::named(&kind)?, provider, model, blocks })
}

/// A tool is called with what is recorded of the call, so it gets no key either.
fn redact_call(redactor: &Redactor, call: ToolCall) -> ToolCall {
    let arguments = redact_texts(redactor, &call.arguments);
    let arguments = match serde_json::from_str::<IgnoredAny>(&arguments) {
        Ok(IgnoredAny) => arguments,
        // It is no JSON, so that there is nothing to break.
        Err(_) => redactor.redact(arguments),
    };
    ToolCall { arguments, name: redactor.redact(call.name), ..call }
}

/// Redacts every text in a JSON document by itself, also one that a parser drops, such as the first of two fields with
/// one name. Everything else stays as it is written.
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

/// The length of the JSON text that `json` begins with, with both quotes. None: it does not end.
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

fn final_failure(code: &str, message: &str, hint: Option<String>) -> ModelFailure {
    ModelFailure {
        record: FailureRecord { code: code.to_owned(), message: message.to_owned(), hint },
        retryable: false,
        after_ms: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_in_the_arguments_of_a_call_keeps_a_key_and_the_rest_stays_as_it_is() {
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
