//! Pushes images from the store to a registry: blobs first, the tag last.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION, RANGE};
use reqwest::{Body, Method, Response, Url};
use tokio::sync::mpsc;

use super::auth::RegistryRight;
use super::error::{AttemptError, RegistryError, RetryAdvice};
use super::http::{OutgoingBody, RegistryRequest, RepositoryClient, SentBytes};
use super::net::{RedirectPolicy, RequestReach, shown_host};
use super::pull::{CONTENT_DIGEST, DEPTH_MAX, DOCUMENTS, DOCUMENTS_MAX, add_parts, agrees, on_disk};
use super::retry::RetryAttempts;
use super::{AT_ONCE, RegistryClient, TransferWatch};
use crate::oci::{BadImage, Descriptor, MANIFEST_MAX, ManifestDocument};
use crate::{BlobError, Blobs, Digest, ImageVersion, RemoteImage};

/// Bytes of a blob that are read at once.
const PIECE: usize = 128 << 10;
/// Pieces that wait to be sent.
const PIECES_WAITING: usize = 2;
/// Bytes that are sent with one request as long as none was cut, and what a registry may ask for as the least.
const CHUNK_MAX: u64 = 1 << 30;
const CHUNK_MIN: HeaderName = HeaderName::from_static("oci-chunk-min-length");
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
const CONTENT_RANGE: HeaderName = reqwest::header::CONTENT_RANGE;

impl RegistryClient {
    /// Pushes an image with everything that it names, and then its name. Returns the bytes that had to be sent.
    pub async fn push(
        &self,
        blobs: &Blobs,
        image: &Descriptor,
        to: &RemoteImage,
        watch: Arc<dyn TransferWatch>,
    ) -> Result<u64, RegistryError> {
        let home = RepositoryClient::of(to)?;
        let push = ImagePush { registries: self, home, blobs, watch, in_chunks: AtomicBool::new(false) };
        let tree = push.tree(image).await?;
        // Nothing of it is collected while it is on its way.
        let pins = blobs.pins();
        for part in tree.blobs.values().chain(tree.documents.iter().map(|(part, _)| part)) {
            if !blobs.has(&pins, &part.digest, part.size)? {
                return Err(BlobError::Missing { digest: part.digest }.into());
            }
        }
        let sending = stream::iter(tree.blobs.into_values()).map(|part| push.blob(part));
        let mut sent: u64 = sending.buffer_unordered(AT_ONCE).try_fold(0, async |a, b| Ok(a + b)).await?;
        for (part, bytes) in tree.documents.into_iter().rev() {
            let by_name = match &to.version {
                ImageVersion::Tag(tag) if part.digest == image.digest => Some(tag.as_str()),
                ImageVersion::Tag(_) | ImageVersion::Digest(_) => None,
            };
            sent += push.document(&part, bytes, by_name, &to.to_string()).await?;
        }
        Ok(sent)
    }
}

/// One image on its way out.
struct ImagePush<'a> {
    registries: &'a RegistryClient,
    home: RepositoryClient,
    blobs: &'a Blobs,
    watch: Arc<dyn TransferWatch>,
    /// Whether a request did not get through. Until then a blob goes with one: registries write down how far they are
    /// after each, and take a fifth longer for many. From then on it goes in chunks, so that no more than one of them is
    /// lost when the next is cut.
    in_chunks: AtomicBool,
}

/// Everything that an image is made of.
struct ImageTree {
    blobs: BTreeMap<Digest, Descriptor>,
    /// Each document precedes those that it names.
    documents: Vec<(Descriptor, Bytes)>,
}

/// An open upload, which continues at `at`.
struct BlobUpload {
    url: Url,
    at: u64,
    chunk: u64,
}

