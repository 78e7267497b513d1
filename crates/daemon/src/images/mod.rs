//! The images of this host: contents in files, names and what is asked for often in the database.
//!
//! Owns: what lies below `registry/`, and transfers from and to registries. Never: records anything by itself; whoever
//! asked hands what came to the engine, and holds its pins until that is committed.

mod collect;
mod errors;
mod logins;
mod needs;
mod parents;
mod programs;
mod promises;
mod pulls;
pub(crate) mod record;
#[cfg(test)]
mod tests;
pub(crate) mod unsupported;
mod whole;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use lodge_core::record::{ImageContents, ImageRecord, ImageRow, ImageState, RuntimeRecord, ToolRecord};
use lodge_image::agentfile::LoadedAgentfile;
use lodge_image::oci::{
    AgentKind, Descriptor, MANIFEST_MAX, Manifest, ManifestDocument, PackedImage, read_agent_head,
};
use lodge_image::registry::{ReadTask, RegistryClient, RegistryTerms, TransferWatch};
use lodge_image::{Blobs, Digest, ImageVersion, Pins, RemoteImage};
use lodge_store::Reader;

use self::collect::Collections;
pub(crate) use self::errors::ImageError;
use self::logins::DockerLogins;
pub(crate) use self::needs::CheckedPrograms;
use self::needs::digest_of;
use self::programs::Programs;
use self::promises::{Promise, Promises};
pub(crate) use self::pulls::Unwatched;
use self::pulls::{Fan, Held, Running, TransferResult, Transfers};
use self::whole::{Whole, only_manifest};
use crate::crash;
use crate::room::{Needs, Room};
use crate::shell::now;

const DIRECTORY: &str = "registry";

/// Images that are whole in the store, and not recorded yet.
#[derive(Debug)]
pub struct Arrived {
    pub row: ImageRow,
    /// The tools that it needs.
    pub with: Vec<ImageRow>,
    /// To be held until they are recorded.
    pub pins: Pins,
}

/// What an agent needs, found or brought.
#[derive(Debug)]
pub struct Ready {
    /// Its image, when it was not complete before, and tools that nobody had.
    pub rows: Vec<ImageRow>,
    /// All of its tools, those of the host unchanged.
    pub tools: Vec<ToolRecord>,
    pub runtime: Option<RuntimeRecord>,
    pub pins: Pins,
}

/// The store of images and the way to registries. Neither is opened before it is needed.
#[derive(Debug)]
pub struct Images {
    dir: PathBuf,
    blobs: OnceLock<Blobs>,
    /// Held while the store is opened, which happens once.
    opening: std::sync::Mutex<()>,
    reader: Arc<Reader>,
    room: Arc<Room>,
    logins: Arc<DockerLogins>,
    registries: OnceLock<RegistryClient>,
    transfers: Transfers,
    programs: Programs,
    collections: Collections,
    promises: Promises,
}

impl Images {
    /// The images of a state directory. Nothing is touched yet.
    pub fn of(data_dir: &Path, reader: Arc<Reader>, room: Arc<Room>) -> Arc<Images> {
        Arc::new(Images {
            dir: data_dir.join(DIRECTORY),
            blobs: OnceLock::new(),
            opening: std::sync::Mutex::default(),
            reader,
            room,
            logins: Arc::new(DockerLogins::of(|name| std::env::var_os(name))),
            registries: OnceLock::new(),
            transfers: Transfers::default(),
            programs: Programs::default(),
            collections: Collections::default(),
            promises: Promises::default(),
        })
    }

    /// The store, which is made when it is not there.
    pub fn blobs(&self) -> Result<&Blobs, ImageError> {
        let _opening = self.opening.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match self.blobs.get() {
            Some(blobs) => Ok(blobs),
            None => {
                let opened = Blobs::open(&self.dir)?;
                Ok(self.blobs.get_or_init(|| opened))
            }
        }
    }

