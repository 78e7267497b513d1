//! One request and its answer: within bounds of size and time, and with credentials only where they belong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Body, Method, Response, StatusCode, Url};
use serde::Deserialize;
use tokio::time::Instant;

use super::RegistryClient;
use super::auth::RegistryRight;
use super::error::{AttemptError, RegistryError, RetryAdvice};
use super::net::{self, REDIRECTS_MAX, RedirectPolicy, RequestReach, same_origin, shown_host};
use super::retry::retry_advice;
use crate::oci::BadImage;
use crate::{Digest, RemoteImage};

/// Bytes of an answer that only says why.
const REASON_MAX: u64 = 16 << 10;
/// Letters of such a reason that people get to see.
const REASON_SHOWN: usize = 200;
const HUB: &str = "docker.io";
const HUB_API: &str = "registry-1.docker.io";

/// A repository, and how its registry is reached, for as long as one is at it.
#[derive(Debug)]
pub(super) struct RepositoryClient {
    /// As the reference says it.
    pub(super) host: String,
    pub(super) repository: String,
    pub(super) base: Url,
    /// Whether the registry has answered anything since this was made.
    answered: AtomicBool,
}

impl RepositoryClient {
    pub(super) fn of(remote: &RemoteImage) -> Result<RepositoryClient, RegistryError> {
        let hub = remote.host == HUB;
        let api = if hub { HUB_API } else { remote.host.as_str() };
        let repository = if hub && !remote.repository.contains('/') {
            format!("library/{}", remote.repository)
        } else {
            remote.repository.clone()
        };
        let open = Url::parse(&format!("http://{api}/")).ok().filter(is_bare);
        let secure = Url::parse(&format!("https://{api}/")).ok().filter(is_bare);
        let base = open.filter(net::is_loopback).or(secure);
        let base = base
            .ok_or_else(|| BadImage::new(format!("`{}` is the name of no registry", plain(&remote.host))))?;
        Ok(RepositoryClient { host: remote.host.clone(), repository, base, answered: AtomicBool::new(false) })
    }

    /// The registry of an image that was just pulled.
    pub(super) fn known(remote: &RemoteImage) -> Result<RepositoryClient, RegistryError> {
        Ok(RepositoryClient { answered: AtomicBool::new(true), ..RepositoryClient::of(remote)? })
    }

    pub(super) fn manifest(&self, reference: &str) -> Url {
        self.at(&format!("manifests/{reference}"))
    }

    pub(super) fn blob(&self, digest: &Digest) -> Url {
        self.at(&format!("blobs/{digest}"))
    }

    pub(super) fn uploads(&self) -> Url {
        self.at("blobs/uploads/")
    }

    /// A registry that cannot be reached and never was is most likely misspelled or not running: report that
    /// immediately. One that answered before may be restarting.
    fn note_unreachable(&self, trouble: AttemptError) -> AttemptError {
        let nobody = match &trouble.error {
            RegistryError::Unreachable { cause, .. } => {
                cause.downcast_ref().is_some_and(reqwest::Error::is_connect)
            }
            RegistryError::Stalled { .. }
            | RegistryError::NotFound { .. }
            | RegistryError::Denied { .. }
            | RegistryError::Login { .. }
            | RegistryError::Lies { .. }
            | RegistryError::Refused { .. }
            | RegistryError::Image(_)
            | RegistryError::Blob(_) => false,
        };
        if nobody && trouble.again == RetryAdvice::Soon && !self.answered.load(Ordering::Relaxed) {
            return AttemptError { again: RetryAdvice::Once, ..trouble };
        }
        trouble
    }

    fn at(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("/v2/{}/{path}", self.repository));
        url
    }
}

fn is_bare(url: &Url) -> bool {
    url.has_host()
        && url.username().is_empty()
        && url.password().is_none()
        && (url.path(), url.query(), url.fragment()) == ("/", None, None)
}

/// A request to a registry.
pub(super) struct RegistryRequest<'a> {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) right: RegistryRight,
    pub(super) hops: RedirectPolicy,
    pub(super) headers: HeaderMap,
    /// Makes the body, for each time that it is sent.
    pub(super) body: Option<&'a (dyn Fn() -> OutgoingBody + Send + Sync)>,
    /// How long the registry may be silent before the answer, if longer than usual.
    pub(super) silence: Option<Duration>,
    /// What the answer is about, for people.
    pub(super) about: &'a str,
}

/// A body on its way out.
pub(super) struct OutgoingBody {
    pub(super) body: Body,
    pub(super) pulse: SentBytes,
}

/// Counts the bytes of a body that went out, which shows that it is moving.
#[derive(Debug, Clone, Default)]
pub(super) struct SentBytes(Arc<AtomicU64>);