impl ImagePush<'_> {
    async fn tree(&self, image: &Descriptor) -> Result<ImageTree, RegistryError> {
        let mut tree = ImageTree { blobs: BTreeMap::new(), documents: Vec::new() };
        let mut level = vec![image.clone()];
        for _ in 0..=DEPTH_MAX {
            let mut below = BTreeMap::new();
            for part in std::mem::take(&mut level) {
                let (store, digest) = (self.blobs.clone(), part.digest);
                let bytes = on_disk(move || store.read(&digest, MANIFEST_MAX)).await?;
                let document = ManifestDocument::read(&bytes)?;
                match &document {
                    ManifestDocument::Manifest(_) => {
                        add_parts(&mut tree.blobs, &document, part.platform.as_ref())
                    }
                    ManifestDocument::Index(_) => add_parts(&mut below, &document, None),
                }
                let kind = document.media_type().to_owned();
                tree.documents.push((Descriptor { media_type: kind, ..part }, bytes.into()));
                if tree.documents.len() + below.len() > DOCUMENTS_MAX {
                    return Err(BadImage::new(format!("it has more than {DOCUMENTS_MAX} manifests")).into());
                }
            }
            if below.is_empty() {
                return Ok(tree);
            }
            level = below.into_values().collect();
        }
        Err(BadImage::new(format!("its indexes are nested more than {DEPTH_MAX} deep")).into())
    }

    /// Puts a document there, by its name or, unless it is there, by its digest. Returns the bytes that were sent.
    async fn document(
        &self,
        part: &Descriptor,
        bytes: Bytes,
        by_name: Option<&str>,
        about: &str,
    ) -> Result<u64, RegistryError> {
        let reference = by_name.map_or_else(|| part.digest.to_string(), str::to_owned);
        let url = self.home.manifest(&reference);
        let mut tries = RetryAttempts::new(&self.registries.inner.terms);
        loop {
            let done = match by_name {
                Some(_) => self.put_document(part, &bytes, &url, about).await,
                None => match self.is_there(&url, RedirectPolicy::SameOrigin, about).await {
                    Ok(true) => {
                        self.watch.there(part);
                        return Ok(0);
                    }
                    Ok(false) => self.put_document(part, &bytes, &url, about).await,
                    Err(trouble) => Err(trouble),
                },
            };
            match done {
                Ok(()) => return Ok(bytes.len() as u64),
                Err(trouble) => tries.wait_for_retry(trouble).await?,
            }
        }
    }

    async fn put_document(
        &self,
        part: &Descriptor,
        bytes: &Bytes,
        url: &Url,
        about: &str,
    ) -> Result<(), AttemptError> {
        self.watch.planned(part);
        let kind = HeaderValue::from_str(&part.media_type);
        let kind = kind.map_err(|_| BadImage::new("its media type cannot be sent"))?;
        let body = || OutgoingBody { body: bytes.clone().into(), pulse: SentBytes::default() };
        let mut ask = RegistryRequest::new(Method::PUT, url.clone(), RegistryRight::Push, about)
            .header(CONTENT_TYPE, kind);
        ask.body = Some(&body);
        let answer = self.registries.ask(&self.home, &ask).await?;
        agrees(&self.home, answer.headers().get(CONTENT_DIGEST), part.digest)?;
        self.watch.moved(&part.digest, part.size);
        Ok(())
    }

    async fn is_there(&self, url: &Url, hops: RedirectPolicy, about: &str) -> Result<bool, AttemptError> {
        let ask = RegistryRequest::new(Method::HEAD, url.clone(), RegistryRight::Push, about);
        match self.registries.ask(&self.home, &ask.accept(DOCUMENTS).hops(hops)).await {
            Ok(_) => Ok(true),
            Err(AttemptError { error: RegistryError::NotFound { .. }, .. }) => Ok(false),
            Err(trouble) => Err(trouble),
        }
    }

    /// Sends one blob, unless it is there. Returns the bytes that were sent.
    async fn blob(&self, part: Descriptor) -> Result<u64, RegistryError> {
        let about = format!("{}/{}", self.home.host, self.home.repository);
        let mut tries = RetryAttempts::new(&self.registries.inner.terms);
        let mut upload = None;
        let mut sent = 0;
        loop {
            match self.blob_once(&part, &about, &mut upload, &mut sent, &mut tries).await {
                Ok(()) => return Ok(sent),
                Err(trouble) => tries.wait_for_retry(trouble).await?,
            }
        }
    }

    /// Starts or resumes an upload, as far as possible.
    async fn blob_once(
        &self,
        part: &Descriptor,
        about: &str,
        upload: &mut Option<BlobUpload>,
        sent: &mut u64,
        tries: &mut RetryAttempts<'_>,
    ) -> Result<(), AttemptError> {
        if let Some(left_off) = upload
            && !self.look_up(left_off, part, about).await?
        {
            *upload = None;
        }
        let going = match upload {
            Some(going) => going,
            None => {
                // Also if the registry no longer knows the upload: we may have missed its last answer.
                if self.is_there(&self.home.blob(&part.digest), RedirectPolicy::Elsewhere, about).await? {
                    self.watch.there(part);
                    return Ok(());
                }
                self.watch.planned(part);
                upload.insert(self.begin(about).await?)
            }
        };
        let done = self.send_rest(part, about, going, sent, tries).await;
        if done.as_ref().is_err_and(|trouble| is_lost(&trouble.error)) {
            *upload = None;
        }
        done
    }

    async fn send_rest(
        &self,
        part: &Descriptor,
        about: &str,
        upload: &mut BlobUpload,
        sent: &mut u64,
        tries: &mut RetryAttempts<'_>,
    ) -> Result<(), AttemptError> {
        while upload.at < part.size {
            let before = upload.at;
            self.chunk(part, about, upload).await?;
            *sent += upload.at - before;
            tries.reached(upload.at);
            self.watch.moved(&part.digest, upload.at);
        }
        self.finish(part, about, upload).await?;
        self.watch.moved(&part.digest, part.size);
        Ok(())
    }

    async fn begin(&self, about: &str) -> Result<BlobUpload, AttemptError> {
        let mut ask = RegistryRequest::new(Method::POST, self.home.uploads(), RegistryRight::Push, about);
        let body = || OutgoingBody { body: Body::from(""), pulse: SentBytes::default() };
        ask.body = Some(&body);
        let answer = self.registries.ask(&self.home, &ask).await?;
        let url = self.location(&answer)?.ok_or_else(|| {
            AttemptError::contradiction(&self.home.host, "it starts an upload without a location")
        })?;
        let least = answer.headers().get(&CHUNK_MIN).and_then(|value| value.to_str().ok()?.parse().ok());
        let chunk = self.registries.inner.terms.chunk.max(least.unwrap_or(0).min(CHUNK_MAX));
        Ok(BlobUpload { url, at: 0, chunk })
    }

    /// Finds out how far an upload is that was cut, or that the registry knows nothing of it.
    async fn look_up(
        &self,
        upload: &mut BlobUpload,
        part: &Descriptor,
        about: &str,
    ) -> Result<bool, AttemptError> {
        let ask = RegistryRequest::new(Method::GET, upload.url.clone(), RegistryRight::Push, about);
        let answer = match self.registries.ask(&self.home, &ask).await {
            Ok(answer) => answer,
            // Some take an upload that was cut for none.
            Err(AttemptError { error, again: RetryAdvice::Never }) if is_lost(&error) => return Ok(false),
            Err(trouble) => return Err(trouble),
        };
        if let Some(url) = self.location(&answer)? {
            upload.url = url;
        }
        upload.at = received_bytes(answer.headers()).unwrap_or(0);
        Ok(upload.at <= part.size)
    }

    /// Sends the next bytes of an upload.
    async fn chunk(
        &self,
        part: &Descriptor,
        about: &str,
        upload: &mut BlobUpload,
    ) -> Result<(), AttemptError> {
        let most = if self.in_chunks.load(Ordering::Relaxed) { upload.chunk } else { CHUNK_MAX };
        let (begin, length) = (upload.at, most.min(part.size - upload.at));
        let range = HeaderValue::from_str(&format!("{begin}-{}", begin + length - 1));
        let range = range.map_err(|_| BadImage::new("its size cannot be sent"))?;
        let failed = Arc::new(Mutex::new(None));
        let body = || self.send_blob(part.digest, begin, length, &failed);
        let mut ask = RegistryRequest::new(Method::PATCH, upload.url.clone(), RegistryRight::Push, about)
            .header(CONTENT_TYPE, OCTETS)
            .header(CONTENT_LENGTH, HeaderValue::from(length))
            .header(CONTENT_RANGE, range);
        ask.body = Some(&body);
        if length > upload.chunk {
            // A proxy before the registry may forward all of it before it answers.
            ask.silence = Some(self.registries.inner.terms.whole);
        }
        let answer = self.registries.ask(&self.home, &ask).await;
        // When our own end failed, what the registry makes of it does not count.
        if let Some(error) = failed.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(AttemptError::from(error));
        }
        let answer = answer.map_err(|trouble| {
            self.in_chunks.store(true, Ordering::Relaxed);
            // A proxy before the registry accepts less at once.
            if length > upload.chunk && is_too_large(&trouble.error) {
                return AttemptError::passing(trouble.error);
            }
            restart_upload(trouble)
        })?;
        let at = match received_bytes(answer.headers()) {
            // A single byte.
            Some(0) if begin + length == 1 => 1,
            Some(at) => at,
            None => begin + length,
        };
        if at <= begin || at > begin + length {
            let why = format!("sent {length} bytes from {begin} on, it says that it has {at}");
            return Err(AttemptError::contradiction(&self.home.host, why));
        }
        if let Some(url) = self.location(&answer)? {
            upload.url = url;
        }
        upload.at = at;
        Ok(())
    }

    async fn finish(&self, part: &Descriptor, about: &str, upload: &BlobUpload) -> Result<(), AttemptError> {
        let mut url = upload.url.clone();
        url.query_pairs_mut().append_pair("digest", &part.digest.to_string());
        let body = || OutgoingBody { body: Body::from(""), pulse: SentBytes::default() };
        let mut ask =
            RegistryRequest::new(Method::PUT, url, RegistryRight::Push, about).header(CONTENT_TYPE, OCTETS);
        ask.body = Some(&body);
        // Some read or copy all of it now, before they answer.
        ask.silence = Some(self.registries.inner.terms.whole);
        match self.registries.ask(&self.home, &ask).await {
            Ok(answer) => agrees(&self.home, answer.headers().get(CONTENT_DIGEST), part.digest),
            Err(AttemptError { error: error @ RegistryError::Refused { status: 400, .. }, .. }) => {
                // The registry may be right, and our contents damaged.
                let (store, digest) = (self.blobs.clone(), part.digest);
                on_disk(move || store.verify(&digest)).await?;
                Err(error.into())
            }
            Err(trouble) => Err(restart_upload(trouble)),
        }
    }

    /// A part of a blob as a body, read while it is sent. What goes wrong with reading is left in `failed`.
    fn send_blob(
        &self,
        digest: Digest,
        begin: u64,
        length: u64,
        failed: &Arc<Mutex<Option<BlobError>>>,
    ) -> OutgoingBody {
        let (pieces, waiting) = mpsc::channel::<Bytes>(PIECES_WAITING);
        let (store, failed) = (self.blobs.clone(), Arc::clone(failed));
        // It ends when the receiver is dropped.
        drop(tokio::task::spawn_blocking(move || {
            if let Err(error) = read_pieces(&store, &digest, begin, length, &pieces) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        }));
        let pulse = SentBytes::default();
        let (counted, watch) = (pulse.clone(), self.watch.clone());
        let body = stream::unfold((waiting, begin), move |(mut waiting, at)| {
            let (pulse, watch) = (counted.clone(), watch.clone());
            async move {
                let piece = waiting.recv().await?;
                pulse.add(piece.len() as u64);
                let at = at + piece.len() as u64;
                watch.moved(&digest, at);
                Some((Ok::<_, io::Error>(piece), (waiting, at)))
            }
        });
        OutgoingBody { body: Body::wrap_stream(body), pulse }
    }

    /// The address of the next chunk: only the registry itself.
    fn location(&self, answer: &Response) -> Result<Option<Url>, AttemptError> {
        let Some(location) = answer.headers().get(LOCATION) else { return Ok(None) };
        let hop = self.registries.inner.clients.hop(
            answer.url(),
            location.to_str().unwrap_or("//"),
            RedirectPolicy::SameOrigin,
            RequestReach::Anywhere,
        );
        hop.map(Some).map_err(|why| AttemptError::contradiction(&shown_host(answer.url()), why.to_string()))
    }
}

