//! Every way a call can fail, each with a stable code and a next step. None of them can hold a key.

use std::time::Duration;

use crate::provider::Kind;
use crate::script::ScriptError;

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("could not reach provider `{provider}` at {origin}")]
    Unreachable {
        provider: String,
        origin: String,
        #[source]
        cause: Option<reqwest::Error>,
    },
    #[error("could not set up a connection for provider `{provider}`")]
    Client {
        provider: String,
        #[source]
        cause: reqwest::Error,
    },
    #[error("provider `{provider}` answered with status {status}: {body}")]
    Status {
        provider: String,
        status: u16,
        /// The provider's own name for the failure, when it gave one.
        error_code: Option<String>,
        /// An excerpt.
        body: String,
        retry_after: Option<Duration>,
    },
    #[error("provider `{provider}` refused the key (status {status}): {body}")]
    RefusedAuth { provider: String, status: u16, body: String },
    #[error("provider `{provider}` has no model `{model}`")]
    UnknownModel { provider: String, model: String },
    #[error("the context is longer than `{model}` of provider `{provider}` accepts")]
    ContextTooLong { provider: String, model: String },
    #[error("provider `{provider}` broke off its answer with an error: {message}")]
    InStream { provider: String, error_code: Option<String>, message: String },
    #[error("the answer of provider `{provider}` ended after {received} bytes, before it was complete")]
    Cut {
        provider: String,
        received: usize,
        #[source]
        cause: Option<reqwest::Error>,
    },
    #[error("provider `{provider}` sent {what}: {excerpt}")]
    Garbage { provider: String, what: Nonsense, excerpt: String },
    #[error("the answer of provider `{provider}` is too large: {what} over {limit}")]
    TooLarge { provider: String, what: Oversize, limit: usize },
    #[error("provider `{provider}` was silent for {} ms", waited.as_millis())]
    Idle { provider: String, waited: Duration },
    #[error("provider `{provider}` was not finished after {} s", limit.as_secs())]
    TooLong { provider: String, limit: Duration },
    #[error("provider `{provider}` is of kind {kind}: this release speaks openai and script")]
    KindUnsupported { provider: String, kind: Kind },
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// What was wrong with an answer that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Nonsense {
    #[error("text that is not UTF-8")]
    NotUtf8,
    #[error("something that is not the JSON of an answer")]
    NotJson,
    #[error("a web page")]
    WebPage,
    #[error("a reply without an answer in it")]
    NoAnswer,
    #[error("a tool call without a name")]
    NamelessCall,
}

/// Which limit an answer went over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Oversize {
    #[error("bytes in a line of the stream")]
    Line,
    #[error("bytes received")]
    Received,
    #[error("bytes of text and arguments")]
    Answer,
    #[error("number of tool calls")]
    Calls,
    #[error("bytes in a tool call")]
    Call,
}

/// What can be wrong with an answer, before anyone says whose answer it was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `text` is raw: it is shortened and cleaned of keys when it becomes a [`CallError`].
    Nonsense {
        what: Nonsense,
        text: String,
    },
    Oversize {
        what: Oversize,
        limit: usize,
    },
    /// The provider reported a failure where the answer should have been.
    Reported {
        error_code: Option<String>,
        message: String,
    },
    Incomplete,
}

/// OpenAI's name for an account without money, sent with the status of an ordinary rate limit.
const NO_MONEY: &str = "insufficient_quota";

impl CallError {
    /// Stable and documented.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "model.unreachable",
            Self::Client { .. } => "model.client",
            Self::Status { status: 429, .. } => "model.rate_limited",
            Self::Status { .. } => "model.status",
            Self::RefusedAuth { .. } => "model.refused_auth",
            Self::UnknownModel { .. } => "model.unknown",
            Self::ContextTooLong { .. } => "model.context_too_long",
            Self::InStream { .. } => "model.error_in_stream",
            Self::Cut { .. } => "model.cut",
            Self::Garbage { .. } => "model.garbage",
            Self::TooLarge { .. } => "model.too_large",
            Self::Idle { .. } => "model.idle",
            Self::TooLong { .. } => "model.too_long",
            Self::KindUnsupported { .. } => "provider.kind_unsupported",
            Self::Script(error) => error.code(),
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { provider, .. } => {
                Some(format!("check the network and the base-url, then run `lodge provider test {provider}`"))
            }
            Self::Client { .. } => Some("check the system's certificates and proxy settings".to_owned()),
            Self::Status { status: 404 | 405, .. } => {
                Some("check the base-url: most end in `/v1`".to_owned())
            }
            Self::Status { error_code: Some(code), .. } if code == NO_MONEY => {
                Some("the provider wants its account topped up".to_owned())
            }
            Self::RefusedAuth { provider, .. } => {
                Some(format!("check `api-key` of `{provider}` in providers.yaml"))
            }
            Self::UnknownModel { provider, .. } => {
                Some(format!("run `lodge provider test {provider}` to see the models it offers"))
            }
            Self::ContextTooLong { .. } => {
                Some("compact the session or use a model with more room".to_owned())
            }
            Self::Garbage { .. } => Some("check that the base-url is an OpenAI-compatible API".to_owned()),
            Self::KindUnsupported { .. } => Some(
                "most providers offer an OpenAI-compatible address: use kind `openai` with its base-url"
                    .to_owned(),
            ),
            Self::Script(error) => error.hint(),
            Self::Status { .. }
            | Self::InStream { .. }
            | Self::Cut { .. }
            | Self::TooLarge { .. }
            | Self::Idle { .. }
            | Self::TooLong { .. } => None,
        }
    }

    /// Whether the same request may succeed later without anyone changing anything.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Status { status, error_code, .. } => {
                error_code.as_deref() != Some(NO_MONEY)
                    && matches!(status, 408 | 409 | 425 | 429 | 500 | 502..=599)
            }
            Self::InStream { error_code, .. } => error_code.as_deref() != Some(NO_MONEY),
            Self::Unreachable { .. } | Self::Cut { .. } | Self::Garbage { .. } | Self::Idle { .. } => true,
            Self::Client { .. }
            | Self::RefusedAuth { .. }
            | Self::UnknownModel { .. }
            | Self::ContextTooLong { .. }
            | Self::TooLarge { .. }
            | Self::TooLong { .. }
            | Self::KindUnsupported { .. }
            | Self::Script(_) => false,
        }
    }

    /// How long the provider asked us to stay away.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Unreachable { .. }
            | Self::Client { .. }
            | Self::RefusedAuth { .. }
            | Self::UnknownModel { .. }
            | Self::ContextTooLong { .. }
            | Self::InStream { .. }
            | Self::Cut { .. }
            | Self::Garbage { .. }
            | Self::TooLarge { .. }
            | Self::Idle { .. }
            | Self::TooLong { .. }
            | Self::KindUnsupported { .. }
            | Self::Script(_) => None,
        }
    }
}
