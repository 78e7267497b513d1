//! Provider clients: one request in, one answer or one typed failure out.
//!
//! Owns: `providers.yaml`, the keys in it, the wire dialects and their streams. Never: retries (the engine
//! decides), history (it arrives whole in each [`Request`]), or a global (the HTTP client lives in the
//! [`CallContext`]).

mod context;
mod error;
mod excerpt;
mod openai;
mod provider;
mod providers;
mod request;
mod retry_after;
mod script;
mod secret;
mod sse;
mod yaml;

use std::time::{Duration, Instant};

pub use context::{CallContext, Limits};
pub use error::{CallError, Nonsense, Oversize};
pub use provider::{Kind, Provider, ProviderProblem};
pub use providers::{FileError, NewProvider, ProviderView, Providers, ProvidersError, Resolved};
pub use request::{Answer, Message, Params, Request, Stop, Tool, ToolCall, Usage};
pub use script::ScriptError;
pub use secret::Secret;
pub use yaml::YamlProblem;

/// What a provider said when it was tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tested {
    /// The models it offers, as far as it tells.
    pub models: Vec<String>,
    /// From sending the request to having read the reply.
    pub latency: Duration,
}

/// Makes one attempt at one model call.
///
/// `on_text` sees each piece of text as it arrives; the pieces joined are [`Answer::text`]. Dropping the
/// future abandons the request and closes its connection.
pub async fn call(
    provider: &Provider,
    request: &Request,
    context: &CallContext,
    on_text: &mut (dyn FnMut(&str) + Send),
) -> Result<Answer, CallError> {
    match provider.kind {
        Kind::Openai => openai::call(provider, request, context, on_text).await,
        Kind::Script => script::call(provider, request, context, on_text).await,
        Kind::Anthropic | Kind::Gemini | Kind::Ollama => Err(unsupported(provider)),
    }
}

/// Sends the smallest request that shows whether the provider answers to its address and key.
pub async fn test(provider: &Provider, context: &CallContext) -> Result<Tested, CallError> {
    let started = Instant::now();
    let models = match provider.kind {
        Kind::Openai => openai::probe(provider, context).await?,
        Kind::Script => script::probe(provider)?,
        Kind::Anthropic | Kind::Gemini | Kind::Ollama => return Err(unsupported(provider)),
    };
    Ok(Tested { models, latency: started.elapsed() })
}

fn unsupported(provider: &Provider) -> CallError {
    CallError::KindUnsupported { provider: provider.name.clone(), kind: provider.kind }
}
