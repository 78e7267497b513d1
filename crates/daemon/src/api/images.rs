//! `image/…`: the local store of images.

use std::sync::Arc;

use lodge_core::record::ImageRecord;
use lodge_image::{Reference, Tagged};
use lodge_proto::{ErrorBody, ImageBuildParams, ImageList, ImageListParams, ImageRef};
use serde_json::Value;

use super::create::{Built, Source, build};
use super::methods::{Answer, ask_prepared, internal, no_method, page};
use super::params;
use crate::engine::images::no_image;
use crate::engine::{Command, ImageGiven, NewImage, RequestKey};
use crate::shell::Shell;
use crate::view;

/// Names that one build gives.
const TAGS_MAX: usize = 64;

/// An image of the store.
#[derive(Debug, Clone)]
pub(in crate::api) struct Found {
    pub digest: String,
    /// As it was asked for: `name:tag`, or its digest.
    pub named: String,
    pub record: ImageRecord,
}

pub(super) async fn call(shell: &Arc<Shell>, key: Option<RequestKey>, method: &str, given: Value) -> Answer {
    match method {
        "image/build" => build_image(shell, key, params(method, given)?).await,
        "image/list" => list(shell, &params(method, given)?),
        "image/inspect" => inspect(shell, &params(method, given)?),
        "image/remove" => remove(shell, key, params(method, given)?).await,
        _other => Err(no_method(method)),
    }
}

async fn build_image(shell: &Arc<Shell>, key: Option<RequestKey>, given: ImageBuildParams) -> Answer {
    let prepare = move |shell: &Shell| Ok(Command::BuildImage(Box::new(prepare(shell, &given)?)));
    ask_prepared(shell, key, prepare).await
}

fn prepare(shell: &Shell, given: &ImageBuildParams) -> Result<NewImage, ErrorBody> {
    let source = match (&given.path, &given.content) {
        (Some(path), None) => Source::Path(path),
        (None, Some(content)) => Source::Content(content),
        (Some(_), Some(_)) | (None, None) => {
            return Err(ErrorBody::new("params.invalid", "name exactly one of `path` and `content`")
                .hint("`path` is a directory or an Agentfile of this host, `content` an Agentfile's text"));
        }
    };
    if given.tags.len() > TAGS_MAX {
        return Err(ErrorBody::new("params.invalid", format!("at most {TAGS_MAX} names at once")));
    }
    // Before the work: a name that cannot be given is known without it.
    let mut tags = given.tags.iter().map(|tag| tagged(tag)).collect::<Result<Vec<_>, _>>()?;
    let Built { record, digest, called } = build(shell, &source, &given.build_args)?;
    if tags.is_empty() {
        let name = called.as_deref().ok_or_else(|| {
            ErrorBody::new("image.no_name", "the Agentfile has no NAME of its own, and no name was given")
                .hint("add `NAME name` to it, or give one with `-t name[:tag]`")
        })?;
        tags.push(tagged(name)?);
    }
    tags.sort();
    tags.dedup();
    let bytes = lodge_store::encode(&record).len() as u64;
    Ok(NewImage { digest, record, bytes, tags })
}

fn list(shell: &Shell, given: &ImageListParams) -> Answer {
    let limit = page(given.limit);
    let found = shell.reader.images(given.after.as_deref(), limit).map_err(internal)?;
    let next =
        (found.len() == limit as usize).then(|| found.last().map(|last| last.digest.clone())).flatten();
    Ok(view::json(&ImageList { images: found.into_iter().map(view::image).collect(), next }))
}

fn inspect(shell: &Shell, given: &ImageRef) -> Answer {
    let found = find(shell, &given.image)?;
    let summary = shell.reader.image_summary(&found.digest).map_err(internal)?;
    let summary = summary.ok_or_else(|| *no_image(&given.image))?;
    let used_by = shell.reader.agents_of_image(&found.digest).map_err(internal)?;
    Ok(view::json(&view::image_detail(summary, found.record, used_by)))
}

async fn remove(shell: &Shell, key: Option<RequestKey>, given: ImageRef) -> Answer {
    let wanted = match locate(shell, &given.image)? {
        Located::Ref { reference, .. } => ImageGiven::Ref(reference),
        Located::Digest(digest) => ImageGiven::Digest(digest),
    };
    shell.ask(key, Command::RemoveImage(wanted)).await
}

/// An image by name, by digest, or by a unique beginning of one.
pub(in crate::api) fn find(shell: &Shell, given: &str) -> Result<Found, ErrorBody> {
    let (digest, named) = match locate(shell, given)? {
        Located::Ref { reference, digest } => (digest, reference),
        Located::Digest(digest) => (digest.clone(), digest),
    };
    let record = shell.reader.image(&digest).map_err(internal)?.ok_or_else(|| *no_image(given))?;
    Ok(Found { digest, named, record })
}

enum Located {
    Ref { reference: String, digest: String },
    Digest(String),
}

fn locate(shell: &Shell, given: &str) -> Result<Located, ErrorBody> {
    let beginning = match Reference::read(given).map_err(|error| bad_ref(&error))? {
        Reference::Name(tagged) => match shell.reader.image_ref(tagged.as_str()).map_err(internal)? {
            Some(row) => return Ok(Located::Ref { reference: row.reference, digest: row.digest }),
            None => Reference::short_digest(given).ok_or_else(|| *no_image(given))?,
        },
        Reference::Digest(digest) => digest,
    };
    let mut found = shell.reader.find_digests(&beginning).map_err(internal)?;
    match found.len() {
        0 => Err(*no_image(given)),
        1 => Ok(Located::Digest(found.remove(0))),
        _ => Err(ErrorBody::new("image.ambiguous", format!("several images begin with `{given}`"))
            .hint(format!("give more of the digest: {}", found.join(", ")))),
    }
}

fn tagged(text: &str) -> Result<String, ErrorBody> {
    Tagged::read(text).map(|tagged| tagged.as_str().to_owned()).map_err(|error| bad_ref(&error))
}

fn bad_ref(error: &lodge_image::BadReference) -> ErrorBody {
    ErrorBody::new("image.bad_ref", error.to_string()).hint(error.hint())
}
