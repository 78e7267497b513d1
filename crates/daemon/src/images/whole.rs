//! An image as the store has it: its manifest or index, and the manifests of that.

use lodge_image::oci::{
    AgentKind, BadImage, BinImage, Descriptor, Index, LAYER_MAX, MANIFEST_MAX, Manifest, ManifestDocument,
    read_bin,
};
use lodge_image::{BlobError, Blobs, Digest, Pins};
use lodge_proto::ErrorBody;

use super::errors;

/// An image of which everything is in the store.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    pub descriptor: Descriptor,
    pub document: ManifestDocument,
    /// What an index names.
    pub children: Vec<(Descriptor, Manifest)>,
}

/// Why an image is not whole.
#[derive(Debug)]
pub(crate) enum Gap {
    /// This is not there.
    Missing(Digest),
    /// This is not what it was.
    Damaged(Digest),
    Failed(ErrorBody),
}

impl Gap {
    pub(crate) fn told(self) -> ErrorBody {
        match self {
            Gap::Missing(digest) => errors::blob(&BlobError::Missing { digest }),
            Gap::Damaged(digest) => errors::blob(&BlobError::Damaged { digest }),
            Gap::Failed(error) => error,
        }
    }

    fn of(error: &BlobError) -> Gap {
        match error {
            BlobError::Missing { digest } => Gap::Missing(*digest),
            BlobError::Damaged { digest } => Gap::Damaged(*digest),
            BlobError::Wrong { .. }
            | BlobError::TooLarge { .. }
            | BlobError::Short { .. }
            | BlobError::TooLong { .. }
            | BlobError::Busy { .. }
            | BlobError::Name { .. }
            | BlobError::Io { .. } => Gap::Failed(errors::blob(error)),
        }
    }
}

impl Whole {
    /// The image of this digest, when everything of it is there; all of it is pinned.
    pub(crate) fn find(blobs: &Blobs, pins: &Pins, digest: &Digest) -> Result<Whole, Gap> {
        let whole = Whole::outline(blobs, pins, digest)?;
        for part in whole.parts() {
            if !blobs.has(pins, &part.digest, part.size).map_err(|error| Gap::of(&error))? {
                return Err(Gap::Missing(part.digest));
            }
        }
        Ok(whole)
    }

    /// The documents of an image, whether or not there is what they name.
    pub(crate) fn outline(blobs: &Blobs, pins: &Pins, digest: &Digest) -> Result<Whole, Gap> {
        let (descriptor, document) = read_document(blobs, pins, digest)?;
        let mut children = Vec::new();
        if let ManifestDocument::Index(index) = &document {
            for part in &index.manifests {
                let (_, child) = read_document(blobs, pins, &part.digest)?;
                children.push((part.clone(), only_manifest(child).map_err(Gap::Failed)?));
            }
        }
        Ok(Whole { descriptor, document, children })
    }

    /// Everything but its first document.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Descriptor> {
        let below =
            self.children.iter().flat_map(|(_, child)| std::iter::once(&child.config).chain(&child.layers));
        self.document.parts().into_iter().chain(below)
    }

    /// Keeps everything of it from being collected.
    pub(crate) fn keep(&self, pins: &Pins) {
        pins.keep(&self.descriptor.digest);
        self.parts().for_each(|part| pins.keep(&part.digest));
    }

    /// Of all its blobs, each counted once.
    pub(crate) fn bytes(&self) -> u64 {
        let parts = self.parts().chain([&self.descriptor]).map(|part| (part.digest, part.size));
        parts.collect::<std::collections::BTreeMap<_, _>>().values().sum()
    }

    pub(crate) fn is_agent(&self) -> bool {
        match &self.document {
            ManifestDocument::Manifest(manifest) => AgentKind::of(manifest).is_some(),
            ManifestDocument::Index(_) => false,
        }
    }

    /// The tool that it is.
    pub(crate) fn bin(&self, blobs: &Blobs) -> Result<BinImage, ErrorBody> {
        let no_tool = |error: BadImage| {
            ErrorBody::new("bin.not_a_bin", format!("{} is no tool: {error}", self.descriptor.digest))
                .hint("tools are made with `lodge bin build`")
        };
        if self.is_agent() {
            return Err(no_tool(BadImage::new("it is an agent")));
        }
        let mut blob = |part: &Descriptor| contents(blobs, part);
        let read = match &self.document {
            ManifestDocument::Index(index) => read_bin(index, &self.children, &mut blob),
            ManifestDocument::Manifest(manifest) => {
                let alone = (self.descriptor.clone(), manifest.clone());
                let index = Index {
                    dialect: manifest.dialect,
                    artifact_type: manifest.artifact_type.clone(),
                    manifests: vec![self.descriptor.clone()],
                    annotations: manifest.annotations.clone(),
                };
                read_bin(&index, &[alone], &mut blob)
            }
        };
        read.map_err(no_tool)
    }
}

/// A child of an index. An index in an index is nobody's tool, and would have no end.
pub(crate) fn only_manifest(document: ManifestDocument) -> Result<Manifest, ErrorBody> {
    match document {
        ManifestDocument::Manifest(manifest) => Ok(manifest),
        ManifestDocument::Index(_) => Err(errors::bad_image(&BadImage::new("its index names another index"))),
    }
}

/// A document of the store.
pub(crate) fn read_document(
    blobs: &Blobs,
    pins: &Pins,
    digest: &Digest,
) -> Result<(Descriptor, ManifestDocument), Gap> {
    pins.keep(digest);
    let bytes = blobs.read(digest, MANIFEST_MAX).map_err(|error| Gap::of(&error))?;
    let document = ManifestDocument::read(&bytes).map_err(|error| Gap::Failed(errors::bad_image(&error)))?;
    Ok((Descriptor::new(document.media_type(), *digest, bytes.len() as u64), document))
}

pub(crate) fn contents(blobs: &Blobs, part: &Descriptor) -> std::io::Result<Vec<u8>> {
    blobs.read(&part.digest, part.size.min(LAYER_MAX)).map_err(std::io::Error::other)
}
