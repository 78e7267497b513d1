//! One HTTP request to one provider and the reading of its reply, in any dialect.
//!
//! Owns: time limits, size limits, refusals. What the bytes mean is the dialect's.

use std::future::Future;
use std::time::{Duration, SystemTime};

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Response, Url};
use tokio::time::Instant;

use crate::context::CallContext;
use crate::dialect::{AnswerProgress, Dialect, FailureMeaning, Framing, ProviderReport};
use crate::draft::{FinishedDraft, OnText};
use crate::error::{AnswerFault, CallError, SilentPhase, UnreadableAnswer};
use crate::excerpt::excerpt;
use crate::frames::AnswerFrames;
use crate::names::PlainNames;
use crate::provider::Provider;
use crate::reach;
use crate::request::{CallAnswer, ModelRequest, Reasoning};
use crate::retry_after::retry_after;

/// Of a refusal we read no more than this.
const REFUSAL_BYTES_MAX: usize = 64 << 10;
const MODELS_BYTES_MAX: usize = 4 << 20;
const MODELS_MAX: usize = 2000;
/// How long a finished answer waits for its connection to become reusable.
const DRAIN_GRACE: Duration = Duration::from_millis(5);

/// What is shown of a page, which would fill the screen with markup.
pub(crate) const WEB_PAGE: &str = "a web page";

fn is_web_page(body: &[u8]) -> bool {
    body.trim_ascii_start().first() == Some(&b'<')
}

pub(crate) struct Exchange<'a> {
    provider: &'a Provider,
    dialect: &'static dyn Dialect,
    context: &'a CallContext,
    /// Empty when there is none in mind.
    model: &'a str,
    began: Instant,
}

impl<'a> Exchange<'a> {
    pub(crate) fn new(
        provider: &'a Provider,
        dialect: &'static dyn Dialect,
        context: &'a CallContext,
        model: &'a str,
    ) -> Self {
        Self { provider, dialect, context, model, began: Instant::now() }
    }

    /// The answer to a request.
    pub(crate) async fn answer(
        &self,
        request: &ModelRequest,
        on_text: OnText<'_>,
    ) -> Result<CallAnswer, CallError> {
        let limit = self.context.limits.total;
        match tokio::time::timeout(limit, self.complete(request, on_text)).await {
            Ok(written) => written.map(|written| self.signed(written, request)),
            Err(_) => Err(CallError::TooLong { provider: self.name(), limit }),
        }
    }

    /// The models that the provider lists. No model is loaded for a list, so it takes less than an answer may.
    pub(crate) async fn models(&self) -> Result<Vec<String>, CallError> {
        let limit = self.context.limits.listing;
        match tokio::time::timeout(limit, self.list_models()).await {
            Ok(listed) => listed,
            Err(_) => Err(CallError::TooLong { provider: self.name(), limit }),
        }
    }

    async fn list_models(&self) -> Result<Vec<String>, CallError> {
        let url = self.dialect.listing(self.provider);
        let client = self.client(&url)?;
        let mut response = self.send(client.get(url)).await?;
        let body = self.read_up_to(&mut response, MODELS_BYTES_MAX).await?;
        match self.dialect.models(&body) {
            Some(names) => Ok(names.into_iter().take(MODELS_MAX).collect()),
            None => {
                let what =
                    if is_web_page(&body) { UnreadableAnswer::WebPage } else { UnreadableAnswer::NotJson };
                Err(CallError::Garbage { provider: self.name(), what, excerpt: self.excerpt(&body) })
            }
        }
    }

    async fn complete(
        &self,
        request: &ModelRequest,
        on_text: OnText<'_>,
    ) -> Result<FinishedDraft, CallError> {
        let url = self.dialect.address(self.provider, &request.model);
        let body = self.dialect.body(self.provider, request);
        let accept = match self.dialect.framing() {
            Framing::Events => "text/event-stream",
            Framing::Lines => "application/x-ndjson",
        };
        let client = self.client(&url)?;
        let json = HeaderValue::from_static("application/json");
        let post = client.post(url).header(CONTENT_TYPE, json).header(ACCEPT, accept);
        let response = self.send(post.body(body)).await?;
        self.read_answer(response, request.messages.len(), on_text).await
    }

