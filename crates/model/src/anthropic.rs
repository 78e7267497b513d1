//! The Anthropic Messages dialect.
//!
//! What is sent is in `wire`, the putting together of a stream in `stream`. Thinking blocks are kept as they came,
//! with their place among the others, and go back while tools run.

mod layout;
mod schema;
mod stream;
mod wire;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use self::stream::AnthropicReader;
use crate::context::CallLimits;
use crate::dialect::{AnswerReader, Dialect, FailureMeaning, Framing, ProviderReport, below, secret_header};
use crate::provider::Provider;
use crate::request::ModelRequest;
use crate::secret::Secret;

pub(crate) struct Anthropic;

/// The version of the protocol, not of a model.
const VERSION: &str = "2023-06-01";

impl Dialect for Anthropic {
    fn framing(&self) -> Framing {
        Framing::Events
    }

    fn address(&self, provider: &Provider, _model: &str) -> Url {
        below(provider, "v1", "messages")
    }

    fn listing(&self, provider: &Provider) -> Url {
        let mut url = below(provider, "v1", "models");
        url.set_query(Some("limit=1000"));
        url
    }

    fn headers(&self, key: Option<&Secret>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static("anthropic-version"), HeaderValue::from_static(VERSION));
        if let Some(key) = key {
            secret_header(&mut headers, HeaderName::from_static("x-api-key"), key.expose());
        }
        headers
    }

    fn body(&self, provider: &Provider, request: &ModelRequest) -> Vec<u8> {
        wire::body(provider, request)
    }

    fn reader(&self, limits: CallLimits, messages: usize) -> Box<dyn AnswerReader> {
        Box::new(AnthropicReader::new(limits, messages))
    }

    fn models(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: AnthropicModels = serde_json::from_slice(body).ok()?;
        Some(list.data.into_iter().map(|model| model.id).collect())
    }

    fn reported(&self, body: &[u8]) -> Option<ProviderReport> {
        serde_json::from_slice::<AnthropicRefusal>(body).ok().map(|refusal| refusal.error.reported())
    }

    fn meaning(&self, reported: &ProviderReport) -> FailureMeaning {
        match reported.code.as_deref() {
            Some("authentication_error" | "permission_error") => FailureMeaning::Key,
            Some("billing_error") => FailureMeaning::Quota,
            Some("request_too_large") => FailureMeaning::ContextTooLong,
            // Both are reported as an invalid request. Only the message distinguishes them.
            Some("invalid_request_error") if reported.message.starts_with("prompt is too long") => {
                FailureMeaning::ContextTooLong
            }
            Some("invalid_request_error")
                if reported.message.starts_with("Your credit balance is too low") =>
            {
                FailureMeaning::Quota
            }
            Some("invalid_request_error" | "not_found_error") => FailureMeaning::Request,
            Some(_) | None => FailureMeaning::Other,
        }
    }
}

#[derive(Deserialize)]
struct AnthropicModels {
    data: Vec<AnthropicModel>,
}

#[derive(Deserialize)]
struct AnthropicModel {
    id: String,
}

#[derive(Deserialize)]
struct AnthropicRefusal {
    error: AnthropicError,
}

#[derive(Debug, Deserialize)]
struct AnthropicError {
    r#type: Option<String>,
    #[serde(default)]
    message: String,
}

impl AnthropicError {
    fn reported(self) -> ProviderReport {
        ProviderReport { code: self.r#type, message: self.message, retry_after: None }
    }
}