impl SentBytes {
    pub(super) fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl<'a> RegistryRequest<'a> {
    pub(super) fn new(method: Method, url: Url, right: RegistryRight, about: &'a str) -> RegistryRequest<'a> {
        RegistryRequest {
            method,
            url,
            right,
            hops: RedirectPolicy::None,
            headers: HeaderMap::new(),
            body: None,
            silence: None,
            about,
        }
    }

    pub(super) fn hops(mut self, hops: RedirectPolicy) -> RegistryRequest<'a> {
        self.hops = hops;
        self
    }

    pub(super) fn header(
        mut self,
        name: reqwest::header::HeaderName,
        value: HeaderValue,
    ) -> RegistryRequest<'a> {
        self.headers.insert(name, value);
        self
    }

    pub(super) fn accept(self, kinds: &'static str) -> RegistryRequest<'a> {
        self.header(ACCEPT, HeaderValue::from_static(kinds))
    }
}

impl RegistryClient {
    /// Sends the request, and once more with a login if the registry asks for one. Every answer except success is an
    /// error.
    pub(super) async fn ask(
        &self,
        home: &RepositoryClient,
        ask: &RegistryRequest<'_>,
    ) -> Result<Response, AttemptError> {
        let mut pass = self.inner.passes.lock_pins(home, ask.right);
        let mut shown_fresh = false;
        loop {
            let answer = match self.follow(home, ask, pass.as_ref()).await {
                Ok(answer) => answer,
                Err(trouble) => return Err(home.note_unreachable(trouble)),
            };
            home.answered.store(true, Ordering::Relaxed);
            let ours = same_origin(answer.url(), &home.base);
            if answer.status() != StatusCode::UNAUTHORIZED || !ours {
                return self.check_status(home, ask, answer).await;
            }
            if shown_fresh {
                self.inner.passes.forget(home, ask.right);
                return self.check_status(home, ask, answer).await;
            }
            pass = Some(self.obtain(home, ask.right, &answer).await?);
            shown_fresh = true;
        }
    }

    /// Sends, and goes where the answers lead as far as they may.
    async fn follow(
        &self,
        home: &RepositoryClient,
        ask: &RegistryRequest<'_>,
        pass: Option<&HeaderValue>,
    ) -> Result<Response, AttemptError> {
        let mut url = ask.url.clone();
        let mut reach = RequestReach::Anywhere;
        for _ in 0..=REDIRECTS_MAX {
            let ours = same_origin(&url, &home.base);
            let reached = if ours { RequestReach::Anywhere } else { reach };
            let mut headers = ask.headers.clone();
            if let Some(pass) = pass.filter(|_| ours) {
                headers.insert(AUTHORIZATION, pass.clone());
            }
            let answer = self.send(ask, &url, reached, headers).await?;
            if !is_redirect(answer.status()) {
                return Ok(answer);
            }
            if ours {
                reach = self.inner.clients.reach_from(&answer);
            }
            let location = answer.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let hop = self.inner.clients.hop(&url, location.unwrap_or("//"), ask.hops, reach);
            url = hop.map_err(|why| AttemptError::contradiction(&shown_host(&url), why.to_string()))?;
        }
        Err(AttemptError::contradiction(
            &home.host,
            format!("it redirected us more than {REDIRECTS_MAX} times"),
        ))
    }

    /// One request to one host, whose head must come in time.
    pub(super) async fn send(
        &self,
        ask: &RegistryRequest<'_>,
        url: &Url,
        reach: RequestReach,
        headers: HeaderMap,
    ) -> Result<Response, AttemptError> {
        let failed = |cause| unreachable(url, cause);
        let client = self.inner.clients.get(url, reach).map_err(failed)?;
        let mut request = client.request(ask.method.clone(), url.clone()).headers(headers);
        // Compressed contents have another digest than the requested one.
        request = request.header(ACCEPT_ENCODING, "identity");
        let mut pulse = SentBytes::default();
        if let Some(body) = ask.body {
            let sent = body();
            pulse = sent.pulse;
            request = request.body(sent.body);
        }
        let silence = ask.silence.unwrap_or(self.inner.terms.silence);
        alive(silence, &pulse, request.send()).await.ok_or_else(|| stalled(url, silence))?.map_err(failed)
    }

    /// Turns what is no success into words.
    async fn check_status(
        &self,
        home: &RepositoryClient,
        ask: &RegistryRequest<'_>,
        answer: Response,
    ) -> Result<Response, AttemptError> {
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let host = shown_host(answer.url());
        let ours = same_origin(answer.url(), &home.base);
        let again = retry_advice(answer.headers());
        let why = match self.read_bounded(answer, REASON_MAX).await {
            Ok(Some(body)) => reason(&body, status),
            Ok(None) | Err(_) => reason(&[], status),
        };
        let denied = |why| RegistryError::Denied { host: home.host.clone(), why }.into();
        let refused = |why| RegistryError::Refused { host: host.clone(), status: status.as_u16(), why };
        Err(match status.as_u16() {
            // Elsewhere it is an address that was good for a while only: the registry gives another.
            _any if !ours => AttemptError { error: refused(why), again },
            401 | 403 => denied(why),
            404 => RegistryError::NotFound { reference: ask.about.to_owned() }.into(),
            408 | 429 | 500..=599 => AttemptError { error: refused(why), again },
            _final => refused(why).into(),
        })
    }

