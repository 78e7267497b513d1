//! The API's edge: listeners, authentication, and the one dispatch behind all transports.

mod agents;
mod archive;
mod attach;
mod bins;
mod connections;
mod create;
mod daemon;
mod distribution;
mod events;
mod execs;
mod http;
mod images;
mod jobs;
mod lineages;
mod listen;
mod methods;
mod progress;
mod proof;
mod providers;
mod quarantine;
mod range;
mod reload;
mod sandboxes;
mod scope;
mod sessions;
mod snapshots;
mod socket;
mod sse;
mod stream;
mod tls_stream;
mod tokens;
mod turn_retry;
mod turns;
mod update;

pub use listen::{ListenError, bind, bind_tcp};
pub use reload::reload;

use axum::body::Bytes;
use lodge_proto::{ApiMethod, ErrorBody, METHODS, MethodDoc, Request};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::auth::{ApiCaller, Gate};
use crate::shell::Shell;
use lodge_engine::RequestKey;

/// What every connection shares.
#[derive(Debug)]
pub struct Api {
    pub shell: std::sync::Arc<Shell>,
    pub gate: Gate,
    /// Open WebSockets, which outlive the requests that opened them.
    pub sockets: tokio_util::task::TaskTracker,
}

/// Requests of more bytes are read off the async workers.
const PARSED_AT_ONCE_MAX: usize = 64 * 1024;

/// A request as JSON.
async fn parse(shell: &Shell, who: &ApiCaller, bytes: Bytes) -> Result<Value, ErrorBody> {
    let parsed = if bytes.len() > PARSED_AT_ONCE_MAX {
        let weight = bytes.len();
        shell.compute.run(&who.caller, weight, move |_| serde_json::from_slice(&bytes)).await?
    } else {
        serde_json::from_slice(&bytes)
    };
    parsed.map_err(|error| {
        ErrorBody::new("request.malformed", "the request is not JSON").because(error.to_string())
    })
}

/// Checks the envelope of a call.
fn envelope(value: Value) -> Result<Request, (Value, ErrorBody)> {
    let id = value.get("id").cloned().unwrap_or(Value::Null);
    let invalid = |message: &str| {
        let hint = r#"send {"jsonrpc": "2.0", "id": 1, "method": "info", "params": {}}"#;
        (id.clone(), ErrorBody::new("request.invalid", message).hint(hint))
    };
    if value.is_array() {
        return Err(invalid("batches are not supported: send one request at a time"));
    }
    if value.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(invalid("this is not a JSON-RPC 2.0 request: `jsonrpc` must be \"2.0\""));
    }
    if id.is_null() || id.is_object() || id.is_array() || id.is_boolean() {
        return Err(invalid("the request needs an `id` that is a number or a string"));
    }
    if !value.get("params").is_none_or(|params| params.is_object() || params.is_null()) {
        return Err(invalid("`params` must be an object"));
    }
    let mut request: Request = serde_json::from_value(value).map_err(|error| invalid(&error.to_string()))?;
    if request.params.is_null() {
        request.params = Value::Object(serde_json::Map::new());
    }
    if MethodDoc::named(&request.method).is_none() {
        let hint = match nearest(&request.method) {
            Some(near) => format!("did you mean `{near}`? `rpc/discover` lists all methods"),
            None => "`rpc/discover` lists all methods".to_owned(),
        };
        let error =
            ErrorBody::new("method.not_found", format!("there is no method `{}`", request.method)).hint(hint);
        return Err((request.id, error));
    }
    Ok(request)
}

/// The method whose name was probably meant: one with a letter or two wrong, or without its noun.
fn nearest(given: &str) -> Option<&'static str> {
    let names = || METHODS.iter().map(|doc| doc.name);
    let close = names().map(|name| (crate::config::edits(name, given), name)).min();
    let close = close.filter(|(edits, _)| *edits <= 2).map(|(_, name)| name);
    close.or_else(|| names().find(|name| name.rsplit('/').next() == Some(given)))
}

/// The parameters of a method, or what is wrong with them.
fn params<M: ApiMethod>(value: Value) -> Result<M::Params, ErrorBody> {
    serde_json::from_value(value).map_err(|error| {
        ErrorBody::new("params.invalid", format!("the parameters do not fit `{}`", M::NAME))
            .because(error.to_string())
            .hint("`rpc/discover` has the schema of every method")
    })
}

/// The key under which a change happens once, when the client chose one.
fn request_key(who: &ApiCaller, method: &str, params: &Value) -> Result<Option<RequestKey>, ErrorBody> {
    let Some(request_id) = params.get("request_id").and_then(Value::as_str) else { return Ok(None) };
    if request_id.is_empty() || request_id.len() > 128 {
        return Err(ErrorBody::new("params.invalid", "a request_id has 1 to 128 bytes"));
    }
    let mut hash = Sha256::new();
    hash.update(method.as_bytes());
    hash.update([0]);
    // Objects are ordered by key, so the same parameters give the same bytes.
    hash.update(params.to_string().as_bytes());
    let (caller, request_id) = (who.caller.clone(), request_id.to_owned());
    Ok(Some(RequestKey { caller, request_id, digest: hash.finalize().into() }))
}
