//! Garbage collection: removes blobs that no recorded image references.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lodge_image::oci::ManifestDocument;
use lodge_image::{BlobError, Blobs, CollectionTotals, Digest};
use lodge_store::Reader;

use super::image_tree::ImageTree;
use super::{ImageError, Images};

/// Collections, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    alone: tokio::sync::Mutex<()>,
    /// A collection waits for the running one. It sees every change made before it starts.
    is_queued: AtomicBool,
}

impl Images {
    /// Removes contents that no image has, without waiting for pulls. If a collection is queued, the request is merged into it.
    pub(crate) async fn collect(self: Arc<Self>) {
        if self.collections.is_queued.swap(true, Ordering::SeqCst) {
            return;
        }
        let _alone = self.collections.alone.lock().await;
        self.collections.is_queued.store(false, Ordering::SeqCst);
        if !self.dir.exists() {
            return;
        }
        let images = self.clone();
        let collected = tokio::task::spawn_blocking(move || images.collect_now()).await;
        match collected {
            Ok(Ok(collected)) if collected.blobs > 0 => {
                tracing::info!(event = "images.collected", blobs = collected.blobs, bytes = collected.bytes);
            }
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::warn!(event = "images.not_collected", error = error.to_string()),
            Err(error) => tracing::error!(event = "images.not_collected", error = error.to_string()),
        }
    }

    fn collect_now(&self) -> Result<CollectionTotals, ImageError> {
        let blobs = self.blobs()?;
        let collected = blobs.collect(&mut || referenced_blobs(blobs, &self.reader))?;
        if collected != CollectionTotals::default() {
            self.programs.forget();
        }
        Ok(collected)
    }
}

/// Every blob that a recorded image has or will have. An error keeps all blobs.
fn referenced_blobs(blobs: &Blobs, reader: &Reader) -> Result<BTreeSet<Digest>, BlobError> {
    let unknown =
        |cause: std::io::Error| BlobError::Io { path: std::path::PathBuf::from("daemon.db"), cause };
    let recorded =
        reader.here(|store| store.image_digests()).map_err(|error| unknown(std::io::Error::other(error)))?;
    let mut referenced = BTreeSet::new();
    for digest in recorded {
        let Ok(digest) = digest.parse::<Digest>() else { continue };
        referenced.insert(digest);
        let outline = ImageTree::load_documents(blobs, &blobs.pins(), &digest);
        match outline {
            Ok(tree) => referenced.extend(tree.parts().map(|part| part.digest)),
            // Images of earlier releases have no blobs. An incomplete image keeps its other blobs: a pull can complete it.
            Err(ImageError::Missing { .. } | ImageError::Damaged { .. }) => {
                referenced.extend(readable_parts(blobs, &digest))
            }
            Err(error) => return Err(unknown(std::io::Error::other(error.to_string()))),
        }
    }
    Ok(referenced)
}

/// The parts of an incomplete image that its readable documents name.
fn readable_parts(blobs: &Blobs, digest: &Digest) -> Vec<Digest> {
    let read = |digest: &Digest| {
        let bytes = blobs.read(digest, lodge_image::oci::MANIFEST_MAX).ok()?;
        ManifestDocument::read(&bytes).ok()
    };
    let Some(document) = read(digest) else { return Vec::new() };
    let mut left: Vec<Digest> = document.parts().into_iter().map(|part| part.digest).collect();
    if let ManifestDocument::Index(index) = &document {
        for child in index.manifests.iter().filter_map(|part| read(&part.digest)) {
            left.extend(child.parts().into_iter().map(|part| part.digest));
        }
    }
    left
}
