//! A fake registry that counts requests and can pause its answers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::Response;
use lodge_image::oci::PackedImage;
use lodge_image::{Digest, RemoteImage};
use tokio::sync::watch;

pub(super) struct FakeRegistry {
    pub host: String,
    shared: Arc<FakeRegistryState>,
    task: tokio::task::JoinHandle<()>,
}

/// Media type and bytes.
type Content = (String, Vec<u8>);

struct FakeRegistryState {
    /// By repository and digest.
    contents: Mutex<HashMap<(String, String), Content>>,
    /// By repository and tag.
    tags: Mutex<HashMap<(String, String), String>>,
    /// The number of requests, by digest and first byte.
    asked: Mutex<BTreeMap<(String, u64), u32>>,
    /// The number of bytes of a blob that may be sent now.
    open_to: watch::Sender<usize>,
    uploads: Mutex<HashMap<String, Vec<u8>>>,
    put: Mutex<Vec<String>>,
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeRegistry {
    pub(super) async fn start() -> FakeRegistry {
        let shared = Arc::new(FakeRegistryState {
            contents: Mutex::default(),
            tags: Mutex::default(),
            asked: Mutex::default(),
            open_to: watch::Sender::new(usize::MAX),
            uploads: Mutex::default(),
            put: Mutex::default(),
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let app = axum::Router::new().fallback(answer).with_state(shared.clone());
        let task = tokio::spawn(async move { drop(axum::serve(listener, app).await) });
        FakeRegistry { host, shared, task }
    }

    pub(super) fn remote(&self, name: &str) -> RemoteImage {
        RemoteImage::read(&format!("{}/{name}", self.host)).unwrap().unwrap()
    }

    /// Puts an image into a repository, and a tag on it.
    pub(super) fn add_image(&self, repository: &str, tag: Option<&str>, packed: &PackedImage) {
        for blob in &packed.blobs {
            let key = (repository.to_owned(), blob.digest.to_string());
            self.shared.contents.lock().unwrap().insert(key, (blob.media_type.clone(), blob.bytes.clone()));
        }
        if let Some(tag) = tag {
            let key = (repository.to_owned(), tag.to_owned());
            self.shared.tags.lock().unwrap().insert(key, packed.digest.to_string());
        }
    }

    /// Limits the bytes of each blob that are sent, until the next call.
    pub(super) fn send_up_to(&self, bytes: usize) {
        self.shared.open_to.send_replace(bytes);
    }

    /// The number of requests for blobs.
    pub(super) fn blobs_asked(&self) -> u32 {
        let asked = self.shared.asked.lock().unwrap();
        asked.iter().filter(|((path, _), _)| path.contains("/blobs/")).map(|(_, count)| count).sum()
    }

    pub(super) fn all_asked(&self) -> u32 {
        self.shared.asked.lock().unwrap().values().sum()
    }

    /// The first byte of each request for a blob.
    pub(super) fn starts_of(&self, digest: &Digest) -> Vec<u64> {
        let asked = self.shared.asked.lock().unwrap();
        let ends = digest.to_string();
        asked.keys().filter(|(path, _)| path.ends_with(&ends)).map(|(_, from)| *from).collect()
    }

    /// The repository and reference of each uploaded manifest, in order.
    pub(super) fn manifests_put(&self) -> Vec<String> {
        self.shared.put.lock().unwrap().clone()
    }
}

async fn answer(
    State(shared): State<Arc<FakeRegistryState>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().trim_start_matches("/v2/").to_owned();
    let status = |code| Response::builder().status(code).body(Body::empty()).unwrap();
    if let Some((repository, upload)) = path.split_once("/blobs/uploads") {
        return upload_part(&shared, &method, repository, upload, &uri, &body);
    }
    if let Some((repository, reference)) = path.split_once("/manifests/") {
        if method == Method::PUT {
            let digest = Digest::of(&body).to_string();
            let kind = headers.get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
            let key = (repository.to_owned(), digest.clone());
            shared.contents.lock().unwrap().insert(key, (kind.unwrap_or_default(), body.to_vec()));
            let key = (repository.to_owned(), reference.to_owned());
            shared.tags.lock().unwrap().insert(key, digest);
            shared.put.lock().unwrap().push(format!("{repository} {reference}"));
            return status(StatusCode::CREATED);
        }
        let tagged = shared.tags.lock().unwrap().get(&(repository.to_owned(), reference.to_owned())).cloned();
        return send(&shared, &method, &path, repository, &tagged.unwrap_or(reference.to_owned()), 0).await;
    }
    let Some((repository, digest)) = path.split_once("/blobs/") else { return status(StatusCode::OK) };
    let range = headers.get("range").and_then(|range| range.to_str().unwrap().strip_prefix("bytes="));
    let from = range.and_then(|range| range.split('-').next()?.parse().ok()).unwrap_or(0);
    send(&shared, &method, &path, repository, digest, from).await
}

async fn send(
    shared: &Arc<FakeRegistryState>,
    method: &Method,
    path: &str,
    repository: &str,
    digest: &str,
    from: u64,
) -> Response {
    let found = shared.contents.lock().unwrap().get(&(repository.to_owned(), digest.to_owned())).cloned();
    let Some((kind, bytes)) = found else {
        return Response::builder().status(StatusCode::NOT_FOUND).body(Body::empty()).unwrap();
    };
    let total = bytes.len();
    let code = if from > 0 { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let answer = Response::builder().status(code).header("content-type", kind);
    let answer = answer.header("docker-content-digest", digest).header("content-length", total as u64 - from);
    let answer = answer.header("content-range", format!("bytes {from}-{}/{total}", total.saturating_sub(1)));
    if method == Method::HEAD {
        return answer.body(Body::empty()).unwrap();
    }
    *shared.asked.lock().unwrap().entry((path.to_owned(), from)).or_default() += 1;
    let is_blob = path.contains("/blobs/");
    let open_to = shared.open_to.subscribe();
    let at = usize::try_from(from).unwrap();
    let sending = futures_util::stream::unfold((at, bytes), move |(at, bytes)| {
        let mut open_to = open_to.clone();
        async move {
            if at == bytes.len() {
                return None;
            }
            let may = if is_blob { *open_to.wait_for(|may| *may > at).await.unwrap() } else { usize::MAX };
            let end = bytes.len().min(may).min(at + 1_024);
            let piece = Bytes::copy_from_slice(&bytes[at..end]);
            Some((Ok::<_, std::convert::Infallible>(piece), (end, bytes)))
        }
    });
    answer.body(Body::from_stream(sending)).unwrap()
}

fn upload_part(
    shared: &FakeRegistryState,
    method: &Method,
    repository: &str,
    upload: &str,
    uri: &Uri,
    body: &Bytes,
) -> Response {
    let mut uploads = shared.uploads.lock().unwrap();
    let id = match upload.trim_matches('/') {
        "" => uploads.len().to_string(),
        id => id.to_owned(),
    };
    let so_far = uploads.entry(id.clone()).or_default();
    so_far.extend_from_slice(body);
    let answer = Response::builder()
        .header("location", format!("/v2/{repository}/blobs/uploads/{id}"))
        .header("range", format!("0-{}", so_far.len().saturating_sub(1)));
    let code = if *method == Method::PUT {
        let wanted = uri.query().unwrap_or_default().split("digest=").nth(1).unwrap_or_default();
        let wanted = wanted.split('&').next().unwrap_or_default().replace("%3A", ":");
        assert_eq!(Digest::of(so_far).to_string(), wanted);
        let key = (repository.to_owned(), wanted);
        shared.contents.lock().unwrap().insert(key, (String::new(), so_far.clone()));
        StatusCode::CREATED
    } else {
        StatusCode::ACCEPTED
    };
    answer.status(code).body(Body::empty()).unwrap()
}
