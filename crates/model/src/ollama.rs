//! The Ollama dialect: `/api/chat`, one JSON object a line.

mod stream;
mod wire;

use reqwest::Url;
use reqwest::header::HeaderMap;
use serde::Deserialize;

use self::stream::OllamaReader;
use crate::context::CallLimits;
use crate::dialect::{AnswerReader, Dialect, FailureMeaning, Framing, ProviderReport, bearer, below};
use crate::provider::Provider;
use crate::request::ModelRequest;
use crate::secret::Secret;

pub(crate) struct Ollama;

impl Dialect for Ollama {
    fn framing(&self) -> Framing {
        Framing::Lines
    }

    fn address(&self, provider: &Provider, _model: &str) -> Url {
        below(provider, "api", "chat")
    }

    fn listing(&self, provider: &Provider) -> Url {
        below(provider, "api", "tags")
    }

    fn headers(&self, key: Option<&Secret>) -> HeaderMap {
        bearer(key)
    }

    fn body(&self, provider: &Provider, request: &ModelRequest) -> Vec<u8> {
        wire::body(provider, request)
    }

    fn reader(&self, limits: CallLimits, messages: usize) -> Box<dyn AnswerReader> {
        Box::new(OllamaReader::new(limits, messages))
    }

    fn models(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: OllamaModels = serde_json::from_slice(body).ok()?;
        Some(list.models.into_iter().map(|model| model.name).collect())
    }

    fn reported(&self, body: &[u8]) -> Option<ProviderReport> {
        let refusal: OllamaRefusal = serde_json::from_slice(body).ok()?;
        Some(ProviderReport { message: refusal.error, ..ProviderReport::default() })
    }

    /// It has no names for failures: the status says it all.
    fn meaning(&self, _reported: &ProviderReport) -> FailureMeaning {
        FailureMeaning::Other
    }
}

#[derive(Deserialize)]
struct OllamaModels {
    models: Vec<OllamaModel>,
}

#[derive(Deserialize)]
struct OllamaModel {
    name: String,
}

#[derive(Deserialize)]
struct OllamaRefusal {
    error: String,
}
