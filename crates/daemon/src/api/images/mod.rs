//! `image/…`: the images of agents in the local store, and on their way from and to registries.

mod build;
mod errors;
mod find;
mod transfer;

use std::sync::Arc;

use lodge_core::record::{ImageKind, ImageState};
use lodge_image::Digest;
use lodge_image::oci::{MANIFEST_MAX, ManifestDocument};
use lodge_image::registry::TransferWatch;
use lodge_image::{BlobError, diff};
use lodge_proto::{
    ApiMethod, BlobView, BuildImage, DiffImages, ErrorBody, ImageChange, ImageDetail, ImageDiff,
    ImageDiffParams, ImageList, ImageListParams, ImageRef, ImageTagParams, InspectImage, ListImages,
    PullImage, PushImage, RemoveImage, TagImage,
};
use serde_json::Value;

use self::build::build_image;
pub(in crate::api) use self::errors::{LookupError, ObtainError};
pub(in crate::api) use self::find::{
    StoredAgentImage, digest_tag, find, find_bin, free_for, locate, tagged, tags_of, wrong_kind,
};
pub(in crate::api) use self::transfer::{fetch_image, name_of, pull, push};
use super::methods::{Reply, changed, internal, no_method, page, reply};
use super::params;
use crate::act::mask;
use crate::crash;
use crate::images::ImageError;
use crate::limits;
use crate::read_view::ReadView;
use crate::shell::Shell;
use crate::suspects::carry;
use crate::view;
use crate::view::no_image;
use lodge_engine::{Answer, Command, ImageCommand, ImageSelector, RequestKey};

pub(super) async fn call(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    method: &str,
    given: Value,
    watch: Arc<dyn TransferWatch>,
) -> Reply {
    match method {
        BuildImage::NAME => {
            let given = params::<BuildImage>(given)?;
            changed::<BuildImage>(&build_image(shell, key, given, watch).await?)
        }
        ListImages::NAME => {
            let given = params::<ListImages>(given)?;
            shell.read(move |at| reply::<ListImages>(list(at, &given))).await
        }
        InspectImage::NAME => {
            let given = params::<InspectImage>(given)?;
            shell.read(move |at| reply::<InspectImage>(inspect(at, &given))).await
        }
        DiffImages::NAME => reply::<DiffImages>(difference(shell, params::<DiffImages>(given)?).await),
        TagImage::NAME => changed::<TagImage>(&tag(shell, key, params::<TagImage>(given)?).await?),
        PullImage::NAME => {
            let lodge_proto::ImagePullParams { image, tags, .. } = params::<PullImage>(given)?;
            changed::<PullImage>(&pull(shell, key, ImageKind::Agent, image, tags, watch).await?)
        }
        PushImage::NAME => {
            let lodge_proto::ImagePushParams { image, to, .. } = params::<PushImage>(given)?;
            push(shell, key, ImageKind::Agent, image, to, watch).await
        }
        RemoveImage::NAME => {
            let given = params::<RemoveImage>(given)?;
            changed::<RemoveImage>(&remove(shell, key, ImageKind::Agent, given.image).await?)
        }
        _other => Err(no_method(method)),
    }
}

fn list(at: &ReadView<'_>, given: &ImageListParams) -> Result<ImageList, ErrorBody> {
    let limit = page(given.limit);
    let found = at.store.images(ImageKind::Agent, given.after.as_deref(), limit).map_err(internal)?;
    let next =
        (found.len() == limit as usize).then(|| found.last().map(|last| last.digest.clone())).flatten();
    Ok(ImageList { images: found.into_iter().map(view::image).collect(), next })
}

fn inspect(at: &ReadView<'_>, given: &ImageRef) -> Result<ImageDetail, ErrorBody> {
    let found = find(at, &given.image)?;
    let summary = at.store.image_summary(&found.digest).map_err(internal)?;
    let summary = summary.ok_or_else(|| no_image(&given.image))?;
    let used_by = at.store.agents_of_image(&found.digest).map_err(internal)?;
    let blobs = blobs(at, &found.digest)?;
    Ok(view::image_detail(summary, found.record, used_by, blobs))
}

