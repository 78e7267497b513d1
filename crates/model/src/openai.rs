//! The OpenAI chat completions dialect, as spoken by OpenAI and by most others.
//!
//! The JSON shapes are in `wire`, the putting together of deltas in `assembly`, what servers add about their
//! models' thoughts in `thoughts`.

mod assembly;
mod thoughts;
mod wire;

use reqwest::Url;
use reqwest::header::HeaderMap;

use self::assembly::Assembly;
use crate::context::Limits;
use crate::dialect::{Dialect, Framing, Meaning, Reads, Reported, bearer, below};
use crate::provider::Provider;
use crate::request::Request;
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

    fn body(&self, provider: &Provider, request: &Request) -> Vec<u8> {
        wire::body(provider, request)
    }

    fn reader(&self, limits: Limits, messages: usize) -> Box<dyn Reads> {
        Box::new(Assembly::new(limits, messages))
    }

    fn models(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: wire::ModelList = serde_json::from_slice(body).ok()?;
        Some(list.data.into_iter().map(|model| model.id).collect())
    }

    fn reported(&self, body: &[u8]) -> Option<Reported> {
        serde_json::from_slice::<wire::Refusal>(body).ok().map(|refusal| refusal.error.reported())
    }

    fn meaning(&self, reported: &Reported) -> Meaning {
        match reported.code.as_deref() {
            Some("context_length_exceeded") => Meaning::ContextTooLong,
            Some("model_not_found") => Meaning::Model,
            // An account without money, told with the status of an ordinary rate limit.
            Some("insufficient_quota") => Meaning::Quota,
            Some("invalid_api_key") => Meaning::Key,
            Some("invalid_request_error") => Meaning::Request,
            Some(_) | None => Meaning::Other,
        }
    }
}
