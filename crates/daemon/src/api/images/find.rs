//! Which image somebody means.

use lodge_core::record::{BinImageRecord, ImageKind, ImageRecord};
use lodge_image::{BadReference, Reference, RemoteImage, TaggedName, stock_hint};
use lodge_proto::ErrorBody;

use crate::api::methods::internal;
use crate::shell::Shell;
use crate::view::no_image;

/// Names that one call gives.
const TAGS_MAX: usize = 64;
/// Names that a refusal tells.
const TAGS_SHOWN: usize = 5;
/// Letters of a digest that are a tag.
const DIGEST_TAG: usize = 12;

/// An image of the store.
#[derive(Debug, Clone)]
pub(in crate::api) struct Located {
    pub digest: String,
    /// The name that it was asked for by, if that is not its digest.
    pub reference: Option<String>,
    pub kind: ImageKind,
}

/// An agent's image of the store.
#[derive(Debug, Clone)]
pub(in crate::api) struct Found {
    pub digest: String,
    /// As it was asked for: `name:tag`, or its digest.
    pub named: String,
    pub record: ImageRecord,
}

/// A tool of the store.
#[derive(Debug, Clone)]
pub(in crate::api) struct FoundBin {
    pub digest: String,
    /// The name that it was asked for by, if that is not its digest.
    pub named: Option<String>,
    pub record: BinImageRecord,
}

/// An agent's image by name, by digest, or by a unique beginning of one.
pub(in crate::api) fn find(shell: &Shell, given: &str) -> Result<Found, ErrorBody> {
    let Located { digest, reference, .. } = located(shell, ImageKind::Agent, given)?;
    let record = shell.reader.image(&digest).map_err(internal)?.ok_or_else(|| no_image(given))?;
    Ok(Found { named: reference.unwrap_or_else(|| digest.clone()), digest, record })
}

/// A tool by name, by digest, or by a unique beginning of one.
pub(in crate::api) fn find_bin(shell: &Shell, given: &str) -> Result<FoundBin, ErrorBody> {
    let Located { digest, reference: named, .. } = located(shell, ImageKind::Bin, given)?;
    let record = shell.reader.bin_image(&digest).map_err(internal)?.ok_or_else(|| no_bin(given))?;
    Ok(FoundBin { digest, named, record })
}

/// An image that has to be of a kind.
pub(super) fn located(shell: &Shell, kind: ImageKind, given: &str) -> Result<Located, ErrorBody> {
    let located = locate(shell, given).map_err(|error| match (kind, error.data.code.as_str()) {
        (ImageKind::Bin, "image.not_found") => other_tags(shell, given, no_bin(given)),
        (ImageKind::Agent | ImageKind::Bin, _) => error,
    })?;
    if located.kind == kind { Ok(located) } else { Err(wrong_kind(kind, given)) }
}

/// An image of any kind.
pub(in crate::api) fn locate(shell: &Shell, given: &str) -> Result<Located, ErrorBody> {
    let beginning = match Reference::read(given).map_err(|error| bad_ref(&error))? {
        Reference::Name(tagged) => match shell.reader.image_ref(tagged.as_str()).map_err(internal)? {
            Some(row) => return with_kind(shell, given, row.digest, Some(row.reference)),
            None => {
                Reference::short_digest(given).ok_or_else(|| other_tags(shell, given, no_image(given)))?
            }
        },
        Reference::Digest(digest) => digest,
    };
    let mut found = shell.reader.find_digests(&beginning).map_err(internal)?;
    match found.len() {
        0 => Err(no_image(given)),
        1 => with_kind(shell, given, found.remove(0), None),
        _ => Err(ErrorBody::new("image.ambiguous", format!("several images begin with `{given}`"))
            .hint(format!("give more of the digest: {}", found.join(", ")))),
    }
}

fn with_kind(
    shell: &Shell,
    given: &str,
    digest: String,
    reference: Option<String>,
) -> Result<Located, ErrorBody> {
    let summary = shell.reader.image_summary(&digest).map_err(internal)?;
    let kind = summary.ok_or_else(|| no_image(given))?.kind;
    Ok(Located { digest, reference, kind })
}