    /// The body of an answer that must not be large, regardless of its announced length; `None` if it is too large.
    pub(super) async fn read_bounded(
        &self,
        answer: Response,
        max: u64,
    ) -> Result<Option<Vec<u8>>, AttemptError> {
        if answer.content_length().is_some_and(|length| length > max) {
            return Ok(None);
        }
        let url = answer.url().clone();
        let terms = &self.inner.terms;
        let until = Instant::now() + terms.whole;
        let mut body = answer.bytes_stream();
        let mut whole = Vec::new();
        loop {
            let within = terms.silence.min(until.saturating_duration_since(Instant::now()));
            let piece = tokio::time::timeout(within, body.next()).await.map_err(|_| stalled(&url, within))?;
            match piece {
                None => return Ok(Some(whole)),
                Some(Ok(piece)) if piece.len() as u64 > max - whole.len() as u64 => return Ok(None),
                Some(Ok(piece)) => whole.extend_from_slice(&piece),
                Some(Err(cause)) => return Err(unreachable(&url, cause)),
            }
        }
    }
}

/// Waits for an answer as long as the body that asks for it is moving.
async fn alive<T>(silence: Duration, pulse: &SentBytes, answer: impl Future<Output = T>) -> Option<T> {
    tokio::pin!(answer);
    loop {
        let before = pulse.count();
        match tokio::time::timeout(silence, &mut answer).await {
            Ok(answer) => return Some(answer),
            Err(_) if pulse.count() == before => return None,
            Err(_) => {}
        }
    }
}

pub(super) fn stalled(url: &Url, silence: Duration) -> AttemptError {
    AttemptError::passing(RegistryError::Stalled { host: shown_host(url), waited_s: silence.as_secs() })
}

pub(super) fn unreachable(url: &Url, cause: reqwest::Error) -> AttemptError {
    let host = shown_host(url);
    if let Some(why) = net::refused_hop(&cause) {
        return AttemptError::contradiction(&host, why.to_string());
    }
    // Addresses of blobs on other hosts are signed: anyone who has one can read the blob.
    let cause = cause.without_url();
    let passing = !cause.is_builder();
    let error = RegistryError::Unreachable { host, cause: Box::new(cause) };
    if passing { AttemptError::passing(error) } else { error.into() }
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// The reason that an error body gives, fit to be shown.
fn reason(body: &[u8], status: StatusCode) -> String {
    #[derive(Deserialize)]
    struct RegistryErrors {
        errors: Vec<RegistryErrorItem>,
    }
    #[derive(Deserialize)]
    struct RegistryErrorItem {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let told = serde_json::from_slice::<RegistryErrors>(body)
        .ok()
        .and_then(|errors| errors.errors.into_iter().next());
    let told = told.map(|one| if one.message.is_empty() { one.code } else { one.message });
    let told = told.map(|text| plain(&text)).filter(|text| !text.is_empty());
    told.unwrap_or_else(|| status.canonical_reason().unwrap_or("without a reason").to_lowercase())
}

/// Letters of a stranger, with those spelled out that do something to a terminal.
pub(super) fn plain(text: &str) -> String {
    text.trim().chars().take(REASON_SHOWN).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{RegistryLogin, RegistryLogins};
    use super::*;

    struct NoBody;

    impl RegistryLogins for NoBody {
        fn login(&self, _host: &str) -> Result<Option<RegistryLogin>, String> {
            Ok(None)
        }
    }

    #[tokio::test]
    async fn nobody_at_the_first_contact_is_tried_once_more_and_nobody_later_as_often_as_others() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let closed = listener.local_addr().unwrap().to_string();
        drop(listener);
        let registries =
            RegistryClient::with_terms(Arc::new(NoBody), crate::registry::RegistryTerms::default());
        let remote = RemoteImage::read(&format!("{closed}/thing:v1")).unwrap().unwrap();
        for (home, again) in [
            (RepositoryClient::of(&remote), RetryAdvice::Once),
            (RepositoryClient::known(&remote), RetryAdvice::Soon),
        ] {
            let home = home.unwrap();
            let ask = RegistryRequest::new(Method::GET, home.manifest("v1"), RegistryRight::Pull, "thing");
            let trouble = registries.ask(&home, &ask).await.unwrap_err();
            assert_eq!((trouble.error.code(), trouble.again), ("registry.unreachable", again));
        }
    }
}
