//! Images: named, and gone when neither a name, an agent nor another image has them any more.

use lodge_core::Timestamp;
use lodge_core::limits::IMAGE_REFS_MAX;
use lodge_core::record::{ImageContents, ImageHeld, ImageKind, ImageRefRow, ImageRow, ImageState, Write};
use lodge_image::RemoteImage;
use lodge_proto::{ErrorBody, ImageRemoved, ImageView};

use super::state::Agent;
use super::{Batch, Caller, Engine, ImageGiven, NewImage, Refusal};
use crate::view;

/// Agents and images that a refusal names.
const USERS_SHOWN: usize = 5;

/// An image that is recorded, before it has its names.
#[derive(Debug)]
pub(super) struct Put {
    digest: String,
    /// With those that came with it.
    came: Vec<String>,
    tags: Vec<String>,
}

impl Engine {
    /// Records an image and gives it names.
    pub(super) fn add_image(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        new: NewImage,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        self.check_refs(new.row.contents.kind(), &new.tags)?;
        let (digest, bytes, named) = (new.row.digest.clone(), new.row.bytes, new.tags.clone());
        let bin = match &new.row.contents {
            ImageContents::Agent(_) => None,
            ImageContents::Bin(record) => Some(record.clone()),
        };
        let put = self.put_image(batch, new);
        self.name_put(batch, put, now);
        let shown = ImageView { named, ..self.shown(&digest, bytes, now) };
        let shown = match bin {
            None => view::json(&shown),
            Some(record) => {
                let used = self.users_of(&digest).count() + self.needed_by(&digest).count();
                view::json(&view::new_bin(shown, &record, used as u64))
            }
        };
        self.reply(batch, caller, shown, now);
        Ok(())
    }

    /// Records an image and gives it names, none of which may mean another image.
    pub(super) fn add_image_besides(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        new: NewImage,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let named = new.tags.iter().filter_map(|tag| self.image_refs.get(tag));
        let moves: Vec<String> =
            named.filter(|row| row.digest != new.row.digest).map(|row| row.reference.clone()).collect();
        if !moves.is_empty() {
            return Err(Box::new(names_move(&moves)));
        }
        self.add_image(batch, caller, new, now)
    }

    /// Gives an image that is recorded more names.
    pub(super) fn tag_image(
        &mut self,
        batch: &mut Batch,
        caller: Caller,
        digest: &str,
        tags: Vec<String>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        // It may have gone since it was looked up.
        let held = self.images.get(digest).ok_or_else(|| no_image(digest))?;
        let bytes = held.bytes;
        self.check_refs(held.kind, &tags)?;
        self.name_image(batch, digest, tags.clone(), now);
        let shown = view::json(&ImageView { named: tags, ..self.shown(digest, bytes, now) });
        self.reply(batch, caller, shown, now);
        Ok(())
    }

    fn shown(&self, digest: &str, bytes: u64, now: Timestamp) -> ImageView {
        let refs = self.refs_of(digest);
        ImageView {
            digest: digest.to_owned(),
            refs: refs.iter().map(|row| row.reference.clone()).collect(),
            named: Vec::new(),
            size_bytes: bytes,
            agents: self.users_of(digest).count() as u64,
            created_at: refs.iter().map(|row| row.at).max().unwrap_or(now).to_string(),
            complete: self.images.get(digest).is_some_and(|held| held.state == ImageState::Complete),
        }
    }

    /// Records an image and what came with it. [`Self::name_put`] has to follow, once whoever wanted it has it.
    pub(super) fn put_image(&mut self, batch: &mut Batch, new: NewImage) -> Put {
        let NewImage { row, with, tags } = new;
        let mut put = Put { digest: row.digest.clone(), came: Vec::new(), tags };
        for row in with.into_iter().chain([row]) {
            put.came.push(row.digest.clone());
            self.put_row(batch, row);
        }
        put
    }

    /// Gives an image its names. What came with it stays if somebody has it.
    pub(super) fn name_put(&mut self, batch: &mut Batch, put: Put, now: Timestamp) {
        let Put { digest, came, tags } = put;
        self.name_image(batch, &digest, tags, now);
        self.images_left(batch, came);
    }

    /// Records an image, unless as much of it is recorded.
    pub(super) fn put_row(&mut self, batch: &mut Batch, row: ImageRow) {
        let digest = row.digest.clone();
        let known = match self.images.get(&digest).map(|held| held.state) {
            Some(ImageState::Complete) => true,
            Some(ImageState::Announced) => row.state == ImageState::Announced,
            None => false,
        };
        if !known {
            self.images.insert(digest, row.held());
            batch.write(Write::Image(Box::new(row)));
        }
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
                // It may have gone since it was looked up.
                if !self.images.contains_key(&digest) {
                    return Err(no_image(&digest));
                }
                let refs = self.refs_of(&digest).into_iter().map(|row| row.reference.clone()).collect();
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
        self.images_left(batch, vec![digest.clone()]);
        let answer = view::json(&ImageRemoved { digest, untagged: refs, removed: last });
        self.reply(batch, caller, answer, now);
        Ok(())
    }

    /// Lets names mean an image that is recorded.
    fn name_image(&mut self, batch: &mut Batch, digest: &str, references: Vec<String>, now: Timestamp) {
        for reference in references {
            let row = ImageRefRow { reference: reference.clone(), digest: digest.to_owned(), at: now };
            batch.write(Write::ImageRef(row.clone()));
            let before = self.image_refs.insert(reference, row);
            if let Some(before) = before.filter(|before| before.digest != digest) {
                self.images_left(batch, vec![before.digest]);
            }
        }
    }

