//! Pulls images from a registry into the store.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::header::{HeaderValue, RANGE};
use reqwest::{Method, Response};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::auth::RegistryRight;
use super::blob_answer::{PullPace, begins_at};
use super::error::{AttemptError, RegistryError};
use super::http::{RegistryRequest, RepositoryClient, stalled, unreachable};
use super::net::RedirectPolicy;
use super::retry::RetryAttempts;
use super::{AT_ONCE, RegistryClient, TransferWatch};
use crate::oci::{BadImage, Descriptor, MANIFEST_MAX, ManifestDocument, Platform};
use crate::{BlobError, Blobs, Digest, ImageVersion, IncomingBlob, Pins, RemoteImage};

pub(super) const DOCUMENTS: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json";
pub(super) const CONTENT_DIGEST: &str = "docker-content-digest";
/// Indexes that an index may lead through before there are only manifests.
pub(super) const DEPTH_MAX: usize = 3;
/// Manifests and indexes of one image.
pub(super) const DOCUMENTS_MAX: usize = 256;
/// Pieces of one blob that wait for the disk.
const PIECES_WAITING: usize = 4;

impl RegistryClient {
    /// The manifest or index that a reference leads to, checked and in the store.
    pub async fn resolve(
        &self,
        blobs: &Blobs,
        pins: &Pins,
        remote: &RemoteImage,
    ) -> Result<(Descriptor, ManifestDocument), RegistryError> {
        let home = RepositoryClient::of(remote)?;
        let (reference, wanted) = match &remote.version {
            ImageVersion::Tag(tag) => (tag.clone(), None),
            ImageVersion::Digest(digest) => (digest.to_string(), Some(*digest)),
        };
        let bytes = self.document(&home, &reference, wanted, &remote.to_string()).await?;
        let size = bytes.len() as u64;
        let (digest, document) = self.keep(blobs, pins, bytes).await?;
        let descriptor = Descriptor::new(document.media_type(), digest, size);
        Ok((descriptor, document))
    }

    /// Everything that a document names, in the store when this returns; with what its manifests name, for an index.
    ///
    /// Dropping this aborts the pull. The next pull resumes from the received bytes.
    pub async fn fetch(
        &self,
        blobs: &Blobs,
        pins: &Pins,
        remote: &RemoteImage,
        document: &ManifestDocument,
        watch: Arc<dyn TransferWatch>,
    ) -> Result<(), RegistryError> {
        let pull = ImagePull { registries: self, home: RepositoryClient::known(remote)?, blobs, pins, watch };
        let parts = pull.documents(document).await?;
        pull.all_blobs(parts).await
    }

    /// Reads a document and puts it into the store.
    async fn keep(
        &self,
        blobs: &Blobs,
        pins: &Pins,
        bytes: Vec<u8>,
    ) -> Result<(Digest, ManifestDocument), RegistryError> {
        let (document, bytes) = self.read_document(bytes).await?;
        let size = bytes.len() as u64;
        let (store, held) = (blobs.clone(), blobs.pins());
        let (digest, held) = on_disk(move || Ok((store.put(&held, &bytes)?, held))).await?;
        // From here on the caller's pins hold it.
        blobs.has(pins, &digest, size)?;
        drop(held);
        Ok((digest, document))
    }

    async fn read_document(&self, bytes: Vec<u8>) -> Result<(ManifestDocument, Vec<u8>), RegistryError> {
        let (done, read) = tokio::sync::oneshot::channel();
        // The receiver may be gone.
        let reading = Box::new(move || drop(done.send((ManifestDocument::read(&bytes), bytes))));
        drop(tokio::task::spawn_blocking((self.inner.terms.carry)(reading)));
        let (document, bytes) = read.await.map_err(|_| BadImage::new("reading it was interrupted"))?;
        Ok((document?, bytes))
    }

    /// The bytes of a document, which have the digest that was wanted.
    async fn document(
        &self,
        home: &RepositoryClient,
        reference: &str,
        wanted: Option<Digest>,
        about: &str,
    ) -> Result<Vec<u8>, RegistryError> {
        let mut tries = RetryAttempts::new(&self.inner.terms);
        loop {
            match self.document_once(home, reference, wanted, about).await {
                Ok(bytes) => return Ok(bytes),
                Err(trouble) => tries.wait_for_retry(trouble).await?,
            }
        }
    }

