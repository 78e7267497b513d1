//! The OpenAI chat completions dialect, as spoken by OpenAI and by most others.
//!
//! The JSON shapes are in `wire`, the putting together of deltas in `assembly`, what servers add about their
//! models' thoughts in `thoughts`.

mod assembly;
mod thoughts;
mod wire;

use reqwest::Url;
use reqwest::header::HeaderMap;

use self::assembly::OpenaiReader;
use crate::context::CallLimits;
use crate::dialect::{AnswerReader, Dialect, FailureMeaning, Framing, ProviderReport, bearer, below};
use crate::provider::Provider;
use crate::request::ModelRequest;
use crate::secret::Secret;

pub(crate) struct Openai;

impl Dialect for Openai {
    fn framing(&self) -> Framing {
        Framing::Events
    }

    fn address(&self, provider: &Provider, _model: &str) -> Url {
        below(provider, "", "chat/completions")
    }

    fn listing(&self, provider: &Provider) -> Url {
        below(provider, "", "models")
    }

    fn headers(&self, key: Option<&Secret>) -> HeaderMap {
        bearer(key)
    }

    fn body(&self, provider: &Provider, request: &ModelRequest) -> Vec<u8> {
        wire::body(provider, request)
    }

    fn reader(&self, limits: CallLimits, messages: usize) -> Box<dyn AnswerReader> {
        Box::new(OpenaiReader::new(limits, messages))
    }

    fn models(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: wire::OpenaiModels = serde_json::from_slice(body).ok()?;
        Some(list.data.into_iter().map(|model| model.id).collect())
    }

    fn reported(&self, body: &[u8]) -> Option<ProviderReport> {
        serde_json::from_slice::<wire::OpenaiRefusal>(body).ok().map(|refusal| refusal.error.reported())
    }

    fn meaning(&self, reported: &ProviderReport) -> FailureMeaning {
        match reported.code.as_deref() {
            Some("context_length_exceeded") => FailureMeaning::ContextTooLong,
            Some("model_not_found") => FailureMeaning::Model,
            // An account without credit, reported with the status of an ordinary rate limit.
            Some("insufficient_quota") => FailureMeaning::Quota,
            Some("invalid_api_key") => FailureMeaning::Key,
            Some("invalid_request_error") => FailureMeaning::Request,
            Some(_) | None => FailureMeaning::Other,
        }
    }
}
