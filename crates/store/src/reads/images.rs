//! Images and their names.

use lodge_core::Timestamp;
use lodge_core::record::{BinImageRecord, ImageKind, ImageRecord, ImageRefRow, ImageState};

use super::Result;

/// An image without its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageSummary {
    pub digest: String,
    pub kind: ImageKind,
    /// The name it was built with first.
    pub name: String,
    /// In order of their text.
    pub refs: Vec<ImageRefRow>,
    pub bytes: u64,
    /// Agents that have it, or will have it, as their own or for a tool.
    pub agents: u64,
    /// Images that cannot do without it.
    pub needed_by: u64,
    pub state: ImageState,
    /// When it got its newest name. Without one, when the images that need it got theirs, or else when its first agent came.
    pub at: Timestamp,
}

pub trait ImageReads {
    /// What an image is made of; absent when it is gone.
    fn image(&self, digest: &str) -> Result<Option<ImageRecord>>;
    /// A tool; absent when it is gone, or no tool.
    fn bin_image(&self, digest: &str) -> Result<Option<BinImageRecord>>;
    /// The digests of all images whose contents are wanted.
    fn image_digests(&self) -> Result<Vec<String>>;
    fn image_ref(&self, reference: &str) -> Result<Option<ImageRefRow>>;
    /// All names, in their order; there are `IMAGE_REFS_MAX` at most.
    fn image_refs(&self) -> Result<Vec<ImageRefRow>>;
    /// The names that are `name` with some tag, in the order of their tags.
    fn image_tags(&self, name: &str) -> Result<Vec<ImageRefRow>>;
    /// The digests that are this one or begin so, a few at most.
    fn find_digests(&self, given: &str) -> Result<Vec<String>>;
    /// A page of images of a kind, in the order of their digests.
    fn images(&self, kind: ImageKind, after: Option<&str>, limit: u32) -> Result<Vec<ImageSummary>>;
    /// A page of tools, in the order of their digests.
    fn bins(&self, after: Option<&str>, limit: u32) -> Result<Vec<(ImageSummary, BinImageRecord)>>;
    fn image_summary(&self, digest: &str) -> Result<Option<ImageSummary>>;
    /// What an image is, and whether all of it is there.
    fn image_kind(&self, digest: &str) -> Result<Option<(ImageKind, ImageState)>>;
    /// The names of agents that have an image, or will have it; not more than a person reads.
    fn agents_of_image(&self, digest: &str) -> Result<Vec<String>>;
}
