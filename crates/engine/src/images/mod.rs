//! Images: named, and removed when no name, agent or other image uses them.

pub mod messages;
mod pulls;
pub mod refusal;

use lodge_core::limits::IMAGE_REFS_MAX;
use lodge_core::record::{
    ImageContents, ImageFact, ImageKind, ImageRefRow, ImageRow, ImageState, ImageWrite,
};

use self::messages::{BinSnapshot, ImageAnswer, ImageRemoval, ImageSnapshot};
pub use self::messages::{ImageCommand, ImageSelector, NewImage, PullObservation};
use self::pulls::PulledImages;
pub use self::refusal::{ImageOrigin, ImageRefusal};
use crate::agents::Agent;
use crate::{Caller, Engine, Refusal};

/// A recorded image, before it gets its names.
#[derive(Debug)]
pub(crate) struct UnnamedImage {
    digest: String,
    /// And the images that came with it.
    came: Vec<String>,
    tags: Vec<String>,
}

impl Engine {
    pub(crate) fn image_command(&mut self, caller: Caller, command: ImageCommand) -> Result<(), Refusal> {
        match command {
            ImageCommand::Add(new) => self.add_image(caller, *new),
            ImageCommand::AddNew(new) => self.add_image_besides(caller, *new),
            ImageCommand::Tag { digest, tags } => self.tag_image(caller, &digest, tags),
            ImageCommand::Remove { given, used_by } => self.remove_image(caller, given, used_by),
        }
    }

    pub(crate) fn observe_pull(&mut self, seen: PullObservation) {
        match seen {
            PullObservation::Pulled { agent, ask, rows, tools, runtime } => {
                self.pulled(&agent, ask, PulledImages { rows, tools, runtime });
            }
            PullObservation::Failed { agent, ask, detail, again } => {
                self.pull_failed(&agent, ask, detail, again)
            }
        }
    }

    /// Records an image and gives it names.
    pub(crate) fn add_image(&mut self, caller: Caller, new: NewImage) -> Result<(), Refusal> {
        self.check_refs(new.row.contents.kind(), &new.tags)?;
        let (digest, bytes, named) = (new.row.digest.clone(), new.row.bytes, new.tags.clone());
        let bin = match &new.row.contents {
            ImageContents::Agent(_) => None,
            ImageContents::Bin(record) => Some(record.clone()),
        };
        let put = self.put_image(new);
        self.name_stored_image(put);
        let bin = bin.map(|record| {
            let users = self.count_users(&digest) + self.needed_by(&digest).count() as u64;
            BinSnapshot { record, users }
        });
        let answer = ImageSnapshot { named, bin, ..self.image_snapshot(&digest, bytes) };
        self.reply(caller, ImageAnswer::Image(Box::new(answer)));
        Ok(())
    }

    /// Records an image and gives it names, none of which may refer to another image.
    pub(crate) fn add_image_besides(&mut self, caller: Caller, new: NewImage) -> Result<(), Refusal> {
        let named = new.tags.iter().filter_map(|tag| self.image_refs.get(tag));
        let moves: Vec<String> =
            named.filter(|row| row.digest != new.row.digest).map(|row| row.reference.clone()).collect();
        if !moves.is_empty() {
            return Err(ImageRefusal::NamesMove { names: moves }.into());
        }
        self.add_image(caller, new)
    }

    /// Adds names to a recorded image.
    pub(crate) fn tag_image(
        &mut self,
        caller: Caller,
        digest: &str,
        tags: Vec<String>,
    ) -> Result<(), Refusal> {
        // It may have been removed since the lookup.
        let held = self.images.get(digest).ok_or_else(|| no_image(digest))?;
        let bytes = held.bytes;
        self.check_refs(held.kind, &tags)?;
        self.name_image(digest, tags.clone());
        let answer = ImageSnapshot { named: tags, ..self.image_snapshot(digest, bytes) };
        self.reply(caller, ImageAnswer::Image(Box::new(answer)));
        Ok(())
    }

    fn image_snapshot(&self, digest: &str, bytes: u64) -> ImageSnapshot {
        let refs = self.refs_of(digest);
        ImageSnapshot {
            digest: digest.to_owned(),
            refs: refs.iter().map(|row| row.reference.clone()).collect(),
            named: Vec::new(),
            bytes,
            agents: self.count_users(digest),
            named_at: refs.iter().map(|row| row.at).max().unwrap_or(self.step.now),
            complete: self.images.get(digest).is_some_and(|held| held.state == ImageState::Complete),
            bin: None,
        }
    }

    /// Records an image and the images that it needs. The caller must then call [`Self::name_stored_image`].
    pub(crate) fn put_image(&mut self, new: NewImage) -> UnnamedImage {
        let NewImage { row, with, tags } = new;
        let mut put = UnnamedImage { digest: row.digest.clone(), came: Vec::new(), tags };
        for row in with.into_iter().chain([row]) {
            put.came.push(row.digest.clone());
            self.put_row(row);
        }
        put
    }

    /// Gives an image its names. The images that it needs stay if they are in use.
    pub(crate) fn name_stored_image(&mut self, put: UnnamedImage) {
        let UnnamedImage { digest, came, tags } = put;
        self.name_image(&digest, tags);
        self.release_images(came);
    }

    /// Records an image, unless it is recorded as completely.
    pub(crate) fn put_row(&mut self, row: ImageRow) {
        let digest = row.digest.clone();
        let known = match self.images.get(&digest).map(|held| held.state) {
            Some(ImageState::Complete) => true,
            Some(ImageState::Announced) => row.state == ImageState::Announced,
            None => false,
        };
        if !known {
            self.images.insert(digest, row.fact());
            self.step.write(ImageWrite::Here(Box::new(row)));
        }
    }

