//! Loads agents from images. Images of Lodge are flattened; those of OpenOtters name parents and tools, which are found in the
//! store or pulled.

use std::cell::RefCell;
use std::sync::Arc;

use lodge_core::record::{ImageKind, ImageState};
use lodge_image::agentfile::{Agentfile, Builder, LoadedAgentfile, PARENTS_MAX, load_packed};
use lodge_image::oci::{
    AgentKind, BadImage, MANIFEST_MAX, Manifest, ManifestDocument, read_agent, unpack_foreign,
};
use lodge_image::{Digest, ImageVersion, Pins, RemoteImage, TaggedName};
use tokio::runtime::Handle;

use super::image_tree::{ImageTree, contents};
use super::pulls::NoWatcher;
use super::{ImageError, Images, unsupported};

impl Images {
    /// Loads the agent of a complete image. Blocks on registries if it names images that are not in the store, so it must not
    /// run on an async worker.
    pub(super) fn agent_of(
        self: &Arc<Self>,
        pins: &Pins,
        manifest: &Manifest,
        from: &[RemoteImage],
    ) -> Result<LoadedAgentfile, ImageError> {
        Parents { images: self, pins, from, depth: 0, failed: &RefCell::default() }.load(manifest)
    }
}

/// Resolves the parents and tools of a foreign image.
struct Parents<'p> {
    images: &'p Arc<Images>,
    pins: &'p Pins,
    /// The repositories of the image that names them.
    from: &'p [RemoteImage],
    depth: usize,
    /// The first error of a parent or tool. The loader would report only its text, as one mistake among others.
    failed: &'p RefCell<Option<ImageError>>,
}

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

impl Parents<'_> {
    fn load(&self, manifest: &Manifest) -> Result<LoadedAgentfile, ImageError> {
        let blobs = self.images.blobs()?;
        let mut blob = |part: &_| contents(blobs, part);
        match AgentKind::of(manifest) {
            Some(AgentKind::Own) => {
                let config = blobs.read(&manifest.config.digest, MANIFEST_MAX)?;
                let loaded = read_agent(manifest, &config, &mut blob)?;
                unsupported::refuse(&loaded.agentfile)?;
                Ok(loaded)
            }
            Some(AgentKind::Foreign) if self.depth == PARENTS_MAX => {
                Err(BadImage::new(format!("over {PARENTS_MAX} images stand one above the other")).into())
            }
            Some(AgentKind::Foreign) => {
                let foreign = unpack_foreign(manifest, &mut blob)?;
                let above = Parents { depth: self.depth + 1, ..*self };
                let loaded = load_packed(&foreign.source, foreign.files, &above);
                loaded.map_err(|error| self.failed.take().unwrap_or_else(|| error.into()))
            }
            None => Err(BadImage::new("it is not the image of an agent").into()),
        }
    }

    fn keep_error(&self, error: ImageError) -> BoxedError {
        let cause = error.to_string().into();
        self.failed.borrow_mut().get_or_insert(error);
        cause
    }

    /// Resolves a name in the store.
    fn find_local(&self, kind: ImageKind, name: &TaggedName) -> Result<Option<Digest>, ImageError> {
        let reader = &self.images.reader;
        let read = reader.here(|store| {
            let Some(named) = store.image_ref(name.as_str())? else { return Ok(None) };
            let fits = store.image_kind(&named.digest)? == Some((kind, ImageState::Complete));
            Ok(if fits { named.digest.parse().ok() } else { None })
        });
        Ok(read?)
    }

    /// Fetches a name from its registry. `None`: it names no registry, or the registry does not have it.
    fn fetch_named(&self, reference: &str) -> Result<Option<ImageTree>, ImageError> {
        let Ok(Some(remote)) = RemoteImage::read(reference) else { return Ok(None) };
        Handle::current().block_on(self.images.refuse_inward(self.from, &remote))?;
        match Handle::current().block_on(self.images.fetch_image(&remote, Arc::new(NoWatcher))) {
            Ok(fetched) => {
                fetched.tree.keep(self.pins);
                Ok(Some(fetched.tree.clone()))
            }
            Err(error) if error.is_not_in_registry() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn load_parent(&self, reference: &str) -> Result<Option<LoadedAgentfile>, ImageError> {
        if let Ok(name) = TaggedName::read(reference)
            && let Some(digest) = self.find_local(ImageKind::Agent, &name)?
        {
            let record = self.images.reader.here(|store| store.image(&digest.to_string()))?;
            return record.map(|record| self.images.load_agentfile(record)).transpose();
        }
        match self.fetch_named(reference)?.map(|tree| tree.document) {
            Some(ManifestDocument::Manifest(manifest)) => {
                let from: Vec<RemoteImage> =
                    RemoteImage::read(reference).ok().flatten().into_iter().collect();
                Parents { from: &from, ..*self }.load(&manifest).map(Some)
            }
            Some(ManifestDocument::Index(_)) => Err(BadImage::new("its parent is no agent").into()),
            None => Ok(None),
        }
    }

    fn pin_reference(&self, reference: &str) -> Result<Option<String>, ImageError> {
        let Ok(name) = TaggedName::read(reference) else {
            let pinned = RemoteImage::read(reference).ok().flatten().map(|remote| remote.version);
            return Ok(matches!(pinned, Some(ImageVersion::Digest(_))).then(|| reference.to_owned()));
        };
        if let Some(digest) = self.find_local(ImageKind::Bin, &name)? {
            return Ok(Some(name.pin(&digest)));
        }
        Ok(self.fetch_named(reference)?.map(|tree| name.pin(&tree.descriptor.digest)))
    }
}

impl Builder for Parents<'_> {
    fn image(&self, reference: &str) -> Result<Option<LoadedAgentfile>, BoxedError> {
        self.load_parent(reference).map_err(|error| self.keep_error(error))
    }

    fn pin(&self, reference: &str) -> Result<Option<String>, BoxedError> {
        self.pin_reference(reference).map_err(|error| self.keep_error(error))
    }

    fn refuses(&self, file: &Agentfile) -> Vec<(u32, &'static str)> {
        unsupported::instructions(file)
    }
}
