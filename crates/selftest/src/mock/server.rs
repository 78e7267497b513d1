//! The server: takes connections, looks up what each request asks for, and does it.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::UNKNOWN_MODEL;
use super::command::{MockFault, MockPlan};
use super::connection::{HttpRequest, MockConnection};
use super::journal::{Arrival, Journal, RequestOutcome};
use super::reply::{ChatPosition, ChatReply, ChatRequest, Fnv};
use crate::clock::now_us;

/// How a server behaves.
#[derive(Debug, Clone, Default)]
pub struct MockOptions {
    pub log: Option<PathBuf>,
    /// Requests without this key are refused; absent: any or none will do.
    pub key: Option<String>,
    /// What is listed and known; empty: one is listed and any is known, save [`UNKNOWN_MODEL`].
    pub models: Vec<String>,
    /// Commands for messages that hold none.
    pub script: Vec<ScriptLine>,
}

/// Messages that contain `when` are treated as if they contained `do`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptLine {
    pub when: String,
    pub r#do: String,
}

struct MockServer {
    options: MockOptions,
    journal: Journal,
    requests: AtomicU64,
    /// Messages whose `…-once` has happened.
    happened: Mutex<HashSet<u64>>,
}

/// How an answer ended, as far as the server had a say.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReplyEnd {
    Answered,
    /// Failed on purpose, in good form: the connection lives.
    Refused,
    /// Failed on purpose: the connection must close.
    Cut,
}

const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const LAST_CHUNK: &str = "0\r\n\r\n";

/// Serves until the listener fails or the future is dropped.
pub async fn serve(listener: TcpListener, options: MockOptions) -> io::Result<()> {
    let journal = Journal::open(options.log.as_deref())?;
    let server =
        Arc::new(MockServer { options, journal, requests: AtomicU64::new(0), happened: Mutex::default() });
    // Dropping the set ends the connections with the server.
    let mut connections = JoinSet::new();
    for number in 1.. {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        let server = Arc::clone(&server);
        connections.spawn(async move {
            // A broken connection is the client's problem, and the journal has it.
            let _ = server.connection(number, stream).await;
        });
    }
    Ok(())
}

impl MockServer {
    async fn connection(&self, number: u64, stream: TcpStream) -> io::Result<()> {
        let mut connection = MockConnection::new(number, stream)?;
        while let Some(request) = connection.request().await? {
            let keep_alive = request.keep_alive;
            let ended = match (request.method.as_str(), request.path.as_str()) {
                ("POST", "/v1/chat/completions") => self.chat(&mut connection, &request).await?,
                ("GET", "/v1/models") => self.models(&mut connection, &request).await?,
                (_, _) => {
                    connection.write_json(404, "", r#"{"detail":"not found"}"#).await?;
                    ReplyEnd::Refused
                }
            };
            if ended == ReplyEnd::Cut || !keep_alive {
                break;
            }
        }
        Ok(())
    }

    async fn models(&self, connection: &mut MockConnection, request: &HttpRequest) -> io::Result<ReplyEnd> {
        if self.key_ok(request) == Some(false) {
            return refuse(connection, 401, "invalid_api_key", "").await;
        }
        let names: Vec<&str> = match self.options.models.as_slice() {
            [] => vec!["mock"],
            models => models.iter().map(String::as_str).collect(),
        };
        let data: Vec<_> =
            names.iter().map(|name| serde_json::json!({"id": name, "object": "model"})).collect();
        let list = serde_json::json!({"object": "list", "data": data}).to_string();
        connection.write_json(200, "", &list).await?;
        Ok(ReplyEnd::Answered)
    }

    async fn chat(&self, connection: &mut MockConnection, request: &HttpRequest) -> io::Result<ReplyEnd> {
        let Ok(chat) = serde_json::from_slice::<ChatRequest<'_>>(&request.body) else {
            return refuse(connection, 400, "invalid_request", "").await;
        };
        let number = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        let mut standing = ChatPosition::of(&chat);
        let key_ok = self.key_ok(request);
        self.journal.arrived(Arrival {
            number,
            connection: connection.number,
            at_us: now_us(),
            model: chat.model.clone().into_owned(),
            user: standing.user.clone(),
            step: standing.step,
            messages: standing.lengths.len(),
            lengths: standing.lengths.clone(),
            digest: std::mem::take(&mut standing.digest),
            key_ok,
        })?;
        let ended = if key_ok == Some(false) {
            refuse(connection, 401, "invalid_api_key", "").await
        } else if !self.knows(&chat.model) {
            refuse(connection, 404, "model_not_found", "").await
        } else {
            let plan = self.plan(&standing);
            let reply = ChatReply::of(number, &chat.model, &plan, &standing);
            perform(connection, &plan, &reply, chat.stream).await
        };
        let outcome = match &ended {
            Ok(ReplyEnd::Answered) => RequestOutcome::Done,
            Ok(ReplyEnd::Refused | ReplyEnd::Cut) => RequestOutcome::Failed,
            Err(_) => RequestOutcome::Gone,
        };
        self.journal.done(number, outcome)?;
        ended
    }

