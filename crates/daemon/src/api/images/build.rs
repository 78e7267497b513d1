//! Building images.

use std::sync::Arc;

use lodge_image::registry::TransferWatch;
use lodge_proto::{ErrorBody, ImageBuildParams};

use super::find::{tagged, tags_of};
use crate::api::create::{AgentfileSource, BuildPurpose, BuiltImage, build};
use crate::api::methods::{PreparedChange, ask_prepared};
use crate::shell::Shell;
use lodge_engine::{Answer, Command, ImageCommand, NewImage, RequestKey};

pub(super) async fn build_image(
    shell: &Arc<Shell>,
    key: Option<RequestKey>,
    given: ImageBuildParams,
    watch: Arc<dyn TransferWatch>,
) -> Result<Answer, ErrorBody> {
    ask_prepared(shell, key, move |shell| prepare(shell, &given, watch)).await
}

fn prepare(
    shell: &Shell,
    given: &ImageBuildParams,
    watch: Arc<dyn TransferWatch>,
) -> Result<PreparedChange, ErrorBody> {
    let source = match (&given.path, &given.content) {
        (Some(path), None) => AgentfileSource::Path(path),
        (None, Some(content)) => AgentfileSource::Content(content),
        (Some(_), Some(_)) | (None, None) => {
            return Err(ErrorBody::new("params.invalid", "name exactly one of `path` and `content`")
                .hint("`path` is a directory or an Agentfile of this host, `content` an Agentfile's text"));
        }
    };
    // Before the work: a name that cannot be given is known without it.
    let mut tags = tags_of(&given.tags)?;
    let BuiltImage { mut row, with, pins, called, .. } =
        build(shell, &source, &given.build_args, BuildPurpose::Image, watch)?;
    if tags.is_empty() {
        let name = called.as_deref().ok_or_else(|| {
            ErrorBody::new("image.no_name", "the Agentfile has no NAME of its own, and no name was given")
                .hint("add `NAME name` to it, or give one with `-t name[:tag]`")
        })?;
        tags.push(tagged(name)?);
    }
    if let Some(first) = tags.first() {
        row.name.clone_from(first);
    }
    let command = Command::Image(ImageCommand::Add(Box::new(NewImage { row, with, tags })));
    Ok(PreparedChange { command, pins: vec![pins] })
}
