//! `/v2/`: the images of this daemon, as any OCI client reads them. Nothing can be written here.
//!
//! Blobs are sent in pieces as their files have them. A large one that is sent whole is hashed on the way, and cut
//! before its end when it is not what its digest says, which is remembered: the next pull fetches it again. Parts cannot
//! be checked here; the receiver checks the whole.

mod page;
mod path;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::rejection::PathRejection;
use axum::extract::{ConnectInfo, Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response as HttpResponse};
use axum::routing::any;
use lodge_core::record::ImageState;
use lodge_image::agentfile::shown;
use lodge_image::oci::{MANIFEST_MAX, ManifestDocument};
use lodge_image::{BlobError, Digest, Hasher, TaggedName};
use lodge_proto::{ApiMethod, ErrorBody, InspectImage, base64};
use lodge_store::{ReadError, StoreSnapshot};
use serde_json::json;

use self::page::{RegistryPage, paged};
use self::path::{DistributionRequest, ManifestReference, is_repository};
use super::connections::Connection;
use super::http::{self, EntryRefusal, KeepOpen};
use super::range::{ByteRange, OutOfRange, wanted_range};
use super::{Api, methods};
use crate::auth::ApiCaller;
use crate::auth::rights;
use crate::images::ImageError;
use crate::shell::Shell;

/// What may be read with this may be read here, and nothing else.
const RIGHT: &str = InspectImage::NAME;
/// Bytes of a blob that are in memory for one client.
const PIECE: usize = 128 * 1024;
/// A blob up to this size is verified before any of it is sent, so that a fault can be reported. This exceeds the
/// buffers on the way out.
const CHECKED_FIRST: u64 = 1 << 20;
const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const API_VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// Why a request is not served, as OCI clients read it.
#[derive(Debug)]
struct RegistryRefusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl RegistryRefusal {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> RegistryRefusal {
        RegistryRefusal { status, code, message: message.into() }
    }

    fn unknown(code: &'static str, message: impl Into<String>) -> RegistryRefusal {
        RegistryRefusal::new(StatusCode::NOT_FOUND, code, message)
    }

    /// Something is wrong with this daemon, or with its disk.
    fn internal(error: &ErrorBody) -> RegistryRefusal {
        RegistryRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, "UNKNOWN", error.message.clone())
    }
}

impl IntoResponse for RegistryRefusal {
    fn into_response(self) -> HttpResponse {
        let body = json!({"errors": [{"code": self.code, "message": self.message, "detail": {}}]});
        (self.status, axum::Json(body)).into_response()
    }
}

pub(super) fn router(api: &Arc<Api>) -> Router<Arc<Api>> {
    Router::new()
        .route("/v2", any(serve))
        .route("/v2/", any(serve))
        .route("/v2/{*rest}", any(serve))
        .layer(middleware::from_fn_with_state(api.clone(), authenticate))
}

/// As everywhere, and with the token as a password, which is what other clients can send.
async fn authenticate(
    State(api): State<Arc<Api>>,
    ConnectInfo(connection): ConnectInfo<Connection>,
    mut request: HttpRequest,
    next: Next,
) -> HttpResponse {
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = header.map(|header| match password(header) {
        Some(token) => format!("Bearer {token}"),
        None => header.to_owned(),
    });
    let mut answer = match http::enter(&api, &connection, bearer.as_deref()) {
        Ok(who) => {
            request.extensions_mut().insert(who);
            let mut answer = next.run(request).await;
            answer.extensions_mut().insert(KeepOpen);
            answer
        }
        Err(EntryRefusal::Crowded(limit)) => {
            let message = limit.to_string();
            RegistryRefusal::new(StatusCode::SERVICE_UNAVAILABLE, "TOOMANYREQUESTS", message).into_response()
        }
        Err(EntryRefusal::NotAuthenticated(error)) => {
            let message = format!(
                "{}; the password is a token of this daemon, the user is not looked at",
                error.message
            );
            let mut answer =
                RegistryRefusal::new(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message).into_response();
            let challenge = HeaderValue::from_static("Basic realm=\"lodge\"");
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
            answer
        }
    };
    answer.headers_mut().insert(API_VERSION, HeaderValue::from_static("registry/2.0"));
    answer
}

/// The password of a `Basic` header.
fn password(header: &str) -> Option<String> {
    let (scheme, encoded) = header.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(base64::decode(encoded.trim())?).ok()?;
    decoded.split_once(':').map(|(_, password)| password.to_owned())
}