    /// Marks reasoning with its model, so that no other model gets it, and resolves tool names.
    fn signed(&self, written: FinishedDraft, request: &ModelRequest) -> CallAnswer {
        let FinishedDraft { text, mut calls, usage, stop, blocks } = written;
        let plain = PlainNames::of(request);
        for call in &mut calls {
            call.name = plain.tool_name(&call.name).to_owned();
        }
        let reasoning = (!blocks.is_empty()).then(|| Reasoning {
            kind: self.provider.kind,
            provider: self.name(),
            model: self.model.to_owned(),
            blocks,
        });
        CallAnswer { text, calls, usage, stop, reasoning }
    }

    fn name(&self) -> String {
        self.provider.name.clone()
    }

    fn client(&self, url: &Url) -> Result<reqwest::Client, CallError> {
        self.context
            .client(url, self.provider.timeouts.connect)
            .map_err(|cause| CallError::Client { provider: self.name(), cause: cause.without_url() })
    }

    fn excerpt(&self, bytes: &[u8]) -> String {
        excerpt(bytes, self.provider.api_key.as_ref())
    }

    /// Waits for `step` no longer than the provider may be silent, which is longer before its first byte.
    async fn within_silence_limit<T>(
        &self,
        received: usize,
        step: impl Future<Output = T>,
    ) -> Result<T, CallError> {
        let (timeouts, limits) = (self.provider.timeouts, self.context.limits);
        let (waited, left, when) = if received == 0 {
            let whole = timeouts.first_byte.unwrap_or(limits.first_byte);
            (whole, whole.saturating_sub(self.began.elapsed()), SilentPhase::BeforeTheFirstByte)
        } else {
            let whole = timeouts.idle.unwrap_or(limits.idle);
            (whole, whole, SilentPhase::WithinTheAnswer)
        };
        let silent = |_| CallError::Idle { provider: self.name(), waited, when };
        tokio::time::timeout(left, step).await.map_err(silent)
    }