    /// The way to registries, made with the first transfer.
    fn registries(&self) -> &RegistryClient {
        self.registries.get_or_init(|| {
            let terms = RegistryTerms { carry: read_as_caller, ..RegistryTerms::default() };
            RegistryClient::with_terms(self.logins.clone(), terms)
        })
    }

    /// Puts an image that was just made into the store, as far as it is not there.
    pub fn keep(&self, pins: &Pins, packed: &PackedImage) -> Result<(), ImageError> {
        let blobs = self.blobs()?;
        let mut lacking = 0;
        for blob in &packed.blobs {
            let bytes = blob.bytes.len() as u64;
            if !blobs.has(pins, &blob.digest, bytes)? {
                lacking += bytes;
            }
        }
        let _room = self.admit(lacking)?;
        blobs.put_all(pins, &packed.blobs)?;
        crash::point("after_image_kept");
        Ok(())
    }

    /// An image of which everything is in the store, as it would be recorded; such as one that was just kept or imported.
    ///
    /// Waits for the disk, and for registries when a foreign image names what is not here.
    pub fn found(self: &Arc<Self>, pins: &Pins, digest: &str, name: String) -> Result<ImageRow, ImageError> {
        let whole = Whole::find(self.blobs()?, pins, &digest_of(digest)?)?;
        self.row(pins, &whole, name, &[])
    }

    /// An image with the contents of its files, so that it can be a parent.
    pub fn loaded(&self, record: ImageRecord) -> Result<LoadedAgentfile, ImageError> {
        record::loaded_of(record, &mut |file| self.contents(file))
    }

    /// What an image in a registry says of itself, before its layers are here: its row is only announced.
    pub async fn announce(self: &Arc<Self>, remote: &RemoteImage) -> Result<Arrived, ImageError> {
        let (blobs, registries) = (self.blobs()?, self.registries());
        let pins = blobs.pins();
        let (descriptor, document) = registries.resolve(blobs, &pins, remote).await?;
        let manifest = agents_manifest(remote, document)?;
        let alone = ManifestDocument::Manifest(Manifest { layers: Vec::new(), ..manifest.clone() });
        registries.fetch(blobs, &pins, remote, &alone, Arc::new(Unwatched)).await?;
        let config = blobs.read(&manifest.config.digest, MANIFEST_MAX)?;
        let head = read_agent_head(&manifest, &config)?;
        unsupported::refuse(&head.loaded.agentfile)?;
        if head.whole {
            let at = remote.with(ImageVersion::Digest(descriptor.digest));
            let whole = self.obtain(&pins, &descriptor.digest, &[at], Arc::new(Unwatched)).await?;
            let (row, pins) = self.row_of(pins, whole, remote.to_string(), vec![remote.clone()]).await?;
            return Ok(Arrived { row, with: Vec::new(), pins });
        }
        let whole =
            Whole { descriptor, document: ManifestDocument::Manifest(manifest), children: Vec::new() };
        let row = ImageRow {
            digest: whole.descriptor.digest.to_string(),
            name: remote.to_string(),
            bytes: whole.bytes(),
            state: ImageState::Announced,
            contents: ImageContents::Agent(record::announced_record(head)),
        };
        Ok(Arrived { row, with: Vec::new(), pins })
    }

    /// Brings an image with the tools it needs. Whoever asks for the same one meanwhile waits for the same transfer.
    pub async fn pull(
        self: &Arc<Self>,
        remote: &RemoteImage,
        watch: Arc<dyn TransferWatch>,
    ) -> Result<Arrived, ImageError> {
        let pins = self.blobs()?.pins();
        let held = self.bring(remote, watch.clone()).await?;
        held.whole.keep(&pins);
        let from = vec![remote.clone()];
        let (row, pins) = self.row_of(pins, held.whole.clone(), remote.to_string(), from).await?;
        let with = self.needed(&pins, &row, std::slice::from_ref(remote), &watch).await?;
        Ok(Arrived { row, with, pins })
    }

