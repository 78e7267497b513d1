//! Images on their way from and to registries.

use std::sync::Arc;

use lodge_core::record::ImageKind;
use lodge_image::registry::TransferWatch;
use lodge_image::{ImageVersion, RemoteImage, TaggedName};
use lodge_proto::{ErrorBody, ImagePushed};

use super::errors::{LookupError, ObtainError};
use super::find::{digest_tag, free_for, located, tags_of, wrong_kind};
use crate::api::methods::{PreparedChange, Reply, detached, record};
use crate::images::{ImageError, UnrecordedImages};
use crate::shell::Shell;
use crate::tasks::TaskKind;
use crate::view;
use lodge_engine::{Answer, Command, ImageCommand, NewImage, RequestKey};

/// Pulls an image and its dependencies, and gives it the requested name.
pub(in crate::api) async fn pull(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    kind: ImageKind,
    given: String,
    tags: Vec<String>,
    watch: Arc<dyn TransferWatch>,
) -> Result<Answer, ErrorBody> {
    let remote = remote_of(&given)?;
    let mut tags = tags_of(&tags)?;
    let named = vec![name_of(&given, &remote)?];
    // A tool whose registry is called `host` has the names alone that it is given.
    if tags.is_empty() || free_for(kind, &named).is_ok() {
        tags.extend(named);
    }
    free_for(kind, &tags)?;
    let begun = shell.clone();
    // A disconnected client does not abort a download that will be recorded under its request.
    detached(shell, async move { Ok(fetch_image(&begun, key, kind, (&given, &remote), tags, watch).await?) })
        .await
}

/// As `pull`, for callers that always wait for the result.
pub(in crate::api) async fn fetch_image(
    shell: &Shell,
    key: Option<RequestKey>,
    kind: ImageKind,
    (given, remote): (&str, &RemoteImage),
    tags: Vec<String>,
    watch: Arc<dyn TransferWatch>,
) -> Result<Answer, ObtainError> {
    let fetched = shell.images.pull(remote, watch).await;
    // The received bytes are kept for the next attempt. Other contents have no owner.
    let is_resumable = fetched.as_ref().is_err_and(ImageError::is_resumable);
    let recorded = match fetched {
        Ok(arrived) => record_arrived(shell, key, kind, given, arrived, tags).await,
        Err(error) => Err(error.into()),
    };
    if recorded.is_err() && !is_resumable {
        shell.spawn(TaskKind::ImageCollection, shell.images.clone().collect());
    }
    recorded
}

async fn record_arrived(
    shell: &Shell,
    key: Option<RequestKey>,
    kind: ImageKind,
    given: &str,
    UnrecordedImages { row, with, pins }: UnrecordedImages,
    mut tags: Vec<String>,
) -> Result<Answer, ObtainError> {
    if row.contents.kind() != kind {
        return Err(wrong_kind(kind, given).into());
    }
    tags.sort();
    tags.dedup();
    let command = Command::Image(ImageCommand::Add(Box::new(NewImage { row, with, tags })));
    record(shell, key, PreparedChange { command, pins: vec![pins] }).await.map_err(ObtainError::NotRecorded)
}

/// Brings an image with what it needs to a registry.
pub(in crate::api) async fn push(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    kind: ImageKind,
    given: String,
    to: Option<String>,
    watch: Arc<dyn TransferWatch>,
) -> Reply {
    let found = shell.read(move |at| located(at, kind, &given)).await?;
    let to = to.or(found.reference).ok_or_else(|| {
        ErrorBody::new("params.invalid", "an image that is named by its digest needs a name to be pushed to")
            .hint("give a destination: `registry.example/name:tag`")
    })?;
    let remote = remote_of(&to)?;
    if let ImageVersion::Digest(_) = remote.version {
        return Err(ErrorBody::new("image.bad_ref", "a digest cannot be chosen where an image goes to")
            .hint("write it as `registry.example/name:tag`"));
    }
    let (begun, digest) = (shell.clone(), found.digest);
    detached(shell, async move {
        let sent_bytes = begun.images.push(&digest, &remote, watch).await?;
        let pushed = ImagePushed { digest, reference: name_of(&to, &remote)?, sent_bytes };
        let answer = view::text(&pushed);
        match key {
            Some(key) => {
                let keep = PreparedChange::of(Command::Keep { answer });
                Ok(view::rendered(&record(&begun, Some(key), keep).await?))
            }
            None => Ok(answer),
        }
    })
    .await
}

/// The registry that an image is pulled from or pushed to.
pub(in crate::api) fn remote_of(given: &str) -> Result<RemoteImage, ErrorBody> {
    RemoteImage::read(given).map_err(LookupError::from)?.ok_or_else(|| {
        ErrorBody::new("image.bad_ref", format!("`{given}` names no registry"))
            .hint("write it as `registry.example/name:tag`; `lodge image tag` gives an image such a name")
    })
}

/// The local name of a registry's image: the requested name, with a tag from its digest if it has none.
pub(in crate::api) fn name_of(given: &str, remote: &RemoteImage) -> Result<String, LookupError> {
    let RemoteImage { host, repository, version } = remote;
    let text = match version {
        ImageVersion::Tag(tag) => format!("{host}/{repository}:{tag}"),
        ImageVersion::Digest(digest) => {
            let name = given.split_once('@').map_or(given, |(name, _)| name);
            let tag = name.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
            match tag {
                Some(tag) => format!("{host}/{repository}:{tag}"),
                None => format!("{host}/{repository}:{}", digest_tag(&digest.hex())),
            }
        }
    };
    Ok(TaggedName::read(&text)?.as_str().to_owned())
}
