//! The OpenAI chat completions dialect, as spoken by OpenAI and by most others.
//!
//! Owns: one HTTP request and the reading of its reply. The JSON shapes are in `wire`, the putting together
//! of deltas in `assembly`.

mod assembly;
mod wire;

use std::future::Future;
use std::time::{Duration, SystemTime};

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Response, Url};

use self::assembly::Assembly;
use crate::context::CallContext;
use crate::error::{CallError, Fault, Nonsense, Oversize};
use crate::excerpt::excerpt;
use crate::provider::Provider;
use crate::request::{Answer, Message, Params, Request};
use crate::retry_after::retry_after;
use crate::sse::SseParser;

/// Of a refusal we read no more than this.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
const MODELS_BYTES_MAX: usize = 4 << 20;
const PAGE_BYTES_SHOWN: usize = 1000;
const MODELS_MAX: usize = 2000;
/// How long a finished answer waits for its connection to become reusable.
const DRAIN_GRACE: Duration = Duration::from_millis(5);

pub(crate) async fn call(
    provider: &Provider,
    request: &Request,
    context: &CallContext,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<Answer, CallError> {
    let exchange = Exchange { provider, context, model: &request.model };
    exchange.within_total(exchange.complete(request, on_text)).await
}

/// The models the provider lists; where it lists none, an answer of one token must do.
pub(crate) async fn probe(provider: &Provider, context: &CallContext) -> Result<Vec<String>, CallError> {
    // Without a model in mind, a 404 here is about the address and never about a model.
    let exchange = Exchange { provider, context, model: "" };
    let listed = exchange.within_total(exchange.models()).await;
    match (listed, provider.models.first()) {
        (Err(CallError::Status { status: 404 | 405, .. }), Some(model)) => {
            let params = Params { max_tokens: Some(1), ..Params::default() };
            let request = Request { params, ..Request::new(model, vec![Message::user("hi")]) };
            call(provider, &request, context, &mut |_| ()).await?;
            Ok(provider.models.clone())
        }
        (listed, _) => listed,
    }
}

/// One request to one provider.
struct Exchange<'a> {
    provider: &'a Provider,
    context: &'a CallContext,
    model: &'a str,
}