    /// Sends and returns a reply with a status of success.
    async fn send(&self, builder: reqwest::RequestBuilder) -> Result<Response, CallError> {
        let headers = self.dialect.headers(self.provider.api_key.as_ref());
        let sent = self.within_silence_limit(0, builder.headers(headers).send()).await?;
        let response = match sent {
            Ok(response) => response,
            Err(cause) => {
                let cause = cause.without_url();
                if !cause.is_connect() && !cause.is_timeout() {
                    return Err(self.cut(0, Some(cause)));
                }
                let url = self.provider.url();
                let why = reach::unreachable_reason(&url, &cause).await;
                let (provider, origin) = (self.name(), url.origin().ascii_serialization());
                return Err(CallError::Unreachable { provider, origin, why, cause: Some(cause) });
            }
        };
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    fn cut(&self, received: usize, cause: Option<reqwest::Error>) -> CallError {
        CallError::Cut { provider: self.name(), received, cause: cause.map(reqwest::Error::without_url) }
    }

    async fn refusal(&self, mut response: Response) -> CallError {
        let status = response.status().as_u16();
        let by_header = retry_after(response.headers(), SystemTime::now());
        // The status alone is worth reporting when the explanation does not arrive.
        let body = self.read_up_to(&mut response, REFUSAL_BYTES_MAX).await.unwrap_or_default();
        let reported = self.dialect.reported(&body);
        let shown = match &reported {
            Some(reported) => self.excerpt(reported.message.as_bytes()),
            None if is_web_page(&body) => WEB_PAGE.to_owned(),
            None => self.excerpt(&body),
        };
        let in_shape = reported.is_some();
        let reported = reported.unwrap_or_default();
        let meaning = self.dialect.meaning(&reported);
        let retry_after = by_header.or(reported.retry_after);
        match (meaning, status) {
            (FailureMeaning::Other, 401 | 403) => self.about(FailureMeaning::Key, status, reported, shown),
            (FailureMeaning::Other, 402) => self.about(FailureMeaning::Quota, status, reported, shown),
            (FailureMeaning::Other, 413) => {
                self.about(FailureMeaning::ContextTooLong, status, reported, shown)
            }
            // A 404 in the dialect's own shape is about the model; any other is about the address.
            (FailureMeaning::Other | FailureMeaning::Request, 404) if in_shape && !self.model.is_empty() => {
                self.about(FailureMeaning::Model, status, reported, shown)
            }
            (FailureMeaning::Other | FailureMeaning::Request, _) => CallError::Status {
                provider: self.name(),
                kind: self.provider.kind,
                status,
                error_code: reported.code,
                body: shown,
                retry_after,
            },
            (
                FailureMeaning::Key
                | FailureMeaning::Quota
                | FailureMeaning::Model
                | FailureMeaning::ContextTooLong,
                _,
            ) => self.about(meaning, status, reported, shown),
        }
    }

    /// A failure whose meaning is known.
    fn about(
        &self,
        meaning: FailureMeaning,
        status: u16,
        reported: ProviderReport,
        body: String,
    ) -> CallError {
        let (provider, model) = (self.name(), self.model.to_owned());
        match meaning {
            FailureMeaning::Key => CallError::RefusedAuth { provider, status, body },
            FailureMeaning::Quota => CallError::Quota { provider, body },
            FailureMeaning::Model => CallError::UnknownModel { provider, model },
            FailureMeaning::ContextTooLong => CallError::ContextTooLong { provider, model },
            FailureMeaning::Request | FailureMeaning::Other => CallError::InStream {
                provider,
                error_code: reported.code,
                message: body,
                lasting: meaning == FailureMeaning::Request,
            },
        }
    }

    /// The body, or as much of it as fits.
    async fn read_up_to(&self, response: &mut Response, bytes_max: usize) -> Result<Vec<u8>, CallError> {
        let mut body = Vec::new();
        while body.len() < bytes_max {
            match self.within_silence_limit(body.len(), response.chunk()).await? {
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
        messages: usize,
        on_text: OnText<'_>,
    ) -> Result<FinishedDraft, CallError> {
        let limits = self.context.limits;
        let mut frames =
            AnswerFrames::new(self.dialect.framing(), limits, self.dialect.reader(limits, messages));
        loop {
            match self.within_silence_limit(frames.received, response.chunk()).await? {
                Ok(Some(chunk)) => {
                    frames.push(&chunk, on_text).map_err(|fault| self.fault(fault, frames.received))?;
                }
                Ok(None) => {
                    frames.end(on_text).map_err(|fault| self.fault(fault, frames.received))?;
                    break;
                }
                Err(cause) => match frames.progress() {
                    AnswerProgress::Settled | AnswerProgress::Done => break,
                    AnswerProgress::Open => return Err(self.cut(frames.received, Some(cause))),
                },
            }
            if frames.progress() == AnswerProgress::Done {
                // Reading to the end lets the connection serve the next call. The answer does not wait for it.
                let _ = tokio::time::timeout(DRAIN_GRACE, response.chunk()).await;
                break;
            }
        }
        let received = frames.received;
        frames.finish().map_err(|fault| self.fault(fault, received))
    }

    fn fault(&self, fault: AnswerFault, received: usize) -> CallError {
        let provider = self.name();
        match fault {
            AnswerFault::Nonsense { what, text } => {
                CallError::Garbage { provider, what, excerpt: self.excerpt(text.as_bytes()) }
            }
            AnswerFault::Oversize { what, limit } => CallError::TooLarge { provider, what, limit },
            AnswerFault::Incomplete => self.cut(received, None),
            AnswerFault::Blocked { reason } => {
                CallError::Refused { provider, words: self.excerpt(reason.as_bytes()) }
            }
            AnswerFault::Reported(reported) => {
                let meaning = self.dialect.meaning(&reported);
                let shown = self.excerpt(reported.message.as_bytes());
                self.about(meaning, 200, reported, shown)
            }
        }
    }
}