    async fn document_once(
        &self,
        home: &RepositoryClient,
        reference: &str,
        wanted: Option<Digest>,
        about: &str,
    ) -> Result<Vec<u8>, AttemptError> {
        let ask = RegistryRequest::new(Method::GET, home.manifest(reference), RegistryRight::Pull, about);
        let answer = self.ask(home, &ask.accept(DOCUMENTS).hops(RedirectPolicy::SameOrigin)).await?;
        let claimed = answer.headers().get(CONTENT_DIGEST).cloned();
        let bytes = self.read_bounded(answer, MANIFEST_MAX).await?.ok_or_else(too_large)?;
        let found = Digest::of(&bytes);
        if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
            return Err(AttemptError::contradiction(
                &home.host,
                format!("asked for {wanted} it sent {found}"),
            ));
        }
        agrees(home, claimed.as_ref(), found)?;
        Ok(bytes)
    }
}

fn too_large() -> BadImage {
    BadImage::new(format!("its manifest is larger than the {MANIFEST_MAX} bytes that one may have"))
}

/// What a registry says about a digest must be so.
pub(super) fn agrees(
    home: &RepositoryClient,
    claimed: Option<&HeaderValue>,
    found: Digest,
) -> Result<(), AttemptError> {
    let Some(claimed) = claimed else { return Ok(()) };
    let text = claimed.to_str().unwrap_or_default();
    // Another algorithm is a claim that is not checked here.
    let other_kind = text.starts_with("sha512:") || text.starts_with("sha384:");
    if other_kind || text.parse() == Ok(found) {
        return Ok(());
    }
    Err(AttemptError::contradiction(&home.host, format!("it gives {found} another digest")))
}

/// Runs what waits for the disk where it may.
pub(super) async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BlobError> + Send + 'static,
) -> Result<T, BlobError> {
    let cut = |cause: tokio::task::JoinError| BlobError::Io { path: Default::default(), cause: cause.into() };
    tokio::task::spawn_blocking(work).await.map_err(cut)?
}

/// Adds what a document names. Blobs of a single platform are marked with it, for progress; blobs of several are not.
pub(super) fn add_parts(
    parts: &mut BTreeMap<Digest, Descriptor>,
    document: &ManifestDocument,
    platform: Option<&Platform>,
) {
    for part in document.parts() {
        let platform = part.platform.as_ref().or(platform);
        let known = parts.entry(part.digest);
        let known = known.or_insert_with(|| Descriptor { platform: platform.cloned(), ..part.clone() });
        if known.platform.as_ref() != platform {
            known.platform = None;
        }
    }
}

/// One image on its way here.
struct ImagePull<'a> {
    registries: &'a RegistryClient,
    home: RepositoryClient,
    blobs: &'a Blobs,
    pins: &'a Pins,
    watch: Arc<dyn TransferWatch>,
}