impl Exchange<'_> {
    async fn within_total<T>(
        &self,
        work: impl Future<Output = Result<T, CallError>>,
    ) -> Result<T, CallError> {
        let limit = self.context.limits.total;
        match tokio::time::timeout(limit, work).await {
            Ok(done) => done,
            Err(_) => Err(CallError::TooLong { provider: self.name(), limit }),
        }
    }

    async fn complete(
        &self,
        request: &Request,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Answer, CallError> {
        let url = self.url("chat/completions");
        let body = wire::body(request, url.host_str() == Some("api.openai.com"));
        let client = self.client(&url)?;
        let post =
            client.post(url).header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream");
        let response = self.send(post.body(body)).await?;
        self.read_answer(response, request, on_text).await
    }

    async fn models(&self) -> Result<Vec<String>, CallError> {
        let url = self.url("models");
        let client = self.client(&url)?;
        let mut response = self.send(client.get(url)).await?;
        let body = self.read_up_to(&mut response, MODELS_BYTES_MAX).await?;
        let list: wire::ModelList = serde_json::from_slice(&body).map_err(|_| CallError::Garbage {
            provider: self.name(),
            what: Nonsense::NotJson,
            excerpt: self.excerpt(&body),
        })?;
        Ok(list.data.into_iter().take(MODELS_MAX).map(|model| model.id).collect())
    }

    fn name(&self) -> String {
        self.provider.name.clone()
    }

    fn url(&self, path: &str) -> Url {
        let mut url = self.provider.url();
        let whole = format!("{}/{path}", url.path().trim_end_matches('/'));
        url.set_path(&whole);
        url
    }

    fn client(&self, url: &Url) -> Result<reqwest::Client, CallError> {
        self.context
            .client(url)
            .map_err(|cause| CallError::Client { provider: self.name(), cause: cause.without_url() })
    }

    fn excerpt(&self, bytes: &[u8]) -> String {
        excerpt(bytes, self.provider.api_key.as_ref())
    }

    /// Waits for `step` no longer than the provider may be silent.
    async fn lively<T>(&self, step: impl Future<Output = T>) -> Result<T, CallError> {
        let waited = self.context.limits.idle;
        tokio::time::timeout(waited, step)
            .await
            .map_err(|_| CallError::Idle { provider: self.name(), waited })
    }

    /// Sends and returns a reply with a status of success.
    async fn send(&self, mut builder: reqwest::RequestBuilder) -> Result<Response, CallError> {
        if let Some(key) = &self.provider.api_key {
            // The provider's loader has checked that the key can stand in a header.
            if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", key.expose())) {
                value.set_sensitive(true);
                builder = builder.header(AUTHORIZATION, value);
            }
        }
        let response = self.lively(builder.send()).await?.map_err(|cause| {
            let cause = cause.without_url();
            if cause.is_connect() || cause.is_timeout() {
                let origin = self.provider.url().origin().ascii_serialization();
                CallError::Unreachable { provider: self.name(), origin, cause: Some(cause) }
            } else {
                self.cut(0, Some(cause))
            }
        })?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    fn cut(&self, received: usize, cause: Option<reqwest::Error>) -> CallError {
        CallError::Cut { provider: self.name(), received, cause: cause.map(reqwest::Error::without_url) }
    }

    async fn refusal(&self, mut response: Response) -> CallError {
        let status = response.status().as_u16();
        let retry_after = retry_after(response.headers(), SystemTime::now());
        // The status alone is worth reporting when the explanation does not arrive.
        let body = self.read_up_to(&mut response, REFUSAL_BYTES_MAX).await.unwrap_or_default();
        let reported =
            serde_json::from_slice::<wire::Refusal>(&body).ok().map(|refusal| refusal.error.into_parts());
        let (error_code, body) = match &reported {
            Some((code, message)) => (code.clone(), self.excerpt(message.as_bytes())),
            None => (None, self.excerpt(&body)),
        };
        let (provider, model) = (self.name(), self.model.to_owned());
        match (status, error_code.as_deref()) {
            (401 | 403, _) => CallError::RefusedAuth { provider, status, body },
            (413, _) | (_, Some("context_length_exceeded")) => CallError::ContextTooLong { provider, model },
            (_, Some("model_not_found")) => CallError::UnknownModel { provider, model },
            // A 404 in the dialect's own shape is about the model; any other is about the address.
            (404, _) if reported.is_some() && !model.is_empty() => {
                CallError::UnknownModel { provider, model }
            }
            (_, _) => CallError::Status { provider, status, error_code, body, retry_after },
        }
    }

    /// The body, or as much of it as fits.
    async fn read_up_to(&self, response: &mut Response, bytes_max: usize) -> Result<Vec<u8>, CallError> {
        let mut body = Vec::new();
        while body.len() < bytes_max {
            match self.lively(response.chunk()).await? {
                Ok(Some(chunk)) => {
                    let room = bytes_max - body.len();
                    body.extend_from_slice(&chunk[..chunk.len().min(room)]);
                }
                Ok(None) => break,
                Err(cause) => return Err(self.cut(body.len(), Some(cause))),
            }
        }
        Ok(body)
    }

    async fn read_answer(
        &self,
        mut response: Response,
        request: &Request,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<Answer, CallError> {
        let mut reader = Reader::new(self.context, request.messages.len());
        loop {
            match self.lively(response.chunk()).await? {
                Ok(Some(chunk)) => {
                    reader.push(&chunk, on_text).map_err(|fault| self.fault(fault, &reader))?
                }
                Ok(None) => {
                    reader.end(on_text).map_err(|fault| self.fault(fault, &reader))?;
                    break;
                }
                // What was asked for is all there: a connection that breaks afterwards takes nothing away.
                Err(_) if reader.assembly.has_finish_reason() => break,
                Err(cause) => return Err(self.cut(reader.received, Some(cause))),
            }
            if reader.assembly.is_done() {
                // Reading to the end lets the connection serve the next call; an answer is not held up for it.
                let _ = tokio::time::timeout(DRAIN_GRACE, response.chunk()).await;
                break;
            }
        }
        let received = reader.received;
        reader.assembly.into_answer().map_err(|fault| self.fault_after(fault, received))
    }

    fn fault(&self, fault: Fault, reader: &Reader<'_>) -> CallError {
        self.fault_after(fault, reader.received)
    }

    fn fault_after(&self, fault: Fault, received: usize) -> CallError {
        let (provider, model) = (self.name(), self.model.to_owned());
        match fault {
            Fault::Nonsense { what, text } => {
                CallError::Garbage { provider, what, excerpt: self.excerpt(text.as_bytes()) }
            }
            Fault::Oversize { what, limit } => CallError::TooLarge { provider, what, limit },
            Fault::Incomplete => self.cut(received, None),
            Fault::Reported { error_code, message } => match error_code.as_deref() {
                Some("context_length_exceeded") => CallError::ContextTooLong { provider, model },
                Some("model_not_found") => CallError::UnknownModel { provider, model },
                Some(_) | None => {
                    CallError::InStream { provider, error_code, message: self.excerpt(message.as_bytes()) }
                }
            },
        }
    }
}

/// The body of a successful reply: events, or one JSON object from servers that do not stream.
struct Reader<'a> {
    context: &'a CallContext,
    body: Body,
    assembly: Assembly,
    received: usize,
    events: Vec<String>,
}

