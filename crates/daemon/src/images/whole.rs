//! An image as the store has it: its manifest or index, and the manifests of that.

use lodge_image::oci::{
    AgentKind, BadImage, BinImage, Descriptor, Index, LAYER_MAX, MANIFEST_MAX, Manifest, ManifestDocument,
    read_bin,
};
use lodge_image::{Blobs, Digest, Pins};

use super::ImageError;

/// An image of which everything is in the store.
#[derive(Debug, Clone)]
pub(crate) struct Whole {
    pub descriptor: Descriptor,
    pub document: ManifestDocument,
    /// What an index names.
    pub children: Vec<(Descriptor, Manifest)>,
}

impl Whole {
    /// The image of this digest, when everything of it is there; all of it is pinned.
    pub(crate) fn find(blobs: &Blobs, pins: &Pins, digest: &Digest) -> Result<Whole, ImageError> {
        let whole = Whole::outline(blobs, pins, digest)?;
        for part in whole.parts() {
            if !blobs.has(pins, &part.digest, part.size)? {
                return Err(ImageError::Missing { digest: part.digest });
            }
        }
        Ok(whole)
    }

    /// The documents of an image, whether or not there is what they name.
    pub(crate) fn outline(blobs: &Blobs, pins: &Pins, digest: &Digest) -> Result<Whole, ImageError> {
        let (descriptor, document) = read_document(blobs, pins, digest)?;
        let mut children = Vec::new();
        if let ManifestDocument::Index(index) = &document {
            for part in &index.manifests {
                let (_, child) = read_document(blobs, pins, &part.digest)?;
                children.push((part.clone(), only_manifest(child)?));
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
    pub(crate) fn bin(&self, blobs: &Blobs) -> Result<BinImage, ImageError> {
        let no_tool = |why: BadImage| ImageError::NotATool { digest: self.descriptor.digest, why };
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
pub(crate) fn only_manifest(document: ManifestDocument) -> Result<Manifest, ImageError> {
    match document {
        ManifestDocument::Manifest(manifest) => Ok(manifest),
        ManifestDocument::Index(_) => Err(BadImage::new("its index names another index").into()),
    }
}

/// A document of the store.
pub(crate) fn read_document(
    blobs: &Blobs,
    pins: &Pins,
    digest: &Digest,
) -> Result<(Descriptor, ManifestDocument), ImageError> {
    pins.keep(digest);
    let bytes = blobs.read(digest, MANIFEST_MAX)?;
    let document = ManifestDocument::read(&bytes)?;
    Ok((Descriptor::new(document.media_type(), *digest, bytes.len() as u64), document))
}

pub(crate) fn contents(blobs: &Blobs, part: &Descriptor) -> std::io::Result<Vec<u8>> {
    blobs.read(&part.digest, part.size.min(LAYER_MAX)).map_err(std::io::Error::other)
}