    /// Brings an image with the tools it needs to a registry. Returns the bytes that had to be sent.
    pub async fn push(
        self: &Arc<Self>,
        digest: &str,
        to: &RemoteImage,
        watch: Arc<dyn TransferWatch>,
    ) -> Result<u64, ImageError> {
        let (blobs, registries) = (self.blobs()?, self.registries());
        let pins = blobs.pins();
        let whole = self.packed(&pins, digest)?;
        let _slot = self.transfers.slot().await;
        let mut sent = 0;
        let of = digest.to_owned();
        let agent = self.reader.read(move |store| store.image(&of)).await?;
        for need in agent.map(|record| ImageContents::Agent(record).needs()).unwrap_or_default() {
            let tool = self.packed(&pins, &need)?;
            // By its digest, so that nobody's name there becomes another.
            let place = to.with(ImageVersion::Digest(tool.descriptor.digest));
            sent += registries.push(blobs, &tool.descriptor, &place, watch.clone()).await?;
        }
        Ok(sent + registries.push(blobs, &whole.descriptor, to, watch).await?)
    }

    /// An image that can be given away: everything of it is here.
    pub(crate) fn packed(&self, pins: &Pins, digest: &str) -> Result<Whole, ImageError> {
        let blobs = self.blobs()?;
        let parsed = digest_of(digest)?;
        match Whole::find(blobs, pins, &parsed) {
            Err(ImageError::Missing { digest: missing }) if missing == parsed => {
                Err(ImageError::NotPacked { digest: digest.to_owned() })
            }
            found => found,
        }
    }

    /// Whether an image is recorded with everything of it.
    async fn is_recorded(&self, digest: &str) -> Result<bool, ImageError> {
        let of = digest.to_owned();
        let found = self.reader.read_few(move |store| store.image_kind(&of)).await?;
        Ok(found.is_some_and(|(_, state)| state == ImageState::Complete))
    }

    /// What is recorded of an image that is whole, and came from there.
    fn row(
        self: &Arc<Self>,
        pins: &Pins,
        whole: &Whole,
        name: String,
        from: &[RemoteImage],
    ) -> Result<ImageRow, ImageError> {
        let contents = match &whole.document {
            ManifestDocument::Manifest(manifest) if whole.is_agent() => {
                ImageContents::Agent(record::record_of(self.agent_of(pins, manifest, from)?))
            }
            ManifestDocument::Manifest(_) | ManifestDocument::Index(_) => {
                ImageContents::Bin(record::bin_record(whole.bin(self.blobs()?)?))
            }
        };
        let (digest, bytes) = (whole.descriptor.digest.to_string(), whole.bytes());
        Ok(ImageRow { digest, name, bytes, state: ImageState::Complete, contents })
    }

    /// As [`Images::row`], off the threads that serve. What that brings is pinned, too.
    async fn row_of(
        self: &Arc<Self>,
        pins: Pins,
        whole: Whole,
        name: String,
        from: Vec<RemoteImage>,
    ) -> Result<(ImageRow, Pins), ImageError> {
        let images = self.clone();
        blocking(move || Ok((images.row(&pins, &whole, name, &from)?, pins))).await
    }

