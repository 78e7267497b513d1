//! The Gemini dialect: `streamGenerateContent` with server-sent events.
//!
//! What is sent is in `wire`, the putting together of a stream in `stream`. Thought signatures are kept with the
//! place of the part they came with.

mod layout;
mod stream;
mod wire;

use std::time::Duration;

use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName};
use serde::Deserialize;

use self::stream::GeminiReader;
use crate::context::CallLimits;
use crate::dialect::{AnswerReader, Dialect, FailureMeaning, Framing, ProviderReport, below, secret_header};
use crate::provider::Provider;
use crate::request::ModelRequest;
use crate::secret::Secret;

pub(crate) struct Gemini;

const VERSION: &str = "v1beta";

impl Dialect for Gemini {
    fn framing(&self) -> Framing {
        Framing::Events
    }

    fn address(&self, provider: &Provider, model: &str) -> Url {
        // A model may be written with its collection, as the listing has it.
        let whole = if model.contains('/') { model.to_owned() } else { format!("models/{model}") };
        // The name is part of the path; one that climbs out of its collection names nothing.
        let whole = whole.replace("..", "");
        let mut url = below(provider, VERSION, &format!("{whole}:streamGenerateContent"));
        url.set_query(Some("alt=sse"));
        url
    }

    fn listing(&self, provider: &Provider) -> Url {
        let mut url = below(provider, VERSION, "models");
        url.set_query(Some("pageSize=1000"));
        url
    }

    fn headers(&self, key: Option<&Secret>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            secret_header(&mut headers, HeaderName::from_static("x-goog-api-key"), key.expose());
        }
        headers
    }

    fn body(&self, provider: &Provider, request: &ModelRequest) -> Vec<u8> {
        wire::body(provider, request)
    }

    fn reader(&self, limits: CallLimits, messages: usize) -> Box<dyn AnswerReader> {
        Box::new(GeminiReader::new(limits, messages))
    }

    fn models(&self, body: &[u8]) -> Option<Vec<String>> {
        let list: GeminiModels = serde_json::from_slice(body).ok()?;
        let answers = |model: &GeminiModel| {
            let methods = model.supported_generation_methods.as_ref();
            methods.is_none_or(|methods| methods.iter().any(|method| method == "generateContent"))
        };
        let names = list.models.into_iter().filter(answers).map(|model| model.name);
        Some(names.map(|name| name.strip_prefix("models/").map(str::to_owned).unwrap_or(name)).collect())
    }

    fn reported(&self, body: &[u8]) -> Option<ProviderReport> {
        serde_json::from_slice::<GeminiRefusal>(body).ok().map(|refusal| refusal.error.reported())
    }

    fn meaning(&self, reported: &ProviderReport) -> FailureMeaning {
        match reported.code.as_deref() {
            Some("UNAUTHENTICATED" | "PERMISSION_DENIED" | "API_KEY_INVALID") => FailureMeaning::Key,
            // There is no name of its own for this.
            Some("INVALID_ARGUMENT") if reported.message.starts_with("The input token count") => {
                FailureMeaning::ContextTooLong
            }
            Some("INVALID_ARGUMENT" | "FAILED_PRECONDITION" | "NOT_FOUND") => FailureMeaning::Request,
            Some(_) | None => FailureMeaning::Other,
        }
    }
}

#[derive(Deserialize)]
struct GeminiModels {
    #[serde(default)]
    models: Vec<GeminiModel>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiModel {
    name: String,
    supported_generation_methods: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct GeminiRefusal {
    error: GeminiError,
}

#[derive(Debug, Deserialize)]
struct GeminiError {
    status: Option<String>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    details: Vec<GeminiErrorDetail>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiErrorDetail {
    reason: Option<String>,
    retry_delay: Option<String>,
}

impl GeminiError {
    fn reported(self) -> ProviderReport {
        let bad_key = self.details.iter().any(|detail| detail.reason.as_deref() == Some("API_KEY_INVALID"));
        let code = if bad_key { Some("API_KEY_INVALID".to_owned()) } else { self.status };
        let retry_after =
            self.details.iter().find_map(|detail| detail.retry_delay.as_deref()).and_then(seconds);
        ProviderReport { code, message: self.message, retry_after }
    }
}

/// `37s` or `0.5s`.
fn seconds(text: &str) -> Option<Duration> {
    const LONGEST: Duration = Duration::from_secs(24 * 3600);
    let number: f64 = text.strip_suffix('s')?.parse().ok()?;
    Duration::try_from_secs_f64(number).ok().map(|wait| wait.min(LONGEST))
}
