//! What one protocol does in its own way; everything else about a call is in `exchange`.

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::context::CallLimits;
use crate::draft::{FinishedDraft, OnText};
use crate::error::AnswerFault;
use crate::provider::{Provider, ProviderKind};
use crate::request::ModelRequest;
use crate::secret::Secret;
use crate::{anthropic, gemini, ollama, openai};

/// How the pieces of an answer are separated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Server-sent events; a server may answer with one JSON object instead.
    Events,
    /// One JSON object a line.
    Lines,
}

pub(crate) trait Dialect: Sync {
    fn framing(&self) -> Framing;
    /// Where a request goes.
    fn address(&self, provider: &Provider, model: &str) -> Url;
    /// Where the models are listed.
    fn listing(&self, provider: &Provider) -> Url;
    /// The key and the other headers of every request.
    fn headers(&self, key: Option<&Secret>) -> HeaderMap;
    fn body(&self, provider: &Provider, request: &ModelRequest) -> Vec<u8>;
    fn reader(&self, limits: CallLimits, messages: usize) -> Box<dyn AnswerReader>;
    /// The names in a listing, if it is one.
    fn models(&self, body: &[u8]) -> Option<Vec<String>>;
    /// A refusal in the protocol's own shape.
    fn reported(&self, body: &[u8]) -> Option<ProviderReport>;
    /// What the refusal is about, by its own words for it.
    fn meaning(&self, reported: &ProviderReport) -> FailureMeaning;
}

/// Puts an answer together.
pub(crate) trait AnswerReader: Send {
    /// Takes the data of one event, or one line.
    fn event(&mut self, data: &str, on_text: OnText<'_>) -> Result<(), AnswerFault>;
    /// Takes the one JSON object of a server that does not stream.
    fn complete(&mut self, body: &str, on_text: OnText<'_>) -> Result<(), AnswerFault>;
    fn progress(&self) -> AnswerProgress;
    /// The answer, if it is all there.
    fn finish(self: Box<Self>) -> Result<FinishedDraft, AnswerFault>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnswerProgress {
    Open,
    /// The requested answer is complete: a connection that breaks now loses nothing.
    Settled,
    /// The provider reported the end of the answer.
    Done,
}

/// What a provider says of a failure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ProviderReport {
    /// Its own name for it.
    pub(crate) code: Option<String>,
    pub(crate) message: String,
    pub(crate) retry_after: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureMeaning {
    Key,
    /// There is no money or no allowance left, and waiting does not help.
    Quota,
    Model,
    ContextTooLong,
    /// The request is at fault: the same one fails again.
    Request,
    /// Nothing that this release knows more about than its status.
    Other,
}

pub(crate) fn of(kind: ProviderKind) -> Option<&'static dyn Dialect> {
    match kind {
        ProviderKind::Openai => Some(&openai::Openai),
        ProviderKind::Anthropic => Some(&anthropic::Anthropic),
        ProviderKind::Gemini => Some(&gemini::Gemini),
        ProviderKind::Ollama => Some(&ollama::Ollama),
        ProviderKind::Script => None,
    }
}

/// A path below the provider's base address.
///
/// The version of the API may be part of the base or not: people copy it either way.
pub(crate) fn below(provider: &Provider, version: &str, path: &str) -> Url {
    let mut url = provider.url();
    let base = url.path().trim_end_matches('/');
    let has_version = version.is_empty() || base.rsplit('/').next() == Some(version);
    let whole = if has_version { format!("{base}/{path}") } else { format!("{base}/{version}/{path}") };
    url.set_path(&whole);
    url
}

/// A header that holds a key. The provider's loader has checked that it can.
pub(crate) fn secret_header(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(mut value) = HeaderValue::from_str(value) {
        value.set_sensitive(true);
        headers.insert(name, value);
    }
}

/// `Authorization: Bearer`, for the protocols that have it.
pub(crate) fn bearer(key: Option<&Secret>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        let value = format!("Bearer {}", key.expose());
        secret_header(&mut headers, reqwest::header::AUTHORIZATION, &value);
    }
    headers
}

/// JSON that cannot fail to be written: strings, numbers and parsed JSON, into memory.
pub(crate) fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
