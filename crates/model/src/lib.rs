//! Provider clients: one request in, one answer or one typed failure out.
//!
//! Owns: `providers.yaml`, the keys in it, the wire dialects and their streams, prices, the check of an answer against
//! a schema. Never: retries (the engine decides), history (it arrives whole in each [`ModelRequest`]), or a global (the HTTP
//! clients live in the [`CallContext`]).

mod anthropic;
mod context;
mod count;
mod dialect;
mod draft;
mod error;
mod excerpt;
mod exchange;
mod frames;
mod functions;
mod gemini;
mod lines;
mod names;
mod ollama;
mod openai;
mod pause;
mod prices;
mod provider;
mod providers;
mod reach;
mod redact;
mod request;
mod retry_after;
pub mod schema;
mod script;
mod secret;
mod settle;
mod sse;
mod yaml;

use std::time::{Duration, Instant};

use exchange::Exchange;

pub use context::{CallContext, CallLimits};
pub use error::{AnswerLimit, CallError, Repetition, SilentPhase, TokenLimitCut, UnreadableAnswer};
pub use pause::{BadRetryFor, RetryFor};
pub use prices::Price;
pub use provider::{Provider, ProviderKind, ProviderProblem, Timeouts};
pub use providers::{FileError, NewProvider, ProviderSummary, Providers, ProvidersError, ResolvedModel};
pub use reach::UnreachableWhy;
pub use redact::{RedactedStream, Redactor};
pub use request::{
    CallAnswer, CallParams, CallUsage, ModelMessage, ModelRequest, Reasoning, StopReason, ToolCall,
    ToolOutcome, ToolSpec,
};
pub use script::ScriptError;
pub use secret::Secret;
pub use yaml::YamlProblem;

/// The result of a provider test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderTest {
    /// The models that the provider lists.
    pub models: Vec<String>,
    /// The one that answered, when there was one to ask.
    pub answered: Option<String>,
    /// From sending the last request to having read its reply.
    pub latency: Duration,
}

/// Makes one attempt at one model call.
///
/// `on_text` sees each piece of text as it arrives; the pieces joined are [`CallAnswer::text`]. Dropping the
/// future abandons the request and closes its connection.
pub async fn call(
    provider: &Provider,
    request: &ModelRequest,
    context: &CallContext,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<CallAnswer, CallError> {
    let answer = match dialect::of(provider.kind) {
        Some(dialect) => {
            Exchange::new(provider, dialect, context, &request.model).answer(request, on_text).await?
        }
        None => script::call(provider, request, context, on_text).await?,
    };
    settle::finish_answer(provider, request, answer, on_text)
}

/// Tries whether a provider answers to its address, its key and one of its models: `model`, or the first it is
/// configured with. Without either, its list of models has to do.
pub async fn test(
    provider: &Provider,
    model: Option<&str>,
    context: &CallContext,
) -> Result<ProviderTest, CallError> {
    let mut started = Instant::now();
    let Some(dialect) = dialect::of(provider.kind) else {
        let models = script::probe(provider)?;
        return Ok(ProviderTest { models, answered: None, latency: started.elapsed() });
    };
    let wanted = model.or(provider.models.first().map(String::as_str));
    // Without a model in mind, a 404 here is about the address and never about a model.
    let listed = Exchange::new(provider, dialect, context, "").models().await;
    let models = match (listed, wanted) {
        // Not every server has a list; one that has a model to try is judged by its answer.
        (Err(CallError::Status { .. } | CallError::Garbage { .. }), Some(_)) => provider.models.clone(),
        (listed, _) => listed?,
    };
    if let Some(wanted) = wanted {
        started = Instant::now();
        let params = CallParams { max_tokens: Some(TEST_TOKENS), ..CallParams::default() };
        let request =
            ModelRequest { params, ..ModelRequest::new(wanted, vec![ModelMessage::user("Say hi.")]) };
        // Any answer counts, even one that the token limit truncated.
        Exchange::new(provider, dialect, context, wanted).answer(&request, &mut |_| ()).await?;
    }
    Ok(ProviderTest { models, answered: wanted.map(str::to_owned), latency: started.elapsed() })
}

/// What one try may cost.
const TEST_TOKENS: u32 = 16;
