//! Plain HTTP: the router, authentication, one call per POST, health.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response as HttpResponse};
use axum::routing::get;
use lodge_engine::RenderedAnswer;
use lodge_proto::proof::PROOF_PATH;
use lodge_proto::{ErrorBody, REQUEST_BYTES_MAX, Response, http_status, result_text};
use serde_json::{Value, json};

use super::connections::{Connection, ConnectionLimit};
use super::{Api, archive, distribution, envelope, jobs, methods, proof, socket, sse};
use crate::auth::{self, ApiCaller};
use crate::images::NoWatcher;

/// Through which door a request came.
#[derive(Debug, Clone)]
pub(super) enum ListenerKind {
    Unix,
    /// The address that is listened on.
    Tcp(String),
    /// The same, with TLS.
    Tls(String),
}

pub(super) fn router(api: Arc<Api>, door: ListenerKind) -> Router {
    let behind = Router::new()
        .route("/v1/rpc", get(socket::upgrade).post(post))
        .route("/v1/events", get(sse::events))
        .route("/v1/jobs/{job}/{stream}", get(jobs::raw::get))
        .route("/v1/images/export", get(archive::export))
        .route("/v1/images/import", axum::routing::post(archive::import))
        .layer(middleware::from_fn_with_state(api.clone(), authenticate));
    Router::new()
        .route("/healthz", get(healthz))
        .route(&format!("{PROOF_PATH}/{{id}}/{{nonce}}"), get(proof::prove))
        .merge(behind)
        .merge(distribution::router(&api))
        .fallback(not_found)
        .layer(middleware::from_fn_with_state((api.clone(), door), check_door))
        .layer(DefaultBodyLimit::max(REQUEST_BYTES_MAX))
        .with_state(api)
}

/// A browser elsewhere must not reach a loopback listener through a name of its own.
async fn check_door(
    State((api, door)): State<(Arc<Api>, ListenerKind)>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    request: HttpRequest,
    next: Next,
) -> HttpResponse {
    let has_body = has_body(&request);
    let allowed = auth::check_query(request.uri().query()).and_then(|()| match &door {
        ListenerKind::Unix => Ok(()),
        ListenerKind::Tcp(bound) => check_headers(&api, &request, bound, |_| false),
        // A browser may use a name only if the certificate covers it, regardless of the page that uses the name.
        ListenerKind::Tls(bound) => check_headers(&api, &request, bound, |host| {
            api.shell.tls.current().is_some_and(|certificate| certificate.is_for(host))
        }),
    });
    let mut answer = match allowed {
        Ok(()) => next.run(request).await,
        Err(error) => failed(Value::Null, error),
    };
    if answer.extensions().get::<KeepOpen>().is_none() {
        // The number of connections is limited: they are reserved for callers with a token.
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    // Who refuses may not have read everything that was sent.
    connection.set_lingers(has_body && !answer.status().is_success());
    answer
}

fn has_body(request: &HttpRequest) -> bool {
    let length = request.headers().get(header::CONTENT_LENGTH).is_some_and(|length| length != "0");
    length || request.headers().contains_key(header::TRANSFER_ENCODING)
}

/// In the extensions of answers after which the connection stays open.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeepOpen;

/// Why a request with this header is refused on this connection.
#[derive(Debug)]
pub(super) enum EntryRefusal {
    NotAuthenticated(ErrorBody),
    Crowded(ConnectionLimit),
}

impl From<ConnectionLimit> for EntryRefusal {
    fn from(limit: ConnectionLimit) -> EntryRefusal {
        EntryRefusal::Crowded(limit)
    }
}

impl From<EntryRefusal> for ErrorBody {
    fn from(refusal: EntryRefusal) -> ErrorBody {
        match refusal {
            EntryRefusal::NotAuthenticated(body) => body,
            EntryRefusal::Crowded(limit) => limit.into(),
        }
    }
}

/// Who sends this header, on a connection that is counted as theirs from now on.
pub(super) fn enter(
    api: &Api,
    connection: &Connection,
    header: Option<&str>,
) -> Result<ApiCaller, EntryRefusal> {
    let who = api.gate.check(header, &api.shell.access).map_err(EntryRefusal::NotAuthenticated)?;
    connection.enter(&who)?;
    Ok(who)
}

fn check_headers(
    api: &Api,
    request: &HttpRequest,
    bound: &str,
    is_certified: impl Fn(&str) -> bool,
) -> Result<(), ErrorBody> {
    let host = auth::only(request.headers(), &header::HOST, "auth.host")?;
    let host = host.or_else(|| request.uri().authority().map(axum::http::uri::Authority::as_str));
    let origin = auth::only(request.headers(), &header::ORIGIN, "auth.origin")?;
    let settings = api.shell.config.settings();
    auth::check_browser(host, origin, bound, &settings.allowed_origins, is_certified)
}

async fn authenticate(
    State(api): State<Arc<Api>>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    mut request: HttpRequest,
    next: Next,
) -> HttpResponse {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match enter(&api, &connection, header) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            let mut answer = next.run(request).await;
            answer.extensions_mut().insert(KeepOpen);
            answer
        }
        Err(refusal) => failed(Value::Null, refusal.into()),
    }
}

async fn healthz(State(api): State<Arc<Api>>) -> HttpResponse {
    let (epoch, version) = (api.shell.epoch, env!("CARGO_PKG_VERSION"));
    match api.shell.room.refusal() {
        None => axum::Json(json!({"status": "ok", "epoch": epoch, "version": version})).into_response(),
        Some(refusal) => {
            let reason = refusal.to_string();
            let body = json!({"status": "read_only", "epoch": epoch, "version": version, "reason": reason});
            (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
        }
    }
}

async fn not_found() -> HttpResponse {
    failed(
        Value::Null,
        ErrorBody::new("method.not_found", "there is nothing at this path")
            .hint("the API is at POST /v1/rpc"),
    )
}

async fn post(
    State(api): State<Arc<Api>>,
    axum::Extension(who): axum::Extension<ApiCaller>,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> HttpResponse {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        let error = ErrorBody::new("request.invalid", "the body must be application/json")
            .hint("send `Content-Type: application/json`");
        return failed(Value::Null, error);
    }
    let body = match body {
        Ok(body) => body,
        Err(rejected) if rejected.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            let error =
                ErrorBody::new("request.too_large", format!("the body is over {REQUEST_BYTES_MAX} bytes"))
                    .hint("put large material into the agent's workspace instead");
            return failed(Value::Null, error);
        }
        Err(rejected) => {
            return failed(Value::Null, ErrorBody::new("request.malformed", rejected.body_text()));
        }
    };
    let value = match super::parse(&api.shell, &who, body).await {
        Ok(value) => value,
        Err(error) => return failed(Value::Null, error),
    };
    let request = match envelope(value) {
        Ok(request) => request,
        Err((id, error)) => return failed(id, error),
    };
    match methods::call(&api, &who, &request.method, request.params, Arc::new(NoWatcher)).await {
        Ok(RenderedAnswer(result)) => {
            let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            (json, result_text(&request.id, &result)).into_response()
        }
        Err(error) => failed(request.id, error),
    }
}

/// An error, with the HTTP status that goes with its code.
pub(super) fn failed(id: Value, error: ErrorBody) -> HttpResponse {
    let status =
        StatusCode::from_u16(http_status(&error.data.code)).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, axum::Json(Response::err(id, error))).into_response()
}
