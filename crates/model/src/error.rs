//! Every way a call can fail, each with a stable code and a next step. None of them can hold a key.

use std::time::Duration;

use crate::dialect::ProviderReport;
use crate::exchange::WEB_PAGE;
use crate::provider::ProviderKind;
use crate::reach::UnreachableWhy;
use crate::script::ScriptError;

#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("could not reach provider `{provider}` at {origin}: {why}")]
    Unreachable {
        provider: String,
        origin: String,
        why: UnreachableWhy,
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
        kind: ProviderKind,
        status: u16,
        /// The provider's own name for the failure, when it gave one.
        error_code: Option<String>,
        /// An excerpt.
        body: String,
        retry_after: Option<Duration>,
    },
    #[error("provider `{provider}` refused the key (status {status}): {body}")]
    RefusedAuth { provider: String, status: u16, body: String },
    #[error("the account at provider `{provider}` has no money or allowance left: {body}")]
    Quota { provider: String, body: String },
    #[error("provider `{provider}` has no model `{model}`")]
    UnknownModel { provider: String, model: String },
    #[error("the context is longer than `{model}` of provider `{provider}` accepts")]
    ContextTooLong { provider: String, model: String },
    #[error("provider `{provider}` ended its answer with an error: {message}")]
    InStream {
        provider: String,
        error_code: Option<String>,
        message: String,
        /// The same request fails again.
        lasting: bool,
    },
    /// The model would not, or the provider would not let it.
    #[error("the model of provider `{provider}` did not answer: {words}")]
    Refused { provider: String, words: String },
    #[error("the answer of `{model}` reached its limit of tokens {place}")]
    Length { model: String, place: TokenLimitCut },
    #[error("`{model}` of provider `{provider}` answered with nothing")]
    Empty { provider: String, model: String },
    #[error("{}", cut(provider, *received))]
    Cut {
        provider: String,
        received: usize,
        #[source]
        cause: Option<reqwest::Error>,
    },
    #[error("provider `{provider}` sent {what}: {excerpt}")]
    Garbage { provider: String, what: UnreadableAnswer, excerpt: String },
    #[error("the answer of provider `{provider}` is too large: {what} over {limit}")]
    TooLarge { provider: String, what: AnswerLimit, limit: usize },
    #[error("provider `{provider}` was silent for {} ms{when}", waited.as_millis())]
    Idle { provider: String, waited: Duration, when: SilentPhase },
    #[error("provider `{provider}` was not finished after {} s", limit.as_secs())]
    TooLong { provider: String, limit: Duration },
    #[error(transparent)]
    Script(#[from] ScriptError),
}

/// How long a failed call is worth repeating.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repetition {
    /// The provider may be down: until the time for retries is over.
    Patient,
    /// The provider answered, and its answer was of no use: a few times.
    Brief,
    Never,
}

/// When a provider was silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SilentPhase {
    #[error(" before its answer began")]
    BeforeTheFirstByte,
    #[error(" in the middle of its answer")]
    WithinTheAnswer,
}

/// Where an answer ran out of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenLimitCut {
    #[error("before it said anything")]
    BeforeText,
    #[error("within a tool call, which was not run")]
    InCall,
}

/// What was wrong with an answer that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableAnswer {
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
    #[error("an invalid tool call")]
    BrokenCall,
    #[error("an event out of its order")]
    Disorder,
}

/// Which limit an answer went over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AnswerLimit {
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
pub(crate) enum AnswerFault {
    /// `text` is raw: it is shortened and cleaned of keys when it becomes a [`CallError`].
    Nonsense {
        what: UnreadableAnswer,
        text: String,
    },
    Oversize {
        what: AnswerLimit,
        limit: usize,
    },
    /// The provider reported a failure where the answer should have been.
    Reported(ProviderReport),
    /// It will not answer this, for a reason that it names.
    Blocked {
        reason: String,
    },
    Incomplete,
}

/// Of an answer that no model server gives.
fn about_base_url(kind: ProviderKind) -> String {
    format!(
        "perhaps that is no model server: check the base-url, which for kind {kind} looks like {}",
        kind.default_url()
    )
}