    /// Everything of an image, in the store. All who ask for the same share one transfer.
    fn bring<'i>(
        self: &'i Arc<Self>,
        remote: &'i RemoteImage,
        watch: Arc<dyn TransferWatch>,
    ) -> Pin<Box<dyn Future<Output = TransferResult> + Send + 'i>> {
        let (images, at) = (self.clone(), remote.clone());
        let begin = |fan: Arc<Fan>| -> Running {
            match at.version {
                ImageVersion::Tag(_) => Box::pin(images.bring_tag(at, fan)),
                ImageVersion::Digest(digest) => Box::pin(images.bring_digest(at, digest, fan)),
            }
        };
        Box::pin(self.transfers.join(remote, watch, begin))
    }

    /// Finds out what a tag means now, and joins whoever brings that.
    async fn bring_tag(self: Arc<Self>, at: RemoteImage, fan: Arc<Fan>) -> TransferResult {
        let blobs = self.blobs()?;
        // Until the end: what was resolved is not fetched again.
        let pins = blobs.pins();
        let (descriptor, _) = self.registries().resolve(blobs, &pins, &at).await?;
        self.bring(&at.with(ImageVersion::Digest(descriptor.digest)), fan).await
    }

    async fn bring_digest(self: Arc<Self>, at: RemoteImage, digest: Digest, fan: Arc<Fan>) -> TransferResult {
        let blobs = self.blobs()?;
        let pins = blobs.pins();
        match self.find_whole(&pins, &digest).await {
            Ok(whole) => return Ok(Arc::new(Held::new(whole, pins))),
            Err(ImageError::Missing { .. } | ImageError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        let (descriptor, document) = self.document(&pins, &at, &digest).await?;
        let mut children = Vec::new();
        if let ManifestDocument::Index(index) = &document {
            for part in &index.manifests {
                let (_, child) = self.document(&pins, &at, &part.digest).await?;
                children.push((part.clone(), only_manifest(child)?));
            }
        }
        let whole = Whole { descriptor, document, children };
        let mut lacking = 0_u64;
        for part in whole.parts() {
            let lacks = blobs.lacks(&pins, &part.digest, part.size)?;
            lacking = lacks.saturating_add(lacking);
        }
        let _slot = self.transfers.slot().await;
        let _room = self.admit(lacking)?;
        self.registries().fetch(blobs, &pins, &at, &whole.document, fan).await?;
        Ok(Arc::new(Held::new(whole, pins)))
    }

    /// A manifest or index of a repository: what the store has is not asked for.
    async fn document(
        &self,
        pins: &Pins,
        at: &RemoteImage,
        digest: &Digest,
    ) -> Result<(Descriptor, ManifestDocument), ImageError> {
        let blobs = self.blobs()?;
        match whole::read_document(blobs, pins, digest) {
            Ok(found) => return Ok(found),
            Err(ImageError::Missing { .. } | ImageError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(self.registries().resolve(blobs, pins, &at.with(ImageVersion::Digest(*digest))).await?)
    }

    /// Refuses what the disk has no room for, with enough left for those who cannot wait.
    pub(crate) fn admit(&self, bytes: u64) -> Result<Promise<'_>, ImageError> {
        let refused = || ImageError::NoRoom {
            why: format!(
                "it needs {bytes} bytes more, beside what others bring now, and some have to stay free"
            ),
        };
        // Where nothing at all is begun any more, that is what is told.
        self.room.admit(Needs::Room, now())?;
        self.promises.make(&self.room, bytes).ok_or_else(refused)
    }

    /// Whether the disk can spare so many bytes beside what was promised.
    pub(crate) fn spares(&self, bytes: u64) -> bool {
        self.promises.leave(&self.room, bytes)
    }
}

fn agents_manifest(remote: &RemoteImage, document: ManifestDocument) -> Result<Manifest, ImageError> {
    match document {
        ManifestDocument::Manifest(manifest) if AgentKind::of(&manifest).is_some() => Ok(manifest),
        ManifestDocument::Manifest(_) | ManifestDocument::Index(_) => {
            Err(ImageError::NotAnAgent { reference: remote.to_string() })
        }
    }
}

/// Charges the reading of a registry's answer to the request that caused it.
fn read_as_caller(reading: ReadTask) -> ReadTask {
    Box::new(crate::suspects::carry(move || {
        crash::pill_at("document", "");
        reading();
    }))
}

/// Does work that waits for the disk, off the threads that serve.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(crate::suspects::carry(work)).await {
        Ok(done) => done,
        Err(error) => Err(error.into()),
    }
}
