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
    /// Agents that use it, pending updates included, as their own or for a tool.
    pub agents: u64,
    /// Images that need it.
    pub needed_by: u64,
    pub state: ImageState,
    /// When it got its newest name. Without a name: when the images that need it got theirs, or when its first agent
    /// was created.
    pub at: Timestamp,
}

pub trait ImageReads {
    /// The record of an image; absent if it was removed.
    fn image(&self, digest: &str) -> Result<Option<ImageRecord>>;
    /// A tool; absent if it was removed or is not a tool.
    fn bin_image(&self, digest: &str) -> Result<Option<BinImageRecord>>;
    /// The digests of all images whose contents are needed.
    fn image_digests(&self) -> Result<Vec<String>>;
    fn image_ref(&self, reference: &str) -> Result<Option<ImageRefRow>>;
    /// All names, in their order; there are `IMAGE_REFS_MAX` at most.
    fn image_refs(&self) -> Result<Vec<ImageRefRow>>;
    /// The names that are `name` with some tag, in the order of their tags.
    fn image_tags(&self, name: &str) -> Result<Vec<ImageRefRow>>;
    /// The digests with this prefix, at most [`ID_MATCHES_MAX`](super::ID_MATCHES_MAX).
    fn find_digests(&self, given: &str) -> Result<Vec<String>>;
    /// A page of images of a kind, in the order of their digests.
    fn images(&self, kind: ImageKind, after: Option<&str>, limit: u32) -> Result<Vec<ImageSummary>>;
    /// A page of tools, in the order of their digests.
    fn bins(&self, after: Option<&str>, limit: u32) -> Result<Vec<(ImageSummary, BinImageRecord)>>;
    fn image_summary(&self, digest: &str) -> Result<Option<ImageSummary>>;
    /// The kind of an image, and whether it is complete.
    fn image_kind(&self, digest: &str) -> Result<Option<(ImageKind, ImageState)>>;
    /// The names of agents that use an image, pending updates included; a readable number of them.
    fn agents_of_image(&self, digest: &str) -> Result<Vec<String>>;
}