    /// Removes a name, or an image with all of its names.
    pub(crate) fn remove_image(
        &mut self,
        caller: Caller,
        given: ImageSelector,
        used_by: Vec<String>,
    ) -> Result<(), Refusal> {
        let (digest, refs) = match given {
            ImageSelector::Ref(reference) => {
                let known = self.image_refs.get(&reference).ok_or_else(|| no_image(&reference))?;
                (known.digest.clone(), vec![reference])
            }
            ImageSelector::Digest(digest) => {
                // It may have been removed since the lookup.
                if !self.images.contains_key(&digest) {
                    return Err(no_image(&digest));
                }
                let refs = self.refs_of(&digest).into_iter().map(|row| row.reference.clone()).collect();
                (digest, refs)
            }
        };
        let last = self.refs_of(&digest).len() <= refs.len();
        if last {
            self.refuse_in_use(&digest, refs.first().unwrap_or(&digest), used_by)?;
        }
        for reference in &refs {
            self.image_refs.remove(reference);
            self.step.write(ImageWrite::Unnamed { reference: reference.clone() });
        }
        self.release_images(vec![digest.clone()]);
        self.reply(caller, ImageAnswer::Removed(ImageRemoval { digest, untagged: refs, removed: last }));
        Ok(())
    }

    /// Points names to a recorded image.
    fn name_image(&mut self, digest: &str, references: Vec<String>) {
        for reference in references {
            let row =
                ImageRefRow { reference: reference.clone(), digest: digest.to_owned(), at: self.step.now };
            self.step.write(ImageWrite::Named(row.clone()));
            let before = self.image_refs.insert(reference, row);
            if let Some(before) = before.filter(|before| before.digest != digest) {
                self.release_images(vec![before.digest]);
            }
        }
    }

    /// These images lost a user. Each is removed when it has no other user, together with the images that only it
    /// needs.
    pub(crate) fn release_images(&mut self, mut digests: Vec<String>) {
        while let Some(digest) = digests.pop() {
            if !self.images.contains_key(&digest) || self.is_image_in_use(&digest) {
                continue;
            }
            if let Some(held) = self.images.remove(&digest) {
                self.step.write(ImageWrite::Gone { digest });
                digests.extend(held.needs);
            }
        }
    }

    /// Whether a name, an image or an agent uses it. Unused images are not in memory, so any image that needs it
    /// counts.
    fn is_image_in_use(&self, digest: &str) -> bool {
        self.image_refs.values().any(|row| row.digest == digest)
            || self.needed_by(digest).next().is_some()
            || self.resting_images.contains_key(digest)
            || self.users_of(digest).next().is_some()
    }

    /// Refuses names for an image of this kind: too many names, or names of an image of the other kind.
    pub(crate) fn check_refs(&self, kind: ImageKind, references: &[String]) -> Result<(), Refusal> {
        let new = references.iter().filter(|reference| !self.image_refs.contains_key(*reference)).count();
        if self.image_refs.len() + new > IMAGE_REFS_MAX {
            return Err(ImageRefusal::TooMany { names: self.image_refs.len() }.into());
        }
        let known = references.iter().filter_map(|reference| self.image_refs.get(reference));
        for row in known {
            let had = self.images.get(&row.digest).map_or(kind, |held| held.kind);
            if had != kind {
                return Err(ImageRefusal::NameTaken { reference: row.reference.clone(), kind: had }.into());
            }
        }
        Ok(())
    }

    fn refuse_in_use(&self, digest: &str, shown: &str, used_by: Vec<String>) -> Result<(), Refusal> {
        let mut agents: Vec<String> = self.users_of(digest).map(str::to_owned).collect();
        let rests = self.resting_images.contains_key(digest);
        if rests {
            agents.extend(used_by);
            agents.sort();
            agents.dedup();
        }
        let images: Vec<String> = self.needed_by(digest).map(|held| self.called(held).to_owned()).collect();
        if agents.is_empty() && images.is_empty() && !rests {
            return Ok(());
        }
        Err(ImageRefusal::InUse { shown: shown.to_owned(), agents, images }.into())
    }

    /// The shown name of an image: one of its names, or its digest.
    fn called<'a>(&'a self, held: &'a ImageFact) -> &'a str {
        let named = self.image_refs.values().find(|row| row.digest == held.digest);
        named.map_or(held.digest.as_str(), |row| row.reference.as_str())
    }

    fn refs_of(&self, digest: &str) -> Vec<&ImageRefRow> {
        self.image_refs.values().filter(|row| row.digest == digest).collect()
    }

    /// How many agents use an image, pending updates included.
    fn count_users(&self, digest: &str) -> u64 {
        let resting = self.resting_images.get(digest).copied().unwrap_or(0);
        self.users_of(digest).count() as u64 + resting
    }

    /// The names of agents in memory that use an image, pending updates included, as their own or for a tool.
    fn users_of<'a>(&'a self, digest: &'a str) -> impl Iterator<Item = &'a str> {
        let uses = move |agent: &&Agent| agent.row.images().any(|used| used == digest);
        self.agents.values().filter(uses).map(|agent| agent.row.name.as_str())
    }

    /// The images that need this one.
    fn needed_by<'a>(&'a self, digest: &'a str) -> impl Iterator<Item = &'a ImageFact> {
        self.images.values().filter(move |held| held.needs.iter().any(|need| need == digest))
    }
}

fn no_image(given: &str) -> Refusal {
    ImageRefusal::NotFound { given: given.to_owned(), origin: ImageOrigin::Local }.into()
}
