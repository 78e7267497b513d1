//! The images of this host: contents in files, names and records in the database.
//!
//! Owns: the directory `registry/`, and transfers from and to registries. Never: records anything. The caller passes new images
//! to the engine and keeps their pins until the commit.

mod collect;
mod errors;
mod image_tree;
mod logins;
mod needs;
mod parents;
mod programs;
mod pulls;
pub(crate) mod record;
mod reservations;
#[cfg(test)]
mod tests;
pub(crate) mod unsupported;

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
use self::image_tree::{ImageTree, only_manifest};
use self::logins::DockerLogins;
pub(crate) use self::needs::CheckedPrograms;
use self::needs::digest_of;
use self::programs::UnpackedPrograms;
pub(crate) use self::pulls::NoWatcher;
use self::pulls::{PinnedImage, TransferFuture, TransferProgress, TransferResult, Transfers};
use self::reservations::{SpaceReservation, SpaceReservations};
use crate::crash;
use crate::room::{DiskNeed, Room};
use crate::shell::now;

const DIRECTORY: &str = "registry";

/// Images whose contents are in the store and that are not recorded yet.
#[derive(Debug)]
pub struct UnrecordedImages {
    pub row: ImageRow,
    /// The tools that it needs.
    pub with: Vec<ImageRow>,
    /// Must exist until the images are recorded.
    pub pins: Pins,
}

/// What an agent needs, found or pulled.
#[derive(Debug)]
pub struct AgentNeeds {
    /// The images that are not recorded as complete: the agent's own, and those of its tools.
    pub rows: Vec<ImageRow>,
    /// All of its tools. Those of the host are unchanged.
    pub tools: Vec<ToolRecord>,
    pub runtime: Option<RuntimeRecord>,
    pub pins: Pins,
}

/// The store of images and the client of registries. Both are opened on first use.
#[derive(Debug)]
pub struct Images {
    dir: PathBuf,
    blobs: OnceLock<Blobs>,
    /// Locked while the store is opened, so that it is opened once.
    opening: std::sync::Mutex<()>,
    reader: Arc<Reader>,
    room: Arc<Room>,
    logins: Arc<DockerLogins>,
    registries: OnceLock<RegistryClient>,
    transfers: Transfers,
    programs: UnpackedPrograms,
    collections: Collections,
    reservations: SpaceReservations,
}

