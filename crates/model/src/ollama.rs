//! The Ollama dialect: `/api/chat`, one JSON object a line.

mod stream;
mod wire;

use reqwest::Url;
use reqwest::header::HeaderMap;
use serde::Deserialize;

use self::stream::Stream;
use crate::context::Limits;
use crate::dialect::{Dialect, Framing, Meaning, Reads, Reported, bearer, below};
use crate::provider::Provider;
use crate::request::Request;
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

    fn body(&self, provider: &Provider, request: &Request) -> Vec<u8> {
        wire::body(provider, request)
    }

    fn reader(&self, limits: Limits, messages: usize) -> Box<dyn Reads> {
        Box::new(Stream::new(limits, messages))
    }

    fn models(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: ModelList = serde_json::from_slice(body).ok()?;
        Some(list.models.into_iter().map(|model| model.name).collect())
    }

    fn reported(&self, body: &[u8]) -> Option<Reported> {
        let refusal: Refusal = serde_json::from_slice(body).ok()?;
        Some(Reported { message: refusal.error, ..Reported::default() })
    }

    /// It has no names for failures: the status says it all.
    fn meaning(&self, _reported: &Reported) -> Meaning {
        Meaning::Other
    }
}

#[derive(Deserialize)]
struct ModelList {
    models: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    name: String,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}
