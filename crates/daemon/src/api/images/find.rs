//! Finds the image that a request names.

use lodge_core::record::{BinImageRecord, ImageKind, ImageRecord};
use lodge_image::{Reference, TaggedName};
use lodge_proto::ErrorBody;

use super::errors::LookupError;
use crate::read_view::ReadView;

/// Names that one call gives.
const TAGS_MAX: usize = 64;
/// Names that a refusal lists.
const TAGS_SHOWN: usize = 5;
/// Letters of a digest that are a tag.
const DIGEST_TAG: usize = 12;

/// An image of the store.
#[derive(Debug, Clone)]
pub(in crate::api) struct StoredImage {
    pub digest: String,
    /// The requested name, if it is not the digest.
    pub reference: Option<String>,
    pub kind: ImageKind,
}

/// An agent's image of the store.
#[derive(Debug, Clone)]
pub(in crate::api) struct StoredAgentImage {
    pub digest: String,
    /// As requested: `name:tag`, or the digest.
    pub named: String,
    pub record: ImageRecord,
}

/// A tool of the store.
#[derive(Debug, Clone)]
pub(in crate::api) struct StoredTool {
    pub digest: String,
    /// The requested name, if it is not the digest.
    pub named: Option<String>,
    pub record: BinImageRecord,
}

/// An agent's image by name, by digest, or by a unique beginning of one.
pub(in crate::api) fn find(at: &ReadView<'_>, given: &str) -> Result<StoredAgentImage, LookupError> {
    let StoredImage { digest, reference, .. } = located(at, ImageKind::Agent, given)?;
    let record = at.store.image(&digest)?.ok_or_else(|| no_image(given))?;
    Ok(StoredAgentImage { named: reference.unwrap_or_else(|| digest.clone()), digest, record })
}

/// A tool by name, by digest, or by a unique beginning of one.
pub(in crate::api) fn find_bin(at: &ReadView<'_>, given: &str) -> Result<StoredTool, LookupError> {
    let StoredImage { digest, reference: named, .. } = located(at, ImageKind::Bin, given)?;
    let record = at.store.bin_image(&digest)?.ok_or_else(|| no_tool(given, Vec::new()))?;
    Ok(StoredTool { digest, named, record })
}

/// An image that has to be of a kind.
pub(super) fn located(at: &ReadView<'_>, kind: ImageKind, given: &str) -> Result<StoredImage, LookupError> {
    let located = locate(at, given).map_err(|error| match (kind, error) {
        (ImageKind::Bin, LookupError::NoImage { .. }) => no_tool(given, other_tags(at, given)),
        (ImageKind::Agent | ImageKind::Bin, error) => error,
    })?;
    if located.kind == kind { Ok(located) } else { Err(wrong_kind(kind, given)) }
}

/// An image of any kind.
pub(in crate::api) fn locate(at: &ReadView<'_>, given: &str) -> Result<StoredImage, LookupError> {
    let beginning = match Reference::read(given)? {
        Reference::Name(tagged) => match at.store.image_ref(tagged.as_str())? {
            Some(row) => return with_kind(at, given, row.digest, Some(row.reference)),
            None => Reference::short_digest(given).ok_or_else(|| LookupError::NoImage {
                given: given.to_owned(),
                tags: other_tags(at, given),
            })?,
        },
        Reference::Digest(digest) => digest,
    };
    let mut found = at.store.find_digests(&beginning)?;
    match found.len() {
        0 => Err(no_image(given)),
        1 => with_kind(at, given, found.remove(0), None),
        _ => Err(LookupError::Ambiguous { given: given.to_owned(), digests: found }),
    }
}

fn with_kind(
    at: &ReadView<'_>,
    given: &str,
    digest: String,
    reference: Option<String>,
) -> Result<StoredImage, LookupError> {
    let summary = at.store.image_summary(&digest)?;
    let kind = summary.ok_or_else(|| no_image(given))?.kind;
    Ok(StoredImage { digest, reference, kind })
}

/// What was named is there, and is not what was wanted.
pub(in crate::api) fn wrong_kind(wanted: ImageKind, given: &str) -> LookupError {
    LookupError::WrongKind { wanted, given: given.to_owned() }
}

fn no_image(given: &str) -> LookupError {
    LookupError::NoImage { given: given.to_owned(), tags: Vec::new() }
}

fn no_tool(given: &str, tags: Vec<String>) -> LookupError {
    LookupError::NoTool { given: given.to_owned(), tags }
}

/// The existing tags, for a request without a tag or with a wrong one.
fn other_tags(at: &ReadView<'_>, given: &str) -> Vec<String> {
    let Ok(tagged) = TaggedName::read(given) else { return Vec::new() };
    let Some((name, _)) = tagged.as_str().rsplit_once(':') else { return Vec::new() };
    let tags = at.store.image_tags(name).unwrap_or_default();
    tags.into_iter().take(TAGS_SHOWN).map(|row| row.reference).collect()
}

/// Names as they are kept, each once.
pub(in crate::api) fn tags_of(given: &[String]) -> Result<Vec<String>, ErrorBody> {
    if given.len() > TAGS_MAX {
        return Err(ErrorBody::new("params.invalid", format!("at most {TAGS_MAX} names at once"))
            .hint("add the others with `lodge image tag`"));
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

/// The tag of an image without a given one.
pub(in crate::api) fn digest_tag(hex: &str) -> &str {
    hex.get(..DIGEST_TAG).unwrap_or(hex)
}

pub(in crate::api) fn tagged(text: &str) -> Result<String, LookupError> {
    Ok(TaggedName::read(text)?.as_str().to_owned())
}