    /// Somebody has these images no longer, or never had: each goes when nobody has it, and with it what it alone needed.
    pub(super) fn images_left(&mut self, batch: &mut Batch, mut digests: Vec<String>) {
        while let Some(digest) = digests.pop() {
            if !self.images.contains_key(&digest) || self.is_had(&digest) {
                continue;
            }
            if let Some(held) = self.images.remove(&digest) {
                batch.write(Write::ImageGone { digest });
                digests.extend(held.needs);
            }
        }
    }

    /// Whether a name, an image or an agent has it. Images that nobody has are not here, so one that needs it will do.
    fn is_had(&self, digest: &str) -> bool {
        self.image_refs.values().any(|row| row.digest == digest)
            || self.needed_by(digest).next().is_some()
            || self.users_of(digest).next().is_some()
    }

    /// Refuses names for an image of this kind: too many, or those that an image of the other kind has.
    pub(super) fn check_refs(&self, kind: ImageKind, references: &[String]) -> Result<(), Refusal> {
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
        let known = references.iter().filter_map(|reference| self.image_refs.get(reference));
        for row in known {
            let had = self.images.get(&row.digest).map_or(kind, |held| held.kind);
            if had != kind {
                return Err(Box::new(name_taken(had, &row.reference)));
            }
        }
        Ok(())
    }

    fn refuse_in_use(&self, digest: &str, shown: &str) -> Result<(), Refusal> {
        let agents: Vec<&str> = self.users_of(digest).collect();
        let images: Vec<&str> = self.needed_by(digest).map(|held| self.called(held)).collect();
        let (users, hint) = match (agents.is_empty(), images.is_empty()) {
            (true, true) => return Ok(()),
            (false, true) => (
                format!("in use by {}", listed(agents)),
                "remove these agents first, with `lodge rm`; a name alone can go when the image has another",
            ),
            (true, false) => (
                format!("needed by {}", listed(images)),
                "remove these images first, with `lodge image rm`; a name alone can go when the image has another",
            ),
            (false, false) => (
                format!("in use by {}, and needed by {}", listed(agents), listed(images)),
                "remove these agents and images first, with `lodge rm` and `lodge image rm`",
            ),
        };
        Err(Box::new(ErrorBody::new("image.in_use", format!("the image `{shown}` is {users}")).hint(hint)))
    }

    /// What an image is called: one of its names, or its digest.
    fn called<'a>(&'a self, held: &'a ImageHeld) -> &'a str {
        let named = self.image_refs.values().find(|row| row.digest == held.digest);
        named.map_or(held.digest.as_str(), |row| row.reference.as_str())
    }

    fn refs_of(&self, digest: &str) -> Vec<&ImageRefRow> {
        self.image_refs.values().filter(|row| row.digest == digest).collect()
    }

    /// The names of agents that have an image, or will have it, as their own or for one of their tools.
    fn users_of<'a>(&'a self, digest: &'a str) -> impl Iterator<Item = &'a str> {
        let uses = move |agent: &&Agent| agent.row.images().any(|used| used == digest);
        self.agents.values().filter(uses).map(|agent| agent.row.name.as_str())
    }

    /// The images that cannot do without one.
    fn needed_by<'a>(&'a self, digest: &'a str) -> impl Iterator<Item = &'a ImageHeld> {
        self.images.values().filter(move |held| held.needs.iter().any(|need| need == digest))
    }
}

/// The first few of some names, in their order.
fn listed(mut names: Vec<&str>) -> String {
    names.sort_unstable();
    let more = names.len().saturating_sub(USERS_SHOWN);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let shown: Vec<String> = names.iter().take(USERS_SHOWN).map(|name| format!("`{name}`")).collect();
    format!("{}{more}", shown.join(", "))
}

/// Names of an archive that mean other images here.
pub(crate) fn names_move(names: &[String]) -> ErrorBody {
    let them = if names.len() == 1 { "a name that means" } else { "names that mean" };
    ErrorBody::new(
        "image.name_moves",
        format!("the archive has {them} another image here: {}", quoted(names)),
    )
    .hint("nothing was imported; `lodge image import --move` lets the names mean the images of the archive")
}

/// Names, as many as a refusal shows.
pub(crate) fn quoted(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(USERS_SHOWN).map(|name| format!("`{name}`")).collect();
    match names.len().saturating_sub(USERS_SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A name does not move from one kind to the other: whoever uses it means a tool, or an agent.
pub(crate) fn name_taken(had: ImageKind, reference: &str) -> ErrorBody {
    let (what, word) = match had {
        ImageKind::Agent => ("an agent's image", "image"),
        ImageKind::Bin => ("a tool", "bin"),
    };
    ErrorBody::new("image.name_taken", format!("`{reference}` is the name of {what}"))
        .hint(format!("choose another name, or remove that one first: `lodge {word} rm {reference}`"))
}

pub(crate) fn no_image(given: &str) -> Refusal {
    let hint = match RemoteImage::read(given) {
        Ok(Some(_)) => {
            format!("bring it first: `lodge image pull {given}`; `lodge image ls` lists those that are here")
        }
        Ok(None) | Err(_) => {
            "`lodge image ls` lists all images; `lodge image build DIR -t NAME` makes one".to_owned()
        }
    };
    Box::new(ErrorBody::new("image.not_found", format!("no image `{given}`")).hint(hint))
}