/// What was named is there, and is not what was wanted.
pub(in crate::api) fn wrong_kind(wanted: ImageKind, given: &str) -> ErrorBody {
    match wanted {
        ImageKind::Agent => ErrorBody::new("image.not_an_agent", format!("`{given}` is a tool, and no agent"))
            .hint("tools are the business of `lodge bin`: `lodge bin pull`, `lodge bin push`, `lodge bin inspect`, `lodge bin rm`"),
        ImageKind::Bin => ErrorBody::new("bin.not_a_bin", format!("`{given}` is an agent, and no tool"))
            .hint(
                "agents are the business of `lodge image`: `lodge image pull`, `lodge image push`, `lodge image inspect`, `lodge image rm`",
            ),
    }
}

fn no_bin(given: &str) -> ErrorBody {
    let hint = match (RemoteImage::read(given), stock_hint(given)) {
        (Ok(Some(_)), _) => {
            format!("bring it first: `lodge bin pull {given}`; `lodge bin ls` lists those that are here")
        }
        (Ok(None) | Err(_), Some(hint)) => hint.to_owned(),
        (Ok(None) | Err(_), None) => {
            "`lodge bin ls` lists all tools; `lodge bin build` and `lodge bin pull` bring one".to_owned()
        }
    };
    ErrorBody::new("bin.not_found", format!("no tool `{given}`")).hint(hint)
}

/// Tells whoever left the tag out, or gave a wrong one, which there are.
fn other_tags(shell: &Shell, given: &str, error: ErrorBody) -> ErrorBody {
    let Ok(tagged) = TaggedName::read(given) else { return error };
    let Some((name, _)) = tagged.as_str().rsplit_once(':') else { return error };
    let tags = shell.reader.image_tags(name).unwrap_or_default();
    let names: Vec<String> = tags.iter().take(TAGS_SHOWN).map(|row| format!("`{}`", row.reference)).collect();
    match names.as_slice() {
        [] => error,
        names => error.hint(format!("there is {}", names.join(", "))),
    }
}

/// Names as they are kept, each once.
pub(in crate::api) fn tags_of(given: &[String]) -> Result<Vec<String>, ErrorBody> {
    if given.len() > TAGS_MAX {
        return Err(ErrorBody::new("params.invalid", format!("at most {TAGS_MAX} names at once"))
            .hint("give the rest with `lodge image tag`"));
    }
    let mut tags = given.iter().map(|tag| tagged(tag)).collect::<Result<Vec<_>, _>>()?;
    tags.sort();
    tags.dedup();
    Ok(tags)
}

/// Refuses names that no line of an Agentfile could have a tool by.
pub(in crate::api) fn free_for(kind: ImageKind, tags: &[String]) -> Result<(), ErrorBody> {
    let is_taken = |tag: &&String| TaggedName::read(tag).is_ok_and(|tagged| tagged.reads_as_program());
    match (kind, tags.iter().find(is_taken)) {
        (ImageKind::Bin, Some(tag)) => Err(ErrorBody::new(
            "image.bad_ref",
            format!("`{tag}` cannot be the name of a tool: `host:` is what programs of the host begin with"),
        )
        .hint("give it another name, such as `-t my/host`")),
        (ImageKind::Agent, _) | (ImageKind::Bin, None) => Ok(()),
    }
}

/// The tag of an image that nobody gives one.
pub(in crate::api) fn digest_tag(hex: &str) -> &str {
    hex.get(..DIGEST_TAG).unwrap_or(hex)
}

pub(in crate::api) fn tagged(text: &str) -> Result<String, ErrorBody> {
    TaggedName::read(text).map(|tagged| tagged.as_str().to_owned()).map_err(|error| bad_ref(&error))
}

pub(in crate::api) fn bad_ref(error: &BadReference) -> ErrorBody {
    ErrorBody::new("image.bad_ref", error.to_string()).hint(error.hint())
}