/// A connection that was closed too early, in words.
fn cut(provider: &str, received: usize) -> String {
    match received {
        0 => format!("provider `{provider}` closed the connection without an answer"),
        _ => format!("provider `{provider}` closed the connection within its answer, after {received} bytes"),
    }
}

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
            Self::Quota { .. } => "model.quota",
            Self::Refused { .. } => "model.refused",
            Self::Length { .. } => "model.length",
            Self::Empty { .. } => "model.empty",
            Self::Cut { .. } => "model.cut",
            Self::Garbage { .. } => "model.garbage",
            Self::TooLarge { .. } => "model.too_large",
            Self::Idle { .. } => "model.idle",
            Self::TooLong { .. } => "model.too_long",
            Self::Script(error) => error.code(),
        }
    }

    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { provider, why, .. } => Some(why.hint(provider)),
            Self::Client { .. } => Some("check the system's certificates and proxy settings".to_owned()),
            Self::Status { status: 404 | 405 | 501, kind, .. } => Some(about_base_url(*kind)),
            Self::Status { status: 400..=499, kind, body, .. } if body == WEB_PAGE => {
                Some(about_base_url(*kind))
            }
            Self::Status { status: 300..=399, .. } => Some(
                "write the address it redirects to as the base-url: redirects are not followed".to_owned(),
            ),
            Self::Status { status: 429, .. } => {
                Some("wait, lower the load, or ask the provider for a higher limit".to_owned())
            }
            Self::Status { status: 400 | 422, .. } => {
                Some("the model may not know a setting, a tool or the schema: try without them".to_owned())
            }
            Self::Quota { .. } => Some("top up the account or raise its limit at the provider".to_owned()),
            Self::RefusedAuth { provider, .. } => {
                Some(format!("check `api-key` of `{provider}` in providers.yaml, and what the key may do"))
            }
            Self::UnknownModel { provider, .. } => Some(format!(
                "run `lodge provider test {provider}` to see the models it offers, and `lodge agent update AGENT --model \
                 {provider}/MODEL` to give the agent one of them"
            )),
            Self::ContextTooLong { .. } => {
                Some("compact the session or use a model with more room".to_owned())
            }
            Self::Garbage { .. } => {
                Some("check that the base-url is an API, and that `kind` is the one it speaks".to_owned())
            }
            Self::Refused { .. } => Some("say it in other words, or rewind the session".to_owned()),
            Self::Length { .. } => Some("raise `max-tokens`".to_owned()),
            Self::Idle { provider, when: SilentPhase::BeforeTheFirstByte, .. } => {
                Some(format!("raise `first-byte-timeout` of `{provider}` if it needs longer to begin"))
            }
            Self::Idle { provider, when: SilentPhase::WithinTheAnswer, .. } => {
                Some(format!("raise `idle-timeout` of `{provider}` if it needs longer pauses"))
            }
            Self::Script(error) => error.hint(),
            Self::Status { .. }
            | Self::InStream { .. }
            | Self::Empty { .. }
            | Self::TooLarge { .. }
            | Self::TooLong { .. } => None,
            Self::Cut { provider, received: 0, .. } => Some(format!(
                "check that the base-url of `{provider}` is that of a model server, with http:// or https:// as it needs; \
                 then run `lodge provider test {provider}`"
            )),
            Self::Cut { .. } => {
                Some("the provider or a proxy before it closed the connection: try again".to_owned())
            }
        }
    }

    /// Whether the same request may succeed later without anyone changing anything.
    pub fn repetition(&self) -> Repetition {
        match self {
            Self::Status { status: 408 | 409 | 425 | 429 | 500 | 502..=599, .. }
            | Self::InStream { lasting: false, .. }
            | Self::Unreachable { .. }
            | Self::Cut { .. }
            | Self::Idle { .. } => Repetition::Patient,
            Self::Garbage { .. } | Self::Empty { .. } => Repetition::Brief,
            Self::Status { .. }
            | Self::InStream { lasting: true, .. }
            | Self::Client { .. }
            | Self::RefusedAuth { .. }
            | Self::Quota { .. }
            | Self::UnknownModel { .. }
            | Self::ContextTooLong { .. }
            | Self::Refused { .. }
            | Self::Length { .. }
            | Self::TooLarge { .. }
            | Self::TooLong { .. }
            | Self::Script(_) => Repetition::Never,
        }
    }

    /// How long the provider asked us to stay away.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            Self::Unreachable { .. }
            | Self::Client { .. }
            | Self::RefusedAuth { .. }
            | Self::Quota { .. }
            | Self::UnknownModel { .. }
            | Self::ContextTooLong { .. }
            | Self::InStream { .. }
            | Self::Refused { .. }
            | Self::Length { .. }
            | Self::Empty { .. }
            | Self::Cut { .. }
            | Self::Garbage { .. }
            | Self::TooLarge { .. }
            | Self::Idle { .. }
            | Self::TooLong { .. }
            | Self::Script(_) => None,
        }
    }
}
