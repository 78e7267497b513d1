//! The documents of an image: its manifest or index, and the manifests of the index.

use lodge_image::oci::{
    AgentKind, BadImage, BinImage, Descriptor, Index, LAYER_MAX, MANIFEST_MAX, Manifest, ManifestDocument,
    read_bin,
};
use lodge_image::{Blobs, Digest, Pins};

use super::ImageError;

/// An image by its documents. They name all of its parts.
#[derive(Debug, Clone)]
pub(crate) struct ImageTree {
    pub descriptor: Descriptor,
    pub document: ManifestDocument,
    /// The manifests that an index names.
    pub children: Vec<(Descriptor, Manifest)>,
}

impl ImageTree {
    /// Loads an image whose parts are all in the store, and pins them.
    pub(crate) fn load_complete(
        blobs: &Blobs,
        pins: &Pins,
        digest: &Digest,
    ) -> Result<ImageTree, ImageError> {
        let tree = ImageTree::load_documents(blobs, pins, digest)?;
        for part in tree.parts() {
            if !blobs.has(pins, &part.digest, part.size)? {
                return Err(ImageError::Missing { digest: part.digest });
            }
        }
        Ok(tree)
    }

    /// Loads the documents of an image. The parts that they name may be missing.
    pub(crate) fn load_documents(
        blobs: &Blobs,
        pins: &Pins,
        digest: &Digest,
    ) -> Result<ImageTree, ImageError> {
        let (descriptor, document) = read_document(blobs, pins, digest)?;
        let mut children = Vec::new();
        if let ManifestDocument::Index(index) = &document {
            for part in &index.manifests {
                let (_, child) = read_document(blobs, pins, &part.digest)?;
                children.push((part.clone(), only_manifest(child)?));
            }
        }
        Ok(ImageTree { descriptor, document, children })
    }

    /// All parts except the top document.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &Descriptor> {
        let below =
            self.children.iter().flat_map(|(_, child)| std::iter::once(&child.config).chain(&child.layers));
        self.document.parts().into_iter().chain(below)
    }

    /// Pins the image and all of its parts.
    pub(crate) fn keep(&self, pins: &Pins) {
        pins.keep(&self.descriptor.digest);
        self.parts().for_each(|part| pins.keep(&part.digest));
    }

    /// The size of all its blobs, each counted once.
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

    /// Reads the image as that of a tool.
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

/// The manifest of a child of an index. Nested indexes are refused: no tool has them, and their depth has no bound.
pub(crate) fn only_manifest(document: ManifestDocument) -> Result<Manifest, ImageError> {
    match document {
        ManifestDocument::Manifest(manifest) => Ok(manifest),
        ManifestDocument::Index(_) => Err(BadImage::new("its index names another index").into()),
    }
}

/// Reads a manifest or index from the store, and pins it.
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
