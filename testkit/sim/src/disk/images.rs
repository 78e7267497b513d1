//! Images in the simulated store.

use std::collections::BTreeMap;

use lodge_core::record::{AgentRow, ImageFact, ImageRow, ImageState};

use super::SimDisk;
use crate::laws::LawViolation;

#[derive(Debug, Default)]
pub(super) struct ImageTable(BTreeMap<String, ImageFact>);

impl ImageTable {
    /// The record of a complete image does not change.
    pub(super) fn put(&mut self, row: &ImageRow) {
        let is_complete = self.0.get(&row.digest).is_some_and(|image| image.state == ImageState::Complete);
        if !is_complete {
            self.0.insert(row.digest.clone(), row.fact());
        }
    }
}

impl SimDisk {
    pub fn images(&self) -> impl Iterator<Item = &ImageFact> {
        self.images.0.values()
    }

    /// Images with a name.
    pub fn named_images(&self) -> impl Iterator<Item = &str> {
        self.image_refs.values().map(|row| row.digest.as_str())
    }

    pub fn has_image(&self, digest: &str) -> bool {
        self.images.0.contains_key(digest)
    }

    /// Whether an image is recorded as complete.
    pub fn is_complete(&self, digest: &str) -> bool {
        self.images.0.get(digest).is_some_and(|image| image.state == ImageState::Complete)
    }

    /// Whether a name, an agent or another image references it.
    pub fn is_referenced(&self, digest: &str) -> bool {
        let uses = |row: &AgentRow| row.state.codes().0 < 7 && row.images().any(|used| used == digest);
        self.named_images().any(|named| named == digest)
            || self.agents.iter().any(uses)
            || self.images().any(|image| image.needs.iter().any(|need| need == digest))
    }

    /// An image in use is not removed.
    pub(super) fn remove_image(&mut self, digest: &str) -> Result<(), LawViolation> {
        if self.is_referenced(digest) || self.images.0.remove(digest).is_none() {
            return Err(format!("the image {digest} went although it is in use, or twice"));
        }
        Ok(())
    }
}
