//! What nobody needs any more: found by what is recorded, and removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lodge_image::oci::ManifestDocument;
use lodge_image::{BlobError, Blobs, CollectionTotals, Digest};
use lodge_store::Reader;

use super::whole::Whole;
use super::{ImageError, Images};

/// Collections, one at a time.
#[derive(Debug, Default)]
pub(crate) struct Collections {
    alone: tokio::sync::Mutex<()>,
    /// One waits for its turn, and will see whatever went before it began.
    waits: AtomicBool,
}

impl Images {
    /// Removes the contents that no image has. It does not wait for pulls, and a request while one is queued is served by
    /// that one.
    pub(crate) async fn collect(self: Arc<Self>) {
        if self.collections.waits.swap(true, Ordering::SeqCst) {
            return;
        }
        let _alone = self.collections.alone.lock().await;
        self.collections.waits.store(false, Ordering::SeqCst);
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
        let collected = blobs.collect(&mut || wanted(blobs, &self.reader))?;
        if collected != CollectionTotals::default() {
            self.programs.forget();
        }
        Ok(collected)
    }
}

/// Every blob that a recorded image has or will have. What cannot be found out for sure keeps everything.
fn wanted(blobs: &Blobs, reader: &Reader) -> Result<BTreeSet<Digest>, BlobError> {
    let unknown =
        |cause: std::io::Error| BlobError::Io { path: std::path::PathBuf::from("daemon.db"), cause };
    let recorded =
        reader.here(|store| store.image_digests()).map_err(|error| unknown(std::io::Error::other(error)))?;
    let mut wanted = BTreeSet::new();
    for digest in recorded {
        let Ok(digest) = digest.parse::<Digest>() else { continue };
        wanted.insert(digest);
        let outline = Whole::outline(blobs, &blobs.pins(), &digest);
        match outline {
            Ok(whole) => wanted.extend(whole.parts().map(|part| part.digest)),
            // Images of earlier releases have no blobs. Of one that lacks some, the rest is of use once those came again.
            Err(ImageError::Missing { .. } | ImageError::Damaged { .. }) => {
                wanted.extend(what_is_left(blobs, &digest))
            }
            Err(error) => return Err(unknown(std::io::Error::other(error.to_string()))),
        }
    }
    Ok(wanted)
}

/// What can be read of an image that is not whole.
fn what_is_left(blobs: &Blobs, digest: &Digest) -> Vec<Digest> {
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