impl ImagePull<'_> {
    /// Fetches the documents below one, and returns the blobs that all of them name.
    async fn documents(&self, top: &ManifestDocument) -> Result<BTreeMap<Digest, Descriptor>, RegistryError> {
        let mut found = BTreeMap::new();
        let mut count = 0;
        let mut level = vec![(None, top.clone())];
        for _ in 0..=DEPTH_MAX {
            let mut below = BTreeMap::new();
            for (platform, document) in &level {
                match document {
                    ManifestDocument::Manifest(_) => add_parts(&mut found, document, platform.as_ref()),
                    ManifestDocument::Index(_) => add_parts(&mut below, document, None),
                }
            }
            if below.is_empty() {
                return Ok(found);
            }
            count += below.len();
            if count > DOCUMENTS_MAX {
                return Err(BadImage::new(format!("it has more than {DOCUMENTS_MAX} manifests")).into());
            }
            let fetched = stream::iter(below.into_values()).map(async |part| {
                let platform = part.platform.clone();
                Ok::<_, RegistryError>((platform, self.document(part).await?))
            });
            level = fetched.buffer_unordered(AT_ONCE).try_collect().await?;
        }
        Err(BadImage::new(format!("its indexes are nested more than {DEPTH_MAX} deep")).into())
    }

    async fn document(&self, part: Descriptor) -> Result<ManifestDocument, RegistryError> {
        if part.size > MANIFEST_MAX {
            return Err(too_large().into());
        }
        if let Some(bytes) = self.document_here(&part).await? {
            self.watch.there(&part);
            return Ok(self.registries.read_document(bytes).await?.0);
        }
        self.watch.planned(&part);
        let about = format!("{}/{}@{}", self.home.host, self.home.repository, part.digest);
        let reference = part.digest.to_string();
        let bytes = self.registries.document(&self.home, &reference, Some(part.digest), &about).await?;
        if bytes.len() as u64 != part.size {
            let why = format!("{} has {} bytes, not {}", part.digest, bytes.len(), part.size);
            return Err(BadImage::new(why).into());
        }
        let (_, document) = self.registries.keep(self.blobs, self.pins, bytes).await?;
        self.watch.moved(&part.digest, part.size);
        Ok(document)
    }

    /// What is in the store of it. What is damaged there is not.
    async fn document_here(&self, part: &Descriptor) -> Result<Option<Vec<u8>>, RegistryError> {
        if !self.blobs.has(self.pins, &part.digest, part.size)? {
            return Ok(None);
        }
        let (store, digest) = (self.blobs.clone(), part.digest);
        match on_disk(move || store.read(&digest, MANIFEST_MAX)).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(BlobError::Damaged { .. } | BlobError::Missing { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn all_blobs(&self, parts: BTreeMap<Digest, Descriptor>) -> Result<(), RegistryError> {
        let mut missing = Vec::new();
        for part in parts.into_values() {
            if self.blobs.has(self.pins, &part.digest, part.size)? {
                self.watch.there(&part);
            } else {
                self.watch.planned(&part);
                missing.push(part);
            }
        }
        let fetched = stream::iter(missing).map(|part| self.blob(part));
        fetched.buffer_unordered(AT_ONCE).try_collect().await
    }

    /// Fetches one blob, or finds that another transfer just did.
    async fn blob(&self, part: Descriptor) -> Result<(), RegistryError> {
        let mut lied = false;
        loop {
            let Some(incoming) = self.take_turn(&part).await? else { return Ok(()) };
            let whole = self.receive_blob(&part, incoming).await?;
            match on_disk(move || whole.finish()).await {
                Ok(()) => return Ok(()),
                Err(BlobError::Wrong { wanted, found }) if lied => {
                    let why = format!("what it sends for {wanted} is {found}");
                    return Err(RegistryError::Lies { host: self.home.host.clone(), why });
                }
                // The received bytes may come from another registry: one more attempt.
                Err(BlobError::Wrong { .. }) => lied = true,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Becomes the one who receives a blob, unless it is there by then.
    async fn take_turn(&self, part: &Descriptor) -> Result<Option<IncomingBlob>, RegistryError> {
        loop {
            let (store, held, wanted) = (self.blobs.clone(), self.blobs.pins(), part.clone());
            let taken = on_disk(move || store.receive(&held, &wanted.digest, wanted.size)).await;
            if !matches!(taken, Err(BlobError::Busy { .. })) {
                // The previous transfer may have completed it.
                return if self.is_here(part)? { Ok(None) } else { Ok(Some(taken?)) };
            }
            self.blobs.wait_until_free(&part.digest).await;
        }
    }

    /// Asks until all of a blob came, or it gets no further.
    async fn receive_blob(
        &self,
        part: &Descriptor,
        mut incoming: IncomingBlob,
    ) -> Result<IncomingBlob, RegistryError> {
        let mut tries = RetryAttempts::new(&self.registries.inner.terms);
        loop {
            let (back, done) = self.blob_once(part, incoming).await?;
            incoming = back;
            tries.reached(incoming.len());
            match done {
                Ok(()) => return Ok(incoming),
                Err(trouble) => tries.wait_for_retry(trouble).await?,
            }
        }
    }

    fn is_here(&self, part: &Descriptor) -> Result<bool, BlobError> {
        let here = self.blobs.has(self.pins, &part.digest, part.size)?;
        if here {
            self.watch.moved(&part.digest, part.size);
        }
        Ok(here)
    }

    /// Asks for what is missing of a blob, and gives back what there is of it then.
    async fn blob_once(
        &self,
        part: &Descriptor,
        mut incoming: IncomingBlob,
    ) -> Result<(IncomingBlob, Result<(), AttemptError>), RegistryError> {
        let at = incoming.len();
        self.watch.moved(&part.digest, at);
        if at == part.size {
            return Ok((incoming, Ok(())));
        }
        let about = format!("{}/{}@{}", self.home.host, self.home.repository, part.digest);
        let mut ask =
            RegistryRequest::new(Method::GET, self.home.blob(&part.digest), RegistryRight::Pull, &about);
        if at > 0
            && let Ok(range) = HeaderValue::from_str(&format!("bytes={at}-"))
        {
            ask = ask.header(RANGE, range);
        }
        let begun = match self.registries.ask(&self.home, &ask.hops(RedirectPolicy::Elsewhere)).await {
            Ok(answer) => begins_at(&answer, at, part.size).map(|begin| (begin, answer)),
            Err(trouble) => Err(trouble),
        };
        let unusable = match begun {
            Ok((begin, answer)) if begin == at => return self.write_answer(part, answer, incoming).await,
            Ok((_, answer)) => match incoming.restart() {
                Ok(()) => return self.write_answer(part, answer, incoming).await,
                Err(error) => error.into(),
            },
            // It has less than we have of it: one of us is wrong, so from the beginning.
            Err(AttemptError { error: error @ RegistryError::Refused { status: 416, .. }, .. }) if at > 0 => {
                match incoming.restart() {
                    Ok(()) => AttemptError::passing(error),
                    Err(error) => error.into(),
                }
            }
            Err(trouble) => trouble,
        };
        Ok((incoming, Err(unusable)))
    }

    /// Writes an answer behind what there is. No thread waits for the registry: however many are slow, others get on.
    async fn write_answer(
        &self,
        part: &Descriptor,
        answer: Response,
        incoming: IncomingBlob,
    ) -> Result<(IncomingBlob, Result<(), AttemptError>), RegistryError> {
        let (pieces, waiting) = mpsc::channel(PIECES_WAITING);
        let digest = part.digest;
        let writer = write(incoming, waiting, &*self.watch, &digest);
        // The writer ends when what passes the pieces on has, so both are waited for together.
        let (came, wrote) = tokio::join!(self.pass_on(part, answer, pieces), writer);
        let (incoming, wrote) = wrote?;
        let done = match wrote {
            Ok(()) if came.is_ok() && incoming.len() < part.size => {
                let why = format!("the answer ended after {} of {} bytes", incoming.len(), part.size);
                let cause = Box::new(io::Error::new(io::ErrorKind::UnexpectedEof, why));
                let error = RegistryError::Unreachable { host: self.home.host.clone(), cause };
                Err(AttemptError::passing(error))
            }
            Ok(()) => came,
            Err(BlobError::TooLarge { size }) => {
                let why = format!("it sends more than the {size} bytes of {digest}");
                Err(AttemptError::contradiction(&self.home.host, why))
            }
            Err(error) => Err(error.into()),
        };
        Ok((incoming, done))
    }

    async fn pass_on(
        &self,
        part: &Descriptor,
        answer: Response,
        pieces: mpsc::Sender<Bytes>,
    ) -> Result<(), AttemptError> {
        let url = answer.url().clone();
        let mut pace = PullPace::new(&self.registries.inner.terms);
        let mut left = part.size.saturating_add(1);
        let mut body = answer.bytes_stream();
        loop {
            let asked = Instant::now();
            let piece = tokio::time::timeout(pace.time_left(), body.next()).await;
            let Some(piece) = piece.map_err(|_| stalled(&url, pace.silence))? else { return Ok(()) };
            let piece = piece.map_err(|cause| unreachable(&url, cause))?;
            pace.count_bytes(piece.len() as u64, asked.elapsed());
            left = left.saturating_sub(piece.len() as u64);
            // The writer has stopped because it was too much, and reports that.
            if pieces.send(piece).await.is_err() || left == 0 {
                return Ok(());
            }
        }
    }
}

/// Writes pieces as they come, on a thread that may wait for the disk, and is there only while it does.
async fn write(
    mut incoming: IncomingBlob,
    mut waiting: mpsc::Receiver<Bytes>,
    watch: &dyn TransferWatch,
    digest: &Digest,
) -> Result<(IncomingBlob, Result<(), BlobError>), BlobError> {
    let mut pieces = Vec::new();
    while waiting.recv_many(&mut pieces, PIECES_WAITING).await > 0 {
        let came = std::mem::take(&mut pieces);
        let wrote;
        (incoming, wrote) = on_disk(move || {
            let wrote = came.iter().try_for_each(|piece| incoming.write(piece));
            Ok((incoming, wrote))
        })
        .await?;
        watch.moved(digest, incoming.len());
        if wrote.is_err() {
            return Ok((incoming, wrote));
        }
    }
    Ok((incoming, Ok(())))
}