    fn key_ok(&self, request: &HttpRequest) -> Option<bool> {
        let key = self.options.key.as_ref()?;
        let sent = request.authorization.as_deref().and_then(|value| value.strip_prefix("Bearer "));
        Some(sent == Some(key))
    }

    fn knows(&self, model: &str) -> bool {
        match self.options.models.as_slice() {
            [] => model != UNKNOWN_MODEL,
            models => models.iter().any(|known| known == model),
        }
    }

    /// What to do now: once done, a `…-once` is no longer part of it.
    fn plan(&self, standing: &ChatPosition) -> MockPlan {
        let mut plan = MockPlan::of(&standing.user);
        if plan == MockPlan::default()
            && let Some(line) = self.options.script.iter().find(|line| standing.user.contains(&line.when))
        {
            plan = MockPlan::of(&line.r#do);
        }
        if plan.once {
            let mut happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
            if !happened.insert(Fnv::of(&standing.user)) {
                plan.fault = None;
            }
        }
        plan
    }
}

/// Answers, or fails, as planned.
async fn perform(
    connection: &mut MockConnection,
    plan: &MockPlan,
    reply: &ChatReply<'_>,
    wants_stream: bool,
) -> io::Result<ReplyEnd> {
    if plan.delay_ms > 0 {
        connection.pause(Duration::from_millis(plan.delay_ms)).await?;
    }
    if let Some(hold) = plan.hold.as_ref().filter(|hold| hold.after == 0) {
        connection.pause_until(&hold.file).await?;
    }
    match plan.fault {
        Some(MockFault::Hang) => return Err(connection.hang().await),
        Some(MockFault::Status(status)) => {
            let retry_after = plan.retry_after_s.map(|seconds| format!("retry-after: {seconds}\r\n"));
            return refuse(connection, status, "as_asked", &retry_after.unwrap_or_default()).await;
        }
        Some(MockFault::Garbage) => return garble(connection, "data: {\"choices\": [oops\n\n").await,
        Some(MockFault::ErrorObject) => {
            let error = r#"data: {"error":{"message":"as asked","code":"server_error"}}"#;
            return garble(connection, &format!("{error}\n\n")).await;
        }
        Some(MockFault::CutAfter(_) | MockFault::HangAfter(_)) | None => {}
    }
    if plan.no_stream || !wants_stream {
        connection.write_json(200, "", &reply.whole()).await?;
        return Ok(ReplyEnd::Answered);
    }
    stream(connection, plan, reply).await
}

async fn stream(
    connection: &mut MockConnection,
    plan: &MockPlan,
    reply: &ChatReply<'_>,
) -> io::Result<ReplyEnd> {
    let mut unsent = STREAM_HEAD.to_owned();
    let pause = Duration::from_millis(plan.chunk_delay_ms);
    for (place, event) in reply.events().enumerate() {
        match plan.fault {
            Some(MockFault::CutAfter(pieces)) if pieces <= place => break,
            Some(MockFault::HangAfter(pieces)) if pieces <= place => break,
            Some(_) | None => {}
        }
        if let Some(hold) = plan.hold.as_ref().filter(|hold| hold.after == place && place > 0) {
            connection.write(unsent.as_bytes()).await?;
            unsent.clear();
            connection.pause_until(&hold.file).await?;
        }
        if place > 0 && !pause.is_zero() {
            connection.write(unsent.as_bytes()).await?;
            unsent.clear();
            connection.pause(pause).await?;
        }
        push_chunk(&mut unsent, &event);
    }
    match plan.fault {
        Some(MockFault::CutAfter(_)) => {
            connection.write(unsent.as_bytes()).await?;
            Ok(ReplyEnd::Cut)
        }
        Some(MockFault::HangAfter(_)) => {
            connection.write(unsent.as_bytes()).await?;
            Err(connection.hang().await)
        }
        Some(_) | None => {
            push_chunk(&mut unsent, &reply.ending());
            unsent.push_str(LAST_CHUNK);
            connection.write(unsent.as_bytes()).await?;
            Ok(ReplyEnd::Answered)
        }
    }
}

async fn garble(connection: &mut MockConnection, event: &str) -> io::Result<ReplyEnd> {
    let mut reply = STREAM_HEAD.to_owned();
    push_chunk(&mut reply, event);
    reply.push_str(LAST_CHUNK);
    connection.write(reply.as_bytes()).await?;
    Ok(ReplyEnd::Refused)
}

async fn refuse(
    connection: &mut MockConnection,
    status: u16,
    code: &str,
    headers: &str,
) -> io::Result<ReplyEnd> {
    let body =
        serde_json::json!({"error": {"message": format!("refused: {code}"), "code": code}}).to_string();
    connection.write_json(status, headers, &body).await?;
    Ok(ReplyEnd::Refused)
}

fn push_chunk(reply: &mut String, data: &str) {
    // Writing to a string cannot fail.
    let _ = write!(reply, "{:x}\r\n{data}\r\n", data.len());
}