/// An upload with an unexpected offset is restarted.
fn restart_upload(trouble: AttemptError) -> AttemptError {
    if is_lost(&trouble.error) { AttemptError::passing(trouble.error) } else { trouble }
}

fn is_lost(error: &RegistryError) -> bool {
    matches!(error, RegistryError::NotFound { .. } | RegistryError::Refused { status: 416, .. })
}

fn is_too_large(error: &RegistryError) -> bool {
    matches!(error, RegistryError::Refused { status: 413, .. })
}

/// Reads `Range: 0-LAST` as the number of received bytes. Some registries write `0-0` for nothing, which also means
/// one byte: bytes that are sent twice are refused, and then the upload is restarted.
fn received_bytes(headers: &HeaderMap) -> Option<u64> {
    let text = headers.get(RANGE)?.to_str().ok()?.trim();
    let (first, last) = text.strip_prefix("bytes=").unwrap_or(text).split_once('-')?;
    let last: u64 = last.parse().ok()?;
    (first == "0").then(|| if last == 0 { 0 } else { last.saturating_add(1) })
}

fn read_pieces(
    store: &Blobs,
    digest: &Digest,
    begin: u64,
    length: u64,
    pieces: &mpsc::Sender<Bytes>,
) -> Result<(), BlobError> {
    let unreadable = |_| BlobError::Damaged { digest: *digest };
    let (mut file, _) = store.open_blob(digest)?;
    file.seek(SeekFrom::Start(begin)).map_err(unreadable)?;
    let mut left = length;
    while left > 0 {
        let mut piece = vec![0; PIECE.min(usize::try_from(left).unwrap_or(PIECE))];
        file.read_exact(&mut piece).map_err(unreadable)?;
        left -= piece.len() as u64;
        if pieces.blocking_send(piece.into()).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_far_an_upload_is_is_read_in_both_spellings() {
        let read = |text: &'static str| {
            received_bytes(&HeaderMap::from_iter([(RANGE, HeaderValue::from_static(text))]))
        };
        assert_eq!([read("0-9"), read("bytes=0-9"), read("0-0")], [Some(10), Some(10), Some(0)]);
        for bad in ["", "9", "1-9", "0-", "-9", "0-x"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(read("0-18446744073709551615"), Some(u64::MAX));
    }
}
