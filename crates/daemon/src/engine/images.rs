//! Images: named, and gone when neither a name nor an agent has them any more.

use lodge_core::Timestamp;
use lodge_core::limits::IMAGE_REFS_MAX;
use lodge_core::record::{ImageRefRow, Write};
use lodge_proto::{ErrorBody, ImageRemoved, ImageView};

use super::{Batch, Caller, Engine, ImageGiven, NewImage, Refusal};
use crate::view;

/// Agents that a refusal names.
const USERS_SHOWN: usize = 5;

impl Engine {
    /// Records an image and gives it names.
    pub(super) fn build_image(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        new: NewImage,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let NewImage { digest, record, bytes, tags } = new;
        self.check_refs(&tags)?;
        let name = tags.first().cloned().unwrap_or_else(|| digest.clone());
        batch.write(Write::Image { digest: digest.clone(), name, record });
        self.name_image(batch, &digest, tags, now);
        let refs = self.refs_of(&digest);
        let created_at = refs.iter().map(|row| row.at).max().unwrap_or(now);
        let shown = ImageView {
            digest: digest.clone(),
            refs: refs.iter().map(|row| row.reference.clone()).collect(),
            size_bytes: bytes,
            agents: self.users_of(&digest).count() as u64,
            created_at: created_at.to_string(),
        };
        self.reply(batch, caller, view::json(&shown), now);
        Ok(())
    }

    /// Takes a name away, or an image with all of its names.
    pub(super) fn remove_image(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        given: ImageGiven,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let (digest, refs) = match given {
            ImageGiven::Ref(reference) => {
                let known = self.image_refs.get(&reference).ok_or_else(|| no_image(&reference))?;
                (known.digest.clone(), vec![reference])
            }
            ImageGiven::Digest(digest) => {
                let refs: Vec<String> =
                    self.refs_of(&digest).into_iter().map(|row| row.reference.clone()).collect();
                // It may have gone since it was looked up: one that neither a name nor an agent has is not there.
                if refs.is_empty() && self.users_of(&digest).next().is_none() {
                    return Err(no_image(&digest));
                }
                (digest, refs)
            }
        };
        let last = self.refs_of(&digest).len() <= refs.len();
        if last {
            self.refuse_in_use(&digest, refs.first().unwrap_or(&digest))?;
        }
        for reference in &refs {
            self.image_refs.remove(reference);
            batch.write(Write::ImageRefGone { reference: reference.clone() });
        }
        if last {
            batch.write(Write::ImageGone { digest: digest.clone() });
        }
        let answer = view::json(&ImageRemoved { digest, untagged: refs, removed: last });
        self.reply(batch, caller, answer, now);
        Ok(())
    }

    /// Lets names mean an image that is recorded with the same batch.
    pub(super) fn name_image(
        &mut self,
        batch: &mut Batch,
        digest: &str,
        references: Vec<String>,
        now: Timestamp,
    ) {
        for reference in references {
            let row = ImageRefRow { reference: reference.clone(), digest: digest.to_owned(), at: now };
            batch.write(Write::ImageRef(row.clone()));
            let before = self.image_refs.insert(reference, row);
            if let Some(before) = before.filter(|before| before.digest != digest) {
                self.image_left(batch, &before.digest);
            }
        }
    }

    /// A name or an agent has this image no longer: it goes when that was the last.
    pub(super) fn image_left(&mut self, batch: &mut Batch, digest: &str) {
        if self.refs_of(digest).is_empty() && self.users_of(digest).next().is_none() {
            batch.write(Write::ImageGone { digest: digest.to_owned() });
        }
    }

    pub(super) fn check_refs(&self, references: &[String]) -> Result<(), Refusal> {
        let new = references.iter().filter(|reference| !self.image_refs.contains_key(*reference)).count();
        if self.image_refs.len() + new > IMAGE_REFS_MAX {
            return Err(Box::new(
                ErrorBody::new(
                    "image.too_many",
                    format!("there are {} names of images", self.image_refs.len()),
                )
                .hint("remove some with `lodge image rm`"),
            ));
        }
        Ok(())
    }

    fn refuse_in_use(&self, digest: &str, shown: &str) -> Result<(), Refusal> {
        let mut users: Vec<&str> = self.users_of(digest).collect();
        if users.is_empty() {
            return Ok(());
        }
        users.sort_unstable();
        let more = users.len().saturating_sub(USERS_SHOWN);
        let names: Vec<String> = users.iter().take(USERS_SHOWN).map(|name| format!("`{name}`")).collect();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named = names.join(", ");
        Err(Box::new(
            ErrorBody::new("image.in_use", format!("the image `{shown}` is in use by {named}{more}")).hint(
                "remove these agents first, with `lodge rm`; a name alone can go when the image has another",
            ),
        ))
    }

    fn refs_of(&self, digest: &str) -> Vec<&ImageRefRow> {
        self.image_refs.values().filter(|row| row.digest == digest).collect()
    }

    /// The names of agents that have an image, or will have it.
    fn users_of<'a>(&'a self, digest: &'a str) -> impl Iterator<Item = &'a str> {
        let uses = move |agent: &&super::state::Agent| {
            let next = agent.row.next.as_ref().map(|next| next.image_digest.as_str());
            agent.row.image_digest == digest || next == Some(digest)
        };
        self.agents.values().filter(uses).map(|agent| agent.row.name.as_str())
    }
}

pub(crate) fn no_image(given: &str) -> Refusal {
    Box::new(
        ErrorBody::new("image.not_found", format!("no image `{given}`"))
            .hint("`lodge image ls` lists all images; `lodge image build DIR -t NAME` makes one"),
    )
}
