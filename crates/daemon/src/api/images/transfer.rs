//! Images on their way from and to registries.

use std::sync::Arc;

use lodge_core::record::ImageKind;
use lodge_image::registry::TransferWatch;
use lodge_image::{ImageVersion, RemoteImage, TaggedName};
use lodge_proto::{ErrorBody, ImagePushed};

use super::find::{bad_ref, digest_tag, free_for, located, tags_of, wrong_kind};
use crate::api::methods::{Answer, Prepared, detached, record};
use crate::images::{Arrived, errors};
use crate::shell::Shell;
use crate::tasks::TaskKind;
use crate::view;
use lodge_engine::{Command, ImageCommand, NewImage, RequestKey};

/// Brings an image with what it needs, and gives it the name that it was asked for by.
pub(in crate::api) async fn pull(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    kind: ImageKind,
    given: String,
    tags: Vec<String>,
    watch: Arc<dyn TransferWatch>,
) -> Answer {
    let remote = remote_of(&given)?;
    let mut tags = tags_of(&tags)?;
    let named = vec![name_of(&given, &remote)?];
    // A tool whose registry is called `host` has the names alone that it is given.
    if tags.is_empty() || free_for(kind, &named).is_ok() {
        tags.extend(named);
    }
    free_for(kind, &tags)?;
    let begun = shell.clone();
    // Somebody who leaves does not break a download off that is to be recorded under his request.
    detached(shell, async move { bring(&begun, key, kind, (&given, &remote), tags, watch).await }).await
}

/// As `pull`, for whoever waits for it in any case.
pub(in crate::api) async fn bring(
    shell: &Shell,
    key: Option<RequestKey>,
    kind: ImageKind,
    from: (&str, &RemoteImage),
    tags: Vec<String>,
    watch: Arc<dyn TransferWatch>,
) -> Answer {
    let brought = brought(shell, key, kind, from, tags, watch).await;
    if brought.as_ref().is_err_and(|error| !errors::is_gone_on_with(error)) {
        // Whatever came of it belongs to nobody.
        shell.spawn(TaskKind::ImageCollection, shell.images.clone().collect());
    }
    brought
}

async fn brought(
    shell: &Shell,
    key: Option<RequestKey>,
    kind: ImageKind,
    (given, remote): (&str, &RemoteImage),
    mut tags: Vec<String>,
    watch: Arc<dyn TransferWatch>,
) -> Answer {
    let Arrived { row, with, pins } = shell.images.pull(remote, watch).await?;
    if row.contents.kind() != kind {
        return Err(wrong_kind(kind, given));
    }
    tags.sort();
    tags.dedup();
    let command = Command::Image(ImageCommand::Add(Box::new(NewImage { row, with, tags })));
    record(shell, key, Prepared { command, pins: vec![pins] }).await
}

/// Brings an image with what it needs to a registry.
pub(in crate::api) async fn push(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    kind: ImageKind,
    given: String,
    to: Option<String>,
    watch: Arc<dyn TransferWatch>,
) -> Answer {
    let found = shell.read(move |at| located(at, kind, &given)).await?;
    let to = to.or(found.reference).ok_or_else(|| {
        ErrorBody::new("params.invalid", "an image that is named by its digest needs a name to be pushed to")
            .hint("say where to: `registry.example/name:tag`")
    })?;
    let remote = remote_of(&to)?;
    if let ImageVersion::Digest(_) = remote.version {
        return Err(ErrorBody::new("image.bad_ref", "a digest cannot be chosen where an image goes to")
            .hint("write it as `registry.example/name:tag`"));
    }
    let (begun, digest) = (shell.clone(), found.digest);
    detached(shell, async move {
        let sent_bytes = begun.images.push(&digest, &remote, watch).await?;
        let answer = view::json(&ImagePushed { digest, reference: name_of(&to, &remote)?, sent_bytes });
        match key {
            Some(key) => {
                record(&begun, Some(key), Prepared::of(Command::Keep { answer: view::text(&answer) })).await
            }
            None => Ok(answer),
        }
    })
    .await
}

/// Where an image is that is to be brought from or to a registry.
pub(in crate::api) fn remote_of(given: &str) -> Result<RemoteImage, ErrorBody> {
    RemoteImage::read(given).map_err(|error| bad_ref(&error))?.ok_or_else(|| {
        ErrorBody::new("image.bad_ref", format!("`{given}` names no registry"))
            .hint("write it as `registry.example/name:tag`; `lodge image tag` gives an image such a name")
    })
}

/// What an image of a registry is called here: as it is asked for, and by its digest where that has no tag.
pub(in crate::api) fn name_of(given: &str, remote: &RemoteImage) -> Result<String, ErrorBody> {
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
    TaggedName::read(&text).map(|tagged| tagged.as_str().to_owned()).map_err(|error| bad_ref(&error))
}
