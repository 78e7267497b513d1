//! What an archive held, as it is to be recorded.

use std::collections::{BTreeMap, BTreeSet};

use lodge_core::record::{ImageContents, ImageKind, ImageRow};
use lodge_image::oci::Archive;
use lodge_image::{Pins, Tagged};
use lodge_proto::ErrorBody;

use crate::api::create::NAME_DEFAULT;
use crate::api::images;
use crate::api::methods::internal;
use crate::engine::NewImage;
use crate::engine::images::name_taken;
use crate::images::errors;
use crate::shell::Shell;

/// Where a tool goes that cannot be called by its own name alone.
const UNNAMED_DIR: &str = "imported";

/// Images of an archive, all of them checked.
#[derive(Debug)]
pub(super) struct Taken {
    pub agents: Vec<NewImage>,
    /// Tools with a name of their own, or that no agent among them needs.
    pub bins: Vec<NewImage>,
    /// How many other tools the agents come with.
    pub tools: u64,
    pub pins: Pins,
}

impl Taken {
    pub fn of(shell: &Shell, pins: Pins, archive: Archive) -> Result<Taken, ErrorBody> {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (descriptor, name) in &archive.images {
            let names = names.entry(descriptor.digest.to_string()).or_default();
            names.extend(name.as_deref().map(tagged).transpose()?);
        }
        if names.is_empty() {
            return Err(invalid("there is no image in the archive"));
        }
        let mut given = BTreeSet::new();
        if let Some(twice) = names.values().flatten().find(|name| !given.insert(*name)) {
            return Err(invalid(&format!("two images of the archive are called `{twice}`")));
        }
        let mut rows: BTreeMap<String, ImageRow> = BTreeMap::new();
        for (digest, names) in &names {
            let first = names.first().cloned().unwrap_or_default();
            rows.insert(digest.clone(), shell.images.found(&pins, digest, first)?);
        }
        let needed: BTreeSet<String> = rows.values().flat_map(|row| row.contents.needs()).collect();
        let (mut agents, mut bins, mut tools) = (Vec::new(), Vec::new(), 0);
        for (digest, names) in names {
            let Some(row) = rows.get(&digest).cloned() else { continue };
            match &row.contents {
                ImageContents::Agent(_) => {
                    let needs = row.contents.needs();
                    let with = needs.iter().filter_map(|need| rows.get(need).cloned()).collect();
                    let tags = tags(names, &row);
                    agents.push(NewImage { row, with, tags });
                }
                // It comes with the agent that needs it.
                ImageContents::Bin(_) if names.is_empty() && needed.contains(&digest) => tools += 1,
                ImageContents::Bin(_) => {
                    let tags = tags(names, &row);
                    images::free_for(ImageKind::Bin, &tags)?;
                    bins.push(NewImage { row, with: Vec::new(), tags });
                }
            }
        }
        for new in agents.iter().chain(&bins) {
            refuse_taken(shell, new)?;
        }
        Ok(Taken { agents, bins, tools, pins })
    }
}

/// Refuses names that images of the other kind have, before anything of the archive is recorded.
fn refuse_taken(shell: &Shell, new: &NewImage) -> Result<(), ErrorBody> {
    let kind = new.row.contents.kind();
    for tag in &new.tags {
        let Some(row) = shell.reader.image_ref(tag).map_err(internal)? else { continue };
        let had = shell.reader.image_kind(&row.digest).map_err(internal)?;
        if let Some((had, _)) = had.filter(|(had, _)| *had != kind) {
            return Err(name_taken(had, tag));
        }
    }
    Ok(())
}

/// The names of an image. One that the archive has no name for gets one that no other has.
fn tags(names: BTreeSet<String>, row: &ImageRow) -> Vec<String> {
    if !names.is_empty() {
        return names.into_iter().collect();
    }
    let name = match &row.contents {
        ImageContents::Agent(record) => record.name.as_deref().unwrap_or(NAME_DEFAULT),
        ImageContents::Bin(record) => &record.name,
    };
    let hex = row.digest.split_once(':').map_or(row.digest.as_str(), |(_, hex)| hex);
    let tag = format!("{name}:{}", images::digest_tag(hex));
    let is_free = images::free_for(row.contents.kind(), std::slice::from_ref(&tag)).is_ok();
    vec![if is_free { tag } else { format!("{UNNAMED_DIR}/{tag}") }]
}

fn tagged(name: &str) -> Result<String, ErrorBody> {
    let bad = |error: lodge_image::BadReference| invalid(&error.to_string());
    Tagged::read(name).map(|tagged| tagged.as_str().to_owned()).map_err(bad)
}

fn invalid(why: &str) -> ErrorBody {
    errors::bad_image(&lodge_image::oci::BadImage::new(why))
}