impl Images {
    /// The images of a state directory. Reads and writes nothing yet.
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
            programs: UnpackedPrograms::default(),
            collections: Collections::default(),
            reservations: SpaceReservations::default(),
        })
    }

    /// Opens the store, and creates it if it is missing.
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

    /// The client of registries, created with the first transfer.
    fn registries(&self) -> &RegistryClient {
        self.registries.get_or_init(|| {
            let terms = RegistryTerms { carry: read_as_caller, ..RegistryTerms::default() };
            RegistryClient::with_terms(self.logins.clone(), terms)
        })
    }

    /// Writes the blobs of a new image that are not in the store yet.
    pub fn store_packed(&self, pins: &Pins, packed: &PackedImage) -> Result<(), ImageError> {
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

    /// Loads the row of an image whose contents are all in the store, such as one that was just built or imported.
    ///
    /// Blocks on the disk, and on registries if a foreign image names images that are not in the store.
    pub fn load_row(
        self: &Arc<Self>,
        pins: &Pins,
        digest: &str,
        name: String,
    ) -> Result<ImageRow, ImageError> {
        let tree = ImageTree::load_complete(self.blobs()?, pins, &digest_of(digest)?)?;
        self.row(pins, &tree, name, &[])
    }

    /// Loads an image with the contents of its files, so that it can be a parent.
    pub fn load_agentfile(&self, record: ImageRecord) -> Result<LoadedAgentfile, ImageError> {
        record::loaded_of(record, &mut |file| self.contents(file))
    }

    /// Reads the manifest and config of an image in a registry, without its layers. The row has the state `Announced`.
    pub async fn announce(self: &Arc<Self>, remote: &RemoteImage) -> Result<UnrecordedImages, ImageError> {
        let (blobs, registries) = (self.blobs()?, self.registries());
        let pins = blobs.pins();
        let (descriptor, document) = registries.resolve(blobs, &pins, remote).await?;
        let manifest = agents_manifest(remote, document)?;
        let alone = ManifestDocument::Manifest(Manifest { layers: Vec::new(), ..manifest.clone() });
        registries.fetch(blobs, &pins, remote, &alone, Arc::new(NoWatcher)).await?;
        let config = blobs.read(&manifest.config.digest, MANIFEST_MAX)?;
        let head = read_agent_head(&manifest, &config)?;
        unsupported::refuse(&head.loaded.agentfile)?;
        if head.whole {
            let at = remote.with(ImageVersion::Digest(descriptor.digest));
            let tree = self.obtain(&pins, &descriptor.digest, &[at], Arc::new(NoWatcher)).await?;
            let (row, pins) = self.row_of(pins, tree, remote.to_string(), vec![remote.clone()]).await?;
            return Ok(UnrecordedImages { row, with: Vec::new(), pins });
        }
        let tree =
            ImageTree { descriptor, document: ManifestDocument::Manifest(manifest), children: Vec::new() };
        let row = ImageRow {
            digest: tree.descriptor.digest.to_string(),
            name: remote.to_string(),
            bytes: tree.bytes(),
            state: ImageState::Announced,
            contents: ImageContents::Agent(record::announced_record(head)),
        };
        Ok(UnrecordedImages { row, with: Vec::new(), pins })
    }

    /// Pulls an image and the tools it needs. Concurrent requests for the same image share one transfer.
    pub async fn pull(
        self: &Arc<Self>,
        remote: &RemoteImage,
        watch: Arc<dyn TransferWatch>,
    ) -> Result<UnrecordedImages, ImageError> {
        let pins = self.blobs()?.pins();
        let fetched = self.fetch_image(remote, watch.clone()).await?;
        fetched.tree.keep(&pins);
        let from = vec![remote.clone()];
        let (row, pins) = self.row_of(pins, fetched.tree.clone(), remote.to_string(), from).await?;
        let with = self.obtain_tools(&pins, &row, std::slice::from_ref(remote), &watch).await?;
        Ok(UnrecordedImages { row, with, pins })
    }

    /// Pushes an image and the tools it needs to a registry. Returns the number of bytes sent.
    pub async fn push(
        self: &Arc<Self>,
        digest: &str,
        to: &RemoteImage,
        watch: Arc<dyn TransferWatch>,
    ) -> Result<u64, ImageError> {
        let (blobs, registries) = (self.blobs()?, self.registries());
        let pins = blobs.pins();
        let tree = self.load_packed(&pins, digest)?;
        let _slot = self.transfers.slot().await;
        let mut sent = 0;
        let of = digest.to_owned();
        let agent = self.reader.read(move |store| store.image(&of)).await?;
        for need in agent.map(|record| ImageContents::Agent(record).needs()).unwrap_or_default() {
            let tool = self.load_packed(&pins, &need)?;
            // Pushed by digest, so that no tag in the repository changes.
            let place = to.with(ImageVersion::Digest(tool.descriptor.digest));
            sent += registries.push(blobs, &tool.descriptor, &place, watch.clone()).await?;
        }
        Ok(sent + registries.push(blobs, &tree.descriptor, to, watch).await?)
    }

    /// Loads an image that can be pushed or exported: all of its contents are in the store.
    pub(crate) fn load_packed(&self, pins: &Pins, digest: &str) -> Result<ImageTree, ImageError> {
        let blobs = self.blobs()?;
        let parsed = digest_of(digest)?;
        match ImageTree::load_complete(blobs, pins, &parsed) {
            Err(ImageError::Missing { digest: missing }) if missing == parsed => {
                Err(ImageError::NotPacked { digest: digest.to_owned() })
            }
            found => found,
        }
    }

    /// Whether an image is recorded as complete.
    async fn is_recorded(&self, digest: &str) -> Result<bool, ImageError> {
        let of = digest.to_owned();
        let found = self.reader.read_few(move |store| store.image_kind(&of)).await?;
        Ok(found.is_some_and(|(_, state)| state == ImageState::Complete))
    }

    /// Builds the row of a complete image that came from the repositories `from`.
    fn row(
        self: &Arc<Self>,
        pins: &Pins,
        tree: &ImageTree,
        name: String,
        from: &[RemoteImage],
    ) -> Result<ImageRow, ImageError> {
        let contents = match &tree.document {
            ManifestDocument::Manifest(manifest) if tree.is_agent() => {
                ImageContents::Agent(record::record_of(self.agent_of(pins, manifest, from)?))
            }
            ManifestDocument::Manifest(_) | ManifestDocument::Index(_) => {
                ImageContents::Bin(record::bin_record(tree.bin(self.blobs()?)?))
            }
        };
        let (digest, bytes) = (tree.descriptor.digest.to_string(), tree.bytes());
        Ok(ImageRow { digest, name, bytes, state: ImageState::Complete, contents })
    }

    /// As [`Images::row`], on a blocking thread. Images that it pulls are pinned, too.
    async fn row_of(
        self: &Arc<Self>,
        pins: Pins,
        tree: ImageTree,
        name: String,
        from: Vec<RemoteImage>,
    ) -> Result<(ImageRow, Pins), ImageError> {
        let images = self.clone();
        blocking(move || Ok((images.row(&pins, &tree, name, &from)?, pins))).await
    }

    /// Fetches all contents of an image into the store. Concurrent requests for the same image share one transfer.
    fn fetch_image<'i>(
        self: &'i Arc<Self>,
        remote: &'i RemoteImage,
        watch: Arc<dyn TransferWatch>,
    ) -> Pin<Box<dyn Future<Output = TransferResult> + Send + 'i>> {
        let (images, at) = (self.clone(), remote.clone());
        let begin = |progress: Arc<TransferProgress>| -> TransferFuture {
            match at.version {
                ImageVersion::Tag(_) => Box::pin(images.fetch_tag(at, progress)),
                ImageVersion::Digest(digest) => Box::pin(images.fetch_digest(at, digest, progress)),
            }
        };
        Box::pin(self.transfers.join(remote, watch, begin))
    }

    /// Resolves a tag, and joins the transfer of that digest.
    async fn fetch_tag(self: Arc<Self>, at: RemoteImage, progress: Arc<TransferProgress>) -> TransferResult {
        let blobs = self.blobs()?;
        // Kept until the end, so that the resolved manifest is not fetched again.
        let pins = blobs.pins();
        let (descriptor, _) = self.registries().resolve(blobs, &pins, &at).await?;
        self.fetch_image(&at.with(ImageVersion::Digest(descriptor.digest)), progress).await
    }

    async fn fetch_digest(
        self: Arc<Self>,
        at: RemoteImage,
        digest: Digest,
        progress: Arc<TransferProgress>,
    ) -> TransferResult {
        let blobs = self.blobs()?;
        let pins = blobs.pins();
        match self.load_complete(&pins, &digest).await {
            Ok(tree) => return Ok(Arc::new(PinnedImage::new(tree, pins))),
            Err(ImageError::Missing { .. } | ImageError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        let (descriptor, document) = self.fetch_document(&pins, &at, &digest).await?;
        let mut children = Vec::new();
        if let ManifestDocument::Index(index) = &document {
            for part in &index.manifests {
                let (_, child) = self.fetch_document(&pins, &at, &part.digest).await?;
                children.push((part.clone(), only_manifest(child)?));
            }
        }
        let tree = ImageTree { descriptor, document, children };
        let mut lacking = 0_u64;
        for part in tree.parts() {
            let lacks = blobs.missing_bytes(&pins, &part.digest, part.size)?;
            lacking = lacks.saturating_add(lacking);
        }
        let _slot = self.transfers.slot().await;
        let _room = self.admit(lacking)?;
        self.registries().fetch(blobs, &pins, &at, &tree.document, progress).await?;
        Ok(Arc::new(PinnedImage::new(tree, pins)))
    }

    /// Loads a manifest or index from the store, or fetches it from a repository.
    async fn fetch_document(
        &self,
        pins: &Pins,
        at: &RemoteImage,
        digest: &Digest,
    ) -> Result<(Descriptor, ManifestDocument), ImageError> {
        let blobs = self.blobs()?;
        match image_tree::read_document(blobs, pins, digest) {
            Ok(found) => return Ok(found),
            Err(ImageError::Missing { .. } | ImageError::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(self.registries().resolve(blobs, pins, &at.with(ImageVersion::Digest(*digest))).await?)
    }

    /// Reserves disk space. Refuses if too little would stay free for work that is already running.
    pub(crate) fn admit(&self, bytes: u64) -> Result<SpaceReservation<'_>, ImageError> {
        let refused = || ImageError::NoRoom {
            why: format!(
                "it needs {bytes} more bytes in addition to the transfers under way, and some space has to stay free"
            ),
        };
        // If the disk is too full for any new work, that refusal comes first.
        self.room.admit(DiskNeed::Room, now())?;
        self.reservations.reserve(&self.room, bytes).ok_or_else(refused)
    }

    /// Whether the disk can spare this many bytes in addition to the reservations.
    pub(crate) fn spares(&self, bytes: u64) -> bool {
        self.reservations.has_room_for(&self.room, bytes)
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

/// Runs work that blocks on the disk on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(crate::suspects::carry(work)).await {
        Ok(done) => done,
        Err(error) => Err(error.into()),
    }
}