/// What an image is made of in the store: itself first. Nothing for one that an earlier release built.
fn blobs(shell: &Shell, digest: &str) -> Result<Vec<BlobView>, ErrorBody> {
    let digest: Digest = digest.parse().map_err(|_| no_image(digest))?;
    let bytes = match shell.images.blobs()?.read(&digest, MANIFEST_MAX) {
        Ok(bytes) => bytes,
        Err(BlobError::Missing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(ImageError::from(error).into()),
    };
    let document = ManifestDocument::read(&bytes).map_err(ImageError::from)?;
    let itself = BlobView {
        digest: digest.to_string(),
        media_type: document.media_type().to_owned(),
        size_bytes: bytes.len() as u64,
        title: None,
    };
    let parts = document.parts().into_iter().map(|part| BlobView {
        digest: part.digest.to_string(),
        media_type: part.media_type.clone(),
        size_bytes: part.size,
        title: part.title().map(str::to_owned),
    });
    Ok(std::iter::once(itself).chain(parts).collect())
}

async fn tag(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: ImageTagParams,
) -> Result<Answer, ErrorBody> {
    let tags = tags_of(&given.tags)?;
    if tags.is_empty() {
        return Err(
            ErrorBody::new("params.invalid", "no name was given").hint("give at least one tag in `tags`")
        );
    }
    let located = shell.read(move |at| locate(at, &given.image)).await?;
    free_for(located.kind, &tags)?;
    Ok(shell.ask(key, Command::Image(ImageCommand::Tag { digest: located.digest, tags })).await?)
}

/// Removes a name or an image. Entries of the other kind are left alone: a user who reads one list does not mean
/// entries of the other.
pub(in crate::api) async fn remove(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    kind: ImageKind,
    given: String,
) -> Result<Answer, ErrorBody> {
    let (located, used_by) = shell.read(move |at| used(at, kind, &given)).await?;
    let given = match located.reference {
        Some(reference) => ImageSelector::Ref(reference),
        None => ImageSelector::Digest(located.digest),
    };
    Ok(shell.ask(key, Command::Image(ImageCommand::Remove { given, used_by })).await?)
}

/// An image, and the names of agents that have it.
fn used(
    at: &ReadView<'_>,
    kind: ImageKind,
    given: &str,
) -> Result<(find::StoredImage, Vec<String>), LookupError> {
    let located = find::located(at, kind, given)?;
    let used_by = at.store.agents_of_image(&located.digest)?;
    Ok((located, used_by))
}

async fn difference(shell: &Arc<Shell>, given: ImageDiffParams) -> Result<ImageDiff, ErrorBody> {
    let shell = shell.clone();
    let told = tokio::task::spawn_blocking(carry(move || {
        crash::pill_at("diff", &given.to);
        let whole = |at: &ReadView<'_>, given: &str| {
            let found = find(at, given)?;
            let summary = at.store.image_summary(&found.digest).map_err(internal)?;
            if summary.is_some_and(|summary| summary.state == ImageState::Announced) {
                return Err(ErrorBody::new("image.not_found", format!("`{}` is not here yet", found.named))
                    .hint(format!("`lodge image pull {}` pulls it", found.named)));
            }
            Ok(found)
        };
        let (from, to) =
            shell.read_here(|at| Ok::<_, ErrorBody>((whole(at, &given.from)?, whole(at, &given.to)?)))?;
        let read = |found: &StoredAgentImage| shell.images.load_agentfile(found.record.clone());
        let changes = diff::diff(&read(&from)?, &read(&to)?, limits::default_text);
        let changes = changes.into_iter().map(change).collect();
        Ok(ImageDiff { from: from.digest, to: to.digest, changes })
    }));
    told.await.unwrap_or_else(|error| Err(ErrorBody::new("daemon.internal", error.to_string())))
}

fn change(change: diff::DiffChange) -> ImageChange {
    let diff::DiffChange { section, key, before, after } = change;
    // Variables that look like secrets are shown nowhere.
    let shown = |value: Option<String>| match section {
        diff::DiffSection::Env => value.map(|value| mask::shown(&key, &value).to_owned()),
        diff::DiffSection::Network
        | diff::DiffSection::Limits
        | diff::DiffSection::Capabilities
        | diff::DiffSection::Runtime
        | diff::DiffSection::Bins
        | diff::DiffSection::Services
        | diff::DiffSection::Model
        | diff::DiffSection::Config
        | diff::DiffSection::Contexts
        | diff::DiffSection::Files
        | diff::DiffSection::Labels
        | diff::DiffSection::Other => value,
    };
    let (before, after) = (shown(before), shown(after));
    ImageChange { section: section_word(section).to_owned(), key, before, after }
}

fn section_word(section: diff::DiffSection) -> &'static str {
    match section {
        diff::DiffSection::Network => "network",
        diff::DiffSection::Limits => "limits",
        diff::DiffSection::Capabilities => "capabilities",
        diff::DiffSection::Runtime => "runtime",
        diff::DiffSection::Bins => "bins",
        diff::DiffSection::Services => "services",
        diff::DiffSection::Env => "env",
        diff::DiffSection::Model => "model",
        diff::DiffSection::Config => "config",
        diff::DiffSection::Contexts => "contexts",
        diff::DiffSection::Files => "files",
        diff::DiffSection::Labels => "labels",
        diff::DiffSection::Other => "other",
    }
}