async fn serve(
    State(api): State<Arc<Api>>,
    axum::Extension(who): axum::Extension<ApiCaller>,
    method: Method,
    uri: Uri,
    rest: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> HttpResponse {
    let rest = match rest {
        Ok(Path(rest)) => rest,
        Err(_) if uri.path().trim_end_matches('/') == "/v2" => String::new(),
        // It is not text.
        Err(_) => return nothing_there().into_response(),
    };
    answer(api, who, &method, &uri, &rest, &headers).await.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(
    api: Arc<Api>,
    who: ApiCaller,
    method: &Method,
    uri: &Uri,
    rest: &str,
    headers: &HeaderMap,
) -> Result<HttpResponse, RegistryRefusal> {
    rights::admit(&who, RIGHT)
        .map_err(|error| RegistryRefusal::new(StatusCode::FORBIDDEN, "DENIED", error.message))?;
    if *method != Method::GET && *method != Method::HEAD {
        let mut answer =
            RegistryRefusal::new(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", "images are only read here")
                .into_response();
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(answer);
    }
    match DistributionRequest::read(rest).ok_or_else(nothing_there)? {
        DistributionRequest::Base => Ok(axum::Json(json!({})).into_response()),
        DistributionRequest::Catalog => catalog(&api.shell, uri).await,
        DistributionRequest::Tags { name } => tags(&api.shell, uri, name).await,
        DistributionRequest::Manifest { name, version } => manifest(api, method, name, version).await,
        DistributionRequest::Blob { name, digest } => {
            looked_up(&api.shell, move |store| tags_of(store, &name)).await?;
            blob(api, who, method, digest, headers).await
        }
    }
}

/// Reads for one answer, off the async workers.
async fn looked_up<T: Send + 'static>(
    shell: &Arc<Shell>,
    read: impl FnOnce(&dyn StoreSnapshot) -> Result<T, RegistryRefusal> + Send + 'static,
) -> Result<T, RegistryRefusal> {
    shell.reader.read(move |store| Ok(read(store))).await.map_err(unread)?
}

/// Reads for one answer on this thread, which may block.
fn blocking_look_up<T>(
    shell: &Shell,
    read: impl FnOnce(&dyn StoreSnapshot) -> Result<T, RegistryRefusal>,
) -> Result<T, RegistryRefusal> {
    shell.reader.here(|store| Ok(read(store))).map_err(unread)?
}

fn unread(error: ReadError) -> RegistryRefusal {
    RegistryRefusal::internal(&methods::internal(error))
}

fn nothing_there() -> RegistryRefusal {
    RegistryRefusal::unknown("NAME_UNKNOWN", "there is nothing at this path")
}

async fn catalog(shell: &Arc<Shell>, uri: &Uri) -> Result<HttpResponse, RegistryRefusal> {
    let refs = shell.reader.read(|store| store.image_refs()).await.map_err(unread)?;
    let names = refs.iter().filter_map(|row| row.reference.rsplit_once(':')).map(|(name, _)| name);
    // What others cannot ask for is not shown to them.
    let names = names.filter(|name| is_repository(name)).map(str::to_owned).collect();
    let RegistryPage { items, link } = paged(uri, "/v2/_catalog", names)?;
    Ok(with_link(axum::Json(json!({"repositories": items})).into_response(), link))
}

async fn tags(shell: &Arc<Shell>, uri: &Uri, name: String) -> Result<HttpResponse, RegistryRefusal> {
    let asked = name.clone();
    let tags = looked_up(shell, move |store| tags_of(store, &asked)).await?;
    let RegistryPage { items, link } = paged(uri, &format!("/v2/{name}/tags/list"), tags)?;
    Ok(with_link(axum::Json(json!({"name": name, "tags": items})).into_response(), link))
}

/// The tags of a repository, which has one at least.
///
/// Whether a digest belongs to the repository is not checked: a caller that may read one image may read all of them,
/// and the dependencies of an agent are requested under the agent's name.
fn tags_of(store: &dyn StoreSnapshot, name: &str) -> Result<Vec<String>, RegistryRefusal> {
    let rows = store.image_tags(name).map_err(unread)?;
    let tags = rows.iter().filter_map(|row| row.reference.rsplit_once(':')).map(|(_, tag)| tag.to_owned());
    let tags: Vec<String> = tags.collect();
    if tags.is_empty() {
        return Err(RegistryRefusal::unknown(
            "NAME_UNKNOWN",
            format!("no image is called `{}`", shown(name)),
        ));
    }
    Ok(tags)
}

fn with_link(mut answer: HttpResponse, link: Option<String>) -> HttpResponse {
    if let Some(link) = link.and_then(|link| HeaderValue::from_str(&link).ok()) {
        answer.headers_mut().insert(header::LINK, link);
    }
    answer
}

async fn manifest(
    api: Arc<Api>,
    method: &Method,
    name: String,
    version: ManifestReference,
) -> Result<HttpResponse, RegistryRefusal> {
    let read = tokio::task::spawn_blocking(move || read_manifest(&api.shell, &name, version)).await;
    let internal = |error: tokio::task::JoinError| {
        RegistryRefusal::internal(&ErrorBody::new("daemon.internal", error.to_string()))
    };
    let (digest, bytes, kind) = read.map_err(internal)??;
    let length = bytes.len();
    let body = if *method == Method::HEAD { Body::empty() } else { Body::from(bytes) };
    let mut answer = HttpResponse::new(body);
    let kind = HeaderValue::from_str(&kind)
        .map_err(|error| RegistryRefusal::internal(&ErrorBody::new("daemon.internal", error.to_string())))?;
    answer.headers_mut().insert(header::CONTENT_TYPE, kind);
    answer.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    put_digest(&mut answer, &digest);
    Ok(answer)
}

/// A manifest or index with its digest and its media type.
fn read_manifest(
    shell: &Shell,
    name: &str,
    version: ManifestReference,
) -> Result<(Digest, Vec<u8>, String), RegistryRefusal> {
    let unknown = |message: String| RegistryRefusal::unknown("MANIFEST_UNKNOWN", message);
    let digest = match version {
        ManifestReference::Digest(digest) => {
            blocking_look_up(shell, |store| tags_of(store, name))?;
            digest
        }
        ManifestReference::Tag(tag) => blocking_look_up(shell, |store| tagged(store, name, &tag))?,
    };
    let blobs = shell.images.blobs().map_err(|error| RegistryRefusal::internal(&error.into()))?;
    let bytes = match blobs.read(&digest, MANIFEST_MAX) {
        Ok(bytes) => bytes,
        Err(BlobError::Missing { .. } | BlobError::TooLarge { .. } | BlobError::TooLong { .. }) => {
            return Err(unknown(format!(
                "there is no manifest {digest}; an earlier release built it, perhaps"
            )));
        }
        Err(error) => return Err(RegistryRefusal::internal(&ImageError::from(error).into())),
    };
    let document = ManifestDocument::read(&bytes).map_err(|_| unknown(format!("{digest} is no manifest")))?;
    Ok((digest, bytes, document.media_type().to_owned()))
}

fn tagged(store: &dyn StoreSnapshot, name: &str, tag: &str) -> Result<Digest, RegistryRefusal> {
    let unknown = || {
        let named = format!("{name}:{tag}");
        RegistryRefusal::unknown("MANIFEST_UNKNOWN", format!("no image is called `{}`", shown(&named)))
    };
    let named = TaggedName::read(&format!("{name}:{tag}")).map_err(|_| unknown())?;
    let row = store.image_ref(named.as_str()).map_err(unread)?.ok_or_else(unknown)?;
    let (_, state) = store.image_kind(&row.digest).map_err(unread)?.ok_or_else(unknown)?;
    match state {
        // Layers of it may not be here yet.
        ImageState::Announced => Err(unknown()),
        ImageState::Complete => row.digest.parse().map_err(|_| unknown()),
    }
}

async fn blob(
    api: Arc<Api>,
    who: ApiCaller,
    method: &Method,
    digest: Digest,
    headers: &HeaderMap,
) -> Result<HttpResponse, RegistryRefusal> {
    let shell = api.shell.clone();
    let opened = tokio::task::spawn_blocking(move || open_blob(&shell, &digest)).await;
    let internal = |error: tokio::task::JoinError| {
        RegistryRefusal::internal(&ErrorBody::new("daemon.internal", error.to_string()))
    };
    let (file, length) = opened.map_err(internal)??;
    let asked = headers.get(header::RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
    let range = match wanted_range(asked, length) {
        Ok(range) => range,
        Err(OutOfRange) => return Ok(out_of_range(length)),
    };
    let whole = ByteRange { first: 0, last: length.saturating_sub(1) };
    let part = range.unwrap_or(whole);
    let count = if length == 0 { 0 } else { part.last - part.first + 1 };
    let mut answer = HttpResponse::new(Body::empty());
    if let Some(range) = range {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
        if let Ok(told) = HeaderValue::from_str(&range.told(length)) {
            answer.headers_mut().insert(header::CONTENT_RANGE, told);
        }
    }
    let head = answer.headers_mut();
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    head.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    head.insert(header::CONTENT_LENGTH, HeaderValue::from(count));
    put_digest(&mut answer, &digest);
    if *method == Method::GET {
        let hasher = (count == length).then(Hasher::default);
        let sending =
            BlobDownload { api, who, digest, hasher, file: Arc::new(file), at: part.first, left: count };
        *answer.body_mut() = Body::from_stream(futures_util::stream::unfold(Some(sending), next));
    }
    Ok(answer)
}

fn open_blob(shell: &Shell, digest: &Digest) -> Result<(File, u64), RegistryRefusal> {
    let blobs = shell.images.blobs().map_err(|error| RegistryRefusal::internal(&error.into()))?;
    let refused = |error: BlobError| match error {
        BlobError::Missing { .. } => {
            RegistryRefusal::unknown("BLOB_UNKNOWN", format!("{digest} is not in the store"))
        }
        error => RegistryRefusal::internal(&ImageError::from(error).into()),
    };
    let (file, length) = blobs.open_blob(digest).map_err(refused)?;
    if length <= CHECKED_FIRST {
        blobs.verify(digest).map_err(refused)?;
    }
    Ok((file, length))
}

fn out_of_range(length: u64) -> HttpResponse {
    let refused = RegistryRefusal::new(
        StatusCode::RANGE_NOT_SATISFIABLE,
        "RANGE_INVALID",
        format!("there are {length} bytes, and none in that range"),
    );
    let mut answer = refused.into_response();
    if let Ok(told) = HeaderValue::from_str(&format!("bytes */{length}")) {
        answer.headers_mut().insert(header::CONTENT_RANGE, told);
    }
    answer
}

fn put_digest(answer: &mut HttpResponse, digest: &Digest) {
    if let Ok(value) = HeaderValue::from_str(&digest.to_string()) {
        answer.headers_mut().insert(CONTENT_DIGEST, value);
    }
}

/// A blob on its way. Its file may be removed meanwhile, and is read all the same.
struct BlobDownload {
    api: Arc<Api>,
    who: ApiCaller,
    digest: Digest,
    /// Of what was sent, when all of it is.
    hasher: Option<Hasher>,
    file: Arc<File>,
    at: u64,
    left: u64,
}

async fn next(sending: Option<BlobDownload>) -> Option<(io::Result<Bytes>, Option<BlobDownload>)> {
    let mut sending = sending.filter(|sending| sending.left > 0)?;
    match sending.piece().await {
        Ok(bytes) => Some((Ok(bytes), Some(sending))),
        // The length is announced, so the client notices the missing rest.
        Err(error) => Some((Err(error), None)),
    }
}

impl BlobDownload {
    async fn piece(&mut self) -> io::Result<Bytes> {
        if self.who.is_over() {
            return Err(io::Error::other("the token is over"));
        }
        let (file, at) = (self.file.clone(), self.at);
        let count = usize::try_from(self.left).unwrap_or(PIECE).min(PIECE);
        let read = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; count];
            file.read_exact_at(&mut piece, at).map(|()| piece)
        });
        let piece = tokio::select! {
            () = self.api.shell.end.cancelled() => return Err(io::Error::other("the daemon is shutting down")),
            read = read => read.map_err(io::Error::other)??,
        };
        self.at += piece.len() as u64;
        self.left -= piece.len() as u64;
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&piece);
        }
        if self.left == 0 && self.hasher.take().is_some_and(|hasher| hasher.finish() != self.digest) {
            return Err(self.damaged().await);
        }
        Ok(Bytes::from(piece))
    }

    /// Has the store look for itself, so that the blob counts as damaged from now on.
    async fn damaged(&self) -> io::Error {
        let (shell, digest) = (self.api.shell.clone(), self.digest);
        let look = move || match shell.images.blobs() {
            Ok(blobs) => blobs.verify(&digest).err().map(|error| error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let found = tokio::task::spawn_blocking(look).await;
        let why = found.ok().flatten().unwrap_or_else(|| format!("{digest} changed while it was sent"));
        tracing::warn!(event = "images.blob_cut", why);
        io::Error::other(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_of_basic_is_the_token_whatever_the_user_is() {
        let header = |text: &str| format!("Basic {}", base64::encode(text.as_bytes()));
        assert_eq!(password(&header("lodge:tok.en")).as_deref(), Some("tok.en"));
        assert_eq!(password(&header(":a:b")).as_deref(), Some("a:b"));
        for other in ["Bearer x", "Basic", "Basic ?", &header("nothing")] {
            assert_eq!(password(other), None, "{other}");
        }
    }
}