enum Body {
    /// Nothing but white space so far.
    Unknown,
    Events(SseParser),
    Json(Vec<u8>),
}

impl<'a> Reader<'a> {
    fn new(context: &'a CallContext, messages: usize) -> Self {
        let assembly = Assembly::new(context.limits, messages);
        Self { context, body: Body::Unknown, assembly, received: 0, events: Vec::new() }
    }

    fn push(&mut self, bytes: &[u8], on_text: &mut (dyn FnMut(&str) + Send)) -> Result<(), Fault> {
        let limits = self.context.limits;
        self.received += bytes.len();
        if self.received > limits.received_bytes_max {
            return Err(Fault::Oversize { what: Oversize::Received, limit: limits.received_bytes_max });
        }
        if let Body::Unknown = self.body {
            // The first byte tells them apart more reliably than the content type servers send.
            match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
                Some(b'{') => self.body = Body::Json(Vec::new()),
                Some(b'<') => {
                    let text =
                        String::from_utf8_lossy(&bytes[..bytes.len().min(PAGE_BYTES_SHOWN)]).into_owned();
                    return Err(Fault::Nonsense { what: Nonsense::WebPage, text });
                }
                Some(_) => self.body = Body::Events(SseParser::default()),
                None => return Ok(()),
            }
        }
        match &mut self.body {
            Body::Unknown => Ok(()),
            Body::Json(body) => {
                body.extend_from_slice(bytes);
                Ok(())
            }
            Body::Events(parser) => {
                let pushed = parser.push(bytes, limits.line_bytes_max, &mut self.events);
                self.take_events(on_text)?;
                pushed
            }
        }
    }

    /// The connection ended in good order.
    fn end(&mut self, on_text: &mut (dyn FnMut(&str) + Send)) -> Result<(), Fault> {
        match &mut self.body {
            Body::Unknown => Err(Fault::Incomplete),
            Body::Json(body) => {
                let body = std::mem::take(body);
                self.assembly.whole(&body, on_text)
            }
            Body::Events(parser) => {
                let whole = self.events.len();
                parser.finish(self.context.limits.line_bytes_max, &mut self.events)?;
                let unfinished = self.events.len() > whole;
                match self.take_events(on_text) {
                    // Half an event at the end is a cut, not nonsense.
                    Err(Fault::Nonsense { what: Nonsense::NotJson, .. }) if unfinished => {
                        Err(Fault::Incomplete)
                    }
                    other => other,
                }
            }
        }
    }

    fn take_events(&mut self, on_text: &mut (dyn FnMut(&str) + Send)) -> Result<(), Fault> {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            if self.assembly.is_done() {
                break;
            }
            self.assembly.event(&event, on_text)?;
        }
        self.events = events;
        Ok(())
    }
}
