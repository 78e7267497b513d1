//! Images in the simulated store.

use std::collections::BTreeMap;

use lodge_core::record::{AgentRow, ImageHeld, ImageRow, ImageState};

use super::SimDisk;
use crate::laws::LawViolation;

#[derive(Debug, Default)]
pub(super) struct ImageTable(BTreeMap<String, ImageHeld>);

impl ImageTable {
    /// What is known of a whole image does not change.
    pub(super) fn put(&mut self, row: &ImageRow) {
        let whole = self.0.get(&row.digest).is_some_and(|held| held.state == ImageState::Complete);
        if !whole {
            self.0.insert(row.digest.clone(), row.held());
        }
    }
}

impl SimDisk {
    pub fn images(&self) -> impl Iterator<Item = &ImageHeld> {
        self.images.0.values()
    }

    /// Those that have a name.
    pub fn named_images(&self) -> impl Iterator<Item = &str> {
        self.image_refs.values().map(|row| row.digest.as_str())
    }

    pub fn has_image(&self, digest: &str) -> bool {
        self.images.0.contains_key(digest)
    }

    /// Whether all of an image is recorded to be here.
    pub fn is_whole(&self, digest: &str) -> bool {
        self.images.0.get(digest).is_some_and(|held| held.state == ImageState::Complete)
    }

    /// Whether a name, an agent or another image has it.
    pub fn is_had(&self, digest: &str) -> bool {
        let uses = |row: &AgentRow| row.state.codes().0 < 7 && row.images().any(|used| used == digest);
        self.named_images().any(|named| named == digest)
            || self.agents.iter().any(uses)
            || self.images().any(|held| held.needs.iter().any(|need| need == digest))
    }

    /// No image goes that somebody has.
    pub(super) fn remove_image(&mut self, digest: &str) -> Result<(), LawViolation> {
        if self.is_had(digest) || self.images.0.remove(digest).is_none() {
            return Err(format!("the image {digest} went although it is in use, or twice"));
        }
        Ok(())
    }
}
