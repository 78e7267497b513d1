//! The contents of an archive, to be recorded.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use lodge_core::record::{ImageContents, ImageKind, ImageRow};
use lodge_image::agentfile::shown;
use lodge_image::oci::ImportedArchive;
use lodge_image::{Pins, TaggedName};
use lodge_proto::ErrorBody;

use crate::api::create::NAME_DEFAULT;
use crate::api::images;
use crate::api::methods::internal;
use crate::images::ImageError;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::view;
use lodge_engine::NewImage;
use lodge_engine::{ImageRefusal, quoted};

/// Where a tool goes that cannot be called by its own name alone.
const UNNAMED_DIR: &str = "imported";
/// The tools that come with Lodge, and what they are called for short.
const STOCK_DIR: &str = "stock/";
const STOCK_TOOLS: [&str; 7] = ["busybox", "sh", "rg", "fd", "jaq", "jq", "xh"];

/// What an import may do with names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ImportNaming {
    /// Names that mean other images here may move.
    pub moves: bool,
    /// Names of stock tools and of registries may be taken.
    pub claims: bool,
}

impl ImportNaming {
    pub fn read(
        asked: Result<Query<Vec<(String, String)>>, QueryRejection>,
    ) -> Result<ImportNaming, ErrorBody> {
        let invalid = |what: String| {
            ErrorBody::new("params.invalid", what).hint("`move` and `claim` are `true` or `false`")
        };
        let Query(asked) = asked.map_err(|error| invalid(error.body_text()))?;
        let mut allowed = ImportNaming::default();
        for (key, value) in asked {
            let to = match key.as_str() {
                "move" => &mut allowed.moves,
                "claim" => &mut allowed.claims,
                _unknown => return Err(invalid(format!("`{}` is not known here", shown(&key)))),
            };
            *to = value.parse().map_err(|_| invalid(format!("`{}` is neither", shown(&value))))?;
        }
        Ok(allowed)
    }
}

/// Images of an archive, all of them checked.
#[derive(Debug)]
pub(super) struct CheckedImport {
    pub agents: Vec<NewImage>,
    /// Tools with a name of their own, or that no agent among them needs.
    pub bins: Vec<NewImage>,
    /// How many other tools the agents come with.
    pub tools: u64,
    pub pins: Pins,
}

impl CheckedImport {
    pub fn of(
        shell: &Shell,
        pins: Pins,
        archive: ImportedArchive,
        allowed: ImportNaming,
    ) -> Result<CheckedImport, ErrorBody> {
        let mut names: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (descriptor, name) in &archive.images {
            let names = names.entry(descriptor.digest.to_string()).or_default();
            names.extend(name.as_deref().map(tagged).transpose()?);
        }
        if names.is_empty() {
            return Err(invalid("there is no image in the archive"));
        }
        let mut given = BTreeSet::new();
        if let Some(twice) = names.values().flatten().find(|name| !given.insert((*name).clone())) {
            return Err(invalid(&format!("two images of the archive are called `{twice}`")));
        }
        let mut rows: BTreeMap<String, ImageRow> = BTreeMap::new();
        for (digest, names) in &names {
            let first = names.first().cloned().unwrap_or_default();
            rows.insert(digest.clone(), shell.images.load_row(&pins, digest, first)?);
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
        let (mut moves, mut claims) = (Vec::new(), Vec::new());
        for new in agents.iter().chain(&bins) {
            shell.read_here(|at| refuse_taken(at, new))?;
            for tag in &new.tags {
                let row = shell.reader.here(|store| store.image_ref(tag)).map_err(internal)?;
                let known = row.map(|row| row.digest);
                if known.as_ref().is_some_and(|digest| *digest != new.row.digest) {
                    moves.push(tag.clone());
                }
                // A name that already refers to this image is unchanged, and a name that we made up belongs to no one.
                if given.contains(tag) && known.as_ref() != Some(&new.row.digest) && is_reserved(tag) {
                    claims.push(tag.clone());
                }
            }
        }
        if !allowed.moves && !moves.is_empty() {
            return Err(view::refused(ImageRefusal::NamesMove { names: moves }));
        }
        if !allowed.claims && !claims.is_empty() {
            return Err(names_claimed(&claims));
        }
        Ok(CheckedImport { agents, bins, tools, pins })
    }
}

/// Whether people take a name for that of a tool that comes with Lodge, or of an image in a registry.
fn is_reserved(tag: &str) -> bool {
    let name = tag.rsplit_once(':').map_or(tag, |(name, _)| name);
    name.starts_with(STOCK_DIR)
        || STOCK_TOOLS.contains(&name)
        || !matches!(lodge_image::RemoteImage::read(tag), Ok(None))
}

fn names_claimed(names: &[String]) -> ErrorBody {
    ErrorBody::new(
        "image.name_claimed",
        format!("the archive has names of stock tools or of registries: {}", quoted(names)),
    )
    .because("agents that name them would run what is in this archive")
    .hint("nothing was imported; if you trust the archive, `lodge image import --yes` takes the names")
}

/// Refuses names that images of the other kind have, before anything of the archive is recorded.
fn refuse_taken(at: &ReadView<'_>, new: &NewImage) -> Result<(), ErrorBody> {
    let kind = new.row.contents.kind();
    for tag in &new.tags {
        let Some(row) = at.store.image_ref(tag).map_err(internal)? else { continue };
        let had = at.store.image_kind(&row.digest).map_err(internal)?;
        if let Some((had, _)) = had.filter(|(had, _)| *had != kind) {
            return Err(view::refused(ImageRefusal::NameTaken { reference: tag.clone(), kind: had }));
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
    TaggedName::read(name).map(|tagged| tagged.as_str().to_owned()).map_err(bad)
}

fn invalid(why: &str) -> ErrorBody {
    ImageError::Invalid(lodge_image::oci::BadImage::new(why)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_stock_tools_and_registries_are_reserved() {
        for name in
            ["stock/rg:latest", "stock/own:v1", "rg:latest", "sh:v9", "r.example/a:v1", "localhost:5000/a:v1"]
        {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["otter:latest", "team/rg:latest", "rgx:latest", "stocks/rg:v1"] {
            assert!(!is_reserved(name), "{name}");
        }
    }

    #[test]
    fn an_import_allows_nothing_unless_it_says_so() {
        let read = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            ImportNaming::read(Ok(Query(pairs)))
        };
        assert_eq!(read(&[]).unwrap(), ImportNaming::default());
        assert_eq!(read(&[("move", "true")]).unwrap(), ImportNaming { moves: true, claims: false });
        assert_eq!(
            read(&[("claim", "true"), ("move", "false")]).unwrap(),
            ImportNaming { moves: false, claims: true }
        );
        for wrong in [("move", "1"), ("force", "true")] {
            assert_eq!(read(&[wrong]).unwrap_err().data.code, "params.invalid");
        }
    }
}
